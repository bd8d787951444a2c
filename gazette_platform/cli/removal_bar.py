"""The bar that shows how far pruning is, on a terminal. Apart, because rich is slow to import."""

import sys
from typing import final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["RemovalBar"]


@final
class RemovalBar:
    """A bar on standard error: fragments that went, of those that are known to go; a context manager."""

    def __init__(self, *, is_shown: bool) -> None:
        self._progress = Progress(
            TextColumn("pruning {task.description}", markup=False),
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

    def __enter__(self) -> "RemovalBar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, journal: str, fragments: int) -> None:
        """So many more are to go, of this journal."""
        self._total += fragments
        self._progress.update(self._task, description=journal, total=self._total)

    def advance(self, size: int) -> None:
        """One of so many bytes has gone."""
        self._bytes += size
        self._progress.update(self._task, advance=1, size=decimal(self._bytes))
