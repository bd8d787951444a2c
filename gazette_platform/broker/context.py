"""What the parts of one broker share: its membership in the cluster, and its metrics, by Gazette's names."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from gazette_platform.allocator import AllocatorMetrics
from gazette_platform.broker.spool.disk import DiskPace
from gazette_platform.protocol import ProcessId
from gazette_platform.serving.calls import CallMetrics, Tallies
from gazette_platform.stores import StoreMetrics

if TYPE_CHECKING:
    import random
    from concurrent.futures import Executor

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.broker.etcd_records import ClusterIdentity
    from gazette_platform.broker.peers import Peers
    from gazette_platform.broker.spool.home import SpoolHome
    from gazette_platform.broker.spool.leftovers import Leftovers
    from gazette_platform.broker.spool.persister import Persister
    from gazette_platform.broker.store_guard import StoreGuard
    from gazette_platform.etcd import EtcdClient, Lease
    from gazette_platform.fragment.index import FragmentLister
    from gazette_platform.keyspace import BrokerState, KeySpace
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.serving.auth import Authenticator
    from gazette_platform.stores import StoreRegistry


# Stands in for our identity while etcd does not have our member key.
_MISSING_ID = ProcessId("local-BrokerSpec", "missing-from-Etcd")


@final
class Membership:
    """Our place in the cluster, as etcd and our own clock have it.

    It shows a broker that others took its place, before it commits or acknowledges an append. A
    process that was stopped until its lease ended sees that by its own clock; one whose lease was
    revoked sees it in its mirror of etcd. If a journal has several replicas, these refuse as well,
    unless they were stopped together with their primary. With one replica there is no other broker to ask.

    Attributes:
        id: ours, whether we are a member or not.
        foreign: leases of the members that are brokers of Gazette, as etcd said last.
    """

    def __init__(self, state: BrokerState, process_id: ProcessId) -> None:
        self.id = process_id
        self.foreign: frozenset[int] = frozenset()
        self._state = state
        self._lease: Lease | None = None
        self._reason = ""

    @property
    def is_mixed(self) -> bool:
        """Whether a broker of Gazette is a member still, of those that etcd named last."""
        # One that has left shows at once: beside it all was stored, and beside others of ours that may be too much.
        # One that has just come does not: until etcd was asked, what is held waits on disk.
        return any(member.lease in self.foreign for member in self._state.members.values())

    @property
    def known_id(self) -> ProcessId:
        """Our identity, or its stand-in while etcd does not know us."""
        return self.id if self.id in self._state.members else _MISSING_ID

    def hold(self, lease: Lease) -> None:
        """Our member key is under this lease."""
        self._lease = lease

    @property
    def lease_left_s(self) -> float:
        """Seconds until our lease ends unless it is renewed; 0: it has ended."""
        return max(0.0, self._lease.remaining_s) if self._lease is not None else 0.0

    def give_up(self, reason: str) -> None:
        """Stop acknowledging: our port is about to close, and etcd may not know yet that we leave."""
        self._reason = self._reason or reason

    @property
    def problem(self) -> str:
        """Why we may not acknowledge anything; empty while we may."""
        if self._reason:
            return self._reason
        lease = self._lease
        if lease is None or lease.remaining_s <= 0:
            return "the lease of this broker has run out"
        member = self._state.members.get(self.id)
        if member is None or member.lease != lease.id:
            return "this broker is no longer a member of its cluster"
        return ""


# How many store listings may be under way at a time: thousands of journals may fall due together.
_REFRESHES_MAX = 16

# How many barriers may be under way that journals send by themselves. They are few, so that appends
# come first when thousands of journals have to be synced.
_PULSES_MAX = 64

# How many journals may at once say in etcd where they end.
_ENDS_MAX = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerContext:
    """What the parts of one broker share, built once when the process starts."""

    config: BrokerConfig
    clock: Clock
    rng: random.Random
    process_id: ProcessId
    etcd: EtcdClient
    space: KeySpace[BrokerState]
    stores: StoreRegistry
    guard: StoreGuard
    """Keeps the fragments of journals apart."""
    lister: FragmentLister
    persister: Persister
    identity: ClusterIdentity
    """How clients know the cluster and its journals."""
    spools: SpoolHome
    """Names the files of the spools that this process begins."""
    leftovers: Leftovers
    """Looks after spools that no replica goes on with."""
    executor: Executor
    """Threads for what appends wait for: writing and hashing."""
    readers: Executor
    """Threads for what readers wait for: reading spools and decompressing."""
    compressors: Executor
    """Threads for compression, which no call waits for."""
    tasks: TaskGroup
    faults: Faults
    """Counts unforeseen errors for the code that contained them."""
    metrics: BrokerMetrics
    auth: Authenticator
    """Verifies the tokens of calls."""
    membership: Membership
    """Our place in the cluster; says whether appends may still be committed, and acknowledged."""
    peers: Peers
    """Channels and tokens for calls to other brokers."""
    pace: DiskPace = field(default_factory=DiskPace)
    """Of the disk of spools."""
    pulse_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PULSES_MAX))
    end_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ENDS_MAX))
    """For saying where spools end: thousands of requests at once would miss their deadlines."""
    refresh_slots: defaultdict[tuple[str, ...], asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(_REFRESHES_MAX))
    )
    """One for each store, so that a store that hangs holds up its own journals only."""


@final
class BrokerMetrics:
    """One registry a broker, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.tallies = Tallies(self.registry)
        self.stores = StoreMetrics(self.registry)
        self.allocator = AllocatorMetrics(self.registry)
        self.calls = CallMetrics(self.registry, self.tallies)
        self.started = Counter(
            "gazette_journal_server_started_totals",
            "RPCs that were begun.",
            ("operation",),
            registry=self.registry,
        )
        self.completed = Counter(
            "gazette_journal_server_completed_totals",
            "RPCs that ended, by the status that they answered.",
            ("operation", "status"),
            registry=self.registry,
        )
        self.write_head = Gauge(
            "gazette_write_head",
            "Offset of the next append, in bytes.",
            ("journal",),
            registry=self.registry,
        )
        self.spool_commits = self.tallies.of(
            self._counter("gazette_spool_commits", "Appends committed.")
        )
        self.spool_commit_bytes = self.tallies.of(
            self._counter("gazette_spool_commit_bytes", "Bytes committed by appends.")
        )
        self.spool_rollbacks = self._counter("gazette_spool_rollbacks", "Appends rolled back.")
        self.spool_completed = self._counter(
            "gazette_spool_completed", "Fragments that were closed."
        )
        self.spool_persisted = self._counter(
            "gazette_spool_persisted", "Fragments that were written to a store."
        )
        self.unpersisted_bytes = Gauge(
            "gazette_platform_unpersisted_bytes",
            "Content of closed fragments that no store has taken from this broker yet.",
            registry=self.registry,
        )
        self.spools_set_aside = self._counter(
            "gazette_platform_spools_set_aside",
            "Files of former processes' spools that were set aside, and have content that their journals lack.",
        )

        self.unforeseen = Counter(
            "gazette_platform_unforeseen_errors",
            "Unforeseen errors, by the kind of thing that each ended.",
            ("kind",),
            registry=self.registry,
        )
        self.brokers_evicted = self._counter(
            "gazette_platform_brokers_evicted", "Crashed brokers that this one had evicted."
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, registry=self.registry)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes.

        The library ends names of counters in ``_total``; two of Gazette's end in ``_totals``.
        """
        return generate_latest(self.registry).replace(b"_totals_total", b"_totals")
