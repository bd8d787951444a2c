"""The transactions that this node coordinates: their records in etcd, their ends, and their time-outs.

The coordinator of a transactional id is the node that all nodes compute from it. A decision is in etcd before anything is written
that follows from it, and every later step may be repeated by any node: an ACK, by the journal's registers; offsets, by their own
key; the last write, by the record's revision. So a node that takes over only looks for records that are decided, or overdue.

``…#transactions/<transactional id>``
    The record. Every write compares its revision, so of two coordinators one changes nothing.
``…#pending/<group>/<transactional id>``
    Offsets that an open transaction will commit for a group. They are written only while the record is as it was when they were
    accepted, and removed in the transaction of etcd that makes them the group's, so each counts once.
``…#producer-ids``
    The next producer id that no gateway has taken.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from urllib.parse import quote, unquote

import orjson
from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdError, Fenced, GazetteError
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.kafka.calls.produce import TransactionEnd
from gazette_platform.kafka.coordinator.group_store import Committed, decode_offsets, encode_offsets
from gazette_platform.kafka.coordinator.transactions import (
    Transaction,
    TxnState,
    check_producer,
    complete,
    expire,
)
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.gateway import kafka_root
from gazette_platform.kafka.wire.bounds import Kept
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import side_by_side

if TYPE_CHECKING:
    from gazette_platform.etcd import EtcdClient, KeyValue, Operation
    from gazette_platform.kafka.calls.produce import Lanes
    from gazette_platform.kafka.coordinator.group_store import GroupStore, Offsets
    from gazette_platform.kafka.gateway import Gateway

_log = logging.getLogger(__name__)

_BLOCK: Final = 1000
_TOPICS_MAX: Final = 100
_PENDING_BYTES_MAX: Final = 1 << 19
"""Of offsets that a transaction commits for a group: etcd takes requests of 1.5 MiB."""
_ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """A record as etcd has it; revision 0: it has none."""

    transaction: Transaction
    revision: int


def encode_transaction(transaction: Transaction) -> bytes:
    """As JSON."""
    return orjson.dumps(transaction)


def decode_transaction(kv: KeyValue) -> StoredTransaction:
    """Raises: EtcdError: another program has written the key."""
    try:
        found = orjson.loads(kv.value)
        known = {field.name for field in dataclasses.fields(Transaction)}
        fields = {name: value for name, value in found.items() if name in known}
        fields["state"] = TxnState(fields["state"])
        fields["journals"] = tuple(fields["journals"])
        fields["groups"] = tuple(fields["groups"])
        return StoredTransaction(Transaction(**fields), kv.mod_revision)
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise EtcdError(f"{kv.key} is not a transaction of Kafka ({err}); delete it") from err


@final
class TxnStore:
    """See the module.

    Args:
        etcd: connected.
        prefix: of the cluster.
        groups: whose keys it shares.
    """

    def __init__(self, etcd: EtcdClient, prefix: str, groups: GroupStore) -> None:
        self._etcd = etcd
        self._root = kafka_root(prefix)
        self._groups = groups
        self._next_id = self._ids_end = 0

    def _key(self, transactional_id: str) -> str:
        return f"{self._root}transactions/{quote(transactional_id, safe='')}"

    async def load(self, transactional_id: str) -> StoredTransaction | None:
        """The record of a transactional id. Raises: EtcdError."""
        kv = await self._etcd.get(self._key(transactional_id))
        return None if kv is None else decode_transaction(kv)

    async def open_number(
        self, transactional_id: str | None, claimed: tuple[int, int], journal: str
    ) -> int:
        """The number of the transaction that a producer has open, and that has a journal.

        Raises: KafkaError: it has none. EtcdError.
        """
        stored = await self.load(transactional_id) if transactional_id else None
        if stored is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        check_producer(stored.transaction, claimed)
        is_open = stored.transaction.state is TxnState.ONGOING
        if not is_open or journal not in stored.transaction.journals:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"{transactional_id}: no transaction is open that has this partition",
            )
        return stored.transaction.number

    async def all(self) -> dict[str, StoredTransaction]:
        """All records. Raises: EtcdError."""
        prefix = f"{self._root}transactions/"
        found = await self._etcd.range(prefix)
        return {unquote(kv.key.removeprefix(prefix)): decode_transaction(kv) for kv in found.kvs}

    async def save(
        self, transactional_id: str, transaction: Transaction, revision: int
    ) -> StoredTransaction:
        """Write a record that has a revision.

        Raises: Fenced: it was changed since. EtcdError: it may be written.
        """
        key = self._key(transactional_id)
        put = Put(key, encode_transaction(transaction))
        done = await self._etcd.txn((Compare.mod(key, revision),), (put,))
        if not done.succeeded:
            raise Fenced(f"{key}: another node has changed it; ask for the coordinator again")
        return StoredTransaction(transaction, done.header.revision)

    async def delete(self, transactional_id: str, revision: int) -> bool:
        """Forget a record that has a revision. Raises: EtcdError."""
        key = self._key(transactional_id)
        done = await self._etcd.txn((Compare.mod(key, revision),), (Delete(key),))
        return done.succeeded

    async def new_producer_id(self) -> int:
        """A producer id that no producer of the cluster had. Raises: EtcdError."""
        if self._next_id == self._ids_end:
            key = f"{self._root}producer-ids"
            for _ in range(_ATTEMPTS_MAX):
                kv = await self._etcd.get(key)
                begin = 1 if kv is None else int(kv.value)
                put = Put(key, str(begin + _BLOCK).encode())
                revision = 0 if kv is None else kv.mod_revision
                done = await self._etcd.txn((Compare.mod(key, revision),), (put,))
                if done.succeeded:
                    self._next_id, self._ids_end = begin, begin + _BLOCK
                    break
            else:
                raise EtcdError(f"{key}: other nodes write it all the time; try again")
        self._next_id += 1
        return self._next_id - 1

    # ------------------------------------------------------------ offsets of open transactions

    async def add_pending(
        self,
        group_id: str,
        transactional_id: str,
        stored: StoredTransaction,
        changes: dict[str, Offsets],
        *,
        group_revision: int | None,
    ) -> None:
        """Keep offsets until the transaction ends.

        Args:
            stored: the transaction, as it has to be still.
            group_revision: of the group's record, likewise; None: any.

        Raises: Fenced: one of them has changed. KafkaError: there are too many topics. EtcdError.
        """
        key = self._groups.pending_key(group_id, transactional_id)
        compares = [Compare.mod(self._key(transactional_id), stored.revision)]
        if group_revision is not None:
            compares.append(Compare.mod(self._groups.group_key(group_id), group_revision))
        for _ in range(_ATTEMPTS_MAX):
            kv = await self._etcd.get(key)
            merged: dict[str, Offsets] = {}
            if kv is not None and _of(kv) == _mark(stored.transaction):
                merged = _pending_offsets(kv)
            for topic, offsets in changes.items():
                merged[topic] = merged.get(topic, {}) | offsets
            if len(merged) > _TOPICS_MAX:
                raise KafkaError(
                    ErrorCode.invalid_request,
                    f"a transaction commits offsets of up to {_TOPICS_MAX} topics",
                )
            value = _pending_value(stored.transaction, merged)
            if len(value) > _PENDING_BYTES_MAX:
                raise KafkaError(
                    ErrorCode.invalid_commit_offset_size,
                    f"a transaction commits {len(value)} bytes of offsets, and {_PENDING_BYTES_MAX} at most are kept",
                )
            revision = 0 if kv is None else kv.mod_revision
            done = await self._etcd.txn((*compares, Compare.mod(key, revision)), (Put(key, value),))
            if done.succeeded:
                return
            now = await self._etcd.get(key)
            if (0 if now is None else now.mod_revision) == revision:
                break  # it was not this key that has changed
        raise Fenced(f"{key}: the transaction or the group has changed; ask again")

    async def end_pending(
        self, group_id: str, transactional_id: str, transaction: Transaction
    ) -> None:
        """Make the offsets of a decided transaction the group's, or drop them; nothing if that is done.

        Raises: EtcdError.
        """
        key = self._groups.pending_key(group_id, transactional_id)
        for _ in range(_ATTEMPTS_MAX + _TOPICS_MAX):
            kv = await self._etcd.get(key)
            if kv is None or _of(kv) != _mark(transaction):
                return
            compares = [Compare.mod(key, kv.mod_revision)]
            writes: list[Operation] = []
            left = _pending_offsets(kv) if transaction.commits else {}
            size = 0
            # Each topic once; several changes if they are more than etcd takes in one.
            for topic in [*left]:
                if size > _PENDING_BYTES_MAX // 2:
                    break
                offsets = left.pop(topic)
                offsets_key = self._groups.offsets_key(group_id, topic)
                former = await self._etcd.get(offsets_key)
                known = {} if former is None else decode_offsets(former)
                compares.append(
                    Compare.mod(offsets_key, 0 if former is None else former.mod_revision)
                )
                merged = encode_offsets(known | offsets)
                size += len(merged)
                writes.append(Put(offsets_key, merged))
            writes.append(Put(key, _pending_value(transaction, left)) if left else Delete(key))
            if (await self._etcd.txn(compares, writes)).succeeded and not left:
                return
        raise EtcdError(f"{key}: others write these offsets all the time; try again")


def _mark(transaction: Transaction) -> list[int]:
    """The mark that only this transaction of its id has."""
    return [transaction.producer_id, transaction.number]


def _of(kv: KeyValue) -> list[int]:
    try:
        mark: list[int] = orjson.loads(kv.value)["transaction"]
    except (ValueError, KeyError, TypeError) as err:
        raise EtcdError(f"{kv.key} holds no offsets of a transaction ({err}); delete it") from err
    return mark


def _pending_value(transaction: Transaction, offsets: dict[str, Offsets]) -> bytes:
    return orjson.dumps(
        {
            "transaction": _mark(transaction),
            "offsets": {
                topic: {str(number): list(one) for number, one in numbers.items()}
                for topic, numbers in offsets.items()
            },
        }
    )


def _pending_offsets(kv: KeyValue) -> dict[str, Offsets]:
    found = orjson.loads(kv.value)["offsets"]
    return {
        topic: {int(number): Committed(*one) for number, one in offsets.items()}
        for topic, offsets in found.items()
    }


def _size_of(transaction: Transaction) -> int:
    return sum(map(len, (*transaction.journals, *transaction.groups)))


ID_CHARS_MAX: Final = 1000
_LIVE_MAX: Final = 10_000
_TICK_S: Final = 0.25
_IDLE_S: Final = 60.0
_LOOK_S: Final = 60.0
_AT_A_TIME: Final = 16
_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long a transactional id is remembered that is not used."""
_FINISHED_MS: Final = 3600 * 1000
"""How long at least, if its owner has many: Flink makes one for each checkpoint."""
_STORED_BYTES_MAX: Final = 128 << 20
"""Of all records of a cluster."""
_MUCH, _ENOUGH = 0.75, 0.5


