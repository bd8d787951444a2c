"""The process as the operating system sees it: identity, limits, memory, stacks.

A server of large messages keeps freed buffers for the next ones: content comes in the same sizes again, and
mapping memory for each message costs a tenth of an append. After a burst a broker therefore looks as if it
leaked. `give_back_when_idle` returns the memory once the broker has little to do.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.ops.tasks import run_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from types import FrameType

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


# The limit of the container, as the kernel shows it within one (cgroup v2): microseconds of CPU in each
# period, and the period.
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")

# Each file is a connection, a spool or a fragment that is being read: no process needs more at once. Some
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


# Parameters of glibc's mallopt, and what we set them to. By default each content message is mapped,
# faulted in page by page and unmapped again.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_TRIM_BYTES = 128 << 20
_MMAP_BYTES = 32 << 20
# By default threads get up to eight heaps a core. What one has freed serves no other, and
# malloc_trim leaves the top of all but the first alone: after a burst tens of MB stay with each.
# A second one makes reads of stored content a tenth faster, but keeps 80 MB after hostile input.
_ARENAS = 1

# Calls make little garbage in cycles, and what lives long grows with the journals: look for cycles
# a tenth as often as CPython does, and through everything a hundredth as often.
_GC_THRESHOLDS = (10_000, 20, 100)

# Giving back takes half a millisecond for each MB, and no other thread can allocate meanwhile. So it is
# not done under load, nor for small amounts, and rarely for memory that turned out to be in use. The
# calls to etcd for a hundred journals that come at once leave about as much as is worth it.
_LOOK_S = 5.0
_IDLE_CORES_MAX = 0.25
_GROWTH_BYTES_MIN = 4 << 20
_VAIN_PAUSES_MAX = 24


def tune_malloc() -> None:
    """Call once, before any thread is started."""
    mallopt = _libc("mallopt")
    if mallopt is not None:  # another libc has limits of its own
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def settle_memory() -> None:
    """Call once, when all that lives as long as the process was built.

    Modules and specs are kept from the garbage collector, because a full pass over them would show
    as latency. What was needed only to import them goes back to the system.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    trim = _libc("malloc_trim")
    if trim is not None:
        trim(0)


def resident_bytes() -> int:
    """What this process has of the machine's memory."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def give_back_when_idle(
    executor: Executor, *, look_s: float = _LOOK_S, idle_cores_max: float = _IDLE_CORES_MAX
) -> None:
    """Give free memory back to the system, whenever this process has grown and has little to do.

    Args:
        look_s: seconds between two looks.
        idle_cores_max: cores that it uses at most while it counts as idle.

    Returns: at once where the C library cannot do it; else never.
    Cancellation: safe.
    """
    trim = _libc("malloc_trim")
    if trim is None:
        return
    loop = asyncio.get_running_loop()
    least = left = resident_bytes()
    again_at, pause_s = 0.0, look_s
    while True:
        began, used_s = loop.time(), _cpu_s()
        await asyncio.sleep(look_s)
        is_idle = _cpu_s() - used_s < idle_cores_max * (loop.time() - began)
        grown = resident_bytes()
        # What turned out to be in use may be freed later, and nothing shows that. So it is tried again, but ever
        # more rarely, also while the process grows: the more was tried in vain, the more it has to grow.
        is_due = grown - left >= _GROWTH_BYTES_MIN * pause_s / look_s or loop.time() >= again_at
        if is_idle and is_due and grown - least >= _GROWTH_BYTES_MIN:
            await run_in(executor, trim, 0)
            left = resident_bytes()
            is_vain = grown - left < _GROWTH_BYTES_MIN // 2
            pause_s = min(pause_s * 2, _VAIN_PAUSES_MAX * look_s) if is_vain else look_s
            again_at = loop.time() + pause_s
        least = min(least, resident_bytes())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _libc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None)


_DEPTH_MAX = 30
_TASKS_MAX = 200


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """The tasks that wait, each with the source lines where it and what it awaits stand, outermost first.

    May be called from another thread: what changes meanwhile is described as it was before or after.
    """
    lines: list[str] = []
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in tasks[:_TASKS_MAX]:
        lines.append(f"{task.get_name()}:")
        lines += [f"  {_frame_text(frame)}" for frame in _frames(task.get_coro())]
    if len(tasks) > _TASKS_MAX:
        lines.append(f"and {len(tasks) - _TASKS_MAX} more")
    return "\n".join(lines)


def describe_threads() -> str:
    """The threads that run Python, each with the lines at which it stands, outermost first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, innermost in sys._current_frames().items():  # noqa: SLF001  there is no other way
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < _DEPTH_MAX:
            frames.append(frame)
            frame = frame.f_back
        lines.append(f"thread {names.get(ident, ident)}:")
        lines += [f"  {_frame_text(frame)}" for frame in reversed(frames)]
    return "\n".join(lines)


def _frames(awaited: Any) -> list[FrameType]:
    """Those of a coroutine and of what it awaits; futures and C code have none."""
    frames: list[FrameType] = []
    while awaited is not None and len(frames) < _DEPTH_MAX:
        frame = _first(awaited, "cr_frame", "ag_frame", "gi_frame")
        if frame is None:
            break
        frames.append(frame)
        awaited = _first(awaited, "cr_await", "ag_await", "gi_yieldfrom")
    return frames


def _first(thing: Any, *names: str) -> Any:
    return next(
        (found for name in names if (found := getattr(thing, name, None)) is not None), None
    )


def _frame_text(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
