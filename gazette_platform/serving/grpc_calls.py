"""Turns all errors of grpc.aio into `RpcFailed`, so that the logic of calls knows no others.

The errors of grpc.aio have no common base. `RpcError` is a status that the other side, or the
connection, gave. `BaseError` comes of a single operation while the status of its call is not known
yet, as when a connection was just reset. `InvalidStateError` comes of an operation on a call that is
over. And when a call ends because its channel is closed, its waiters see a cancellation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.ops.tasks import is_cancelled
from gazette_platform.serving.interface import Code, RpcFailed, go_spelling
from gazette_platform.serving.outgoing import DROPPED, PEER_LEFT

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["CALL_ERRORS", "GO_CODES", "GRPC_CODES", "caller_left", "message_of", "of_call"]

T = TypeVar("T")

# What grpc.aio says in place of the peer's status if it could not write a message of ours any more and had
# not yet learned of that status, as when a peer leaves, or refuses a token.
_WRITE_FAILED: Final = "Internal error from Core"

CALL_ERRORS = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)
"""All errors that operations on our calls raise, beside cancellation."""

GRPC_CODES = {code: getattr(grpc.StatusCode, code.value) for code in Code}
"""gRPC's object of each code."""

GO_CODES = {code: go_spelling(code.value) for code in Code}
"""How Go spells each code, and so Gazette in its errors and metrics."""

_CODES = {grpc_code: code for code, grpc_code in GRPC_CODES.items()}


async def of_call(call: Any, work: Awaitable[T]) -> T:
    """Await `work`, which is an operation on `call`, or the call itself.

    Raises: RpcFailed: the call failed, with its code and details.
    Cancellation: cancels `work`, and with it the call.
    """
    try:
        return await work
    except CALL_ERRORS as err:
        raise await _failure(call) from err
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # Nobody cancelled us. The call was cancelled, because its channel was closed when the peer
        # left.
        raise RpcFailed(Code.UNAVAILABLE, PEER_LEFT) from None


async def message_of(call: Any) -> bytes | None:
    """The next message of a call; None at its end. Raises: RpcFailed: as `of_call`."""
    raw = await of_call(call, call.read())
    return None if raw is aio.EOF else bytes(raw)


async def _failure(call: Any) -> RpcFailed:
    if not call.done():
        return RpcFailed(Code.UNAVAILABLE, "the connection broke")
    code, details = await call.code(), await call.details() or ""
    if code is grpc.StatusCode.INTERNAL and details == _WRITE_FAILED:
        # gRPC gives this in place of the other side's answer, or of what became of the connection.
        return RpcFailed(Code.UNAVAILABLE, "the call ended while it was being sent")
    if code is grpc.StatusCode.CANCELLED:  # by the other side
        return RpcFailed(Code.UNAVAILABLE, f"the process {DROPPED}")
    return RpcFailed(_CODES.get(code, Code.UNKNOWN), details)


def caller_left(err: aio.BaseError) -> RpcFailed:
    """The error of an operation on the serving side whose caller has gone."""
    return RpcFailed(Code.CANCELLED, f"the caller has gone ({type(err).__name__})")
