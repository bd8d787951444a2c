"""Values of the keys of a consumer group, as Gazette's consumers read and write them.

Reading checks everything: a value may come from any program that can reach etcd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from gazette_platform.consumer.protocol import ConsumerSpec, ReplicaStatus, ShardSpec
from gazette_platform.errors import ValidationError
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.protocol import ProcessId

__all__ = [
    "decode_consumer_spec",
    "decode_replica_status",
    "decode_shard_spec",
    "encode_consumer_spec",
    "encode_replica_status",
    "encode_shard_spec",
]

P = TypeVar("P", bound=Message)


def encode_shard_spec(spec: ShardSpec) -> bytes:
    """The value of an item."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_shard_spec(raw: bytes, *, shard: str) -> ShardSpec:
    """The shard of an item whose key says `shard`.

    Raises: ValidationError: no such message, another ID, or a broken rule.
    """
    spec = ShardSpec.from_pb(_parse(pb.ShardSpec, raw))
    spec.validate()
    if spec.id != shard:
        raise ValidationError(f"shard spec is of {spec.id!r}; the key says {shard!r}")
    return spec


def encode_consumer_spec(spec: ConsumerSpec) -> bytes:
    """The value of a member."""
    return spec.to_pb().SerializeToString(deterministic=True)


def decode_consumer_spec(raw: bytes, *, process_id: ProcessId) -> ConsumerSpec:
    """The process of a member whose key says `process_id`.

    Raises: ValidationError: no such message, another identity, or a broken rule.
    """
    spec = ConsumerSpec.from_pb(_parse(pb.ConsumerSpec, raw))
    spec.validate()
    if spec.id != process_id:
        raise ValidationError(f"consumer spec is of {{{spec.id}}}; the key says {{{process_id}}}")
    return spec


def encode_replica_status(status: ReplicaStatus) -> bytes:
    """The value of an assignment. An idle replica has none."""
    return status.to_pb().SerializeToString(deterministic=True)


def decode_replica_status(raw: bytes) -> ReplicaStatus:
    """The status of an assignment; no value at all is an idle replica.

    Raises: ValidationError: no such message, or a broken rule.
    """
    status = ReplicaStatus.from_pb(_parse(pb.ReplicaStatus, raw))
    status.validate()
    return status


def _parse(message_class: type[P], raw: bytes) -> P:
    try:
        return message_class.FromString(raw)
    except DecodeError as err:
        name = message_class.DESCRIPTOR.name
        raise ValidationError(f"{len(raw)} bytes are no {name}: {err}") from err
