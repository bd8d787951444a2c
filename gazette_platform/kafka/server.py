"""The gateway's server: it accepts Kafka's clients, and hands their calls to the parts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.client import AsyncClient
from gazette_platform.kafka.admin import Admin
from gazette_platform.kafka.connection import Budget, Connection, Quotas
from gazette_platform.kafka.fetch import Fetch
from gazette_platform.kafka.gateway import Gateway, Topics, cluster_id
from gazette_platform.kafka.group_store import GroupStore
from gazette_platform.kafka.lanes import Lanes
from gazette_platform.kafka.login import Login
from gazette_platform.kafka.metadata import Metadata
from gazette_platform.kafka.metrics import KafkaMetrics
from gazette_platform.kafka.offsets import Offsets
from gazette_platform.kafka.produce import Produce
from gazette_platform.kafka.registry import EtcdSource, RestSource, Schemas
from gazette_platform.kafka.registry_api import RegistryApi
from gazette_platform.kafka.state import Nodes
from gazette_platform.kafka.txn_coordinator import coordinator_parts
from gazette_platform.kafka.txn_store import TxnStore
from gazette_platform.kafka.wire import API_VERSIONS, Api, versions_answer
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.http_server import HttpServer
from gazette_platform.serving.sockets import BACKLOG, listen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ssl import SSLContext

    from gazette_platform.client import ClientConfig
    from gazette_platform.etcd import EtcdClient, Lease
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.wire import Call, Part
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.network import HostGuard
    from gazette_platform.serving.auth import Authenticator

_log = logging.getLogger(__name__)

_READ_BUFFER_BYTES: Final = 1 << 20
_LEAVE_S: Final = 5.0
_HANDSHAKE_S: Final = 15.0


@final
class KafkaServer:
    """A gateway in this process and event loop: `start`, then `stop`.

    Attributes:
        port: that is bound.
        registry_port: likewise, for clients of the registry of schemas.
        parts: that answer calls.
        metrics: what it counts.

    Args:
        etcd: connected.
        etcd_prefix: of the cluster of brokers.
        lease: that the node lives under.
        brokers: how to reach the brokers.
        auth: verifies the tokens of clients.
        tls: of the port; None: it is plain.
        guard: of requests for schemas that foreign pages make.
        broker: zone and suffix of the broker whose process this is; empty: none.
    """

    def __init__(
        self,
        config: KafkaConfig,
        *,
        etcd: EtcdClient,
        etcd_prefix: str,
        lease: Lease,
        brokers: ClientConfig,
        auth: Authenticator,
        tls: SSLContext | None,
        clock: Clock,
        faults: Faults,
        guard: HostGuard,
        broker: str = "",
    ) -> None:
        self._config = config
        self._broker = broker
        self._tasks = TaskGroup("kafka", faults=faults)
        self._faults = faults
        self._lease = lease
        self._etcd = etcd
        self._etcd_prefix = etcd_prefix
        self._own_schemas = EtcdSource(etcd, etcd_prefix)
        self._schemas = Schemas(
            RestSource(config.registry) if config.registry else self._own_schemas
        )
        self._registry: HttpServer | None = None
        self._guard = guard
        self._client = AsyncClient(brokers, clock=clock)
        self._auth = auth
        self._tls = tls
        self._clock = clock
        self._budget = Budget(config.buffer_bytes_max)
        self._quotas = Quotas(config.produce_quota, config.fetch_quota)
        self._connections: set[Connection] = set()
        self._all_left = asyncio.Event()
        self._all_left.set()
        self._server: asyncio.Server | None = None
        self._apis: dict[int, Api] = {}
        self.parts: Sequence[Part] = ()
        self.port = 0
        self.registry_port = 0
        self.metrics = KafkaMetrics()
        self.metrics.gauges["connections"] = self._connections.__len__

    async def start(self) -> None:
        """Listen, and register the node.

        Raises: SetupError: the port is in use. EtcdError.
        Cancellation: leaves what was begun; call `stop`.
        """
        config = self._config
        sockets = listen(config.host, config.port or 0, None, "kafka")
        self.port = sockets[0].getsockname()[1]
        nodes = Nodes(self._etcd, self._etcd_prefix, faults=self._faults)
        cluster = (await self._etcd.range(f"{self._etcd_prefix}/none/")).header.cluster_id
        gateway = Gateway(
            config=config,
            cluster_id=cluster_id(cluster, self._etcd_prefix),
            etcd=self._etcd,
            etcd_prefix=self._etcd_prefix,
            lease=self._lease,
            client=self._client,
            clock=self._clock,
            tasks=self._tasks,
            faults=self._faults,
            nodes=nodes,
            topics=Topics(self._client, self._clock),
            schemas=self._schemas,
            metrics=self.metrics,
        )
        self.parts = parts_of(gateway)
        self._apis = {api.key: api for part in self.parts for api in part.apis}
        self._apis[API_VERSIONS] = Api(API_VERSIONS, "api_versions", 0, 4, self._versions)
        await self._start_registry()
        host, port = config.address(self.port)
        await nodes.register(
            host=host, port=port, broker=self._broker, lease=self._lease.id, tasks=self._tasks
        )
        self._nodes = nodes
        for part in self.parts:
            await part.start()
        loop = asyncio.get_running_loop()
        first, *others = sockets
        self._server = await self._listen(loop, first)
        for other in others:
            server = await self._listen(loop, other)
            self._tasks.spawn(server.serve_forever(), name="listen")
        _log.info("Kafka's clients are served at %s:%d, node %d", host, port, nodes.own.id)

    async def _start_registry(self) -> None:
        """Serve the registry, if there is to be one. Raises: SetupError: its port is in use."""
        if self._config.registry_port is None:
            return
        server = HttpServer(
            host=self._config.host,
            port=self._config.registry_port,
            metrics=None,
            unready=lambda: "",
            tasks=self._tasks,
            faults=self._faults,
            guard=self._guard,
            flag="kafka.registry-port",
            tls=self._tls,
            add_routes=RegistryApi(self._own_schemas, self._auth).add_routes,
            has_diagnostics=False,
        )
        await server.start()
        self._registry, self.registry_port = server, server.port

    async def _listen(self, loop: asyncio.AbstractEventLoop, sock: Any) -> asyncio.Server:
        def accept() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=_READ_BUFFER_BYTES, loop=loop)
            return asyncio.StreamReaderProtocol(reader, self._serve, loop=loop)

        limit_s = None if self._tls is None else _HANDSHAKE_S
        return await loop.create_server(
            accept, sock=sock, backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=limit_s
        )

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._tasks.is_closed:
            writer.close()
            return
        connection = Connection(
            reader,
            writer,
            apis=self._apis,
            config=self._config,
            budget=self._budget,
            quotas=self._quotas,
            faults=self._faults,
            metrics=self.metrics,
            auth=self._auth,
        )
        self._tasks.spawn(self._run(connection), name="connection")

    async def _run(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._all_left.clear()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._all_left.set()

    async def _versions(self, call: Call) -> Any:
        return versions_answer(self._apis, call.version)

    async def stop(self) -> None:
        """Take no more calls, answer those that were taken, and leave. May be called again."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await self._nodes.leave()
            for connection in [*self._connections]:
                connection.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._all_left.wait()
            for part in self.parts:
                await part.stop()
        registry, self._registry = self._registry, None
        if registry is not None:
            await registry.stop()
        await self._schemas.close()
        await self._tasks.close()
        await self._client.close()


def parts_of(gateway: Gateway) -> tuple[Part, ...]:
    """All that answers calls."""
    lanes, admin = Lanes(gateway), Admin(gateway)
    groups = GroupStore(gateway.etcd, gateway.etcd_prefix, tasks=gateway.tasks)
    transactions = TxnStore(gateway.etcd, gateway.etcd_prefix, groups)
    return (
        Login(),
        Metadata(gateway, admin.create if gateway.config.auto_create else None),
        admin,
        Produce(gateway, lanes, transactions),
        Fetch(gateway),
        Offsets(gateway),
        *coordinator_parts(gateway, groups, transactions, lanes),
    )
