"""Append content as one atomic span: one RPC, retried until it is clear that it cannot succeed.

At-least-once: if a broker does not answer, the content is sent again and may be in the journal twice.
An append that names its `offset` happens once or not at all: `settle` reads the journal to find out
what an unanswered attempt did.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from gazette_platform.client.read.reader import Reader, ReadOptions
from gazette_platform.client.results import AppendResult
from gazette_platform.client.wire import decoded
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    GazetteError,
    OutcomeUnknown,
    RegisterMismatch,
    StatusError,
    WrongAppendOffset,
    status_error,
)
from gazette_platform.ops import tracing
from gazette_platform.protocol import (
    AppendSuspend,
    Header,
    LabelSelector,
    LabelSet,
    Status,
    validate_append_response,
)
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.content import (
    COMMIT_MARKER,
    CONTENT_CHUNK_BYTES,
    NO_SUM,
    decode_append_content,
    encode_append_content,
    encode_append_pieces,
)
from gazette_platform.protocol.fragments import sum_from_pb
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import RpcFailed

if TYPE_CHECKING:
    from gazette_platform.client.transport import Transport
    from gazette_platform.client.wire import Wire
    from gazette_platform.serving.interface import ClientCall

# What may be appended: bytes all at once, or in pieces of any size.
ContentSource = (
    bytes
    | bytearray
    | memoryview
    | Iterable[bytes | bytearray | memoryview]
    | AsyncIterable[bytes | bytearray | memoryview]
)

# Seconds for which small pieces of content are collected before they are sent as one message.
_JOIN_S = 0.1

# Content up to this size goes along with the request: beyond it, what a call costs is little.
_WHOLE_BYTES_MAX = 64 << 10

# gRPC codes of brokers that do not know the call (those of Gazette), and of proxies in front of them that
# pass only calls of Gazette. In both cases nothing was appended.
_NO_WHOLE_CODES = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})

# gRPC codes of errors that another attempt does not cure.
_TERMINAL_CODES = frozenset(
    {"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AppendOptions:
    """Conditions and effects of an append beyond its content."""

    offset: int = 0
    """Offset that the append must begin at; 0: any."""
    check_registers: LabelSelector | None = None
    """Selector that the journal's registers must match, unless the journal has none."""
    union_registers: LabelSet | None = None
    """Labels that replace all registers of the same names."""
    subtract_registers: LabelSet | None = None
    """Labels to remove from the registers; a name is removed where all of its values are the same."""
    suspend: AppendSuspend = AppendSuspend.SUSPEND_RESUME
    min_revision: int = 0
    """Revision of etcd that the broker must have seen, as `apply` returned it; 0: any."""
    with_sum: bool = True
    """Whether the result needs the SHA-1 of the content."""

    def request(self, journal: str, *, min_revision: int = 0) -> bytes:
        """The first message of the RPC.

        Args:
            journal: its name.
            min_revision: used in place of the option, if it is not 0.
        """
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
    """Content of an append as encoded messages, made again for each attempt if that is possible.

    Attributes:
        is_spent: whether a one-shot iterator has begun, so that there can be no other attempt.
        attempts: how often all of it was sent and not refused; it was committed no more often.
    """

    def __init__(self, source: ContentSource) -> None:
        self._source = source
        self._messages: list[bytes] | None = None
        self.is_spent = False
        self.attempts = 0
        self._view: memoryview | None = None
        self._parts: list[memoryview] | None = None
        self._is_replayable = True
        if isinstance(source, list):
            self._parts = [memoryview(part).cast("B") for part in source]
            if sum(map(len, self._parts)) <= _WHOLE_BYTES_MAX:
                source = b"".join(self._parts)
        if isinstance(source, bytes | bytearray | memoryview):
            self._view = memoryview(source).cast("B")
        else:
            self._is_replayable = iter_is_fresh(source)

    @classmethod
    def of_messages(cls, messages: list[bytes]) -> Content:
        """Content that was encoded before, as messages with content and nothing else."""
        content = cls(())
        content._messages = messages
        return content

    def encoded(self) -> Iterable[bytes] | None:
        """Its messages, if all of it is in memory."""
        if self._view is not None:
            return encoded_messages(self._view)
        return self._messages if self._parts is None else joined_messages(self._parts)

    def whole(self) -> bytes | None:
        """All of it as one encoded message, if it is in memory and small; b"" if there is none."""
        if self._view is not None:
            if self._view.nbytes > _WHOLE_BYTES_MAX:
                return None
            return encode_append_content(self._view) if self._view else b""
        messages = self._messages
        if messages is None or len(messages) > 1:
            return None
        message = messages[0] if messages else b""
        return message if len(message) <= _WHOLE_BYTES_MAX else None

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have no bytes."""
        return self._view is not None and not self._view

    async def pieces(self) -> AsyncIterator[bytes | bytearray | memoryview]:
        """The content itself, in pieces of any size."""
        if self._view is not None:
            for begin in range(0, len(self._view), CONTENT_CHUNK_BYTES):
                yield self._view[begin : begin + CONTENT_CHUNK_BYTES]
            return
        if self._messages is not None:
            for message in self._messages:
                yield decode_append_content(message) or b""
            return
        self.is_spent = not self._is_replayable
        async for piece in _pieces(self._source):
            yield piece

    async def messages(self) -> AsyncIterator[bytes]:
        """Encoded content messages of up to `CONTENT_CHUNK_BYTES`.

        Small pieces are joined, but soon sent: brokers end an append if no content comes.
        """
        if (encoded := self.encoded()) is not None:
            for message in encoded:
                yield message
            return
        loop = asyncio.get_running_loop()
        pending: list[bytes | bytearray | memoryview] = []
        size = 0
        sent_at = loop.time()
        async for piece in self.pieces():
            pending.append(piece)
            size += len(piece)
            if size < CONTENT_CHUNK_BYTES and loop.time() < sent_at + _JOIN_S:
                continue
            joined = b"".join(pending)
            cut = len(joined) - len(joined) % CONTENT_CHUNK_BYTES or len(joined)
            for message in encoded_messages(memoryview(joined)[:cut]):
                yield message
            sent_at = loop.time()
            pending, size = [joined[cut:]], len(joined) - cut
        if size:
            yield encode_append_content(b"".join(pending))


def iter_is_fresh(source: object) -> bool:
    """Whether each iteration of `source` gives everything: true of lists, not of generators."""
    if isinstance(source, AsyncIterable):
        return not isinstance(source, AsyncIterator)
    return not isinstance(source, Iterator)


def encoded_messages(view: memoryview) -> Iterator[bytes]:
    """Content messages of a whole content."""
    for begin in range(0, len(view), CONTENT_CHUNK_BYTES):
        yield encode_append_content(view[begin : begin + CONTENT_CHUNK_BYTES])


def joined_messages(parts: Iterable[memoryview]) -> Iterator[bytes]:
    """Content messages of the concatenation of parts."""
    joined: list[memoryview] = []
    size = 0
    for part in parts:
        begin = 0
        while begin < len(part):
            joined.append(part[begin : begin + CONTENT_CHUNK_BYTES - size])
            begin, size = begin + len(joined[-1]), size + len(joined[-1])
            if size == CONTENT_CHUNK_BYTES:
                yield encode_append_pieces(joined, size)
                joined, size = [], 0
    if size:
        yield encode_append_pieces(joined, size)


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

    At-least-once: if the answer of an attempt is lost, the client makes another one, and the content
    may be duplicated. With an `offset` it is appended once or not at all.

    Args:
        transport: reaches the brokers.
        journal: its name.
        content: what to append.
        options: conditions and effects.
        retry_failed: also retry gRPC errors that brokers answered, as background writers do.

    Raises:
        StatusError: the broker refused; nothing was appended.
        OutcomeUnknown: it refused, but an attempt before may have been appended.
        TransportError: no broker answered; see its `may_be_applied`.

    Cancellation: the RPC is cancelled; whether the append was committed is unknown.
    """
    if not tracing.is_on():
        return await _append(transport, journal, content, options, retry_failed=retry_failed)
    with tracing.span("gazette append", kind="CLIENT", journal=journal):
        return await _append(transport, journal, content, options, retry_failed=retry_failed)


