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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

__all__ = ["Outcome", "SeededCases", "numbers_of"]


class Outcome(Protocol):
    """How a run went."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing was wrong."""
        ...

    @property
    def summary(self) -> str:
        """The last line."""
        ...


@dataclass(frozen=True, kw_only=True)
class SeededCases:
    """The command."""

    name: str
    """Of the run, as its last line begins: ``lake-crash``."""
    module: str
    description: str
    cases: int
    """How many a whole seed has."""
    open_world: Callable[[Path, Callable[[str], None]], AbstractContextManager[Any]]
    """Starts servers in a folder; is given what is told what is under way."""
    play: Callable[[int, list[int], Any, Callable[[str], None], Callable[[str], None]], Outcome]
    """Plays the cases of a seed and these numbers in a world; `say` keeps a line, `show` replaces it."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run it. Returns: 0 if all is well, 1 if something is wrong, 2 if it could not start."""
        console = Console()
        # Servers are stopped on the way out.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            with console.status("starting") as status:

                def say(text: str) -> None:
                    console.print(escape(text), highlight=False, soft_wrap=True)

                def show(text: str) -> None:
                    status.update(escape(text))

                result = self._run(self._parse(arguments), say, show)
        except (GazetteError, OSError) as err:
            sys.stderr.write(f"{self.name}: error: {err}\n")
            return 2
        sys.stdout.write(result.summary + "\n")
        return 0 if result.is_ok else 1

    def _parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}", description=self.description
        )
        add = parser.add_argument
        add("--seed", type=int, default=7, help="of all cases (default %(default)s)")
        add(
            "--cases",
            default=f"0-{self.cases - 1}",
            help="numbers of the cases to play, as in 3,8-11 (default %(default)s: the whole seed)",
        )
        add("--out", type=Path, help="folder to keep all in (default: only on failure)")
        return parser.parse_args(arguments)

    def _run(
        self,
        options: argparse.Namespace,
        say: Callable[[str], None],
        show: Callable[[str], None],
    ) -> Outcome:
        numbers = numbers_of(options.cases)
        if options.out is not None and options.out.exists() and any(options.out.iterdir()):
            raise SetupError(f"--out: {options.out} is not empty; name another folder")
        folder = options.out or Path(tempfile.mkdtemp(prefix=f"gazette-{self.name}-"))
        is_kept = True
        began_at = time.monotonic()
        try:
            with self.open_world(folder, show) as world:
                say(f"servers run after {time.monotonic() - began_at:.0f} s")
                result = self.play(options.seed, numbers, world, say, show)
            is_kept = options.out is not None or not result.is_ok
            if is_kept:
                say(f"all of it is kept in {folder}; a case has a folder of its own below cases")
            say(f"it took {time.monotonic() - began_at:.0f} s")
            return result
        finally:
            if not is_kept:
                shutil.rmtree(folder, ignore_errors=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def numbers_of(text: str) -> list[int]:
    """Of cases. Raises: SetupError: there are none, or what is there is no number."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True):
            raise SetupError(f"--cases: {part!r} is neither a number nor a range such as 8-11")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise SetupError(f"--cases: {text!r} names no case, and a run without any finds nothing")
    return list(dict.fromkeys(found))
