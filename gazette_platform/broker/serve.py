"""One broker, from its announcement in etcd to its last persisted byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, final

from gazette_platform.allocator import Allocator, announce, member
from gazette_platform.broker.api.gateway import Gateway
from gazette_platform.broker.api.service import BrokerService
from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.context import BrokerContext, BrokerMetrics, Membership
from gazette_platform.broker.crash.handover import (
    alone_with,
    await_former,
    check_not_restoring,
    note_heads,
    recover_spools,
    say_leaving,
    take_homes,
    wait_handed_over,
    watch_mixture,
)
from gazette_platform.broker.crash.peer_probes import Evictor
from gazette_platform.broker.etcd_records import (
    own_member_key,
    read_identity,
    restored_key,
    restoring_key,
)
from gazette_platform.broker.journal.gaps import still_storing
from gazette_platform.broker.journal.replica import Replica
from gazette_platform.broker.journal.resolver import Resolver
from gazette_platform.broker.peers import Peers
from gazette_platform.broker.spool.leftovers import Leftovers
from gazette_platform.broker.spool.persister import Persister
from gazette_platform.broker.spool.recovery import OtherHomes, say_homes
from gazette_platform.broker.store_guard import StoreGuard
from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.etcd import EtcdClient, Put
from gazette_platform.fragment.index import FragmentLister
from gazette_platform.keyspace import BrokerState, KeySpace
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults, insist
from gazette_platform.ops.network import HostGuard
from gazette_platform.ops.process import give_back_when_idle
from gazette_platform.ops.tasks import TaskGroup, run_in
from gazette_platform.protocol import BrokerSpec, ProcessId
from gazette_platform.serving.auth import Authenticator
from gazette_platform.serving.config import Wire, random_id
from gazette_platform.serving.grpc_transport import GrpcServer
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.serving.http_server import NOT_SERVING, HttpServer
from gazette_platform.serving.interface import RpcFailed
from gazette_platform.serving.process import Departure
from gazette_platform.stores import MeasuredStore, StoreRegistry, health_check, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aiohttp.web import UrlDispatcher

    from gazette_platform.allocator import Announcement
    from gazette_platform.broker.config import BrokerConfig
    from gazette_platform.protocol import Fragment, JournalSpec

    Pages = Callable[[BrokerService, BrokerConfig, TaskGroup, UrlDispatcher], None]

_log = logging.getLogger(__name__)

# Writing, hashing, decompressing and compressing release the GIL, so a few threads fill the cores that
# a broker should use. Each kind of work has its own: appends never queue behind readers, nor behind compression.
_APPEND_THREADS = 2
_READ_THREADS = 3
# Not of a lower priority: the event loop would wait for the GIL until such a thread gets a core.
# One for every two cores keeps up with several times what a broker takes in, and leaves the rest to appends.
_COMPRESS_THREADS = min(2, max(1, (os.cpu_count() or 1) // 2))

# Seconds that others need to agree on a crash, beside those for which they must see its port refused.
_NOTICED_S = 3.0

# Seconds for RPCs that are under way when the process leaves.
_GRACE_S = 15.0

# Seconds to announce in etcd that this process leaves, before others could find its port closed.
_SAY_S = 5.0
_STORING_S = 2.0

# How often quiet journals are looked at, and how many of them before other tasks may run.
_TICK_S = 60.0
_TICK_SLICE = 500

# How often spools are brought to the disk itself, with --broker.fsync=interval.
_SYNC_S = 1.0

# Without a drain timeout the process waits this long for a store that is down, since it may hold the
# only copy.
_PERSIST_TIMEOUT_S = 24 * 3600.0


@final
class Broker:
    """A broker in this process and event loop: `start`, then `drain` or `fail`.

    Attributes:
        failed: set when it can no longer serve, with the reason in `failure`.
        service, context, lease: its RPCs, as a transport calls them, and what it has, once it has started.
        faults: unforeseen errors that it survived.

    Args:
        pages: adds the routes of the console, which `config` may switch off.
    """

    def __init__(self, config: BrokerConfig, pages: Pages | None = None) -> None:
        self.config = config
        self._pages = None if config.no_console else pages
        self.metrics = BrokerMetrics()
        self.faults = Faults(lambda kind: self.metrics.unforeseen.labels(kind).inc())
        self.tasks = TaskGroup("broker", faults=self.faults)
        self._stack = AsyncExitStack()
        self._is_ready = False
        self._departure = Departure(self.faults)
        self.port = 0
        self.http_port = 0
        self.debug_port = 0

    @property
    def failed(self) -> asyncio.Event:
        """Set when a task that the broker needs has ended by an error."""
        return self.tasks.failed

    @property
    def failure(self) -> BaseException | None:
        """Why `failed` is set."""
        return self.tasks.failure

    @property
    def endpoint(self) -> str:
        """Where clients and peers reach it."""
        if self.config.socket is not None and not self.config.advertise:
            return f"unix://{self.config.host}{self.config.socket}"
        return self.config.endpoint(self.port)

    async def start(self) -> None:
        """Announce this broker, load the key space, and serve.

        Raises: SetupError: a port is in use. EtcdError: etcd is out of reach, or refuses.
        Cancellation: gives back the lease, and leaves what else was begun; call `abandon`.
        """
        config, clock = self.config, SystemClock()
        tls = config.server_tls.load() if config.server_cert_file is not None else None
        rng = random.Random()  # noqa: S311  spreads timers, keeps no secret
        process_id = ProcessId(config.zone, config.id or random_id(rng))
        etcd = EtcdClient(config.etcd_endpoints, tls=config.etcd_tls)
        self._stack.push_async_callback(etcd.close)
        await etcd.connect()
        await check_not_restoring(etcd, config.etcd_prefix)
        self._identity = await read_identity(etcd, config.etcd_prefix)
        homes = self._homes = await take_homes(etcd, config, process_id, self._identity)
        self._identity.history = self._identity.history or homes[0].history
        for home in homes:
            home.syncs_names = config.fsync is not FsyncMode.NEVER
            self._stack.callback(home.close)
        space = KeySpace(
            etcd,
            config.etcd_prefix,
            BrokerState(config.etcd_prefix),
            watch_delay_s=config.watch_delay_s,
            faults=self.faults,
        )
        self._membership = Membership(space.state, process_id)
        self._context = self.context = self._build(etcd, space, process_id, clock, rng)
        self.metrics.stores.active.set_function(self._context.stores.__len__)
        self._stack.push_async_callback(self.tasks.close)
        self._resolver = Resolver(
            space,
            self._membership,
            make_replica=self._make_replica,
            tasks=self.tasks,
            faults=self.faults,
        )
        self._stack.callback(self._stop_replicas)
        self.service = BrokerService(self._context, self._resolver)
        await recover_spools(homes, self._leftovers, self._context.executor)
        await self._await_former(etcd, process_id)
        serve = H2Server if config.wire is Wire.H2 else GrpcServer
        self._server: H2Server | GrpcServer = serve(
            self.service.rpcs.values(),
            host=config.host,
            port=config.port,
            socket=config.socket,
            tls=tls,
            recv_bytes_max=config.max_grpc_recv_size,
            calls=self._context.metrics.calls,
        )
        self._stack.push_async_callback(self._server.stop, grace_s=0.0)
        self.port = self._server.port
        await self._start_http()
        self._lease = self.lease = await etcd.grant_lease(max(1, round(config.etcd_lease_s)))
        try:
            # Whoever takes a home over after our process has ended may end our lease as well.
            for home in homes:
                home.own(replace(home.owner, lease=self._lease.id))
            await self._join(process_id, space)
            await self._server.start()
        except BaseException:  # peers never saw our port, so they would wait until our lease ends
            self._context.membership.give_up("this broker does not start")
            await self._departure.step(
                _GRACE_S, "giving back the lease", member.give_back(self._lease)
            )
            raise
        self._allocating = self.tasks.keep(
            self._allocator.run, name="allocator", ends_by=(LeaseLost,)
        )
        self.tasks.spawn(self._server.wait_ended(), name="server", is_essential=True)
        self._is_ready = True
        _log.info("broker %s serves at %s", process_id, self.endpoint)

    async def _await_former(self, etcd: EtcdClient, process_id: ProcessId) -> None:
        """Let the others notice the end of an instance that crashed at our address."""
        config = self.config
        if config.evict_after_s <= 0 or config.socket is not None or not config.port:
            return
        self.port = config.port
        await await_former(
            etcd,
            config.etcd_prefix,
            process_id,
            self.endpoint,
            host=config.host,
            port=config.port,
            timeout_s=config.evict_after_s + _NOTICED_S,
        )

    async def _start_http(self) -> None:
        """Open the HTTP port, and the one for diagnostics if there is to be one."""
        config = self.config
        tasks = TaskGroup("http", faults=self.faults)
        self._stack.push_async_callback(tasks.close)
        serving = partial(
            HttpServer,
            host=config.http_host,
            metrics=self._context.metrics,
            unready=lambda: "" if self._is_ready else NOT_SERVING,
            tasks=tasks,
            faults=self.faults,
        )
        http = serving(
            port=config.http_port,
            tls=config.server_tls.server_context() if config.server_cert_file else None,
            guard=HostGuard(config.host_names, config.allow_origin),
            flag="broker.http-port",
            add_routes=partial(self._add_routes, tasks),
            has_diagnostics=not config.debug_private,
        )
        await http.start()
        self._stack.push_async_callback(http.stop)
        self.http_port = http.port
        if config.debug_port is not None:
            debug = serving(port=config.debug_port, flag="debug.port")
            await debug.start()
            self._stack.push_async_callback(debug.stop)
            self.debug_port = debug.port

    def _add_routes(self, tasks: TaskGroup, router: UrlDispatcher) -> None:
        if self._pages is not None:
            self._pages(self.service, self.config, tasks, router)
        Gateway(self.service, self.config, tasks).add_to(router)

    def _build(
        self,
        etcd: EtcdClient,
        space: KeySpace[BrokerState],
        process_id: ProcessId,
        clock: SystemClock,
        rng: random.Random,
    ) -> BrokerContext:
        config, metrics, faults = self.config, self.metrics, self.faults
        compressors = self._threads(_COMPRESS_THREADS, "compress")
        stores = StoreRegistry(
            lambda url: MeasuredStore(
                open_store(url, file_root=config.file_root, file_only=config.file_only),
                metrics.stores,
            ),
            clock,
            self.tasks,
            rng=rng,
            check=metrics.stores.checked(health_check),
            faults=faults,
        )
        guard = StoreGuard(
            space.state, allowed=config.stores_allowed, file_only=config.file_only, faults=faults
        )
        space.observe(guard.on_change)
        lister = FragmentLister(stores, check=guard.check)
        peers = Peers(config, clock)
        self._stack.push_async_callback(peers.close)
        self._persister = Persister(
            registry=stores,
            lister=lister,
            spec_of=partial(self._spec_of, space),
            on_persisted=self._on_persisted,
            clock=clock,
            tasks=self.tasks,
            faults=faults,
            executor=compressors,
            directory=config.spool_dir,
            is_member=lambda: not self._membership.problem,
        )
        executor = self._threads(_APPEND_THREADS, "spool")
        self._leftovers = Leftovers(
            etcd=etcd,
            space=space,
            others=OtherHomes(config.etcd_prefix, process_id),
            prefix=config.etcd_prefix,
            persister=self._persister,
            spool_dir=config.spool_dir,
            executor=executor,
            clock=clock,
            faults=faults,
            count=metrics.spools_set_aside.inc,
        )
        return BrokerContext(
            config=config,
            clock=clock,
            rng=rng,
            process_id=process_id,
            etcd=etcd,
            space=space,
            stores=stores,
            guard=guard,
            lister=lister,
            persister=self._persister,
            identity=self._identity,
            spools=self._homes[0],
            leftovers=self._leftovers,
            executor=executor,
            readers=self._threads(_READ_THREADS, "read"),
            compressors=compressors,
            tasks=self.tasks,
            faults=faults,
            metrics=metrics,
            auth=Authenticator(config.auth_keys, clock),
            membership=self._membership,
            peers=peers,
        )

    def _threads(self, count: int, name: str) -> ThreadPoolExecutor:
        made = ThreadPoolExecutor(count, thread_name_prefix=f"gazette-{name}")
        self._stack.callback(made.shutdown, wait=False)
        return made

    async def _join(self, process_id: ProcessId, space: KeySpace[BrokerState]) -> None:
        etcd = self._context.etcd
        self.tasks.keep(self._lease.keep_alive, name="lease", ends_by=(LeaseLost,))
        spec = BrokerSpec(
            id=process_id, endpoint=self.endpoint, journal_limit=self.config.journal_limit
        )
        prefix = self.config.etcd_prefix
        ours = Put(own_member_key(prefix, process_id), say_homes(self._homes))
        unless = {restoring_key(prefix): 0, restored_key(prefix): self._identity.revision}
        self._announcement: Announcement = await announce(
            etcd, prefix, spec, self._lease, beside=ours, unless=unless
        )
        self._context.membership.hold(self._lease)
        await space.load(self._announcement.revision)
        self._allocator = Allocator(
            etcd,
            space,
            process_id,
            max_replication=self.config.max_replication,
            metrics=self._context.metrics.allocator,
            faults=self.faults,
        )
        self.tasks.keep(space.watch, name="watch", ends_by=(EtcdError,))
        if self.config.auto_suspend:
            self.tasks.keep(self._tick, name="tick")
        self.tasks.keep(partial(watch_mixture, self._context), name="mixture")
        self.metrics.unpersisted_bytes.set_function(lambda: self._persister.unpersisted_bytes)
        self.tasks.keep(self._persister.run, name="persister")
        self.tasks.keep(self._leftovers.run, name="leftovers")
        if self.config.fsync is FsyncMode.INTERVAL:
            self.tasks.keep(self._sync_spools, name="fsync")
        if self.config.evict_after_s > 0:
            evictor = Evictor(
                etcd,
                space,
                process_id,
                after_s=self.config.evict_after_s,
                clock=self._context.clock,
                evicted=self._context.metrics.brokers_evicted,
                faults=self.faults,
            )
            self._context.peers.observe_failures(evictor.hint)
            self.tasks.keep(evictor.run, name="crash watch")

    @staticmethod
    def _spec_of(
        space: KeySpace[BrokerState], journal: str, create_revision: int
    ) -> JournalSpec | None:
        item = space.state.items.get(journal)
        if item is None or item.create_revision > create_revision:
            return None  # deleted, and maybe recreated: offsets restart there
        return item.spec

    def _make_replica(self, journal: str, create_revision: int, is_primary: bool) -> Replica:  # noqa: FBT001
        return Replica(
            journal,
            create_revision,
            is_primary=is_primary,
            context=self._context,
            resolver=self._resolver,
        )

    async def _sync_spools(self) -> None:
        """Bring what was appended to the disk itself, each second."""
        executor = self._context.executor
        while True:
            await asyncio.sleep(_SYNC_S)
            for replica in self._replicas():
                with self.faults.contained("spool", f"bringing {replica.name} to disk"):
                    try:
                        await replica.spool.sync()
                    except RpcFailed as err:
                        _log.error("%s", err)
            for home in self._homes:
                with self.faults.contained("spool", f"bringing {home.folder} to disk"):
                    await run_in(executor, home.sync)

    async def _tick(self) -> None:
        """Have journals check whether they should be suspended, some of them at a time."""
        while True:
            await asyncio.sleep(_TICK_S)
            replicas = self._replicas()
            for at in range(0, len(replicas), _TICK_SLICE):
                for replica in replicas[at : at + _TICK_SLICE]:
                    with self.faults.contained("journal", f"{replica.name}: suspending it"):
                        replica.on_tick()
                await asyncio.sleep(0)

    def keep_small(self) -> None:
        """Give back memory when there is little to do; only for a broker that has a process of its own."""
        self.tasks.keep(partial(give_back_when_idle, self._context.compressors), name="memory")

    def _stop_replicas(self) -> None:
        for replica in self._replicas():
            replica.stop()

    def _on_persisted(self, fragment: Fragment) -> None:
        self._context.metrics.spool_persisted.inc()
        replica = self._resolver.replicas.get(fragment.journal)
        if replica is not None:
            replica.on_persisted(fragment)

    # ----------------------------------------------------------------------------------- leaving
    async def drain(self) -> list[Fragment]:
        """Hand over what others can take, finish what is under way, persist, leave etcd.

        Each step has a time limit, from --broker.drain-timeout if that is given, and whatever
        becomes of it, the next one is taken.

        Returns: fragments that could not be persisted within the drain timeout.
        Cancellation: leaves the process to end with its lease.
        """
        await self._departure.step(None, "handing over", self._ask_others())
        self._is_ready = False
        self.service.stop_watches()
        async with still_storing(self._context, self._resolver, self._lease.id) as said:
            await self._departure.step(_STORING_S, "saying what it stores still", said.wait())
            stopping = self.tasks.spawn(self._server.stop(grace_s=_GRACE_S), name="stop serving")
            await self._departure.step(self._limit_s, "closing journals", self._resolver.close())
            await self._departure.step(2 * _GRACE_S, "finishing calls", stopping)
            self._context.membership.give_up("this broker leaves")  # no caller waits for the rest
            left = await self._persist()
            await self._note_heads(self._replicas())
            await self._departure.step(_GRACE_S, "tidying up spools", self._tidy_up())
            await self._departure.step(_GRACE_S, "giving back the lease", self._release())
        await self.abandon()
        _tell_unpersisted(left)
        return left

    def hurry(self) -> None:
        """Leave without waiting any longer for others, calls, disks or stores."""
        self._departure.hurry()

    @property
    def leaves_within_s(self) -> float | None:
        """Seconds that `drain` and `fail` take at most; None: as long as others, and stores, take."""
        timeout_s = self.config.drain_timeout_s
        return None if timeout_s is None else 2 * timeout_s + 2 * self._limit_s + 10 * _GRACE_S

    @property
    def _limit_s(self) -> float:
        """Seconds for a step that waits for disks or stores, which may hold the only copy."""
        timeout_s = self.config.drain_timeout_s
        return _PERSIST_TIMEOUT_S if timeout_s is None else max(timeout_s, _GRACE_S)

    async def _ask_others(self) -> None:
        """Say that we leave, and let others take over what they can."""
        context, timeout_s = self._context, self.config.drain_timeout_s
        try:
            await say_leaving(context, self._announcement, self._lease, timeout_s=timeout_s)
        except EtcdError as err:
            _log.warning("others are not asked to take over, since etcd fails: %s", err)
            context.membership.give_up("this broker leaves")
        else:
            allocator, allocating = self._allocator, self._allocating
            await wait_handed_over(context, allocator, allocating, self._lease, timeout_s=timeout_s)

    async def _persist(self) -> list[Fragment]:
        """Persist all that is closed. Returns: what could not be, within the drain timeout."""
        left: list[Fragment] = []

        async def persist(timeout_s: float) -> None:
            ends_s = self.config.drain_timeout_s
            left.extend(await self._persister.drain(timeout_s=timeout_s, ends_s=ends_s))

        if not await self._departure.step(None, "persisting", persist(self._limit_s)):
            await persist(0.0)  # we have to hurry: this only says what is left
        for replica in self._resolver.unclosed:
            left.extend(replica.spool.unfinished())
        return left

    def _replicas(self) -> list[Replica]:
        return list(self._resolver.replicas.values())

    async def _note_heads(self, replicas: list[Replica], alone: Collection[str] = ()) -> None:
        async def note() -> None:
            await self._say_leaving()  # other brokers of our journals may be leaving, too
            await note_heads(self._context, replicas, self._lease, timeout_s=_GRACE_S, alone=alone)

        await self._departure.step(3 * _GRACE_S, "noting write heads", note())

    async def _say_leaving(self) -> None:
        is_over = member.deadline(self._context.clock, self._lease, _SAY_S)
        with contextlib.suppress(EtcdError):
            await insist(self._announcement.set_exiting, is_over=is_over)

    async def _release(self) -> None:
        """Give back the lease: others may take over what is still assigned to us."""
        self._allocating.cancel()  # it would take the end of our lease for a loss
        await member.give_back(self._lease)

    async def _tidy_up(self) -> None:
        """Let go of what is stored, so that no journal waits for us to come back."""
        await self._leftovers.settle_all(is_leaving=True)

    async def abandon(self) -> None:
        """Stop everything at once; keys in etcd end with the lease."""
        self._is_ready = False
        await self._departure.step(_GRACE_S, "closing what is open", self._stack.aclose())

    async def fail(self) -> list[Fragment]:
        """Stop serving after a failure, let others take over, and persist what is here.

        Persisting may take long, and others need not wait for it. If etcd fails for longer than a lease,
        all brokers end up here at once, and no other broker has what they hold.

        Returns: fragments that could not be persisted within the drain timeout.
        """
        self._is_ready = False
        self.service.stop_watches()
        has_lease = not isinstance(self.failure, LeaseLost)
        if has_lease:
            _log.error("broker stops: %s", self.failure)
        self._context.membership.give_up("this broker has failed")
        # Now: if we are evicted all the same, none of them is assigned to us later.
        replicas = self._replicas()
        alone = alone_with(self._context, replicas)
        if has_lease:  # so that our peers do not take the end of our port for a crash
            await self._departure.step(_SAY_S, "saying that it leaves", self._say_leaving())
        async with still_storing(self._context, self._resolver, self._lease.id) as said:
            await self._departure.step(_STORING_S, "saying what it stores still", said.wait())
            await self._departure.step(_GRACE_S, "finishing calls", self._server.stop(grace_s=1.0))
            await self._departure.step(self._limit_s, "closing journals", self._resolver.close())
            if has_lease:  # else others may have gone on from another head
                await self._note_heads(replicas, alone)
            await self._departure.step(_GRACE_S, "giving back the lease", self._release())
            left = await self._persist()
            await self._departure.step(_GRACE_S, "tidying up spools", self._tidy_up())
        await self.abandon()
        _tell_unpersisted(left)
        return left


def _tell_unpersisted(left: Collection[Fragment]) -> None:
    if left:
        _log.error(
            "%d fragments were not persisted, and only the spools of this broker have them (start it "
            "again with its --broker.spool-dir; in a cluster with brokers of Gazette they are lost)",
            len(left),
        )
