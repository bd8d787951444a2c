"""Produce: batches of records become lines, and lines become appends."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.batches import read_batch
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.lanes import Pending
from gazette_platform.kafka.records import Refused, encode_batch
from gazette_platform.kafka.sequences import Claim, txn_producer
from gazette_platform.kafka.topic_specs import MAX_BYTES
from gazette_platform.kafka.topics import Form
from gazette_platform.kafka.wire import Api
from gazette_platform.message.uuid import Flags
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.lanes import Lanes
    from gazette_platform.kafka.topics import Partition
    from gazette_platform.kafka.txn_store import TxnStore
    from gazette_platform.kafka.wire import Call

_log = logging.getLogger(__name__)

_KEY: Final = 0
_LEAST: Final = 3
_MOST: Final = 12
_WAIT_S_LEAST: Final = 1.0
_WAIT_S_MOST: Final = 60.0
_ACKS: Final = (-1, 0, 1)


@final
class Produce:
    """Answers Produce.

    Args:
        transactions: that batches must belong to.
    """

    def __init__(self, gateway: Gateway, lanes: Lanes, transactions: TxnStore) -> None:
        self._gateway = gateway
        self._lanes = lanes
        self._transactions = transactions

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        # librdkafka takes a broker without version 0 for one that knows no compression; Kafka 4 lists it as well.
        yield Api(_KEY, "produce", _LEAST, _MOST, self._produce, said_least=0)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end: what was taken is appended."""

    async def _produce(self, call: Call) -> Awaitable[Any]:
        """Begin the appends. Returns: what waits for them."""
        request = call.request
        begun: list[tuple[str, list[tuple[int, Pending | GazetteError]]]] = []
        for topic in request.topic_data:
            parts: list[tuple[int, Pending | GazetteError]] = []
            for data in topic.partition_data:
                try:
                    if request.acks not in _ACKS:
                        raise KafkaError(ErrorCode.invalid_required_acks)
                    parts.append((data.index, await self._begin(call, topic.name, data)))
                except GazetteError as err:
                    parts.append((data.index, err))
            begun.append((topic.name, parts))
        return self._answer(call, begun)

    async def _begin(self, call: Call, topic: str, data: Any) -> Pending:
        """Raises: GazetteError: the records cannot be taken."""
        partition = await self._gateway.partition(call.peer, Capability.APPEND, topic, data.index)
        if not data.records:
            raise KafkaError(ErrorCode.invalid_record, "a request holds no batch for a partition")
        batch = read_batch(data.records, limit=self._limit(partition))
        producer, flags, claim, find = None, Flags.OUTSIDE_TXN, None, None
        lane = self._lanes.get(partition.journal)
        if batch.producer_id >= 0:
            claim = Claim(batch.producer_id, batch.epoch, batch.base_sequence, batch.count)
        if batch.is_transactional:
            if claim is None or partition.form is Form.PLAIN:
                raise KafkaError(
                    ErrorCode.invalid_record,
                    f"topic {topic} holds no transactions (kafka.meta=none)",
                )
            producer, flags = txn_producer(batch.producer_id, batch.epoch), Flags.CONTINUE_TXN
            await lane.ready()
            find = partial(
                self._transactions.open_number,
                call.request.transactional_id,
                (batch.producer_id, batch.epoch),
                partition.journal,
            )
        records = batch.records()
        if len(records) != batch.count:
            raise KafkaError(ErrorCode.invalid_record, "a batch does not have all of its records")
        now_ms = int(self._gateway.clock.unix_s() * 1000)
        codecs = None
        if partition.form is Form.AVRO:
            values = (record.value for record in records)
            codecs = await self._gateway.schemas.of_values(values)
        stamp = self._lanes.stamp(batch.count, producer=producer, flags=flags)
        lines = encode_batch(partition.form, records, stamp, now_ms, codecs)
        clocks = (stamp.clock, stamp.end(batch.count)) if batch.is_transactional else (0, 0)
        pending = Pending(lines, claim, clocks, find)
        lane.put(pending)
        self._gateway.metrics.took("in", batch.count, len(data.records))
        return pending

    def _limit(self, partition: Partition) -> int:
        """Bytes of the largest batch that a topic takes."""
        limit = self._gateway.config.record_bytes_max
        own = partition.listing.spec.labels.value_of(MAX_BYTES)
        return min(limit, int(own)) if own.isdecimal() else limit

    async def _answer(
        self, call: Call, begun: list[tuple[str, list[tuple[int, Pending | GazetteError]]]]
    ) -> Any:
        topics = []
        # What was not appended by then may be appended later, as in Kafka.
        wait_s = min(max(call.request.timeout.total_seconds(), _WAIT_S_LEAST), _WAIT_S_MOST)
        deadline = asyncio.get_running_loop().time() + wait_s
        for name, parts in begun:
            answers = [await self._part(call, index, part, deadline) for index, part in parts]
            topics.append(
                call.new("TopicProduceResponse", name=name, partition_responses=tuple(answers))
            )
        if call.request.acks == 0:
            return None
        return call.new("ProduceResponse", responses=tuple(topics))

    async def _part(
        self, call: Call, index: int, part: Pending | GazetteError, deadline: float
    ) -> Any:
        error: GazetteError | None
        offset = -1
        if isinstance(part, GazetteError):
            error = part
        else:
            try:
                async with asyncio.timeout_at(deadline):
                    offset, error = await asyncio.shield(part.done), None
            except GazetteError as err:
                error = err
            except TimeoutError:
                error = KafkaError(ErrorCode.request_timed_out, "the append is still under way")
        bad = error.records if isinstance(error, Refused) else ()
        code = ErrorCode.none if error is None else code_of(error)
        return call.new(
            "PartitionProduceResponse",
            index=index,
            error_code=code,
            base_offset=offset,
            log_append_time=None,
            log_start_offset=-1,
            record_errors=tuple(
                call.new(
                    "BatchIndexAndErrorMessage",
                    batch_index=each.number,
                    batch_index_error_message=each.why,
                )
                for each in bad
            ),
            error_message=None if error is None else str(error),
        )
