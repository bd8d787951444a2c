"""Reading files that people, or programs, put into folders of specs: whatever they are, a tick goes on."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_spec_file", "shown_name"]


def read_spec_file(path: Path, bytes_max: int, what: str) -> bytes:
    """The content of a file; no more of it is read than it may have.

    Args:
        path: of the file.
        bytes_max: of its content.
        what: it is, for messages.

    Raises: ValidationError: it cannot be read, is not a regular file, is too long, or has a name that is not text.
    """
    if shown_name(path) != path.name:
        raise ValidationError("has a name that is not UTF-8: rename it")
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise ValidationError("cannot be read: it is a pipe or a device")
            raw = file.read(bytes_max + 1)
    except OSError as err:
        raise ValidationError(f"cannot be read: {err.strerror}") from err
    if len(raw) > bytes_max:
        size = max(info.st_size, len(raw))
        raise ValidationError(f"is {size} bytes; {what} has at most {bytes_max}")
    return raw


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe without a writer would never return.
    return os.open(path, flags | os.O_NONBLOCK)


def shown_name(path: Path) -> str:
    r"""The name of a file, for messages. One that is not UTF-8 could not be printed as it is.

    >>> from pathlib import Path
    >>> shown_name(Path("a/orders.yaml")), shown_name(Path("\udcff.yaml"))
    ('orders.yaml', '\\xff.yaml')
    """
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")
