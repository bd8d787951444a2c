"""Codec SNAPPY: the snappy framing format, with a CRC32C on each chunk of at most 64 KiB.

The library takes whole chunks only, so the decompressor cuts the input at chunks, and thereby also
bounds what one step gives out.
"""

from __future__ import annotations

from typing import Final, final

import cramjam

from gazette_platform.errors import DataError

__all__ = ["SnappyCompressor", "SnappyDecompressor"]

_STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_HEADER_BYTES = 4
_CHUNK_CONTENT_BYTES_MAX = 65536
# A compressed or stored chunk: the worst growth of snappy on 64 KiB (32 + n + n/6), and a CRC.
_DATA_CHUNK_BYTES_MAX = 32 + _CHUNK_CONTENT_BYTES_MAX + _CHUNK_CONTENT_BYTES_MAX // 6 + 4
_DATA_CHUNK_KINDS = (0x00, 0x01)


@final
class SnappyCompressor:
    """Makes a complete framed stream of each batch; streams may follow each other in a file."""

    def compress(self, data: bytes | memoryview) -> bytes:
        """Framed chunks that hold `data`; empty for empty `data`."""
        return bytes(cramjam.snappy.compress(data)) if data else b""

    def finish(self) -> bytes:
        """Nothing: the file is complete after each batch."""
        return b""


@final
class SnappyDecompressor:
    """Reads framed chunks, and checks the CRC of each."""

    def __init__(self) -> None:
        self._input = b""
        self._position = 0
        self._is_starved = True  # no whole chunk stands at `_position`
        self._is_identified = False

    @property
    def needs_input(self) -> bool:
        """Nothing more can come out before more goes in."""
        return self._is_starved

    def decompress(self, data: bytes | memoryview, output_bytes_max: int = -1) -> bytes:
        """See `Decompressor.decompress`."""
        if data:
            self._input = b"".join((memoryview(self._input)[self._position :], data))
            self._position = 0
            self._is_starved = False
        if not self._identify():
            return b""
        chunks_max = None
        if output_bytes_max > 0:
            chunks_max = max(output_bytes_max // _CHUNK_CONTENT_BYTES_MAX, 1)
        span = self._take_chunks(chunks_max)
        if not span:
            return b""
        try:
            # Each call of the library wants its own stream identifier.
            return bytes(cramjam.snappy.decompress(b"".join((_STREAM_IDENTIFIER, span))))
        except cramjam.DecompressionError as err:
            raise DataError(f"snappy: {err} (the object is damaged)") from err

    def finish(self) -> None:
        """Claim that the file has ended. Raises: DataError: it ends within a chunk."""
        if self._position < len(self._input):
            raise DataError("snappy: the object ends in the middle of a chunk (it is truncated)")

    def _identify(self) -> bool:
        """Check the start of the file. Returns: whether enough of it was seen."""
        if self._is_identified:
            return True
        head = self._input[: len(_STREAM_IDENTIFIER)]
        if not _STREAM_IDENTIFIER.startswith(head):
            raise DataError(
                f"snappy: expected the identifier of the framing format, read {head.hex()} "
                "(the object is damaged, or is not framed snappy)"
            )
        self._is_identified = head == _STREAM_IDENTIFIER
        self._is_starved = self._is_starved or not self._is_identified
        return self._is_identified

    def _take_chunks(self, chunks_max: int | None) -> memoryview:
        """At most `chunks_max` whole chunks; sets `_is_starved` when no other stands behind."""
        start = position = self._position
        taken = 0
        while chunks_max is None or taken < chunks_max:
            header = self._input[position : position + _CHUNK_HEADER_BYTES]
            if len(header) < _CHUNK_HEADER_BYTES:
                break
            size = int.from_bytes(header[1:], "little")
            if header[0] in _DATA_CHUNK_KINDS and size > _DATA_CHUNK_BYTES_MAX:
                raise DataError(f"snappy: a chunk claims {size} bytes (the object is damaged)")
            if position + _CHUNK_HEADER_BYTES + size > len(self._input):
                break
            position += _CHUNK_HEADER_BYTES + size
            taken += 1
        self._is_starved = position == len(self._input) or taken != chunks_max
        self._position = position
        return memoryview(self._input)[start:position]
