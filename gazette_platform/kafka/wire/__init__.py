"""Kafka's requests and answers: framing, the tables of calls and versions, and their schemas.

`kio` has a class for each version of each message, generated from Kafka's own schemas. Handlers work with any version: they
read fields of the request that the least version has, or ask with `Call.get`, and build answers with `Call.new`, which leaves
out the fields that the version does not have.

`receiving` and `connection` are a client's connection, whose memory `bounds` limits; `batches` has Produce and Fetch by hand.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import struct
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from gazette_platform.errors import DataError
from gazette_platform.kafka.wire.batches import PARTS_MAX, Appended, Fetched
from gazette_platform.kafka.wire.bounds import parts_of

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from gazette_platform.kafka.access import Access
    from gazette_platform.kafka.wire.batches import Pieces

__all__ = [
    "API_VERSIONS", "SIZE_BYTES", "Api", "Call", "Handler", "Head", "Later", "Malformed", "Part", "Peer", "answer_bytes", "encoded",
    "maker", "message_class", "read_call", "read_head", "unsupported_answer", "versions_answer",
]  # fmt: skip

API_VERSIONS: Final = 18
SIZE_BYTES: Final = 4

_HEAD: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")
_NO_TIME: Final = timedelta()
# Of requests that have few parts: these are not counted.
_SMALL_BYTES: Final = 64 << 10


class Malformed(DataError):
    """A request that is none: the connection is closed, as Kafka does."""


class Handler(Protocol):
    """Answers a call.

    Calls of a connection are handled one after the other. A handler that returns `Later` has done what the order matters for; its
    answer is waited for while later calls are handled, and sent in turn. None: no answer is sent.
    """

    async def __call__(self, call: Call) -> Any:
        """The answer: an entity made by `Call.new`, or by hand; `Later`; or None. Raises: what `failures` knows."""
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
    read: Callable[[bytes | bytearray, int], Any] | None = None
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
    """An answer that waits for others. What it waits for goes on if its connection is gone.

    Args:
        waits: what it waits for.
        make: makes it, once all of that is done, or it is too late.
        due: when it is too late, on the loop's clock; None: never.
    """

    def __init__(
        self, waits: Iterable[Future[Any]], make: Callable[[], Any], due: float | None = None
    ) -> None:
        # The first, which is usually done first, is the last here.
        self._waits = [each for each in waits if not each.done()][::-1]
        self.make = make
        self.due = due

    def listen(self, call: Callable[[object], None]) -> None:
        """Have `call` run whenever something is done."""
        for each in self._waits:
            each.add_done_callback(call)

    def is_ready(self, now: float) -> bool:
        """Whether it can be made."""
        if self.due is not None and now >= self.due:
            return True
        # A request may have many thousand batches, and is asked after each: what is done is looked at once.
        while self._waits and self._waits[-1].done():
            del self._waits[-1]
        return not self._waits


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


def read_head(frame: bytes | bytearray) -> Head:
    """Raises: Malformed: the frame is too short."""
    if len(frame) < _HEAD.size:
        raise Malformed(f"a request of {len(frame)} bytes has no header")
    return Head(*_HEAD.unpack_from(frame))


def read_call(api: Api, frame: bytes | bytearray, peer: Peer) -> Call:
    """The call of a frame, whose version the API has. Raises: Malformed."""
    head = read_head(frame)
    try:
        if api.read is not None:
            request = api.read(frame, head.version)
            return Call(api, head, request.client_id, request, peer)
        kind = message_class(api.name, head.version, "request")
        content = bytes(frame)
        header, size = entity_reader(kind.__header_schema__)(content, 0)
        request, _ = entity_reader(kind)(
            content, size
        )  # librdkafka adds bytes, and Kafka passes over them
    except Exception as err:
        raise Malformed(f"{api.name} v{head.version}: {type(err).__name__}: {err}") from err
    if len(frame) > _SMALL_BYTES and parts_of(request) > PARTS_MAX:
        raise Malformed(f"{api.name}: a request has more than {PARTS_MAX} parts")
    return Call(api, head, header.client_id or "", request, peer)


def answer_bytes(correlation_id: int, answer: Any) -> bytes:
    """The frame of an answer, with its size."""
    header = answer.__header_schema__
    buffer = io.BytesIO()
    entity_writer(header)(buffer, header(correlation_id=correlation_id))
    entity_writer(type(answer))(buffer, answer)
    return _SIZE.pack(buffer.tell()) + buffer.getvalue()


def encoded(call: Call, answer: Any, wait_s: float) -> Pieces:
    """The frame of an answer, with the time that the client has to wait."""
    if isinstance(answer, Appended | Fetched):
        return answer.frame(call.correlation_id, wait_s)
    if wait_s:
        answer = dataclasses.replace(answer, throttle_time=timedelta(seconds=wait_s))
    return [answer_bytes(call.correlation_id, answer)]


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


def unsupported_answer(apis: Mapping[int, Api], frame: bytes | bytearray) -> bytes:
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

PRODUCE: Final = 0
FETCH: Final = 1
