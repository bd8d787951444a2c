"""Produce: batches of records become lines, and lines become appends, one journal after the other in its lane.

A lane makes one append at a time. What arrives meanwhile becomes the next append, so a busy partition has few large ones. Their
order is the one of arrival, and the clocks of UUIDs, which are given at arrival, grow in it.

Each append names the offset that it must begin at, so it is made once although its answer may be lost. If other writers append
to the journal, too, this fails now and then; after some attempts the lane appends wherever the end is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import (
    GazetteError,
    OutcomeUnknown,
    RegisterMismatch,
    WrongAppendOffset,
)
from gazette_platform.kafka.calls.sequences import (
    Claim,
    Duplicate,
    Sequence,
    Sequences,
    out_of_order,
    txn_producer,
)
from gazette_platform.kafka.calls.topic_configs import MAX_BYTES
from gazette_platform.kafka.failures import KafkaError, Refused, code_of
from gazette_platform.kafka.records.batches import read_batch
from gazette_platform.kafka.records.bulk_lines import bulk_lines, large_lines
from gazette_platform.kafka.records.lines import Lines, Stamp, encode_batch
from gazette_platform.kafka.topics import Form
from gazette_platform.kafka.wire import Api, Later
from gazette_platform.kafka.wire.batches import PRODUCE_LEAST, PRODUCE_MOST, Appended, read_produce
from gazette_platform.kafka.wire.bounds import Room
from gazette_platform.message.uuid import Flags, clock_of, new_producer_id, uuid_text
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from gazette_platform.client.results import AppendResult
    from gazette_platform.kafka.calls.sequences import Edit
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.records.batches import Batch
    from gazette_platform.kafka.topics import Partition
    from gazette_platform.kafka.wire import Call

    # By topic, and by partition.
    _Begun = list[tuple[str, list[tuple[int, asyncio.Future[int] | GazetteError]]]]
    OpenNumber = Callable[[str | None, tuple[int, int], str], Awaitable[int]]

_log = logging.getLogger(__name__)

_KEY: Final = 0
_WAIT_S_LEAST: Final = 1.0
_WAIT_S_MOST: Final = 60.0
_ACKS: Final = (-1, 0, 1)
# Of what a line has beside the record, about.
_LINE_BYTES: Final = 110
_LARGE_BYTES: Final = 256 << 10


@final
class Produce:
    """Answers Produce.

    Args:
        open_number: gives the number of the open transaction that a batch belongs to, as `TxnStore.open_number`.
    """

    def __init__(self, gateway: Gateway, lanes: Lanes, open_number: OpenNumber) -> None:
        self._gateway = gateway
        self._lanes = lanes
        self._open_number = open_number

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        # librdkafka takes a broker without version 0 for one that knows no compression; Kafka 4 lists it as well.
        versions = PRODUCE_LEAST, PRODUCE_MOST
        yield Api(_KEY, "produce", *versions, self._produce, said_least=0, read=read_produce)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end: what was taken is appended."""

    async def _produce(self, call: Call) -> Later:
        """Begin the appends. Returns: what waits for them."""
        request = call.request
        begun: _Begun = []
        for topic in request.topic_data:
            parts: list[tuple[int, asyncio.Future[int] | GazetteError]] = []
            for data in topic.partition_data:
                try:
                    if request.acks not in _ACKS:
                        raise KafkaError(ErrorCode.invalid_required_acks)
                    parts.append((data.number, await self._begin(call, topic.name, data)))
                except GazetteError as err:
                    parts.append((data.number, err))
            begun.append((topic.name, parts))
        # What was not appended by then may be appended later, as in Kafka.
        wait_s = min(max(request.timeout_s, _WAIT_S_LEAST), _WAIT_S_MOST)
        waits = [
            part for _, parts in begun for _, part in parts if not isinstance(part, GazetteError)
        ]
        due = asyncio.get_running_loop().time() + wait_s
        return Later(waits, partial(_answer, call, begun), due)

    async def _begin(self, call: Call, topic: str, data: Any) -> asyncio.Future[int]:
        """Begin the append of a batch. Returns: as `Pending.done`. Raises: GazetteError: the records cannot be taken."""
        partition = await self._gateway.partition(
            call.peer.access, Capability.APPEND, topic, data.number
        )
        if not data.records:
            raise KafkaError(ErrorCode.invalid_record, "a request holds no batch for a partition")
        batch = read_batch(data.records, limit=self._limit(partition))
        lane = self._lanes.get(partition.journal)
        size = len(batch.data) + batch.count * _LINE_BYTES
        try:
            held = await self._lanes.room.take(
                size, {partition.journal: _OF_JOURNAL, topic: _OF_TOPIC}
            )
        except KafkaError:
            lane.refuse(_claim_of(batch))
            raise
        try:
            pending = await self._pending(call, partition, lane, batch)
        except BaseException:
            held.give()
            raise
        held.add(pending.lines.size - size)
        pending.done.add_done_callback(lambda _: held.give())
        self._gateway.metrics.took("in", batch.count, len(data.records))
        return pending.done

    async def _pending(self, call: Call, partition: Partition, lane: Lane, batch: Batch) -> Pending:
        """Put the lines of a batch into its lane. Raises: GazetteError: the records cannot be taken."""
        producer, flags, claim, find = None, Flags.OUTSIDE_TXN, _claim_of(batch), None
        if len(batch.data) > _LARGE_BYTES:
            await asyncio.sleep(0)  # others have their turn between large batches
        if batch.is_transactional:
            if claim is None or partition.form is Form.PLAIN:
                raise KafkaError(
                    ErrorCode.invalid_record,
                    f"topic {partition.topic} holds no transactions (kafka.meta=none)",
                )
            producer, flags = txn_producer(batch.producer_id, batch.epoch), Flags.CONTINUE_TXN
            await lane.ready()
            find = partial(
                self._open_number,
                call.request.transactional_id,
                (batch.producer_id, batch.epoch),
                partition.journal,
            )
        lines, stamp = await self._lines(partition.form, batch, producer, flags)
        clocks = (stamp.clock, stamp.end(batch.count)) if batch.is_transactional else (0, 0)
        pending = Pending(lines, claim, clocks, find)
        lane.put(pending)
        return pending

    async def _lines(
        self, form: Form, batch: Batch, producer: bytes | None, flags: Flags
    ) -> tuple[Lines, Stamp]:
        """What a batch writes. Raises: KafkaError: its records are damaged, or do not fit the form."""
        now_ms = int(self._gateway.clock.unix_s() * 1000)
        if form is Form.JSON:
            stamp = self._lanes.stamp(batch.count, producer=producer, flags=flags)
            lines = bulk_lines(batch.data, batch.count, stamp, now_ms)
            if lines is not None:
                return lines, stamp
        records, codecs = batch.records(), None
        if len(records) != batch.count:
            raise KafkaError(ErrorCode.invalid_record, "a batch does not have all of its records")
        if form is Form.AVRO:
            values = (record.value for record in records)
            codecs = await self._gateway.schemas.of_values(values)
        stamp = self._lanes.stamp(batch.count, producer=producer, flags=flags)
        lines = large_lines(form, records, len(batch.data), stamp, now_ms)
        return lines or encode_batch(form, records, stamp, now_ms, codecs), stamp

    def _limit(self, partition: Partition) -> int:
        """Bytes of the largest batch that a topic takes."""
        limit = self._gateway.config.record_bytes_max
        own = partition.listing.spec.labels.value_of(MAX_BYTES)
        return min(limit, int(own)) if own.isdecimal() else limit


