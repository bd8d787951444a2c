"""What the system lets a process have."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

__all__ = ["cores_of_quota", "raise_file_limit", "usable_cores"]

# The limit of the container, as the kernel shows it within one (cgroup v2): microseconds of CPU in each
# period, and the period.
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")

# Each file is a connection, a spool or a fragment that is being read: nobody needs more at once. Some
# systems allow a billion, and some libraries then make tables of that size.
_FILES_MAX = 1 << 16


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows it, within reason.

    Most systems begin with 1024, for the sake of programs of long ago, and a thousand idle connections
    would leave none for spools.

    Returns: how many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    It is the smallest of those that the machine has, those that the process may run on, and the CPU
    limit of its container.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS does not say
        cores = os.cpu_count() or 1
    try:
        return min(cores, cores_of_quota(_QUOTA.read_text()) or cores)
    except OSError:
        return cores


def cores_of_quota(text: str) -> int:
    """Return the whole cores in a CPU quota of a container, at least 1; 0: there is no quota.

    >>> [cores_of_quota(text) for text in ("max 100000", "250000 100000", "50000 100000", "?")]
    [0, 2, 1, 0]
    """
    parts = text.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or not int(parts[1]):
        return 0
    return max(1, int(parts[0]) // int(parts[1]))
