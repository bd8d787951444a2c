"""Kafka's requests and answers on a connection: framing, the tables of calls and versions, their schemas, and their order.

`kio` has a class for each version of each message, generated from Kafka's own schemas. Handlers work with any version: they
read fields of the request that the least version has, or ask with `Call.get`, and build answers with `Call.new`, which leaves
out the fields that the version does not have.

Kafka promises that the calls of a connection take effect in their order, and are answered in it. A task reads requests, one
handles them in order, and one sends the answers in order. A handler may leave the slow half of a call for later, as produce does
while it waits for brokers; the next call begins meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import logging
import struct
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast, final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from gazette_platform.errors import DataError, GazetteError
from gazette_platform.kafka.access import Access
from gazette_platform.kafka.bounds import parts_of
from gazette_platform.kafka.produce_wire import PARTS_MAX, Appended

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
    from types import ModuleType

    from gazette_platform.kafka.access import Quota
    from gazette_platform.kafka.bounds import Budget, Complaints
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.gateway import KafkaMetrics
    from gazette_platform.ops.faults import Faults
    from gazette_platform.serving.auth import Authenticator

_log = logging.getLogger(__name__)

API_VERSIONS: Final = 18
SIZE_BYTES: Final = 4

_HEAD: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")
_NO_TIME: Final = timedelta()


class Malformed(DataError):
    """A request that is none: the connection is closed, as Kafka does."""


class Handler(Protocol):
    """Answers a call.

    Calls of a connection are handled one after the other. A handler that returns an awaitable has done what the order matters
    for; its answer is awaited while later calls are handled, and sent in turn. None: no answer is sent.
    """

    async def __call__(self, call: Call) -> Any:
        """The answer: an entity made by `Call.new`, an awaitable of one, or None. Raises: what `failures` knows."""
        ...


class Api(NamedTuple):
    """One kind of request, and who answers it."""

    key: int
    name: str
    """Of the package of its schemas, such as ``list_offsets``."""
    least: int
    most: int
    handle: Handler
    said_least: int | None = None
    """The least version that ApiVersions lists, if it is lower than what works."""
    read: Callable[[bytes, int], Any] | None = None
    """Reads frames of a version in place of `kio`; what it gives has the client id, too."""


class Part(Protocol):
    """Some calls, and what they share."""

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        ...

    async def start(self) -> None:
        """Begin: all parts exist, and the node is registered."""
        ...

    async def stop(self) -> None:
        """End: no call comes any more."""
        ...


@final
class Later:
    """An answer that is begun when it is awaited; nothing is left over if its connection is gone before."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, Any]:
        """The answer."""
        return self._begin().__await__()


@final
class Peer:
    """The other end of a connection, for handlers.

    Attributes:
        host: its address.
        kept: what parts keep for the connection, by part.
        principal: the name that it gave as its own.
        access: what it may do.
    """

    def __init__(self, host: str, access: Access) -> None:
        self.host = host
        self.access = access
        self.kept: dict[str, Any] = {}
        self.principal = ""
        self._closing: list[Callable[[], None]] = []

    def on_close(self, call: Callable[[], None]) -> None:
        """Have `call` run once the connection is closed."""
        self._closing.append(call)

    def close(self) -> None:
        """Run what was given to `on_close`."""
        closing, self._closing = self._closing, []
        for call in closing:
            call()


@final
class Call:
    """One request of a client.

    Attributes:
        request: as `kio` decodes it.
        peer: the connection it came by.
    """

    def __init__(self, api: Api, head: Head, client_id: str, request: Any, peer: Peer) -> None:
        self.api = api
        self.version = head.version
        self.correlation_id = head.correlation_id
        self.client_id = client_id
        self.request = request
        self.peer = peer

    def get(self, name: str, default: Any = None) -> Any:
        """A field of the request, or `default` if this version has none."""
        return getattr(self.request, name, default)

    def new(self, kind: str, /, **fields: Any) -> Any:
        """An entity of the answer. Fields that this version does not have are left out.

        Args:
            kind: its class, such as ``MetadataResponseTopic``.
            fields: their values; ``throttle_time`` need not be given.
        """
        return maker(self.api.name, self.version, kind)(fields)


@cache
def _module(name: str, version: int, kind: str) -> ModuleType:
    return importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")


@cache
def maker(
    api: str, version: int, name: str, kind: str = "response"
) -> Callable[[dict[str, Any]], Any]:
    """Makes entities of fields, and leaves out those that the version does not have."""
    entity = getattr(_module(api, version, kind), name)
    known = frozenset(field.name for field in dataclasses.fields(entity))
    throttled = "throttle_time" in known

    def make(fields: dict[str, Any]) -> Any:
        if throttled:
            fields.setdefault("throttle_time", _NO_TIME)
        if not fields.keys() <= known:
            fields = {key: value for key, value in fields.items() if key in known}
        return entity(**fields)

    return make


