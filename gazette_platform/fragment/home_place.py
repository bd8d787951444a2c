"""Where a home of spools was made, as its file `place` says: a copy of it is known by that. See `spool_home`.

    inode <n> born <ns> heads inode <n> born <ns> device <n>

The folder and its records have other inodes and births in a copy, wherever it lies. Both stay when the disk is
mounted again; its device does not. A restore may leave the folder as it is, and put others in it.
"""

from __future__ import annotations

import os
import re
from typing import Final

from gazette_platform.fragment.files import birth_ns

__all__ = ["is_elsewhere", "is_on_another_device", "place_of"]

_NUMBER: Final = re.compile(r"(inode|born) ([0-9]+)")
_DEVICE: Final = re.compile(r"device ([0-9]+)")
_FORMER: Final = re.compile(r"([0-9]+):([0-9]+)")  # device and inode, of a former version


def place_of(folder_fd: int, heads_fd: int | None) -> str:
    """Where a home is.

    Args:
        folder_fd: of the folder.
        heads_fd: of its records; None: there are none.

    Raises: OSError.
    """
    heads = "" if heads_fd is None else f" heads {_identity(heads_fd)}"
    return f"{_identity(folder_fd)}{heads} device {os.fstat(folder_fd).st_dev}"


def _identity(fd: int) -> str:
    return f"inode {os.fstat(fd).st_ino} born {birth_ns(fd)}"


def is_elsewhere(said: str, place: str, *, has_said: bool) -> bool:
    """Whether a home is not where it was made, as far as both are known.

    Births are unknown, and 0, where the system does not report them. That may change with an update.

    Args:
        said: where it was made; empty: it does not say.
        place: where it is.
        has_said: whether it did say once.
    """
    if not said:
        return has_said
    said = _FORMER.sub(r"inode \2 device \1", said)
    known = list(zip(_NUMBER.findall(said), _NUMBER.findall(place), strict=False))
    return not known or any(
        before != after and not (kind == "born" and "0" in (before, after))
        for (kind, before), (_, after) in known
    )


def is_on_another_device(said: str, place: str) -> bool:
    """Whether a home is not on the device that it was made on, as far as both are known.

    It may be the disk's number that is another one; or the disk is a snapshot, whose original is in use.
    """
    before, after = (
        _DEVICE.findall(_FORMER.sub(r"inode \2 device \1", said)),
        _DEVICE.findall(place),
    )
    return bool(before) and before != after
