"""Metadata, DescribeCluster, FindCoordinator, and the calls that make, change and delete topics as journals.

Any gateway serves any partition. As leader, clients see the gateway in the process of the journal's primary
broker, which saves a hop; without one, gateways share the partitions by a hash.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdTransactionFailed, GazetteError
from gazette_platform.kafka.access import SEEN_BY
from gazette_platform.kafka.calls.topic_configs import (
    ALTERABLE,
    altered_spec,
    changes_of,
    check_count,
    configs_of,
    template_of,
)
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.gateway import FRESH_S
from gazette_platform.kafka.topics import PARTITION, is_topic_name
from gazette_platform.kafka.wire import Api
from gazette_platform.protocol import JournalChange
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
    from uuid import UUID

    from gazette_platform.kafka.access import Access
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Partition, Topic
    from gazette_platform.kafka.wire import Call
    from gazette_platform.protocol import JournalSpec

    CreateTopic = Callable[[str, Access], Awaitable[Topic]]
    Changes = Callable[[Any, JournalSpec], Mapping[str, str | None]]

_log = logging.getLogger(__name__)

_GROUP: Final = 0
_COORDINATED: Final = {_GROUP: "group", 1: "transaction"}
"""Kinds of names that have a coordinator."""


@final
class Metadata:
    """Answers Metadata, DescribeCluster and FindCoordinator.

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
        yield Api(10, "find_coordinator", 0, 5, self._find)
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

    async def _find(self, call: Call) -> Any:
        kind = call.get("key_type", _GROUP)
        keys = call.get("coordinator_keys")
        one = keys is None
        found = [self._coordinator(kind, key) for key in ((call.request.key,) if one else keys)]
        if one:
            return call.new("FindCoordinatorResponse", **found[0])
        coordinators = tuple(call.new("Coordinator", **fields) for fields in found)
        return call.new("FindCoordinatorResponse", coordinators=coordinators)

    def _coordinator(self, kind: int, key: str) -> dict[str, Any]:
        if kind not in _COORDINATED or not key:
            text = f"a name of kind {kind} has no coordinator"
            return {
                "key": key,
                "node_id": -1,
                "host": "",
                "port": -1,
                "error_code": ErrorCode.invalid_request,
                "error_message": text,
            }
        node = self._gateway.nodes.coordinator(_COORDINATED[kind], key)
        return {
            "key": key,
            "node_id": node.id,
            "host": node.host,
            "port": node.port,
            "error_code": ErrorCode.none,
            "error_message": None,
        }


_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4
_FROM_TOPIC: Final = 1
_FROM_DEFAULT: Final = 5
_READY_S: Final = 10.0
# Of configs that are named in the log.
_NAMES_MAX: Final = 10
_NAME_CHARS: Final = 100


