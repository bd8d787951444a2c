"""Which codec has which compressor, decompressor and file extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.codecs.gzip import GzipCompressor, GzipDecompressor, GzipStreamCompressor
from gazette_platform.codecs.identity import IdentityCompressor, IdentityDecompressor
from gazette_platform.codecs.snappy import SnappyCompressor, SnappyDecompressor
from gazette_platform.codecs.zstd import ZstdCompressor, ZstdDecompressor
from gazette_platform.errors import ValidationError
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_platform.codecs.interface import Compressor, Decompressor

__all__ = [
    "compressor",
    "decompress_steps",
    "decompressor",
    "extension",
]


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
