"""Fragments of a journal that are closed, and not yet handed over to be persisted."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

from gazette_platform.broker.spool.digester import DISK_RETRY_S

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_platform.broker.port import JournalPort
    from gazette_platform.broker.spool.digester import Digester
    from gazette_platform.fragment.completed import CompletedSpool
    from gazette_platform.fragment.recovery import RecoveredFragment
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup

__all__ = ["Closing"]

_log = logging.getLogger(__name__)

# How often a closed fragment that cannot be read back is tried, once the journal leaves this broker.
_LEAVING_ATTEMPTS = 3


@final
class Closing:
    """The closed fragments of one journal, until each is complete.

    Attributes:
        adopted: fragments of a former process that are not known to be the journal's yet.
        is_leaving: whether the journal leaves this broker; fragments that fail are given up then.
    """

    def __init__(self, journal: JournalPort, tasks: TaskGroup, faults: Faults) -> None:
        self.adopted: dict[Digester, RecoveredFragment] = {}
        self.is_leaving = False
        self._journal = journal
        self._tasks = tasks
        self._faults = faults
        # Whether to persist a fragment at once, by its digester.
        self._urgent: dict[Digester, bool] = {}
        self._completing: set[asyncio.Task[None]] = set()

    @property
    def digesters(self) -> tuple[Digester, ...]:
        """The digesters of the fragments, oldest first."""
        return tuple(self._urgent)

    def add(self, old: Digester, *, is_urgent: bool) -> None:
        """A fragment has closed.

        Args:
            old: its digester.
            is_urgent: whether to persist it at once, even if we are not the primary.
        """
        self._urgent[old] = is_urgent

    def finish(self, *, but: Collection[Digester]) -> None:
        """Complete the fragments whose content is all settled, and drop those that are empty.

        Args:
            but: fragments with content that is not settled yet.
        """
        for old in [one for one in self._urgent if one not in but and one not in self.adopted]:
            if old.spool.content_length:
                task = self._tasks.spawn(self._complete(old), name=f"roll {self._journal.name}")
                self._completing.add(task)
                task.add_done_callback(self._completing.discard)
            else:
                old.spool.discard()
                del self._urgent[old]

    def adopt(self, old: Digester, fragment: RecoveredFragment) -> None:
        """Take over a fragment that a former process left, which `finish` leaves alone while `adopted`.

        Args:
            old: its digester.
            fragment: as it was found.
        """
        self._urgent[old] = True
        self.adopted[old] = fragment

    def give_back(self) -> list[RecoveredFragment]:
        """Let go of fragments that are `adopted` still. Returns: these, as they were found."""
        fragments = list(self.adopted.values())
        for old in self.adopted:
            del self._urgent[old]
        self.adopted.clear()
        return fragments

    async def completed(self) -> None:
        """Wait until the fragments being completed are handed over. Cancellation: safe."""
        while self._completing:
            await asyncio.wait(set(self._completing))

    async def _complete(self, old: Digester) -> None:
        try:
            completed = await self._read_back(old)
        finally:
            is_urgent = self._urgent.pop(old, False)
        if completed is not None:
            completed.is_primary = completed.is_primary or is_urgent
            self._journal.on_complete(completed)

    async def _read_back(self, old: Digester) -> CompletedSpool | None:
        """Complete a closed fragment, however long its disk needs.

        When the journal leaves this broker the fragment is given up after some attempts, because a
        disk that cannot be read must not keep the process from ending. Its file stays, and another
        broker may have the content.
        """
        attempts_left = _LEAVING_ATTEMPTS
        while True:
            try:
                return await old.complete()
            except Exception as err:  # noqa: BLE001  reported; acknowledged content is not let go
                attempts_left -= self.is_leaving
                name = old.spool.fragment().content_path
                if not isinstance(err, OSError):
                    self._faults.report("journal", f"closing fragment {name}", err)
                if attempts_left == 0:
                    _log.error("fragment %s is not persisted by this process: %s", name, err)
                    old.spool.leave_behind()
                    return None
                _log.error(
                    "fragment %s: %s; retrying in %s s (check the disk of --broker.spool-dir)",
                    name,
                    err,
                    DISK_RETRY_S,
                )
                await asyncio.sleep(DISK_RETRY_S)
