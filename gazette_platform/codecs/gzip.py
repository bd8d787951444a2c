"""Codecs GZIP and GZIP_OFFLOAD_DECOMPRESSION, by isa-l.

A GZIP file is a row of members (RFC 1952), one for each batch, so that a broker compresses while it
appends and can end the file at any batch. Level 1 of isa-l compresses JSON about ten times as fast
as zlib's default at nearly its ratio; levels 0 and 2 gain little speed or size, and 3 costs 3x.
"""

from __future__ import annotations

import struct
from typing import Final, final

from isal import igzip_lib, isal_zlib

from gazette_platform.errors import DataError

__all__ = ["GzipCompressor", "GzipDecompressor", "GzipStreamCompressor"]

# The stubs of isal declare it an instance.
_ISAL_ERROR: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]

_LEVEL = 1
_GZIP_WINDOW_BITS = 31  # 15 bits of window, plus 16 for the gzip wrapper

# Header of a member: deflate, no flags, no time, "fastest", unknown system.
_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
_STORED_BLOCK_BYTES_MAX = 0xFFFF

# Incompressible batches (media, encrypted or compressed payloads) are found by samples: below this
# size a sample says little, and a batch that compresses by less than 3 % is not worth its readers'
# time, because a stored member decompresses several times as fast.
_SAMPLE_BYTES = 4096
_SAMPLES = 3
_INCOMPRESSIBLE_RATIO = 0.97

# Members are cut out of windows of this size: what follows a member in the window is copied by
# isa-l, so handing it a whole large piece of many small members would cost their product.
_WINDOW_BYTES = 128 * 1024


@final
class GzipCompressor:
    """Makes one complete member of each batch."""

    def compress(self, data: bytes | memoryview) -> bytes:
        """A member that holds `data`; empty for empty `data`."""
        if not data:
            return b""
        if _is_incompressible(data):
            return _stored_member(memoryview(data))
        return igzip_lib.compress(data, _LEVEL, igzip_lib.COMP_GZIP)

    def finish(self) -> bytes:
        """Nothing: the file is complete after each batch."""
        return b""


@final
class GzipStreamCompressor:
    """Makes one member of the whole file.

    Stores that decompress on the way out (``Content-Encoding: gzip``) are only known to do so for
    a single member.
    """

    def __init__(self) -> None:
        self._stream = isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP_WINDOW_BITS)

    def compress(self, data: bytes | memoryview) -> bytes:
        """Bytes of the member that are ready; the file is not complete before `finish`."""
        return self._stream.compress(data)

    def finish(self) -> bytes:
        """The end of the member."""
        return self._stream.flush()


@final
class GzipDecompressor:
    """Reads a row of members, and checks the CRC and length of each."""

    def __init__(self) -> None:
        self._member: igzip_lib.IgzipDecompressor | None = None
        # Input, and how far it was given to a member.
        self._input = b""
        self._position = 0

    @property
    def needs_input(self) -> bool:
        """Nothing more can come out before more goes in."""
        return self._position == len(self._input) and (
            self._member is None or self._member.needs_input
        )

    def decompress(self, data: bytes | memoryview, output_bytes_max: int = -1) -> bytes:
        """See `Decompressor.decompress`."""
        self._push(data)
        parts: list[bytes] = []
        left = output_bytes_max
        while left != 0 and not self.needs_input:
            out = self._step(left)
            if out:
                parts.append(out)
                left -= len(out) if left > 0 else 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Claim that the file has ended. Raises: DataError: it ends within a member."""
        if self._member is not None or self._position < len(self._input):
            raise DataError("gzip: the object ends in the middle of a member (it is truncated)")

    def _step(self, output_bytes_max: int) -> bytes:
        """Output of one window of input, or of what the member still holds."""
        if self._member is None:
            self._member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        window = b""
        if self._member.needs_input:
            window = self._input[self._position : self._position + _WINDOW_BYTES]
            self._position += len(window)
        try:
            out = self._member.decompress(window, output_bytes_max)
        except _ISAL_ERROR as err:
            raise DataError(f"gzip: {err} (the object is damaged, or is not gzip)") from err
        if self._member.eof:
            self._unread(self._member.unused_data)
            self._member = None
        return out

    def _push(self, data: bytes | memoryview) -> None:
        if self._position == len(self._input):
            self._input = data if isinstance(data, bytes) else bytes(data)
            self._position = 0
        elif data:
            self._input = b"".join((memoryview(self._input)[self._position :], data))
            self._position = 0

    def _unread(self, unused: bytes) -> None:
        """Take back the end of what was given to a member: it belongs to the next one."""
        if len(unused) <= self._position:
            self._position -= len(unused)
        else:  # the member held it since before the last `_push`
            self._input = b"".join((unused, memoryview(self._input)[self._position :]))
            self._position = 0


def _is_incompressible(data: bytes | memoryview) -> bool:
    """Whether none of a few samples of `data` shrinks."""
    if len(data) < _SAMPLES * _SAMPLE_BYTES * 4:
        return False
    stride = (len(data) - _SAMPLE_BYTES) // (_SAMPLES - 1)
    for start in range(0, stride * _SAMPLES, stride):
        sample = igzip_lib.compress(data[start : start + _SAMPLE_BYTES], _LEVEL)
        if len(sample) < _SAMPLE_BYTES * _INCOMPRESSIBLE_RATIO:
            return False
    return True


def _stored_member(data: memoryview) -> bytes:
    """A gzip member of stored blocks: `data` as it is, with a CRC."""
    parts: list[bytes | memoryview] = [_HEADER]
    for start in range(0, len(data), _STORED_BLOCK_BYTES_MAX):
        block = data[start : start + _STORED_BLOCK_BYTES_MAX]
        is_last = start + len(block) == len(data)
        parts.append(struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF))
        parts.append(block)
    parts.append(struct.pack("<II", isal_zlib.crc32(data), len(data) & 0xFFFFFFFF))
    return b"".join(parts)
