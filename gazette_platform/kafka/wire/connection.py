"""A connection of a client: its requests are received where they belong, handled in their order, and answered in it.

Kafka promises that the calls of a connection take effect in their order, and are answered in it. What comes is cut into requests
at once, and one task handles them. A handler may leave the slow half of a call for later, as produce does while it waits for
brokers; the next call begins meanwhile. An answer is written as soon as it is its turn, by whatever made it ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

from typing_extensions import override

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.wire import (
    API_VERSIONS,
    DECIDED,
    FETCH,
    LOGIN,
    PRODUCE,
    SASL_AUTHENTICATE,
    Call,
    Later,
    Malformed,
    Peer,
    encoded,
    read_call,
    read_head,
    unsupported_answer,
)
from gazette_platform.kafka.wire.receiving import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.wire import Api
    from gazette_platform.kafka.wire.receiving import Shared

_log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")
# Calls whose answers wait for others.
_PENDING_MAX: Final = 64
_CALLER_CHARS: Final = 200
_LAST_S: Final = 5.0
"""How long the last calls of a client that has closed may take, and the client to take its last answers."""
# Only batches of records are large. What else is read makes objects that are many times its size.
_DIRECTIONS: Final = {PRODUCE: "in", FETCH: "out"}
_OTHERS_BYTES_MAX: Final = 2 << 20
# Larger pieces of answers are written as they are.
_WHOLE_BYTES: Final = 32 << 10


class _Turn(NamedTuple):
    """An answer whose turn comes."""

    call: Call | None
    """None: the answer is bytes already."""
    answer: Any
    size: int
    """Of the request."""
    wait_s: float


@final
class Connection(Receiver):
    """Serves one client.

    Attributes:
        task: handles its calls.
    """

    task: asyncio.Task[None]
    _peer: Peer

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._is_open = self._is_paused = self._is_flushing = self._is_lost = False
        self._error: Exception | None = None
        self._turns: deque[_Turn] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._left = asyncio.Event()
        self._last_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._paused_at = 0.0
        self._expiry: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ begin and end

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared = self.shared
        self.transport = cast("asyncio.Transport", transport)
        if len(shared.open) >= shared.most:
            shared.complaints.add("", f"{shared.most} connections are open")
        if shared.tasks.is_closed or len(shared.open) >= shared.most:
            self.is_ended = True
            transport.close()
            return
        address = transport.get_extra_info("peername")
        self._peer = Peer(str(address[0]) if address else "", self.access)
        self._is_open = True
        shared.open.add(self)
        self.task = shared.tasks.spawn(self._run(), name="connection")
        self.task.add_done_callback(self._over)
        self.watch()

    async def _run(self) -> None:
        """Serve until the client leaves, or breaks the protocol. Cancellation: closes the connection."""
        try:
            await self._handle()
        except (ConnectionError, TimeoutError, Malformed) as err:
            self._error = self._error or err

    def _over(self, _task: object) -> None:
        shared, error = self.shared, self._error
        self._is_open = False
        shared.open.discard(self)
        for each in (self._expiry, self._timer):
            if each is not None:
                each.cancel()
        self._peer.close()
        self.transport.close()
        if not self._is_lost:
            self._timer = self.loop.call_later(_LAST_S, self.transport.abort)
        self.drop()
        self._turns.clear()
        if isinstance(error, Malformed):
            shared.complaints.add(self._peer.host, error)
        elif isinstance(error, ConnectionError | TimeoutError):
            _log.debug("Kafka client %s: %s", self._peer.host, error)
        elif error is not None:
            shared.faults.report("kafka", f"connection of {self._peer.host}", error)

    @override
    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.is_ended = True
        if self._is_open:
            self.task.cancel()

    def leave(self) -> asyncio.Task[None]:
        """Take no more requests. Returns: the task that ends when what was taken is answered."""
        self._end()
        self._left.set()
        if not self.transport.is_closing():  # uvloop refuses to pause then
            self.transport.pause_reading()
        return self.task

    def _end(self) -> None:
        """No request comes any more."""
        self.is_ended = True
        self.wake()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._is_paused, self._is_lost = False, True
        if not self._is_open and self._timer is not None:
            self._timer.cancel()
        if exc is not None:
            self.fail(exc)
        else:
            self.end_soon()

    @override
    def end_soon(self) -> None:
        if self._last_at is None:
            self._last_at = self.loop.time() + _LAST_S
        self._end()
        self.watch()

    # ------------------------------------------------------------ time

    @override
    def watch(self) -> None:
        due = self._due()
        if self._is_open and due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self.loop.call_at(due, self._look), due

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        self._flush()
        due = self._due(is_late=False)
        if due is not None and now >= due:
            self.fail(TimeoutError("it takes too long"))
        else:
            self.watch()

    def _due(self, *, is_late: bool = True) -> float | None:
        """When something comes to its time.

        Args:
            is_late: look at answers, too, that are made without all that they wait for then.
        """
        dues = [each for each in (self.due, self._last_at) if each is not None]
        if self._is_paused:
            dues.append(self._paused_at + self.shared.config.idle_s)
        elif is_late and self._turns:
            answer = self._turns[0].answer
            if isinstance(answer, Later) and answer.due is not None:
                dues.append(answer.due)
        return min(dues, default=None)

    # ------------------------------------------------------------ what is handled

    async def _handle(self) -> None:
        while True:
            if not self.frames:
                if self.is_ended:
                    break
                await self._wait()
                continue
            frame = self.frames.popleft()
            self.go_on()
            size = len(frame)
            call, answer = await self._answer(frame)
            del frame
            wait_s = 0.0 if call is None else self._throttle(call, size, answer)
            is_later = answer is None or isinstance(answer, Later)
            if isinstance(answer, Later):
                answer.listen(self._flush)
            self._turns.append(_Turn(call, answer, size, wait_s))
            del answer
            self._flush()
            self.watch()
            if self._error is not None:
                return
            # A client that takes no answers has one made that may be large, and no more.
            while len(self._turns) >= _PENDING_MAX or (not is_later and self._is_behind):
                await self._wait()
            if wait_s:
                # What comes meanwhile waits: not all clients heed the time that they are given.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._left.wait()
        while self._is_behind:
            await self._wait()

    @property
    def _is_behind(self) -> bool:
        """Whether answers wait for their turn, or for the client."""
        return bool(self._turns) or self._is_paused

    async def _wait(self) -> None:
        """Wait until something has changed."""
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    @override
    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _throttle(self, call: Call, size: int, answer: Any) -> float:
        """Count what a caller takes: the subject of the token, or the client id if the token has none.

        Args:
            size: of the request.

        Returns: how long the client has to wait before its next call, in seconds.
        """
        quota = self.shared.quotas.get(call.api.key)
        if quota is None or not quota.limit:
            return 0.0
        if call.api.key == FETCH:
            size = answer.size
        subject = self.access.subject
        caller = f"subject {subject}" if subject else f"client {call.client_id[:_CALLER_CHARS]}"
        wait_s = quota.take(caller, size, self.loop.time())
        # Answers have whole milliseconds.
        wait_s = int(wait_s * 1000) / 1000
        self.shared.metrics.throttled_s[_DIRECTIONS[call.api.key]] += wait_s
        return wait_s

    async def _answer(self, frame: bytes | bytearray) -> tuple[Call | None, Any]:
        if self.access.is_raw:
            return None, self._raw_login(bytes(frame))
        metrics, apis = self.shared.metrics, self.shared.apis
        head = read_head(frame)
        api = apis.get(head.key)
        if head.key == API_VERSIONS and (api is None or not api.least <= head.version <= api.most):
            metrics.requests["api_versions", "error"] += 1
            return None, unsupported_answer(apis, frame)
        if api is None or not api.least <= head.version <= api.most:
            metrics.closed("unsupported" if api is None else api.name)
            raise Malformed(f"request {head.key} of version {head.version} is not supported")
        try:
            self._admit(api, len(frame))
            call = read_call(api, frame, self._peer)
        except Malformed:
            metrics.closed(api.name)
            raise
        try:
            answer = await api.handle(call)
        except GazetteError as err:
            metrics.closed(api.name)
            raise Malformed(f"{api.name}: {err}") from err
        except Exception as err:
            raise self._unforeseen(api.name, err) from err
        if head.key == SASL_AUTHENTICATE:
            self._logged_in()
        return call, answer

    def _unforeseen(self, what: str, err: BaseException) -> Malformed:
        """Report what no handler may raise."""
        self.shared.metrics.closed(what)
        self.shared.faults.report("kafka", f"{what} of {self._peer.host}", err)
        return Malformed(f"{what}: {type(err).__name__}")

    def _admit(self, api: Api, size: int) -> None:
        """Raises: Malformed: the client may not send this now."""
        if self.access.is_closed and api.key not in LOGIN:
            raise Malformed(f"{api.name}: {self.access.why}")
        if self.shared.auth.everyone is None and api.key not in DECIDED:
            raise Malformed(f"{api.name} is not served while there are keys")
        if size > _OTHERS_BYTES_MAX and api.key != PRODUCE:
            raise Malformed(f"{api.name}: a request of {size} bytes")

    def _raw_login(self, content: bytes) -> bytes:
        """A login without a request around it, as it follows a SaslHandshake of version 0."""
        try:
            self._peer.principal = self.access.log_in(content)
        except GazetteError as err:
            raise Malformed(f"may not log in: {err}") from err
        self._logged_in()
        return _SIZE.pack(0)

    def _logged_in(self) -> None:
        """End when the token does, unless the client logs in again before; or now, if it was refused."""
        if self.access.is_closed:
            self.shared.complaints.add(self._peer.host, self.access.why)
            _ = self.leave()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        seconds = self.access.remaining_s
        if seconds is not None:
            self._expiry = self.loop.call_later(max(0.0, seconds), self._expire)

    def _expire(self) -> None:
        self.access.close("the token has expired, and the client has not logged in with a new one")
        self.shared.complaints.add(self._peer.host, f"is left: {self.access.why}")
        _ = self.leave()

    # ------------------------------------------------------------ what is answered

    def _flush(self, _done: object = None) -> None:
        """Send the answers that are ready, in their order."""
        if self._is_flushing:  # a transport may have room again while it is written to
            return
        self._is_flushing = True
        try:
            while self._turns and not self._is_paused and self._is_open:
                turn = self._turns[0]
                answer = turn.answer
                if isinstance(answer, Later):
                    if not answer.is_ready(self.loop.time()):
                        break
                    answer = self._made(turn, answer)
                self._turns.popleft()
                self._send(turn, answer)
        except Exception as err:  # noqa: BLE001  it ends this connection, and no others
            self.fail(err)
        finally:
            self._is_flushing = False
        self.wake()

    def _made(self, turn: _Turn, later: Later) -> Any:
        try:
            return later.make()
        except (Exception, asyncio.CancelledError) as err:
            raise self._unforeseen(turn.call.api.name if turn.call else "a call", err) from err

    def _send(self, turn: _Turn, answer: Any) -> None:
        call = turn.call
        if call is not None:
            self.shared.metrics.answered(call.api.name, answer)
        if answer is not None:
            if self.transport.is_closing():  # uvloop refuses to write then
                raise ConnectionResetError("the client has left")
            self._write([answer] if call is None else encoded(call, answer, turn.wait_s))
        self.held -= turn.size
        self.shared.budget.give(turn.size)

    def _write(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        small: list[bytes | bytearray | memoryview] = []
        for piece in pieces:
            if len(piece) < _WHOLE_BYTES:
                small.append(piece)
                continue
            if small:
                self.transport.write(b"".join(small))
                small = []
            self.transport.write(piece)
        if small:
            self.transport.write(b"".join(small))

    @override
    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._is_paused, self._paused_at = True, self.loop.time()
        self.watch()

    @override
    def resume_writing(self) -> None:
        """The client has taken what it was sent."""
        self._is_paused = False
        self._flush()
