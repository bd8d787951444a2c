"""Processes of this machine, found again by pid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessId"]

# `comm`, the second field of /proc/<pid>/stat, may hold spaces and brackets; the rest may not.
_STAT_START_FIELD = 19
_STAT_STATE_FIELD = 0


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies a process for ever: pids are used again, but not together with the same start time."""

    pid: int
    started: int
    """Clock ticks from the boot of the machine."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has `pid` now; `started` is 0 if there is none."""
        return cls(pid, _started(pid))

    def is_alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return self.started != 0 and _started(self.pid) == self.started


def _started(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[_STAT_STATE_FIELD] in {"Z", "X"} else int(fields[_STAT_START_FIELD])
