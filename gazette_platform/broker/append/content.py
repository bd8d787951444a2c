"""The content of an append on its way from the client, and on to another broker if need be.

Here are the limits too: the rate that a client must sustain at least, the rate that a journal takes
at most, and how much of all appends together is held in memory.

Source: the rates are Gazette's (append_flow_control.go). As there, a client has one second of credit
before it is judged. A journal's balance begins with the bytes of one second, banks those of ten
seconds at most, and is carried over from each append of the journal to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from google.protobuf.message import DecodeError
from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import Interrupt, Interrupted
from gazette_platform.protocol import validate_append_chunk
from gazette_platform.protocol.content import (
    COMMIT_MARKER,
    decode_append_content,
    encode_append_content,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import READ_AHEAD_BYTES, Code, ContentSource, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from gazette_platform.broker.append.batch import Outcome, Pending
    from gazette_platform.ops.clock import Clock


# Seconds of credit that a client has while its append is gathered. Meanwhile it delays no one, and
# many clients of one connection may slow each other down. While it streams it has Gazette's one second.
_GATHER_CREDIT_S = 10.0

# A timer that fires later than this shows that the broker is busy, which is not the client's fault.
_TIMER_LATE_S = 0.1

# Bytes of a streamed append that may wait for the disk before the client is held back. Two messages of
# the usual size keep the disk busy while the next one comes.
_STREAM_BYTES_MAX = 1 << 20

# How often clients that owe content are judged, whether they are one or thousands.
_TICK_S = 0.1

_BANKED_S_MAX = 10.0

# What a chunk costs beside its content: two objects and their place in a queue. If a client sends
# single bytes, we hold this much for each of them.
_CHUNK_COST_BYTES = 256


@final
@dataclass(slots=True)
class RateBalance:
    """Bytes that a journal may take now. Its appends share the balance, one after the other."""

    rate: float
    """Bytes per second; 0: unlimited."""
    balance: float = 0.0
    updated_at: float = 0.0
    """Monotonic seconds."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the appends that began with this event are no longer held back."""

    @classmethod
    def start(cls, rate: float, now: float) -> RateBalance:
        """One second's worth, at `now`."""
        return cls(rate, rate, now)

    def release(self) -> None:
        """Let the appends under way finish as fast as they can: a hand-over waits for them."""
        self.released.set()
        self.released = asyncio.Event()

    def refill(self, now: float) -> None:
        """Add what has accrued since the last call."""
        if self.rate > 0:
            gained = (now - self.updated_at) * self.rate
            # A charge (negative balance) is paid in full before anything is banked.
            self.balance = min(self.balance + gained, self.rate * _BANKED_S_MAX)
        self.updated_at = now

    def take(self, length: int, now: float) -> float:
        """Charge `length` bytes.

        Returns: seconds to wait until the charge is paid; 0 if the balance covers it.
        """
        if self.rate <= 0:
            return 0.0
        self.refill(now)
        # Charged even if the balance does not cover it. If it had to, a chunk of more than the
        # journal takes in ten seconds would never pass.
        self.balance -= length
        return 0.0 if self.balance >= 0 else -self.balance / self.rate


@final
@dataclass(slots=True)
class Flow:
    """How long one client may still send nothing before it is too slow."""

    min_rate: float
    """Bytes per second that it must sustain; 0: never judged."""
    credit: float
    """Bytes."""
    updated_at: float
    """Monotonic seconds."""

    @classmethod
    def start(cls, min_rate: float, now: float) -> Flow:
        """One second of credit, from `now`."""
        return cls(min_rate, min_rate, now)

    def on_content(self, length: int) -> None:
        """Content arrived. No more than one second's worth is banked."""
        # What is banked is capped: a client that was fast for an hour must not hold the journal for
        # minutes.
        if self.credit < self.min_rate:
            self.credit = min(self.credit + length, self.min_rate)

    def on_held(self, now: float) -> None:
        """The time until `now` passed because of us, not of the client, and is not charged."""
        self.updated_at = now

    def underflows(self, now: float) -> bool:
        """Charge the time since the last call. Returns: whether the client is too slow."""
        self.credit -= (now - self.updated_at) * self.min_rate
        self.updated_at = now
        return self.min_rate > 0 and self.credit < 0


