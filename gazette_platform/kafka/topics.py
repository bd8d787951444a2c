"""Topics: which journals are their partitions, and what their configs mean for the specs of these. Pure.

A journal is a partition by its labels alone:

| label | says |
|---|---|
| `kafka.topic` | the topic |
| `kafka.partition` | the number of the partition |
| `kafka.form` | the form of records, one of `Form`; default `json` |
| `kafka.meta` | ``none``: records of the form `json` are written as they are |

Clients set configs:

| config | is |
|---|---|
| `retention.ms` | the retention of fragments; -1: for ever |
| `compression.type` | the codec of fragments: none, gzip, snappy or zstd; ``producer`` leaves the default |
| `segment.bytes` | the length of fragments |
| `max.message.bytes` | a label; larger batches are refused |
| `kafka.form`, `kafka.meta` | the labels of these names |
| `cleanup.policy` | ``delete`` only: a journal is not compacted |

Other configs are accepted, have no effect, and are named in the log.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from gazette_platform.errors import ValidationError
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.client.results import JournalListing
    from gazette_platform.kafka.config import KafkaConfig


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
    """The topics of journals that have the label `kafka.topic`. Of two journals of one partition the first counts."""
    found: dict[str, dict[int, Partition]] = {}
    problems: list[str] = []
    for listing in listings:
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


MAX_BYTES: Final = "kafka.max-message-bytes"

_MS_NS: Final = 1_000_000
_LENGTH_MIN: Final = 1 << 20
_REFRESH_NS: Final = 60 * 1_000_000_000
_POSTFIX: Final = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
_CODECS: Final = {
    "uncompressed": CompressionCodec.NONE,
    "none": CompressionCodec.NONE,
    "gzip": CompressionCodec.GZIP,
    "snappy": CompressionCodec.SNAPPY,
    "zstd": CompressionCodec.ZSTANDARD,
}
_NAMES: Final = {codec: name for name, codec in _CODECS.items()}
_CONTENT_TYPE: Final = "application/x-ndjson"
_REPLICATION_MAX: Final = 9
_NEW_PARTITIONS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Template:
    """What the journals of a topic have in common."""

    labels: LabelSet
    fragment: FragmentSpec
    replication: int
    ignored: tuple[str, ...] = ()
    """Configs without effect."""

    def spec(self, topic: str, number: int, prefix: str) -> JournalSpec:
        """The spec of a partition."""
        labels = self.labels.with_value(TOPIC, topic).with_value(PARTITION, str(number))
        name = f"{prefix}{topic}/part={number:03}"
        spec = JournalSpec(name, self.replication, labels, self.fragment)
        spec.validate()
        return spec


def check_count(count: int) -> int:
    """Raises: KafkaError: it is not a possible number of partitions."""
    if not 0 < count <= _NEW_PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"expected 1 to {_NEW_PARTITIONS_MAX} partitions, got {count}",
        )
    return count


def template_of(
    config: KafkaConfig,
    stores: tuple[str, ...],
    replication: int,
    configs: Mapping[str, str | None],
) -> Template:
    """The template of a new topic.

    Args:
        stores: of its journals.
        replication: -1: as `config` has it.

    Raises: KafkaError: a config has a value that cannot be.
    """
    if not stores:
        raise KafkaError(
            ErrorCode.policy_violation,
            "it is not known where to store topics (start the gateway with --kafka.store)",
        )
    if replication == -1:
        replication = config.replication
    if not 0 < replication <= _REPLICATION_MAX:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"expected 1 to {_REPLICATION_MAX} replicas, got {replication}",
        )
    template = Template(
        LabelSet.of({"content-type": _CONTENT_TYPE}),
        FragmentSpec(
            length=config.fragment_length,
            codec=CompressionCodec.ZSTANDARD,
            stores=stores,
            refresh_interval_ns=_REFRESH_NS,
            path_postfix_template=_POSTFIX,
        ),
        replication,
    )
    for name, value in configs.items():
        if value is not None:
            template = _configured(template, name, value)
    if form_of(template.labels) is None:
        raise _bad(
            FORM,
            template.labels.value_of(FORM),
            "json, avro or envelope; kafka.meta=none is for json",
        )
    return template


def _configured(template: Template, name: str, value: str) -> Template:
    fragment, labels = template.fragment, template.labels
    match name:
        case "retention.ms":
            fragment = replace(fragment, retention_ns=max(0, _number(name, value, -1) * _MS_NS))
        case "segment.bytes":
            fragment = replace(fragment, length=max(_LENGTH_MIN, _number(name, value, 1)))
        case "compression.type":
            fragment = replace(fragment, codec=_codec(name, value, fragment.codec))
        case "max.message.bytes":
            labels = labels.with_value(MAX_BYTES, str(_number(name, value, 1)))
        case "cleanup.policy":
            if value != "delete":
                raise _bad(
                    name, value, "delete (journals are not compacted; tables with a key are)"
                )
        case "kafka.form" | "kafka.meta":
            labels = labels.with_value(name, value)
        case _:
            return replace(template, ignored=(*template.ignored, name))
    return replace(template, fragment=fragment, labels=labels)


def _codec(name: str, value: str, default: CompressionCodec) -> CompressionCodec:
    if value == "producer":
        return default
    if value not in _CODECS:
        raise _bad(name, value, f"producer, {', '.join(_CODECS)}")
    return _CODECS[value]


def _number(name: str, value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise _bad(name, value, f"a number from {least} on")
    return number


def _bad(name: str, value: str, expected: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_config, f"{name}={value}: expected {expected}")


def configs_of(topic: Topic) -> dict[str, str]:
    """The configs of a topic, as its first journal has them."""
    spec = next(iter(topic.partitions.values())).listing.spec
    fragment, labels = spec.fragment, spec.labels
    retention = fragment.retention_ns // _MS_NS if fragment.retention_ns > 0 else -1
    found = {
        "cleanup.policy": "delete",
        "compression.type": _NAMES.get(fragment.codec, "producer"),
        "max.message.bytes": labels.value_of(MAX_BYTES) or str(16 << 20),
        "message.timestamp.type": "CreateTime",
        "min.insync.replicas": str(max(1, spec.replication)),
        "retention.bytes": "-1",
        "retention.ms": str(retention),
        "segment.bytes": str(fragment.length),
        FORM: labels.value_of(FORM) or "json",
    }
    if labels.value_of(META):
        found[META] = labels.value_of(META)
    return found
