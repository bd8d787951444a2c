"""The cursor of a sensor of fragments: how far journals are registered, whose turn it is, what is known and was reported.

Its text is canonical: the same for the same state, so a tick without progress changes nothing in Dagster, which keeps the
whole text with each state of a sensor and passes it to each tick. `pack` puts like values side by side and compresses them
to characters that JSON does not escape. Where names of a table are alike, and offsets are below a TiB, ten thousand journals
in a hundred tables take less than 200,000 characters. Holes and findings come on top; those are bounded where they are kept.

`TickState` is the next cursor in the making, and `TickOutcome` all that a tick hands to Dagster.

`follow` decides purely what journals wait for, since when, and when that is a stall. A journal *waits* while it has bytes that are in no Hive partition. That is as it should be until its
fragment closes and its store has it, so a wait is a *stall* only when the first of these bytes stays
the same for longer than that may take. Waits that go on are reported to Dagster now and then, so that the head
that brokers reported last, and how far behind it the table is, are to be seen also while nothing arrives.

The cursor holds the time when a wait was seen first, and none while nothing waits: its text is the same
for the same progress.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake import JournalCursor, RegistrationCursor, SweepPoint
from gazette_platform.lake.raw.audits.registration_status import STALLED_S
from gazette_platform.lake.raw.planning import no_cursor
from gazette_platform.ops.text import SECOND_NS, format_duration
from gazette_platform.sensors.audits import AuditState
from gazette_platform.sensors.prunes import RetentionState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dagster import (
        AddDynamicPartitionsRequest,
        AssetCheckEvaluation,
        AssetMaterialization,
        AssetObservation,
        DeleteDynamicPartitionsRequest,
    )

    from gazette_platform.lake import JournalProgress, TableReport


_TOLD_EVERY_S: Final = 60
# Dagster keeps every event: ten a minute, over all journals that wait, are 14,000 a day.
_TOLD_APART_S: Final = 6
# Of a table. Others are not forgotten by brokers, only looked at later.
_WAITS_MAX: Final = 200


@final
@dataclass(frozen=True, slots=True)
class Wait:
    """A journal that waits."""

    complete_to: int
    """The first byte that is waited for."""
    since: int
    """Unix seconds: when it was first seen that this byte is waited for."""
    told_at: int
    """Unix seconds: when this journal was last reported to Dagster, or the wait began."""
    told_head: int = -1
    """The head in that report; -1: none yet."""

    def to_json(self) -> list[int]:
        """As JSON values."""
        return [self.complete_to, self.since, self.told_at, self.told_head]

    @classmethod
    def from_json(cls, raw: Any) -> Wait:
        """The wait whose `to_json` was `raw`.

        Raises: ValueError, TypeError: it is none.
        """
        complete_to, since, told_at, told_head = raw
        return cls(int(complete_to), int(since), int(told_at), int(told_head))


@final
@dataclass(slots=True)
class Followed:
    """What waits after a tick, and what to report."""

    waits: dict[str, Wait] = field(default_factory=dict)
    """By journal."""
    to_tell: list[JournalProgress] = field(default_factory=list)
    """Journals to report to Dagster, besides those with newly registered content."""
    stalls: list[str] = field(default_factory=list)
    """One text a journal that stalls."""


def follow(
    waits: Mapping[str, Wait], report: TableReport, now_s: float, *, waiting: int = 1
) -> Followed:
    """What waits after a tick over one table.

    Args:
        waits: before it, by journal.
        report: what the tick did. Journals that it had no time for go on waiting.
        now_s: unix seconds.
        waiting: journals that wait, over all tables: the more there are, the less often each is reported.
    """
    now = int(now_s)
    every_s = max(_TOLD_EVERY_S, _TOLD_APART_S * waiting)
    followed = Followed()
    seen = {progress.journal: progress for progress in report.journals}
    for journal in sorted(report.matched, key=lambda name: (name not in waits, name)):
        former, progress = waits.get(journal), seen.get(journal)
        if progress is None:
            if former is not None:
                followed.waits[journal] = former
            continue
        if not progress.lag_bytes:
            if former is not None and former.told_head >= 0:
                followed.to_tell.append(progress)
            continue
        if len(followed.waits) >= _WAITS_MAX:
            continue
        wait = former or Wait(progress.complete_to, now, now)
        if wait.complete_to != progress.complete_to:
            wait = replace(wait, complete_to=progress.complete_to, since=now)
        if now - wait.told_at >= every_s and wait.told_head != progress.write_head:
            wait = replace(wait, told_at=now, told_head=progress.write_head)
            followed.to_tell.append(progress)
        followed.waits[journal] = wait
        if _is_stalled(progress, now - wait.since):
            followed.stalls.append(stall_text(report.table, progress, wait.since))
    return followed


def _is_stalled(progress: JournalProgress, waited_s: float) -> bool:
    if progress.is_stored or progress.hole_bytes:
        return waited_s >= STALLED_S
    # What is open may be so for as long as the flush interval, and without one for ever.
    interval_s = progress.flush_interval_s
    return interval_s > 0 and waited_s >= interval_s + STALLED_S


def stall_text(table: str, progress: JournalProgress, since_s: float) -> str:
    """That a journal stalls, why as far as that is known, and what to do."""
    since = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    text = (
        f"{table}: {progress.journal} stalls: its bytes from {progress.complete_to} on are not "
        f"registered, and were not at {since} UTC"
    )
    if progress.is_stored:
        return (
            f"{text}, though a store has some of them: other problems of the table say why, or "
            f"`gazctl lake check {table}` does"
        )
    if progress.hole_bytes:
        return (
            f"{text}: brokers list none of them, but what follows: one of them may still be "
            "uploading, or the bytes are lost (`gazctl journals fragments` lists what exists)"
        )
    interval = format_duration(round(progress.flush_interval_s * SECOND_NS))
    return (
        f"{text}: no store has them, though the flush interval is {interval}: see whether brokers "
        "can reach the store (`gazctl journals store-health`), and their logs"
    )


# Of this form; the characters after it are those of base85, which has no colon.
_MARK: Final = "z1:"
_TABLES: Final = "tables"
# Of the JSON. Ten thousand journals take about one; what is more was not made by `pack`.
_BYTES_MAX: Final = 64 << 20


def pack(raw: dict[str, Any]) -> str:
    """One line of text, the same for the same JSON.

    Args:
        raw: with ``tables``: by table and journal, what `lake.JournalCursor.to_json` gives.
    """
    names = {table: sorted(journals) for table, journals in sorted(raw[_TABLES].items())}
    found = [raw[_TABLES][table][journal] for table, group in names.items() for journal in group]
    columns = [
        names,
        [end for end, *_ in found],
        # Alike, while begins of last fragments are as different as ends.
        [None if last is None else end - last for end, last, *_ in found],
        [stored_at for _, _, stored_at, *_ in found],
        [created for _, _, _, created, *_ in found],
        {str(at): holes for at, (_, _, _, _, *holes) in enumerate(found) if holes},
    ]
    text = json.dumps({**raw, _TABLES: columns}, sort_keys=True, separators=(",", ":"))
    return _MARK + base64.b85encode(zlib.compress(text.encode())).decode()


def unpack(text: Any) -> dict[str, Any]:
    """The JSON whose `pack` was `text`.

    Raises: ValueError: it is none.
    """
    if not isinstance(text, str) or not text.startswith(_MARK):
        raise ValueError("it was not packed")
    try:
        raw = json.loads(_inflated(base64.b85decode(text.removeprefix(_MARK))))
        names, ends, lengths, stored, created, holes = raw[_TABLES]
        numbers = enumerate(zip(ends, lengths, stored, created, strict=True))
        tables: dict[str, dict[str, Any]] = {}
        for table, journals in names.items():
            found = tables[table] = {}
            for journal in journals:
                at, (end, length, *more) = next(numbers)
                last = None if length is None else end - length
                found[journal] = [end, last, *more, *holes.get(str(at), [])]
    except (
        zlib.error, KeyError, TypeError, AttributeError, StopIteration, RecursionError,
    ) as err:  # fmt: skip
        raise ValueError("it is damaged") from err
    return {**raw, _TABLES: tables}


def _inflated(content: bytes) -> bytes:
    """The content of a zlib stream.

    Raises: zlib.error: it is none, or longer than any cursor: a megabyte may stand for a gigabyte.
    """
    stream = zlib.decompressobj()
    found = stream.decompress(content, _BYTES_MAX)
    if not stream.eof:
        raise zlib.error("it is cut, or too long")
    return found


# Dagster's UI shows the whole text of a cursor on the page of its sensor. Of one that begins with this
# key, as those of its own do, it shows the other keys and their values, those that are 0 left out.
_HIDDEN: Final = "__class__"


@final
@dataclass(frozen=True, slots=True)
class SensorCursor:
    """What a tick starts from. Its text is canonical."""

    registered: RegistrationCursor = field(default_factory=RegistrationCursor)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Digest of the problems last reported, or of there being none, by table; absent: never reported."""
    audits: Mapping[str, AuditState] = field(default_factory=dict)
    """What the audits of each table know."""
    turn: str = ""
    """The table that comes first, since the time was up before it had its turn; empty: none."""
    swept: str = ""
    """The table whose old fragments are looked at again."""
    sweep: SweepPoint = field(default_factory=SweepPoint)
    """Where that goes on."""
    looked: str = ""
    """Where it goes on, after that, with the partitions that Dagster knows of that table."""
    audited: str = ""
    """The table audited last in turn."""
    waits: Mapping[str, Mapping[str, Wait]] = field(default_factory=dict)
    """By table and journal, what is awaited, since when; nothing while nothing is missing."""
    folder: str = ""
    """Digest of the folder of table specs as last reported to Dagster; empty: it was not."""
    retention: RetentionState = field(default_factory=RetentionState)
    """What is known of prunes."""
    epoch: int = 0
    """Of the sharing out of tables to sensors; see `gazette_platform.sensors.fragments`."""
    rests_from: int = 0
    """Unix seconds when it was found that there is another one; 0: there is none."""

    @classmethod
    def parse(cls, text: str | None) -> SensorCursor:
        """The cursor whose `dump` was `text`; empty for None.

        Raises: ValidationError: not a cursor of this version; says how to reset it.
        """
        if not text:
            return cls()
        raw = unpacked(text)
        registered = RegistrationCursor.from_json(raw)
        problems = raw.get("problems", {})
        if not isinstance(problems, dict):
            raise ValidationError("problems is not an object", path="cursor")
        audits = raw.get("audits", {})
        if not isinstance(audits, dict):
            raise ValidationError("audits is not an object", path="cursor")
        swept, journal, offset, looked = _sweep(raw.get("sweep"))
        return cls(
            registered,
            {str(table): str(digest) for table, digest in problems.items()},
            {str(table): AuditState.from_json(state) for table, state in audits.items()},
            turn=str(raw.get("turn", "")),
            swept=swept,
            sweep=SweepPoint(journal, offset),
            looked=looked,
            audited=str(raw.get("audited", "")),
            waits=_waits(raw.get("waits", {})),
            folder=str(raw.get("folder", "")),
            retention=RetentionState.from_json(raw.get("retention", {})),
            epoch=_count(raw.get("epoch", 0)),
            rests_from=_count(raw.get("rests_from", 0)),
        )

    def dump(self) -> str:
        """The cursor as text."""
        raw = self.registered.to_json()
        if self.problems:
            raw["problems"] = dict(self.problems)
        if self.audits:
            raw["audits"] = {table: state.to_json() for table, state in self.audits.items()}
        if self.turn:
            raw["turn"] = self.turn
        if self.swept:
            raw["sweep"] = [self.swept, self.sweep.journal, self.sweep.offset]
            raw["sweep"] += [self.looked] if self.looked else []
        if self.audited:
            raw["audited"] = self.audited
        retention = self.retention.to_json()
        if retention:
            raw["retention"] = retention
        if self.waits:
            raw["waits"] = {
                table: {journal: wait.to_json() for journal, wait in waits.items()}
                for table, waits in self.waits.items()
            }
        if self.folder:
            raw["folder"] = self.folder
        if self.epoch:
            raw["epoch"] = self.epoch
        if self.rests_from:
            raw["rests_from"] = self.rests_from
        shown = {_HIDDEN: pack(raw), **self.summary}
        return json.dumps(shown, sort_keys=True, separators=(",", ":"))

    def of(self, owns: Callable[[str], bool]) -> SensorCursor:
        """What of it is about tables that a sensor `owns`."""
        tables = {t: journals for t, journals in self.registered.tables.items() if owns(t)}
        problems = {t: digest for t, digest in self.problems.items() if owns(t)}
        return replace(self, registered=RegistrationCursor(tables), problems=problems)

    def in_epoch(self, epoch: int) -> SensorCursor:
        """What holds of it in another epoch: not that it reported something, since others may have reported otherwise."""
        return replace(self, problems={}, audits={}, waits={}, folder="", epoch=epoch, rests_from=0)

    @property
    def summary(self) -> dict[str, int]:
        """What a person is shown of it."""
        journals = self.registered.tables.values()
        return {
            "tables": len(self.registered.tables),
            "journals": sum(map(len, journals)),
            "waiting": sum(map(len, self.waits.values())),
            "red": sum(digest != problem_digest([]) for digest in self.problems.values()),
        }


