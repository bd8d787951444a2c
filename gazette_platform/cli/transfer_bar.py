"""The bar that shows how far a transfer is, on a terminal. Apart, because rich is slow to import."""

import sys
from threading import Lock, Timer
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from typing_extensions import override

__all__ = ["SHOWN_AFTER_S", "transfer_bar"]

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
