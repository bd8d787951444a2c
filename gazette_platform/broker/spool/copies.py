"""How the copy of a home is known, so that it speaks for no journal: its original may have gone on.

A copy that is made file by file is known by where it lies: a home says that in its file `place`. Nothing
reveals a copy that was made block by block, of a whole disk. But names of homes are random, and it keeps its
name: each broker says in etcd which homes it holds, so of a home that two of them hold, one is a copy.
"""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING, Final, final

from gazette_platform.broker.etcd_records import own_member_key, own_members_prefix
from gazette_platform.broker.spool.files import birth_ns

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gazette_platform.broker.epochs import EpochRecord
    from gazette_platform.broker.spool.home import SpoolHome
    from gazette_platform.broker.spool.recovery import RecoveredTenure
    from gazette_platform.etcd import KeyValue
    from gazette_platform.protocol import ProcessId

_log = logging.getLogger(__name__)


def say_homes(homes: Iterable[SpoolHome]) -> bytes:
    """What a member says of the homes that it holds; not of copies, which prove nothing."""
    return "\n".join(home.folder.name for home in homes if not home.is_copied).encode()


@final
class OtherHomes:
    """The homes that living brokers other than this one say they hold. Brokers of Gazette say nothing."""

    def __init__(self, prefix: str, own: ProcessId) -> None:
        self._prefix = prefix
        self._own = own
        self._told: set[Path] = set()

    def doubled(
        self,
        record: EpochRecord | None,
        found: Iterable[RecoveredTenure],
        members: Iterable[KeyValue],
    ) -> set[RecoveredTenure]:
        """Return those of the tenures found here that another broker has, too.

        If etcd says that this broker is the holder, it goes on: it is not the one that came later.

        Args:
            record: what etcd has of their journal.
            found: the tenures.
            members: the brokers of this project, read after `record`.
        """
        others = self._others(members)
        holders = record.holders if record is not None else ()
        ours = {one.tenure for one in holders if one.process == self._own}
        doubled = set()
        for one in found:
            folder = one.tenure.folder
            # Names of homes are random, so two brokers with one name share an origin. Which of them
            # is the copy cannot be seen, so neither acts unless etcd names it.
            if folder.name in others and not one.is_copied and one.tenure.id not in ours:
                self._tell(folder, others[folder.name])
                doubled.add(one)
        return doubled

    def _others(self, members: Iterable[KeyValue]) -> dict[str, str]:
        """Return the owner of each home, by the home's name."""
        prefix = own_members_prefix(self._prefix)
        ours = own_member_key(self._prefix, self._own)
        return {
            name: kv.key.removeprefix(prefix)
            for kv in members
            if kv.key != ours
            for name in kv.value.decode(errors="replace").split()
        }

    def _tell(self, folder: Path, who: str) -> None:
        if folder not in self._told:
            self._told.add(folder)
            _log.error(
                "%s: broker %s, which is alive, says that it has this folder, too; one of the two is a copy, "
                "and what this one says of journals is kept, and neither served nor stored (stop the broker "
                "that runs on the copy, and move the copy away)",
                folder,
                who,
            )


_NUMBER: Final = re.compile(r"(inode|born) ([0-9]+)")
_DEVICE: Final = re.compile(r"device ([0-9]+)")


def place_of(folder_fd: int, heads_fd: int | None) -> str:
    """Where a home is, as its file `place` says: a copy of it is known by that.

        inode <n> born <ns> heads inode <n> born <ns> device <n>

    The folder and its records have other inodes and births in a copy, wherever it lies. Both stay when the disk
    is mounted again; its device does not. Restored files may lie in the original folder, so the inode of the
    folder alone proves nothing.

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
    known = list(zip(_NUMBER.findall(said), _NUMBER.findall(place), strict=False))
    return not known or any(
        before != after and not (kind == "born" and "0" in (before, after))
        for (kind, before), (_, after) in known
    )


def is_on_another_device(said: str, place: str) -> bool:
    """Whether a home is not on the device that it was made on, as far as both are known.

    It may be the disk's number that is another one; or the disk is a snapshot, whose original is in use.
    """
    before, after = _DEVICE.findall(said), _DEVICE.findall(place)
    return bool(before) and before != after
