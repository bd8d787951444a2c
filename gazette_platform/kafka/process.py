"""A gateway in a process of its own: it serves clients of Kafka with journals of brokers that run elsewhere."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, final

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest

from gazette_platform.allocator import member
from gazette_platform.client import AsyncClient
from gazette_platform.errors import LeaseLost, SetupError
from gazette_platform.etcd import EtcdClient
from gazette_platform.kafka.server import KafkaServer
from gazette_platform.kafka.topics import TOPIC
from gazette_platform.keyspace import members_prefix
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import Faults
from gazette_platform.ops.network import HostGuard
from gazette_platform.ops.process import settle_memory, tune_malloc
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.auth import Authenticator
from gazette_platform.serving.http_server import NOT_SERVING, HttpServer
from gazette_platform.serving.process import Departure, run_server

if TYPE_CHECKING:
    import asyncio

    from gazette_platform.kafka.config import GatewayConfig

_LEAVE_S: Final = 30.0


@final
class GatewayMetrics:
    """The registry of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.unforeseen = Counter(
            "gazette_platform_unforeseen_errors",
            "Unforeseen errors, by the kind of thing that each ended.",
            ("kind",),
            registry=self.registry,
        )

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


@final
class KafkaProcess:
    """A gateway in this process and event loop, without a broker: `start`, then `drain` or `fail`.

    Attributes:
        config: its settings.
        faults: unforeseen errors that it survived.
        port: of clients of Kafka, and `http_port` of readiness and metrics, once it has started.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.metrics = GatewayMetrics()
        self.faults = Faults(lambda kind: self.metrics.unforeseen.labels(kind).inc())
        self.port = self.http_port = 0
        self._tasks = TaskGroup("kafka", faults=self.faults)
        self._stack = AsyncExitStack()
        self._departure = Departure(self.faults)
        self._is_ready = False

    @property
    def failed(self) -> asyncio.Event:
        """Set when a task that the process needs has ended by an error."""
        return self._tasks.failed

    @property
    def failure(self) -> BaseException | None:
        """Why `failed` is set."""
        return self._tasks.failure

    async def start(self) -> None:
        """Serve, as a node that lives under a lease.

        Raises: SetupError: a port is in use, or brokers and etcd are not of one cluster. EtcdError: etcd is out of reach, or refuses.
            TransportError: no broker answers.
        Cancellation: leaves what was begun; call `abandon`.
        """
        config = self.config
        has_tls = config.server_cert_file is not None
        guard = HostGuard(
            {*config.host_names, config.kafka.host, config.kafka.address(0)[0]}, config.allow_origin
        )
        etcd = EtcdClient(config.etcd_endpoints, tls=config.etcd_tls)
        self._stack.push_async_callback(etcd.close)
        await etcd.connect()
        self._stack.push_async_callback(self._tasks.close)
        await self._check_brokers(etcd)
        http = HttpServer(
            host=config.http_host,
            port=config.http_port,
            metrics=self.metrics,
            unready=lambda: "" if self._is_ready else NOT_SERVING,
            tasks=self._tasks,
            faults=self.faults,
            guard=guard,
            flag="kafka.http-port",
            tls=config.server_tls.server_context() if has_tls else None,
        )
        await http.start()
        self._stack.push_async_callback(http.stop)
        self.http_port = http.port
        lease = await etcd.grant_lease(max(1, round(config.etcd_lease_s)))
        self._stack.push_async_callback(member.give_back, lease)
        self._tasks.keep(lease.keep_alive, name="lease", ends_by=(LeaseLost,))
        kafka = KafkaServer(
            config.kafka,
            etcd=etcd,
            etcd_prefix=config.etcd_prefix,
            lease=lease,
            brokers=config.brokers,
            auth=Authenticator(config.auth_keys, SystemClock()),
            tls=config.server_tls.server_context() if has_tls else None,
            clock=SystemClock(),
            tasks=self._tasks,
            faults=self.faults,
            guard=guard,
        )
        self._stack.push_async_callback(kafka.stop)
        self.metrics.registry.register(kafka.metrics)
        await kafka.start()
        self.port = kafka.port
        self._is_ready = True

    async def _check_brokers(self, etcd: EtcdClient) -> None:
        """Raises: SetupError: groups would be kept elsewhere than journals are; TransportError."""
        config = self.config
        async with AsyncClient(config.brokers) as client:
            theirs = (await client.list_snapshot(TOPIC)).header.etcd.cluster_id
        found = await etcd.range(members_prefix(config.etcd_prefix))
        if theirs != found.header.cluster_id or not found.kvs:
            raise SetupError(
                f"the brokers at {config.broker_address} are not those of {config.etcd_prefix} in the etcd at "
                f"{config.etcd_address} (give --broker.address, --etcd.address and --etcd.prefix of one cluster)"
            )

    async def drain(self) -> None:
        """Answer the calls that were taken, and leave."""
        await self.abandon()

    async def fail(self) -> None:
        """Leave after a failure."""
        await self.abandon()

    async def abandon(self) -> None:
        """Close what is open; another gateway coordinates its groups and transactions from then on."""
        self._is_ready = False
        await self._departure.step(_LEAVE_S, "closing what is open", self._stack.aclose())

    def hurry(self) -> None:
        """Leave without waiting any longer for calls."""
        self._departure.hurry()

    @property
    def leaves_within_s(self) -> float:
        """Seconds that it takes to leave, at most."""
        return _LEAVE_S


def run(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT, then leave. A second signal ends it at once.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    tune_malloc()
    run_server(lambda: KafkaProcess(config), on_start=lambda _: settle_memory())