def unpacked(text: str) -> Any:
    """The JSON values that a cursor's text holds for the sensor.

    Raises: ValidationError: it holds none; says how to reset it.
    """
    try:
        return unpack(json.loads(text)[_HIDDEN])
    except (ValueError, KeyError, TypeError, RecursionError) as err:
        raise no_cursor(text) from err


def _count(raw: Any) -> int:
    """A number of a cursor; 0, as if it were not there, for what is none."""
    return raw if isinstance(raw, int) else 0


def _sweep(raw: Any) -> tuple[str, str, int, str]:
    """Where a round of looking again stood; at its begin if that cannot be read."""
    try:
        table, journal, offset, *looked = raw
        return str(table), str(journal), int(offset), str(looked[0]) if looked else ""
    except (TypeError, ValueError, OverflowError):
        return "", "", 0, ""


def _waits(raw: Any) -> dict[str, dict[str, Wait]]:
    """What is waited for; nothing if that cannot be read, since it is all seen again."""
    try:
        return {
            str(table): {str(j): Wait.from_json(wait) for j, wait in waits.items()}
            for table, waits in raw.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


def problem_digest(texts: list[str]) -> str:
    """16 hex digits of problems; `ok` if there are none."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else "ok"


@final
@dataclass(slots=True)
class TickOutcome:
    """What a tick did to all tables."""

    events: list[AssetMaterialization | AssetObservation | AssetCheckEvaluation] = field(
        default_factory=list
    )
    partitions: list[AddDynamicPartitionsRequest | DeleteDynamicPartitionsRequest] = field(
        default_factory=list
    )
    summaries: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cursor: SensorCursor = field(default_factory=SensorCursor)

    @property
    def text(self) -> str:
        """What the tick says of itself: problems first, then what was registered."""
        return "\n".join([*self.problems, *self.warnings, *self.summaries]) or "No new fragments."

    @property
    def skip_reason(self) -> str | None:
        """Why nothing was done; None if something was, which Dagster is not to log as skipped."""
        return None if self.events or self.partitions or self.summaries else self.text


def in_turn(names: Sequence[str], first: str) -> list[str]:
    """`names`, beginning with `first`, or with the one that would come after it.

    >>> in_turn(["a", "b", "c"], "b")
    ['b', 'c', 'a']
    """
    ordered = sorted(names)
    at = next((i for i, name in enumerate(ordered) if name >= first), 0)
    return ordered[at:] + ordered[:at]


def following(names: Sequence[str], last: str, *, is_again: bool = False) -> str:
    """The name whose turn it is after `last`; `last` itself if it `is_again`; empty if there is none.

    >>> following(["a", "b"], "b"), following(["a", "b"], "b", is_again=True), following([], "x")
    ('a', 'b', '')
    """
    if is_again and last in names:
        return last
    return next((n for n in sorted(names) if n > last), min(names, default=""))


@final
@dataclass(slots=True)
class TickState:
    """The next cursor in the making."""

    tables: dict[str, Mapping[str, JournalCursor]]
    problems: dict[str, str]
    audits: dict[str, AuditState]
    waits: dict[str, Mapping[str, Wait]] = field(default_factory=dict)
    swept: str = ""
    sweep: SweepPoint = field(default_factory=SweepPoint)
    looked: str = ""
    retention: RetentionState = field(default_factory=RetentionState)

    @classmethod
    def of(cls, cursor: SensorCursor, names: Sequence[str], kept: SensorCursor | None) -> TickState:
        """What `cursor` says of the tables `names`, and of all in `kept`."""
        wanted = {*names, *(kept.registered.tables if kept is not None else ())}
        return cls(
            {n: cursor.registered.tables.get(n, {}) for n in sorted(wanted)},
            # Also of tables whose spec was refused from the beginning.
            {n: d for n, d in cursor.problems.items() if n in wanted or kept is not None},
            {n: state for n, state in cursor.audits.items() if n in wanted},
            {n: waits for n, waits in cursor.waits.items() if n in wanted},
            swept=cursor.swept if cursor.swept in wanted else "",
            sweep=cursor.sweep,
            looked=cursor.looked,
            retention=cursor.retention.only([*wanted]),
        )

    def cursor(self, *, turn: str, audited: str, folder: str, epoch: int) -> SensorCursor:
        """The cursor that a tick ends with."""
        return SensorCursor(
            RegistrationCursor(self.tables),
            {n: digest for n, digest in self.problems.items() if digest},
            {n: state for n, state in self.audits.items() if state != AuditState()},
            turn=turn,
            swept=self.swept,
            sweep=self.sweep,
            looked=self.looked,
            audited=audited,
            waits={n: waits for n, waits in self.waits.items() if waits},
            folder=folder,
            retention=self.retention,
            epoch=epoch,
        )
