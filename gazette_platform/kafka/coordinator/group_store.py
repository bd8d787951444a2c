"""Groups and their committed offsets in etcd, where each change is fenced.

``…#groups/<group>``
    The record of a group: its generation, the node that coordinates it, and who made it. A coordinator claims a group by writing its
    record, and every later write compares the record's revision: a former coordinator changes nothing. A group that does not exist is
    claimed without one: its first write makes the record, if no other node has.
``…#offsets/<group>/<topic>``
    Offsets that the group has committed, by partition. Transactions write them too, so these writes compare revisions as well.
``…#pending/<group>/<transactional id>``
    Offsets that an open transaction will commit (`live_transactions`).

Names of groups and topics are percent-encoded. One task writes: all changes that wait are one transaction of etcd, up to
`_BATCH_MAX` keys. So a thousand consumers that commit at once cost a few writes, and changes of a group keep their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, final
from urllib.parse import quote, unquote

import orjson
from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdError, Fenced, GazetteError
from gazette_platform.etcd import Compare, Delete, Get, Put
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.gateway import kafka_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.etcd import EtcdClient, KeyValue, Operation
    from gazette_platform.ops.tasks import TaskGroup

_log = logging.getLogger(__name__)

# One comparison for each key and one for each group, of the 128 that etcd takes.
_BATCH_MAX: Final = 60
_WAITING_MAX: Final = 10_000
# etcd takes requests of 1.5 MiB.
_BATCH_BYTES_MAX: Final = 900_000
_ATTEMPTS_MAX: Final = 5


class Committed(NamedTuple):
    """A committed offset, as JSON holds it."""

    offset: int
    leader_epoch: int
    metadata: str
    created: int
    """Which journal of its name the partition was (`JournalListing.created`)."""
    at_ms: int
    """When it was committed, in unix milliseconds."""


Offsets = dict[int, Committed]
"""Of a topic, by partition."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What is kept of a group, except its offsets."""

    generation: int = 0
    node: int = 0
    protocol_type: str = ""
    protocol: str = ""
    at_ms: int = 0
    owner: str = ""
    """`Access.principal` of who made it."""

    def encode(self) -> bytes:
        """As JSON."""
        return orjson.dumps(self)


def decode_record(kv: KeyValue) -> GroupRecord:
    """The record of a group. Raises: EtcdError: another program has written the key."""
    try:
        found = dict(orjson.loads(kv.value))
        # Later versions may have more fields.
        return GroupRecord(**{key: found[key] for key in GroupRecord.__slots__ if key in found})
    except (ValueError, TypeError) as err:
        raise EtcdError(f"{kv.key} is not a record of a Kafka group ({err}); delete it") from err


def encode_offsets(offsets: Offsets) -> bytes:
    """As JSON."""
    return orjson.dumps({str(number): list(one) for number, one in offsets.items()})


def decode_offsets(kv: KeyValue) -> Offsets:
    """Offsets of a topic. Raises: EtcdError: another program has written the key."""
    try:
        found = orjson.loads(kv.value)
        return {int(number): Committed(*one) for number, one in found.items()}
    except (ValueError, TypeError, AttributeError) as err:
        raise EtcdError(f"{kv.key} holds no offsets of a Kafka group ({err}); delete it") from err


@dataclass(slots=True)
class StoredTopic:
    """Offsets of a topic as they were last seen."""

    revision: int = 0
    offsets: Offsets = field(default_factory=dict)


@dataclass(slots=True)
class Claim:
    """A group that this node coordinates, as etcd has it.

    Attributes:
        is_fenced: whether another node has claimed it since, or may have.
    """

    group_id: str
    record: GroupRecord
    revision: int
    topics: dict[str, StoredTopic] = field(default_factory=dict)
    is_fenced: bool = False


@dataclass(slots=True, eq=False)
class _Write:
    """A key that is to be written, and who waits for it."""

    claim: Claim
    topic: str | None
    """None: the record."""
    record: GroupRecord | None = None
    changes: dict[int, Committed | None] = field(default_factory=dict)
    """Of offsets; None removes one."""
    waiting: list[asyncio.Future[None]] = field(default_factory=list)

    def size(self) -> int:
        """Bytes of the value, about."""
        known = self.claim.topics.get(self.topic or "")
        offsets = {} if known is None else known.offsets
        return len(encode_offsets(_changed(offsets, self.changes)))


