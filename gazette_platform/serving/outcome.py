"""How a call ends: with its answer, when its caller's token expires, or with an error and its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from gazette_platform.errors import EtcdError, GazetteError
from gazette_platform.protocol.auth import Forbidden, Unauthenticated
from gazette_platform.serving.interface import Code, Denied, NotNow, RpcFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable

    from gazette_platform.ops.faults import Faults

T = TypeVar("T")


async def before_expiry(limit: asyncio.Timeout, work: Awaitable[T]) -> T:
    """Await `work` until the claims of its caller expire.

    Args:
        limit: of `Authenticator.limit`.

    Raises: RpcFailed: DEADLINE_EXCEEDED: they have expired. Clients then get a new token.
    Cancellation: cancels `work`.
    """
    try:
        async with limit:
            return await work
    except TimeoutError as err:
        if not limit.expired():
            raise
        raise RpcFailed(Code.DEADLINE_EXCEEDED, "the call's authorization has expired") from err


def failure_of(operation: str, err: Exception, faults: Faults) -> RpcFailed:
    """The error for a caller. One that is not ours is a fault; it ends only this call.

    Args:
        operation: name of the call.
        err: not an RpcFailed, which is sent as it is.
    """
    if isinstance(err, Forbidden):
        return Denied(str(err))
    if isinstance(err, Unauthenticated):
        return RpcFailed(Code.UNAUTHENTICATED, str(err))
    if isinstance(err, DecodeError):
        return RpcFailed(Code.INTERNAL, f"{operation}: malformed message: {err}")
    if not isinstance(err, GazetteError):
        faults.report("call", operation, err)
        kind = type(err).__name__
        return RpcFailed(
            Code.INTERNAL,
            f"{operation}: unforeseen {kind}: {err} (the log of this process has more)",
        )
    # Most troubles of etcd pass by themselves, and clients retry what cannot be answered now.
    if isinstance(err, EtcdError) and err.retriable:
        return NotNow(err.told)
    return RpcFailed(Code.UNKNOWN, err.told if isinstance(err, EtcdError) else str(err))
