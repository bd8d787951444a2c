"""Those who look on: at what groups have committed meanwhile, and at both topics in the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, final

import confluent_kafka as ck

from gazette_platform.errors import TransportError
from gazette_platform.kafka.inspection import Caller
from gazette_platform.message import Flags, JsonFraming, read_committed
from gazette_platform.testing.waiting import TooLate, pass_time, patient
from tests.kafka_chaos.verifiable import number_of

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import AsyncClient

_LOOK_S = 1.0
_CALL_S = 3.0
_POLL_S = 30.0
_PROGRESS_S = 60.0
_GROUP, _TRANSACTION = 0, 1


async def coordinator(ports: Mapping[str, int], kind: int, name: str) -> int:
    """Return the port of the gateway that coordinates a group or transactional id. Raises: TransportError."""
    failure: TransportError | None = None
    for port in ports.values():
        try:
            async with Caller("127.0.0.1", port, timeout_s=_CALL_S) as caller:
                found = await caller.ask("find_coordinator", 2, key_type=kind, key=name)
        except TransportError as err:
            failure = err
        else:
            if found.port in ports.values():
                return int(found.port)
    raise failure or TransportError(f"{name} has no coordinator")


@final
class Onlooker:
    """Asks again and again what groups have committed.

    Args:
        ports: of the gateways, by broker.
        groups: whose offsets.
        ids: transactional ones.

    Attributes:
        looks: what each group had committed, by partition, one look after another.
    """

    def __init__(self, ports: Mapping[str, int], groups: Sequence[str], ids: Sequence[str]) -> None:
        self.looks: dict[str, list[Mapping[int, int]]] = {group: [] for group in groups}
        self._ports = ports
        self._names = [(_GROUP, name) for name in groups] + [(_TRANSACTION, name) for name in ids]

    async def draw_coordinator(self, rng: random.Random) -> str:
        """Return the broker that coordinates one of them. Raises: TransportError."""
        port = await coordinator(self._ports, *rng.choice(self._names))
        return next(name for name, known in self._ports.items() if known == port)

    async def watch(self) -> None:
        """Do so for ever."""
        while True:
            for group in self.looks:
                try:
                    await self.look(group)
                except TransportError:
                    continue  # the next one will answer
            await pass_time(_LOOK_S)

    async def look(self, group: str) -> None:
        """Ask once. Raises: TransportError: there is no answer."""
        port = await coordinator(self._ports, _GROUP, group)
        async with Caller("127.0.0.1", port, timeout_s=_CALL_S) as caller:
            found = await caller.ask(
                "offset_fetch", 7, group_id=group, topics=None, require_stable=False
            )
        parts = [part for topic in found.topics for part in topic.partitions]
        if found.error_code or any(part.error_code for part in parts):
            return
        self.looks[group].append({part.partition_index: part.committed_offset for part in parts})

    async def caught_up(self, ends_of: Mapping[str, Mapping[int, int]]) -> None:
        """Wait until groups have committed these offsets. Raises: TooLate: one makes no progress."""
        limit_s = patient(_PROGRESS_S)
        for group, ends in ends_of.items():
            before: Mapping[int, int] = {}
            while any(before.get(part, -1) < end for part, end in ends.items()):
                try:
                    async with asyncio.timeout(limit_s):
                        while self._last(group) == before:
                            await pass_time(_LOOK_S)
                except TimeoutError as err:
                    raise TooLate(
                        f"group {group} makes no progress for {limit_s:g} s: it has committed "
                        f"{before}, and its topic ends at {dict(ends)}"
                    ) from err
                before = self._last(group)

    def _last(self, group: str) -> Mapping[int, int]:
        return self.looks[group][-1] if self.looks[group] else {}


def consume(servers: str, topic: str, partitions: int) -> dict[int, list[tuple[int, int]]]:
    """Read a topic to its end by a fresh consumer. Blocks.

    Returns: offset and number of each record, by partition. Raises: TooLate.
    """
    consumer = ck.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([ck.TopicPartition(topic, part, 0) for part in range(partitions)])
        found: dict[int, list[tuple[int, int]]] = {part: [] for part in range(partitions)}
        ended: set[int] = set()
        while len(ended) < partitions:
            message = consumer.poll(patient(_POLL_S))
            if message is None:
                raise TooLate(
                    f"a reader gets no more of {topic}; only {sorted(ended)} came to an end"
                )
            if message.error() is None:
                number = number_of(message.value())
                found[message.partition()].append((message.offset(), number))
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                place = ck.TopicPartition(topic, message.partition())
                _, end = consumer.get_watermark_offsets(place, cached=True)
                if message.offset() >= end:  # else a transaction of a killed producer is open
                    ended.add(message.partition())
        return found
    finally:
        consumer.close()


async def read_journals(client: AsyncClient, journals: Sequence[str]) -> dict[int, list[int]]:
    """Read committed messages by our client. Returns: numbers, by partition. Raises: GazetteError."""
    found: dict[int, list[int]] = {part: [] for part in range(len(journals))}
    framing = JsonFraming(uuid_field="_meta.uuid")
    for part, journal in enumerate(journals):
        async with await read_committed(client, journal, framing=framing) as reader:
            async for batch in reader:
                found[part] += [
                    _number(one.message) for one in batch if one.uuid.flags != Flags.ACK_TXN
                ]
    return found


def _number(message: Mapping[str, Any]) -> int:
    """Of a record of the form `json` or `envelope`."""
    return int(message["n"]) if "n" in message else number_of(message["value"])