@final
class Admin:
    """Answers calls that change topics, and shows their configs."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(19, "create_topics", 2, 7, self._create_topics)
        yield Api(20, "delete_topics", 1, 6, self._delete_topics)
        yield Api(32, "describe_configs", 1, 4, self._describe_configs)
        yield Api(33, "alter_configs", 0, 2, self._replace_configs)
        yield Api(37, "create_partitions", 0, 3, self._create_partitions)
        yield Api(44, "incremental_alter_configs", 0, 1, self._alter_configs)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def create(self, name: str, access: Access) -> Topic:
        """Make a topic with the defaults; another client may be faster. Raises: GazetteError."""
        try:
            await self._create(name, -1, -1, {}, access=access)
        except KafkaError as err:
            if err.code is not ErrorCode.topic_already_exists:
                raise
        return await self._gateway.topics.topic(name)

    async def _create_topics(self, call: Call) -> Any:
        topics = []
        for wanted in call.request.topics:
            configs = {each.name: each.value for each in wanted.configs}
            count = len(wanted.assignments) or wanted.num_partitions
            replication = wanted.replication_factor
            if wanted.assignments:
                replication = len(wanted.assignments[0].broker_ids)
            code, text = await _outcome(
                self._create,
                wanted.name,
                count,
                replication,
                configs,
                access=call.peer.access,
                only_check=call.get("validate_only", False),
            )
            found = (await self._gateway.topics.current()).topics.get(wanted.name)
            if found is not None and not call.peer.access.sees(found):
                found = None
            topics.append(
                call.new(
                    "CreatableTopicResult",
                    name=wanted.name,
                    topic_id=None if found is None else found.id,
                    error_code=code,
                    error_message=text,
                    num_partitions=-1 if found is None else len(found.partitions),
                    replication_factor=-1 if found is None else _spec_of(found).replication,
                    configs=(),
                )
            )
        return call.new("CreateTopicsResponse", topics=tuple(topics))

    async def _create(
        self,
        name: str,
        count: int,
        replication: int,
        configs: Mapping[str, str | None],
        *,
        access: Access,
        only_check: bool = False,
    ) -> None:
        """Raises: GazetteError: the topic is not made."""
        gateway = self._gateway
        if not is_topic_name(name):
            raise KafkaError(
                ErrorCode.invalid_topic_exception, f"{name!r} is not a name of a topic"
            )
        access.check_new(Capability.APPLY, name, gateway.config.prefix)
        if name in (await gateway.topics.current(age_s=0.0)).topics:
            raise KafkaError(ErrorCode.topic_already_exists, f"there is a topic {name}")
        check_count(number := gateway.config.partitions if count == -1 else count)
        template = template_of(gateway.config, await self._stores(), replication, configs)
        if template.ignored:
            names = ", ".join(repr(each[:_NAME_CHARS]) for each in template.ignored[:_NAMES_MAX])
            _log.warning("topic %s: no effect have %s", name, names)
        specs = [template.spec(name, each, gateway.config.prefix) for each in range(number)]
        access.check_specs(name, specs)
        if not only_check:
            await self._apply([JournalChange(spec) for spec in specs], exists=name)

    async def _stores(self) -> tuple[str, ...]:
        """Where the fragments of new topics go."""
        config = self._gateway.config
        if config.store:
            return (config.store,)
        for near in await self._gateway.client.list(f"name:prefix={config.prefix}"):
            if near.spec.fragment.stores:
                return near.spec.fragment.stores
        return ()

    async def _apply(self, changes: list[JournalChange], *, exists: str = "") -> None:
        """Apply changes, and wait until brokers take appends to what was made."""
        gateway = self._gateway
        try:
            await gateway.client.apply(changes)
        except EtcdTransactionFailed as err:
            if exists:
                raise KafkaError(
                    ErrorCode.topic_already_exists, f"journals of topic {exists} exist"
                ) from err
            raise
        finally:
            gateway.topics.forget()
        made = [change.name for change in changes if change.spec is not None]
        async with asyncio.timeout(_READY_S):
            for journal in made[:1]:
                await gateway.client.append(journal, b"")

    async def _create_partitions(self, call: Call) -> Any:
        results = []
        for wanted in call.request.topics:
            code, text = await _outcome(
                self._extend,
                wanted.name,
                wanted.count,
                access=call.peer.access,
                only_check=call.request.validate_only,
            )
            results.append(
                call.new(
                    "CreatePartitionsTopicResult",
                    name=wanted.name,
                    error_code=code,
                    error_message=text,
                )
            )
        return call.new("CreatePartitionsResponse", results=tuple(results))

    async def _extend(self, name: str, count: int, *, access: Access, only_check: bool) -> None:
        topic = await self._gateway.topic(access, Capability.APPLY, name)
        if check_count(count) <= len(topic.partitions):
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"{name} has {len(topic.partitions)} partitions; their number can only grow",
            )
        like = _spec_of(topic)
        directory = like.name.rpartition("/")[0]
        specs = [
            _like(like, f"{directory}/part={number:03}", number)
            for number in range(max(topic.partitions) + 1, count)
        ]
        access.check_specs(name, specs)
        if specs and not only_check:
            await self._apply([JournalChange(spec) for spec in specs], exists=name)

    async def _delete_topics(self, call: Call) -> Any:
        answers, access = [], call.peer.access
        if call.version >= 6:
            known = await self._gateway.topics.current(age_s=0.0)
            by_id = {one.id: one.name for one in known.topics.values() if access.sees(one)}
            wanted = [
                (each.name or by_id.get(each.topic_id), each.topic_id)
                for each in call.request.topics
            ]
        else:
            wanted = [(name, None) for name in call.request.topic_names]
        for name, topic_id in wanted:
            code, text = await _outcome(self._delete, name, access)
            answers.append(
                call.new(
                    "DeletableTopicResult",
                    name=name,
                    topic_id=topic_id,
                    error_code=code,
                    error_message=text,
                )
            )
        return call.new("DeleteTopicsResponse", responses=tuple(answers))

    async def _delete(self, name: str | None, access: Access) -> None:
        if name is None:
            raise KafkaError(ErrorCode.unknown_topic_id, "no topic has this id")
        known = (await self._gateway.topics.current(age_s=0.0)).topics.get(name)
        if known is None:
            access.check_new(Capability.APPLY, name, self._gateway.config.prefix)
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        for partition in known.partitions.values():
            access.check(Capability.APPLY, partition)
        await self._apply(
            [
                JournalChange(None, each.journal, each.listing.mod_revision)
                for each in known.partitions.values()
            ]
        )

    async def _alter_configs(self, call: Call) -> Any:
        def changes(configs: Any, spec: JournalSpec) -> Mapping[str, str | None]:
            return changes_of(
                spec, ((each.name, each.config_operation, each.value) for each in configs)
            )

        return await self._altered(call, "IncrementalAlterConfigsResponse", changes)

    async def _replace_configs(self, call: Call) -> Any:
        def changes(configs: Any, _: JournalSpec) -> Mapping[str, str | None]:
            return dict.fromkeys(ALTERABLE) | {each.name: each.value for each in configs}

        return await self._altered(call, "AlterConfigsResponse", changes)

    async def _altered(self, call: Call, kind: str, changes: Changes) -> Any:
        answers = []
        for wanted in call.request.resources:
            code, text = await _outcome(
                self._alter,
                wanted,
                changes,
                access=call.peer.access,
                only_check=call.request.validate_only,
            )
            answers.append(
                call.new(
                    "AlterConfigsResourceResponse",
                    error_code=code,
                    error_message=text,
                    resource_type=wanted.resource_type,
                    resource_name=wanted.resource_name,
                )
            )
        return call.new(kind, responses=tuple(answers))

    async def _alter(
        self, wanted: Any, changes: Changes, *, access: Access, only_check: bool
    ) -> None:
        """Raises: GazetteError: the configs of a topic are not changed."""
        if wanted.resource_type != _TOPIC_RESOURCE:
            raise KafkaError(
                ErrorCode.invalid_request, "only configs of topics change (brokers have options)"
            )
        gateway, name = self._gateway, wanted.resource_name
        await gateway.topics.current(age_s=0.0)
        topic = await gateway.topic(access, Capability.APPLY, name)
        parts = [each.listing for each in topic.partitions.values()]
        specs = [
            altered_spec(each.spec, gateway.config, changes(wanted.configs, each.spec))
            for each in parts
        ]
        access.check_specs(name, specs)
        for spec in specs:
            spec.validate()
        if not only_check:
            pairs = zip(specs, parts, strict=True)
            await self._apply(
                [JournalChange(spec, revision=each.mod_revision) for spec, each in pairs]
            )

    async def _describe_configs(self, call: Call) -> Any:
        results = []
        for wanted in call.request.resources:
            configs: dict[str, str] = {}
            code, text = ErrorCode.none, None
            try:
                configs = await self._configs(
                    call.peer.access, wanted.resource_type, wanted.resource_name
                )
            except GazetteError as err:
                code, text = code_of(err), str(err)
            names = wanted.configuration_keys
            shown = {
                name: value for name, value in configs.items() if names is None or name in names
            }
            results.append(
                call.new(
                    "DescribeConfigsResult",
                    error_code=code,
                    error_message=text,
                    resource_type=wanted.resource_type,
                    resource_name=wanted.resource_name,
                    configs=tuple(
                        call.new(
                            "DescribeConfigsResourceResult",
                            name=name,
                            value=value,
                            read_only=wanted.resource_type != _TOPIC_RESOURCE
                            or name not in ALTERABLE,
                            config_source=_FROM_TOPIC
                            if wanted.resource_type == _TOPIC_RESOURCE
                            else _FROM_DEFAULT,
                            is_sensitive=False,
                            synonyms=(),
                            documentation=None,
                        )
                        for name, value in shown.items()
                    ),
                )
            )
        return call.new("DescribeConfigsResponse", results=tuple(results))

    async def _configs(self, access: Access, kind: int, name: str) -> dict[str, str]:
        config = self._gateway.config
        if kind == _TOPIC_RESOURCE:
            return configs_of(_spec_of(await self._gateway.topic(access, Capability.LIST, name)))
        if kind == _BROKER_RESOURCE:
            return {
                "auto.create.topics.enable": str(config.auto_create).lower(),
                "default.replication.factor": str(config.replication),
                "message.max.bytes": str(config.record_bytes_max),
                "num.partitions": str(config.partitions),
                "socket.request.max.bytes": str(config.request_bytes_max),
            }
        raise KafkaError(ErrorCode.invalid_request, f"resources of type {kind} have no configs")


def _spec_of(topic: Topic) -> JournalSpec:
    return next(iter(topic.partitions.values())).listing.spec


def _like(spec: JournalSpec, name: str, number: int) -> JournalSpec:
    labels = spec.labels.with_value(PARTITION, str(number))
    return replace(spec, name=name, labels=labels, suspend=None)


async def _outcome(
    act: Callable[..., Coroutine[Any, Any, None]], *args: Any, **options: Any
) -> tuple[ErrorCode, str | None]:
    try:
        await act(*args, **options)
    except GazetteError as err:
        return code_of(err), str(err)
    except TimeoutError:
        return ErrorCode.request_timed_out, "the journals are made, and no broker serves them yet"
    return ErrorCode.none, None
