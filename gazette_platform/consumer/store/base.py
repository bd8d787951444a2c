"""What a store of a shard has to do."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from gazette_platform.errors import ApplicationFailed, StoreUnavailable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from gazette_platform.client import Dependency
    from gazette_platform.consumer.protocol import Checkpoint
    from gazette_platform.consumer.recoverylog import Recorder

__all__ = ["ShardStore", "check_recorder", "opening_may_pass"]


def check_recorder(recorder: Recorder | None, store: str) -> None:
    """Raises: ApplicationFailed: there is none, as the shard has no recovery log."""
    if recorder is None:
        raise ApplicationFailed(
            f"a {store} keeps its files in a recovery log, and this shard has none: give its spec a "
            "recovery_log_prefix and a hint_prefix, or keep state in a SQLStore"
        )


def opening_may_pass(error: Exception) -> bool:
    """As `ShardStore.may_pass`, of a failure before there was a store: an application may ask its database as it opens it."""
    if "sqlalchemy" in sys.modules:  # or it is not an error of a database
        from gazette_platform.consumer.store.sql_database import (  # noqa: PLC0415  an extra
            sql_may_pass,
        )

        if sql_may_pass(error):
            return True
    return ShardStore.may_pass(error)


class ShardStore(ABC):
    """State of one shard, and the checkpoint up to which it reflects what was read.

    A store with a recovery log keeps local files, and records each operation on them; it is durable,
    and fenced, as the log is. A *remote* store has no log: its database keeps state and checkpoint, and
    it fences by itself. All is called on the event loop's thread, one call at a time:

        restore_checkpoint -> (the application changes state -> start_commit)* -> destroy

    The state changes already while a commit that was started is not done yet; only the next
    `start_commit` waits for it.

    Source: Gazette's `consumer.Store`.

    Attributes:
        keeps_files: whether its state is in the files that a recorder records. If not, a log with files is refused.
    """

    keeps_files: ClassVar[bool] = True

    def follow_lease(self, lease_s: float) -> None:  # noqa: B027  to be overridden
        """Learn how long the lease of the process lasts, before the first restore.

        If the process hangs for that long, another one gets the shard. A remote store should not hold its locks
        much longer.
        """

    @abstractmethod
    async def restore_checkpoint(self) -> Checkpoint:
        """The checkpoint of the last commit; an empty one if there was none.

        Changes of state that were not committed are dropped. A remote store fences: commits of whoever
        restored before us fail from here on.

        Raises: GazetteError: there is state, and it cannot be read.
        Cancellation: safe.
        """

    @abstractmethod
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        """Commit all changes of state since the last call, and the checkpoint, at once or not at all.

        Not called before the former commit is done.

        Args:
            checkpoint: replaces the former one.
            after: appends, or other futures, all of which have to succeed before anything may become
                durable. The commit fails if one of them does.

        Returns: done once the commit is durable. It fails with `Fenced` if another process has taken the
            shard over, and with another `GazetteError` if the commit is not, or may not be, durable.
        Raises: GazetteError: the commit cannot be started.
        Cancellation: of the future is none of the caller's business; commits go on.
        """

    async def roll_back(self) -> None:  # noqa: B027  to be overridden
        """Drop what is not committed: the shard has failed, and its store may still be asked.

        Called when no callback of the application runs. The store is not restored again.
        """

    @staticmethod
    def may_pass(error: Exception) -> bool:
        """Whether the shard, which failed with `error`, may succeed if it starts again soon.

        If so, its process starts it again, with growing pauses. Otherwise it stays FAILED.
        """
        return isinstance(error, StoreUnavailable)

    @abstractmethod
    async def destroy(self) -> None:
        """Give back what is held, and delete local files. Once, when the store is no longer used.

        Changes that were not committed are lost. Never raises: it logs errors, and goes on.

        Cancellation: files may stay behind.
        """
