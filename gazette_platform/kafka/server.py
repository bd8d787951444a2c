"""The gateway's server: it accepts Kafka's clients, hands their calls to the parts, and may share a broker's process.

Kafka promises that the calls of a connection take effect in their order, and are answered in it. A task reads requests, one
handles them in order, and one sends the answers in order. A handler may leave the slow half of a call for later, as produce does
while it waits for brokers; the next call begins meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import struct
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast, final

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.kafka.fetch import Fetch, Offsets
from gazette_platform.kafka.gateway import Gateway, KafkaMetrics, Nodes, Topics, cluster_id
from gazette_platform.kafka.group_store import GroupStore
from gazette_platform.kafka.produce import Lanes, Produce
from gazette_platform.kafka.quotas import Quotas
from gazette_platform.kafka.topic_calls import Admin, Metadata
from gazette_platform.kafka.txn_coordinator import coordinator_parts
from gazette_platform.kafka.txn_store import TxnStore
from gazette_platform.kafka.wire import (
    API_VERSIONS,
    DECIDED,
    LOGIN,
    SASL_AUTHENTICATE,
    SIZE_BYTES,
    Access,
    Api,
    Login,
    Malformed,
    Peer,
    answer_bytes,
    read_call,
    read_head,
    unsupported_answer,
    versions_answer,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.sockets import BACKLOG, listen

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable, Mapping, Sequence
    from ssl import SSLContext

    from gazette_platform.broker.serve import Broker
    from gazette_platform.etcd import EtcdClient, Lease
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.wire import Call, Part
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
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
        parts: that answer calls.
        metrics: what it counts.

    Args:
        etcd: connected.
        etcd_prefix: of the cluster of brokers.
        lease: that the node lives under.
        brokers: how to reach the brokers.
        auth: verifies the tokens of clients.
        tls: of the port; None: it is plain.
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
        broker: str = "",
    ) -> None:
        self._config = config
        self._broker = broker
        self._tasks = TaskGroup("kafka", faults=faults)
        self._faults = faults
        self._lease = lease
        self._etcd = etcd
        self._etcd_prefix = etcd_prefix
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
            metrics=self.metrics,
        )
        self.parts = parts_of(gateway)
        self._apis = {api.key: api for part in self.parts for api in part.apis}
        self._apis[API_VERSIONS] = Api(API_VERSIONS, "api_versions", 0, 4, self._versions)
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


_SIZE: Final = struct.Struct(">i")

# Requests that are read and not handled yet, and calls whose answers are awaited.
_READ_AHEAD_MAX: Final = 4
_PENDING_MAX: Final = 64
_LAST_S: Final = 5.0
"""How long the last calls of a client that has closed may take."""
# Only batches of records are large. What else is read makes objects that are many times its size.
_PRODUCE: Final = 0
_OTHERS_BYTES_MAX: Final = 8 << 20
# Of clients that have not logged in.
_LOGIN_BYTES_MAX: Final = 1 << 16
_LOGIN_S: Final = 30.0


@final
class Budget:
    """Bytes that all connections may hold; a request waits until there is room for it."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        """Wait for room. Cancellation: safe."""
        if size <= self._free:
            self._free -= size
            return
        async with self._changed:
            await self._changed.wait_for(lambda: size <= self._free)
            self._free -= size

    async def give(self, size: int) -> None:
        """Give room back."""
        self._free += size
        if self._changed.locked() or size:
            async with self._changed:
                self._changed.notify_all()


@final
class Connection:
    """Serves one client.

    Args:
        apis: by key.
        budget: of bytes of requests, of all connections.
        quotas: of all connections.
        auth: verifies tokens.
    """

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter,
        *,
        apis: Mapping[int, Api],
        config: KafkaConfig,
        budget: Budget,
        quotas: Quotas,
        faults: Faults,
        metrics: KafkaMetrics,
        auth: Authenticator,
    ) -> None:
        self._metrics = metrics
        self._reader = reader
        self._writer = writer
        self._apis = apis
        self._config = config
        self._budget = budget
        self._quotas = quotas
        self._faults = faults
        address = writer.get_extra_info("peername")
        self._access = Access(auth)
        self._has_keys = auth.everyone is None
        self._expiry: asyncio.TimerHandle | None = None
        self.peer = Peer(str(address[0]) if address else "", self._access)
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(_READ_AHEAD_MAX)
        self._answers: asyncio.Queue[tuple[Call | None, Any, int, float]] = asyncio.Queue(
            _PENDING_MAX
        )
        self._left = asyncio.Event()
        self._held = 0
        self._is_leaving = False

    def leave(self) -> None:
        """Take no more requests; `run` ends when what was taken is answered."""
        self._is_leaving = True
        self._left.set()
        # Nothing may come after an end.
        cast("asyncio.Transport", self._writer.transport).pause_reading()
        self._reader.feed_eof()

    async def run(self) -> None:
        """Serve until the client leaves, or breaks the protocol. Cancellation: closes the connection."""
        try:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self._read())
                handling = group.create_task(self._handle())
                writing = group.create_task(self._write())
                await reading
                # A producer that waits for no answers sends, and closes.
                limit_s = None if self._is_leaving else _LAST_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        await self._frames.join()
                        await self._answers.join()
                handling.cancel()
                writing.cancel()
        except* (ConnectionError, TimeoutError, Malformed) as group_error:
            for error in group_error.exceptions:
                level = logging.WARNING if isinstance(error, Malformed) else logging.DEBUG
                _log.log(level, "Kafka client %s: %s", self.peer.host, error)
        finally:
            self._expire_after(None)
            self.peer.close()
            self._writer.close()
            await self._budget.give(self._held)

    async def _read(self) -> None:
        while True:
            is_closed = self._access.is_closed
            idle_s = min(self._config.idle_s, _LOGIN_S) if is_closed else self._config.idle_s
            async with asyncio.timeout(idle_s):
                try:
                    head = await self._reader.readexactly(SIZE_BYTES)
                except asyncio.IncompleteReadError:
                    return
            (size,) = _SIZE.unpack(head)
            if not 0 < size <= self._config.request_bytes_max:
                raise Malformed(
                    f"a request of {size} bytes (--kafka.request-bytes-max is {self._config.request_bytes_max})"
                )
            if size > _LOGIN_BYTES_MAX and self._access.is_closed:
                raise Malformed(f"a request of {size} bytes: {self._access.why}")
            await self._budget.take(size)
            self._held += size
            async with asyncio.timeout(idle_s):
                try:
                    frame = await self._reader.readexactly(size)
                except asyncio.IncompleteReadError:
                    return
            await self._frames.put(frame)

    async def _handle(self) -> None:
        while True:
            frame = await self._frames.get()
            call, answer = await self._answer(frame)
            wait_s = 0.0
            if call is not None:
                now = asyncio.get_running_loop().time()
                wait_s = self._quotas.take(call, len(frame), answer, self._metrics, now)
            await self._answers.put((call, answer, len(frame), wait_s))
            del frame, answer
            self._frames.task_done()
            if wait_s:
                # What comes meanwhile waits: not all clients heed the time that they are given.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._left.wait()

    async def _answer(self, frame: bytes) -> tuple[Call | None, Any]:
        if self._access.is_raw:
            return None, self._raw_login(frame)
        head = read_head(frame)
        api = self._apis.get(head.key)
        if head.key == API_VERSIONS and (api is None or not api.least <= head.version <= api.most):
            self._metrics.requests["api_versions", "error"] += 1
            return None, unsupported_answer(self._apis, frame)
        if api is None or not api.least <= head.version <= api.most:
            self._metrics.closed("unsupported" if api is None else api.name)
            raise Malformed(f"request {head.key} of version {head.version} is not supported")
        try:
            self._admit(api, frame)
            call = read_call(api, frame, self.peer)
        except Malformed:
            self._metrics.closed(api.name)
            raise
        try:
            answer = await api.handle(call)
        except GazetteError as err:
            self._metrics.closed(api.name)
            raise Malformed(f"{api.name}: {err}") from err
        except Exception as err:
            self._metrics.closed(api.name)
            self._faults.report("kafka", f"{api.name} of {self.peer.host}", err)
            raise Malformed(f"{api.name}: {type(err).__name__}") from err
        if head.key == SASL_AUTHENTICATE:
            self._logged_in()
        return call, answer

    def _admit(self, api: Api, frame: bytes) -> None:
        """Raises: Malformed: the client may not send this now."""
        if self._access.is_closed and api.key not in LOGIN:
            raise Malformed(f"{api.name}: {self._access.why}")
        if self._has_keys and api.key not in DECIDED:
            raise Malformed(f"{api.name} is not served while there are keys")
        if len(frame) > _OTHERS_BYTES_MAX and api.key != _PRODUCE:
            raise Malformed(f"{api.name}: a request of {len(frame)} bytes")

    def _raw_login(self, content: bytes) -> bytes:
        """A login without a request around it, as it follows a SaslHandshake of version 0."""
        try:
            self.peer.principal = self._access.log_in(content)
        except GazetteError as err:
            raise Malformed(f"may not log in: {err}") from err
        self._logged_in()
        return _SIZE.pack(0)

    def _logged_in(self) -> None:
        """End when the token does, unless the client logs in again before; or now, if it was refused."""
        if self._access.is_closed:
            self.leave()
        self._expire_after(self._access.remaining_s)

    def _expire_after(self, seconds: float | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(max(0.0, seconds), self._expire)

    def _expire(self) -> None:
        self._access.close("the token has expired, and the client has not logged in with a new one")
        _log.warning("Kafka client %s is left: %s", self.peer.host, self._access.why)
        self.leave()

    async def _write(self) -> None:
        while True:
            call, answer, size, wait_s = await self._answers.get()
            if hasattr(answer, "__await__"):
                answer = await self._later(call, answer)
            if call is not None:
                self._metrics.answered(call.api.name, answer)
            if answer is not None:
                if wait_s:
                    answer = dataclasses.replace(answer, throttle_time=timedelta(seconds=wait_s))
                encoded = answer if call is None else answer_bytes(call.correlation_id, answer)
                self._writer.write(encoded)
                await self._writer.drain()
            self._held -= size
            await self._budget.give(size)
            self._answers.task_done()

    async def _later(self, call: Call | None, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except Exception as err:
            name = "a call" if call is None else call.api.name
            self._metrics.closed(name)
            self._faults.report("kafka", f"{name} of {self.peer.host}", err)
            raise Malformed(f"{name}: {type(err).__name__}") from err


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
            faults=self.faults,
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
