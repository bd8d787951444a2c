"""InitProducerId, and the calls through which producers add to transactions and end them."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.coordinator.transactions import (
    TxnState,
    add_to,
    begin_producer,
    end_transaction,
    init_producer,
)
from gazette_platform.kafka.failures import KafkaError, coordinator_code_of
from gazette_platform.kafka.topics import Form
from gazette_platform.kafka.wire import Api
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.coordinator.live_transactions import (
        LiveTransaction,
        LiveTransactions,
    )
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.wire import Call

_log = logging.getLogger(__name__)

_NEVER: Final = datetime.fromtimestamp(0, UTC)
_TIMEOUT_MS_MAX: Final = 900_000  # as Kafka's default
_ATTEMPTS_MAX: Final = 4
# How long a call waits for ACKs before its client asks again, or goes on.
_END_S: Final = 10.0


@final
class TxnCoordinator:
    """Answers the calls of producers about transactions."""

    def __init__(self, gateway: Gateway, transactions: LiveTransactions) -> None:
        self._gateway = gateway
        self._transactions = transactions

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(22, "init_producer_id", 0, 5, self._init)
        yield Api(24, "add_partitions_to_txn", 0, 3, self._add_partitions)
        yield Api(25, "add_offsets_to_txn", 0, 4, self._add_offsets)
        yield Api(26, "end_txn", 0, 4, self._end)
        yield Api(65, "describe_transactions", 0, 0, self._describe)
        yield Api(66, "list_transactions", 0, 1, self._list)

    async def start(self) -> None:
        """Begin to watch the time."""
        self._transactions.start()

    async def stop(self) -> None:
        """Nothing to end: other nodes go on."""

    # ------------------------------------------------------------ producers

    async def _init(self, call: Call) -> Any:
        request = call.request
        error, producer_id, epoch = ErrorCode.none, -1, -1
        try:
            if request.transactional_id is None:
                call.peer.access.check_any(
                    Capability.APPEND, ErrorCode.cluster_authorization_failed
                )
                producer_id, epoch = await self._transactions.store.new_producer_id(), 0
            else:
                claimed = call.get("producer_id", -1), call.get("producer_epoch", -1)
                await self._allow(call, request.transactional_id)
                timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
                producer_id, epoch = await self._init_transactional(
                    request.transactional_id, claimed, timeout_ms, call.peer.access.principal
                )
        except GazetteError as err:
            error = known_code(call, coordinator_code_of(err), since=4)
        return call.new(
            "InitProducerIdResponse",
            error_code=error,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    async def _init_transactional(
        self, transactional_id: str, claimed: tuple[int, int], timeout_ms: int, owner: str
    ) -> tuple[int, int]:
        if not 0 < timeout_ms <= _TIMEOUT_MS_MAX:
            raise KafkaError(ErrorCode.invalid_transaction_timeout)
        store, now_ms = self._transactions.store, self._transactions.now_ms
        live = await self._transactions.get(transactional_id)
        for _ in range(_ATTEMPTS_MAX):
            await self._ended(live)
            async with live.lock:
                if live.stored is None:
                    if claimed[0] >= 0:
                        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
                    self._transactions.check_new(owner)
                    following = begin_producer(
                        await store.new_producer_id(), timeout_ms, now_ms=now_ms, owner=owner
                    )
                else:
                    former = live.transaction
                    if former.is_decided:
                        continue
                    found = init_producer(former, claimed, timeout_ms=timeout_ms, now_ms=now_ms)
                    following = found or begin_producer(
                        await store.new_producer_id(), timeout_ms, now_ms=now_ms, former=former
                    )
                await self._transactions.save(live, following)
            if not following.is_decided:
                return following.producer_id, following.epoch
            # Its former self had begun a transaction, which is aborted now.
            if claimed[0] >= 0:
                claimed = following.producer_id, following.epoch
        raise KafkaError(ErrorCode.concurrent_transactions)

    async def _ended(self, live: LiveTransaction) -> None:
        """Wait until nothing is decided and not written. Raises: KafkaError: it takes long."""
        if live.stored is None or not live.transaction.is_decided:
            return
        done, _ = await asyncio.wait({self._transactions.end(live)}, timeout=_END_S)
        if not done:
            raise KafkaError(ErrorCode.concurrent_transactions)

    # ------------------------------------------------------------ parts of a transaction

    async def _add_partitions(self, call: Call) -> Any:
        request = call.request
        topics = request.v3_and_below_topics
        errors: dict[tuple[str, int], ErrorCode] = {}
        journals: list[str] = []
        try:
            await self._allow(call, request.v3_and_below_transactional_id)
            for topic in topics:
                for number in topic.partitions:
                    errors[topic.name, number] = ErrorCode.operation_not_attempted
                    try:
                        journals.append(await self._journal(call, topic.name, number))
                    except KafkaError as err:
                        errors[topic.name, number] = err.code
            if len(journals) == len(errors):
                claimed = (
                    request.v3_and_below_producer_id,
                    request.v3_and_below_producer_epoch,
                )
                await self._add(request.v3_and_below_transactional_id, claimed, journals=journals)
                errors = dict.fromkeys(errors, ErrorCode.none)
        except GazetteError as err:
            error = known_code(call, coordinator_code_of(err), since=2)
            errors = {(one.name, number): error for one in topics for number in one.partitions}
        results = tuple(
            call.new(
                "AddPartitionsToTxnTopicResult",
                name=topic.name,
                results_by_partition=tuple(
                    call.new(
                        "AddPartitionsToTxnPartitionResult",
                        partition_index=number,
                        partition_error_code=errors[topic.name, number],
                    )
                    for number in topic.partitions
                ),
            )
            for topic in topics
        )
        return call.new("AddPartitionsToTxnResponse", results_by_topic_v3_and_below=results)

    async def _allow(self, call: Call, transactional_id: str) -> None:
        """Raises: KafkaError: the client may not append to the journals of the transaction."""
        access, code = call.peer.access, ErrorCode.transactional_id_authorization_failed
        access.check_any(Capability.APPEND, code)
        live = await self._transactions.get(transactional_id)
        if live.stored is not None:
            journals = live.transaction.journals
            await self._gateway.check_journals(access, Capability.APPEND, journals)

    async def _journal(self, call: Call, topic: str, number: int) -> str:
        """The journal of a partition. Raises: KafkaError: there is none, or it holds no transactions."""
        partition = await self._gateway.partition(
            call.peer.access, Capability.APPEND, topic, number
        )
        if partition.form is Form.PLAIN:
            text = f"topic {topic} holds no transactions (kafka.meta=none)"
            raise KafkaError(ErrorCode.unsupported_for_message_format, text)
        return partition.journal

    async def _add_offsets(self, call: Call) -> Any:
        request = call.request
        error = ErrorCode.none
        try:
            if not request.group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            call.peer.access.check_group()
            await self._allow(call, request.transactional_id)
            claimed = request.producer_id, request.producer_epoch
            await self._add(request.transactional_id, claimed, groups=(request.group_id,))
        except GazetteError as err:
            error = known_code(call, coordinator_code_of(err), since=2)
        return call.new("AddOffsetsToTxnResponse", error_code=error)

    async def _add(
        self,
        transactional_id: str,
        claimed: tuple[int, int],
        *,
        journals: Iterable[str] = (),
        groups: Iterable[str] = (),
    ) -> None:
        live = await self._transactions.get(transactional_id)
        async with live.lock:
            former = live.transaction
            now_ms = self._transactions.now_ms
            following = add_to(former, claimed, journals=journals, groups=groups, now_ms=now_ms)
            if following != former:
                await self._transactions.save(live, following)

    # ------------------------------------------------------------ ends

    async def _end(self, call: Call) -> Any:
        request = call.request
        error = ErrorCode.none
        try:
            await self._allow(call, request.transactional_id)
            live = await self._transactions.get(request.transactional_id)
            async with live.lock:
                former = live.transaction
                claimed = request.producer_id, request.producer_epoch
                following = end_transaction(former, claimed, commit=request.committed)
                if following != former:
                    await self._transactions.save(live, following)
                else:
                    await self._transactions.confirm(live)
            if following.is_decided:
                # The decision stands, so the answer is the same if this takes longer.
                await asyncio.wait({self._transactions.end(live)}, timeout=_END_S)
        except GazetteError as err:
            error = known_code(call, coordinator_code_of(err), since=2)
        return call.new("EndTxnResponse", error_code=error)

    # ------------------------------------------------------------ looking at transactions

    async def _list(self, call: Call) -> Any:
        request = call.request
        known = {str(state) for state in TxnState}
        unknown = tuple(state for state in request.state_filters if state not in known)
        least_ms = call.get("duration_filter", -1)
        try:
            is_seen = call.peer.access.may_all(Capability.LIST)
            stored = await self._transactions.store.all() if is_seen else {}
        except GazetteError as err:
            return call.new(
                "ListTransactionsResponse",
                error_code=coordinator_code_of(err),
                unknown_state_filters=unknown,
                transaction_states=(),
            )
        now_ms = self._transactions.now_ms
        found = tuple(
            call.new(
                "TransactionState",
                transactional_id=transactional_id,
                producer_id=one.transaction.producer_id,
                transaction_state=str(one.transaction.state),
            )
            for transactional_id, one in stored.items()
            if self._transactions.is_ours(transactional_id)
            and (not request.state_filters or one.transaction.state in request.state_filters)
            and (
                not request.producer_id_filters
                or one.transaction.producer_id in request.producer_id_filters
            )
            and (least_ms < 0 or now_ms - one.transaction.began_ms >= least_ms)
        )
        return call.new(
            "ListTransactionsResponse",
            error_code=ErrorCode.none,
            unknown_state_filters=unknown,
            transaction_states=found,
        )

    async def _describe(self, call: Call) -> Any:
        states = [await self._described(call, one) for one in call.request.transactional_ids]
        return call.new("DescribeTransactionsResponse", transaction_states=tuple(states))

    async def _described(self, call: Call, transactional_id: str) -> Any:
        error, state, began = ErrorCode.none, "", _NEVER
        producer_id, epoch, timeout, topics = -1, -1, timedelta(), ()
        try:
            code = ErrorCode.transactional_id_authorization_failed
            call.peer.access.check_any(Capability.LIST, code, of_all=True)
            found = (await self._transactions.get(transactional_id)).stored
            if found is None:
                raise KafkaError(ErrorCode.transactional_id_not_found)
            one = found.transaction
            state, producer_id, epoch = str(one.state), one.producer_id, one.epoch
            timeout = timedelta(milliseconds=one.timeout_ms)
            began = datetime.fromtimestamp(one.began_ms / 1000, UTC)
            topics = await self._topics_of(call, one.journals)
        except GazetteError as err:
            error = coordinator_code_of(err)
        return call.new(
            "TransactionState",
            error_code=error,
            transactional_id=transactional_id,
            transaction_state=state,
            transaction_timeout=timeout,
            transaction_start_time=began,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=topics,
        )

    async def _topics_of(self, call: Call, journals: Iterable[str]) -> tuple[Any, ...]:
        known = (await self._gateway.topics.current()).topics.values()
        wanted = frozenset(journals)
        named = {
            topic.name: tuple(n for n, one in topic.partitions.items() if one.journal in wanted)
            for topic in known
        }
        return tuple(
            call.new("TopicData", topic=name, partitions=numbers)
            for name, numbers in named.items()
            if numbers
        )


def known_code(call: Call, code: ErrorCode, *, since: int) -> ErrorCode:
    """The code that clients know: those of versions before `since` know no PRODUCER_FENCED."""
    if code is ErrorCode.producer_fenced and call.version < since:
        return ErrorCode.invalid_producer_epoch
    return code
