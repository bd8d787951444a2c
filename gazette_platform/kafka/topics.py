"""Topics: which journals are their partitions. Pure; needs no extra.

A journal is a partition by its labels alone:

| label | says |
|---|---|
| `kafka.topic` | the topic |
| `kafka.partition` | the number of the partition |
| `kafka.form` | the form of records, one of `Form`; default `json` |
| `kafka.meta` | ``none``: records of the form `json` are written as they are |
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.client.results import JournalListing
    from gazette_platform.protocol import JournalSpec, LabelSet

TOPIC: Final = "kafka.topic"
PARTITION: Final = "kafka.partition"
FORM: Final = "kafka.form"
META: Final = "kafka.meta"

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


def map_topics(listings: Iterable[JournalListing]) -> TopicMap:
    """The topics of journals that have the label `kafka.topic`. Of two journals of one partition the older one counts.

    So whoever labels a journal of theirs later takes over no partition of others.
    """
    found: dict[str, dict[int, Partition]] = {}
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
        elif int(number) in found.setdefault(name, {}):
            first = found[name][int(number)].journal
            problems.append(f"{listing.name}: {first} is partition {number} of {name} already")
        else:
            found[name][int(number)] = Partition(name, int(number), listing, form)
    topics = {name: _topic(name, partitions) for name, partitions in found.items() if partitions}
    return TopicMap(topics, tuple(problems))


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
    numbers = [
        int(text)
        for each in known
        if each.spec.labels.value_of(TOPIC) == topic
        and (text := each.spec.labels.value_of(PARTITION)).isdecimal()
    ]
    following = max(numbers, default=-1) + 1
    found: list[tuple[JournalListing, JournalSpec]] = []
    for each in sorted(wanted, key=lambda one: one.name):
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
        spec = replace(each.spec, labels=added)
        spec.validate()
        found.append((each, spec))
    return found
