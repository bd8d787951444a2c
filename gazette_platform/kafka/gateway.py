"""What the parts of a gateway share: settings, etcd, a client of the brokers, the nodes, the topics and the counts.

``/.gazette-platform/kafka<prefix>#nodes/<id>``
    A gateway, under its lease: JSON with ``host``, ``port``, and the ``broker`` it runs in (empty: none).
``…#topics/<topic>``
    The folder in which a topic has its partitions.

Counts are metrics: a request costs an addition, a record none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from base64 import urlsafe_b64encode
from collections import Counter
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

import orjson
from kio.schema.errors import ErrorCode
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from gazette_platform.errors import EtcdError, ValidationError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.topics import TOPIC, Partition, Topic, TopicMap, map_topics
from gazette_platform.keyspace import KeySpace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from prometheus_client import Metric

    from gazette_platform.client import AsyncClient
    from gazette_platform.etcd import EtcdClient, KeyValue, Lease, Operation
    from gazette_platform.kafka.access import Access
    from gazette_platform.kafka.config import KafkaConfig
    from gazette_platform.kafka.registry import Schemas
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol.auth import Capability

_log = logging.getLogger(__name__)

_ROOT: Final = "/.gazette-platform/kafka"
_NODES_MAX: Final = 10_000


def kafka_root(prefix: str) -> str:
    """What all keys of the gateways of a cluster begin with, up to the ``#``."""
    return f"{_ROOT}{prefix}#"


@dataclass(frozen=True, slots=True)
class Node:
    """A gateway, which clients take for a broker of Kafka."""

    id: int
    host: str
    port: int
    broker: str = ""
    """Zone and suffix of the broker whose process it shares."""


@final
class _NodeView:
    """The nodes, as `KeySpace` keeps them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/"
        self.nodes: dict[int, Node] = {}

    def begin(self) -> None:
        """Nothing is gathered."""

    def end(self) -> None:
        """Nothing is gathered."""

    def put(self, kv: KeyValue) -> None:
        """Raises: ValidationError: the value does not describe a node."""
        node_id = self._id_of(kv.key)
        try:
            found = orjson.loads(kv.value)
            node = Node(node_id, str(found["host"]), int(found["port"]), str(found["broker"]))
        except (ValueError, KeyError, TypeError) as err:
            raise ValidationError(f"{kv.key} does not describe a Kafka gateway: {err}") from err
        self.nodes[node_id] = node

    def remove(self, key: str) -> None:
        """Forget a node."""
        self.nodes.pop(self._id_of(key), None)

    def _id_of(self, key: str) -> int:
        text = key.removeprefix(self._prefix)
        if not (text.isascii() and text.isdigit()):
            raise ValidationError(f"{key} names no node of a Kafka gateway")
        return int(text)


@final
class Nodes:
    """The live gateways of a cluster, this one among them.

    Attributes:
        own: this one, once it is registered.

    Args:
        etcd: connected.
        prefix: of the cluster.
    """

    def __init__(self, etcd: EtcdClient, prefix: str, *, faults: Faults) -> None:
        self._etcd = etcd
        self._prefix = f"{kafka_root(prefix)}nodes"
        self._view = _NodeView(self._prefix)
        self._space = KeySpace(etcd, self._prefix, self._view, faults=faults)
        self.own = Node(0, "", 0)

    async def register(
        self, *, host: str, port: int, broker: str, lease: int, tasks: TaskGroup
    ) -> None:
        """Take the smallest id that is free, and follow the others from then on.

        Raises: EtcdError: etcd fails, or no id is free.
        """
        value = orjson.dumps({"host": host, "port": port, "broker": broker})
        taken = await self._etcd.range(f"{self._prefix}/")
        ids = {kv.key for kv in taken.kvs}
        for number in range(1, _NODES_MAX):
            key = f"{self._prefix}/{number}"
            if key in ids:
                continue
            put = Put(key, value, lease=lease)
            done = await self._etcd.txn((Compare.create(key, 0),), (put,))
            if done.succeeded:
                self.own = Node(number, host, port, broker)
                await self._space.load(done.header.revision)
                tasks.keep(self._space.watch, name="kafka nodes", ends_by=(EtcdError,))
                return
        raise EtcdError(f"{self._prefix}/: {_NODES_MAX} gateways are registered")

    async def leave(self) -> None:
        """Let clients find other gateways. Without etcd they do so when the lease ends."""
        if not self.own.id:
            return
        try:
            await self._etcd.delete(f"{self._prefix}/{self.own.id}")
        except EtcdError as err:
            _log.warning("node %d stays listed until its lease ends: %s", self.own.id, err)

    @property
    def live(self) -> dict[int, Node]:
        """By id; this one is always among them."""
        return self._view.nodes | {self.own.id: self.own}

    def of_broker(self, broker: str) -> Node | None:
        """The gateway in the process of a broker."""
        for node in self._view.nodes.values():
            if node.broker == broker:
                return node
        return None

    def coordinator(self, kind: str, name: str) -> Node:
        """The gateway that coordinates a ``group`` or a ``transaction``."""
        return self.keeper(f"{kind}/{name}")

    def keeper(self, key: str) -> Node:
        """The gateway that all agree on for a key, such as a group's id: by rendezvous hash."""
        live = self.live
        return max(live.values(), key=lambda node: (_weight(key, node.id), node.id))


