"""One connection of a client: a task reads requests, one handles them in order, and one sends the answers in order.

Kafka promises that the calls of a connection take effect in their order, and are answered in it. A handler may leave the
slow half of a call for later, as produce does while it waits for brokers; the next call begins meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast, final

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.access import Access
from gazette_platform.kafka.login import DECIDED, LOGIN, SASL_AUTHENTICATE
from gazette_platform.kafka.quotas import Quota
from gazette_platform.kafka.wire import (
    API_VERSIONS,
    SIZE_BYTES,
    Malformed,
    Peer,
    answer_bytes,
    read_call,
    read_head,
    unsupported_answer,
)

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Coroutine, Mapping

    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.metrics import KafkaMetrics
    from gazette_platform.kafka.wire import Api, Call
    from gazette_platform.ops.faults import Faults
    from gazette_platform.serving.auth import Authenticator

_log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">i")

# Requests that are read and not handled yet, and calls whose answers are awaited.
_READ_AHEAD_MAX: Final = 4
_PENDING_MAX: Final = 64
_LAST_S: Final = 5.0
"""How long the last calls of a client that has closed may take."""
# Only batches of records are large. What else is read makes objects that are many times its size.
_PRODUCE: Final = 0
_FETCH: Final = 1
_OTHERS_BYTES_MAX: Final = 8 << 20
# Of clients that have not logged in.
_LOGIN_BYTES_MAX: Final = 1 << 16
_LOGIN_S: Final = 30.0


@final
class Budget:
    """Bytes that all connections may hold; a request waits until there is room for it."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Wait for room. Cancellation: safe."""
        if size <= self._free:
            self._free -= size
            return
        async with self._changed:
            await self._changed.wait_for(lambda: size <= self._free)
            self._free -= size

    async def give(self, size: int) -> None:
        """Give room back."""
        self._free += size
        if self._changed.locked() or size:
            async with self._changed:
                self._changed.notify_all()


@final
class Quotas:
    """What callers may produce and fetch, of all connections.

    A caller is the subject of the token, or the client id if the token has none.
    """

    def __init__(self, produce: int, fetch: int) -> None:
        self._of = {_PRODUCE: ("in", Quota(produce)), _FETCH: ("out", Quota(fetch))}

    def take(self, call: Call, size: int, answer: Any, metrics: KafkaMetrics) -> float:
        """Count a call. Returns: how long the client has to wait before its next one, in seconds.

        Args:
            size: of the request.
        """
        direction, quota = self._of.get(call.api.key, ("", None))
        if quota is None or not quota.limit:
            return 0.0
        if call.api.key == _FETCH:
            size = sum(
                len(part.records or b"") for topic in answer.responses for part in topic.partitions
            )
        subject = call.peer.access.subject
        caller = f"subject {subject}" if subject else f"client {call.client_id}"
        wait_s = quota.take(caller, size, asyncio.get_running_loop().time())
        # Answers have whole milliseconds.
        wait_s = int(wait_s * 1000) / 1000
        metrics.throttled_s[direction] += wait_s
        return wait_s