@final
class Stock:
    """Bytes that a broker holds for its appends.

    Counted are content in Python, and what gRPC has received of appends that wait for their turn.
    An append that has its turn is bounded by the limit of its stream: what it has received goes to
    disk at once.
    """

    # Below this, whatever comes is gathered (64 appends of 1 MiB are), so that many appends are
    # written together and a slow client delays no one. Above it, an append waits for its turn with
    # what it has.
    _FULL_BYTES = 80 << 20

    # Above this, all but small appends are refused. There is room for about fifty appends that wait
    # for their turn, each with a message of the usual 512 KiB and a window of 4 MiB.
    _OVERFULL_BYTES = 256 << 20

    def __init__(self) -> None:
        self.held_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether appends should receive no more than they have to."""
        return self.held_bytes >= self._FULL_BYTES

    @property
    def is_overfull(self) -> bool:
        """Whether there is not even room for what appends have to receive."""
        return self.held_bytes >= self._OVERFULL_BYTES


@final
class Judge:
    """Ends appends whose clients owe content for too long. One timer serves all of them.

    Args:
        min_rate: bytes per second that a client must sustain; 0: no minimum.
        clock: measures how long a client was waited for.
    """

    __slots__ = ("_due_at", "_is_set", "_waiting", "clock", "min_rate")

    def __init__(self, min_rate: float, clock: Clock) -> None:
        self.min_rate = min_rate
        self.clock = clock
        self._waiting: set[Body] = set()
        self._is_set = False
        self._due_at = 0.0

    def begin(self, body: Body) -> None:
        """From now on an append waits for the client of `body`."""
        self._waiting.add(body)
        if not self._is_set and self.min_rate > 0:
            self._set()

    def end(self, body: Body) -> None:
        """No append waits for the client of `body` any more."""
        self._waiting.discard(body)

    def _set(self) -> None:
        self._is_set = True
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + _TICK_S
        loop.call_at(self._due_at, self.look)

    def look(self) -> None:
        """Judge all clients that are waited for, and look again later while there are any."""
        self._is_set = False
        now = self.clock.monotonic()
        is_late = asyncio.get_running_loop().time() - self._due_at > _TIMER_LATE_S
        for body in tuple(self._waiting):
            body.judge(now, is_late=is_late)
        if self._waiting:
            self._set()


@final
class Body:
    """The content of an append, at the pace that its client and its journal owe each other.

    Whoever waits for content does so inside ``with body:``. The client is judged meanwhile, and
    leaving the statement raises RpcFailed if it was too slow.
    """

    __slots__ = (
        "_balance",
        "_content",
        "_flow",
        "_is_held",
        "_judge",
        "_released",
        "_stall",
        "delayed_chunks",
        "total_chunks",
    )

    def __init__(self, content: ContentSource, balance: RateBalance, judge: Judge) -> None:
        self._content = content
        self._balance = balance
        self._released = balance.released
        self._judge = judge
        rate = judge.min_rate
        self._flow = Flow(rate, rate * _GATHER_CREDIT_S, 0.0)
        self._stall = Interrupt()
        self._is_held = False
        self.total_chunks = 0
        self.delayed_chunks = 0

    def __enter__(self) -> None:
        """Begin to wait for the client: the time until now was ours."""
        self._stall.__enter__()
        self._flow.on_held(self._judge.clock.monotonic())
        self._judge.begin(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the wait. Raises: RpcFailed: the client was too slow."""
        self._judge.end(self)
        try:
            self._stall.__exit__(kind, error, trace)
        except Interrupted:
            raise RpcFailed(
                Code.UNKNOWN,
                "append stream: client stream didn't sustain the minimum append data rate",
            ) from None

    def judge(self, now: float, *, is_late: bool) -> None:
        """End the wait for a client that is too slow, unless we looked late or hold the client back."""
        if is_late or self._is_held:
            self._flow.on_held(now)
        elif self._flow.underflows(now):
            self._stall.fire()

    def stream(self) -> None:
        """From now on the client holds up others, or soon will, so it keeps one second of credit."""
        self._flow.credit = min(self._flow.credit, self._flow.min_rate)

    async def next(self) -> bytes | memoryview:
        """The next chunk; empty for the commit marker. Raises: RpcFailed: the stream ended or broke."""
        raw = await self._content.next()
        if raw is None:
            raise _ended()
        self.total_chunks += 1
        content = decode_append_content(raw)
        chunk: bytes | memoryview = content if content is not None else _decode_chunk(raw)
        if chunk:
            now = self._judge.clock.monotonic()
            self._flow.underflows(now)
            self._flow.on_content(len(chunk))
            if self._balance.rate > 0 and not self._released.is_set():
                delay_s = self._balance.take(len(chunk), now)
                if delay_s > 0:
                    await self._hold(delay_s)
        return chunk

    def take_all(self, bytes_max: int) -> list[bytes | memoryview] | None:
        """All chunks, without a wait, if the client has sent all and the journal takes them at any rate.

        Returns: None: that is not so, or they are more than `bytes_max`; then none was taken.
        Raises: RpcFailed: the stream ended without its commit marker, or continued after it.
        """
        # With a rate, each chunk is charged, and perhaps waited for.
        if self._balance.rate > 0:
            return None
        messages = self._content.take_all(bytes_max)
        if messages is None:
            return None
        chunks = whole_content(messages)
        self.total_chunks = len(messages)
        return chunks

    async def _hold(self, delay_s: float) -> None:
        """Wait until the journal's balance covers a chunk, or its assignments change."""
        self.delayed_chunks += 1
        self._is_held = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._released.wait()
        self._is_held = False
        self._flow.on_held(self._judge.clock.monotonic())

    async def expect_end(self) -> None:
        """Check that the client half-closes after its commit marker. Raises: RpcFailed: it does not."""
        if await self._content.next() is not None:
            raise _not_ended()


