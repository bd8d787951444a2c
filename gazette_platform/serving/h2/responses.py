"""What answers a call, in as few pieces as possible."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Final

from gazette_platform.serving.h2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    frame,
    pack_head,
)
from gazette_platform.serving.h2.hpack import literal
from gazette_platform.serving.interface import Code, go_spelling

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX_BYTES: Final = 5
"""Of each message: whether it is compressed, and its length."""


class Status(IntEnum):
    """gRPC's codes, by their numbers on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def go_name(self) -> str:
        """How Go spells it, and so Gazette's metrics."""
        return "OK" if self is Status.OK else go_spelling(self.name)


STATUS_OF: Final = {code: Status[code.value] for code in Code}
"""The number of each code that a handler may raise."""

_PREFIX = Struct(">BI")
unpack_prefix = _PREFIX.unpack_from

_HEADERS = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
_TRAILERS = literal(b"grpc-status", b"0")
_HEADERS_HEAD: Final = len(_HEADERS) << 8 | HEADERS
_TRAILERS_HEAD: Final = len(_TRAILERS) << 8 | HEADERS
_END: Final = END_HEADERS | END_STREAM

_MESSAGE = Struct(">IBIBI")
_GREETED = Struct(f">IBI{len(_HEADERS)}sIBIBI")
_GREETING = Struct(f">IBI{len(_HEADERS)}s")
_ENDING = Struct(f">IBI{len(_TRAILERS)}s")

# Of what gRPC's own implementations leave as it is.
_PERCENT: Final = {
    byte: chr(byte) if 0x20 <= byte <= 0x7E and byte != ord("%") else f"%{byte:02X}"
    for byte in range(256)
}
_ENCODINGS = literal(b"grpc-accept-encoding", b"identity,deflate,gzip")


def message(stream_id: int, length: int, *, is_last: bool = False) -> bytes:
    """Build all that precedes a message of `length` bytes that is one frame.

    Args:
        is_last: whether it ends our side.
    """
    return _MESSAGE.pack(length + PREFIX_BYTES << 8, is_last, stream_id, 0, length)


def greeted_message(stream_id: int, length: int) -> bytes:
    """As `message`, with the headers of the response before it."""
    return _GREETED.pack(
        _HEADERS_HEAD,
        END_HEADERS,
        stream_id,
        _HEADERS,
        length + PREFIX_BYTES << 8,
        0,
        stream_id,
        0,
        length,
    )


def prefix(length: int) -> bytes:
    """Build the prefix of a message that takes several frames."""
    return _PREFIX.pack(0, length)


def data_head(stream_id: int, length: int) -> bytes:
    """Build the head of a DATA frame."""
    return pack_head(length << 8 | DATA, 0, stream_id)


def greeting(stream_id: int, metadata: Mapping[str, str] | None = None) -> bytes:
    """Build the headers of a response."""
    if not metadata:
        return _GREETING.pack(_HEADERS_HEAD, END_HEADERS, stream_id, _HEADERS)
    return frame(HEADERS, END_HEADERS, stream_id, _HEADERS + _fields(metadata))


def trailers(stream_id: int, metadata: Mapping[str, str] | None = None) -> bytes:
    """Build the end of a call that succeeded."""
    if not metadata:
        return _ENDING.pack(_TRAILERS_HEAD, _END, stream_id, _TRAILERS)
    return frame(HEADERS, _END, stream_id, _TRAILERS + _fields(metadata))


def failure(
    stream_id: int,
    number: int,
    text: str,
    *,
    is_greeted: bool,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Build the end of a call that failed.

    Args:
        number: of gRPC's code.
        is_greeted: whether the headers of the response were sent.
        metadata: more trailers.
    """
    block = b"" if is_greeted else _HEADERS
    block += literal(b"grpc-status", b"%d" % number)
    if text:
        coded = "".join(map(_PERCENT.__getitem__, text.encode(errors="backslashreplace")))
        block += literal(b"grpc-message", coded.encode())
    if number == Status.UNIMPLEMENTED:
        block += _ENCODINGS
    if metadata:
        block += _fields(metadata)
    return frame(HEADERS, _END, stream_id, block)


def http_refusal(stream_id: int, status: int) -> bytes:
    """Build the answer to a request that is not a call of gRPC."""
    return frame(HEADERS, _END, stream_id, literal(b":status", b"%d" % status))


def _fields(metadata: Mapping[str, str]) -> bytes:
    return b"".join(literal(name.encode(), value.encode()) for name, value in metadata.items())
