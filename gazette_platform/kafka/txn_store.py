"""Transactions in etcd: their records, the offsets that they will commit, and producer ids.

``…#transactions/<transactional id>``
    The record. Every write compares its revision, so of two coordinators one changes nothing.
``…#pending/<group>/<transactional id>``
    Offsets that an open transaction will commit for a group. They are written only while the record is as it was when they were
    accepted, and removed in the transaction of etcd that makes them the group's, so each counts once.
``…#producer-ids``
    The next producer id that no gateway has taken.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final
from urllib.parse import quote, unquote

import orjson
from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdError, Fenced
from gazette_platform.etcd import Compare, Delete, Put
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.gateway import kafka_root
from gazette_platform.kafka.group_store import Committed, GroupStore, decode_offsets, encode_offsets
from gazette_platform.kafka.transactions import Transaction, TxnState, check_producer

if TYPE_CHECKING:
    from gazette_platform.etcd import EtcdClient, KeyValue, Operation
    from gazette_platform.kafka.group_store import Offsets

_BLOCK: Final = 1000
_TOPICS_MAX: Final = 100
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
            value = {
                "transaction": _mark(stored.transaction),
                "offsets": {
                    topic: {str(number): list(one) for number, one in offsets.items()}
                    for topic, offsets in merged.items()
                },
            }
            revision = 0 if kv is None else kv.mod_revision
            done = await self._etcd.txn(
                (*compares, Compare.mod(key, revision)), (Put(key, orjson.dumps(value)),)
            )
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
        for _ in range(_ATTEMPTS_MAX):
            kv = await self._etcd.get(key)
            if kv is None or _of(kv) != _mark(transaction):
                return
            compares = [Compare.mod(key, kv.mod_revision)]
            writes: list[Operation] = [Delete(key)]
            for topic, offsets in _pending_offsets(kv).items() if transaction.commits else ():
                offsets_key = self._groups.offsets_key(group_id, topic)
                former = await self._etcd.get(offsets_key)
                known = {} if former is None else decode_offsets(former)
                compares.append(
                    Compare.mod(offsets_key, 0 if former is None else former.mod_revision)
                )
                writes.append(Put(offsets_key, encode_offsets(known | offsets)))
            if (await self._etcd.txn(compares, writes)).succeeded:
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


def _pending_offsets(kv: KeyValue) -> dict[str, Offsets]:
    found = orjson.loads(kv.value)["offsets"]
    return {
        topic: {int(number): Committed(*one) for number, one in offsets.items()}
        for topic, offsets in found.items()
    }
