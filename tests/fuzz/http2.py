"""HTTP/2 by hand: requests that no gRPC library would send."""

from __future__ import annotations

import struct

__all__ = ["headers_frame", "preface", "request"]

_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_END_STREAM, _END_HEADERS = 1, 4
_FRAME_BYTES_MAX = 16384


def preface() -> bytes:
    """What a client says first."""
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"")


def headers_frame(path: bytes, *more: tuple[bytes, bytes], stream: int = 1) -> bytes:
    """The head of a call, in as many frames as it takes."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    fields += [(b"te", b"trailers"), (b"content-type", b"application/grpc"), *more]
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
    pieces = [block[at : at + _FRAME_BYTES_MAX] for at in range(0, len(block), _FRAME_BYTES_MAX)]
    kinds = [_HEADERS] + [_CONTINUATION] * (len(pieces) - 1)
    flags = [0] * (len(pieces) - 1) + [_END_HEADERS]
    return b"".join(_frame(k, f, stream, p) for k, f, p in zip(kinds, flags, pieces, strict=True))


def request(path: bytes, body: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A whole call.

    Args:
        path: of the method.
        body: with the five bytes that precede each message.
        more: headers.
    """
    return preface() + headers_frame(path, *more) + _frame(_DATA, _END_STREAM, 1, body)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def _text(raw: bytes) -> bytes:
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest, out = len(raw) - 127, bytearray(b"\x7f")
    while rest >= 128:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out) + raw
