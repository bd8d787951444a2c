"""Where errors of grpc.aio end: calls raise `RpcFailed` to the broker, whatever gRPC raises.

Its classes have no common base. `RpcError` is a status that the other side, or the connection, gave.
`BaseError` is what a single operation meets on a call whose status is not known yet, as on a
connection that was just reset. `InvalidStateError` is an operation on a call that is over. And a call
that ends because its channel is closed looks like a cancellation of whoever waits for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import grpc  # type: ignore[import-untyped]
from grpc import aio

from gazette_platform.broker.wire.interface import Code, RpcFailed
from gazette_platform.client.wire import DROPPED, WRITE_FAILED
from gazette_platform.ops.interrupt import is_cancelled

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["CALL_ERRORS", "GO_CODES", "GRPC_CODES", "caller_left", "message_of", "of_call"]

T = TypeVar("T")

CALL_ERRORS = (grpc.RpcError, aio.BaseError, asyncio.InvalidStateError)
"""All that operations on a call of ours raise, beside cancellation."""

GRPC_CODES = {code: getattr(grpc.StatusCode, code.value) for code in Code}
"""What our codes are to gRPC."""

# Go spells this one with one L.
GO_CODES = {code: code.value.title().replace("_", "") for code in Code} | {
    Code.CANCELLED: "Canceled"
}
"""What they are in Go's texts, and so in Gazette's errors and metrics."""

_CODES = {grpc_code: code for code, grpc_code in GRPC_CODES.items()}


async def of_call(call: Any, work: Awaitable[T]) -> T:
    """Await `work`, an operation on `call`, or the call itself.

    Raises: RpcFailed: the call failed, with its code and details.
    Cancellation: as of `work`, which cancels the call.
    """
    try:
        return await work
    except CALL_ERRORS as err:
        raise await _failure(call) from err
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # Not we, but the call was cancelled: its channel was closed, since the peer has left.
        raise RpcFailed(Code.UNAVAILABLE, "the peer has left the cluster") from None


async def message_of(call: Any) -> bytes | None:
    """The next message of a call; None at its end. Raises: RpcFailed: as `of_call`."""
    raw = await of_call(call, call.read())
    return None if raw is aio.EOF else bytes(raw)


async def _failure(call: Any) -> RpcFailed:
    if not call.done():
        return RpcFailed(Code.UNAVAILABLE, "the connection broke")
    code, details = await call.code(), await call.details() or ""
    if code is grpc.StatusCode.INTERNAL and details == WRITE_FAILED:
        # It hides what the other side said, or what became of the connection.
        return RpcFailed(Code.UNAVAILABLE, "the call ended while it was being sent")
    if code is grpc.StatusCode.CANCELLED:  # not by us
        return RpcFailed(Code.UNAVAILABLE, f"the broker {DROPPED}")
    return RpcFailed(_CODES.get(code, Code.UNKNOWN), details)


def caller_left(err: aio.BaseError) -> RpcFailed:
    """What an operation of the serving side has met, once its caller is not there any more."""
    return RpcFailed(Code.CANCELLED, f"the caller has gone ({type(err).__name__})")
