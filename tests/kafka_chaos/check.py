"""What the logs of all programs and the content of both topics say of each record. Pure."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SESSION = 10**7
"""Each run of a producer has so many numbers of its own,"""
PRODUCER = 10**10
"""and each producer so many."""
TRANSACTIONAL = 100 * PRODUCER
"""From here on they are those of transactional producers, which go on with what their former run was."""

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a run left behind. Topics are lists of numbers by partition, in the order of offsets, or of commits."""

    idempotent: Mapping[str, Sequence[Line]]
    """What each such producer wrote, by name; of all its runs."""
    transactional: Mapping[str, Sequence[Line]]
    members: Mapping[str, Sequence[Line]]
    offsets: Mapping[str, Sequence[Mapping[int, int]]] = field(default_factory=dict)
    """What groups had committed, one look after another."""
    source: Mapping[int, Sequence[int]]
    """As a consumer of Kafka reads it, with `read_committed`."""
    places: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """The same with the offset of each number before it."""
    source_of_client: Mapping[int, Sequence[int]]
    """As our client does."""
    targets: Mapping[str, Mapping[int, Sequence[int]]]
    """Topics that were made of the source, by name."""
    targets_of_client: Mapping[str, Mapping[int, Sequence[int]]]


@dataclass(slots=True)
class _Sent:
    """What producers wrote, by what has to become of it: partition and number."""

    once: set[tuple[int, int]] = field(default_factory=set)
    never: set[tuple[int, int]] = field(default_factory=set)
    perhaps: set[tuple[int, int]] = field(default_factory=set)
    whole: list[set[tuple[int, int]]] = field(default_factory=list)
    """Transactions whose end no log has: all or nothing."""


def findings(evidence: Evidence) -> list[str]:
    """Return what must not be, a line each; the clearest first."""
    sent = _Sent()
    found = []
    there = Counter((part, n) for part, numbers in evidence.source.items() for n in numbers)
    for name, lines in evidence.idempotent.items():
        found += _idempotent(name, lines, there, sent)
    for lines in evidence.transactional.values():
        _transactional(lines, sent)
    found += _source(there, sent)
    found += _orders("the consumer", evidence.source)
    found += _orders("our client", evidence.source_of_client)
    found += _alike("source", evidence.source, evidence.source_of_client)
    found += _group(evidence.members, there)
    found += _moved({**evidence.idempotent, **evidence.members}, evidence.places)
    found += _committed(evidence.offsets)
    for name, target in evidence.targets.items():
        found += _transformed(name, evidence.source, target)
        found += _alike(name, target, evidence.targets_of_client[name])
    return found


def _idempotent(
    name: str, lines: Sequence[Line], there: Iterable[tuple[int, int]], sent: _Sent
) -> list[str]:
    places = {line["n"]: line["partition"] for line in lines if "n" in line and "partition" in line}
    acked = {line["n"] for line in lines if line["what"] == "acked"}
    sent.perhaps |= {(part, n) for part, n in _unlogged(lines, there) if n not in acked}
    for number, partition in places.items():
        (sent.once if number in acked else sent.perhaps).add((partition, number))
    return [
        f"{name} was refused the record {line['n']}: {line['text']}"
        for line in lines
        if line["what"] == "refused"
    ]


