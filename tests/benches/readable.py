"""Waits for a file descriptor, whatever its number: `select` takes only the first 1,024."""

from __future__ import annotations

import select


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Return whether there is something to read, or the end of it, within the time."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