async def _append(
    transport: Transport,
    journal: str,
    content: Content,
    options: AppendOptions,
    *,
    retry_failed: bool,
) -> AppendResult:
    request = options.request(journal, min_revision=transport.min_revision(options.min_revision))
    patience = transport.patience()
    doubt: GazetteError | None = None
    while True:
        attempt = _Attempt(transport, journal, content)
        response: pb.AppendResponse | None = None
        try:
            # Any broker takes an append and proxies it. The primary saves a hop, and a retry goes to the
            # service address, because the error has made the transport forget the route.
            with transport.wire(journal, primary=True) as wire:
                response = await attempt.run(wire, request, with_sum=options.with_sum)
            return _result(transport, journal, response)
        except GazetteError as err:
            # Doubt outlives later attempts: a refusal of the third says nothing of the first.
            if attempt.may_be_applied(err):
                doubt = err
            else:
                attempt.was_refused()
            err.may_be_applied = doubt is not None and not isinstance(err, StatusError)
            try:
                if not _may_retry(err, content, retry_failed=retry_failed):
                    raise
                await patience.wait(err)
            except StatusError as refusal:
                # WRONG_APPEND_OFFSET after an unanswered attempt is mostly our own success: the attempt
                # moved the head. Only the content at that offset shows it.
                if doubt is None or response is None or content.is_empty:
                    raise
                return await settle(
                    transport,
                    journal,
                    content.pieces(),
                    offset=options.offset,
                    refusal=refusal,
                    doubt=doubt,
                    header=Header.from_pb(response.header),
                    registers=LabelSet.from_pb(response.registers),
                )


