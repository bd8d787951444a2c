"""A slow disk for one process that runs: each of its calls to files takes as long as told."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self, final

from gazette_platform.errors import SetupError

__all__ = ["SlowDisk", "slow_disk_problem"]

# None of them is of sockets, pipes or files that Python imports. Of another machine's processor some
# are not there, which the question mark allows.
_DATA = ("pwrite64", "?pwritev", "pread64", "?preadv")
_SYNC = ("fsync", "fdatasync", "ftruncate", "sendfile", "?link", "linkat", "?rename", "?renameat2")
_ATTACH_S = 10.0
_DETACH_S = 5.0
_POLL_S = 0.01


@final
class SlowDisk:
    """Delays the disk calls of a process, and nothing else of it, while it is entered; by strace.

    The thread that makes a call waits for it, as for a disk that has much to do.

    Args:
        pid: of a process that this one may trace: root may, and in most places its owner.
        data_s: seconds that each read or write of a file takes more.
        sync_s: seconds that each sync, copy, link or rename of one takes more.
    """

    def __init__(self, pid: int, *, data_s: float, sync_s: float) -> None:
        self._pid = pid
        self._data_s = data_s
        self._sync_s = sync_s
        self._strace: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        """Attach. Raises: SetupError: there is no strace, or it may not trace the process."""
        # Not by the event loop, whose way to start a process disturbs a gRPC of this one.
        self._strace = _start(
            *(_find_strace(), "-f", "-qq", "-o", "/dev/null", "-p", str(self._pid)),
            *("-e", f"trace={','.join(_DATA + _SYNC)}"),
            *("-e", f"inject={','.join(_DATA)}:delay_enter={self._data_s * 1e6:.0f}"),
            *("-e", f"inject={','.join(_SYNC)}:delay_enter={self._sync_s * 1e6:.0f}"),
        )
        try:
            await self._attached(self._strace)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        strace, self._strace = self._strace, None
        if strace is not None:
            # Told to end, it lets go of every thread; the kernel does so too for one that is killed.
            strace.terminate()
            await asyncio.to_thread(_wait, strace)

    async def _attached(self, strace: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ATTACH_S):
                while strace.poll() is None:
                    # A process that ended meanwhile has no disk to be slow.
                    if not _tracers_of(self._pid) - {strace.pid}:
                        return
                    await asyncio.sleep(_POLL_S)
        if not _tracers_of(self._pid):
            return
        said = ""
        if strace.poll() is not None and strace.stderr is not None:
            said = strace.stderr.read().decode(errors="replace").strip()
        raise SetupError(f"strace cannot slow process {self._pid}: {said or 'it does not attach'}")


async def slow_disk_problem() -> str:
    """Why this process may not slow down another one that it has started; empty if it may.

    Raises: SetupError: there is no strace.
    """
    _find_strace()
    idle = _start(sys.executable, "-c", "import sys; sys.stdin.read()")
    try:
        async with SlowDisk(idle.pid, data_s=0, sync_s=0):
            return ""
    except SetupError as err:
        return f"{err} (it takes root, CAP_SYS_PTRACE or kernel.yama.ptrace_scope=0)"
    finally:
        idle.kill()
        await asyncio.to_thread(_wait, idle)


def _start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Until it has ended, as it was told to."""
    with process:  # closes its pipes, and waits
        try:
            process.wait(_DETACH_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _find_strace() -> str:
    strace = shutil.which("strace")
    if strace is None:
        raise SetupError("strace is not on PATH (Debian: apt-get install strace)")
    return strace


def _tracers_of(pid: int) -> set[int]:
    """Who traces the threads of a process, 0 for nobody; empty if it has ended."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = (thread / "status").read_text()
                fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
                if not fields["State"].strip().startswith(("Z", "X")):
                    found.add(int(fields["TracerPid"]))
    return found
