"""JSON of shards, in the two dialects of Gazette's tools.

*jsonpb* is protobuf's own (``gazctl shards list --format json``, the HTTP gateway): original field
names, defaults included, 64-bit integers as text, durations as ``"1.500s"``. Plain JSON is what Go's
``encoding/json`` prints: durations are nanoseconds, and most zero fields are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.consumer.protocol.specs import ShardSpec

__all__ = ["message_jsonpb", "parse_jsonpb", "shard_spec_json"]

P = TypeVar("P", bound=Message)


def message_jsonpb(message: Message) -> dict[str, Any]:
    """A message as jsonpb; messages within it that are absent are left out."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def parse_jsonpb(document: Mapping[str, Any], message: P) -> P:
    """Fill an empty message from jsonpb, in original or camel-case names. Returns: the message.

    Raises: ValidationError: an unknown field, or a value of a wrong type.
    """
    try:
        return ParseDict(dict(document), message)
    except (ParseError, TypeError, AttributeError, RecursionError) as err:
        raise ValidationError(f"the JSON is no {message.DESCRIPTOR.name}: {err}") from err


def shard_spec_json(spec: ShardSpec) -> dict[str, Any]:
    """A spec as plain JSON."""
    labels = [_kept({"name": label.name, "value": label.value}) for label in spec.labels]
    fields: dict[str, Any] = {
        "id": spec.id,
        "sources": [
            {"journal": source.journal, **_kept({"min_offset": source.min_offset})}
            for source in spec.sources
        ],
        "recovery_log_prefix": spec.recovery_log_prefix,
        "hint_prefix": spec.hint_prefix,
        "hint_backups": spec.hint_backups,
        "max_txn_duration": spec.max_txn_duration_ns,
        "min_txn_duration": spec.min_txn_duration_ns,
        "disable": spec.disable,
        "hot_standbys": spec.hot_standbys,
        "labels": {"labels": labels or None},
        "disable_wait_for_ack": spec.disable_wait_for_ack,
        "ring_buffer_size": spec.ring_buffer_size,
        "read_channel_size": spec.read_channel_size,
    }
    # These have no notion of zero in Go: it writes them always.
    always = ("max_txn_duration", "min_txn_duration", "labels")
    return {key: value for key, value in fields.items() if value or key in always}


def _kept(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}