def _answer(call: Call, begun: _Begun) -> Any:
    outcomes = [(name, [(index, _outcome(part)) for index, part in parts]) for name, parts in begun]
    if call.request.acks == 0:
        return None
    if not any(isinstance(found, GazetteError) for _, parts in outcomes for _, found in parts):
        return Appended(call.version, cast("list[tuple[str, list[tuple[int, int]]]]", outcomes))
    topics = [
        call.new(
            "TopicProduceResponse",
            name=name,
            partition_responses=tuple(_part(call, *each) for each in parts),
        )
        for name, parts in outcomes
    ]
    return call.new("ProduceResponse", responses=tuple(topics))


def _claim_of(batch: Batch) -> Claim | None:
    """What the producer of a batch says of its place; None: it is not idempotent."""
    if batch.producer_id < 0:
        return None
    return Claim(batch.producer_id, batch.epoch, batch.base_sequence, batch.count)


def _outcome(part: asyncio.Future[int] | GazetteError) -> int | GazetteError:
    """The offset of the first record of a batch, or why there is none."""
    if isinstance(part, GazetteError):
        return part
    if not part.done() or part.cancelled():
        return KafkaError(ErrorCode.request_timed_out, "the append is still under way")
    error = part.exception()
    if error is None:
        return part.result()
    if isinstance(error, GazetteError):
        return error
    raise error


