"""Each broker says in etcd which homes of spools it holds: of a home that two of them hold one is a copy.

A copy that is made file by file is known by where it lies (see `home`). Nothing reveals one that was made
block by block, of a whole disk, from its original; but names of homes are random, and it keeps them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from gazette_platform.broker.etcd_records import own_member_key, own_members_prefix

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
