"""The frame of a long run: its hard end, whether the machine starved it, and its exit code.

Each harness (chaos, soak, fuzz, the crash runs, the outage) has a *hard end*: a deadline that follows from its planned
length. A run that is still there then prints what it was doing and is asked to stop, as by Ctrl-C. If it does not, all
processes that it started are killed.

On a machine that is too busy, a time limit says nothing about the code: a server that is "not ready in 60 s" may have
had a core for two of them. Such a run is *starved*: neither good nor bad. A lost byte is lost on any machine, so a run
with one has failed, starved or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, final

from gazette_platform.errors import (
    CallUnanswered,
    EtcdError,
    GazetteError,
    StatusError,
    TransportError,
)
from gazette_platform.ops.process import describe_tasks, describe_threads
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.testing.waiting import TooLate, pass_time, patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gazette_platform.ops.clock import Clock

# The limits are several times what an idle machine with two cores needs. With so many processes for each core that
# want to run, those limits no longer hold.
_READY_PER_CORE: Final = 6.0
# A process that only sleeps and ticks is never late by so much of a span unless the machine stands still.
_STALLED_SHARE: Final = 0.05
# A server that starts wants a core nearly all the time.
_WAITED_SHARE: Final = 0.5
_HEADLINE_CHARS: Final = 300


@final
class Late(str):
    """A reason that rests on a limit of time."""

    __slots__ = ()


class State(StrEnum):
    """How a run went."""

    OK = "ok"
    FAILED = "FAILED"
    STARVED = "starved"

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return {State.OK: 0, State.FAILED: 1, State.STARVED: 2}[self]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strain:
    """How busy the machine was over a span of time."""

    span_s: float
    stalled_s: float = 0.0
    """Seconds in which a process that only ticks did not tick."""
    ready: float = 0.0
    """Processes that ran or wanted to run, on average."""
    cores: int = 2
    load: float = 0.0
    """Load average of the last minute; only shown."""


def starved_by(strain: Strain, *, waited: float = 0.0) -> str:
    """Say what starved a run; empty: nothing did.

    Args:
        strain: of the machine, while the run waited.
        waited: share of that time in which the process that it waited for had no core.
    """
    found = []
    if waited >= _WAITED_SHARE:
        found.append(f"it had no core {waited:.0%} of that time")
    if strain.ready >= _READY_PER_CORE * strain.cores:
        found.append(f"{strain.ready:.0f} processes at a time wanted {strain.cores} cores")
    if strain.stalled_s >= _STALLED_SHARE * strain.span_s and strain.stalled_s > 0:
        found.append(f"the machine stood still for {strain.stalled_s:.1f} of {strain.span_s:.0f} s")
    if found:
        found.append(f"load average {strain.load:.1f}")
    return ", ".join(found)


def judge(reasons: Sequence[str], cause: str) -> State:
    """Decide how a run went.

    Args:
        reasons: why it is not ok; those that rest on a limit of time are `Late`.
        cause: what starved it, see `starved_by`; empty: nothing did.
    """
    if not reasons:
        return State.OK
    if cause and all(isinstance(reason, Late) for reason in reasons):
        return State.STARVED
    return State.FAILED


class Judged:
    """The result of a run: what `reasons` and `starved_by` amount to."""

    __slots__ = ()

    reasons: Sequence[str]
    starved_by: str

    @property
    def state(self) -> State:
        """Whether it was ok, failed or was starved."""
        return judge(self.reasons, self.starved_by)

    @property
    def is_ok(self) -> bool:
        """Whether it came to its end, proved something, and showed nothing that must not be."""
        return not self.reasons


def headline(reasons: Sequence[str], cause: str) -> str:
    """Return what the last line of a run says of why it is not ok.

    Args:
        reasons: at least one; of the first the first line is shown, of the others how many there are.
        cause: what starved the run, if it was `starved`.
    """
    first = reasons[0].partition("\n")[0].removesuffix("; its log ends:")[:_HEADLINE_CHARS]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    starved = judge(reasons, cause) is State.STARVED
    return f"{first}{more}; {cause}" if starved else f"{first}{more}"


def is_late(err: BaseException) -> bool:
    """Return whether an error only says that time ran out."""
    if isinstance(err, BaseExceptionGroup):
        return all(map(is_late, err.exceptions))
    # A client repeats a call that failed by a retriable error, and raises it when its time is out.
    if isinstance(err, (TransportError, StatusError, EtcdError)) and err.retriable:
        return True
    return isinstance(err, (TooLate, CallUnanswered, TimeoutError, subprocess.TimeoutExpired))


def reason_of(err: BaseException, text: str = "") -> str:
    """Return an error's text, or `text`, as a reason; `Late` if time ran out."""
    text = text or str(err) or type(err).__name__
    return Late(text) if is_late(err) else text


def joined(reasons: Iterable[str]) -> str:
    """Join reasons into one, which is `Late` if all of them are."""
    reasons = list(reasons)
    text = "; ".join(reasons)
    return Late(text) if all(isinstance(reason, Late) for reason in reasons) else text


