"""A broker and a Kafka gateway in one process, which start and leave together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, final

from gazette_platform.client import ClientConfig
from gazette_platform.kafka.server import KafkaServer
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.network import HostGuard

if TYPE_CHECKING:
    from gazette_platform.broker.serve import Broker
    from gazette_platform.kafka.config import KafkaConfig

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
            guard=HostGuard(
                {*served.host_names, self._config.host, self._config.address(0)[0]},
                served.allow_origin,
            ),
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
