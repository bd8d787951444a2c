"""Serves Append: from the client's stream to an outcome of the journal's appender.

An append of moderate size is gathered whole before it takes its turn, so that a slow client holds
nobody up and several are written together. A larger one takes its turn and streams; it then owns
the journal, and its client must keep up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, final

from google.protobuf.message import DecodeError

from gazette_platform.broker import append_fsm as fsm
from gazette_platform.broker.appender import Outcome, Pending, content_sum
from gazette_platform.broker.flow_control import TICK_S, Flow
from gazette_platform.broker.replica import Replica
from gazette_platform.broker.spec_writes import write_suspend
from gazette_platform.broker.wire.interface import Code, ContentSource, RpcFailed
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import (
    AppendSuspend,
    Header,
    LabelSelector,
    LabelSet,
    Status,
    SuspendLevel,
    SuspendSpec,
    strip_meta,
    validate_append_chunk,
    validate_append_request,
)
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.protocol.content import decode_append_content
from gazette_platform.protocol.pb import protocol_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.flow_control import RateBalance
    from gazette_platform.broker.resolver import Resolution, Resolver
    from gazette_platform.protocol.auth import Claims

__all__ = ["AppendApi"]

# Gathered whole up to this size, while all that are being gathered fit the budget; what does not
# fit streams. The budget is what bounds the memory of many clients at once.
_GATHER_BYTES_MAX = 2 << 20
_GATHER_BUDGET_BYTES = 48 << 20

# Hashed on the event loop up to this size: a hop to a thread costs more.
_INLINE_BYTES_MAX = 64 << 10

# Seconds of credit that a client has while its append is gathered. It then holds up nobody, and many
# that share a connection may starve each other; what streams gets the one second of Gazette's.
_GATHER_CREDIT_S = 10.0

# A timer that fires later than this tells of a busy broker, which is no fault of the client's.
_TIMER_LATE_S = 0.1

# Chunks of a streamed append that wait for the disk; the client is held back beyond.
_STREAM_CHUNKS_MAX = 4

# Seconds that a resumed journal is given to be assigned, whatever --broker.append-wait says.
_RESUME_WAIT_S = 5.0

# Statuses that pass by themselves while a journal is being assigned.
_PASSING = frozenset({Status.NO_JOURNAL_PRIMARY_BROKER, Status.INSUFFICIENT_JOURNAL_BROKERS})


@final
class AppendApi:
    """Append RPCs of one broker."""

    def __init__(self, context: BrokerContext, resolver: Resolver) -> None:
        self._context = context
        self._resolver = resolver
        self._gathering_bytes = 0

    async def append(
        self, first: bytes, content: ContentSource, claims: Claims = ALL_CLAIMS
    ) -> tuple[Status, bytes]:
        """Serve one Append.

        Args: claims: of the caller; journals beyond them do not exist for it.
        Returns: the outcome, and the AppendResponse that says so.
        Raises: RpcFailed: malformed, broken or too slow a stream; nothing was applied.
        Cancellation: nothing is applied unless its turn had come.
        """
        message = pb.AppendRequest.FromString(first)
        try:
            validate_append_request(message)
        except ValidationError as err:
            raise RpcFailed(Code.UNKNOWN, str(err)) from err
        request = _request(message)
        resolution = await self._resolve(message, request, claims)
        if resolution.status is not Status.OK:
            return resolution.status, _response(resolution, Outcome(resolution.status))
        replica = self._resolver.replicas.get(request.journal)
        if not isinstance(replica, Replica):
            # The assignment went away between two looks at it.
            outcome = Outcome(Status.NOT_JOURNAL_PRIMARY_BROKER)
            return outcome.status, _response(resolution, outcome)
        body = _Body(content, replica.balance, self._context)
        outcome = await self._run(replica, request, body)
        if outcome.is_remote:
            resolution = await self._resolver.resolve(
                request.journal, may_proxy=False, require_primary=True, claims=claims
            )
        return outcome.status, _response(resolution, outcome, body)

    async def _resolve(
        self, message: pb.AppendRequest, request: fsm.AppendRequest, claims: Claims
    ) -> Resolution:
        """Resolve, and wait a bounded time for a journal that is being assigned."""
        clock, space = self._context.clock, self._context.space
        header = Header.from_pb(message.header) if message.HasField("header") else None
        deadline = clock.monotonic() + self._context.config.append_wait_s
        while True:
            resolution = await self._resolver.resolve(
                request.journal,
                may_proxy=False,
                require_primary=True,
                min_revision=request.min_revision,
                proxy_header=header,
                claims=claims,
            )
            left_s = deadline - clock.monotonic()
            if _resumes(resolution, request) and resolution.spec is not None:
                # Nobody serves a fully suspended journal, so whoever is asked to resumes it.
                offset = resolution.spec.suspend.offset if resolution.spec.suspend else 0
                await write_suspend(
                    self._context, request.journal, SuspendSpec(SuspendLevel.NONE, offset)
                )
                deadline = max(deadline, clock.monotonic() + _RESUME_WAIT_S)
                continue
            if resolution.status not in _PASSING or left_s <= 0:
                return resolution
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await space.wait_for_revision(space.revision + 1)

    async def _run(self, replica: Replica, request: fsm.AppendRequest, body: _Body) -> Outcome:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Outcome] = loop.create_future()
        wait_until = self._context.clock.monotonic() + self._context.config.append_wait_s
        pending = Pending(machine=fsm.AppendFSM(request), done=done, wait_until=wait_until)
        pumping: asyncio.Task[None] | None = None
        try:
            if await self._gather(pending, body):
                if pending.length > _INLINE_BYTES_MAX:
                    pending.sum = loop.run_in_executor(
                        self._context.executor, content_sum, pending.chunks
                    )
                else:
                    pending.sum = content_sum(pending.chunks)
            else:
                body.stream()
                pending.stream = _Stream(done)
                pumping = self._context.tasks.spawn(
                    _pump(body, pending.stream, pending), name=f"stream {request.journal}"
                )
            replica.appender.submit(pending)
            outcome = await done
        finally:
            done.cancel()
            if pumping is not None:
                pumping.cancel()
            self._gathering_bytes -= body.gathered_bytes
            body.close()
        outcome.total_chunks = body.total_chunks
        return outcome

    async def _gather(self, pending: Pending, body: _Body) -> bool:
        """Take content until the commit marker, or until it should stream.

        Returns: whether all of it is here.
        """
        while True:
            chunk = await body.next()
            if not chunk:
                await body.expect_end()
                return True
            pending.chunks.append(chunk)
            pending.length += len(chunk)
            body.gathered_bytes += len(chunk)
            self._gathering_bytes += len(chunk)
            if pending.length > _GATHER_BYTES_MAX or self._gathering_bytes > _GATHER_BUDGET_BYTES:
                return False


@final
class _Body:
    """The content of an append, at the pace that its client and its journal owe each other."""

    __slots__ = (
        "_balance",
        "_clock",
        "_content",
        "_due_at",
        "_flow",
        "_loop",
        "_stalled",
        "_timer",
        "_waiting",
        "delayed_chunks",
        "gathered_bytes",
        "total_chunks",
    )

    def __init__(
        self, content: ContentSource, balance: RateBalance, context: BrokerContext
    ) -> None:
        self._content = content
        self._balance = balance
        self._clock = context.clock
        self._loop = asyncio.get_running_loop()
        self._flow = Flow.start(context.config.min_append_rate, context.clock.monotonic())
        self._flow.credit *= _GATHER_CREDIT_S
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stalled = False
        self.total_chunks = 0
        self.delayed_chunks = 0
        self.gathered_bytes = 0
        # The task that waits for the client, while one does.
        self._waiting: asyncio.Task[object] | None = None
        self._arm()

    def stream(self) -> None:
        """From now on the client holds up others, or will: one second of credit is left."""
        self._flow.credit = min(self._flow.credit, self._flow.min_rate)
        self.close()
        self._arm()

    def _arm(self) -> None:
        # One timer an append, looked at only if it fires: content that arrives moves the deadline
        # by adding credit, not by touching the timer.
        if self._flow.min_rate > 0:
            delay_s = max(self._flow.credit / self._flow.min_rate, TICK_S)
            self._due_at = self._loop.time() + delay_s
            self._timer = self._loop.call_at(self._due_at, self._on_timer)

    def _on_timer(self) -> None:
        now = self._clock.monotonic()
        if self._loop.time() - self._due_at > _TIMER_LATE_S:
            self._flow.on_held(now)
        if self._waiting is not None and self._flow.underflows(now):
            self._stalled = True
            self._waiting.cancel()
        else:
            self._arm()

    def close(self) -> None:
        """Stop judging the client."""
        if self._timer is not None:
            self._timer.cancel()

    async def next(self) -> bytes | memoryview:
        """The next chunk; empty for the commit marker.

        Raises: RpcFailed: the stream ended, broke, or was too slow.
        """
        raw = await self._receive()
        if raw is None:
            raise RpcFailed(Code.UNKNOWN, "append stream: unexpected EOF")
        self.total_chunks += 1
        content = decode_append_content(raw)
        chunk: bytes | memoryview = content if content is not None else _decode_chunk(raw)
        if chunk:
            self._flow.on_content(len(chunk))
            delay_s = self._balance.take(len(chunk), self._clock.monotonic())
            if delay_s > 0:
                self.delayed_chunks += 1
                await asyncio.sleep(delay_s)
        return chunk

    async def expect_end(self) -> None:
        """The client must half-close after its commit marker."""
        if await self._receive() is not None:
            raise RpcFailed(Code.UNKNOWN, "append stream: expected EOF after empty Content chunk")
        self.close()

    async def _receive(self) -> bytes | None:
        self._flow.on_held(self._clock.monotonic())  # time until now was ours, not the client's
        waiting = self._waiting = asyncio.current_task()
        try:
            raw = await self._content.next()
        except asyncio.CancelledError:
            # Unless its caller has gone at the same time.
            if self._stalled and waiting is not None and waiting.uncancel() == 0:
                raise RpcFailed(
                    Code.UNKNOWN,
                    "append stream: client stream didn't sustain the minimum append data rate",
                ) from None
            raise
        finally:
            self._waiting = None
        self._flow.underflows(self._clock.monotonic())
        return raw


@final
class _Stream:
    """Chunks between the task that receives them and the appender's: a few, then the client waits.

    Args: done: once the append is over for whatever reason, nothing moves any more.
    """

    def __init__(self, done: asyncio.Future[Outcome]) -> None:
        self._chunks: deque[bytes | memoryview] = deque()
        self._is_over = False
        self._changed = asyncio.Event()
        done.add_done_callback(self._end)

    def _end(self, _: asyncio.Future[Outcome]) -> None:
        self._is_over = True
        self._changed.set()

    async def put(self, chunk: bytes | memoryview) -> None:
        """Hand over a chunk once there is room."""
        while len(self._chunks) >= _STREAM_CHUNKS_MAX and not self._is_over:
            await self._change()
        self._chunks.append(chunk)
        self._changed.set()

    async def next(self) -> bytes | memoryview:
        """The next chunk. Raises: RpcFailed: the append is over."""
        while not self._chunks and not self._is_over:
            await self._change()
        if self._is_over:
            raise RpcFailed(Code.CANCELLED, "append stream: the client has gone")
        self._changed.set()
        return self._chunks.popleft()

    async def _change(self) -> None:
        self._changed.clear()  # never both sides at once: one waits for room, one for chunks
        await self._changed.wait()


async def _pump(body: _Body, stream: _Stream, pending: Pending) -> None:
    """Move the rest of the content to the appender, which takes it when its turn comes."""
    try:
        while True:
            chunk = await body.next()
            if not chunk:
                await body.expect_end()
            await stream.put(chunk)
            if not chunk:
                return
    except RpcFailed as err:
        pending.fail(err)


def _decode_chunk(raw: bytes) -> bytes:
    """A chunk that is not plain content: wrong, or strangely encoded."""
    try:
        message = pb.AppendRequest.FromString(raw)
        validate_append_chunk(message)
    except (DecodeError, ValidationError) as err:
        raise RpcFailed(Code.UNKNOWN, f"append stream: {err}") from err
    return message.content


def _request(message: pb.AppendRequest) -> fsm.AppendRequest:
    return fsm.AppendRequest(
        journal=strip_meta(message.journal),
        offset=message.offset,
        check_registers=LabelSelector.from_pb(message.check_registers)
        if message.HasField("check_registers")
        else None,
        union_registers=LabelSet.from_pb(message.union_registers)
        if message.HasField("union_registers")
        else None,
        subtract_registers=LabelSet.from_pb(message.subtract_registers)
        if message.HasField("subtract_registers")
        else None,
        suspend=AppendSuspend(message.suspend),
        min_revision=message.min_etcd_revision,
    )


def _resumes(resolution: Resolution, request: fsm.AppendRequest) -> bool:
    return resolution.status is Status.SUSPENDED and request.suspend is AppendSuspend.SUSPEND_RESUME


def _response(resolution: Resolution, outcome: Outcome, body: _Body | None = None) -> bytes:
    message = pb.AppendResponse(
        status=outcome.status.value,  # type: ignore[arg-type]
        store_health_error=outcome.store_health_error,
    )
    resolution.header.into_pb(message.header)
    if outcome.commit is not None:
        outcome.commit.into_pb(message.commit)
    if outcome.registers is not None:
        outcome.registers.into_pb(message.registers)
        message.registers.SetInParent()
    if body is not None:
        message.total_chunks = body.total_chunks
        message.delayed_chunks = body.delayed_chunks
    return message.SerializeToString()
