"""HTTP/2 by hand: requests that no gRPC library would send, and what is wrong with an answer.

Imports nothing of ours, and runs in the process of the pulse, too.
"""

from __future__ import annotations

import struct

__all__ = [
    "CONTINUATION", "DATA", "END_HEADERS", "END_STREAM", "GOAWAY", "HEADERS", "PADDED", "PING", "PREFACE", "PRIORITY",
    "PUSH_PROMISE", "RST_STREAM", "SETTINGS", "WINDOW_UPDATE", "answer_problem", "block", "frame", "frames_in",
    "goaway_code", "headers_frame", "is_answered", "literal", "message", "preface", "request",
]  # fmt: skip

(
    DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION
) = range(10)  # fmt: skip
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_BYTES_MAX = 16384
_OF_CONNECTION = {SETTINGS, PING, GOAWAY}
_OF_STREAM = {DATA, HEADERS, RST_STREAM, CONTINUATION}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, whatever it says."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def preface() -> bytes:
    """What a client says first."""
    return PREFACE + frame(SETTINGS, 0, 0)


def block(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The headers of a call, all of them literal."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    fields += [(b"te", b"trailers"), (b"content-type", b"application/grpc"), *more]
    return b"".join(literal(name, value) for name, value in fields)


def headers_frame(path: bytes, *more: tuple[bytes, bytes], stream: int = 1) -> bytes:
    """The head of a call, in as many frames as it takes."""
    raw = block(path, *more)
    pieces = [raw[at : at + _FRAME_BYTES_MAX] for at in range(0, len(raw), _FRAME_BYTES_MAX)]
    kinds = [HEADERS] + [CONTINUATION] * (len(pieces) - 1)
    flags = [0] * (len(pieces) - 1) + [END_HEADERS]
    return b"".join(frame(k, f, stream, p) for k, f, p in zip(kinds, flags, pieces, strict=True))


def message(content: bytes, *, flag: int = 0) -> bytes:
    """A message of gRPC, with its prefix."""
    return struct.pack(">BI", flag, len(content)) + content


def request(path: bytes, body: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A whole call.

    Args:
        path: of the method.
        body: with the five bytes that precede each message.
        more: headers.
    """
    return preface() + headers_frame(path, *more) + frame(DATA, END_STREAM, 1, body)


def literal(name: bytes, value: bytes) -> bytes:
    """A field that no table is to keep."""
    return b"\0" + _text(name) + _text(value)


def _text(raw: bytes) -> bytes:
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    rest, out = len(raw) - 127, bytearray(b"\x7f")
    while rest >= 128:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out) + raw


# ------------------------------------------------------------------ what servers say


def frames_in(raw: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each whole frame."""
    found, at = [], 0
    while len(raw) - at >= 9:
        head, flags, stream = struct.unpack_from(">IBI", raw, at)
        stop = at + 9 + (head >> 8)
        if stop > len(raw):
            break
        found.append((head & 255, flags, stream, raw[at + 9 : stop]))
        at = stop
    return found


def is_answered(raw: bytes) -> bool:
    """Whether a call on stream 1 was answered by messages, and has ended."""
    found = [(kind, flags) for kind, flags, stream, _ in frames_in(raw) if stream == 1]
    return (
        any(kind == DATA for kind, _ in found)
        and found[-1][0] == HEADERS
        and bool(found[-1][1] & END_STREAM)
    )


def answer_problem(raw: bytes) -> str:
    """What no server may send, whatever it was sent; "" if there is nothing."""
    found = frames_in(raw)
    if raw[3:4] and raw[3] != SETTINGS:
        return f"its first frame is of kind {raw[3]}"
    for kind, _, stream, payload in found:
        if kind == PUSH_PROMISE or kind > CONTINUATION:
            return f"it sends a frame of kind {kind}"
        if (kind in _OF_CONNECTION and stream) or (kind in _OF_STREAM and not stream & 1):
            return f"it sends a frame of kind {kind} on stream {stream}"
        if kind == GOAWAY and len(payload) < 8:
            return "it sends a GOAWAY without a code"
    return ""


def goaway_code(raw: bytes) -> int:
    """The code of the last GOAWAY; 0: there is none, or it is not an error."""
    codes = [
        struct.unpack_from(">I", p, 4)[0] for kind, _, _, p in frames_in(raw) if kind == GOAWAY
    ]
    return codes[-1] if codes else 0
