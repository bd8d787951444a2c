"""Topics: which journals are their partitions. Pure; needs no extra.

A journal is a partition by its labels alone:

| label | says |
|---|---|
| `kafka.topic` | the topic |
| `kafka.partition` | the number of the partition |
| `kafka.form` | the form of records, one of `Form`; default `json` |
| `kafka.meta` | ``none``: records of the form `json` are written as they are |
| `kafka.home` | the folder of the partitions, if it is not the one that `home_of` finds |

Whoever may apply journals may give any of them any label. So a topic has a home: the folder of the journals that named it first.
Journals elsewhere are left out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from os.path import commonpath
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.client.results import JournalListing
    from gazette_platform.protocol import JournalSpec, LabelSet

TOPIC: Final = "kafka.topic"
PARTITION: Final = "kafka.partition"
FORM: Final = "kafka.form"
META: Final = "kafka.meta"
HOME: Final = "kafka.home"

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PARTITIONS_MAX: Final = 100_000
_NO_LINES: Final = ("application/x-protobuf-fixed", "application/x-gazette-recoverylog")


class Form(Enum):
    """How a record is written as a line."""

    JSON = "json"
    """The value is a JSON object; ``_meta`` with key, headers and timestamp is added to it."""
    PLAIN = "plain"
    """As `JSON`, and nothing is added (``kafka.meta=none``)."""
    AVRO = "avro"
    """As `JSON`, of values in Confluent's wire format: the object is the record, and ``_meta`` has the id of its schema."""
    ENVELOPE = "envelope"
    """A JSON object that has key, headers and value, which may be any bytes."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A journal as a partition of a topic."""

    topic: str
    number: int
    listing: JournalListing
    form: Form

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return self.listing.name


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and its partitions by number."""

    name: str
    partitions: dict[int, Partition]
    id: UUID


@dataclass(frozen=True, slots=True)
class TopicMap:
    """All topics of a listing."""

    topics: dict[str, Topic] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Journals that are left out, and why."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """The folder of each topic."""

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic of an id."""
        for topic in self.topics.values():
            if topic.id == topic_id:
                return topic
        return None

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic of an id."""
        topic = self.by_id(topic_id)
        return None if topic is None else topic.name


def is_topic_name(name: str) -> bool:
    """Whether Kafka takes it for a topic.

    >>> is_topic_name("a.b-c_D"), is_topic_name(".."), is_topic_name("a/b")
    (True, False, False)
    """
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


def form_of(labels: LabelSet) -> Form | None:
    """The form of records of a journal; None: its labels name none that is known."""
    text, meta = labels.value_of(FORM) or Form.JSON.value, labels.value_of(META)
    if text == Form.JSON.value and meta == "none":
        return Form.PLAIN
    known = {form.value: form for form in (Form.JSON, Form.AVRO, Form.ENVELOPE)}
    return None if meta else known.get(text)


def home_of(journal: str) -> str:
    """The folder of a topic by a journal of it. Parts of the name such as ``region=eu`` do not count.

    >>> home_of("topic/flights/part=000"), home_of("events/region=eu/part=000")
    ('topic/flights/', 'events/')
    """
    parts = journal.split("/")[:-1]
    while len(parts) > 1 and "=" in parts[-1]:
        parts.pop()
    return "".join(f"{part}/" for part in parts)


def map_topics(
    listings: Iterable[JournalListing],
    homes: Mapping[str, str] | None = None,
    *,
    prefix: str = "topic/",
) -> TopicMap:
    """The topics of journals that have the label `kafka.topic`. Of two journals of one partition the older one counts.

    Args:
        homes: of topics that were seen before. A home without journals is free.
        prefix: of journals of topics that clients make: these are at home before all others.
    """
    candidates: dict[str, list[tuple[int, Form, JournalListing]]] = {}
    problems: list[str] = []
    for listing in sorted(listings, key=lambda one: (one.created, one.name)):
        labels = listing.spec.labels
        name, number = labels.value_of(TOPIC), labels.value_of(PARTITION)
        form = form_of(labels)
        if not is_topic_name(name):
            problems.append(f"{listing.name}: {name!r} is not a valid topic name")
        elif not (number.isascii() and number.isdigit() and int(number) < _PARTITIONS_MAX):
            problems.append(
                f"{listing.name}: {PARTITION}={number!r} is not a valid partition number"
            )
        elif form is None:
            problems.append(f"{listing.name}: {FORM} or {META} has an unknown value")
        else:
            candidates.setdefault(name, []).append((int(number), form, listing))
    topics, found_homes = {}, {}
    for name, found in candidates.items():
        home = _home([each for *_, each in found], (homes or {}).get(name), f"{prefix}{name}/")
        partitions: dict[int, Partition] = {}
        for place, form, listing in found:
            if not is_at(home, listing.name):
                problems.append(f"{listing.name}: topic {name} has its partitions in {home}")
            elif place in partitions:
                first = partitions[place].journal
                problems.append(f"{listing.name}: {first} is partition {place} of {name} already")
            else:
                partitions[place] = Partition(name, place, listing, form)
        topics[name], found_homes[name] = _topic(name, partitions), home
    return TopicMap(topics, tuple(problems), found_homes)


def is_at(home: str, journal: str) -> bool:
    """Whether a journal is in a folder. The empty one has the journals without any."""
    return journal.startswith(home) if home else "/" not in journal


def _home(listings: list[JournalListing], known: str | None, made: str) -> str:
    """The home of a topic.

    Args:
        listings: that name it, the oldest first.
        known: its home, if it was seen before.
        made: where clients make it.
    """
    home = first = home_of(listings[0].name)
    for one in (known, made, first):
        if one is not None and any(is_at(one, each.name) for each in listings):
            home = one
            break
    # Who may label the journals at home may also widen it.
    wider = [each.spec.labels.value_of(HOME) for each in listings if is_at(home, each.name)]
    folders = [one for one in wider if one.endswith("/") and len(one) > 1 and home.startswith(one)]
    return min([home, *folders], key=len)


def _topic(name: str, partitions: dict[int, Partition]) -> Topic:
    first = partitions[min(partitions)].listing
    digest = hashlib.sha256(f"{name}/{first.created}".encode()).digest()
    return Topic(name, dict(sorted(partitions.items())), UUID(bytes=digest[:16], version=4))


def labels_of_form(labels: LabelSet, form: Form) -> LabelSet:
    """Labels that say how records are written."""
    labels = labels.without(FORM).without(META)
    if form is Form.PLAIN:
        return labels.with_value(META, "none")
    return labels if form is Form.JSON else labels.with_value(FORM, form.value)


def made_partitions(
    topic: str, form: Form, known: Iterable[JournalListing], wanted: Iterable[JournalListing]
) -> list[tuple[JournalListing, JournalSpec]]:
    """What makes journals partitions of a topic: each with its new spec, numbered on in the order of names.

    Args:
        known: journals that have the label `kafka.topic`. Partitions of the topic keep their numbers, and are left out.

    Raises: ValidationError: one cannot be a partition of it.
    """
    if not is_topic_name(topic):
        raise ValidationError(
            f"{topic!r} is not a name of a topic: up to 249 of letters, digits, '.', '_' and '-'",
            path="--topic",
        )
    known = list(known)
    wanted = sorted(wanted, key=lambda one: one.name)
    home = _home_for(topic, known, wanted)
    numbers = [
        int(text)
        for each in known
        if each.spec.labels.value_of(TOPIC) == topic
        and (text := each.spec.labels.value_of(PARTITION)).isdecimal()
    ]
    following = max(numbers, default=-1) + 1
    found: list[tuple[JournalListing, JournalSpec]] = []
    for each in wanted:
        labels = each.spec.labels
        former, content = labels.value_of(TOPIC), labels.value_of("content-type")
        if former == topic:
            continue
        if former:
            raise ValidationError(f"{each.name} is a partition of topic {former} already")
        if content in _NO_LINES:
            raise ValidationError(f"{each.name} has no lines, but {content}: it cannot be a topic")
        added = labels_of_form(labels, form).with_value(TOPIC, topic)
        added = added.with_value(PARTITION, str(following + len(found)))
        if home:
            added = added.with_value(HOME, home)
        spec = replace(each.spec, labels=added)
        spec.validate()
        found.append((each, spec))
    return found


def _home_for(topic: str, known: list[JournalListing], wanted: list[JournalListing]) -> str:
    """What the label `kafka.home` of journals must say that become partitions; empty: nothing.

    Raises: ValidationError: they are not at home, or have no folder in common.
    """
    home = map_topics(known).homes.get(topic)
    if home is not None:
        for each in wanted:
            if not is_at(home, each.name):
                raise ValidationError(
                    f"{each.name} is not in {home}, where topic {topic} has its partitions "
                    f"(a label {HOME} of these can name a folder around all)"
                )
        return ""
    if not wanted:
        return ""
    oldest = min(wanted, key=lambda one: (one.created, one.name))
    if all(is_at(home_of(oldest.name), each.name) for each in wanted):
        return ""
    common = commonpath([home_of(each.name) for each in wanted])
    if not common:
        raise ValidationError(f"the journals of topic {topic} have no folder in common")
    return f"{common}/"
