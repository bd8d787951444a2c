"""HTTP/2 that is wrong on purpose: a list of attacks, and sequences of frames from a seed.

Each attack breaks one rule of RFC 9113, RFC 7541 or gRPC, or keeps all and exhausts something.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tests.fuzz.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    headers_frame,
    literal,
    message,
    preface,
    request,
)

if TYPE_CHECKING:
    from random import Random

__all__ = ["attacks", "sequence"]

_PATH = b"/protocol.Journal/List"
_APPEND = b"/protocol.Journal/Append"
_MOST = (1 << 31) - 1


def _word(value: int) -> bytes:
    return struct.pack(">I", value)


def _settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def _opened(count: int, *more: tuple[bytes, bytes]) -> bytes:
    return b"".join(headers_frame(_APPEND, *more, stream=2 * i + 1) for i in range(count))


def _whole(raw: bytes, flags: int = END_HEADERS, stream: int = 1) -> bytes:
    return frame(HEADERS, flags, stream, raw)


_HEAD, _REST, _CALL = block(_PATH), message(b""), headers_frame(_APPEND)


def _start() -> dict[str, bytes]:
    """Connections that begin in another way."""
    return {
        "begins-with-a-ping": PREFACE + frame(PING, 0, 0, bytes(8)),
        "begins-with-an-ack": PREFACE + frame(SETTINGS, 1, 0),
        "preface-damaged": PREFACE[:-1] + b"x" + frame(SETTINGS, 0, 0),
        "preface-twice": preface() + preface(),
        "ends-after-the-preface": PREFACE,
        "tls-hello": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500),
    }


def _lengths() -> dict[str, bytes]:
    """Frames whose lengths are wrong."""
    return {
        "frame-of-2-mib": _CALL + frame(DATA, 0, 1, bytes(2 << 20)),
        "frame-of-16-mib-begins": _CALL + b"\xff\xff\xff\0\0\0\0\0\1" + bytes(100_000),
        "ping-of-7": frame(PING, 0, 0, bytes(7)),
        "settings-of-7": frame(SETTINGS, 0, 0, bytes(7)),
        "settings-ack-with-content": frame(SETTINGS, 1, 0, bytes(6)),
        "reset-of-5": _CALL + frame(RST_STREAM, 0, 1, bytes(5)),
        "priority-of-4": frame(PRIORITY, 0, 1, bytes(4)),
        "credit-of-3": frame(WINDOW_UPDATE, 0, 0, bytes(3)),
        "goaway-of-4": frame(GOAWAY, 0, 0, bytes(4)),
        "empty-headers": _whole(b""),
        "padding-beyond-the-frame": _CALL + frame(DATA, PADDED, 1, b"\xff" + bytes(9)),
        "padding-of-an-empty-frame": _CALL + frame(DATA, PADDED, 1),
        "all-padding": _CALL + frame(DATA, PADDED, 1, b"\xff" + bytes(255)) * 200,
    }


def _streams() -> dict[str, bytes]:
    """Frames on streams that cannot have them."""
    return {
        "even-stream": _whole(_HEAD, stream=2),
        "stream-0": _whole(_HEAD, stream=0),
        "stream-goes-back": _whole(_HEAD, stream=5) + _whole(_HEAD, stream=3),
        "last-stream-and-next": _whole(_HEAD, stream=_MOST) + _whole(_HEAD, stream=1),
        "reserved-bit": _whole(_HEAD, stream=(1 << 31) | 1),
        "data-on-idle": frame(DATA, END_STREAM, 7, _REST),
        "reset-of-idle": frame(RST_STREAM, 0, 7, _word(8)),
        "credit-of-idle": frame(WINDOW_UPDATE, 0, 7, _word(9)),
        "data-after-the-end": _CALL + frame(DATA, END_STREAM, 1, _REST) * 2,
        "data-after-reset": _CALL + frame(RST_STREAM, 0, 1, _word(8)) + frame(DATA, 0, 1, _REST),
        "headers-twice": _CALL + _CALL,
        "trailers-that-do-not-end": _CALL + _whole(literal(b"a", b"b")),
        "trailers-with-a-path": _CALL + _whole(_HEAD, END_HEADERS | END_STREAM),
        "push": frame(PUSH_PROMISE, END_HEADERS, 1, _word(2) + _HEAD),
        "depends-on-itself": frame(PRIORITY, 0, 3, _word(3) + b"\0"),
        "goaway-and-on": frame(GOAWAY, 0, 0, bytes(8)) + _CALL + frame(DATA, END_STREAM, 1, _REST),
    }


def _blocks() -> dict[str, bytes]:
    """Headers."""
    return {
        "continuation-alone": frame(CONTINUATION, END_HEADERS, 1, _HEAD),
        "block-interrupted": _whole(_HEAD, 0) + frame(PING, 0, 0, bytes(8)),
        "continuation-of-another": _whole(_HEAD, 0) + frame(CONTINUATION, END_HEADERS, 3),
        "block-never-ends": _whole(_HEAD, 0) + frame(CONTINUATION, 0, 1, literal(b"a", b"b")) * 10_000,
        "empty-continuations": _whole(_HEAD, 0) + frame(CONTINUATION, 0, 1) * 50_000,
        "index-0": _whole(b"\x80"),
        "index-beyond": _whole(b"\xff\x80\x80\x01"),
        "integer-endless": _whole(b"\xff" + b"\x80" * 5000),
        "string-beyond": _whole(b"\0\x7f\xff\xff\xff\x7f"),
        "huffman-of-ones": _whole(b"\0\x81a" + b"\x8a" + b"\xff" * 10),
        "huffman-padding": _whole(b"\0\x01a\x81\x00"),
        "table-of-4-gib": _whole(b"\x3f\xe1\xff\xff\xff\x0f" + _HEAD),
        "table-changes-a-lot": _whole(b"\x20\x3f\xe1\x1f" * 3000 + _HEAD),
        "table-changes-late": _whole(_HEAD + b"\x20"),
        "indices-that-grow": _whole(b"\x40\x01a\x7f\x95\x1e" + b"b" * 4000 + b"\xbe" * 9000),
        "upper-case": _whole(block(_PATH, (b"X-A", b"b"))),
        "path-twice": _whole(block(_PATH, (b":path", b"/x"))),
        "pseudo-after-others": _whole(literal(b"a", b"b") + _HEAD),
        "line-feed-in-a-value": _whole(block(_PATH, (b"a", b"b\r\nc: d\0"))),
        "connection-header": _whole(block(_PATH, (b"connection", b"close"))),
        "body-longer-than-said": _whole(block(_PATH, (b"content-length", b"2")))
        + frame(DATA, END_STREAM, 1, _REST),
        "length-of-300-digits": _whole(block(_PATH, (b"content-length", b"9" * 300))),
        "timeout-of-0": request(_PATH, _REST, (b"grpc-timeout", b"0n")),
        "encoding-unknown": request(_PATH, message(b"x", flag=1), (b"grpc-encoding", b"zstd")),
        "gzip-damaged": request(_PATH, message(b"x" * 50, flag=1), (b"grpc-encoding", b"gzip")),
        "method-get": _whole(literal(b":method", b"GET") + literal(b":scheme", b"http")
                             + literal(b":path", b"/") + literal(b":authority", b"x"), 5),
    }  # fmt: skip


def _windows() -> dict[str, bytes]:
    """Flow control, and messages of gRPC."""
    return {
        "credit-of-0": frame(WINDOW_UPDATE, 0, 0, _word(0)),
        "credit-of-0-for-a-call": _CALL + frame(WINDOW_UPDATE, 0, 1, _word(0)),
        "window-too-large": frame(WINDOW_UPDATE, 0, 0, _word(_MOST)) * 2,
        "window-of-a-call-too-large": _CALL + frame(WINDOW_UPDATE, 0, 1, _word(_MOST)) * 2,
        "settings-window-too-large": _settings((4, 1 << 31)),
        "settings-make-windows-overflow": _CALL
        + frame(WINDOW_UPDATE, 0, 1, _word(_MOST - 70_000))
        + _settings((4, _MOST)),
        "settings-frame-too-small": _settings((5, 100)),
        "settings-push": _settings((2, 7)),
        "window-of-0": _settings((4, 0)) + headers_frame(_PATH) + frame(DATA, END_STREAM, 1, _REST),
        "window-shrinks": headers_frame(_PATH)
        + _settings((4, 0))
        + frame(DATA, END_STREAM, 1, _REST),
        "beyond-the-window": _CALL + frame(DATA, 0, 1, message(bytes(4 << 20))[: 1 << 20]) * 6,
        "message-of-2-gib": _CALL + frame(DATA, 0, 1, b"\0\x7f\xff\xff\xff" + bytes(9000)),
        "ends-within-a-message": _CALL + frame(DATA, END_STREAM, 1, message(bytes(99))[:50]),
        "ends-within-a-prefix": _CALL + frame(DATA, END_STREAM, 1, b"\0\0"),
    }


def _floods() -> dict[str, bytes]:
    """Much of what is allowed."""
    return {
        "settings-flood": frame(SETTINGS, 0, 0) * 20_000,
        "settings-that-change": _opened(500) + (_settings((4, 0)) + _settings((4, 9))) * 2000,
        "ack-flood": frame(SETTINGS, 1, 0) * 20_000,
        "priority-flood": frame(PRIORITY, 0, 3, bytes(5)) * 20_000,
        "credit-flood": _CALL + frame(WINDOW_UPDATE, 0, 1, _word(1)) * 20_000,
        "empty-data-flood": _CALL + frame(DATA, 0, 1) * 20_000,
        "unknown-frames": frame(0x42, 255, 9, b"what") * 20_000,
        "goaway-flood": frame(GOAWAY, 0, 0, bytes(8)) * 20_000,
        "resets-provoked": b"".join(
            headers_frame(_PATH, stream=2 * i + 1) + frame(WINDOW_UPDATE, 0, 2 * i + 1, _word(0))
            for i in range(5000)
        ),
        "calls-that-stay-open": _opened(5000),
        "metadata-that-stays": _opened(400, (b"x-a", b"a" * 15_000)),
        "tiny-messages": _CALL + frame(DATA, 0, 1, message(b"") * 3000) * 200,
        "tiny-frames": _CALL + frame(DATA, 0, 1, message(bytes(1 << 20))[:9])
        + frame(DATA, 0, 1, b"ab") * 50_000,
        "answers-that-no-window-takes": _settings((4, 0)) + b"".join(
            headers_frame(_PATH, stream=2 * i + 1) + frame(DATA, END_STREAM, 2 * i + 1, _REST)
            for i in range(2000)
        ),
    }  # fmt: skip


def attacks() -> dict[str, bytes]:
    """What to send, by its name."""
    after = _lengths() | _streams() | _blocks() | _windows() | _floods()
    return _start() | {name: preface() + raw for name, raw in after.items()}


# ------------------------------------------------------------------ from a seed


def sequence(rng: Random, paths: list[bytes]) -> bytes:
    """Frames in any order behind a good preface; most of them are good, each by itself."""
    ids = [1, 1, 1, 3, 3, 5, 7]
    return preface() + b"".join(
        _frame(rng, rng.choice(ids), paths) for _ in range(rng.choice((2, 5, 20, 60)))
    )


def _frame(rng: Random, stream: int, paths: list[bytes]) -> bytes:
    kind = rng.choice((HEADERS,) * 4 + (DATA,) * 4 + (*range(10), 0x42))
    flags = rng.choice((0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM, rng.randrange(256)))
    number = rng.choice((0, 1, 9, 65_535, _MOST, rng.getrandbits(32)))
    payload = {
        DATA: lambda: rng.choice((b"", b"\0", message(rng.randbytes(9)), rng.randbytes(40))),
        HEADERS: lambda: _block(rng, paths),
        CONTINUATION: lambda: _block(rng, paths),
        PUSH_PROMISE: lambda: _word(2) + _block(rng, paths),
        PRIORITY: lambda: rng.randbytes(5),
        RST_STREAM: lambda: _word(rng.randrange(20)),
        SETTINGS: lambda: b"".join(
            struct.pack(">HI", rng.randrange(8), number) for _ in range(rng.randrange(3))
        ),
        PING: lambda: bytes(8),
        GOAWAY: lambda: bytes(8) + rng.randbytes(rng.randrange(9)),
        WINDOW_UPDATE: lambda: _word(number),
    }.get(kind, lambda: rng.randbytes(20))()
    if kind == HEADERS and rng.random() < 0.8:
        flags |= END_HEADERS
    if kind in {SETTINGS, PING, GOAWAY} or (kind == WINDOW_UPDATE and rng.random() < 0.5):
        stream = 0 if rng.random() < 0.9 else stream
        flags = flags & 1 if rng.random() < 0.9 else flags
        payload = b"" if kind == SETTINGS and flags & 1 and rng.random() < 0.9 else payload
    return frame(kind, flags, stream, payload)


def _block(rng: Random, paths: list[bytes]) -> bytes:
    """Headers that are good, with some fields in other forms, or none at all."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.choice((0, 3, 40)))
    raw = block(rng.choice(paths)) if rng.random() < 0.9 else b""
    for _ in range(rng.choice((0, 0, 1, 4))):
        name, value = (
            rng.choice((b"a", b"grpc-timeout", b"te", b":path", b"A", b"")),
            rng.randbytes(4),
        )
        raw += rng.choice((
            literal(name, value),
            b"\x40" + literal(name, value)[1:],  # to be kept
            bytes((0x80 | rng.randrange(1, 70),)),
            bytes((0x20 | rng.randrange(32),)),
            b"\0" + bytes((0x80 | len(value),)) + value + b"\x81\xff",
            rng.randbytes(3),
        ))  # fmt: skip
    return raw