def _may_retry(err: GazetteError, content: Content, *, retry_failed: bool) -> bool:
    if content.is_spent:
        return False
    if isinstance(err, CallFailed):
        return retry_failed and err.code not in _TERMINAL_CODES
    return err.retriable


class _CallOver(Exception):
    """No more messages can be sent: the caller reads the broker's answer or error next."""


@final
class _Attempt:
    """One RPC. If sending fails, the broker has answered already, and its answer decides."""

    def __init__(self, transport: Transport, journal: str, content: Content) -> None:
        self._transport = transport
        self._journal = journal
        self._content = content
        self._is_sent = False

    def may_be_applied(self, err: GazetteError) -> bool:
        """Whether the content may have been committed although the RPC failed.

        Without a commit marker brokers roll back, and what they refused they have not committed.
        """
        is_refusal = isinstance(err, StatusError) or (
            isinstance(err, CallFailed) and err.code in _TERMINAL_CODES
        )
        return self._is_sent and not is_refusal

    def was_refused(self) -> None:
        """The broker has not committed the content, and will not."""
        if self._is_sent:
            self._content.attempts -= 1

    def _sent(self) -> None:
        """From here on the broker may commit."""
        self._is_sent = True
        self._content.attempts += 1

    async def run(self, wire: Wire, request: bytes, *, with_sum: bool) -> pb.AppendResponse:
        """Raises: TransportError; DataError: the answer is malformed; what the content raises."""
        metadata = self._transport.auth.metadata(Capability.APPEND, self._journal)
        if headers := tracing.headers():
            metadata = (*(metadata or ()), *headers)
        if not with_sum:
            metadata = (*(metadata or ()), (NO_SUM, "1"))
        # A single message does not report whether it was sent. With a connection, assume that it was.
        whole = self._content.whole() if wire.takes_whole and wire.is_ready else None
        if whole is not None:
            self._sent()
            try:
                return await self._answer(wire, wire.append_whole(request + whole, metadata))
            except CallFailed as err:
                if err.code not in _NO_WHOLE_CODES:
                    raise
                self.was_refused()
                self._is_sent = False
        response = await self._answer(wire, wire.append(metadata), request)
        if whole is not None:
            wire.takes_whole = False
        return response

    async def _answer(
        self, wire: Wire, call: ClientCall, request: bytes | None = None
    ) -> pb.AppendResponse:
        """What a call gives, once `request` and the content were sent; None: all was.

        Raises: as `run`.
        """
        transport, journal = self._transport, self._journal
        what = f"append to {journal}"
        stall_s = transport.config.append_timeout_s
        try:
            call.expire_in(stall_s)
            if request is not None:
                with contextlib.suppress(_CallOver):
                    await self._send(call, request)
            raw = await call.answer()
        except RpcFailed as err:
            if not call.has_expired:
                raise transport.failed(err, wire, journal, what) from err
            transport.forget(journal)
            raise CallUnanswered(
                f"{what}: broker {wire.endpoint} took or answered nothing for {stall_s} s; "
                "whether the content was committed is unknown (read the journal's end to find out)"
            ) from err
        finally:
            # Without the commit marker and a half-close the broker rolls back.
            call.cancel()
        return decoded(pb.AppendResponse, raw, validate_append_response)

    async def _send(self, call: ClientCall, request: bytes) -> None:
        stall_s = self._transport.config.append_timeout_s
        await _write(call, request)
        if (messages := self._content.encoded()) is not None:
            for number, message in enumerate(messages):
                await _write(call, message)
                if number:
                    call.expire_in(stall_s)
        else:
            # The caller's iterator may take as long as it likes; only the broker may not.
            call.expire_in(None)
            async with _until_over(call):
                async for message in self._content.messages():
                    call.expire_in(stall_s)
                    await _write(call, message)
                    call.expire_in(None)
            call.expire_in(stall_s)
        self._sent()
        await _write(call, COMMIT_MARKER)
        try:
            await call.done_sending()
        except RpcFailed as err:
            raise _CallOver from err


