"""What the system lets a process have."""

from __future__ import annotations

import resource

__all__ = ["raise_file_limit"]

# Each is a connection, a spool or a fragment that is read. More than this nobody has at once, and some
# systems give a billion, for which libraries then make tables.
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
