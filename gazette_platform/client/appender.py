"""One append: one RPC, retried while nothing says that it cannot succeed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from gazette_platform.client.auth import Capability
from gazette_platform.client.results import AppendResult
from gazette_platform.client.wire import CallFailed, CallUnanswered, Wire
from gazette_platform.errors import DataError, GazetteError, status_error
from gazette_platform.protocol import AppendSuspend, LabelSelector, LabelSet, Status
from gazette_platform.protocol.content import (
    COMMIT_MARKER,
    CONTENT_CHUNK_BYTES,
    encode_append_content,
)
from gazette_platform.protocol.fragments import sum_from_pb
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.client.transport import Transport

__all__ = ["AppendOptions", "Content", "ContentSource", "append"]

# What may be appended: all at once, or in pieces of any size.
ContentSource = (
    bytes
    | bytearray
    | memoryview
    | Iterable[bytes | bytearray | memoryview]
    | AsyncIterable[bytes | bytearray | memoryview]
)

# gRPC codes that another attempt cannot cure.
_TERMINAL_CODES = frozenset(
    {"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendOptions:
    """Conditions and effects of an append beyond its content."""

    offset: int = 0
    """Offset that the append must begin at; 0 does not check."""
    check_registers: LabelSelector | None = None
    """Selector that the journal's registers must match, unless there are none."""
    union_registers: LabelSet | None = None
    """Labels that replace all registers of the same names."""
    subtract_registers: LabelSet | None = None
    """Labels that are removed from the registers where all values of a name are the same."""
    suspend: AppendSuspend = AppendSuspend.SUSPEND_RESUME
    min_revision: int = 0
    """Revision of etcd that the broker must know first, as `apply` returned it; 0: any."""

    def request(self, journal: str, *, min_revision: int = 0) -> bytes:
        """The first message of the RPC. Args: min_revision: in place of the option."""
        message = pb.AppendRequest(
            journal=journal,
            offset=self.offset,
            min_etcd_revision=min_revision or self.min_revision,
        )
        if self.check_registers is not None:
            message.check_registers.CopyFrom(self.check_registers.to_pb())
        if self.union_registers is not None:
            message.union_registers.CopyFrom(self.union_registers.to_pb())
        if self.subtract_registers is not None:
            message.subtract_registers.CopyFrom(self.subtract_registers.to_pb())
        message.suspend = int(self.suspend)  # type: ignore[assignment]
        return message.SerializeToString()


@final
class Content:
    """Content of an append as encoded messages, again for each attempt where possible.

    Attributes: is_spent: a one-shot iterator has begun, so that there can be no other attempt.
    """

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self.is_spent = False
        if isinstance(source, bytes | bytearray | memoryview):
            self._view: memoryview | None = memoryview(source).cast("B")
            self._is_replayable = True
        else:
            self._view = None
            self._is_replayable = iter_is_fresh(source)

    def whole(self) -> memoryview | None:
        """The content, if it is there at once."""
        return self._view

    async def messages(self) -> AsyncIterator[bytes]:
        """Encoded content messages of up to `CONTENT_CHUNK_BYTES`; small pieces are joined."""
        if self._view is not None:
            for message in encoded_messages(self._view):
                yield message
            return
        self.is_spent = not self._is_replayable
        pending: list[bytes | bytearray | memoryview] = []
        size = 0
        async for piece in _pieces(self._source):
            pending.append(piece)
            size += len(piece)
            if size >= CONTENT_CHUNK_BYTES:
                joined = b"".join(pending)
                cut = len(joined) - len(joined) % CONTENT_CHUNK_BYTES
                for message in encoded_messages(memoryview(joined)[:cut]):
                    yield message
                pending = [joined[cut:]]
                size = len(joined) - cut
        if size:
            yield encode_append_content(b"".join(pending))


def iter_is_fresh(source: object) -> bool:
    """Whether iterating `source` twice gives everything twice: true of lists, not of generators."""
    if isinstance(source, AsyncIterable):
        return not isinstance(source, AsyncIterator)
    return not isinstance(source, Iterator)


def encoded_messages(view: memoryview) -> Iterator[bytes]:
    """Content messages of a whole content."""
    for begin in range(0, len(view), CONTENT_CHUNK_BYTES):
        yield encode_append_content(view[begin : begin + CONTENT_CHUNK_BYTES])


