"""Calls with one request and one response, which are made again until one is answered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Generic, TypeVar

from google.protobuf.message import Message

from gazette_platform.client.wire import Wire, decoded
from gazette_platform.errors import CallUnanswered, GazetteError
from gazette_platform.serving.interface import Kind, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.client.transport import Transport
    from gazette_platform.protocol import LabelSelector
    from gazette_platform.protocol.auth import Capability

__all__ = ["Repeat", "UnaryCall", "UnaryMethod", "ask", "ask_once", "may_repeat"]

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Repeat(Enum):
    """When a call that failed is made again."""

    IF_UNANSWERED = auto()
    """Also if no answer came in time: it changes nothing."""
    IF_RETRIABLE = auto()
    """If the error says that it is likely to pass: doing it twice does no harm, but may take long."""
    IF_UNSENT = auto()
    """Likewise, but only if no broker can have got it: it may be refused just because it was done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryMethod(Generic[M]):
    """A method of the services of brokers."""

    path: str
    """As in ``/protocol.Journal/Apply``."""
    response: type[M]
    capability: Capability
    """What the caller's token has to allow."""
    repeat: Repeat = Repeat.IF_UNANSWERED
    needs_primary: bool = False
    """Whether only the primary of the journal can answer."""
    validate: Callable[[M], None] | None = None
    """Raises ValidationError: a response breaks a rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnaryCall(Generic[M]):
    """What is asked of brokers."""

    method: UnaryMethod[M]
    request: Message
    what: str
    """The call, for errors."""
    journal: str = ""
    """Its brokers are asked; empty: any broker."""
    claim: LabelSelector | str = ""
    """What the token has to be for, although any broker is asked: a journal, or a selector."""
    timeout_s: float | None = None
    """Seconds for an attempt; None: as configured."""


async def ask(transport: Transport, call: UnaryCall[M], read: Callable[[M], T]) -> T:
    """Make a call until it is answered, for as long as the client has patience.

    Args:
        transport: reaches the brokers.
        call: what to ask.
        read: what to make of a response; it may raise, and the error decides as the call's own does.

    Raises: TransportError; DataError: the response is malformed; what `read` raises.
    Cancellation: leaves open whether it was done.
    """
    method, patience = call.method, transport.patience()
    while True:
        wire = transport.wire(call.journal, primary=method.needs_primary)
        is_once = method.repeat is Repeat.IF_UNSENT
        may_be_sent = is_once and await wire.connected()
        try:
            response = await _answer(transport, wire, call)
            may_be_sent = is_once
            return read(response)
        except GazetteError as err:
            if may_be_sent or not may_repeat(err, method.repeat):
                raise
            await patience.wait(err)


async def ask_once(transport: Transport, call: UnaryCall[M]) -> M:
    """The response to a call, which is made once. Raises, cancellation: as `ask`."""
    wire = transport.wire(call.journal, primary=call.method.needs_primary)
    return await _answer(transport, wire, call)


async def _answer(transport: Transport, wire: Wire, call: UnaryCall[M]) -> M:
    method, request, config = call.method, call.request, transport.config
    made = wire.channel.call(
        method.path,
        Kind.UNARY,
        transport.auth.metadata(method.capability, call.claim or call.journal) or (),
        request.SerializeToString(),
        timeout_s=config.call_timeout_s if call.timeout_s is None else call.timeout_s,
    )
    try:
        with wire:
            raw = await made.answer()
    except RpcFailed as err:
        raise transport.failed(err, wire, call.journal, call.what) from err
    return decoded(method.response, raw, method.validate, peer=transport.peer)


def may_repeat(error: GazetteError, repeat: Repeat = Repeat.IF_UNANSWERED) -> bool:
    """Whether to make a call again that failed with `error`."""
    is_unanswered = isinstance(error, CallUnanswered)
    return error.retriable or (is_unanswered and repeat is Repeat.IF_UNANSWERED)