def _part(call: Call, index: int, outcome: int | GazetteError) -> Any:
    """The part of the answer for a partition."""
    error = None if isinstance(outcome, int) else outcome
    names_records = call.version >= _RECORD_ERRORS_VERSION
    bad = error.records if names_records and isinstance(error, Refused) else ()
    return call.new(
        "PartitionProduceResponse",
        index=index,
        error_code=ErrorCode.none if error is None else code_of(error),
        base_offset=outcome if isinstance(outcome, int) else -1,
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


_RECORD_ERRORS_VERSION: Final = 8  # of Produce, whose answers name the records that were refused
_APPEND_BYTES: Final = 4 << 20
_ATTEMPTS_MAX: Final = 8
_NAMED_ATTEMPTS: Final = 4
_LANES_MAX: Final = 4096
# What one journal, and one topic, may take of the room: the rest is for others, if it is stuck.
_OF_JOURNAL: Final = 8
_OF_TOPIC: Final = 4
_FAILED_MAX: Final = 1024
_LEAST_CLOCK: Final = 1
_AHEAD_S_MAX: Final = 24 * 3600
"""How far ahead of our clock that of another gateway may be. Whoever appends to a journal may write any into its registers."""


class TransactionEnd(NamedTuple):
    """What ends a transaction in one journal."""

    producer_id: int
    written_epoch: int
    """Of the producer that wrote it."""
    epoch: int
    """That is current from now on."""
    commits: bool
    number: int
    """Of the transaction, among those of the producer."""


@final
@dataclass(slots=True, eq=False)
class Pending:
    """A batch that waits for its append.

    Attributes:
        clocks: of its first message, and the one after its last, if its producer has transactions; else zeros.
        find: asks for the number of its transaction, if the journal does not say which one is open.
        transaction: that number, once it was asked for.
        end: ends a transaction; it has no lines then.
        done: gives the offset of its first record.
    """

    lines: Lines
    claim: Claim | None = None
    clocks: tuple[int, int] = (0, 0)
    find: Callable[[], Awaitable[int]] | None = None
    transaction: int = 0
    end: TransactionEnd | None = None
    done: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@final
class Lane:
    """The appends to one journal."""

    def __init__(self, gateway: Gateway, journal: str, lanes: Lanes) -> None:
        self._gateway = gateway
        self._lanes = lanes
        self._journal = journal
        self._queue: deque[Pending] = deque()
        self._task: asyncio.Task[None] | None = None
        self._head = -1  # -1: not known
        self._sequences = Sequences()
        self._failed: dict[int, tuple[int, int]] = {}
        self._appended: list[Pending] = []  # at present

    @property
    def is_idle(self) -> bool:
        """Whether nothing is appended or waits."""
        return self._task is None

    def put(self, pending: Pending) -> None:
        """Append a batch after those that came before."""
        self._queue.append(pending)
        if self._task is None:
            self._task = self._gateway.tasks.spawn(self._run(), name="append")

    async def ready(self) -> None:
        """Wait until the registers are known, and the clock is beyond those of transactions. Raises: GazetteError."""
        if self._head < 0 and self._task is None:
            self._learn(await self._gateway.client.append(self._journal, b""))

    async def end(self, end: TransactionEnd) -> None:
        """Commit or roll back what a transaction has in the journal: once, however often it is called.

        Raises: GazetteError: it is to be tried again. Cancellation: it may be done all the same.
        """
        pending = Pending(Lines([], 0, 0), end=end)
        self.put(pending)
        await pending.done

    async def _run(self) -> None:
        try:
            while self._queue:
                group = self._appended = self._take()
                try:
                    await self._append(group)
                except Exception as err:  # noqa: BLE001  it ends these batches, and no others
                    self._fail(group, err)
        finally:
            self._task, self._appended = None, []
            for pending in self._queue:
                pending.done.cancel()

    def _take(self) -> list[Pending]:
        """Those that make the next append."""
        group, size = [self._queue.popleft()], 0
        size = group[0].lines.size
        while (
            self._queue
            and group[0].end is None
            and self._queue[0].end is None
            and size + self._queue[0].lines.size <= _APPEND_BYTES
        ):
            group.append(self._queue.popleft())
            size += group[-1].lines.size
        return group

    def _fail(self, group: list[Pending], error: Exception) -> None:
        self._head = -1
        self._remember_failed([each.claim for each in group if each.claim and not each.done.done()])
        if not isinstance(error, GazetteError):
            self._gateway.faults.report("kafka", f"append to {self._journal}", error)
        elif code_of(error) is ErrorCode.unknown_topic_or_partition:
            self._gateway.topics.forget()
        for pending in group:
            if not pending.done.done():
                pending.done.set_exception(KafkaError(code_of(error), str(error)))
                pending.done.exception()  # the client may be gone, and not ask

    def refuse(self, claim: Claim | None) -> None:
        """Note that a batch is not taken. If earlier ones of its producer wait, what becomes of these counts."""
        others = (each.claim for each in (*self._appended, *self._queue))
        if claim and all(each is None or each.producer_id != claim.producer_id for each in others):
            self._remember_failed([claim])

    def _remember_failed(self, claims: Iterable[Claim]) -> None:
        """Remember where producers have to go on, so that no batch after one that failed is taken for their first."""
        for claim in claims:
            if self._failed.get(claim.producer_id, (-1, 0))[0] != claim.epoch:
                self._failed[claim.producer_id] = claim.epoch, claim.first
        while len(self._failed) > _FAILED_MAX:
            del self._failed[next(iter(self._failed))]

    def _check_failed(self, claim: Claim) -> None:
        """Raises: KafkaError: a batch before this one has failed, and did not come again."""
        epoch, first = self._failed.get(claim.producer_id, (-1, -1))
        if epoch == claim.epoch and first != claim.first:
            raise out_of_order(claim, first)
        self._failed.pop(claim.producer_id, None)

    async def _append(self, group: list[Pending]) -> None:
        for attempt in range(_ATTEMPTS_MAX):
            is_fresh = self._head < 0
            if is_fresh:
                self._learn(await self._gateway.client.append(self._journal, b""))
            named = attempt < _NAMED_ATTEMPTS
            edit = self._sequences.edit()
            if not await self._note(group, edit, exact=named, is_fresh=is_fresh):
                self._head = -1  # another gateway may have appended what is missing
                continue
            group = [pending for pending in group if not pending.done.done()]
            if not group:
                return
            try:
                result = await self._gateway.client.append(
                    self._journal,
                    [piece for pending in group for piece in pending.lines.pieces],
                    offset=self._head if named else 0,
                    check_registers=edit.check,
                    union_registers=edit.union,
                    subtract_registers=edit.subtract,
                    with_sum=False,
                )
            except (RegisterMismatch, WrongAppendOffset):
                self._head = -1
            except OutcomeUnknown:
                # Registers say whether idempotent batches were appended.
                self._head = -1
                if any(pending.claim is None for pending in group):
                    raise
            else:
                self._learn(result)
                at = result.begin
                for pending in group:
                    if not pending.done.done():
                        pending.done.set_result(at + pending.lines.first_bytes - 1)
                    at += pending.lines.size
                return
        raise KafkaError(ErrorCode.not_leader_or_follower, "other writers append all the time")

    async def _note(self, group: list[Pending], edit: Edit, *, exact: bool, is_fresh: bool) -> bool:
        """Note batches for the registers, and answer those that are not to be appended.

        Args:
            exact: whether the offset of the append is known.
            is_fresh: whether the registers were just read; only then a batch may be refused.

        Returns: False if the registers have to be read first.
        """
        end = group[0].end
        if end is not None:
            self._prepare_end(group[0], end, edit)
            return True
        await self._find_transactions(group)
        refused = self._refused(group, edit, exact=exact)
        if refused and not is_fresh:
            return False
        for pending, error in refused:
            _settle(pending, error)
        return True

    def _learn(self, result: AppendResult) -> None:
        self._head = result.end
        self._sequences = Sequences(result.registers)
        self._lanes.raise_clock(self._sequences.clock)

    def _prepare_end(self, pending: Pending, end: TransactionEnd, edit: Edit) -> None:
        """Make the line that ends a transaction; or answer, if it has ended here.

        There is a line even if the transaction has nothing here: a batch of it that comes late must find that it ended. And there may be
        records that the registers do not know: they are lost if the journal was suspended, or deleted and made again.
        """
        former = self._sequences.get(end.producer_id) or Sequence(end.epoch, -1, -1, -1)
        is_open = former.open >= 0
        if former.transaction >= end.number + (1 if is_open else 0):
            if not pending.done.done():
                pending.done.set_result(-1)
            return
        clock = max(self._lanes.stamp(1).clock, former.clock)
        if not end.commits:
            clock = max(_LEAST_CLOCK, former.acknowledged)
        uuid = uuid_text(txn_producer(end.producer_id, end.written_epoch), clock, Flags.ACK_TXN)
        line = b'{"_meta":{"uuid":"%s"}}\n' % uuid.encode()
        pending.lines = Lines([line], len(line), len(line))
        last = max(clock, former.clock)
        after = replace(
            former, clock=last, acknowledged=last, open=-1, transaction=end.number, epoch=end.epoch
        )
        if end.epoch > former.epoch:
            after = replace(after, next=0, first=-1, before=())
        edit.put(end.producer_id, after)

    async def _find_transactions(self, group: list[Pending]) -> None:
        """Ask which transactions batches begin here, so that none is written to one that has ended."""
        for pending in group:
            claim = pending.claim
            if claim is None or pending.find is None or pending.transaction:
                continue
            known = self._sequences.get(claim.producer_id)
            if known is None or known.open < 0 or known.epoch != claim.epoch:
                try:
                    pending.transaction = await pending.find()
                except GazetteError as err:
                    _settle(pending, KafkaError(code_of(err), str(err)))

    def _refused(
        self, group: list[Pending], edit: Edit, *, exact: bool
    ) -> list[tuple[Pending, Duplicate | KafkaError]]:
        """Those that do not follow what the registers say, and why; the others are noted in `edit`."""
        refused: list[tuple[Pending, Duplicate | KafkaError]] = []
        at = self._head
        for pending in group:
            if pending.done.done():
                continue
            offset = at + pending.lines.first_bytes - 1
            try:
                if pending.claim is not None:
                    self._add(pending, pending.claim, edit, offset if exact else -offset)
            except (Duplicate, KafkaError) as error:
                refused.append((pending, error))
            else:
                at += pending.lines.size
        return refused

    def _add(self, pending: Pending, claim: Claim, edit: Edit, offset: int) -> None:
        first, _ = pending.clocks
        former = edit.get(claim.producer_id)
        if former is None:
            self._check_failed(claim)
        else:
            self._failed.pop(claim.producer_id, None)
        number = pending.transaction or (former.transaction if former else 0)
        edit.add(claim, offset, pending.clocks, number)
        if first and former and former.epoch == claim.epoch and former.clock > first:
            raise KafkaError(ErrorCode.not_leader_or_follower, "another gateway has a later clock")


def _settle(pending: Pending, outcome: Duplicate | KafkaError) -> None:
    if pending.done.done():
        return
    if isinstance(outcome, KafkaError):
        pending.done.set_exception(outcome)
    elif outcome.offset >= 0:
        pending.done.set_result(outcome.offset)
    else:
        pending.done.set_exception(KafkaError(ErrorCode.duplicate_sequence_number))
    pending.done.exception()


@final
class Lanes:
    """The lanes of a gateway, and the clock of the UUIDs that it gives.

    Attributes:
        room: for the lines of batches that wait for their appends.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._lanes: dict[str, Lane] = {}
        self.room = Room(gateway.config.buffer_bytes_max)
        self._producer = new_producer_id()
        self._clock = 0

    def get(self, journal: str) -> Lane:
        """The lane of a journal."""
        lane = self._lanes.get(journal)
        if lane is None:
            if len(self._lanes) >= _LANES_MAX:
                self._lanes = {name: kept for name, kept in self._lanes.items() if not kept.is_idle}
            lane = self._lanes[journal] = Lane(self._gateway, journal, self)
        return lane

    def raise_clock(self, clock: int) -> None:
        """Let UUIDs have clocks from here on, unless it is far in the future."""
        latest = clock_of(int((self._gateway.clock.unix_s() + _AHEAD_S_MAX) * 1e9)) >> 4 << 4
        self._clock = max(self._clock, min((clock + 15) >> 4 << 4, latest))

    def stamp(
        self, count: int, *, producer: bytes | None = None, flags: Flags = Flags.OUTSIDE_TXN
    ) -> Stamp:
        """UUIDs for the next batch of `count` records, which `put` must follow before another `stamp`."""
        now = clock_of(int(self._gateway.clock.unix_s() * 1e9))
        self._clock = max(self._clock, now >> 4 << 4)
        stamp = Stamp(producer or self._producer, self._clock, flags)
        self._clock = stamp.end(count)
        return stamp
