"""The transactions that this node coordinates: their records, their ends, and their time-outs.

The coordinator of a transactional id is the node that all nodes compute from it. A decision is in etcd before anything is written
that follows from it, and every later step may be repeated by any node: an ACK, by the journal's registers; offsets, by their own
key; the last write, by the record's revision. So a node that takes over only looks for records that are decided, or overdue.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import EtcdError, Fenced, GazetteError
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.produce import TransactionEnd
from gazette_platform.kafka.transactions import Transaction, TxnState, complete, expire
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.tasks import side_by_side

if TYPE_CHECKING:
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.produce import Lanes
    from gazette_platform.kafka.txn_store import StoredTransaction, TxnStore

_log = logging.getLogger(__name__)

ID_CHARS_MAX: Final = 1000
_LIVE_MAX: Final = 10_000
_TICK_S: Final = 0.25
_IDLE_S: Final = 60.0
_LOOK_S: Final = 60.0
_AT_A_TIME: Final = 16
_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long a transactional id is remembered that is not used."""


def transaction_place(transactional_id: str) -> str:
    """What the coordinator of a transactional id is computed from."""
    return f"transaction/{transactional_id}"


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
        return nodes.keeper(transaction_place(transactional_id)).id == nodes.own.id

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
        except EtcdError:
            self._forget(live)  # what etcd has by now is read when it is asked for next
            raise

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
            for transactional_id, stored in (await self.store.all()).items():
                if not self.is_ours(transactional_id) or transactional_id in self._live:
                    continue
                transaction = stored.transaction
                if transaction.is_decided:
                    _ = self.end(self._keep(transactional_id, stored))
                elif transaction.state is TxnState.ONGOING:
                    self._keep(transactional_id, stored)
                elif transaction.began_ms < self.now_ms - _KEPT_MS:
                    await self.store.delete(transactional_id, stored.revision)
        except GazetteError as err:
            _log.warning("transactions that other nodes left are looked for later: %s", err)
        finally:
            self._is_looking = False

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
