"""How far a long step is: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Step", "quiet_step", "show_step"]

_MEGABYTE = 1_000_000
# A log of a download holds about ten lines, however large it is.
_PLAIN_STEP_PERCENT = 10


class Step(Protocol):
    """Receives how far a step is."""

    def advance_to(self, done_bytes: int) -> None:
        """`done_bytes` of the total have come."""
        ...


class _QuietStep:
    def advance_to(self, done_bytes: int) -> None:
        """Report to no one."""


def quiet_step() -> Step:
    """A step that shows nothing."""
    return _QuietStep()


class _BarStep:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance_to(self, done_bytes: int) -> None:
        self._progress.update(self._task, completed=done_bytes)


class _PlainStep:
    def __init__(self, title: str, total_bytes: int, stream: TextIO) -> None:
        self._title = title
        self._total_bytes = total_bytes
        self._stream = stream
        self._next_percent = _PLAIN_STEP_PERCENT

    def advance_to(self, done_bytes: int) -> None:
        if self._total_bytes <= 0:
            return
        percent = done_bytes * 100 // self._total_bytes
        if percent < self._next_percent:
            return
        self._next_percent = (percent // _PLAIN_STEP_PERCENT + 1) * _PLAIN_STEP_PERCENT
        done, total = done_bytes // _MEGABYTE, self._total_bytes // _MEGABYTE
        print(f"{self._title}: {percent}% ({done} of {total} MB)", file=self._stream, flush=True)


@contextmanager
def show_step(title: str, total_bytes: int = 0, *, stream: TextIO | None = None) -> Iterator[Step]:
    """Show the step `title` while the block runs.

    Args:
        total_bytes: 0 if unknown: then there is a spinner instead of a bar.
        stream: standard error by default, so that output can be piped.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        print(f"{title} …", file=stream, flush=True)
        yield _PlainStep(title, total_bytes, stream)
        return
    sized = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *(sized if total_bytes else ()))
    with Progress(*columns, console=Console(file=stream), transient=False) as progress:
        task = progress.add_task(title, total=total_bytes or None)
        yield _BarStep(progress, task)
        if not total_bytes:
            progress.update(task, total=1, completed=1)