def _weight(key: str, node: int) -> bytes:
    return hashlib.blake2b(f"{node}/{key}".encode(), digest_size=8).digest()


_GAUGES: Final = {
    "connections": "Connections of clients of Kafka that are open.",
    "groups": "Consumer groups that this broker coordinates and has in memory.",
    "group_members": "Members of these groups.",
    "group_bytes": "Bytes that groups of this node keep in etcd, as they count for their bounds.",
    "transaction_bytes": "Bytes that transactional ids of this node keep in etcd, likewise.",
    "open_transactions": "Transactions that this broker coordinates and that are not complete.",
}


@final
class KafkaMetrics(Collector):
    """Counts and gauges of one gateway.

    Attributes:
        requests: by API, and by outcome: ``ok``, ``error``, ``unanswered`` (none was asked for) or ``closed``.
        records: by direction, ``in`` or ``out``.
        record_bytes: of batches as clients send and get them, likewise.
        throttled_s: that clients were made to wait by quotas, likewise.
        gauges: what gives the value of each.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        self.records: Counter[str] = Counter({"in": 0, "out": 0})
        self.record_bytes: Counter[str] = Counter({"in": 0, "out": 0})
        self.throttled_s: dict[str, float] = {"in": 0.0, "out": 0.0}
        self.gauges: dict[str, Callable[[], float]] = {}

    def answered(self, api: str, answer: Any) -> None:
        """Count a request by what is answered; None: nothing is."""
        outcome = "error" if has_error(answer) else "ok"
        self.requests[api, "unanswered" if answer is None else outcome] += 1

    def closed(self, api: str) -> None:
        """Count a request whose connection is closed instead of an answer."""
        self.requests[api, "closed"] += 1

    def took(self, direction: str, records: int, size: int) -> None:
        """Count a batch."""
        self.records[direction] += records
        self.record_bytes[direction] += size

    @override
    def collect(self) -> Iterable[Metric]:
        """Give all."""
        requests = CounterMetricFamily(
            "gazette_platform_kafka_requests",
            "Requests of clients of Kafka, by API and outcome.",
            labels=("api", "outcome"),
        )
        for labels, count in [*self.requests.items()]:
            requests.add_metric(labels, count)
        yield requests
        for name, text, counts in (
            ("records", "Records that clients of Kafka produced and consumed.", self.records),
            ("record_bytes", "Bytes of their batches, as sent.", self.record_bytes),
            ("throttled_seconds", "Time that quotas made clients wait.", self.throttled_s),
        ):
            family = CounterMetricFamily(
                f"gazette_platform_kafka_{name}", text, labels=("direction",)
            )
            for direction, amount in counts.items():
                family.add_metric((direction,), amount)
            yield family
        for name, text in _GAUGES.items():
            value = self.gauges[name]() if name in self.gauges else 0
            yield GaugeMetricFamily(f"gazette_platform_kafka_{name}", text, value=value)


def has_error(answer: Any) -> bool:
    """Whether an answer, or a part of it, has a code of an error."""
    if not hasattr(answer, "__dataclass_fields__"):
        return bool(getattr(answer, "has_error", False))
    kind: Any = type(answer)
    has_code, parts = _shape(kind)
    if has_code and answer.error_code is not ErrorCode.none:
        return True
    return any(any(map(has_error, getattr(answer, name) or ())) for name in parts)


@cache
def _shape(kind: Any) -> tuple[bool, tuple[str, ...]]:
    """Whether a class has a code, and the fields that may have entities."""
    names = {field.name: str(field.type) for field in fields(kind)}
    parts = tuple(name for name, type_text in names.items() if type_text.startswith("tuple"))
    return "error_code" in names, parts


# A topic that is not known is looked for again after this many times as long as the last listing took, at least.
_PAUSE: Final = 10
_TURN: Final = 256
"""Partitions of a request that are looked up before others have their turn."""
# How old the topics may be that produce and fetch go by, and those that Metadata shows.
_STALE_S: Final = 10.0
FRESH_S: Final = 0.5


_OPERATIONS_MAX: Final = 60  # in a change of etcd
_ATTEMPTS_MAX: Final = 5
_FREE_S: Final = 60.0


@final
class TopicHomes:
    """Where topics have their partitions. The first gateway that sees a topic notes it, so that all agree for as long as it exists.

    Args:
        etcd: connected.
        prefix: of the cluster.
    """

    def __init__(self, etcd: EtcdClient, prefix: str) -> None:
        self._etcd = etcd
        self._root = f"{kafka_root(prefix)}topics/"
        self._known: dict[str, tuple[str, int]] = {}  # home and revision
        self._gone: dict[str, float] = {}

    async def settle(
        self, map_with: Callable[[Mapping[str, str]], TopicMap], now: float
    ) -> TopicMap:
        """Map topics by the homes that etcd has, and note those of others. Without etcd, by those that were known."""
        try:
            for _ in range(_ATTEMPTS_MAX):
                await self._load()
                found = map_with({name: home for name, (home, _) in self._known.items()})
                if await self._note(found.homes, now):
                    return found
        except EtcdError as err:
            _log.warning("homes of topics stay as they were known: %s", err)
        return map_with({name: home for name, (home, _) in self._known.items()})

    async def _load(self) -> None:
        found = await self._etcd.range(self._root)
        self._known = {
            kv.key.removeprefix(self._root): (kv.value.decode(errors="replace"), kv.mod_revision)
            for kv in found.kvs
        }

    async def _note(self, homes: Mapping[str, str], now: float) -> bool:
        """Write homes that have changed. Returns: False: another gateway did."""
        self._gone = {n: self._gone.get(n, now) for n in self._known.keys() - homes.keys()}
        # A broker may list a topic some moments late.
        writes: dict[str, Operation] = {
            name: Delete(self._root + name) for name, at in self._gone.items() if now - at > _FREE_S
        }
        for name, home in homes.items():
            if name not in self._known or self._known[name][0] != home:
                writes[name] = Put(self._root + name, home.encode())
        names = [*writes]
        for at in range(0, len(names), _OPERATIONS_MAX):
            some = names[at : at + _OPERATIONS_MAX]
            compares = [
                Compare.mod(self._root + name, self._known.get(name, ("", 0))[1]) for name in some
            ]
            if not (await self._etcd.txn(compares, [writes[name] for name in some])).succeeded:
                return False
        return True


@final
class Topics:
    """The topics of the cluster, listed again when they are too old or one is not found.

    Attributes:
        asked: how often partitions were looked up.

    Args:
        homes: of topics.
        prefix: of journals of topics that clients make.
    """

    def __init__(self, client: AsyncClient, clock: Clock, homes: TopicHomes, prefix: str) -> None:
        self._client = client
        self._clock = clock
        self._homes = homes
        self._prefix = prefix
        self._map = TopicMap()
        self._listed_at = -_STALE_S
        self._took_s = 0.0
        self.asked = 0
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
                listings = await self._client.list(TOPIC)
                self._map = await self._homes.settle(
                    lambda homes: map_topics(listings, homes, prefix=self._prefix), began_at
                )
                self._listed_at = began_at
                self._took_s = self._clock.monotonic() - began_at
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
            if not age_s:
                # Whoever names topics that do not exist waits, and not those that others name.
                pause_s = self._listed_at + _PAUSE * self._took_s - self._clock.monotonic()
                await asyncio.sleep(max(0.0, pause_s))
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
        self, access: Access, capability: Capability, name: str, number: int
    ) -> Partition:
        """A partition that a client may do something with.

        Raises: KafkaError: there is none, or the client may not; TransportError.
        """
        topics = self.topics
        topics.asked += 1
        if not topics.asked % _TURN:
            await asyncio.sleep(0)
        try:
            found = topics.known(name, number) or await topics.partition(name, number)
        except KafkaError:
            access.check_new(capability, name, self.config.prefix)
            raise
        access.check(capability, found)
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
