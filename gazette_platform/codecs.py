"""Compression of fragments: the bytes that stand in a store for the bytes of a journal.

A *compressor* turns batches into stored bytes; a *decompressor* takes stored bytes in pieces of any
size and gives content back, across the members or frames of a file. All of them
spend their time in C or Rust with the GIL released, so they belong in worker threads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol, final

import cramjam
import zstandard
from isal import igzip_lib, isal_zlib

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Iterator


class Compressor(Protocol):
    """Compresses one file. Not safe for concurrent use; different instances are independent."""

    def compress(self, data: bytes | memoryview) -> bytes:
        """Stored bytes of the next batch.

        For every codec but GZIP_OFFLOAD_DECOMPRESSION the result is whole in itself (a gzip
        member, a zstd frame, snappy-framed chunks), so that a file may end after any call, and
        files may be joined. Larger batches compress better; 1 MiB is the usual size.

        Args:
            data: bytes of content; empty gives an empty result.
        """
        ...

    def finish(self) -> bytes:
        """Stored bytes that end the file: empty except for GZIP_OFFLOAD_DECOMPRESSION."""
        ...


class Decompressor(Protocol):
    """Decompresses one file. Not safe for concurrent use; different instances are independent."""

    @property
    def needs_input(self) -> bool:
        """Nothing more can come out before more goes in."""
        ...

    def decompress(self, data: bytes | memoryview, output_bytes_max: int = -1) -> bytes:
        """Content decompressed from what was held back and from `data`.

        Args:
            data: the next piece of the file, cut anywhere; may be empty to go on after a limit.
            output_bytes_max: stop at this many bytes, rounded up to a block of the format (gzip 1
                B, snappy 64 KiB, zstd 128 KiB); -1 gives everything. Input that was not used is
                kept and `needs_input` is false: call again.

        Raises: DataError: the bytes are not of this codec, or damaged.
        """
        ...

    def finish(self) -> None:
        """Claim that the file has ended.

        Raises: DataError: it ends in the middle of a member or frame, or output is still held.
        """
        ...


def compressor(codec: CompressionCodec) -> Compressor:
    """A compressor of one file.

    Raises: ValidationError: `codec` is INVALID or unknown.
    """
    match codec:
        case CompressionCodec.NONE:
            return IdentityCompressor()
        case CompressionCodec.GZIP:
            return GzipCompressor()
        case CompressionCodec.ZSTANDARD:
            return ZstdCompressor()
        case CompressionCodec.SNAPPY:
            return SnappyCompressor()
        case CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return GzipStreamCompressor()
        case _:  # INVALID, and numbers that a newer peer may send
            raise ValidationError(f"{codec.name} cannot compress", path="CompressionCodec")


def decompressor(codec: CompressionCodec) -> Decompressor:
    """A decompressor of one file, as its bytes stand in the store.

    Whoever gets a GZIP_OFFLOAD_DECOMPRESSION fragment from a store that decompressed it on the way
    reads it with NONE instead.

    Raises: ValidationError: `codec` is INVALID or unknown.
    """
    match codec:
        case CompressionCodec.NONE:
            return IdentityDecompressor()
        case CompressionCodec.GZIP | CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            return GzipDecompressor()
        case CompressionCodec.ZSTANDARD:
            return ZstdDecompressor()
        case CompressionCodec.SNAPPY:
            return SnappyDecompressor()
        case _:
            raise ValidationError(f"{codec.name} cannot decompress", path="CompressionCodec")


def decompress_steps(
    decompressor: Decompressor, data: bytes | memoryview, *, step_bytes_max: int
) -> Iterator[bytes]:
    """All the content that one piece of a file gives, in non-empty steps of bounded size.

    Args:
        data: the next piece of the file.
        step_bytes_max: bytes of content a step, rounded up to a block of the format.

    Raises: DataError: as `Decompressor.decompress`.
    """
    out = decompressor.decompress(data, step_bytes_max)
    if out:
        yield out
    while not decompressor.needs_input:
        out = decompressor.decompress(b"", step_bytes_max)
        if out:
            yield out


def extension(codec: CompressionCodec) -> str:
    """The end of a fragment's name, with its dot; empty for GZIP_OFFLOAD_DECOMPRESSION.

    Raises: ValidationError: `codec` is INVALID or unknown.
    """
    codec.validate()
    return codec.extension


@final
class IdentityCompressor:
    """Hands batches through."""

    def compress(self, data: bytes | memoryview) -> bytes:
        """`data` itself."""
        return bytes(data)

    def finish(self) -> bytes:
        """Nothing."""
        return b""


@final
class IdentityDecompressor:
    """Hands pieces through; they are as large as the caller made them, so no limit is needed."""

    needs_input = True

    def decompress(
        self,
        data: bytes | memoryview,
        output_bytes_max: int = -1,  # noqa: ARG002  the output is never larger than the input
    ) -> bytes:
        """`data` itself."""
        return bytes(data)

    def finish(self) -> None:
        """Content may end anywhere."""


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


# Trino's reader refuses larger windows, and it is the memory that each reader must hold.
WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024

# Level 1 is the library's fastest regular one, and as small as 3 on JSON. Its window is 512 KiB.

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
