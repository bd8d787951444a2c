"""Codecs: how fast each makes and reads a fragment of JSON lines, and how small it becomes, in one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.codecs import compressor, decompress_steps, decompressor
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["measure_codecs"]

# Not of NONE, which hands content through: a file of it is read and written as fast as its store is.
_NAMES = {
    "gzip": CompressionCodec.GZIP,
    "gzip_offload": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
    "zstd": CompressionCodec.ZSTANDARD,
    "snappy": CompressionCodec.SNAPPY,
}

# As brokers do: they compress batches of so many bytes, and read objects in such pieces and steps.
_BATCH_BYTES = 1 << 20
_STEP_BYTES_MAX = 512 << 10


def measure_codecs(
    content: bytes, clock: Clock, *, window_s: float, runs: int
) -> Iterator[tuple[str, Figures]]:
    """Yields each codec's label and figures: the best of some runs, since nothing makes code faster.

    Args:
        content: more than a batch.
        window_s: seconds of each run, which does whole batches.
        runs: of each codec and direction.

    Raises: AssertionError: what was read is not what was written.
    """
    batches = [content[at : at + _BATCH_BYTES] for at in range(0, len(content), _BATCH_BYTES)]
    for name, codec in _NAMES.items():
        figure = f"codec_{name}"
        written = [_write(codec, batches, clock, window_s) for _ in range(runs)]
        stored, length = written[-1][1:]
        read = [_read(codec, stored, length, clock) for _ in range(runs)]
        yield (
            f"codec {name}",
            {
                f"{figure}_compress_mb_per_s": max(speed for speed, _, _ in written),
                f"{figure}_decompress_mb_per_s": max(read),
                f"{figure}_stored_ratio": len(stored) / length,
            },
        )


def _write(
    codec: CompressionCodec, batches: list[bytes], clock: Clock, window_s: float
) -> tuple[float, bytes, int]:
    """One file. Returns: MB of content a second, what is stored, and bytes of content."""
    writer, parts, length = compressor(codec), [], 0
    begun = clock.monotonic()
    for batch in batches:
        parts.append(writer.compress(batch))
        length += len(batch)
        if clock.monotonic() - begun > window_s:
            break
    parts.append(writer.finish())
    elapsed_s = clock.monotonic() - begun
    return length / elapsed_s / 1e6, b"".join(parts), length


def _read(codec: CompressionCodec, stored: bytes, length: int, clock: Clock) -> float:
    """MB of content a second."""
    reader, found, view = decompressor(codec), 0, memoryview(stored)
    begun = clock.monotonic()
    for at in range(0, len(stored), _BATCH_BYTES):
        piece = view[at : at + _BATCH_BYTES]
        for step in decompress_steps(reader, piece, step_bytes_max=_STEP_BYTES_MAX):
            found += len(step)
    reader.finish()
    elapsed_s = clock.monotonic() - begun
    assert found == length, f"{codec.name}: {found} bytes were read of {length}"
    return found / elapsed_s / 1e6
