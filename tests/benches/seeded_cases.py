"""A command that plays cases of a seed in a world of servers. Its last line and its exit code say how it went."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.markup import escape

from gazette_platform.errors import GazetteError, SetupError
from tests.harness import Harness, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

# The hard end of a run: its servers and the engines that are asked at the end, beside its cases.
_START_AND_END_S = 900.0

__all__ = ["Run", "SeededCases", "numbers_of"]


class CasesOutcome(Outcome, Protocol):
    """How a run went."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was wrong."""
        ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the command."""

    seed: int
    numbers: list[int]
    """The cases to play."""
    left_out: list[int]
    """Cases that were asked for, and need what this machine lacks."""
    say: Callable[[str], None]
    """Keeps a line."""
    show: Callable[[str], None]
    """Replaces the line that says what is under way."""
    starved_by: Callable[[], str]
    """See `MachineWatch.cause`."""


@dataclass(frozen=True, kw_only=True)
class SeededCases:
    """The command."""

    name: str
    """Of the run, as its last line begins: ``lake-crash``."""
    module: str
    description: str
    cases: int
    """How many a whole seed has."""
    case_s: float
    """Seconds that a case may take, of all that are played, until the hard end of the run."""
    open_world: Callable[[Path, Callable[[str], None]], AbstractContextManager[Any]]
    """Starts servers in a folder; takes a function that is called with what is under way."""
    play: Callable[[Run, Any], CasesOutcome]
    """Plays cases in a world."""
    lacks: Callable[[int, int], str] = lambda seed, number: ""
    """Says what this machine lacks for a case of a seed, and how to get it; empty: nothing."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run it. Returns: 0 if all is well, 1 if something is wrong, 2 if it was starved or could not start."""
        # Servers are stopped on the way out.
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            return self._main(arguments)
        finally:
            signal.signal(signal.SIGTERM, before)

    def _main(self, arguments: Sequence[str] | None) -> int:
        try:
            options = self._parse(arguments)
            named = numbers_of(options.case) if options.case else list(range(options.cases))
            if not named:
                raise SetupError(f"--cases: {options.cases} is not a positive number")
            if options.out is not None and options.out.exists() and any(options.out.iterdir()):
                raise SetupError(f"--out: {options.out} is not empty; name another folder")
            reasons = {number: self.lacks(options.seed, number) for number in named}
            numbers = [number for number, reason in reasons.items() if not reason]
            if not numbers:
                raise SetupError(f"no case can be played here: {next(iter(reasons.values()))}")
            harness = Harness(
                self.name,
                f"seed={options.seed} cases={len(numbers)}",
                planned_s=_START_AND_END_S + len(numbers) * self.case_s,
            )
        except GazetteError as err:
            sys.stderr.write(f"{self.name}: error: {err}\n")
            return 2
        console = Console()

        def say(text: str) -> None:
            console.print(escape(text), highlight=False, soft_wrap=True)

        left_out = [number for number, reason in reasons.items() if reason]
        for reason in dict.fromkeys(filter(None, reasons.values())):
            some = ", ".join(str(number) for number in left_out if reasons[number] == reason)
            say(f"left out: {some}: {reason}")

        def play() -> CasesOutcome:
            with console.status("starting") as status:

                def show(text: str) -> None:
                    harness.note(text)
                    status.update(escape(text))

                run = Run(
                    seed=options.seed,
                    numbers=numbers,
                    left_out=left_out,
                    say=say,
                    show=show,
                    starved_by=harness.machine.cause,
                )
                return self._run(run, options.out)

        return harness.run(play)

    def _parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}", description=self.description
        )
        add = parser.add_argument
        add("--seed", type=int, default=7, help="of all cases (default %(default)s)")
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--cases",
            type=int,
            default=self.cases,
            metavar="N",
            help="play the first N cases of the seed (default %(default)s)",
        )
        which.add_argument(
            "--case", default="", metavar="NUMBERS", help="play the cases of these numbers: 3,8-11"
        )
        add("--out", type=Path, help="folder to keep all in (default: only on failure)")
        return parser.parse_args(arguments)

    def _run(self, run: Run, out: Path | None) -> CasesOutcome:
        folder = out or Path(tempfile.mkdtemp(prefix=f"gazette-{self.name}-"))
        is_kept = True
        began_at = time.monotonic()
        try:
            with self.open_world(folder, run.show) as world:
                run.say(f"servers run after {time.monotonic() - began_at:.0f} s")
                result = self.play(run, world)
            is_kept = out is not None or not result.is_ok
            if is_kept:
                run.say(
                    f"all of it is kept in {folder}; a case has a folder of its own below cases"
                )
            run.say(f"it took {time.monotonic() - began_at:.0f} s")
            return result
        finally:
            if not is_kept:
                shutil.rmtree(folder, ignore_errors=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def numbers_of(text: str) -> list[int]:
    """Parse numbers of cases. Raises: SetupError: there are none, or one is not a number."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True):
            raise SetupError(f"--case: {part!r} is neither a number nor a range such as 8-11")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise SetupError(f"--case: {text!r} names no case, and a run without any finds nothing")
    return list(dict.fromkeys(found))