@final
class Connection:
    """Serves one client.

    Args:
        apis: by key.
        budget: of bytes of requests, of all connections.
        quotas: of all connections.
        auth: verifies tokens.
    """

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        *,
        apis: Mapping[int, Api],
        config: KafkaConfig,
        budget: Budget,
        quotas: Quotas,
        faults: Faults,
        metrics: KafkaMetrics,
        auth: Authenticator,
    ) -> None:
        self._metrics = metrics
        self._reader = reader
        self._writer = writer
        self._apis = apis
        self._config = config
        self._budget = budget
        self._quotas = quotas
        self._faults = faults
        address = writer.get_extra_info("peername")
        self._access = Access(auth)
        self._has_keys = auth.everyone is None
        self._expiry: asyncio.TimerHandle | None = None
        self.peer = Peer(str(address[0]) if address else "", self._access)
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD_MAX)
        self._answers: asyncio.Queue[tuple[Call | None, Any, int, float]] = asyncio.Queue(
            _PENDING_MAX
        )
        self._left = asyncio.Event()
        self._held = 0
        self._is_leaving = False

    def leave(self) -> None:
        """Take no more requests; `run` ends when what was taken is answered."""
        self._is_leaving = True
        self._left.set()
        # Nothing may come after an end.
        cast("asyncio.Transport", self._writer.transport).pause_reading()
        self._reader.feed_eof()

    async def run(self) -> None:
        """Serve until the client leaves, or breaks the protocol. Cancellation: closes the connection."""
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read())
                handling = group.create_task(self._handle())
                writing = group.create_task(self._write())
                await reading
                # A producer that waits for no answers sends, and closes.
                limit_s = None if self._is_leaving else _LAST_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        await self._frames.join()
                        await self._answers.join()
                handling.cancel()
                writing.cancel()
        except* (ConnectionError, TimeoutError, Malformed) as group_error:
            for error in group_error.exceptions:
                level = logging.WARNING if isinstance(error, Malformed) else logging.DEBUG
                _log.log(level, "Kafka client %s: %s", self.peer.host, error)
        finally:
            self._expire_after(None)
            self.peer.close()
            self._writer.close()
            await self._budget.give(self._held)

    async def _read(self) -> None:
        while True:
            is_closed = self._access.is_closed
            idle_s = min(self._config.idle_s, _LOGIN_S) if is_closed else self._config.idle_s
            async with asyncio.timeout(idle_s):
                try:
                    head = await self._reader.readexactly(SIZE_BYTES)
                except asyncio.IncompleteReadError:
                    return
            (size,) = _SIZE.unpack(head)
            if not 0 < size <= self._config.request_bytes_max:
                raise Malformed(
                    f"a request of {size} bytes (--kafka.request-bytes-max is {self._config.request_bytes_max})"
                )
            if size > _LOGIN_BYTES_MAX and self._access.is_closed:
                raise Malformed(f"a request of {size} bytes: {self._access.why}")
            await self._budget.take(size)
            self._held += size
            async with asyncio.timeout(idle_s):
                try:
                    frame = await self._reader.readexactly(size)
                except asyncio.IncompleteReadError:
                    return
            await self._frames.put(frame)

    async def _handle(self) -> None:
        while True:
            frame = await self._frames.get()
            call, answer = await self._answer(frame)
            wait_s = 0.0
            if call is not None:
                wait_s = self._quotas.take(call, len(frame), answer, self._metrics)
            await self._answers.put((call, answer, len(frame), wait_s))
            del frame, answer
            self._frames.task_done()
            if wait_s:
                # What comes meanwhile waits: not all clients heed the time that they are given.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._left.wait()

    async def _answer(self, frame: bytes) -> tuple[Call | None, Any]:
        if self._access.is_raw:
            return None, self._raw_login(frame)
        head = read_head(frame)
        api = self._apis.get(head.key)
        if head.key == API_VERSIONS and (api is None or not api.least <= head.version <= api.most):
            self._metrics.requests["api_versions", "error"] += 1
            return None, unsupported_answer(self._apis, frame)
        if api is None or not api.least <= head.version <= api.most:
            self._metrics.closed("unsupported" if api is None else api.name)
            raise Malformed(f"request {head.key} of version {head.version} is not supported")
        try:
            self._admit(api, frame)
            call = read_call(api, frame, self.peer)
        except Malformed:
            self._metrics.closed(api.name)
            raise
        try:
            answer = await api.handle(call)
        except GazetteError as err:
            self._metrics.closed(api.name)
            raise Malformed(f"{api.name}: {err}") from err
        except Exception as err:
            self._metrics.closed(api.name)
            self._faults.report("kafka", f"{api.name} of {self.peer.host}", err)
            raise Malformed(f"{api.name}: {type(err).__name__}") from err
        if head.key == SASL_AUTHENTICATE:
            self._logged_in()
        return call, answer

    def _admit(self, api: Api, frame: bytes) -> None:
        """Raises: Malformed: the client may not send this now."""
        if self._access.is_closed and api.key not in LOGIN:
            raise Malformed(f"{api.name}: {self._access.why}")
        if self._has_keys and api.key not in DECIDED:
            raise Malformed(f"{api.name} is not served while there are keys")
        if len(frame) > _OTHERS_BYTES_MAX and api.key != _PRODUCE:
            raise Malformed(f"{api.name}: a request of {len(frame)} bytes")

    def _raw_login(self, content: bytes) -> bytes:
        """A login without a request around it, as it follows a SaslHandshake of version 0."""
        try:
            self.peer.principal = self._access.log_in(content)
        except GazetteError as err:
            raise Malformed(f"may not log in: {err}") from err
        self._logged_in()
        return _SIZE.pack(0)

    def _logged_in(self) -> None:
        """End when the token does, unless the client logs in again before; or now, if it was refused."""
        if self._access.is_closed:
            self.leave()
        self._expire_after(self._access.remaining_s)

    def _expire_after(self, seconds: float | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(max(0.0, seconds), self._expire)

    def _expire(self) -> None:
        self._access.close("the token has expired, and the client has not logged in with a new one")
        _log.warning("Kafka client %s is left: %s", self.peer.host, self._access.why)
        self.leave()

    async def _write(self) -> None:
        while True:
            call, answer, size, wait_s = await self._answers.get()
            if hasattr(answer, "__await__"):
                answer = await self._later(call, answer)
            if call is not None:
                self._metrics.answered(call.api.name, answer)
            if answer is not None:
                if wait_s:
                    answer = dataclasses.replace(answer, throttle_time=timedelta(seconds=wait_s))
                encoded = answer if call is None else answer_bytes(call.correlation_id, answer)
                self._writer.write(encoded)
                await self._writer.drain()
            self._held -= size
            await self._budget.give(size)
            self._answers.task_done()

    async def _later(self, call: Call | None, answer: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await answer
        except Exception as err:
            name = "a call" if call is None else call.api.name
            self._metrics.closed(name)
            self._faults.report("kafka", f"{name} of {self.peer.host}", err)
            raise Malformed(f"{name}: {type(err).__name__}") from err


def close_quietly(writer: StreamWriter) -> None:
    """Close a connection that is not served."""
    with contextlib.suppress(Exception):
        writer.close()
