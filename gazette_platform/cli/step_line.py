"""The line that says what a command is at, on a terminal. Apart, because rich is slow to import."""

import logging
import sys
from typing import final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gazette_platform.cli.output import printable

__all__ = ["StepLine"]

_log = logging.getLogger(__name__)


@final
class StepLine:
    """A line on standard error, which goes when the command ends; a context manager.

    Steps are logged as well: ``--log.level info`` shows all of them.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, emoji=False),
            disable=not is_shown,
            transient=True,
            # What is printed beside it must reach a pipe or file as it is.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self._progress.add_task("")

    def __enter__(self) -> "StepLine":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Say what the command is at now."""
        _log.info("%s", text)
        self._progress.update(self._task, description=printable(text))
