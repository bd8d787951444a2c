"""What the parts of one broker share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gazette_platform.broker.spool.files import DiskPace

if TYPE_CHECKING:
    import random
    from concurrent.futures import Executor

    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.broker.membership import Membership
    from gazette_platform.broker.metrics import BrokerMetrics
    from gazette_platform.broker.peers import Peers
    from gazette_platform.broker.spool.home import SpoolHome
    from gazette_platform.broker.spool.leftovers import Leftovers
    from gazette_platform.broker.spool.persister import Persister
    from gazette_platform.broker.store_guard import StoreGuard
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.fragment.refresh import FragmentLister
    from gazette_platform.keyspace import BrokerState, KeySpace
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import ProcessId
    from gazette_platform.serving.auth import Authenticator
    from gazette_platform.stores import StoreRegistry


# How many store listings may be under way at a time: thousands of journals may fall due together.
_REFRESHES_MAX = 16

# How many barriers may be under way that journals send by themselves. They are few, so that appends
# come first when thousands of journals have to be synced.
_PULSES_MAX = 64


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
    refresh_slots: defaultdict[tuple[str, ...], asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(_REFRESHES_MAX))
    )
    """One for each store, so that a store that hangs holds up its own journals only."""
