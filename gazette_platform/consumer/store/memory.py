"""State of a shard in memory: for tests, and for shards that keep nothing."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from typing_extensions import override

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store.base import Commits, ShardStore, all_succeeded
from gazette_platform.errors import Fenced, ValidationError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from gazette_platform.client import Dependency

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class _Memory:
    """What one shard has committed."""

    state: Any
    checkpoint: Checkpoint
    fence: int = 0
    """How often it was restored."""


@final
class Memories:
    """What memory stores have committed, by shard, for as long as this object lives.

    Hand one to all stores of a process, or of a test, and a shard goes on where it was. Of one event loop.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._kept: dict[str, _Memory] = {}

    def restored(self, shard: str, state: Any) -> _Memory:
        """The memory of a shard, which begins with `state`; whoever restored it before us is fenced."""
        kept = self._kept.get(shard)
        if kept is None:
            kept = self._kept[shard] = _Memory(state, Checkpoint())
        # As in a database: each restore raises the number, and a commit that began under a lower one fails.
        kept.fence += 1
        return kept


@final
class MemoryStore(ShardStore, Generic[_T]):
    """State that is an object, and is gone with the process.

    Without `kept` a new store begins empty: its shard reads from the beginning, or the `min_offset` of its
    spec. With it a shard goes on where the process had it, and stores fence each other as a database's do.
    A commit copies the state deeply: one that is to be large needs another store. None costs nothing.

    Attributes:
        state: what the application changes. It may be replaced. Another object after each restore.
    """

    keeps_files = False

    def __init__(self, state: _T, *, shard: str = "", kept: Memories | None = None) -> None:
        """Make a store.

        Args:
            state: what a shard begins with, of any kind that `copy.deepcopy` copies.
            shard: who is restored from `kept`.
            kept: what is to outlive the store.

        Raises: ValidationError: `kept` without a shard.
        """
        if kept is not None and not shard:
            raise ValidationError(
                "expected the name of a shard, as memories are kept", path="shard"
            )
        self.state = state
        self._initial = copy.deepcopy(state)
        self._shard = shard
        self._kept = Memories() if kept is None else kept
        self._fence = 0
        self._memory: _Memory | None = None
        self._commits = Commits(shard or "in memory")

    @override
    async def restore_checkpoint(self) -> Checkpoint:
        memory = self._memory = self._kept.restored(self._shard, self._initial)
        self._fence = memory.fence
        self.state = copy.deepcopy(memory.state)
        return memory.checkpoint

    @override
    def start_commit(
        self, checkpoint: Checkpoint, after: Collection[Dependency]
    ) -> asyncio.Future[None]:
        # Copied at once: the next transaction changes the state while this commit waits.
        memory, fence, state = self._memory, self._fence, copy.deepcopy(self.state)
        if memory is None:
            raise ValidationError(f"{self._shard}: nothing is committed before it was restored")

        async def commit() -> None:
            await all_succeeded(after)
            if memory.fence != fence:
                raise Fenced(
                    f"{self._shard}: another store of this process has restored the shard (stop this one; "
                    "nothing that it commits is kept any more)"
                )
            memory.state, memory.checkpoint = state, checkpoint

        return self._commits.start(commit)

    async def read(self, call: Callable[[_T], _R]) -> _R:
        """Return what ``call(state)`` returns, of the state as it was committed, which `call` may not change.

        Raises: Exception: what `call` raises. Cancellation: safe.
        """
        return call(self._initial if self._memory is None else self._memory.state)

    @override
    async def roll_back(self) -> None:
        if self._memory is not None:
            self.state = copy.deepcopy(self._memory.state)

    @override
    async def destroy(self) -> None:
        await self._commits.close()