def message_class(name: str, version: int, kind: str) -> Any:
    """The class of a message; `kind` is ``request`` or ``response``."""
    words = name.title().replace("_", "")
    return getattr(_module(name, version, kind), f"{words}{kind.title()}")


class Head(NamedTuple):
    """What every request begins with."""

    key: int
    version: int
    correlation_id: int


def read_head(frame: bytes) -> Head:
    """Raises: Malformed: the frame is too short."""
    if len(frame) < _HEAD.size:
        raise Malformed(f"a request of {len(frame)} bytes has no header")
    return Head(*_HEAD.unpack_from(frame))


def read_call(api: Api, frame: bytes, peer: Peer) -> Call:
    """The call of a frame, whose version the API has. Raises: Malformed."""
    head = read_head(frame)
    try:
        if api.read is not None:
            request = api.read(frame, head.version)
            return Call(api, head, request.client_id, request, peer)
        kind = message_class(api.name, head.version, "request")
        header, size = entity_reader(kind.__header_schema__)(frame, 0)
        request, _ = entity_reader(kind)(
            frame, size
        )  # librdkafka adds bytes, and Kafka passes over them
    except Exception as err:
        raise Malformed(f"{api.name} v{head.version}: {type(err).__name__}: {err}") from err
    if len(frame) > _SMALL_BYTES and parts_of(request) > PARTS_MAX:
        raise Malformed(f"{api.name}: a request has more than {PARTS_MAX} parts")
    return Call(api, head, header.client_id or "", request, peer)


def answer_bytes(correlation_id: int, answer: Any) -> bytes:
    """The frame of an answer, with its size."""
    header = answer.__header_schema__
    buffer: Any = _Pieces()
    entity_writer(header)(buffer, header(correlation_id=correlation_id))
    entity_writer(type(answer))(buffer, answer)
    size = _SIZE.pack(sum(map(len, buffer.pieces)))
    return b"".join((size, *buffer.pieces))


def _encoded(call: Call, answer: Any, wait_s: float) -> bytes:
    """The frame of an answer, with the time that the client has to wait."""
    if isinstance(answer, Appended):
        return answer.frame(call.correlation_id, wait_s)
    if wait_s:
        answer = dataclasses.replace(answer, throttle_time=timedelta(seconds=wait_s))
    return answer_bytes(call.correlation_id, answer)


