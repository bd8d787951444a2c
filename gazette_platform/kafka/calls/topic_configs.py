"""What the configs of a topic mean for the specs of its journals. Pure.

| config | is |
|---|---|
| `retention.ms` | the retention of fragments; -1: for ever. Beside the policy ``compact`` a label without effect |
| `compression.type` | the codec of fragments: none, gzip, snappy or zstd; ``producer`` leaves the default |
| `segment.bytes` | the length of fragments |
| `max.message.bytes` | a label; larger batches are refused |
| `kafka.form`, `kafka.meta` | the labels of these names |
| `cleanup.policy` | labels, one for each part. ``delete`` deletes by `retention.ms`; ``compact`` keeps everything, and so the last value of each key |

CreateTopics accepts others, which have no effect, and names them in the log.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.topics import FORM, META, PARTITION, TOPIC, form_of
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.kafka.config import KafkaConfig

ALTERABLE: Final = frozenset(
    ("retention.ms", "segment.bytes", "compression.type", "max.message.bytes", "cleanup.policy")
)
"""Configs of a topic that exists, which clients may change."""
MAX_BYTES: Final = "kafka.max-message-bytes"
POLICY: Final = "kafka.cleanup-policy"
RETENTION: Final = "kafka.retention-ms"
"""The retention that a topic has once it is not ``compact`` alone any more."""

_MS_NS: Final = 1_000_000
_RETENTION_MS_MAX: Final = ((1 << 63) - 1) // _MS_NS
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
_DELETE: Final = "delete"
_COMPACT: Final = "compact"
_BOTH: Final = f"{_COMPACT},{_DELETE}"
_POLICIES: Final = {frozenset(each.split(",")): each for each in (_DELETE, _COMPACT, _BOTH)}
# What IncrementalAlterConfigs does with the value of a config.
_SET_VALUE: Final = 0
_SET_DEFAULT: Final = 1
_APPEND: Final = 2
_SUBTRACT: Final = 3
_CONTENT_TYPE: Final = "application/x-ndjson"
_REPLICATION_MAX: Final = 9
_PARTITIONS_MAX: Final = 10_000


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
    if not 0 < count <= _PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.invalid_partitions, f"expected 1 to {_PARTITIONS_MAX} partitions, got {count}"
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
    template = _settled(template)
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
            # Longer than this is for ever, as Java's largest number is meant.
            ms = _number(name, value, -1)
            kept_ms = 0 if ms > _RETENTION_MS_MAX else max(0, ms)
            fragment = replace(fragment, retention_ns=kept_ms * _MS_NS)
        case "segment.bytes":
            fragment = replace(fragment, length=max(_LENGTH_MIN, _number(name, value, 1)))
        case "compression.type":
            fragment = replace(fragment, codec=_codec(name, value, fragment.codec))
        case "max.message.bytes":
            labels = labels.with_value(MAX_BYTES, str(_number(name, value, 1)))
        case "cleanup.policy":
            policy = _POLICIES.get(frozenset(part.strip() for part in value.split(",")))
            if policy is None:
                raise _bad(name, value, f"{_DELETE}, {_COMPACT} or {_BOTH}")
            labels = labels.without(POLICY)
            for part in policy.split(",") if policy != _DELETE else ():
                labels = labels.with_added(POLICY, part)
        case "kafka.form" | "kafka.meta":
            labels = labels.with_value(name, value)
        case _:
            return replace(template, ignored=(*template.ignored, name))
    return replace(template, fragment=fragment, labels=labels)


def _policy_of(labels: LabelSet) -> str:
    return ",".join(labels.values_of(POLICY)) or _DELETE


def _settled(template: Template) -> Template:
    """The template, whose fragments are deleted by time only if the policy says so."""
    fragment, labels = template.fragment, template.labels
    if _policy_of(labels) != _COMPACT or fragment.retention_ns <= 0:
        return template
    return replace(
        template,
        labels=labels.with_value(RETENTION, str(fragment.retention_ns // _MS_NS)),
        fragment=replace(fragment, retention_ns=0),
    )


def _template_of_spec(spec: JournalSpec) -> Template:
    """What a journal has of its topic; undoes `_settled`."""
    fragment, labels, kept = spec.fragment, spec.labels, spec.labels.value_of(RETENTION)
    if fragment.retention_ns > 0 and _policy_of(labels) == _COMPACT:
        labels = labels.with_added(POLICY, _DELETE)  # whoever changed the spec by hand made it so
    if fragment.retention_ns <= 0 and kept.isascii() and kept.isdigit():
        fragment = replace(fragment, retention_ns=min(int(kept), _RETENTION_MS_MAX) * _MS_NS)
    return Template(labels.without(RETENTION), fragment, spec.replication)


def altered_spec(
    spec: JournalSpec, config: KafkaConfig, changes: Mapping[str, str | None]
) -> JournalSpec:
    """The spec of a partition once configs of its topic have changed.

    Args:
        changes: new values; None: the default. A value that a config has already changes nothing.

    Raises: KafkaError: a config has a value that cannot be, or none that could change.
    """
    defaults = {
        "retention.ms": "-1",
        "segment.bytes": str(config.fragment_length),
        "compression.type": "zstd",
        "cleanup.policy": _DELETE,
    }
    template, present = _template_of_spec(spec), configs_of(spec)
    for name, value in changes.items():
        if value is not None and value == present.get(name):
            continue
        if name not in ALTERABLE:
            raise KafkaError(
                ErrorCode.invalid_config,
                f"{name} of a topic cannot be changed here; {', '.join(sorted(ALTERABLE))} can",
            )
        if value is None and name == "max.message.bytes":
            template = replace(template, labels=template.labels.without(MAX_BYTES))
        else:
            template = _configured(template, name, defaults[name] if value is None else value)
    template = _settled(template)
    return replace(spec, labels=template.labels, fragment=template.fragment)


def changes_of(
    spec: JournalSpec, operations: Iterable[tuple[str, int, str | None]]
) -> dict[str, str | None]:
    """What IncrementalAlterConfigs changes, as `altered_spec` takes it.

    Args:
        operations: the name of a config, what to do, and a value.

    Raises: KafkaError: that cannot be done.
    """
    changes: dict[str, str | None] = {}
    for name, operation, value in operations:
        if operation in {_SET_VALUE, _SET_DEFAULT}:
            changes[name] = value if operation == _SET_VALUE else None
        elif operation in {_APPEND, _SUBTRACT} and name == "cleanup.policy":
            parts, given = configs_of(spec)[name].split(","), (value or "").split(",")
            others = [part for part in parts if part not in given]
            changes[name] = ",".join(others + given * (operation == _APPEND))
        else:
            raise KafkaError(
                ErrorCode.invalid_config, f"{name} is not a list, and is only set or deleted"
            )
    return changes


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


def configs_of(spec: JournalSpec) -> dict[str, str]:
    """The configs of a topic, as the spec of one of its journals has them."""
    template = _template_of_spec(spec)
    fragment, labels = template.fragment, template.labels
    retention = fragment.retention_ns // _MS_NS if fragment.retention_ns > 0 else -1
    found = {
        "cleanup.policy": _policy_of(labels),
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
