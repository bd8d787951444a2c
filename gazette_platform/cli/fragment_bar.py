"""The bar that shows how many fragments are done, on a terminal. Apart, because rich is slow to import."""

import sys
from typing import final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["FragmentBar"]


@final
class FragmentBar:
    """A bar on standard error: fragments that are done, of those that are known; a context manager.

    Args:
        verb: what is done to them, as in ``pruning``.
    """

    def __init__(self, verb: str, *, is_shown: bool) -> None:
        self._progress = Progress(
            TextColumn(f"{verb} {{task.description}}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[size]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not is_shown,
            transient=True,
            # What is printed beside it must reach a pipe or file as it is.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._total = self._bytes = 0
        self._task = self._progress.add_task("", total=None, size="")

    def __enter__(self) -> "FragmentBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, journal: str, fragments: int) -> None:
        """So many more are to be done, of this journal."""
        self._total += fragments
        self._progress.update(self._task, description=journal, total=self._total)

    def advance(self, size: int) -> None:
        """One of so many bytes is done."""
        self._bytes += size
        self._progress.update(self._task, advance=1, size=decimal(self._bytes))
