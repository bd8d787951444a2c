"""Frames of recorded operations, and the checksum that chains them.

Every operation carries the CRC-32C of all frames before it, so that one which was written by an author
who did not know the last of them differs from one that follows it. Content is not digested. Pure: no
I/O, no clock.

The bytes that were read or written are digested, and never those of another encoding of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c

from gazette_platform.message.framing import FIXED_HEADER, frame_fixed

if TYPE_CHECKING:
    from gazette_platform.protocol.pb import recoverylog_pb2 as pb

__all__ = ["author_label", "body_of", "encode_op", "extend_checksum"]

_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def extend_checksum(checksum: int, body: bytes) -> int:
    """The checksum behind an operation.

    Args:
        checksum: that before it; 0 before the first one.
        body: the operation's frame without its header of 8 bytes.

    >>> extend_checksum(extend_checksum(0, b"abc"), b"def")
    1404891121
    """
    return int(google_crc32c.extend(checksum, body))


def encode_op(op: pb.RecordedOp) -> bytes:
    """The frame of an operation. Content of a write is to follow it in the log."""
    return frame_fixed(op.SerializeToString())


def body_of(frame: bytes) -> bytes:
    """What of a frame is digested."""
    return frame[FIXED_HEADER.size :]


def author_label(author: int) -> str:
    """An author as registers have it: in base 32.

    >>> author_label(1337)
    '19p'
    """
    digits = ""
    while True:
        author, digit = divmod(author, 32)
        digits = _DIGITS[digit] + digits
        if not author:
            return digits
