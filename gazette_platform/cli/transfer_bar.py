"""The bar that shows how far a transfer is, on a terminal. Apart, because rich is slow to import."""

import sys

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

__all__ = ["transfer_bar"]


def transfer_bar(what: str, *, is_shown: bool) -> Progress:
    """A bar on standard error that says `what` is under way."""
    return Progress(
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
