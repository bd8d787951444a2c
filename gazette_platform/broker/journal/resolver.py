"""Which broker serves a journal, and with which local replica.

A route has its members in the order of their keys in etcd, by zone and suffix. So all brokers derive
the same route from the same assignments, and whoever compares routes (a replica with its primary's,
the allocator with the published one) finds a difference only where members differ.

Source: the order of checks and the choice of the process that is to answer are those of Gazette's
resolver.go.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, final

from gazette_platform.ops.faults import backoff_s
from gazette_platform.protocol import (
    Header,
    JournalSpec,
    ProcessId,
    Route,
    Status,
    strip_meta,
)
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.broker.context import Membership
    from gazette_platform.keyspace import BrokerState, KeySpace
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol.auth import Claims


_log = logging.getLogger(__name__)


class Stopped(NotNow):
    """This broker is leaving, and does not serve its replicas any more: others will, or it when it is back."""

    def __init__(self) -> None:
        super().__init__("resolve: resolver has stopped serving local replicas")


class LocalReplica(Protocol):
    """What the resolver keeps for each journal that is assigned to this broker."""

    create_revision: int
    is_primary: bool

    def on_change(self, *, is_primary: bool) -> None:
        """Take note of a change of the journal's spec or assignments.

        Args:
            is_primary: whether we are its primary now.
        """
        ...

    async def close(self) -> None:
        """Finish appends under way, persist, end reads. Called once."""
        ...


R = TypeVar("R", bound=LocalReplica)


@dataclass(frozen=True, slots=True, eq=False)
class Resolution:
    """The answer to "who serves this journal?", as of one revision."""

    journal: str
    status: Status
    header: Header
    spec: JournalSpec | None
    is_local: bool
    """Whether the status is OK, and we are the process that is to answer."""
    header_field: bytes = b""
    """`header` as an encoded field, which is the same in every kind of response."""

    @property
    def is_remote(self) -> bool:
        """Whether another process is to answer."""
        return self.status is Status.OK and not self.is_local


@final
class Resolver(Generic[R]):
    """Keeps the local replicas in step with the key space, and resolves journals.

    Args:
        make_replica: builds the replica of a journal that was assigned to us, from its name, the
            revision of its creation, and whether we are primary.

    Attributes:
        replicas: local replicas by journal. Live: do not keep it over an await.
        found: what `resolve_now` found at the present revision, by its arguments, while we serve.
    """

    def __init__(
        self,
        space: KeySpace[BrokerState],
        membership: Membership,
        *,
        make_replica: Callable[[str, int, bool], R],
        tasks: TaskGroup,
        faults: Faults,
    ) -> None:
        self._space = space
        self._state = space.state
        self._membership = membership
        self._make_replica = make_replica
        self._tasks = tasks
        self._faults = faults
        self._failures: dict[str, int] = {}
        self.replicas: dict[str, R] = {}
        self._closing: dict[asyncio.Task[None], tuple[str, R]] = {}
        self._is_serving = True
        self.found: dict[tuple[str, bool, bool], Resolution] = {}
        space.observe(self.on_change)

    @property
    def process_id(self) -> ProcessId:
        """Our identity, or its stand-in while etcd does not know us."""
        return self._membership.known_id

    def on_change(self) -> None:
        """Observe an update of the key space."""
        self.found.clear()
        if self._is_serving:
            for journal in self._state.changes.items:
                self._try_update(journal)

    def _try_update(self, journal: str) -> None:
        """Follow a journal's assignment. If that fails, try again later."""
        try:
            self._update(journal)
        except Exception as err:  # noqa: BLE001  reported
            failures = self._failures[journal] = self._failures.get(journal, -1) + 1
            pause_s = backoff_s(failures)
            self._faults.report("journal", f"{journal}: taken up again in {pause_s:g} s", err)
            asyncio.get_running_loop().call_later(pause_s, self._update_again, journal)
        else:
            self._failures.pop(journal, None)

    def _update_again(self, journal: str) -> None:
        if self._is_serving and journal in self._failures:
            self._try_update(journal)

    def _update(self, journal: str) -> None:
        item = self._state.items.get(journal)
        assignment = self._state.assignment_of(journal, self._membership.id)
        replica = self.replicas.get(journal)
        if item is None or assignment is None:
            if replica is not None:
                self._retire(journal, replica)
            return
        is_primary = assignment.slot == 0
        if replica is not None and (
            replica.create_revision != item.create_revision
            or (replica.is_primary and not is_primary)
        ):
            # The journal was deleted and created again, or we were demoted. What the replica has
            # spooled may not be content of the journal as it is now: a primary's spool may end with
            # an append that other replicas never got.
            self._retire(journal, replica)
            replica = None
        if replica is None:
            self.replicas[journal] = self._make_replica(journal, item.create_revision, is_primary)
        else:
            replica.on_change(is_primary=is_primary)

    def _retire(self, journal: str, replica: R) -> None:
        del self.replicas[journal]
        self._close(journal, replica)

    def _close(self, journal: str, replica: R) -> None:
        task = self._tasks.spawn(replica.close(), name=f"close {journal}")
        self._closing[task] = journal, replica
        task.add_done_callback(self._closing.pop)

    async def close(self) -> None:
        """Stop serving local replicas and wait until all of them are closed.

        They stay in `replicas`, where appends under way look whether their replica is still ours.
        """
        self._is_serving = False
        self.found.clear()
        for journal, replica in self.replicas.items():
            self._close(journal, replica)
        while self._closing:
            await asyncio.wait(set(self._closing))

    @property
    def unclosed(self) -> list[R]:
        """Replicas that are still closing."""
        return [replica for _, replica in self._closing.values()]

    @property
    def open_journals(self) -> set[str]:
        """Journals that have a local replica which may get content, or is closing."""
        closing = {journal for journal, _ in self._closing.values()}
        return closing | self.replicas.keys() if self._is_serving else closing

    async def closed(self, journal: str) -> None:
        """Wait until no former replica of a journal is closing. Cancellation: safe."""
        while closing := {task for task, (name, _) in self._closing.items() if name == journal}:
            await asyncio.wait(closing)

    # ------------------------------------------------------------------------------ resolving
    async def resolve(
        self,
        journal: str,
        *,
        may_proxy: bool,
        require_primary: bool,
        min_revision: int = 0,
        proxy_header: Header | None = None,
        claims: Claims = ALL_CLAIMS,
    ) -> Resolution:
        """Resolve once the key space has reached the revision asked for.

        Args:
            journal: with or without its ``;meta`` part.
            may_proxy: whether the answer may be another process.
            require_primary: whether the answer must be the primary.
            min_revision: of etcd, that our view must have reached; 0: any.
            proxy_header: of a broker that forwarded the request to us.
            claims: of the caller; journals beyond them do not exist for it.

        Raises: RpcFailed: the forwarding broker means another cluster or process, or we stopped.
        Cancellation: safe.
        """
        if proxy_header is not None:
            self._check_proxy(proxy_header)
            min_revision = max(min_revision, proxy_header.etcd.revision)
        if min_revision > self._space.revision:
            await self._space.wait_for_revision(min_revision)
        found = self.resolve_now(
            strip_meta(journal), may_proxy=may_proxy, require_primary=require_primary
        )
        if (
            claims is not ALL_CLAIMS
            and found.spec is not None
            and not claims.match(found.spec.label_set_with_name())
        ):
            return self._hidden(found.journal)
        if found.is_local and not self._is_serving:
            raise Stopped
        return found

    def resolve_now(self, journal: str, *, may_proxy: bool, require_primary: bool) -> Resolution:
        """Resolve a name without meta part at the present revision.

        This works even when we stopped serving, since appends that were taken before are finished.
        """
        key = (journal, may_proxy, require_primary)
        found = self.found.get(key)
        if found is None:
            found = self._resolve(journal, may_proxy=may_proxy, require_primary=require_primary)
            # Callers may ask for any number of journals that do not exist: these are not remembered.
            if found.spec is not None and self._is_serving:
                self.found[key] = found
        return found

    def refused(self, found: Resolution, status: Status) -> Resolution:
        """The same resolution, after it was found that we have to answer with `status`."""
        header = replace(found.header, process_id=self.process_id)
        return replace(
            found,
            status=status,
            header=header,
            is_local=False,
            header_field=_header_field(header),
        )

    def _resolve(self, journal: str, *, may_proxy: bool, require_primary: bool) -> Resolution:
        item = self._state.items.get(journal)
        route = self._state.route_of(journal) if item is not None else Route()
        own = self.process_id
        answering: ProcessId | None = None
        if require_primary and route.primary_id is not None:
            answering = route.primary_id
        elif own in route.members:
            answering = own
        status = self._status(
            item.spec if item is not None else None,
            route,
            is_own=answering == own,
            may_proxy=may_proxy,
            require_primary=require_primary,
        )
        if status is not Status.OK:
            answering = own  # a refusal names the broker that it comes from
        header = Header(answering, route, self._space.header)
        return Resolution(
            journal=journal,
            status=status,
            header=header,
            spec=item.spec if item is not None else None,
            is_local=status is Status.OK and answering == own,
            header_field=_header_field(header),
        )

    def _hidden(self, journal: str) -> Resolution:
        """The answer about a journal beyond the caller's claims. It reveals nothing, not even a route."""
        header = Header(self.process_id, Route(), self._space.header)
        return Resolution(
            journal=journal,
            status=Status.JOURNAL_NOT_FOUND,
            header=header,
            spec=None,
            is_local=False,
            header_field=_header_field(header),
        )

    @staticmethod
    def _status(
        spec: JournalSpec | None,
        route: Route,
        *,
        is_own: bool,
        may_proxy: bool,
        require_primary: bool,
    ) -> Status:
        """The first reason not to serve the journal, in Gazette's order; OK: there is none.

        The order goes from what an operator has to change to what another try may cure. A fully
        suspended journal has no members, so its status comes before those about missing ones.
        Only the last two show a client that another broker would have served it.
        """
        checks = (
            (spec is None, Status.JOURNAL_NOT_FOUND),
            (spec is not None and spec.is_fully_suspended, Status.SUSPENDED),
            (require_primary and route.primary < 0, Status.NO_JOURNAL_PRIMARY_BROKER),
            (not route.members, Status.INSUFFICIENT_JOURNAL_BROKERS),
            (
                not may_proxy and not is_own,
                Status.NOT_JOURNAL_PRIMARY_BROKER if require_primary else Status.NOT_JOURNAL_BROKER,
            ),
        )
        return next((status for holds, status in checks if holds), Status.OK)

    def _check_proxy(self, header: Header) -> None:
        ours = self._space.header.cluster_id
        if header.etcd.cluster_id != ours:
            raise RpcFailed(
                Code.UNKNOWN,
                "request Etcd ClusterId doesn't match our own "
                f"({header.etcd.cluster_id} vs {ours})",
            )
        if header.process_id is not None and header.process_id != self.process_id:
            raise RpcFailed(
                Code.UNKNOWN,
                "request ProcessId doesn't match our own "
                f"({header.process_id} vs {self.process_id})",
            )


def _header_field(header: Header) -> bytes:
    # The header has the same field number in all responses.
    message = pb.AppendResponse()
    header.into_pb(message.header)
    return message.SerializeToString()
