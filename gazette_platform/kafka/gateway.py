"""What the parts of a gateway share: settings, etcd, a client of the brokers, the nodes and the topics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.metrics import KafkaMetrics
from gazette_platform.kafka.topics import TOPIC, Partition, Topic, TopicMap, map_topics

if TYPE_CHECKING:
    from collections.abc import Collection

    from gazette_platform.client import AsyncClient
    from gazette_platform.etcd import EtcdClient, Lease
    from gazette_platform.kafka.access import Access
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.registry import Schemas
    from gazette_platform.kafka.state import Nodes
    from gazette_platform.kafka.wire import Peer
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol.auth import Capability

_log = logging.getLogger(__name__)

# How old the topics may be that produce and fetch go by, and those that Metadata shows.
_STALE_S: Final = 10.0
FRESH_S: Final = 0.5


@final
class Topics:
    """The topics of the cluster, listed again when they are too old or one is not found."""

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._map = TopicMap()
        self._listed_at = -_STALE_S
        self._listing = asyncio.Lock()
        self._problems: frozenset[str] = frozenset()

    async def current(self, *, age_s: float = _STALE_S) -> TopicMap:
        """All topics, as they were at most `age_s` seconds ago. Raises: TransportError. Cancellation: safe."""
        asked_at = self._clock.monotonic()
        if asked_at - self._listed_at < age_s:
            return self._map
        async with self._listing:
            if max(asked_at, self._clock.monotonic() - age_s) > self._listed_at:
                began_at = self._clock.monotonic()
                self._map = map_topics(await self._client.list(TOPIC))
                self._listed_at = began_at
                self._warn(frozenset(self._map.problems))
        return self._map

    def known(self, name: str, number: int) -> Partition | None:
        """A partition, if it is known and was listed a short while ago."""
        if self._clock.monotonic() - self._listed_at >= _STALE_S:
            return None
        topic = self._map.topics.get(name)
        return None if topic is None else topic.partitions.get(number)

    async def topic(self, name: str) -> Topic:
        """A topic. Raises: KafkaError: there is none; TransportError."""
        for age_s in (_STALE_S, FRESH_S, 0.0):
            found = (await self.current(age_s=age_s)).topics.get(name)
            if found is not None:
                return found
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")

    async def partition(self, name: str, number: int) -> Partition:
        """A partition. Raises: KafkaError: there is none; TransportError."""
        found = self.known(name, number)
        if found is None:
            found = (await self.topic(name)).partitions.get(number)
        if found is None:
            found = (await self.current(age_s=FRESH_S)).topics[name].partitions.get(number)
        if found is None:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"{name} has no partition {number}"
            )
        return found

    def forget(self) -> None:
        """List again before the next use: something has changed."""
        self._listed_at = -_STALE_S

    def _warn(self, problems: frozenset[str]) -> None:
        for problem in sorted(problems - self._problems):
            _log.warning("no partition of a topic: %s", problem)
        self._problems = problems


@final
@dataclass(frozen=True, slots=True)
class Gateway:
    """What the parts share."""

    config: KafkaConfig
    cluster_id: str
    etcd: EtcdClient
    etcd_prefix: str
    lease: Lease
    client: AsyncClient
    clock: Clock
    tasks: TaskGroup
    faults: Faults
    nodes: Nodes
    topics: Topics
    schemas: Schemas
    metrics: KafkaMetrics = field(default_factory=KafkaMetrics)

    async def partition(
        self, peer: Peer, capability: Capability, name: str, number: int
    ) -> Partition:
        """A partition that a client may do something with.

        Raises: KafkaError: there is none, or the client may not; TransportError.
        """
        try:
            found = self.topics.known(name, number) or await self.topics.partition(name, number)
        except KafkaError:
            peer.access.check_new(capability, name, self.config.prefix)
            raise
        peer.access.check(capability, found)
        return found

    async def topic(self, access: Access, capability: Capability, name: str) -> Topic:
        """A topic that a client may do something with, all of it.

        Raises: KafkaError: there is none, or the client may not; TransportError.
        """
        try:
            found = await self.topics.topic(name)
        except KafkaError:
            access.check_new(capability, name, self.config.prefix)
            raise
        for partition in found.partitions.values():
            access.check(capability, partition)
        return found

    async def check_journals(
        self, access: Access, capability: Capability, journals: Collection[str]
    ) -> None:
        """Raises: KafkaError: a client may not do something with the journals of a transaction."""
        if not journals or access.may_all(capability):
            return
        for topic in (await self.topics.current()).topics.values():
            for partition in topic.partitions.values():
                if partition.journal in journals:
                    access.check(capability, partition)


def cluster_id(etcd_cluster: int, prefix: str) -> str:
    """How clients know the cluster: 22 letters, as Kafka has them."""
    digest = hashlib.sha256(f"{etcd_cluster}{prefix}".encode()).digest()
    return urlsafe_b64encode(digest[:16]).decode().rstrip("=")
