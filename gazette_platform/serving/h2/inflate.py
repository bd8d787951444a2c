"""Messages that clients compress, as gRPC's libraries do on request."""

from __future__ import annotations

import zlib
from typing import Final

from gazette_platform.serving.h2.responses import Status

__all__ = ["ENCODINGS", "Compressed", "MessageRefused", "inflate", "larger_than"]

ENCODINGS: Final = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}
"""What a ``grpc-encoding`` may say, with zlib's name for it."""


class MessageRefused(Exception):
    """A message that the server does not take: its call ends with this status."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        super().__init__(text)


class Compressed(bytes):
    """A compressed message. It is inflated when it is taken, since it may be a thousand times as large."""

    __slots__ = ()


def larger_than(length: int, bytes_max: int) -> MessageRefused:
    """Return the error of a message that is too large, in the words of the gRPC library."""
    text = f"SERVER: Received message larger than max ({length} vs. {bytes_max})"
    return MessageRefused(Status.RESOURCE_EXHAUSTED, text)


def inflate(raw: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """Inflate a message.

    Args:
        encoding: one of `ENCODINGS`.
        bytes_max: largest message.

    Raises: MessageRefused: it is malformed, or larger.
    """
    inflater = zlib.decompressobj(ENCODINGS[encoding])
    try:
        plain = inflater.decompress(raw, bytes_max + 1)
    except zlib.error as err:
        raise MessageRefused(Status.INTERNAL, f"malformed compressed message: {err}") from err
    if len(plain) > bytes_max:
        raise larger_than(len(plain), bytes_max)
    if not inflater.eof or inflater.unused_data:
        raise MessageRefused(Status.INTERNAL, "malformed compressed message: it is cut, or goes on")
    return plain