def _unlogged(lines: Sequence[Line], there: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """What readers get of runs that log only what was acknowledged, and perhaps in the end how many they sent."""
    ends: dict[int, int] = {}
    first = 0
    for line in lines:
        if "first" in line:
            first = line["first"]
            ends[first // SESSION] = first + SESSION
        elif "sent" in line:
            ends[first // SESSION] = first + line["sent"]
    return {(part, n) for part, n in there if n < ends.get(n // SESSION, 0)}


def _transactional(lines: Sequence[Line], sent: _Sent) -> None:
    begun: set[tuple[int, int]] = set()
    for line in [*lines, {"what": "started"}]:
        match line["what"]:
            case "begun" | "started":
                if begun:
                    sent.whole.append(begun)
                begun = {(part, n) for n, part in line.get("records", ())}
            case "committed":
                sent.once |= begun
                begun = set()
            case "aborted":
                sent.never |= begun
                begun = set()


def _source(there: Counter[tuple[int, int]], sent: _Sent) -> Iterator[str]:
    unknown = set().union(*sent.whole)
    for what, places in (
        ("lost: {} was acknowledged", sent.once - there.keys()),
        ("aborted: readers get {}", sent.never & there.keys()),
        (
            "doubled: readers get more than once {}",
            {one for one, count in there.items() if count > 1},
        ),
        (
            "strange: {} was never sent",
            there.keys() - sent.once - sent.never - sent.perhaps - unknown,
        ),
    ):
        if places:
            yield what.format(_few(places))
    for whole in sent.whole:
        if (missing := whole - there.keys()) and missing != whole:
            yield f"torn: of a transaction whose end is unknown {_few(missing)} is missing"


def _few(places: Iterable[tuple[int, int]]) -> str:
    places = sorted(places)
    shown = ", ".join(f"{number} of partition {part}" for part, number in places[:3])
    return shown + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _orders(reader: str, topic: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Each producer's records are in its order."""
    for part, numbers in topic.items():
        last: dict[int, int] = {}
        for number in numbers:
            key = number // (SESSION if number < TRANSACTIONAL else PRODUCER)
            if last.get(key, -1) > number:
                yield f"order: {reader} gets {number} after {last[key]}, in partition {part}"
            last[key] = number


def _alike(
    topic: str, kafka: Mapping[int, Sequence[int]], client: Mapping[int, Sequence[int]]
) -> Iterator[str]:
    for part, numbers in kafka.items():
        ours, theirs = Counter(client[part]), Counter(numbers)
        if ours != theirs:
            yield (
                f"readers differ: of {topic} {part} our client alone has {sorted(ours - theirs)[:3]}, "
                f"and Kafka's alone {sorted(theirs - ours)[:3]}"
            )


def _group(members: Mapping[str, Sequence[Line]], there: Counter[tuple[int, int]]) -> Iterator[str]:
    lines = list(itertools.chain.from_iterable(members.values()))
    read = {(one["partition"], one["value"]["n"]) for one in lines if one["what"] == "record"}
    if missing := there.keys() - read:
        yield f"skipped: no member of the group got {_few(missing)}"
    if more := read - there.keys():
        yield f"uncommitted: the group got {_few(more)}"
    commits = _Commits(lines)
    for name, written in members.items():
        yield from _again(name, written, commits)


class _Commits:
    """How far a group had come at any time, as its members were answered."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._at: defaultdict[int, list[float]] = defaultdict(list)
        self._most: defaultdict[int, list[int]] = defaultdict(list)
        done = [line for line in lines if line["what"] == "committed"]
        for line in sorted(done, key=lambda line: line["at"]):
            most = self._most[line["partition"]]
            self._at[line["partition"]].append(line["at"])
            most.append(max(line["offset"], most[-1] if most else 0))

    def before(self, partition: int, at: float) -> int:
        """The largest offset that was acknowledged before a monotonic second."""
        index = bisect.bisect_left(self._at[partition], at)
        return self._most[partition][index - 1] if index else 0


def _moved(
    logs: Mapping[str, Sequence[Line]], places: Mapping[int, Sequence[tuple[int, int]]]
) -> Iterator[str]:
    """Records that are elsewhere than a program was answered or got them."""
    indices = {
        (part, number): index
        for part, records in places.items()
        for index, (_, number) in enumerate(records)
    }
    for name, lines in logs.items():
        for line in lines:
            offset = line.get("offset", -1)
            if offset < 0 or line["what"] not in ("acked", "record"):
                continue  # an answer to a batch that came again may say that it does not know
            is_answer = line["what"] == "acked"
            number = line["n"] if is_answer else line["value"]["n"]
            part = line["partition"]
            index = indices.get((part, number))
            if index is not None and not _is_at(places[part], index, offset, in_batch=is_answer):
                at = places[part][index][0]
                yield f"moved: {number} is at {at} of partition {part}; {name} had it at {offset}"
                break


def _is_at(records: Sequence[tuple[int, int]], index: int, offset: int, *, in_batch: bool) -> bool:
    """Whether a record has this offset. An answer has the offset of a batch alone, from which clients count its records."""
    behind = 0
    while in_batch and behind < index and records[index - behind][0] + behind > offset:
        behind += 1
    return records[index - behind][0] + behind == offset


def _again(name: str, lines: Sequence[Line], commits: _Commits) -> Iterator[str]:
    """Records that a member got although they were committed when it got the partition, or twice since then."""
    least: dict[int, int] = {}
    for line in lines:
        if line["what"] == "assigned":
            least = {part: commits.before(part, line["at"]) for part in line["partitions"]}
        elif line["what"] == "record":
            part, offset = line["partition"], line["offset"]
            if part not in least:
                yield f"not its own: {name} got {offset} of partition {part}, which it did not have"
            elif offset < least[part]:
                yield f"twice: {name} got {offset} of partition {part} after {least[part]}"
            least[part] = offset + 1


def _committed(offsets: Mapping[str, Sequence[Mapping[int, int]]]) -> Iterator[str]:
    for group, looks in offsets.items():
        for before, after in itertools.pairwise(looks):
            for part, offset in before.items():
                if after.get(part, -1) < offset:
                    yield (
                        f"went back: group {group} had committed {offset} of partition {part}, "
                        f"and then {after.get(part, 'nothing')}"
                    )


def _transformed(
    name: str, source: Mapping[int, Sequence[int]], target: Mapping[int, Sequence[int]]
) -> Iterator[str]:
    for part, numbers in source.items():
        made = target[part]
        if list(made) == list(numbers):
            continue
        wanted, found = Counter(numbers), Counter(made)
        if wanted == found:
            yield f"order: partition {part} of {name} is not in the order of source"
        if lost := sorted(wanted - found):
            yield f"lost: {name} has no {lost[:3]} in partition {part} ({len(lost)} in all)"
        if more := sorted(found - wanted):
            yield f"doubled: {name} has {more[:3]} in partition {part} too often ({len(more)} in all)"
