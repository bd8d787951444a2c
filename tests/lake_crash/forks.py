"""Processes that several threads fork from a server, wait for, and kill.

What `multiprocessing` reports of a process that a server has forked is read from a pipe, once. Whoever begins a process looks at
all others first, those of other threads among them; of two threads that find one ended, one reads its exit code, and the other
finds nothing and notes 255 (https://github.com/python/cpython/issues/130895). So here all that may read comes one at a time,
and waiting reads nothing.
"""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, final

from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerProcess

__all__ = ["Fork", "Forks"]

# Of this process, as is the list of others that `multiprocessing` keeps.
_READING = threading.Lock()
_KILLED_TIMEOUT_S = 60.0


@final
class Fork:
    """A process that was begun. Of one thread, beside others that have others.

    Args:
        process: is begun, and no other code looks at it.
    """

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended, for so long at most. Returns: whether it has."""
        return bool(wait([self._process.sentinel], timeout_s))

    def kill(self) -> None:
        """Have it end now, by SIGKILL, unless it has."""
        self._process.kill()

    def end(self, timeout_s: float) -> int | None:
        """Wait until it has ended, and forget it. It is killed if it does not in time.

        Returns: its exit code, or its signal, negative; None: it was killed for that.
        Raises: TimeoutError: nor does it end then.
        """
        is_in_time = self.has_ended(timeout_s)
        if not is_in_time:
            self.kill()
            if not self.has_ended(patient(_KILLED_TIMEOUT_S)):
                raise TimeoutError(
                    f"{self._process.name}: it was killed and is still there after {patient(_KILLED_TIMEOUT_S):g} s"
                )
        with _READING:
            self._process.join()
            code = self._process.exitcode
            self._process.close()
        return code if is_in_time else None


@final
class Forks:
    """Begins processes, for any number of threads.

    Args:
        preload: module that the server loads, once.
    """

    def __init__(self, preload: str) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([preload])

    def begin(self, target: Callable[..., object], *arguments: object, name: str) -> Fork:
        """A process that calls `target`."""
        process = self._context.Process(target=target, args=arguments, name=name)
        with _READING:
            process.start()
        return Fork(process)
