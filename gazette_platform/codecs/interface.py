"""What every codec offers."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Compressor", "Decompressor"]


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