@final
class _Pieces:
    """A file that keeps what is written as it is: records are copied once, into the frame."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.write = self.pieces.append


def versions_answer(
    apis: Mapping[int, Api], version: int, *, error: ErrorCode = ErrorCode.none
) -> Any:
    """The answer to ApiVersions."""
    entries = tuple(
        maker("api_versions", version, "ApiVersion")(
            {
                "api_key": api.key,
                "min_version": api.least if api.said_least is None else api.said_least,
                "max_version": api.most,
            }
        )
        for api in sorted(apis.values())
    )
    fields = {"error_code": error, "api_keys": entries}
    return maker("api_versions", version, "ApiVersionsResponse")(fields)


def unsupported_answer(apis: Mapping[int, Api], frame: bytes) -> bytes:
    """The answer to ApiVersions of an unknown version: version 0, so that the client asks again."""
    answer = versions_answer(apis, 0, error=ErrorCode.unsupported_version)
    return answer_bytes(read_head(frame).correlation_id, answer)


SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
LOGIN: Final = frozenset((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE))
"""Requests that are served before a client has logged in."""

DECIDED: Final = LOGIN | frozenset(
    (*range(4), *range(8, 17), 19, 20, *range(22, 27), 28, 32, 33, 37, 42, 44, 47, 60, 65, 66)
)
"""Requests whose handlers ask `Access` what the client may do. No other is served while there are keys."""

# Requests that are read and not handled yet, and calls whose answers are awaited.
_READ_AHEAD_MAX: Final = 4
_PENDING_MAX: Final = 64
_CALLER_CHARS: Final = 200
_LAST_S: Final = 5.0
"""How long the last calls of a client that has closed may take."""
# Only batches of records are large. What else is read makes objects that are many times its size.
PRODUCE: Final = 0
FETCH: Final = 1
_DIRECTIONS: Final = {PRODUCE: "in", FETCH: "out"}
_OTHERS_BYTES_MAX: Final = 2 << 20
# Of requests that have few parts: these are not counted.
_SMALL_BYTES: Final = 64 << 10
# Of clients that have not logged in.
_LOGIN_BYTES_MAX: Final = 1 << 16
_LOGIN_S: Final = 30.0
# A request has room once as much of it has come; then each further piece of this size must come within this time.
_PIECE_BYTES: Final = 256 << 10
_PIECE_S: Final = 30.0


@final
class Connection:
    """Serves one client.

    Args:
        apis: by key.
        budget: of bytes of requests, of all connections.
        quotas: what callers may produce and fetch, of all connections, by the key of the call.
        auth: verifies tokens.
        complaints: about clients.
    """

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        *,
        apis: Mapping[int, Api],
        config: KafkaConfig,
        budget: Budget,
        quotas: Mapping[int, Quota],
        faults: Faults,
        metrics: KafkaMetrics,
        auth: Authenticator,
        complaints: Complaints,
    ) -> None:
        self._metrics = metrics
        self._complaints = complaints
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
        self._unsent = 0  # answers that are ready
        self._sent = asyncio.Event()
        self._held = 0
        self._is_leaving = False

    def leave(self) -> None:
        """Take no more requests; `run` ends when what was taken is answered."""
        self._is_leaving = True
        self._left.set()
        if not self._writer.is_closing():  # uvloop refuses to pause then
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
                if isinstance(error, Malformed):
                    self._complaints.add(self.peer.host, error)
                else:
                    _log.debug("Kafka client %s: %s", self.peer.host, error)
        finally:
            self._expire_after(None)
            self.peer.close()
            self._writer.close()
            self._budget.give(self._held)

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
            try:
                frame = await self._rest(size, min(idle_s, _PIECE_S))
            except asyncio.IncompleteReadError:
                return
            await self._frames.put(frame)

    async def _rest(self, size: int, limit_s: float) -> bytes:
        """The content of a request. Half a request holds its room no longer than it keeps coming."""
        async with asyncio.timeout(limit_s):
            first = await self._reader.readexactly(min(size, _PIECE_BYTES))
        room = await self._budget.take(size)
        self._held += room
        if len(first) == size:
            return first
        pieces, left = [first], size - len(first)
        while left:
            async with asyncio.timeout(limit_s):
                pieces.append(await self._reader.readexactly(min(left, _PIECE_BYTES)))
            left -= len(pieces[-1])
        return b"".join(pieces)

    async def _handle(self) -> None:
        while True:
            frame = await self._frames.get()
            call, answer = await self._answer(frame)
            wait_s = 0.0
            if call is not None:
                wait_s = self._throttle(call, len(frame), answer)
            is_ready = answer is not None and not hasattr(answer, "__await__")
            if is_ready:
                self._unsent += 1
            await self._answers.put((call, answer, len(frame), wait_s))
            del frame, answer
            self._frames.task_done()
            # A client that takes no answers has one made that may be large, and no more.
            while is_ready and self._unsent:
                self._sent.clear()
                await self._sent.wait()
            if wait_s:
                # What comes meanwhile waits: not all clients heed the time that they are given.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._left.wait()

    def _throttle(self, call: Call, size: int, answer: Any) -> float:
        """Count what a caller takes: the subject of the token, or the client id if the token has none.

        Args:
            size: of the request.

        Returns: how long the client has to wait before its next call, in seconds.
        """
        quota = self._quotas.get(call.api.key)
        if quota is None or not quota.limit:
            return 0.0
        if call.api.key == FETCH:
            size = sum(
                len(part.records or b"") for topic in answer.responses for part in topic.partitions
            )
        subject = self._access.subject
        caller = f"subject {subject}" if subject else f"client {call.client_id[:_CALLER_CHARS]}"
        wait_s = quota.take(caller, size, asyncio.get_running_loop().time())
        # Answers have whole milliseconds.
        wait_s = int(wait_s * 1000) / 1000
        self._metrics.throttled_s[_DIRECTIONS[call.api.key]] += wait_s
        return wait_s

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
        if len(frame) > _OTHERS_BYTES_MAX and api.key != PRODUCE:
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
            self._complaints.add(self.peer.host, self._access.why)
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
        self._complaints.add(self.peer.host, f"is left: {self._access.why}")
        self.leave()

    async def _write(self) -> None:
        while True:
            call, answer, size, wait_s = await self._answers.get()
            is_later = answer is None or hasattr(answer, "__await__")
            if answer is not None and is_later:
                answer = await self._later(call, answer)
            if call is not None:
                self._metrics.answered(call.api.name, answer)
            if answer is not None:
                if self._writer.is_closing():  # uvloop refuses to write then
                    raise ConnectionResetError("the client has left")
                encoded = answer if call is None else _encoded(call, answer, wait_s)
                self._writer.write(encoded)
                async with asyncio.timeout(self._config.idle_s):
                    await self._writer.drain()
            if not is_later:
                self._unsent -= 1
                self._sent.set()
            self._held -= size
            self._budget.give(size)
            self._answers.task_done()

    async def _later(self, call: Call | None, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except Exception as err:
            name = "a call" if call is None else call.api.name
            self._metrics.closed(name)
            self._faults.report("kafka", f"{name} of {self.peer.host}", err)
            raise Malformed(f"{name}: {type(err).__name__}") from err
