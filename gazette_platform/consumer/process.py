"""A process of a consumer group: joins the group in etcd, runs the allocator, and runs the shards assigned to it.

`ConsumerProcess` starts and ends the process, and `run` serves until it has to leave. `ShardReplicas` (`runtime.replicas`)
follows assignments, `Restarts` retries shards that failed, and `Scratch` holds their files.
Promise: when the process leaves, other members take its shards over first; when it is killed, after the lease.
Cost: one lease and one watch of etcd, however many shards it runs.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
import secrets
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, final
from urllib.parse import urlsplit

from typing_extensions import override

from gazette_platform.allocator import Allocator, announce, member
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.application import raised_by
from gazette_platform.consumer.assignments import ConsumerState
from gazette_platform.consumer.etcd_hints import EtcdShardHost
from gazette_platform.consumer.peers import ConsumerPeers
from gazette_platform.consumer.protocol import ConsumerSpec
from gazette_platform.consumer.resolver import ShardResolver
from gazette_platform.consumer.runtime.replica import ShardReplica
from gazette_platform.consumer.runtime.replicas import ConsumerMetrics, Restarts, ShardReplicas
from gazette_platform.consumer.runtime.sources import ReadBudget
from gazette_platform.consumer.runtime.tasks import HINTS_INTERVAL_S, ReplicaSettings
from gazette_platform.consumer.shard_api import ShardApi, ShardGateway, ShardService
from gazette_platform.errors import EtcdError, GazetteError, LeaseLost, ValidationError
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import KeySpace, item_key
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.network import HostGuard
from gazette_platform.ops.tasks import LoopWatch, TaskGroup
from gazette_platform.protocol import ProcessId
from gazette_platform.serving.auth import Authenticator
from gazette_platform.serving.config import ServerConfig, Wire, expect_setting, random_id
from gazette_platform.serving.grpc_transport import GrpcServer
from gazette_platform.serving.h2.server import H2Server
from gazette_platform.serving.http_server import NOT_SERVING, HttpServer, Origins
from gazette_platform.serving.process import Departure, run_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from gazette_platform.consumer.application import Application
    from gazette_platform.consumer.assignments import ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec


def _never_gives_up() -> ClientConfig:
    return ClientConfig(retry_timeout_s=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerConfig(ServerConfig):
    """What `serve` of an application was asked for, beside what every server is. Validated when built.

    Its `etcd_prefix` is that of one deployment of one application, as ``/gazette/consumers/APP-RELEASE``.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

    flags: ClassVar[str] = "consumer"

    limit: int = 32
    """Most shards that the allocator may assign to this process."""

    max_hot_standbys: int = 3
    """Cap on the hot standbys of shards."""

    restart_failed_s: float | None = None
    """Seconds after which a shard that failed here is started again, longer each time; None: it never is,
    until you unassign it. One that was fenced, or whose database failed for a reason that passes, is in any
    case, after a second.
    """

    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Where the process has a folder, in which replicas keep files while they run."""

    hints_interval_s: float = HINTS_INTERVAL_S
    """Seconds after which a primary keeps hints again: a recovery plays what was recorded since."""

    broker: ClientConfig = field(default_factory=_never_gives_up)
    """How to reach brokers; a `retry_timeout_s` of None has shards wait for brokers that are away."""

    @override
    def _check_own(self) -> None:
        expect_setting(0 <= self.limit <= 1 << 17, "consumer.limit", "0 to 131072", self.limit)
        expect_setting(
            0 <= self.max_hot_standbys < 100,
            "consumer.max-hot-standbys",
            "0 to 99",
            self.max_hot_standbys,
        )
        expect_setting(
            self.hints_interval_s > 0,
            "consumer.hints-interval",
            "more than 0s",
            self.hints_interval_s,
        )
        expect_setting(
            self.restart_failed_s is None or self.restart_failed_s > 0,
            "consumer.restart-failed",
            "more than 0s",
            self.restart_failed_s,
        )
        if not self.directory.is_dir():
            raise ValidationError(
                f"{self.directory} is not a directory; create it first", path="consumer.directory"
            )

    @property
    def peers(self) -> ClientConfig:
        """How to reach other processes of the group."""
        files = self.peer_tls
        return ClientConfig(
            zone=self.zone,
            cert_file=str(files.cert_file or ""),
            cert_key_file=str(files.cert_key_file or ""),
            trusted_ca_file=str(files.ca_file or ""),
            auth_keys=self.auth_keys,
        )


_log = logging.getLogger(__name__)

# Seconds for calls that are under way when the process leaves, and to announce that in etcd.
_GRACE_S: Final = 15.0
# Seconds after which a callback counts as blocking the event loop, at least. Stores take some tenths at times.
_BLOCKED_S_MIN: Final = 1.0
# Binding to these says nothing of how one is reached.
_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104  compared, not bound
_WORDS: Final = member.Words("shards", "consumer", "", "consumer.drain-timeout")


@final
class ConsumerProcess:
    """A consumer in this process and event loop: `start`, then `drain` or `fail`.

    An application's `init` may use all of its attributes, and add calls and pages.

    Attributes:
        application: whose shards it runs.
        config: its settings.
        client: of brokers; never gives up.
        resolver: who serves a shard.
        peers: calls of other processes of the group, which answer in our place.
        api: answers calls of `consumer.Shard`.
        auth: says what a caller may do, by its token.
        replicas: the shards that are assigned to it.
        tasks: owns what runs as long as it does.
        stopping: set once it leaves: calls that take long should end.
        metrics: what it counts.
        faults: unforeseen errors that it survived.
        port: of gRPC, and `http_port` of HTTP, once it has started.
    """

    def __init__(
        self,
        application: Application[Any, Any],
        config: ConsumerConfig,
        *,
        api: type[ShardApi] = ShardApi,
    ) -> None:
        self.application = application
        self.config = config
        self.metrics = ConsumerMetrics()
        self.faults = Faults(lambda kind: self.metrics.unforeseen.labels(kind).inc())
        self.tasks = TaskGroup("consumer", faults=self.faults)
        self.stopping = asyncio.Event()
        self.port = self.http_port = 0
        self._api_type = api
        self._clock = SystemClock()
        self._stack = AsyncExitStack()
        self._scratch = Scratch(config.directory)
        self._budget = ReadBudget()
        self._pages: list[Callable[[web.UrlDispatcher], None]] = []
        self._is_ready = False
        self._departure = Departure(self.faults)

    @property
    def failed(self) -> asyncio.Event:
        """Set when a task that the process needs has ended by an error."""
        return self.tasks.failed

    @property
    def failure(self) -> BaseException | None:
        """Why `failed` is set."""
        return self.tasks.failure

    @property
    def endpoint(self) -> str:
        """Where clients and other processes reach it."""
        return self.config.endpoint(self.port)

    @property
    def http_endpoint(self) -> str:
        """Where its pages are, for those who reach it at `endpoint`."""
        host = self.config.http_host
        if host in _ANY_ADDRESS or self.config.advertise:
            host = urlsplit(self.endpoint).hostname or host
        return f"{self.config.scheme}://{f'[{host}]' if ':' in host else host}:{self.http_port}"

    # ------------------------------------------------------------------ what applications add

    def add_servicer(self, add: Callable[[Any, Any], None], servicer: Any) -> None:
        """Serve a gRPC service of the application, on the port of `consumer.Shard`; during `init`.

        Args:
            add: generated beside the service, as ``add_NGramServicer_to_server``.
            servicer: with coroutines for its calls, or functions, which run in threads; they check the caller's
                token by `auth`.

        Raises: SetupError: `servicer` does not have the methods that `add` wants.
        """
        self._server.add_servicer(add, servicer)

    def add_pages(self, add: Callable[[web.UrlDispatcher], None]) -> None:
        """Serve pages of the application on the HTTP port; during `init`.

        Args:
            add: adds its routes to the router that it is given.
        """
        self._pages.append(add)

    # ------------------------------------------------------------------ starting

    async def start(self) -> None:
        """Serve, announce this process, and run what is assigned to it.

        Raises: SetupError: a port is in use. EtcdError: etcd is out of reach, or refuses.
            ApplicationFailed: the application's `init` raises, if it is not a GazetteError.
        Cancellation: leaves what was begun; call `abandon`.
        """
        config, rng = self.config, random.Random()  # noqa: S311  a name, no secret
        self.process_id = ProcessId(config.zone, config.id or random_id(rng))
        self.client = AsyncClient(config.broker)
        self._stack.push_async_callback(asyncio.to_thread, self._scratch.close)
        await asyncio.to_thread(self._scratch.open)
        await self._stack.enter_async_context(self.client)
        self._etcd = EtcdClient(config.etcd_endpoints, tls=config.etcd_tls)
        self._stack.push_async_callback(self._etcd.close)
        await self._etcd.connect()
        self._space = KeySpace(
            self._etcd,
            config.etcd_prefix,
            ConsumerState(config.etcd_prefix),
            watch_delay_s=config.watch_delay_s,
            faults=self.faults,
        )
        self._stack.push_async_callback(self.tasks.close)
        self.replicas: ShardReplicas[ShardReplica[Any, Any]] = ShardReplicas(
            self._space,
            self.process_id,
            make=self._make_replica,
            tasks=self.tasks,
            faults=self.faults,
        )
        Restarts(
            self._etcd,
            self._space,
            self.process_id,
            pause_s=config.restart_failed_s,
            may_pass=self.replicas.may_pass,
            clock=self._clock,
            tasks=self.tasks,
        )
        self.replicas.on_stopped = self.metrics.watch(self.replicas.held).leave
        self._stack.push_async_callback(self.replicas.close)
        self._start_service()
        await self._init_application()
        await self._start_http()
        self._lease = await self._etcd.grant_lease(max(1, round(config.etcd_lease_s)))
        watch = LoopWatch(max(_BLOCKED_S_MIN, config.etcd_lease_s / 10))
        watch.start()
        self._stack.callback(watch.stop)
        self._lease.why_late = lambda: watch.said(within_s=self._lease.ttl_s)
        try:
            await self._server.start()
            await self._join()
        except BaseException:
            await self._departure.step(_GRACE_S, "giving back the lease", self._lease.revoke())
            raise
        self.tasks.spawn(self._server.wait_ended(), name="server", is_essential=True)
        self.tasks.spawn(asyncio.to_thread(self._scratch.sweep), name="sweep")
        self._is_ready = True
        _log.info("consumer %s serves at %s", self.process_id, self.endpoint)

    def _start_service(self) -> None:
        config = self.config
        self.auth = Authenticator(config.auth_keys, self._clock)
        peers = self.peers = ConsumerPeers(config.peers, self._clock)
        self._stack.push_async_callback(peers.close)
        self.resolver = ShardResolver(self._space, self.process_id, self.replicas.get)
        self.api = self._api_type(self._etcd, self.resolver, peers)
        self._service = ShardService(
            self.api, self.auth, self.faults, http_endpoint=lambda: self.http_endpoint
        )
        serve = H2Server if config.wire is Wire.H2 else GrpcServer
        self._server: H2Server | GrpcServer = serve(
            self._service.rpcs,
            host=config.host,
            port=config.port,
            tls=config.server_tls.load() if config.server_cert_file is not None else None,
            recv_bytes_max=config.max_grpc_recv_size,
            calls=self.metrics.calls,
            flags="consumer",
        )
        self._stack.push_async_callback(self._server.stop, grace_s=0.0)
        self.port = self._server.port

    async def _init_application(self) -> None:
        try:
            begun = self.application.init(self)
            if begun is not None:
                await begun
        except GazetteError:
            raise
        except Exception as err:
            raise raised_by(self.application, "init", err) from err

    async def _start_http(self) -> None:
        config = self.config
        tasks = TaskGroup("http", faults=self.faults)
        self._stack.push_async_callback(tasks.close)
        gateway = ShardGateway(self._service, origins=Origins(config.allow_origin))

        def add_routes(router: web.UrlDispatcher) -> None:
            for add in (gateway.add_to, *self._pages):
                add(router)

        http = HttpServer(
            host=config.http_host,
            port=config.http_port,
            metrics=self.metrics,
            unready=self._unready,
            tls=config.server_tls.server_context() if config.server_cert_file else None,
            tasks=tasks,
            faults=self.faults,
            guard=HostGuard(config.host_names, config.allow_origin),
            flag="consumer.http-port",
            add_routes=add_routes,
        )
        await http.start()
        self._stack.push_async_callback(http.stop)
        self.http_port = http.port

    def _unready(self) -> str:
        failed = [
            f"shard {shard} has failed: {replica.error}"
            for shard, replica in sorted(self.replicas.held.items())
            if replica.error is not None
        ]
        return "\n".join(failed) if self._is_ready else NOT_SERVING

    async def _join(self) -> None:
        self.tasks.keep(self._lease.keep_alive, name="lease", ends_by=(LeaseLost,))
        spec = ConsumerSpec(
            id=self.process_id, endpoint=self.endpoint, shard_limit=self.config.limit
        )
        self._announcement = await announce(self._etcd, self.config.etcd_prefix, spec, self._lease)
        await self._space.load(self._announcement.revision)
        self._allocator = Allocator(
            self._etcd,
            self._space,
            self.process_id,
            max_replication=1 + self.config.max_hot_standbys,
            metrics=self.metrics.allocator,
            faults=self.faults,
        )
        self.tasks.keep(self._space.watch, name="watch", ends_by=(EtcdError,))
        self._allocating = self.tasks.keep(
            self._allocator.run, name="allocator", ends_by=(LeaseLost,)
        )

    def _make_replica(self, spec: ShardSpec, assignment: ShardAssignment) -> ShardReplica[Any, Any]:
        return ShardReplica(
            self.application,
            self.client,
            EtcdShardHost(self.api, assignment, lease=self._lease),
            fqn=item_key(self.config.etcd_prefix, spec.id),
            spec=spec,
            assignment=assignment,
            settings=ReplicaSettings(
                directory=self._scratch.path,
                hints_interval_s=self.config.hints_interval_s,
                lease_s=self._lease.ttl_s,
                budget=self._budget,
            ),
            counts=self.metrics.sequencers,
        )

    # ------------------------------------------------------------------ leaving

    async def drain(self) -> None:
        """Hand over shards to others, which go on without a pause, and leave etcd.

        Each step has a time limit, and whatever becomes of it, the next one is taken.

        Cancellation: leaves the process to end with its lease.
        """
        await self._departure.step(None, "handing over", self._hand_over())
        await self._leave()

    async def fail(self) -> None:
        """Stop after a failure. Others take over once our lease is given back, or has ended."""
        if not isinstance(self.failure, LeaseLost):
            _log.error("consumer stops: %s", self.failure)
        await self._leave()

    async def abandon(self) -> None:
        """Stop everything at once; keys in etcd end with the lease."""
        self._is_ready = False
        self.stopping.set()
        await self._departure.step(_GRACE_S, "closing what is open", self._stack.aclose())

    def hurry(self) -> None:
        """Leave without waiting any longer for others, calls or stores."""
        self._departure.hurry()

    @property
    def leaves_within_s(self) -> float | None:
        """Seconds that `drain` and `fail` take at most; None: as long as others take."""
        timeout_s = self.config.drain_timeout_s
        return None if timeout_s is None else timeout_s + 6 * _GRACE_S

    async def _hand_over(self) -> None:
        timeout_s = self.config.drain_timeout_s
        try:
            await member.say_leaving(
                self._space,
                self._announcement,
                self._lease,
                clock=self._clock,
                timeout_s=timeout_s,
            )
        except EtcdError as err:
            _log.warning("others are not asked to take over, since etcd fails: %s", err)
            return
        await member.wait_handed_over(
            self._space,
            self._allocator,
            self._allocating,
            self._lease,
            clock=self._clock,
            timeout_s=timeout_s,
            words=_WORDS,
            # Shards are in their logs and databases, whoever goes on with them.
            stays_for_others=False,
        )

    async def _leave(self) -> None:
        """What is still ours stops before the lease is given back, so that no shard of ours is fenced by others."""
        self._is_ready = False
        self.stopping.set()
        self.resolver.stop_serving()
        stopping = self.tasks.spawn(self._server.stop(grace_s=_GRACE_S), name="stop serving")
        await self._departure.step(_GRACE_S, "stopping shards", self.replicas.close())
        self._allocating.cancel()  # it would take the end of our lease for a loss
        await self._departure.step(_GRACE_S, "giving back the lease", member.give_back(self._lease))
        await self._departure.step(2 * _GRACE_S, "finishing calls", stopping)
        await self.abandon()


def run(application: Application[Any, Any], config: ConsumerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then hand over.

    A second signal ends it at once, and --consumer.drain-timeout within some time, whatever hangs.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    run_server(lambda: ConsumerProcess(application, config), flag="consumer.drain-timeout")


_NAME: Final = "gazette-consumer-"
_LOCK_SUFFIX: Final = ".lock"


# ------------------------------------------------------------------ scratch

# The folder in which a process keeps files of its shards, and those that killed processes have left.
#
# Such files are worth nothing once their process is gone, and may be large. Each process has a folder of its
# own, and beside it a file that it holds a lock of as long as it lives: who gets that lock may delete both.


@final
class Scratch:
    """A folder below another one, which is deleted in the end, by whomever. Calls block.

    Attributes:
        path: where files may be made: the parent itself, if there cannot be a folder, as for a process
            whose shards need no files.
    """

    def __init__(self, parent: Path) -> None:
        """Nothing is made yet."""
        self.path = parent
        self._parent = parent
        self._lock: int | None = None
        self._lock_path = parent

    def open(self) -> None:
        """Make the folder, and hold its lock."""
        name = f"{_NAME}{secrets.token_hex(8)}"
        self._lock_path, path = self._parent / f"{name}{_LOCK_SUFFIX}", self._parent / name
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            # Another process that looks for leftovers may hold it for a moment, and then delete it.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(self._lock).st_nlink:
                raise FileNotFoundError(f"{self._lock_path} was deleted by another process")
            path.mkdir(0o700)
        except OSError as err:
            _log.warning(
                "%s: no folder of this process alone can be made there (%s): files of its shards stay behind "
                "if it is killed",
                self._parent,
                err,
            )
            self.close()
            return
        self.path = path

    def sweep(self) -> None:
        """Delete what processes of this user have left that are gone."""
        uid = os.geteuid()
        for lock_path in sorted(self._parent.glob(f"{_NAME}*{_LOCK_SUFFIX}")):
            folder = lock_path.with_name(lock_path.name.removesuffix(_LOCK_SUFFIX))
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_NOFOLLOW)
            except OSError:
                continue  # deleted meanwhile, or of another user
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == uid and os.fstat(lock).st_nlink:
                    _log.info("%s: files of a process that is gone are deleted", folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    lock_path.unlink(missing_ok=True)
            except OSError:
                pass  # it lives, or another process is at it
            finally:
                os.close(lock)

    def close(self) -> None:
        """Delete the folder, with all that is in it. May be called again."""
        if self._lock is None:
            return
        if self.path != self._parent:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