@final
@dataclass(slots=True, eq=False)
class LiveTransaction:
    """A transactional id in this node's memory.

    Attributes:
        stored: its record; None: it was never seen.
        lock: of whoever changes the record.
        ending: the task that carries out a decision.
    """

    transactional_id: str
    stored: StoredTransaction | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: asyncio.Task[None] | None = None
    used_at: float = 0.0
    is_gone: bool = False

    @property
    def transaction(self) -> Transaction:
        """Raises: KafkaError: the transactional id was never seen, or another node coordinates it."""
        if self.is_gone:
            raise KafkaError(ErrorCode.not_coordinator)
        if self.stored is None:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        return self.stored.transaction


@final
class LiveTransactions:
    """See the module."""

    def __init__(self, gateway: Gateway, store: TxnStore, lanes: Lanes) -> None:
        self._gateway = gateway
        self.store = store
        self._lanes = lanes
        self._live: dict[str, LiveTransaction] = {}
        self._loading = asyncio.Lock()
        self._nodes: frozenset[int] = frozenset()
        self._looked_at = -math.inf
        self._is_looking = False
        self._kept = Kept("transactional ids", _STORED_BYTES_MAX)
        gateway.metrics.gauges["transaction_bytes"] = lambda: self._kept.size
        gateway.metrics.gauges["open_transactions"] = lambda: sum(
            live.stored is not None
            and (
                live.stored.transaction.state is TxnState.ONGOING
                or live.stored.transaction.is_decided
            )
            for live in self._live.values()
        )

    def start(self) -> None:
        """Begin to watch the time, and to finish what other nodes have left."""
        self._gateway.tasks.keep(self._watch, name="kafka transaction time")

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self._gateway.clock.unix_s() * 1000)

    def is_ours(self, transactional_id: str) -> bool:
        """Whether this node coordinates it."""
        nodes = self._gateway.nodes
        return nodes.coordinator("transaction", transactional_id).id == nodes.own.id

    async def get(self, transactional_id: str) -> LiveTransaction:
        """A transactional id. Raises: KafkaError: another node coordinates it; EtcdError."""
        if not transactional_id or len(transactional_id) > ID_CHARS_MAX:
            raise KafkaError(ErrorCode.invalid_request)
        if not self.is_ours(transactional_id):
            raise KafkaError(ErrorCode.not_coordinator)
        live = self._live.get(transactional_id)
        if live is None:
            async with self._loading:
                live = self._live.get(transactional_id)
                if live is None:
                    live = self._keep(transactional_id, await self.store.load(transactional_id))
        live.used_at = self._gateway.clock.monotonic()
        return live

    def _keep(self, transactional_id: str, stored: StoredTransaction | None) -> LiveTransaction:
        if len(self._live) >= _LIVE_MAX:
            self._drop_idle(0.0)
        if len(self._live) >= _LIVE_MAX:
            raise KafkaError(
                ErrorCode.coordinator_not_available,
                f"{_LIVE_MAX} transactions are open at this node",
            )
        live = self._live[transactional_id] = LiveTransaction(transactional_id, stored)
        return live

    def check_new(self, owner: str) -> None:
        """Raises: KafkaError: this owner has as many transactional ids as it may."""
        self._kept.check(owner, nodes=len(self._gateway.nodes.live))

    async def save(self, live: LiveTransaction, transaction: Transaction) -> None:
        """Store a change. The caller holds the lock.

        Raises: KafkaError: another node has changed the record. EtcdError: it may be stored.
        """
        revision = 0 if live.stored is None else live.stored.revision
        try:
            live.stored = await self.store.save(live.transactional_id, transaction, revision)
        except Fenced as err:
            self._forget(live)
            raise KafkaError(ErrorCode.not_coordinator) from err
        except (EtcdError, asyncio.CancelledError):
            self._forget(live)  # what etcd has by now is read when it is asked for next,
            self._looked_at = -math.inf  # and soon, as it may be a decision
            raise
        self._kept.note(live.transactional_id, transaction.owner, _size_of(transaction))

    async def confirm(self, live: LiveTransaction) -> None:
        """Ask etcd whether a record is still as this node knows it, for an answer that writes nothing.

        Raises: KafkaError: another node has changed it. EtcdError.
        """
        stored = await self.store.load(live.transactional_id)
        if live.stored is None or stored is None or stored.revision != live.stored.revision:
            self._forget(live)
            raise KafkaError(ErrorCode.not_coordinator)

    def _forget(self, live: LiveTransaction) -> None:
        live.is_gone = True
        if self._live.get(live.transactional_id) is live:
            del self._live[live.transactional_id]

    # ------------------------------------------------------------ ends

    def end(self, live: LiveTransaction) -> asyncio.Task[None]:
        """Carry out a decision that is stored. Returns: the task that does it, and fails with nothing."""
        if live.ending is None or live.ending.done():
            live.ending = self._gateway.tasks.spawn(self._end(live), name="kafka transaction end")
        return live.ending

    async def _end(self, live: LiveTransaction) -> None:
        failures = 0
        while not live.is_gone:
            try:
                await self._end_once(live)
            except GazetteError as err:
                pause_s = backoff_s(failures)
                failures += 1
                _log.warning(
                    "transaction %s is decided and not written yet, next attempt in %g s: %s",
                    live.transactional_id,
                    pause_s,
                    err,
                )
                await asyncio.sleep(pause_s)
            else:
                return

    async def _end_once(self, live: LiveTransaction) -> None:
        transaction = live.transaction
        if not transaction.is_decided:
            return

        end = TransactionEnd(
            transaction.producer_id,
            transaction.written_epoch,
            transaction.epoch,
            transaction.commits,
            transaction.number,
        )

        async def end_journal(journal: str) -> None:
            try:
                await self._lanes.get(journal).end(end)
            except KafkaError as err:
                if err.code is not ErrorCode.unknown_topic_or_partition:
                    raise
                _log.warning(
                    "transaction %s: %s was deleted before it ended", live.transactional_id, journal
                )

        async def end_group(group_id: str) -> None:
            await self.store.end_pending(group_id, live.transactional_id, transaction)

        await side_by_side(end_journal, transaction.journals, at_a_time=_AT_A_TIME)
        await side_by_side(end_group, transaction.groups, at_a_time=_AT_A_TIME)
        async with live.lock:
            await self.save(live, complete(transaction))

    # ------------------------------------------------------------ time

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._gateway.clock.monotonic()
            nodes = frozenset(self._gateway.nodes.live)
            if nodes != self._nodes:
                self._nodes = nodes
                self._looked_at = -math.inf
                for live in [*self._live.values()]:
                    if not self.is_ours(live.transactional_id):
                        self._forget(live)
            if now - self._looked_at > _LOOK_S and not self._is_looking:
                self._looked_at = now
                self._is_looking = True
                self._gateway.tasks.spawn(self._look(), name="kafka transactions")
            now_ms = self.now_ms
            for live in [*self._live.values()]:
                if live.stored is None or live.lock.locked():
                    continue
                ends_at_ms = live.stored.transaction.ends_at_ms
                if ends_at_ms is not None and ends_at_ms <= now_ms:
                    self._gateway.tasks.spawn(self._expire(live), name="kafka transaction time-out")
            self._drop_idle(_IDLE_S)

    async def _look(self) -> None:
        """Find transactions that other nodes have left, and ids that are not used any more."""
        try:
            found = {n: one for n, one in (await self.store.all()).items() if self.is_ours(n)}
            self._kept.reset(
                {n: (one.transaction.owner, _size_of(one.transaction)) for n, one in found.items()}
            )
            for transactional_id, stored in found.items():
                if transactional_id in self._live:
                    continue
                transaction = stored.transaction
                if transaction.is_decided:
                    _ = self.end(self._keep(transactional_id, stored))
                elif transaction.state is TxnState.ONGOING:
                    self._keep(transactional_id, stored)
                elif transaction.began_ms < self.now_ms - _KEPT_MS:
                    await self._delete(transactional_id, stored)
            await self._thin(found)
        except GazetteError as err:
            _log.warning("transactions that other nodes left are looked for later: %s", err)
        finally:
            self._is_looking = False

    async def _thin(self, found: dict[str, StoredTransaction]) -> None:
        """Forget the oldest finished ids of owners that keep much of what they may."""
        nodes, limit = len(self._gateway.nodes.live), self.now_ms - _FINISHED_MS
        owners = {one.transaction.owner for one in found.values()}
        full = {one for one in owners if self._kept.part_of(one, nodes=nodes) > _MUCH}
        for name, stored in sorted(found.items(), key=lambda each: each[1].transaction.began_ms):
            one = stored.transaction
            if one.owner not in full or self._kept.part_of(one.owner, nodes=nodes) < _ENOUGH:
                continue
            is_open = one.is_decided or one.state is TxnState.ONGOING
            if not is_open and one.began_ms <= limit and name not in self._live:
                await self._delete(name, stored)

    async def _delete(self, transactional_id: str, stored: StoredTransaction) -> None:
        if await self.store.delete(transactional_id, stored.revision):
            self._kept.drop(transactional_id)

    async def _expire(self, live: LiveTransaction) -> None:
        async with live.lock:
            if live.is_gone or live.stored is None:
                return
            expired = expire(live.stored.transaction, now_ms=self.now_ms)
            if expired is None:
                return
            _log.warning(
                "transaction %s of producer %d is aborted: it was open for more than %g s",
                live.transactional_id,
                expired.producer_id,
                expired.timeout_ms / 1000,
            )
            try:
                await self.save(live, expired)
            except GazetteError as err:
                _log.warning("transaction %s is aborted later: %s", live.transactional_id, err)
                return
        _ = self.end(live)

    def _drop_idle(self, idle_s: float) -> None:
        """Forget ids without a transaction: etcd has all of them."""
        limit = self._gateway.clock.monotonic() - idle_s
        for live in [*self._live.values()]:
            is_open = live.stored is not None and (
                live.stored.transaction.is_decided
                or live.stored.transaction.state is TxnState.ONGOING
            )
            if not is_open and live.used_at <= limit and not live.lock.locked():
                self._forget(live)
