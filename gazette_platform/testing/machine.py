"""Watch over the machine of a run: when it stood still, and how many processes wanted its cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

from gazette_platform.testing.starvation import Strain, starved_by

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MachineWatch", "Stall", "starved_s"]

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
        samples = [(span, ready) for at, span, ready in self._samples if begin < at <= end]
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
