"""What the log of a broker or consumer says of its end, and of unforeseen errors. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["lost_its_lease", "unforeseen"]

# The last word of a process that ends by an error.
_LAST_WORD = re.compile(r"[\w-]+: error: ")
# By these a process ends that has to: its lease, or what it stood for in etcd, is gone.
_LEASE_LOST = re.compile(
    rf"{_LAST_WORD.pattern}(?:unable to keep member lease alive|member key not found in Etcd): "
)
_LEASE_LOST_ERROR = "gazette_platform.errors.LeaseLost: "
_LEASE_TASK = re.compile(
    r" ERROR gazette_platform\.ops\.tasks: task (?:broker|consumer)/\S+ failed: "
)
_RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
_TRACEBACK = "Traceback (most recent call last)"
_SIGNS = (
    _TRACEBACK,
    ": unforeseen ",
    " CRITICAL ",
    "Fatal Python error",
    "Segmentation fault",
    "was never awaited",
    "exception was never retrieved",
    "Task was destroyed but it is pending",
    "Exception ignored in",
)
_LINES_AFTER = 20


def lost_its_lease(log: str) -> bool:
    """Whether the process that wrote this, from its start on, says that it ended by its lease."""
    return any(_LEASE_LOST.match(line) for line in log.splitlines())


def unforeseen(log: str) -> list[str]:
    """Errors that must not be in a log, whatever was done to its process.

    Those that it expects have a line without a traceback; only the loss of its lease, which is the
    end of it, has one.

    Returns: of each, the line that shows it, and up to 20 lines after it.
    """
    found = []
    for record in _records(log.splitlines()):
        if _is_lease_lost(record):
            continue
        signs = (at for at, line in enumerate(record) if any(sign in line for sign in _SIGNS))
        at = next(signs, None)
        if at is None and not _LAST_WORD.match(record[0]):
            continue
        at = at or 0
        if at and record[at].startswith(_TRACEBACK):
            at -= 1  # the line before says whose it is
        found.append("\n".join(record[at : at + _LINES_AFTER + 1]))
    return found


def _records(lines: Sequence[str]) -> Iterator[list[str]]:
    """Lines that belong together: one with a time and those after it; and last words."""
    record: list[str] = []
    for line in lines:
        if record and (_RECORD.match(line) or _LAST_WORD.match(line)):
            yield record
            record = []
        record.append(line)
    if record:
        yield record


def _is_lease_lost(record: Sequence[str]) -> bool:
    if _LEASE_LOST.match(record[0]):
        return len(record) == 1
    if not _LEASE_TASK.search(record[0]):
        return False
    # Of a traceback, the lines that are not indented; others of it would mean another error.
    own = [line for line in record[1:] if line and not line.startswith(" ")]
    return len(own) == 2 and own[1].startswith(_LEASE_LOST_ERROR)
