"""The interface between the parts of a journal and the replica that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gazette_platform.broker.epochs import GoOn, Holder
    from gazette_platform.broker.peers import PeerStream
    from gazette_platform.broker.spool.disk import CompletedSpool
    from gazette_platform.broker.spool.spool import Spool
    from gazette_platform.fragment.index import Index
    from gazette_platform.protocol import (
        EtcdHeader,
        JournalSpec,
        LabelSet,
        ProcessId,
        Route,
        Status,
        SuspendSpec,
    )


class JournalPort(Protocol):
    """A journal at this broker, as its spool, its replicator and its appender see it."""

    name: str
    index: Index

    # ------------------------------------------------------------------------ as etcd has it
    @property
    def revision(self) -> int:
        """Of etcd, for all else here; the health and fragments of stores need no new one."""
        ...

    @property
    def spec(self) -> JournalSpec | None:
        """The spec as of now; None once the journal is deleted."""
        ...

    @property
    def route(self) -> Route:
        """The journal's route, as of now."""
        ...

    @property
    def etcd_header(self) -> EtcdHeader:
        """The state of etcd that `route` comes from."""
        ...

    @property
    def process_id(self) -> ProcessId:
        """This broker."""
        ...

    @property
    def is_consistent(self) -> bool:
        """Whether every assignment carries the current route."""
        ...

    @property
    def replica_counts(self) -> tuple[int, int]:
        """How many brokers serve the journal, and how many should."""
        ...

    def locate(self) -> tuple[Status, bool]:
        """Look the journal up. Returns: OK if it is served, and whether we are its primary."""
        ...

    async def wait_revision(self, revision: int) -> None:
        """Wait for the key space to reach `revision`."""
        ...

    async def claim(
        self, holders: frozenset[Holder] | None, *, end: int, is_reset: bool
    ) -> GoOn | int:
        """Write the route into etcd, and who holds what is acknowledged from now on; see `epochs`.

        Args:
            holders: the tenures of all brokers of the route; None: some of them have none.
            end: journal offset at which all of them are.
            is_reset: whether an operator gives up what only others hold.

        Returns: the revision to look at, or where the journal has to begin first.
        Raises: HoldersAway: what was acknowledged is held only by others, who are away.
        """
        ...

    async def released_registers(self, head: int) -> LabelSet | None:
        """The registers that etcd names for a journal that goes on at `head`; None: it names none."""
        ...

    def is_claimed(self, holders: frozenset[Holder] | None) -> bool:
        """Whether etcd says what `claim` would write: the current route, and that these hold it.

        A route alone does not show it: a broker of it may hold the journal again since.
        """
        ...

    @property
    def is_released(self) -> bool:
        """Whether etcd says where the journal goes on without its holders; `write_suspend` ends that.

        No content may follow before it has ended.
        """
        ...

    async def write_suspend(self, suspend: SuspendSpec) -> int:
        """Store the spec with this suspension. Returns: the revision to look at."""
        ...

    # -------------------------------------------------------------------- stores, fence, peers
    @property
    def is_ready(self) -> bool:
        """Whether the stores were listed and the first one is healthy."""
        ...

    async def wait_ready(self) -> str:
        """Wait until `is_ready`. Returns: "", or why a store stays unhealthy, or is not listed."""
        ...

    @property
    def refusal(self) -> str:
        """Why nothing may be committed any more; empty while we may speak for the journal."""
        ...

    def open_stream(self, peer: ProcessId, endpoint: str) -> PeerStream:
        """Begin a Replicate stream to a peer. Raises: RpcFailed: it has no endpoint."""
        ...

    # -------------------------------------------------------------------------- -- events
    def on_commit(self, spool: Spool, *, appends: int, length: int) -> None:
        """The spool has `length` more bytes, of so many appends: publish them to readers."""
        ...

    def on_held(self) -> None:
        """Closed fragments wait until the primary, which we are, has claimed the journal."""
        ...

    def on_recovered(self, spool: Spool) -> None:
        """The spool has a fragment that an earlier process left: publish it to readers."""
        ...

    def on_rollback(self) -> None:
        """An append whose content had come ended without a commit."""
        ...

    def on_roll(self, *, is_elsewhere: bool) -> None:
        """A fragment was begun. If `is_elsewhere`, it does not begin where the one before it ended."""
        ...

    def on_complete(self, completed: CompletedSpool) -> None:
        """A fragment has closed: publish its sum, and persist it."""
        ...
