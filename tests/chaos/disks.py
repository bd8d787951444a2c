"""Disks for tests to break: one so small that a test can fill it, and one that is slow."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self, final

from gazette_platform.errors import SetupError
from gazette_platform.testing.waiting import pass_time

_BALLAST = ".ballast"
_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 20


@final
class SmallDisk:
    """A tmpfs mounted on a folder while it is entered; what is in it is lost with it.

    To mount takes root, or CAP_SYS_ADMIN: without it `is_mounted` stays False, the folder is one
    like any other, and `fill` does nothing.

    Args:
        folder: created if it is not there; must be empty.
        size_bytes: of the disk.
    """

    def __init__(self, folder: Path, *, size_bytes: int) -> None:
        self.folder = folder
        self.is_mounted = False
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes},mode=0755"
        done = _run("mount", "-t", "tmpfs", "-o", options, "gazette-test", str(self.folder))
        self.is_mounted = done == 0
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.is_mounted:
            # Lazily: a process that was just killed may not have let go of its files.
            _run("umount", "--lazy", str(self.folder))
            self.is_mounted = False

    def fill(self) -> None:
        """Leave not one byte of room, until `free`. Blocks.

        Raises: SetupError: the disk takes more than it should hold.
        """
        if not self.is_mounted:
            return
        with (self.folder / _BALLAST).open("ab", buffering=0) as file:
            size = _PIECE_BYTES
            while size:
                try:
                    if not file.write(bytes(size)):
                        size //= 2
                except OSError as err:
                    if err.errno != errno.ENOSPC:
                        raise SetupError(f"cannot fill {self.folder}: {err.strerror}") from err
                    size //= 2

    def free(self) -> None:
        """Undo `fill`."""
        (self.folder / _BALLAST).unlink(missing_ok=True)


def _run(*command: str) -> int:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            timeout=_TIMEOUT_S,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return done.returncode


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
            # When it ends on request, it lets go of every thread; the kernel does so too for one that is killed.
            strace.terminate()
            await asyncio.to_thread(_wait, strace)

    async def _attached(self, strace: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ATTACH_S):
                while strace.poll() is None:
                    # A process that ended meanwhile has no disk to be slow.
                    if not _tracers_of(self._pid) - {strace.pid}:
                        return
                    await pass_time(_POLL_S)
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
    """Wait until it has ended, as requested."""
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
    """Return who traces the threads of a process, 0 for none; empty if it has ended."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = (thread / "status").read_text()
                fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
                if not fields["State"].strip().startswith(("Z", "X")):
                    found.add(int(fields["TracerPid"]))
    return found
