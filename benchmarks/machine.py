"""The machine of a run: what it is, and how fast it is while the run lasts."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.codecs import compressor, decompressor
from gazette_platform.errors import SetupError
from gazette_platform.protocol import CompressionCodec

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["describe", "measure", "program_version", "versions"]

_BLOCK_BYTES = 1 << 20
_FILE_BYTES_MAX = 256 << 20
_PACKAGES = ("gazette-platform", "grpcio", "uvloop", "isal", "zstandard", "protobuf")


def describe() -> dict[str, object]:
    """CPU, cores that we may use, memory and system; nothing that names the machine."""
    model = _field(Path("/proc/cpuinfo"), "model name") or platform.machine()
    memory_kib = int((_field(Path("/proc/meminfo"), "MemTotal") or "0 kB").split()[0])
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / (1 << 20), 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that the figures depend on."""
    return {"python": platform.python_version()} | {
        name: metadata.version(name) for name in _PACKAGES
    }


def program_version(binary: Path) -> str:
    """The last word of the first line of ``--version``.

    Raises: SetupError: the program does not say.
    """
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.splitlines()[0].split()[-1]
    except (OSError, subprocess.SubprocessError, IndexError) as err:
        raise SetupError(f"{binary} --version: {err}") from err


def measure(content: bytes, folder: Path, clock: Clock, *, window_s: float) -> Figures:
    """Speeds of one core at what a broker does with content, in MB of content a second.

    Args:
        content: a MiB at least.
        folder: where files are written and removed again.
        clock: measures the time.
        window_s: seconds for each figure.

    Returns: ``machine_*_mb_per_s``.
    """
    view = memoryview(content)
    blocks = [
        view[at : at + _BLOCK_BYTES] for at in range(0, len(view) - _BLOCK_BYTES + 1, _BLOCK_BYTES)
    ]
    digest = hashlib.sha1(usedforsecurity=False)
    gzip, zstd = compressor(CompressionCodec.GZIP), compressor(CompressionCodec.ZSTANDARD)
    gzipped = [gzip.compress(block) for block in blocks[:16]]
    inflated = decompressor(CompressionCodec.GZIP)

    def rate(work: Callable[[int], object]) -> float:
        begun = now = clock.monotonic()
        count = 0
        while now - begun < window_s:
            work(count)
            count += 1
            now = clock.monotonic()
        return count * _BLOCK_BYTES / (now - begun) / 1e6

    with tempfile.TemporaryFile(dir=folder) as file:
        fd, in_file = file.fileno(), _FILE_BYTES_MAX // _BLOCK_BYTES
        return {
            "machine_sha1_mb_per_s": rate(lambda n: digest.update(blocks[n % len(blocks)])),
            "machine_gzip_mb_per_s": rate(lambda n: gzip.compress(blocks[n % len(blocks)])),
            "machine_zstd_mb_per_s": rate(lambda n: zstd.compress(blocks[n % len(blocks)])),
            "machine_gunzip_mb_per_s": rate(
                lambda n: inflated.decompress(gzipped[n % len(gzipped)])
            ),
            "machine_memcpy_mb_per_s": rate(lambda n: bytes(blocks[n % len(blocks)])),
            "machine_pwrite_mb_per_s": rate(
                lambda n: os.pwrite(fd, blocks[n % len(blocks)], n % in_file * _BLOCK_BYTES)
            ),
        }


def _field(path: Path, name: str) -> str:
    """The value behind ``name :`` in a file of the kernel; empty if it is not there."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
