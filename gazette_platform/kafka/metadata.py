"""Metadata and DescribeCluster: the gateways, and the topics with their leaders.

Any gateway serves any partition. As leader, clients see the gateway in the process of the journal's primary
broker, which saves a hop; without one, gateways share the partitions by a hash.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.access import SEEN_BY
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.gateway import FRESH_S
from gazette_platform.kafka.topics import is_topic_name
from gazette_platform.kafka.wire import Api

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from uuid import UUID

    from gazette_platform.kafka.access import Access
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Partition, Topic
    from gazette_platform.kafka.wire import Call

    CreateTopic = Callable[[str, Access], Awaitable[Topic]]

_log = logging.getLogger(__name__)


@final
class Metadata:
    """Answers Metadata and DescribeCluster.

    Args:
        create: makes a topic that a client names and that does not exist.
    """

    def __init__(self, gateway: Gateway, create: CreateTopic | None = None) -> None:
        self._gateway = gateway
        self._create = create

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(3, "metadata", 0, 12, self._metadata)
        yield Api(60, "describe_cluster", 0, 1, self._describe_cluster)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    def leader(self, partition: Partition) -> int:
        """The id of the gateway that leads a partition."""
        nodes, route = self._gateway.nodes, partition.listing.route
        if 0 <= route.primary < len(route.members):
            node = nodes.of_broker(route.members[route.primary].name)
            if node is not None:
                return node.id
        return nodes.keeper(partition.journal).id

    async def _metadata(self, call: Call) -> Any:
        wanted = call.request.topics
        known = await self._gateway.topics.current(age_s=FRESH_S)
        if wanted is None or (call.version == 0 and not wanted):
            access = call.peer.access
            seen = (one for one in known.topics.values() if access.sees(one, named=False))
            found = [self._found(call, topic) for topic in seen]
        else:
            found = [await self._wanted(call, each) for each in wanted]
        return call.new(
            "MetadataResponse",
            brokers=self._brokers(call, "MetadataResponseBroker", "node_id"),
            cluster_id=self._gateway.cluster_id,
            controller_id=min(self._gateway.nodes.live),
            topics=tuple(found),
        )

    async def _wanted(self, call: Call, wanted: Any) -> Any:
        name: str | None = wanted.name
        topic_id: UUID | None = getattr(wanted, "topic_id", None)
        try:
            if not name and topic_id is not None:  # Java leaves the name empty, others say null
                known = await self._gateway.topics.current()
                topic = known.by_id(topic_id)
                if topic is None or not call.peer.access.sees(topic):
                    raise KafkaError(ErrorCode.unknown_topic_id)
            else:
                topic = await self._named(call, name or "")
        except GazetteError as err:
            return call.new(
                "MetadataResponseTopic",
                error_code=code_of(err),
                name=name or ("" if call.version < 12 else None),
                topic_id=topic_id,
                partitions=(),
            )
        return self._found(call, topic)

    async def _named(self, call: Call, name: str) -> Topic:
        if not is_topic_name(name):
            raise KafkaError(ErrorCode.invalid_topic_exception)
        access, prefix = call.peer.access, self._gateway.config.prefix
        topic = (await self._gateway.topics.current()).topics.get(name)
        if (
            topic is None
            and self._create is not None
            and call.get("allow_auto_topic_creation", True)
        ):
            topic = await self._create(name, access)
        if topic is None:
            access.check_new(SEEN_BY, name, prefix)
            topic = await self._gateway.topics.topic(name)
        if not access.sees(topic):
            raise KafkaError(ErrorCode.topic_authorization_failed, f"{name} may not be listed")
        return topic

    def _found(self, call: Call, topic: Topic) -> Any:
        return call.new(
            "MetadataResponseTopic",
            error_code=ErrorCode.none,
            name=topic.name,
            topic_id=topic.id,
            is_internal=False,
            partitions=tuple(
                self._partition(call, partition) for partition in topic.partitions.values()
            ),
        )

    def _partition(self, call: Call, partition: Partition) -> Any:
        leader, nodes = self.leader(partition), self._gateway.nodes
        others = (nodes.of_broker(member.name) for member in partition.listing.route.members)
        replicas = (leader, *(node.id for node in others if node is not None and node.id != leader))
        return call.new(
            "MetadataResponsePartition",
            error_code=ErrorCode.none,
            partition_index=partition.number,
            leader_id=leader,
            leader_epoch=0,
            replica_nodes=replicas,
            isr_nodes=replicas,
            offline_replicas=(),
        )

    def _brokers(self, call: Call, kind: str, field: str) -> tuple[Any, ...]:
        live = self._gateway.nodes.live.values()
        return tuple(
            call.new(kind, **{field: node.id}, host=node.host, port=node.port) for node in live
        )

    async def _describe_cluster(self, call: Call) -> Any:
        return call.new(
            "DescribeClusterResponse",
            error_code=ErrorCode.none,
            error_message=None,
            endpoint_type=1,
            cluster_id=self._gateway.cluster_id,
            controller_id=min(self._gateway.nodes.live),
            brokers=self._brokers(call, "DescribeClusterBroker", "broker_id"),
        )
