"""Bars and lines on a terminal that show how far a command is. Apart, because rich is slow to import."""

from __future__ import annotations

import logging
import sys
from threading import Lock, Timer
from typing import final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from typing_extensions import override

from gazette_platform.cli.output import printable


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

    def __enter__(self) -> FragmentBar:
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


SHOWN_AFTER_S = 0.5
"""Most transfers are over by then, and other commands may write to the same terminal."""


def transfer_bar(what: str, *, is_shown: bool) -> Progress:
    """A bar on standard error that says `what` is under way, if that takes its time."""
    return _LateProgress(
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not is_shown,
        transient=True,
        # What is printed beside it must reach a pipe or file as it is.
        redirect_stdout=sys.stdout.isatty(),
    )


@final
class _LateProgress(Progress):
    """Progress that is not shown at once, and never after it was stopped."""

    _guard = Lock()
    _timer: Timer | None = None
    _is_over = False

    @override
    def start(self) -> None:
        self._timer = Timer(SHOWN_AFTER_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def _show(self) -> None:
        with self._guard:
            if not self._is_over:
                super().start()

    @override
    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._guard:
            self._is_over = True
            if self.live.is_started:
                super().stop()


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

    def __enter__(self) -> StepLine:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Say what the command is at now."""
        _log.info("%s", text)
        self._progress.update(self._task, description=printable(text))
