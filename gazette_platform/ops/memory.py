"""How a long-lived server of large messages treats memory."""

from __future__ import annotations

import ctypes
import gc

__all__ = ["settle_memory"]

# Parameters of glibc's mallopt, and what we set them to. By default each content message is mapped,
# faulted in page by page and unmapped again, a tenth of an append's cost.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_TRIM_BYTES = 128 << 20
_MMAP_BYTES = 32 << 20

# Calls make little garbage in cycles, and what lives long grows with the journals: look for cycles
# a tenth as often as CPython does, and through everything a hundredth as often.
_GC_THRESHOLDS = (10_000, 20, 100)


def settle_memory() -> None:
    """Call once, when all that lives as long as the process was built.

    Modules and specs are kept from the garbage collector, because a full pass over them would show
    as latency; freed buffers of content are kept for the next ones.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another libc has limits of its own
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
