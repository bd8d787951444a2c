"""CPU time and memory of processes, from the kernel."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from gazette_platform.ops.clock import Clock

__all__ = [
    "busy_s",
    "cpu_s",
    "family_rss_mb",
    "idle",
    "peak_rss_mb",
    "rss_mb",
    "session_cpu_s",
    "threads_cpu_s",
]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_WINDOW_S = 0.2
# Two ticks: what a broker that does nothing may use of a window by its timers.
_IDLE_CPU_S = 0.02


def cpu_s(pid: int) -> float:
    """User and system time of a process and its threads since its start, seconds."""
    return _cpu_s(_read(Path(f"/proc/{pid}/stat")))


def threads_cpu_s(pid: int) -> float:
    """The same of the threads that live, to the nanosecond: ticks of 10 ms say little of a process at rest."""
    _read(Path(f"/proc/{pid}/stat"))
    used_ns = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # it has ended
            used_ns += int(path.read_text().split()[0])
    return used_ns / 1e9


def session_cpu_s(pid: int) -> float:
    """The same of all processes of the session that `pid` leads, such as a server and its JVM."""
    _read(Path(f"/proc/{pid}/stat"))
    found = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            stat = path.read_text()
            found += _cpu_s(stat) if int(_fields(stat)[3]) == pid else 0.0
    return found


def _cpu_s(stat: str) -> float:
    fields = _fields(stat)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _fields(stat: str) -> list[str]:
    """Those behind the name of the program."""
    return stat.rpartition(")")[2].split()


def busy_s() -> float:
    """Time that all cores together spent on anything, stolen time included, seconds."""
    fields = [int(value) for value in _read(Path("/proc/stat")).split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Resident memory now, in MB of 10^6 bytes."""
    return _status_mb(pid, "VmRSS:")


def peak_rss_mb(pid: int) -> float:
    """Largest resident memory so far, in MB of 10^6 bytes."""
    return _status_mb(pid, "VmHWM:")


def family_rss_mb() -> float:
    """Resident memory now of this process and all below it that are of its session, in MB of 10^6 bytes."""
    session, parents, sizes = os.getsid(0), dict[int, int](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = _fields(path.read_text())
            if int(fields[3]) == session:
                pid = int(path.parent.name)
                parents[pid], sizes[pid] = int(fields[1]), int(fields[21]) * _PAGE_BYTES / 1e6
    family = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= found
    return sum(sizes[pid] for pid in family)


async def idle(pid: int, clock: Clock, *, timeout_s: float = 15.0) -> bool:
    """Wait until a process has nothing left to do: what one case began must not slow the next.

    Returns: False if it is still busy after `timeout_s` seconds.
    """
    deadline = clock.monotonic() + timeout_s
    before = cpu_s(pid)
    while clock.monotonic() < deadline:
        await asyncio.sleep(_WINDOW_S)
        now = cpu_s(pid)
        if now - before <= _IDLE_CPU_S:
            return True
        before = now
    return False


def _status_mb(pid: int, field: str) -> float:
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    raise SetupError(f"process {pid} has no {field} (has it ended?)")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as err:
        raise SetupError(f"cannot read {path}: {err.strerror} (the benchmark needs Linux)") from err
