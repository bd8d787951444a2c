"""Resolves shards, and waits until those that are served here can be.

Source: Gazette's consumer.Resolver. Departs: no wait is without an end.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Protocol, Self, final

from gazette_platform.consumer.assignments import STOPPED_TEXT, check_proxy_header, resolve_shard
from gazette_platform.consumer.protocol import ShardStatus
from gazette_platform.errors import ShardStopped, ValidationError
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from gazette_platform.consumer.assignments import ConsumerState, ShardResolution
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.store import ShardStore
    from gazette_platform.consumer.transaction import Progress
    from gazette_platform.keyspace import KeySpace
    from gazette_platform.protocol import Header, ProcessId
    from gazette_platform.protocol.auth import Claims

WAIT_S_MAX: Final = 600.0
"""Seconds for which a resolution waits at most, for a revision, for a store, and for progress."""


class LocalReplica(Protocol):
    """Our part in a shard, as those see it who want to use its store."""

    @property
    def progress(self) -> Progress:
        """As of the last completed transaction."""
        ...

    async def wait_through(self, offsets: Mapping[str, int] | None = None) -> ShardStore:
        """Wait until the store has given its checkpoint, and all before `offsets` is in its state.

        Without offsets it returns at once for a shard that has failed after its store was ready.

        Args:
            offsets: by journal; those that the shard does not read are not waited for.

        Raises: ShardStopped: that will not be, as the primary has failed, or was assigned elsewhere.
        Cancellation: safe.
        """
        ...

    def use(self) -> AbstractContextManager[None]:
        """Hold off that the store is destroyed."""
        ...


@final
class ResolvedShard:
    """Who serves a shard; a context manager, which is done with the replica at its end.

    Attributes:
        status: OK if a process serves it.
        header: names the process that does, or ours with a refusal.
        spec: None if there is no such shard for the caller.
        is_remote: whether the call is to be made of the process that `header` names, with it attached.
        replica: ours, if we are to answer; else None.
        store: of our replica, ready to be used.
    """

    def __init__(
        self,
        found: ShardResolution,
        status: ShardStatus,
        replica: LocalReplica | None = None,
        store: ShardStore | None = None,
        held: ExitStack | None = None,
    ) -> None:
        self.status = status
        self.header: Header = found.header
        self.spec: ShardSpec | None = found.spec
        self.is_remote = found.is_remote
        self.replica = replica
        self.store = store
        self._held = held or ExitStack()

    def done(self) -> None:
        """Let the replica be torn down. To be called once its store is not used any more."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done()


@final
class ShardResolver:
    """Resolves shards by the key space of the group.

    Args:
        space: of the group.
        process_id: ours, whether we are a member already or not.
        replica_of: finds our replica of a shard. It has to know of each assignment as soon as the key
            space does, as its observers do.
    """

    def __init__(
        self,
        space: KeySpace[ConsumerState],
        process_id: ProcessId,
        replica_of: Callable[[str], LocalReplica | None],
    ) -> None:
        self.space = space
        self.process_id = process_id
        self._replica_of = replica_of
        self._is_serving = True

    def stop_serving(self) -> None:
        """Refuse what would be served here from now on. Other processes are still resolved."""
        self._is_serving = False

    def shards_with_source(self, journal: str) -> list[ShardSpec]:
        """Specs of the shards that read a journal, in order of IDs."""
        return self.space.state.shards_with_source(journal)

    async def resolve(
        self,
        shard: str,
        *,
        may_proxy: bool = False,
        read_through: Mapping[str, int] | None = None,
        proxy_header: Header | None = None,
        claims: Claims = ALL_CLAIMS,
        timeout_s: float = WAIT_S_MAX,
    ) -> ResolvedShard:
        """Resolve a shard; if it is served here, once its store is ready, and has read so far.

        Args:
            shard: its ID.
            may_proxy: whether the answer may be another process.
            read_through: offsets by journal, that a completed transaction has to reflect.
            proxy_header: of the process that forwarded the call to us.
            claims: of the caller; shards beyond them do not exist for it.
            timeout_s: seconds for all waiting, no more than `WAIT_S_MAX`.

        Returns: a resolution that the caller has to be `done` with.
        Raises: RpcFailed: the forwarding process means another cluster or process; we have stopped
            serving; or it was not ready, or has not read so far, in time.
        Cancellation: safe.
        """
        limit_s = min(timeout_s, WAIT_S_MAX)
        waited_for = "our view of etcd"
        offsets = read_through or {}
        try:
            async with asyncio.timeout(limit_s):
                await self._await_header(proxy_header)
                found = self.resolve_now(shard, may_proxy=may_proxy, claims=claims)
                if not found.is_local:
                    return ResolvedShard(found, found.status)
                waited_for = f"its store, and for {len(offsets)} offsets to be read through"
                return await self._serve(shard, found, offsets)
        except TimeoutError as err:
            raise RpcFailed(
                Code.DEADLINE_EXCEEDED,
                f"shard {shard}: waited {limit_s:g} s for {waited_for} (see `gazctl shards list` for its "
                "status, or ask again)",
            ) from err

    def resolve_now(
        self, shard: str, *, may_proxy: bool, claims: Claims = ALL_CLAIMS
    ) -> ShardResolution:
        """Resolve at the present revision, without our replica."""
        return resolve_shard(
            self.space.state,
            self.space.header,
            self.process_id,
            shard,
            may_proxy=may_proxy,
            claims=claims,
        )

    async def _await_header(self, header: Header | None) -> None:
        if header is None:
            return
        try:
            revision = check_proxy_header(header, self.space.header, self.process_id)
        except ValidationError as err:
            raise RpcFailed(Code.UNKNOWN, str(err)) from err
        await self.space.wait_for_revision(revision)

    async def _serve(
        self, shard: str, found: ShardResolution, read_through: Mapping[str, int]
    ) -> ResolvedShard:
        replica = self._replica_of(shard) if self._is_serving else None
        if replica is None:
            raise NotNow(STOPPED_TEXT)
        with ExitStack() as held:
            held.enter_context(replica.use())
            try:
                store = await replica.wait_through(read_through)
            except ShardStopped:
                return ResolvedShard(found, ShardStatus.SHARD_STOPPED)
            return ResolvedShard(found, found.status, replica, store, held.pop_all())