@final
class GroupStore:
    """See the module.

    Args:
        etcd: connected.
        prefix: of the cluster.
    """

    def __init__(self, etcd: EtcdClient, prefix: str, *, tasks: TaskGroup) -> None:
        self._etcd = etcd
        self._root = kafka_root(prefix)
        self._tasks = tasks
        self._writes: dict[str, _Write] = {}
        self._has_writes = asyncio.Event()

    def start(self) -> None:
        """Begin to write."""
        self._tasks.keep(self._write, name="kafka groups")

    # ------------------------------------------------------------ keys and reads

    def group_key(self, group_id: str) -> str:
        """Of its record."""
        return f"{self._root}groups/{quote(group_id, safe='')}"

    def offsets_key(self, group_id: str, topic: str = "") -> str:
        """Of its offsets of a topic; of all topics, what their keys begin with."""
        return f"{self._root}offsets/{quote(group_id, safe='')}/{quote(topic, safe='')}"

    def pending_key(self, group_id: str, transactional_id: str = "") -> str:
        """Of what a transaction will commit for it; of all transactions, what their keys begin with."""
        return f"{self._root}pending/{quote(group_id, safe='')}/{quote(transactional_id, safe='')}"

    async def record(self, group_id: str) -> GroupRecord | None:
        """The record of a group, if it exists. Raises: EtcdError."""
        kv = await self._etcd.get(self.group_key(group_id))
        return None if kv is None else decode_record(kv)

    async def all_groups(self) -> dict[str, tuple[GroupRecord, int]]:
        """The records of all groups, with their revisions. Raises: EtcdError."""
        prefix = f"{self._root}groups/"
        found = await self._etcd.range(prefix)
        return {
            unquote(kv.key.removeprefix(prefix)): (decode_record(kv), kv.mod_revision)
            for kv in found.kvs
        }

    async def offsets(self, group_id: str) -> dict[str, Offsets]:
        """What a group has committed, by topic. Raises: EtcdError."""
        return {name: topic.offsets for name, topic in (await self._topics(group_id)).items()}

    async def pending(self, group_id: str) -> set[tuple[str, int]]:
        """Partitions, with their topics, whose offsets open transactions will commit. Raises: EtcdError."""
        found = await self._etcd.range(self.pending_key(group_id))
        return {
            (topic, int(number))
            for kv in found.kvs
            for topic, numbers in orjson.loads(kv.value)["offsets"].items()
            for number in numbers
        }

    async def _topics(self, group_id: str) -> dict[str, StoredTopic]:
        prefix = self.offsets_key(group_id)
        found = await self._etcd.range(prefix)
        return {
            unquote(kv.key.removeprefix(prefix)): StoredTopic(kv.mod_revision, decode_offsets(kv))
            for kv in found.kvs
        }

    # ------------------------------------------------------------ claims

    async def sizes(self) -> Counter[str]:
        """Bytes of the offsets of all groups. Raises: EtcdError."""
        prefix, found, after = f"{self._root}offsets/", Counter[str](), ""
        while True:
            page = await self._etcd.page(prefix, after=after)
            for kv in page.kvs:
                group_id = unquote(kv.key.removeprefix(prefix).partition("/")[0])
                found[group_id] += len(kv.key) + len(kv.value)
            if len(page.kvs) == page.count:
                return found
            after = page.kvs[-1].key

    async def claim(self, group_id: str, node: int, *, now_ms: int, owner: str = "") -> Claim:
        """Make a node the coordinator of a group, and load what it had committed.

        Args:
            owner: who makes it, if it does not exist.

        Raises: EtcdError. Cancellation: the group may be claimed.
        """
        key = self.group_key(group_id)
        for _ in range(_ATTEMPTS_MAX):
            kv = await self._etcd.get(key)
            if kv is None:
                record = GroupRecord(node=node, at_ms=now_ms, owner=owner)
                return Claim(group_id, record, 0, await self._topics(group_id))
            record = replace(decode_record(kv), node=node, at_ms=now_ms)
            put = Put(key, record.encode())
            done = await self._etcd.txn((Compare.mod(key, kv.mod_revision),), (put,))
            if done.succeeded:
                topics = await self._topics(group_id)
                return Claim(group_id, record, done.header.revision, topics)
        raise EtcdError(f"{key}: another node writes it all the time; try again")

    async def delete(self, group_id: str, revision: int) -> bool:
        """Remove a group and its offsets, if its record has this revision. Raises: EtcdError."""
        key = self.group_key(group_id)
        done = await self._etcd.txn(
            (Compare.mod(key, revision),),
            (
                Delete(key),
                Delete(self.offsets_key(group_id), prefix=True),
                Delete(self.pending_key(group_id), prefix=True),
            ),
        )
        return done.succeeded

    async def forget(self, group_id: str, revision: int) -> bool:
        """Remove the record of a group that has committed nothing, if it has this revision. Raises: EtcdError."""
        key = self.group_key(group_id)
        nothing = [
            Compare.none_since(prefix, 0)
            for prefix in (self.offsets_key(group_id), self.pending_key(group_id))
        ]
        done = await self._etcd.txn((Compare.mod(key, revision), *nothing), (Delete(key),))
        return done.succeeded

    # ------------------------------------------------------------ writes

    async def save(self, claim: Claim, record: GroupRecord) -> None:
        """Store a generation.

        Raises: Fenced: another node coordinates the group. EtcdError.
        """
        write = self._entry(claim, None)
        write.record = record
        await _waiting(write)

    async def commit(
        self, claim: Claim, changes: Mapping[str, Mapping[int, Committed | None]]
    ) -> None:
        """Store offsets by topic and partition; None removes one.

        Raises: Fenced: another node coordinates the group, and nothing more is stored. EtcdError.
        Cancellation: they may be stored.
        """
        waits = []
        for topic, offsets in changes.items():
            write = self._entry(claim, topic)
            write.changes.update(offsets)
            waits.append(_waiting(write))
        for error in await asyncio.gather(*waits, return_exceptions=True):
            if error is not None:
                raise error

    def _entry(self, claim: Claim, topic: str | None) -> _Write:
        if claim.is_fenced:
            raise Fenced(f"group {claim.group_id}: another node coordinates it; ask for it again")
        if len(self._writes) >= _WAITING_MAX:
            raise EtcdError(f"{len(self._writes)} changes of groups wait for etcd; try again")
        key = self.group_key(claim.group_id)
        if topic is not None:
            key = self.offsets_key(claim.group_id, topic)
        write = self._writes.get(key)
        if topic is not None and not claim.revision:
            record = self._entry(claim, None)
            record.record = record.record or claim.record
        if write is not None and write.claim is not claim:
            write.claim.is_fenced = True
            _settle((write,), Fenced(f"group {claim.group_id} was claimed again; ask for it again"))
            write = None
        if write is None:
            write = self._writes[key] = _Write(claim, topic)
        self._has_writes.set()
        return write

    async def _write(self) -> None:
        while True:
            await self._has_writes.wait()
            self._has_writes.clear()
            while self._writes:
                keys = list(self._writes)[:_BATCH_MAX]
                batch = {key: self._writes.pop(key) for key in keys}
                try:
                    await self._flush(batch)
                finally:
                    _settle(batch.values(), EtcdError("the write was not finished; try again"))

    async def _flush(self, batch: dict[str, _Write]) -> None:
        """Write all of a batch, as much at a time as etcd takes; if that is refused, each group by itself."""
        for part in _parts(batch):
            if await self._try(part):
                continue
            groups: dict[str, dict[str, _Write]] = {}
            for key, write in part.items():
                groups.setdefault(write.claim.group_id, {})[key] = write
            for writes in groups.values():
                for _ in range(_ATTEMPTS_MAX):
                    if await self._try(writes, refresh=True):
                        break

    async def _try(self, batch: dict[str, _Write], *, refresh: bool = False) -> bool:
        """Returns: whether it is settled: written, or failed for good.

        Args:
            refresh: whether the batch is of one group, and to look what it was refused for.
        """
        fenced = [write for write in batch.values() if write.claim.is_fenced]
        _settle(fenced, Fenced("another node coordinates the group; ask for it again"))
        left = {key: write for key, write in batch.items() if write not in fenced}
        if not left:
            return True
        # Of two claims of a group, one is fenced and does not know it yet.
        claims = {(write.claim.group_id, write.claim.revision): None for write in left.values()}
        compares = [Compare.mod(self.group_key(i), revision) for i, revision in claims]
        puts: list[Operation] = []
        values: dict[str, Offsets] = {}
        size = 0
        for key, write in left.items():
            if write.topic is None:
                assert write.record is not None  # what has no topic is a record
                puts.append(Put(key, write.record.encode()))
                continue
            topic = write.claim.topics.setdefault(write.topic, StoredTopic())
            compares.append(Compare.mod(key, topic.revision))
            values[key] = _changed(topic.offsets, write.changes)
            encoded = encode_offsets(values[key])
            size += len(encoded)
            puts.append(Put(key, encoded) if values[key] else Delete(key))
        if size > _BATCH_BYTES_MAX:
            text = f"offsets of a topic have {size} bytes, and {_BATCH_BYTES_MAX} at most are kept"
            _settle(left.values(), KafkaError(ErrorCode.invalid_commit_offset_size, text))
            return True
        reads = [Get(one.key) for one in compares] if refresh else []
        try:
            done = await self._etcd.txn(compares, puts, reads)
        except EtcdError as err:
            _settle(left.values(), err)
            return True
        if not done.succeeded:
            if refresh:
                found = {kv.key: kv for read in done.reads for kv in read.kvs}
                self._refresh(left, found)
            return False
        self._written(left, values, done.header.revision)
        return True

    def _written(
        self, batch: Mapping[str, _Write], values: Mapping[str, Offsets], revision: int
    ) -> None:
        for key, write in batch.items():
            if write.topic is None:
                assert write.record is not None  # as above
                write.claim.record, write.claim.revision = write.record, revision
            elif values[key]:
                write.claim.topics[write.topic] = StoredTopic(revision, values[key])
            else:
                write.claim.topics.pop(write.topic, None)
        _settle(batch.values(), None)

    def _refresh(self, batch: Mapping[str, _Write], found: Mapping[str, KeyValue]) -> None:
        """Look at what a group's keys are now: it is fenced, or a transaction has committed offsets."""
        for key, write in batch.items():
            claim = write.claim
            record = found.get(self.group_key(claim.group_id))
            if (0 if record is None else record.mod_revision) != claim.revision:
                claim.is_fenced = True
            elif write.topic is not None:
                kv = found.get(key)
                claim.topics[write.topic] = (
                    StoredTopic()
                    if kv is None
                    else StoredTopic(kv.mod_revision, decode_offsets(kv))
                )


