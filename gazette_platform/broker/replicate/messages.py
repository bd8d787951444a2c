"""Messages of Replicate: from bytes to the values that its state machines know, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from gazette_platform.broker.replicate.pipeline_fsm import Reply
from gazette_platform.broker.replicate.replica_fsm import Proposal
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    Fragment,
    Header,
    LabelSet,
    Status,
    validate_replicate_request,
    validate_replicate_response,
)
from gazette_platform.protocol.content import decode_replicate_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed

if TYPE_CHECKING:
    from gazette_platform.broker.replicate.replica_fsm import Answer

__all__ = [
    "ContentMessage",
    "ProposalMessage",
    "decode_reply",
    "decode_request",
    "encode_answer",
    "encode_proposal",
]


@dataclass(frozen=True, slots=True)
class ContentMessage:
    """Content for the replica's spool."""

    delta: int
    content: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ProposalMessage:
    """A proposal. Only the first one of a stream has a header."""

    proposal: Proposal
    header: Header | None


def decode_request(raw: bytes) -> ContentMessage | ProposalMessage:
    """A message from a primary.

    Raises: RpcFailed: it is malformed.
    """
    plain = decode_replicate_content(raw)
    if plain is not None:
        return ContentMessage(*plain)
    try:
        message = pb.ReplicateRequest.FromString(raw)
        validate_replicate_request(message)
    except (DecodeError, ValidationError) as err:
        raise RpcFailed(Code.UNKNOWN, str(err)) from err
    if not message.HasField("proposal"):
        return ContentMessage(message.content_delta, message.content)
    proposal = Proposal(
        Fragment.from_pb(message.proposal),
        LabelSet.from_pb(message.registers),
        message.acknowledge,
    )
    header = Header.from_pb(message.header) if message.HasField("header") else None
    return ProposalMessage(proposal, header)


def encode_proposal(
    fragment: Fragment, registers: LabelSet, *, acknowledge: bool, header: Header | None = None
) -> bytes:
    """A proposal to a replica.

    Args:
        header: for the first message of a stream only. It names the peer that is meant.
    """
    message = pb.ReplicateRequest(acknowledge=acknowledge)
    fragment.into_pb(message.proposal)
    message.registers.SetInParent()
    registers.into_pb(message.registers)
    if header is not None:
        header.into_pb(message.header)
        message.deprecated_journal = fragment.journal
    return message.SerializeToString()


def decode_reply(raw: bytes) -> Reply:
    """A replica's answer.

    Raises: ValidationError: it is malformed.
    """
    if not raw:
        return _OK
    try:
        message = pb.ReplicateResponse.FromString(raw)
    except DecodeError as err:
        raise ValidationError(f"malformed ReplicateResponse: {err}") from err
    validate_replicate_response(message)
    return Reply(
        Status(message.status),
        Header.from_pb(message.header) if message.HasField("header") else None,
        Fragment.from_pb(message.fragment) if message.HasField("fragment") else None,
        LabelSet.from_pb(message.registers) if message.HasField("registers") else None,
    )


_OK = Reply(Status.OK)


def encode_answer(answer: Answer, header: Header | None = None) -> bytes:
    """An answer to the primary.

    Args:
        header: for the first answer of a stream only.
    """
    message = pb.ReplicateResponse(status=answer.status.value)  # type: ignore[arg-type]
    if header is not None:
        header.into_pb(message.header)
    if answer.fragment is not None:
        answer.fragment.into_pb(message.fragment)
    if answer.registers is not None:
        message.registers.SetInParent()
        answer.registers.into_pb(message.registers)
    return message.SerializeToString()
