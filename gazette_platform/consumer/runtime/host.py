"""What a replica asks of the process that it runs in."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from gazette_platform.consumer.runtime.sources import ReadBudget
from gazette_platform.consumer.shard.transaction import BATCH_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.consumer.cluster import ShardAssignment
    from gazette_platform.consumer.protocol import ReplicaStatus
    from gazette_platform.consumer.recoverylog import FsmHints

HINTS_INTERVAL_S: Final = 300.0
"""How old the primary's hints become: whoever recovers plays at least what was recorded since."""


class ShardHost(Protocol):
    """Keeps what is in etcd about one replica. Each call has a deadline of its own."""

    def promoted(self, assignment: ShardAssignment) -> None:
        """The replica goes on under another assignment, of a lower slot."""
        ...

    async def confirm(self) -> None:
        """Wait until it is certain that the assignment exists at this moment.

        Asked before a log, or what a remote store has, is taken from whoever had it.

        Raises: GazetteError: it is gone, or that will never be known.
        """
        ...

    async def fetch_hints(self) -> Sequence[FsmHints | None]:
        """Hints of the shard: the primary's, then backups, newest first; None where there are none.

        Raises: GazetteError: they cannot be read, or are of another log.
        """
        ...

    async def require_log(self, log: str, created: int) -> None:
        """Check that the recovery log still is the journal that the shard had first, and note it then.

        Args:
            log: its name.
            created: which journal has this name now (`protocol.identity`); 0: unknown.

        Raises: JournalReplaced. GazetteError: that will never be known.
        """
        ...

    async def set_status(self, status: ReplicaStatus) -> None:
        """Fold a status into that of the assignment, while there is one; tried until it is done.

        Raises: GazetteError: it never will be.
        """
        ...

    async def put_hints(self, hints: FsmHints) -> None:
        """Keep hints of the recorder that is at work.

        Raises: EtcdError: retriable if etcd does not answer now, which does no harm.
        """
        ...

    async def put_backup_hints(self, hints: FsmHints) -> None:
        """Keep hints of a recovery that succeeded, before older ones; tried until it is done.

        Raises: GazetteError: it never will be.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSettings:
    """How replicas run."""

    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Where each replica makes a directory for its files."""

    hints_interval_s: float = HINTS_INTERVAL_S
    """Seconds after which a primary keeps hints again, at the end of a transaction."""

    batch_size: int = BATCH_SIZE
    """About how many messages are consumed at a time."""

    lease_s: float = 20.0
    """Seconds after which shards of this process get other owners if it hangs."""

    budget: ReadBudget = field(default_factory=ReadBudget)
    """Of what is read and not consumed; one for all replicas of a process."""
