"""The messages of consumers: specs of shards and processes, statuses, checkpoints, and the rules of requests.

All are values, as those of `gazette_platform.protocol`: immutable, free of I/O, read from and written to their
protobuf messages, and checked by `validate` alone. `documents` reads and writes shards as YAML and JSON.
A store keeps a `Checkpoint` with the state that it belongs to, in one commit: as protobuf, or as JSON in the file of a
`JSONFileStore`.
Promise: bytes, field names and error texts are Gazette's.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.message import DecodeError

from gazette_platform.consumer.protocol.documents import (
    ShardChange,
    ShardEntry,
    ShardSpace,
    parse_shard_changes,
    shard_space_of,
    shard_spec_json,
    shards_yaml,
)
from gazette_platform.consumer.protocol.specs import (
    HINT_BACKUPS_MAX,
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSource,
    ShardSpec,
    ShardStatus,
    validate_shard_apply_request,
    validate_shard_apply_response,
    validate_shard_change,
    validate_shard_hints_response,
    validate_shard_id,
    validate_shard_list_request,
    validate_shard_list_response,
    validate_shard_stat_response,
    validate_shard_unassign_request,
    validate_shard_unassign_response,
)
from gazette_platform.errors import ValidationError
from gazette_platform.message import AckIntent
from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint
from gazette_platform.message.uuid import PRODUCER_BYTES
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "HINT_BACKUPS_MAX",
    "Checkpoint",
    "ConsumerSpec",
    "ReplicaCode",
    "ReplicaStatus",
    "ShardChange",
    "ShardEntry",
    "ShardSource",
    "ShardSpace",
    "ShardSpec",
    "ShardStatus",
    "parse_shard_changes",
    "shard_space_of",
    "shard_spec_json",
    "shards_yaml",
    "validate_shard_apply_request",
    "validate_shard_apply_response",
    "validate_shard_change",
    "validate_shard_hints_response",
    "validate_shard_id",
    "validate_shard_list_request",
    "validate_shard_list_response",
    "validate_shard_stat_response",
    "validate_shard_unassign_request",
    "validate_shard_unassign_response",
]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Offsets and producers of each source, and acknowledgements to append once it is committed."""

    read: SequencerCheckpoint = field(default_factory=SequencerCheckpoint)
    """By journal, with any ``;meta``."""
    ack_intents: tuple[AckIntent, ...] = ()
    """One a journal; their order is that of names once the checkpoint was stored."""
    created: Mapping[str, int] = field(default_factory=dict)
    """Which journal each source is (`protocol.offsets`), as far as it is known: not of those that were read by an
    application itself, or by Gazette."""

    @property
    def read_through(self) -> Mapping[str, int]:
        """Offset of each source up to which it was read."""
        return self.read.offsets

    def to_pb(self) -> pb.Checkpoint:
        """The checkpoint as a message."""
        message = pb.Checkpoint()
        for journal, offset in self.read.offsets.items():
            message.sources[journal].read_through = offset
            # A field of our own, which Gazette's consumers pass over.
            message.sources[journal].created = self.created.get(journal, 0)
        for journal, producer, last_ack, begin in self.read.producers:
            entry = message.sources[journal].producers.add(id=producer)
            entry.state.last_ack = last_ack
            entry.state.begin = begin
        for intent in self.ack_intents:
            message.ack_intents[intent.journal] = intent.content
        return message

    @classmethod
    def from_pb(cls, message: pb.Checkpoint) -> Self:
        """The checkpoint of a message.

        Raises: ValidationError: the ID of a producer is not of six bytes, or an offset is negative.
        """
        offsets: dict[str, int] = {}
        producers: list[ProducerState] = []
        for journal in sorted(message.sources):
            source = message.sources[journal]
            offsets[journal] = _offset(journal, source.read_through)
            producers += (
                _producer(journal, each.id, each.state.last_ack, each.state.begin)
                for each in source.producers
            )
        intents = sorted(message.ack_intents.items())
        return cls(
            SequencerCheckpoint(offsets=offsets, producers=tuple(producers)),
            tuple(AckIntent(journal, content) for journal, content in intents),
            {name: source.created for name, source in message.sources.items() if source.created},
        )

    def encode(self) -> bytes:
        """The bytes that stores keep. Those of equal checkpoints are equal."""
        # Maps of protobuf have no order of their own: without `deterministic`, a store that compares what
        # it has with what it wrote would see changes that are none.
        return self.to_pb().SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """The checkpoint of bytes that a store has kept; of none it is an empty one.

        Raises: ValidationError: they are none of a checkpoint, or what `from_pb` raises.
        """
        try:
            message = pb.Checkpoint.FromString(raw)
        except DecodeError as err:
            raise ValidationError(f"{len(raw)} bytes are not a Checkpoint: {err}") from err
        return cls.from_pb(message)

    def json(self) -> dict[str, Any]:
        """The checkpoint as Go's JSON has it: bytes in base64, zero fields left out."""
        sources: dict[str, dict[str, Any]] = {}
        for journal, offset in sorted(self.read.offsets.items()):
            source = {"read_through": offset, "created": self.created.get(journal, 0)}
            sources[journal] = {key: value for key, value in source.items() if value}
        for journal, producer, last_ack, begin in self.read.producers:
            state = {"last_ack": last_ack, "begin": begin}
            entry = {
                "id": base64.b64encode(producer).decode(),
                "state": {key: value for key, value in state.items() if value},
            }
            sources.setdefault(journal, {}).setdefault("producers", []).append(entry)
        intents = {
            intent.journal: base64.b64encode(intent.content).decode()
            for intent in sorted(self.ack_intents, key=lambda each: each.journal)
        }
        found: dict[str, Any] = {"sources": sources, "ack_intents": intents}
        return {key: value for key, value in found.items() if value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The checkpoint of a JSON object.

        Raises: ValidationError: a part is missing, or of a wrong type.
        """
        message = pb.Checkpoint()
        try:
            for journal, source in (document.get("sources") or {}).items():
                into = message.sources[journal]
                into.read_through = source.get("read_through", 0)
                into.created = source.get("created", 0)
                for each in source.get("producers") or ():
                    entry = into.producers.add(id=base64.b64decode(each["id"], validate=True))
                    entry.state.last_ack = each["state"].get("last_ack", 0)
                    entry.state.begin = each["state"].get("begin", 0)
            for journal, content in (document.get("ack_intents") or {}).items():
                message.ack_intents[journal] = base64.b64decode(content, validate=True)
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as err:
            raise ValidationError(
                f"the JSON is not a Checkpoint ({type(err).__name__}: {err}); was the file written by "
                "another program?"
            ) from err
        return cls.from_pb(message)


def _offset(journal: str, offset: int) -> int:
    if offset < 0:
        raise ValidationError(
            f"invalid ReadThrough ({offset}; expected >= 0)", path=f"Sources[{journal}]"
        )
    return offset


def _producer(journal: str, producer: bytes, last_ack: int, begin: int) -> ProducerState:
    if len(producer) != PRODUCER_BYTES:
        raise ValidationError(
            f"invalid Producer Id ({producer.hex()}; expected {PRODUCER_BYTES} bytes)",
            path=f"Sources[{journal}]",
        )
    if begin < -1:
        raise ValidationError(
            f"invalid Begin ({begin}; expected >= -1)", path=f"Sources[{journal}]"
        )
    return ProducerState(journal, producer, last_ack, begin)