@contextlib.asynccontextmanager
async def _until_over(call: ClientCall) -> AsyncIterator[None]:
    """Leave the block when the call ends, as a broker may refuse while a caller's iterator waits.

    Raises: _CallOver: the call ended first.
    """
    loop = asyncio.get_running_loop()
    scope = asyncio.timeout(None)
    try:
        async with scope:
            call.on_over = lambda: scope.reschedule(loop.time())
            try:
                if call.is_over:
                    scope.reschedule(loop.time())
                yield
            finally:
                call.on_over = None
    except TimeoutError as err:
        if scope.expired():
            raise _CallOver from err
        raise


async def _write(call: ClientCall, message: bytes) -> None:
    # A function by itself, so that errors of the caller's iterator are not taken for the call's.
    try:
        await call.send(message)
    except RpcFailed as err:
        raise _CallOver from err


def _result(transport: Transport, journal: str, response: pb.AppendResponse) -> AppendResult:
    header = transport.learn(journal, response.header)
    if response.status != pb.OK:
        raise status_error(
            Status.from_wire(response.status).name, _detail(response), journal=journal
        )
    commit = response.commit
    transport.counts.appended_bytes[journal] += commit.end - commit.begin
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


# ------------------------------------------------------------------ the outcome of an unanswered attempt

# Seconds to wait for each piece: a replica may learn of a commit a moment later.
_PIECE_TIMEOUT_S = 10.0


async def settle(
    transport: Transport,
    journal: str,
    content: AsyncIterator[bytes | bytearray | memoryview],
    *,
    offset: int,
    refusal: StatusError,
    doubt: GazetteError,
    header: Header,
    registers: LabelSet,
) -> AppendResult:
    """Find out whether an attempt was committed before one was refused.

    If the journal has other bytes at the offset, it was not; if it has the same bytes, the append
    succeeded. (Two writers that append equal content at one offset both see success:
    content that is to decide a race between writers has to name its writer.)

    Args:
        offset: that the append named; 0: none.
        refusal: of the last attempt.
        doubt: what an earlier one failed with.
        header: that of the refusal.
        registers: those in the refusal.

    Returns: where the content is.
    Raises: StatusError: `refusal`; nothing was appended. OutcomeUnknown: it may have been appended.
    Cancellation: safe.
    """
    why = "it named no offset to look at"
    if offset and isinstance(refusal, WrongAppendOffset | RegisterMismatch):
        try:
            found = await _find(transport, journal, offset, content)
        except GazetteError as err:
            why = f"offset {offset} cannot be read: {err}"
        except TimeoutError:
            why = f"the journal does not reach to the end of it, from offset {offset}"
        else:
            if found is None:
                raise refusal
            end, sha1 = found
            if end == offset:
                raise refusal  # without a byte there is nothing to find, and nothing was appended
            transport.counts.appended_bytes[journal] += end - offset
            return AppendResult(offset, end, sha1, registers, header)
    raise OutcomeUnknown(
        f"append to {journal}: whether it was appended is unknown: an attempt was not answered "
        f"({doubt}), and a later one was refused ({refusal}); {why} (look for the content in the "
        "journal before appending it again)"
    ) from refusal


async def _find(
    transport: Transport,
    journal: str,
    offset: int,
    content: AsyncIterator[bytes | bytearray | memoryview],
) -> tuple[int, bytes] | None:
    """The end and SHA-1 of `content` at `offset`; None: the journal has something else there.

    Raises: TimeoutError: the journal is shorter. GazetteError: it cannot be read.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    at = offset
    stored = memoryview(b"")
    async with Reader(transport, journal, offset, ReadOptions(block=True)) as reader:
        async for piece in content:
            own = memoryview(piece).cast("B")
            digest.update(own)
            at += len(own)
            while own:
                if not stored:
                    async with asyncio.timeout(_PIECE_TIMEOUT_S):
                        stored = memoryview(await anext(reader))
                size = min(len(own), len(stored))
                if own[:size] != stored[:size]:
                    return None
                own, stored = own[size:], stored[size:]
    return at, digest.digest()