def _ended() -> RpcFailed:
    return RpcFailed(Code.UNKNOWN, "append stream: unexpected EOF")


def _not_ended() -> RpcFailed:
    return RpcFailed(Code.UNKNOWN, "append stream: expected EOF after empty Content chunk")


@final
class ContentQueue:
    """Chunks between the task that receives them and the appender; the client waits if there are many.

    Args:
        pending: the append, whose chunks are taken over. Once it has ended, no chunk moves any more.
        stock: counts what is held.
    """

    def __init__(self, pending: Pending, stock: Stock) -> None:
        self._chunks: deque[bytes | memoryview] = deque(pending.chunks)
        self._bytes = 0
        self._stock = stock
        # Until the append has its turn no task reads its stream, and the transport may receive a
        # whole window of it. We do not see those bytes, so the most that they can be is counted.
        self._count(READ_AHEAD_BYTES + sum(map(cost_of, pending.chunks)))
        pending.chunks = []
        self._is_taken = False  # no chunk is taken before its turn, and the transport fills up
        self._error: RpcFailed | None = None
        self._changed = asyncio.Event()
        self.reopen(pending)

    def reopen(self, pending: Pending) -> None:
        """Go on with another attempt, which begins with what was received and not taken."""
        self._pending = pending
        self._is_over = False
        assert isinstance(pending.done, asyncio.Future)
        pending.done.add_done_callback(self._end)
        if self._error is not None:
            pending.fail(self._error)

    def drop(self) -> None:
        """Forget what was not taken: neither more content nor another attempt follows."""
        self._is_over = True
        self._chunks.clear()
        self._count(-self._bytes)

    def _end(self, done: asyncio.Future[Outcome]) -> None:
        if done is self._pending.done:  # an earlier attempt's future must not end this one
            self._is_over = True
            self._changed.set()

    def fail(self, error: RpcFailed) -> None:
        """The client's stream broke, so the append ends."""
        self._error = error
        self._pending.fail(error)

    async def room(self) -> None:
        """Wait until another chunk may be received: first for the append's turn, then for the disk."""
        while self._bytes >= _STREAM_BYTES_MAX:
            await self._change()

    def put(self, chunk: bytes | memoryview) -> None:
        """Hand over a chunk."""
        self._chunks.append(chunk)
        self._count(cost_of(chunk))
        self._changed.set()

    async def next(self) -> bytes | memoryview:
        """The next chunk. Raises: RpcFailed: the append is over."""
        if not self._is_taken and not self._is_over:
            self._is_taken = True
            self._count(-READ_AHEAD_BYTES)
            self._changed.set()
        while not self._chunks and not self._is_over:
            await self._change()
        if self._is_over:
            raise self._error or RpcFailed(Code.CANCELLED, "append stream: the client has gone")
        self._changed.set()
        chunk = self._chunks.popleft()
        self._count(-cost_of(chunk))
        return chunk

    def _count(self, length: int) -> None:
        self._bytes += length
        self._stock.held_bytes += length

    async def _change(self) -> None:
        # The two sides never clear it under each other: one waits for room only while the queue is
        # full, the other for chunks only while it is empty.
        self._changed.clear()
        await self._changed.wait()


