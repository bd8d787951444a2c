"""Codec NONE: stored bytes are the content."""

from __future__ import annotations

from typing import final

__all__ = ["IdentityCompressor", "IdentityDecompressor"]


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