_TICK_S: Final = 0.05
# Python processes on a machine that is merely busy are late by less.
_LATE_S: Final = 0.25
_SAMPLE_S: Final = 0.5
# A run is starved if it was so for this long. Limits are longer, and a shorter rush is not to blame.
_WINDOW_S: Final = 30.0
_WINDOWS_MAX: Final = 20_000

_TICKER = """
import os, sys, time
tick, late, sample = map(float, sys.argv[1:])
last, parent = time.monotonic(), os.getppid()
since, ready, ticks = last, 0, 0
while os.getppid() == parent:
    time.sleep(tick)
    now = time.monotonic()
    if now - last - tick > late:
        print("stall", last, now, flush=True)
    last = now
    try:
        with open("/proc/loadavg") as load:
            ready += int(load.read().split()[3].split("/")[0]) - 1  # this process runs as well
    except (OSError, IndexError, ValueError):
        pass  # no such file on this system: stalls have to do
    ticks += 1
    if now - since > sample:
        print("ready", now - since, ready / ticks, flush=True)
        since, ready, ticks = now, 0, 0
"""


@dataclass(frozen=True, slots=True)
class Stall:
    """A span in which nothing ran that should have."""

    who: str
    """``machine``, or ``clients``: the event loop of the run."""
    begin: float
    """Monotonic seconds."""
    end: float

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.end - self.begin


@final
class MachineWatch:
    """Watches while it is entered, by a process of its own that does nothing but tick.

    Attributes:
        stalls: when that process did not tick, in the order in which they ended.
    """

    def __init__(self) -> None:
        self.stalls: list[Stall] = []
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=_WINDOWS_MAX)
        self._process: subprocess.Popen[str] | None = None
        self._began = time.monotonic()

    @property
    def pid(self) -> int:
        """The process that ticks; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        arguments = [str(_TICK_S), str(_LATE_S), str(_SAMPLE_S)]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _TICKER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._process,), name="machine watch", daemon=True
        )
        self._reader.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._reader.join()
        if process.stdout is not None:
            process.stdout.close()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            what, *numbers = line.split()
            first, second = map(float, numbers)
            if what == "stall":
                self.stalls.append(Stall("machine", first, second))
            else:
                self._samples.append((time.monotonic(), first, second))

    def cause(self, *, waited: float = 0.0) -> str:
        """Say what starved the run in its worst half minute; empty: nothing did.

        Args:
            waited: see `starved_by`.
        """
        return next(filter(None, (starved_by(s, waited=waited) for s in self._worst())), "")

    def _worst(self) -> list[Strain]:
        """Return the strain of the worst half minute: by processes, and by stalls."""
        now = time.monotonic()
        count = int((now - self._began) / (_WINDOW_S / 2))
        ends = [self._began + at * _WINDOW_S / 2 for at in range(2, count + 1)] + [now]
        strains = [self.strain(max(self._began, end - _WINDOW_S), end) for end in ends]
        return [max(strains, key=lambda s: s.ready), max(strains, key=lambda s: s.stalled_s)]

    def strain(self, begin: float, end: float) -> Strain:
        """Return how busy the machine was between two monotonic seconds."""
        # A copy: the thread that reads samples adds to the deque meanwhile.
        samples = [(span, ready) for at, span, ready in self._samples.copy() if begin < at <= end]
        sampled_s = sum(span for span, _ in samples)
        return Strain(
            span_s=end - begin,
            stalled_s=starved_s([s for s in self.stalls if s.who == "machine"], begin, end),
            ready=sum(span * ready for span, ready in samples) / sampled_s if samples else 0.0,
            cores=_cores(),
            load=os.getloadavg()[0],
        )


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def starved_s(stalls: Iterable[Stall], begin: float, end: float) -> float:
    """Return the seconds of a span in which the machine or the clients stalled, each counted once."""
    overlapping = (s for s in stalls if s.end > begin and s.begin < end)
    spans = sorted((max(s.begin, begin), min(s.end, end)) for s in overlapping)
    total, at = 0.0, begin
    for first, last in spans:
        if last > at:
            total += last - max(first, at)
            at = last
    return total


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
            tell: whether to print the last line.

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


_LOOP_TICK_S = 0.05
# Python processes on a machine that is merely busy are late by less.
_LOOP_LATE_S = 0.25


@final
class Watchdog:
    """Watches while it is entered.

    Attributes:
        machine: the process that ticks.
        stalls: so far, of both clocks, in the order in which they ended.
    """

    def __init__(self, clock: Clock) -> None:
        self.machine = MachineWatch()
        self.stalls: list[Stall] = self.machine.stalls
        self._clock = clock
        self._tasks = TaskGroup("watchdog")

    @property
    def pid(self) -> int:
        """The process that ticks; 0 if it does not run."""
        return self.machine.pid

    async def __aenter__(self) -> Self:
        self.machine.__enter__()
        self._tasks.spawn(self._tick(), name="loop")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.machine.__exit__()
        await self._tasks.close()

    async def _tick(self) -> None:
        last = self._clock.monotonic()
        while True:
            await pass_time(_LOOP_TICK_S)
            now = self._clock.monotonic()
            if now - last - _LOOP_TICK_S > _LOOP_LATE_S:
                self.stalls.append(Stall("clients", last, now))
            last = now