def _waiting(write: _Write) -> asyncio.Future[None]:
    """What ends with a write. It exists before others have their turn, as the write may be refused at once."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    write.waiting.append(future)
    return future


def _parts(batch: Mapping[str, _Write]) -> list[dict[str, _Write]]:
    """Writes in their order, with as many bytes at a time as etcd takes."""
    parts: list[dict[str, _Write]] = [{}]
    left = _BATCH_BYTES_MAX
    for key, write in batch.items():
        size = write.size()
        if size > left and parts[-1]:
            parts.append({})
            left = _BATCH_BYTES_MAX
        parts[-1][key] = write
        left -= size
    return parts


def _changed(offsets: Offsets, changes: Mapping[int, Committed | None]) -> Offsets:
    merged = {**offsets, **changes}
    return {number: one for number, one in merged.items() if one is not None}


def _settle(writes: Iterable[_Write], error: GazetteError | None) -> None:
    """Let those that wait go on; those that went on already are left out."""
    for write in writes:
        for future in write.waiting:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


def newest_ms(record: GroupRecord, topics: Sequence[Offsets]) -> int:
    """When a group last did something that is stored, in unix milliseconds."""
    commits = (one.at_ms for topic in topics for one in topic.values())
    return max(record.at_ms, max(commits, default=0))
