"""The gateway's server: it accepts Kafka's clients and logs them in, hands their calls to the parts, and may share a broker's process.

The password of PLAIN and the bearer token of OAUTHBEARER are tokens as brokers take them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka.access import MECHANISMS, Quota
from gazette_platform.kafka.calls.fetch import Fetch
from gazette_platform.kafka.calls.offsets import Offsets
from gazette_platform.kafka.calls.produce import Lanes, Produce
from gazette_platform.kafka.calls.topics import Admin, Metadata
from gazette_platform.kafka.coordinator.group_offsets import GroupOffsets
from gazette_platform.kafka.coordinator.group_store import GroupStore
from gazette_platform.kafka.coordinator.live_groups import GroupCoordinator, LiveGroups
from gazette_platform.kafka.coordinator.live_transactions import LiveTransactions, TxnStore
from gazette_platform.kafka.coordinator.txn_coordinator import TxnCoordinator
from gazette_platform.kafka.gateway import (
    Gateway,
    KafkaMetrics,
    Nodes,
    TopicHomes,
    Topics,
    cluster_id,
)
from gazette_platform.kafka.registry_api import Registry
from gazette_platform.kafka.wire import (
    API_VERSIONS,
    FETCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    versions_answer,
)
from gazette_platform.kafka.wire.bounds import Budget, Complaints
from gazette_platform.kafka.wire.connection import Connection
from gazette_platform.kafka.wire.receiving import Shared
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.network import HostGuard
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol.auth import Unauthenticated
from gazette_platform.serving.in_process import LocalChannel
from gazette_platform.serving.sockets import BACKLOG, listen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from ssl import SSLContext

    from gazette_platform.broker.serve import Broker
    from gazette_platform.etcd import EtcdClient, Lease
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.wire import Call, Part
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.serving.auth import Authenticator
    from gazette_platform.serving.interface import ClientChannel

_log = logging.getLogger(__name__)

_CONNECTIONS_MAX: Final = 1 << 15
_LEAVE_S: Final = 5.0
_HANDSHAKE_S: Final = 15.0


@final
class KafkaServer:
    """A gateway in this process and event loop: `start`, then `stop`.

    Attributes:
        port: that is bound.
        registry: of schemas.
        parts: that answer calls.
        metrics: what it counts.

    Args:
        etcd: connected.
        etcd_prefix: of the cluster of brokers.
        lease: that the node lives under.
        brokers: how to reach the brokers.
        auth: verifies the tokens of clients.
        tls: of the port; None: it is plain.
        tasks: own what it runs; it closes them.
        guard: of requests for schemas that foreign pages make.
        channels: by endpoint, of brokers in this process.
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
        tasks: TaskGroup,
        faults: Faults,
        guard: HostGuard,
        channels: Mapping[str, ClientChannel] | None = None,
        broker: str = "",
    ) -> None:
        self._config = config
        self._broker = broker
        self._tasks = tasks
        self._faults = faults
        self._lease = lease
        self._etcd = etcd
        self._etcd_prefix = etcd_prefix
        self._client = AsyncClient(brokers, clock=clock, channels=channels)
        homes = TopicHomes(etcd, etcd_prefix)
        self._topics = Topics(self._client, clock, homes, config.prefix)
        self.registry = Registry(
            config,
            etcd,
            etcd_prefix,
            topics=self._topics,
            auth=auth,
            tls=tls,
            guard=guard,
            tasks=self._tasks,
        )
        self._tls = tls
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._apis: dict[int, Api] = {}
        self.parts: Sequence[Part] = ()
        self.port = 0
        self.metrics = KafkaMetrics()
        # Brokers have spools and peers beside the connections of clients.
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._shared = Shared(
            apis=self._apis,
            config=config,
            budget=Budget(config.buffer_bytes_max),
            quotas={PRODUCE: Quota(config.produce_quota), FETCH: Quota(config.fetch_quota)},
            faults=faults,
            metrics=self.metrics,
            auth=auth,
            complaints=Complaints(),
            tasks=self._tasks,
            most=_CONNECTIONS_MAX if soft < 0 else min(_CONNECTIONS_MAX, soft // 2),
        )
        self.metrics.gauges["connections"] = self._shared.open.__len__

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
            topics=self._topics,
            schemas=self.registry.schemas,
            metrics=self.metrics,
        )
        self.parts = parts_of(gateway)
        self._apis.update({api.key: api for part in self.parts for api in part.apis})
        self._apis[API_VERSIONS] = Api(API_VERSIONS, "api_versions", 0, 4, self._versions)
        await self.registry.start(self._faults)
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

    async def _listen(self, loop: asyncio.AbstractEventLoop, sock: Any) -> asyncio.Server:
        limit_s = None if self._tls is None else _HANDSHAKE_S
        return await loop.create_server(
            lambda: Connection(self._shared),
            sock=sock,
            backlog=BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=limit_s,
        )

    async def _versions(self, call: Call) -> Any:
        return versions_answer(self._apis, call.version)

    async def stop(self) -> None:
        """Take no more calls, answer those that were taken, and leave. May be called again."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await self._nodes.leave()
            if leaving := [connection.leave() for connection in [*self._shared.open]]:
                await asyncio.wait(leaving, timeout=_LEAVE_S)
            for part in self.parts:
                await part.stop()
        await self.registry.stop()
        await self._tasks.close()
        await self._client.close()


def parts_of(gateway: Gateway) -> tuple[Part, ...]:
    """All that answers calls."""
    lanes, admin = Lanes(gateway), Admin(gateway)
    groups = GroupStore(gateway.etcd, gateway.etcd_prefix, tasks=gateway.tasks)
    transactions = TxnStore(gateway.etcd, gateway.etcd_prefix, groups)
    live = LiveGroups(gateway, groups)
    return (
        Login(),
        Metadata(gateway, admin.create if gateway.config.auto_create else None),
        admin,
        Produce(gateway, lanes, transactions.open_number),
        Fetch(gateway),
        Offsets(gateway),
        GroupCoordinator(gateway, live),
        GroupOffsets(gateway, live, transactions),
        TxnCoordinator(gateway, LiveTransactions(gateway, transactions, lanes)),
    )


@final
class Login:
    """Answers SaslHandshake and SaslAuthenticate."""

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(SASL_HANDSHAKE, "sasl_handshake", 0, 1, self._handshake)
        yield Api(SASL_AUTHENTICATE, "sasl_authenticate", 0, 2, self._authenticate)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def _handshake(self, call: Call) -> Any:
        access, mechanism = call.peer.access, call.request.mechanism
        code = ErrorCode.none
        if mechanism in MECHANISMS:
            access.mechanism, access.is_raw = mechanism, call.version == 0
        else:
            code = ErrorCode.unsupported_sasl_mechanism
        return call.new("SaslHandshakeResponse", error_code=code, mechanisms=MECHANISMS)

    async def _authenticate(self, call: Call) -> Any:
        access = call.peer.access
        code, text = ErrorCode.none, None
        try:
            call.peer.principal = access.log_in(call.request.auth_bytes)
        except Unauthenticated as err:
            code, text = ErrorCode.sasl_authentication_failed, str(err)
            access.close(f"may not log in: {err}")
        return call.new(
            "SaslAuthenticateResponse",
            error_code=code,
            error_message=text,
            auth_bytes=b"",
            session_lifetime=access.lifetime,
        )


_STOP_S = 15.0


@final
class BrokerWithKafka:
    """A broker with a gateway, as `serving.process` runs it.

    Attributes:
        broker: which may be started already.
        kafka: the gateway, once it has started.
        faults: of both.
    """

    def __init__(self, broker: Broker, config: KafkaConfig) -> None:
        self.broker = broker
        self.faults = broker.faults
        self.kafka: KafkaServer | None = None
        self._config = config

    @property
    def failed(self) -> asyncio.Event:
        """Set when the broker cannot serve any more. A gateway ends with it, and never ends it."""
        return self.broker.failed

    @property
    def failure(self) -> BaseException | None:
        """Why `failed` is set."""
        return self.broker.failure

    async def start(self) -> None:
        """Start the broker, then the gateway.

        Raises: SetupError: a port is in use. EtcdError.
        Cancellation: leaves what was begun; `abandon` it.
        """
        await self.broker.start()
        await self.start_kafka()

    async def start_kafka(self) -> KafkaServer:
        """Start the gateway of a broker that serves. Raises: SetupError; EtcdError."""
        broker, served = self.broker, self.broker.config
        channel = LocalChannel(
            broker.service.rpcs.values(),
            broker.metrics.calls,
            recv_bytes_max=served.max_grpc_recv_size,
        )

        def path(file: object) -> str:
            return "" if file is None else str(file)

        self.kafka = KafkaServer(
            self._config,
            etcd=broker.context.etcd,
            etcd_prefix=served.etcd_prefix,
            lease=broker.lease,
            brokers=ClientConfig(
                address=broker.endpoint,
                zone=served.zone,
                cert_file=path(served.peer_cert_file),
                cert_key_file=path(served.peer_cert_key_file),
                trusted_ca_file=path(served.peer_ca_file),
                auth_keys=served.auth_keys,
            ),
            auth=broker.context.auth,
            clock=SystemClock(),
            tasks=TaskGroup("kafka", faults=self.faults),
            faults=self.faults,
            guard=HostGuard(
                {*served.host_names, self._config.host, self._config.address(0)[0]},
                served.allow_origin,
            ),
            channels={broker.endpoint: channel},
            broker=broker.context.process_id.name,
            tls=None if served.server_cert_file is None else served.server_tls.server_context(),
        )
        broker.metrics.registry.register(self.kafka.metrics)
        await self.kafka.start()
        return self.kafka

    async def _stop_kafka(self) -> None:
        if self.kafka is None:
            return
        with contextlib.suppress(KeyError):  # it may stop twice
            self.broker.metrics.registry.unregister(self.kafka.metrics)
        with self.faults.contained("kafka", "closing the Kafka port"):
            async with asyncio.timeout(_STOP_S):
                await self.kafka.stop()

    async def drain(self) -> None:
        """Close the Kafka port, then hand over what the broker holds."""
        await self._stop_kafka()
        await self.broker.drain()

    async def fail(self) -> None:
        """Leave after a failure of the broker."""
        await self._stop_kafka()
        await self.broker.fail()

    async def abandon(self) -> None:
        """Stop everything at once."""
        await self._stop_kafka()
        await self.broker.abandon()

    def hurry(self) -> None:
        """As of the broker."""
        self.broker.hurry()

    @property
    def leaves_within_s(self) -> float | None:
        """As of the broker, and the time of the gateway."""
        limit_s = self.broker.leaves_within_s
        return None if limit_s is None else limit_s + _STOP_S
