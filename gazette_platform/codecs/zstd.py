"""Codec ZSTANDARD: a row of frames, one for each batch.

The library gives out all that an input holds, and 4 bytes of zstd can hold 128 KiB. So that a
reader's memory stays bounded, the decompressor walks the headers of blocks (RFC 8878 §3.1.1) and
feeds the library a limited number of whole blocks at a time; by the same walk it knows whether a
file ends where a frame does.
"""

from __future__ import annotations

from typing import Final, final

import zstandard

from gazette_platform.errors import DataError

__all__ = ["WINDOW_BYTES_MAX", "ZstdCompressor", "ZstdDecompressor"]

# Trino's reader refuses larger windows, and it is the memory that each reader must hold.
WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024

# Level 1 is the library's fastest regular one, and as small as 3 on JSON. Its window is 512 KiB.
_LEVEL = 1

_BLOCK_CONTENT_BYTES_MAX = 128 * 1024
_BLOCK_HEADER_BYTES = 3
_BLOCK_RLE = 1
_BLOCK_RESERVED = 3
_CHECKSUM_BYTES = 4
_FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
_FRAME_HEADER_BYTES_MIN = 5  # magic and descriptor: enough to know the size of the header
_FRAME_HEADER_BYTES_MAX = 18
_SKIPPABLE_MAGIC_TAIL = b"\x2a\x4d\x18"
_SKIPPABLE_HEADER_BYTES = 8


@final
class ZstdCompressor:
    """Makes one complete frame, with a checksum, of each batch."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)

    def compress(self, data: bytes | memoryview) -> bytes:
        """A frame that holds `data`; empty for empty `data`."""
        return self._zstd.compress(data) if data else b""

    def finish(self) -> bytes:
        """Nothing: the file is complete after each batch."""
        return b""


@final
class ZstdDecompressor:
    """Reads a row of frames; skippable ones are skipped."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj(
            read_across_frames=True
        )
        self._input = b""
        self._position = 0
        self._is_starved = True  # no whole unit stands at `_position`
        self._in_frame = False
        self._has_checksum = False
        self._skip_bytes = 0  # left of a skippable frame

    @property
    def needs_input(self) -> bool:
        """Nothing more can come out before more goes in."""
        return self._is_starved

    def decompress(self, data: bytes | memoryview, output_bytes_max: int = -1) -> bytes:
        """See `Decompressor.decompress`."""
        if data:
            rest = memoryview(self._input)[self._position :]
            self._input = b"".join((rest, data))
            self._position = 0
            self._is_starved = False
        parts: list[bytes] = []
        left = output_bytes_max
        while left != 0 and not self._is_starved:
            blocks_max = max(left // _BLOCK_CONTENT_BYTES_MAX, 1) if left > 0 else None
            out = self._feed(self._take_blocks(blocks_max))
            if out:
                parts.append(out)
                left = max(left - len(out), 0) if left > 0 else left
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def finish(self) -> None:
        """Claim that the file has ended. Raises: DataError: it ends within a frame."""
        if self._in_frame or self._skip_bytes or self._position < len(self._input):
            raise DataError("zstd: the object ends in the middle of a frame (it is truncated)")

    def _feed(self, span: memoryview) -> bytes:
        if not span:
            return b""
        try:
            return self._zstd.decompress(span)
        except zstandard.ZstdError as err:
            raise DataError(f"zstd: {err} (the object is damaged, or is not zstd)") from err

    def _take_blocks(self, blocks_max: int | None) -> memoryview:
        """Input that holds at most `blocks_max` whole blocks, and the headers around them.

        Sets `_is_starved` when what is left of the input is less than a unit.
        """
        start = self._position
        blocks = 0
        while blocks_max is None or blocks < blocks_max:
            is_block = self._in_frame
            size = self._next_size()
            if size < 0:
                self._is_starved = True
                break
            self._position += size
            blocks += is_block
        if self._position == len(self._input):
            self._is_starved = True
        return memoryview(self._input)[start : self._position]

    def _next_size(self) -> int:
        """Size of the unit at the position, which is entered; -1 if it is not all here."""
        available = len(self._input) - self._position
        if self._skip_bytes:  # may be longer than memory: passed on as it comes
            size = min(self._skip_bytes, available)
            self._skip_bytes -= size
            return size or -1
        if self._in_frame:
            return self._block_size()
        if available < len(_FRAME_MAGIC):
            return -1
        magic = self._input[self._position : self._position + len(_FRAME_MAGIC)]
        if magic == _FRAME_MAGIC:
            return self._frame_header_size()
        if magic[1:] == _SKIPPABLE_MAGIC_TAIL and magic[0] & 0xF0 == 0x50:
            body = self._position + _SKIPPABLE_HEADER_BYTES
            if body > len(self._input):
                return -1
            self._skip_bytes = int.from_bytes(self._input[self._position + 4 : body], "little")
            return _SKIPPABLE_HEADER_BYTES
        raise DataError(
            f"zstd: expected the magic of a frame, read {magic.hex()} "
            "(the object is damaged, or is not zstd)"
        )

    def _frame_header_size(self) -> int:
        """Size of the frame header here, which is entered; -1 if it is not all here."""
        header = self._input[self._position : self._position + _FRAME_HEADER_BYTES_MAX]
        if len(header) < _FRAME_HEADER_BYTES_MIN:
            return -1
        try:
            size = zstandard.frame_header_size(header)
            if len(header) < size:
                return -1
            self._has_checksum = zstandard.get_frame_parameters(header).has_checksum
        except zstandard.ZstdError as err:  # reserved bits, or a window beyond the content
            raise DataError(f"zstd: {err} (the object is damaged, or is not zstd)") from err
        self._in_frame = True
        return size

    def _block_size(self) -> int:
        """Size of the block here with all that belongs to it; -1 if it is not all here."""
        body = self._position + _BLOCK_HEADER_BYTES
        if body > len(self._input):
            return -1
        header = int.from_bytes(self._input[self._position : body], "little")
        is_last, kind, content_bytes = header & 1, (header >> 1) & 3, header >> 3
        if kind == _BLOCK_RESERVED or content_bytes > _BLOCK_CONTENT_BYTES_MAX:
            raise DataError("zstd: bad header of a block (the object is damaged)")
        size = _BLOCK_HEADER_BYTES + (1 if kind == _BLOCK_RLE else content_bytes)
        if is_last and self._has_checksum:
            size += _CHECKSUM_BYTES
        if self._position + size > len(self._input):
            return -1
        self._in_frame = not is_last
        return size
