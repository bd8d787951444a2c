"""The frame of a long run: what ends it for good, what starved it, and its exit code.

Each harness (chaos, soak, fuzz, the crash runs, the outage) has a *hard end*: a deadline that follows from its planned
length. A run that is still there then says what it was doing, is asked to stop as by Ctrl-C, and if it does not, all
processes that it started are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, final

from gazette_platform.errors import GazetteError
from gazette_platform.ops.process import describe_tasks, describe_threads
from gazette_platform.testing.machine import MachineWatch
from gazette_platform.testing.starvation import Late, State, TooLate, headline, is_late, judge
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Harness", "Outcome", "children_of"]

# Seconds to stop servers and unmount disks, once asked to.
_GRACE_S: Final = 60.0
_PR_SET_CHILD_SUBREAPER: Final = 36
# Processes may start others while they are killed.
_ROUNDS: Final = 5


class Outcome(Protocol):
    """How a run went."""

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        ...

    @property
    def summary(self) -> str:
        """The last line."""
        ...


@final
class Harness:
    """The frame of one run, a context manager; `run` does all that a command does with it.

    Args:
        name: of the harness, as its last line begins: ``soak``.
        what: which run it is, for the last line: ``seed=7``.
        planned_s: seconds after which the run is over for good, on an idle machine with two cores.
        grace_s: seconds that it then has to stop by itself. `patient` scales both.

    Attributes:
        machine: watches while it is entered.
        is_over: whether the hard end was reached.
    """

    def __init__(
        self, name: str, what: str, *, planned_s: float, grace_s: float = _GRACE_S
    ) -> None:
        self.machine = MachineWatch()
        self.is_over = False
        self._name, self._what = name, what
        self._limit_s, self._grace_s = patient(planned_s), patient(grace_s)
        self._doing = "starting"
        self._has_ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def note(self, text: str) -> None:
        """Note what the run is doing, to be said at its hard end."""
        self._doing = text

    def __enter__(self) -> Self:
        _adopt_orphans(is_on=True)
        self.machine.__enter__()
        self._keeper = threading.Thread(target=self._keep_time, name="hard end", daemon=True)
        self._keeper.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._has_ended.set()
        self._keeper.join()
        self.machine.__exit__()
        if self.is_over:
            _kill_children()
        _adopt_orphans(is_on=False)

    def attach(self) -> None:
        """Show the tasks of the running event loop at the hard end, and let SIGTERM cancel this task."""
        task = asyncio.current_task()
        assert task is not None
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGTERM, task.cancel)

    def run(self, play: Callable[[], Outcome], *, tell: Callable[[str], None] = print) -> int:
        """Play, and say how it went in a last line.

        Args:
            play: does it all.
            tell: prints the last line.

        Returns: the exit code: 0 if all is well, 1 if not, 2 if it was starved or could not start.
        """
        try:
            with self:
                outcome = play()
        except (asyncio.CancelledError, KeyboardInterrupt, GazetteError, OSError) as err:
            if self.is_over:
                return self._end(self._overrun(), tell)
            if not isinstance(err, Exception) or isinstance(err, asyncio.CancelledError):
                sys.stderr.write(f"{self._name}: stopped\n")
                return 1
            if is_late(err) and self.machine.cause(waited=getattr(err, "waited", 0.0)):
                return self._end(err, tell)
            sys.stderr.write(f"{self._name}: error: {err}\n")
            return 2
        tell(outcome.summary)
        return outcome.state.exit_code

    def _end(self, err: BaseException, tell: Callable[[str], None]) -> int:
        """Say how a run went that `err` ended."""
        reasons = [Late(err)]
        cause = self.machine.cause(waited=getattr(err, "waited", 0.0))
        state = judge(reasons, cause)
        tell(f"{self._name}: {state} {self._what}: {headline(reasons, cause)}")
        return state.exit_code

    def _overrun(self) -> TooLate:
        return TooLate(f"not over after {self._limit_s:g} s; it was doing: {self._doing}")

    # ------------------------------------------------------------------ the hard end

    def _keep_time(self) -> None:
        if self._has_ended.wait(self._limit_s):
            return
        self.is_over = True
        lines = [f"{self._name}: {self._overrun()}; stopping all that it started"]
        with contextlib.suppress(Exception):  # of a loop that changes meanwhile
            lines += [describe_tasks(self._loop)] if self._loop is not None else []
        lines.append(describe_threads())
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGTERM)
        if self._has_ended.wait(self._grace_s):
            return
        # It hangs in its own clean-up.
        code = self._end(self._overrun(), print)
        sys.stdout.flush()
        _kill_children()
        os._exit(code)


def _adopt_orphans(*, is_on: bool) -> None:
    """Become the parent, or no longer, of processes whose parent ends, so that the hard end finds them."""
    with contextlib.suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)


def _kill_children() -> None:
    for _ in range(_ROUNDS):
        found = children_of(os.getpid())
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children_of(parent: int) -> list[int]:
    """Return the processes that descend from one and still run, as ``/proc`` lists them."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, above = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children[int(above)].append(int(folder.name))
    found, todo = [], [parent]
    while todo:
        below = children[todo.pop()]
        found += below
        todo += below
    return found