@final
class Replay(ContentSource):
    """The content of an append that turns out to belong to another broker, as messages to forward."""

    def __init__(self, pending: Pending) -> None:
        self._gathered = iter(pending.chunks)
        self._stream = pending.stream
        self._is_over = False

    @override
    async def next(self) -> bytes | None:
        """The next message; None at the end. Raises: RpcFailed: the client's stream broke."""
        if self._is_over:
            return None
        chunk = next(self._gathered, b"")
        if not chunk and self._stream is not None:
            chunk = await self._stream.next()
        if chunk:
            return encode_append_content(chunk)
        self._is_over = True
        return COMMIT_MARKER


async def pump(body: Body, stream: ContentQueue) -> None:
    """Move the rest of the content to the appender, which takes it once the append has its turn."""
    try:
        while True:
            # Outside `with body`: while the disk or a replica holds the client back, the time is
            # not the client's.
            await stream.room()
            with body:
                chunk = await body.next()
                if not chunk:
                    await body.expect_end()
            stream.put(chunk)
            if not chunk:
                return
    except RpcFailed as err:
        stream.fail(err)
    except Exception as err:
        stream.fail(RpcFailed(Code.INTERNAL, f"append stream: {type(err).__name__}: {err}"))
        raise  # to the owner of the task, as a fault of ours


def whole_content(messages: Sequence[bytes]) -> list[bytes | memoryview]:
    """Return the chunks of an append, of all messages that follow its first.

    Raises: RpcFailed: they end without the commit marker, or continue after it.
    """
    chunks: list[bytes | memoryview] = []
    for number, raw in enumerate(messages, start=1):
        content = decode_append_content(raw)
        chunk = content if content is not None else memoryview(_decode_chunk(raw))
        if not chunk:
            if number < len(messages):
                raise _not_ended()
            return chunks
        chunks.append(chunk)
    raise _ended()


def cost_of(chunk: bytes | memoryview) -> int:
    """Bytes of memory that a chunk takes."""
    return len(chunk) + _CHUNK_COST_BYTES


def _decode_chunk(raw: bytes) -> bytes:
    """Decode a chunk that is not plain content: it is invalid, or oddly encoded."""
    try:
        message = pb.AppendRequest.FromString(raw)
        validate_append_chunk(message)
    except (DecodeError, ValidationError) as err:
        raise RpcFailed(Code.UNKNOWN, f"append stream: {err}") from err
    return message.content
