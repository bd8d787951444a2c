"""What gateways keep in etcd, and the live gateways of the cluster.

``/.gazette-platform/kafka<prefix>#nodes/<id>``
    A gateway, under its lease: JSON with ``host``, ``port``, and the ``broker`` it runs in (empty: none).
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import orjson

from gazette_platform.errors import EtcdError, ValidationError
from gazette_platform.etcd import Compare, Put
from gazette_platform.keyspace import KeySpace

if TYPE_CHECKING:
    from gazette_platform.etcd import EtcdClient, KeyValue
    from gazette_platform.ops.faults import Faults
    from gazette_platform.ops.tasks import TaskGroup

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
        """Let clients find other gateways. Raises: EtcdError."""
        if self.own.id:
            await self._etcd.delete(f"{self._prefix}/{self.own.id}")

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

    def keeper(self, key: str) -> Node:
        """The gateway that all agree on for a key, such as a group's id: by rendezvous hash."""
        live = self.live
        return max(live.values(), key=lambda node: (_weight(key, node.id), node.id))


def _weight(key: str, node: int) -> bytes:
    return hashlib.blake2b(f"{node}/{key}".encode(), digest_size=8).digest()