async def _pieces(source: Any) -> AsyncIterator[bytes | bytearray | memoryview]:
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
    else:
        for piece in source:
            yield piece


async def append(
    transport: Transport,
    journal: str,
    content: Content,
    options: AppendOptions,
    *,
    retry_failed: bool = False,
) -> AppendResult:
    """Append `content` to `journal` as one atomic span.

    At-least-once: an attempt whose answer was lost is made again and may then be there twice.

    Args: retry_failed: also retry gRPC errors that brokers answered, as background writers do.
    Raises: StatusError: the broker refused; nothing was appended.
        TransportError: no broker answered, or the outcome is unknown.
    Cancellation: the RPC is cancelled; whether it was committed is unknown.
    """
    request = options.request(journal, min_revision=transport.min_revision(options.min_revision))
    patience = transport.patience()
    while True:
        wire = transport.wire(journal, primary=True)
        try:
            with wire:
                response = await _attempt(transport, wire, journal, request, content)
            return _result(transport, journal, response)
        except GazetteError as err:
            if not _may_retry(err, content, retry_failed=retry_failed):
                raise
            await patience.wait(err)


def _may_retry(err: GazetteError, content: Content, *, retry_failed: bool) -> bool:
    if content.is_spent:
        return False
    if isinstance(err, CallFailed):
        return retry_failed and err.code not in _TERMINAL_CODES
    return err.retriable


async def _attempt(
    transport: Transport, wire: Wire, journal: str, request: bytes, content: Content
) -> pb.AppendResponse:
    """One RPC. A broken send means that the broker has answered already, so its answer decides."""
    what = f"append to {journal}"
    call = wire.append(metadata=transport.auth.metadata(Capability.APPEND, journal))
    stall_s = transport.config.append_timeout_s
    loop = asyncio.get_running_loop()
    has_finished = False
    stall = asyncio.timeout(stall_s)
    try:
        async with stall:
            try:
                await call.write(request)
                if (view := content.whole()) is not None:
                    for message in encoded_messages(view):
                        await call.write(message)
                        if len(view) > CONTENT_CHUNK_BYTES:
                            stall.reschedule(loop.time() + stall_s)
                else:
                    # The caller's iterator may wait as long as it likes; only the broker may not.
                    stall.reschedule(None)
                    async for message in content.messages():
                        stall.reschedule(loop.time() + stall_s)
                        await call.write(message)
                        stall.reschedule(None)
                    stall.reschedule(loop.time() + stall_s)
                await call.write(COMMIT_MARKER)
                await call.done_writing()
            except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
                pass  # the call is over: what the broker answered, or failed with, is next
            response: pb.AppendResponse = await call
    except grpc.aio.AioRpcError as err:
        has_finished = True
        raise transport.failed(err, wire, journal, what) from err
    except TimeoutError as err:
        if not stall.expired():
            raise  # the caller's own, out of its iterator
        transport.forget(journal)
        raise CallUnanswered(
            f"{what}: broker {wire.endpoint} took or answered nothing for {stall_s} s; "
            "whether the content was committed is unknown (read the journal's end to find out)"
        ) from err
    else:
        has_finished = True
        return response
    finally:
        if not has_finished:
            # Without the commit marker and a half-close the broker rolls back.
            call.cancel()


def _result(transport: Transport, journal: str, response: pb.AppendResponse) -> AppendResult:
    header = transport.learn(journal, response.header)
    if response.status != pb.OK:
        raise status_error(
            Status.from_wire(response.status).name, _detail(response), journal=journal
        )
    if not response.HasField("commit") or not response.HasField("registers"):
        raise DataError(
            f"{journal}: validating broker response: an OK append lacks its commit or registers"
        )
    commit = response.commit
    return AppendResult(
        begin=commit.begin,
        end=commit.end,
        sha1=sum_from_pb(commit.sum),
        registers=LabelSet.from_pb(response.registers),
        header=header,
    )


def _detail(response: pb.AppendResponse) -> str:
    if response.status == pb.REGISTER_MISMATCH:
        return f"the journal's registers are {LabelSet.from_pb(response.registers)}"
    return response.store_health_error
