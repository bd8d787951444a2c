"""What the system lets a process have."""

from __future__ import annotations

import resource

__all__ = ["raise_file_limit"]

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
