"""The bar that shows how far a transfer is, on a terminal. Apart, because rich is slow to import."""

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
    )
