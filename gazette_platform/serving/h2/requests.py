"""From blocks of headers to requests: the rules of RFC 9113, section 8, and those of gRPC over HTTP/2.

A client's calls differ in little, so most blocks mean what an equal one meant before. That holds while the
dynamic table of HPACK is unchanged. The deadline differs from call to call and changes the table with each,
so requests are remembered by their other fields, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.serving.h2.hpack import Decoder, Field, HeaderListTooLarge
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.h2.stream import ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.serving.h2.hpack import Field


_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
# The transport uses these itself.
_OURS: Final = frozenset(
    (
        b"content-type",
        b"content-length",
        b"te",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
    )
)
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
# RFC 9113 forbids blanks around a value, too. gRPC's servers take them: who sends an empty token is to be
# answered so, and not with a reset of the stream.
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]")
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?", re.DOTALL)

# Bytes that the objects of a field take beside its text, and that a usual call's metadata takes in all.
_FIELD_COST: Final = 128
_USUAL_BYTES: Final = 4096

_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class Malformed(Exception):
    """A request that breaks the rules of HTTP/2."""


class BadTimeout(Exception):
    """A ``grpc-timeout`` that is none."""


@dataclass(frozen=True, slots=True)
class Request:
    """A call, as its headers ask for it."""

    path: bytes
    metadata: Mapping[str, str]
    content_length: int | None = None
    """Bytes of the body, if the client says so."""
    encoding: bytes = b""
    """How messages may be compressed; empty: in no way that we know."""
    http_status: int = 200
    """Another one refuses what is not a call of gRPC."""
    extra_bytes: int = 0
    """Memory that its metadata takes as long as the call is open, beyond what is usual."""


def is_timeout(field: Field) -> bool:
    """Say whether a field is the deadline, which differs from call to call."""
    return field[0] == b"grpc-timeout"


def read_timeout(value: bytes) -> float:
    """Read a ``grpc-timeout``. Returns: seconds. Raises: BadTimeout."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise BadTimeout
    return int(found[1]) * _UNITS_S[found[2]]


def read_request(fields: Iterable[Field]) -> Request:
    """Read the headers of a request.

    Raises: Malformed: it breaks a rule of RFC 9113.
    """
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    for field in fields:
        name, value = field
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                raise Malformed
            pseudo[name] = value
        else:
            _check_regular(name, value)
            # gRPC takes values of one name that are joined by commas for several.
            regular[name] = regular[name] + b"," + value if name in regular else value
        if _BAD_VALUE.search(value):
            raise Malformed
    path = pseudo.get(b":path")
    if not path or not pseudo.keys() >= _REQUIRED:
        raise Malformed
    encoding = regular.get(b"grpc-encoding", b"")
    return Request(
        path,
        {name.decode(): _text(value) for name, value in regular.items() if name not in _OURS},
        _content_length(regular.get(b"content-length")),
        encoding if encoding in ENCODINGS else b"",
        _http_status(pseudo[b":method"], regular.get(b"content-type", b"")),
        max(0, sum(_FIELD_COST + len(n) + len(v) for n, v in regular.items()) - _USUAL_BYTES),
    )


def check_trailers(fields: Iterable[Field]) -> None:
    """Check the fields that end a request. Raises: Malformed."""
    for name, value in fields:
        _check_regular(name, value)
        if _BAD_VALUE.search(value):
            raise Malformed


def _check_regular(name: bytes, value: bytes) -> None:
    if name in _OF_CONNECTIONS or not _NAME.fullmatch(name):
        raise Malformed
    if name == b"te" and value != b"trailers":
        raise Malformed


def _content_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise Malformed
    return int(value)


def _http_status(method: bytes, content_type: bytes) -> int:
    if method != b"POST":
        return 405
    return 200 if _CONTENT_TYPE.fullmatch(content_type) else 415


def _text(value: bytes) -> str:
    """Decode a value; one that is not UTF-8 is neither a token nor a name."""
    return value.decode(errors="backslashreplace")


# So much is remembered: by a connection of blocks, and by a server of requests.
_BLOCKS_MAX: Final = 256
_BLOCK_BYTES_MAX: Final = 1024
_REQUESTS_MAX: Final = 1024
_REQUEST_BYTES_MAX: Final = 2048


class Wanted(NamedTuple):
    """A call that a block asks for."""

    request: Request
    timeout_s: float | None
    """Seconds until its deadline."""


class Refusal(NamedTuple):
    """A call that a block asks for, and that is refused."""

    number: int
    """Of gRPC's code."""
    text: str


@final
class Requests:
    """Requests by their fields; the connections of a server share them."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[Field, ...], Request] = {}

    def of(self, fields: tuple[Field, ...]) -> Request:
        """Read headers, without the deadline. Raises: Malformed."""
        request = self._known.get(fields)
        if request is None:
            request = read_request(fields)
            if sum(len(name) + len(value) for name, value in fields) <= _REQUEST_BYTES_MAX:
                if len(self._known) >= _REQUESTS_MAX:
                    self._known.clear()
                self._known[fields] = request
        return request


@final
class Blocks:
    """The blocks of one connection, in their order."""

    __slots__ = ("_hpack", "_known", "_list_bytes_max", "_requests")

    def __init__(self, list_bytes_max: int, requests: Requests) -> None:
        self._hpack = Decoder(list_bytes_max)
        self._list_bytes_max = list_bytes_max
        self._known: dict[bytes, Wanted] = {}
        self._requests = requests

    def read(self, block: bytes) -> Wanted | Refusal:
        """Read the headers of a request.

        Raises: ConnectionFault: the block cannot be decoded. Malformed: it breaks a rule of HTTP.
        """
        wanted = self._known.get(block)
        if wanted is not None:
            return wanted
        fields = self.decode(block)
        if fields is None:
            text = f"the metadata is larger than {self._list_bytes_max} bytes"
            return Refusal(Status.RESOURCE_EXHAUSTED, text)
        timeouts = [field for field in fields if is_timeout(field)]
        try:
            timeout_s = read_timeout(timeouts[-1][1]) if timeouts else None
        except BadTimeout:
            return Refusal(Status.INTERNAL, "malformed grpc-timeout")
        if timeouts:
            fields = [field for field in fields if not is_timeout(field)]
        wanted = Wanted(self._requests.of(tuple(fields)), timeout_s)
        if not self._hpack.is_changed and len(block) <= _BLOCK_BYTES_MAX:
            if len(self._known) >= _BLOCKS_MAX:
                self._known.clear()
            self._known[block] = wanted
        return wanted

    def decode(self, block: bytes) -> list[Field] | None:
        """Decode a block. Returns: None if its fields are larger than allowed. Raises: ConnectionFault."""
        try:
            return self._hpack.decode(block)
        except HeaderListTooLarge:
            return None
        finally:
            if self._hpack.is_changed:
                self._known.clear()
