"""How a replica stands, for all who wait for it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.consumer.shard import LocalStep, local_step
from gazette_platform.errors import ShardStopped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.consumer.application import Shard
    from gazette_platform.consumer.protocol import Checkpoint
    from gazette_platform.consumer.shard import CompletedTransaction

__all__ = ["ShardCounts", "Standing"]


@dataclass(slots=True)
class ShardCounts:
    """What a replica did as primary, for metrics."""

    transactions: int = 0
    """That are committed and acknowledged."""
    read_messages: int = 0
    """Consumed by them."""
    read_bytes: int = 0
    """Consumed, by transactions that are under way as well."""
    phases_s: defaultdict[tuple[str, str], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    """Seconds by type and phase; see `TransactionTimes`."""


@final
class Standing:
    """Readiness, progress and end of a primary.

    Attributes:
        counts: what it did.
        is_ready: whether the store has given its checkpoint.
        has_ended: whether it consumes no more, or never will.
    """

    def __init__(self, shard: Shard) -> None:
        self.counts = ShardCounts()
        self.is_ready = False
        self.has_ended = False
        self._shard = shard
        self._changed = asyncio.Event()

    def ready(self, checkpoint: Checkpoint) -> None:
        """The store has given a checkpoint, once more perhaps."""
        for journal, offset in checkpoint.read_through.items():
            known = self._shard.progress.read_through
            known[journal] = max(offset, known.get(journal, 0))
        self.is_ready = True
        self._tell()

    def completed(self, transaction: CompletedTransaction | None) -> None:
        """A transaction is done, if there is one."""
        if transaction is None:
            return
        if transaction.times is not None:
            self.counts.transactions += 1
            self.counts.read_messages += transaction.consumed
            for phase, seconds in transaction.times.phases_s().items():
                self.counts.phases_s[phase] += seconds
        self._shard.progress.advance(transaction)
        self._tell()

    def ended(self) -> None:
        """The primary has failed, or was stopped."""
        self.has_ended = True
        self._tell()

    async def wait(self, offsets: Mapping[str, int]) -> None:
        """Wait until the store may be used, and all that lies before `offsets` is in it.

        Returns at once, for no offsets, of a shard that failed after its store was ready.

        Raises: ShardStopped: that will not be. Cancellation: safe.
        """
        while True:
            match local_step(
                is_store_ready=self.is_ready,
                is_loop_ended=self.has_ended,
                is_reached=self._shard.progress.has_reached(offsets, self._shard.spec),
            ):
                case LocalStep.SERVE:
                    return
                case LocalStep.STOPPED:
                    raise ShardStopped(self._shard.id)
                case LocalStep.WAIT:
                    await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
