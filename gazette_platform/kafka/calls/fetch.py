"""Fetch: lines of journals become batches of records.

Answers name no session, so each request lists its partitions. A consumer that reads committed records only gets those up to the
first whose transaction is open.

The verdict on a message of a transaction is the next acknowledgement of its producer after it: committed if its clock is not
smaller, else rolled back. It is found by looking ahead of the consumer, so no gateway has to keep anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import DataError, GazetteError, JournalReplaced
from gazette_platform.kafka.calls.offsets import ReadAhead, Tail, line_bytes_max
from gazette_platform.kafka.failures import KafkaError, fetch_code_of
from gazette_platform.kafka.records.batches import LargeBuilder, finish_batch, new_builder
from gazette_platform.kafka.records.lines import (
    decode_lines,
    foreign_uuid,
    has_marks,
    schema_ids_of,
)
from gazette_platform.kafka.topics import Form
from gazette_platform.kafka.wire import Api
from gazette_platform.kafka.wire.batches import (
    FETCH_LEAST,
    FETCH_MOST,
    Fetched,
    FetchedPart,
    read_fetch,
)
from gazette_platform.message.uuid import Flags, parse_uuid
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.records.avro_json import AvroCodec
    from gazette_platform.kafka.records.lines import Block
    from gazette_platform.kafka.wire import Call, Peer

_KEY: Final = 1
_WAIT_S_MAX: Final = 30.0
_IDLE_S: Final = 60.0
_OPENED_AT_A_TIME: Final = 16
_PART: Final = "fetch"
_COMMITTED: Final = 1


@final
@dataclass(slots=True, eq=False)
class _Followed:
    """A partition that a connection reads."""

    tail: Tail
    created: int
    marks: Marks | None = None

    @property
    def is_closed(self) -> bool:
        """Whether it gives nothing any more."""
        return self.tail.is_closed or (self.marks is not None and self.marks.is_closed)


@final
@dataclass(slots=True, eq=False)
class _Reads:
    """What a connection reads."""

    stirred: asyncio.Event = field(default_factory=asyncio.Event)
    followed: dict[tuple[str, int], _Followed] = field(default_factory=dict)

    def close(self) -> None:
        for each in self.followed.values():
            _close(each)
        self.followed.clear()


@final
@dataclass(slots=True, eq=False)
class _Wanted:
    """A partition of a request, and what was found for it."""

    topic: str
    index: int
    offset: int
    size: int
    form: Form | None = None
    codecs: dict[int, AvroCodec | str] | None = None
    """Of the form `avro`."""
    followed: _Followed | None = None
    error: GazetteError | None = None
    end: int = 0
    """Bytes that can be given, up to the first record that is undecided."""
    stable: int = -1
    """The offset before which all is decided, as far as was looked."""


@final
class Fetch:
    """Answers Fetch."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._ahead = ReadAhead(line_bytes_max(gateway), gateway.clock.monotonic)

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(_KEY, "fetch", FETCH_LEAST, FETCH_MOST, self._fetch, read=read_fetch)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end: reads end with their connections."""

    async def _fetch(self, call: Call) -> Any:
        reads = self._reads_of(call.peer)
        request = call.request
        wanted = [
            _Wanted(topic, each.number, each.offset, each.bytes_max)
            for topic, parts in request.topics
            for each in parts
        ]
        fresh = [each for each in wanted if not await self._goes_on(call.peer, reads, each)]
        if fresh:
            await side_by_side(
                partial(self._open, call.peer, reads), fresh, at_a_time=_OPENED_AT_A_TIME
            )
        self._drop_idle(reads)
        is_committed = request.isolation_level == _COMMITTED
        left_s = call.peer.access.remaining_s  # of the token
        wait_s = min(request.wait_s, _WAIT_S_MAX)
        if left_s is not None:
            wait_s = min(wait_s, max(0.0, left_s))
        await self._wait(reads, wanted, wait_s, request.bytes_min, is_committed=is_committed)
        for each in wanted:
            if each.form is Form.AVRO and each.end:
                await self._find_codecs(each)
        return self._answer(call, wanted, is_committed=is_committed)

    async def _find_codecs(self, wanted: _Wanted) -> None:
        """Have the schemas of what can be given."""
        followed = wanted.followed
        if followed is None or wanted.error is not None:
            return
        block = followed.tail.lines(min(wanted.size, wanted.end), one=True)
        schemas = self._gateway.schemas
        try:
            ids = schema_ids_of(block)
            wanted.codecs = await schemas.of_ids(ids - {0})
            newest = await schemas.of_subject(f"{wanted.topic}-value") if 0 in ids else None
            if newest is not None:
                wanted.codecs[0] = newest
        except GazetteError as err:
            wanted.error = err

    def _reads_of(self, peer: Peer) -> _Reads:
        reads: _Reads | None = peer.kept.get(_PART)
        if reads is None:
            reads = peer.kept[_PART] = _Reads()
            peer.on_close(reads.close)
        return reads

    async def _goes_on(self, peer: Peer, reads: _Reads, wanted: _Wanted) -> bool:
        """Find the tail at the place that is wanted. Returns: False: one has to be opened."""
        key = wanted.topic, wanted.index
        try:
            partition = await self._gateway.partition(peer.access, Capability.READ, *key)
        except GazetteError as err:
            wanted.error = err
            return True
        wanted.form = partition.form
        followed = reads.followed.get(key)
        if (
            followed is None
            or followed.is_closed
            or followed.tail.wanted != wanted.offset
            or followed.created != partition.listing.created
        ):
            return False
        followed.tail.used_at = self._gateway.clock.monotonic()
        wanted.followed = followed
        return True

    async def _open(self, peer: Peer, reads: _Reads, wanted: _Wanted) -> None:
        """Have a tail at the place that is wanted, in place of another."""
        key = wanted.topic, wanted.index
        try:
            partition = await self._gateway.partition(peer.access, Capability.READ, *key)
            tail = Tail(self._gateway, partition.journal, self._ahead, reads.stirred)
            await tail.open(partition, wanted.offset)
        except GazetteError as err:
            wanted.error = err
            return
        if key in reads.followed:
            _close(reads.followed[key])
        wanted.followed = reads.followed[key] = _Followed(tail, partition.listing.created)
        tail.used_at = self._gateway.clock.monotonic()

    def _drop_idle(self, reads: _Reads) -> None:
        before = self._gateway.clock.monotonic() - _IDLE_S
        for key in [key for key, each in reads.followed.items() if each.tail.used_at < before]:
            _close(reads.followed.pop(key))

    async def _wait(
        self,
        reads: _Reads,
        wanted: list[_Wanted],
        wait_s: float,
        min_bytes: int,
        *,
        is_committed: bool,
    ) -> None:
        """Wait until there is enough, or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            reads.stirred.clear()
            ready = 0
            for each in wanted:
                ready += await self._look(reads, each, is_committed=is_committed)
            if ready >= min_bytes or any(each.error is not None for each in wanted):
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await reads.stirred.wait()
            except TimeoutError:
                return

    async def _look(self, reads: _Reads, wanted: _Wanted, *, is_committed: bool) -> int:
        """Note how much of a partition can be given. Returns: its bytes."""
        followed = wanted.followed
        if followed is None or wanted.error is not None:
            return 0
        try:
            followed.tail.check()
            wanted.end = followed.tail.available
            if is_committed and wanted.end:
                block = followed.tail.lines(wanted.size, one=True)
                wanted.end = block.size
                if followed.marks is not None or has_marks(block):
                    if followed.marks is None:
                        ahead = Tail(
                            self._gateway, followed.tail.journal, self._ahead, reads.stirred
                        )
                        followed.marks = Marks(ahead, followed.tail)
                    wanted.end = await followed.marks.decided(block)
            if is_committed:
                marks, tail = followed.marks, followed.tail
                # Without marks nothing is undecided of what was looked at, which may be nothing yet.
                wanted.stable = tail.head if marks is None else marks.stable
        except GazetteError as err:
            if isinstance(err, JournalReplaced):
                self._gateway.topics.forget()
            wanted.error = err
            return 0
        return wanted.end

    def _answer(self, call: Call, wanted: list[_Wanted], *, is_committed: bool) -> Fetched:
        left = most = self._most(call)
        topics: dict[str, list[FetchedPart]] = {}
        for each in wanted:
            part = self._part(call, each, left, is_committed=is_committed, is_first=left == most)
            left -= part.size
            topics.setdefault(each.topic, []).append(part)
        return Fetched(call.version, [*topics.items()])

    def _most(self, call: Call) -> int:
        """Bytes of the largest answer: with a quota no more than a client may fetch in a second."""
        most: int = call.request.bytes_max
        return min(most, self._gateway.config.fetch_quota or most)

    def _part(
        self, call: Call, wanted: _Wanted, left: int, *, is_committed: bool, is_first: bool
    ) -> FetchedPart:
        error, followed = wanted.error, wanted.followed
        if error is None and followed is not None:
            tail, records = followed.tail, list[Any]()
            if wanted.end and left > 0:
                records = self._records(followed, wanted, left, one=is_first)
            stable = wanted.stable if is_committed else tail.head
            return FetchedPart(wanted.index, 0, tail.head, stable, tail.start, records)
        if followed is not None:
            for key, each in [*_reads(call).followed.items()]:
                if each is followed:
                    _close(_reads(call).followed.pop(key))
        return FetchedPart(wanted.index, 0 if error is None else fetch_code_of(error).value)

    def _records(
        self, followed: _Followed, wanted: _Wanted, left: int, *, one: bool
    ) -> list[bytes | bytearray | memoryview]:
        tail = followed.tail
        size = min(wanted.size, left)
        block = tail.lines(min(size, wanted.end), one=one or size >= wanted.size)
        if not block.size or wanted.form is None:
            return []
        builder = new_builder(block.first_bytes)
        done = decode_lines(
            wanted.form,
            block,
            builder.append,
            add_rest=builder.append_rest if isinstance(builder, LargeBuilder) else None,
            verdicts=followed.marks,
            base=tail.position,
            else_ms=int(self._gateway.clock.unix_s() * 1000),
            codecs=wanted.codecs,
        )
        if not done.size:
            return []
        base = tail.position
        try:
            built = finish_batch(builder, done.records, base=base, end=base + done.size)
        except (OverflowError, ValueError) as err:
            raise KafkaError(ErrorCode.corrupt_message, str(err)) from err
        tail.advance(done.size)
        self._gateway.metrics.took("out", done.records, sum(map(len, built)))
        return built


def _reads(call: Call) -> _Reads:
    reads: _Reads = call.peer.kept[_PART]
    return reads


def _close(followed: _Followed) -> None:
    followed.tail.close()
    if followed.marks is not None:
        followed.marks.close()


_STEP_BYTES: Final = 1 << 20


class _Message(NamedTuple):
    producer: bytes
    clock: int
    flags: int
    begin: int
    offset: int
    """Of its last byte."""


@final
class Marks:
    """The ends of transactions from a consumer's place on. Looks no further ahead than it has to.

    Args:
        ahead: not open; reads ahead of `behind`.
        behind: the consumer's.
    """

    def __init__(self, ahead: Tail, behind: Tail) -> None:
        self._ahead = ahead
        self._behind = behind
        self._is_open = False
        self._acks: dict[bytes, deque[tuple[int, int]]] = {}
        self._open: dict[bytes, int] = {}  # begin of the first message since the last end

    @property
    def stable(self) -> int:
        """The offset before which all is decided, as far as known.

        It is the end as long as not all was looked at: a consumer would take anything less for the end of what it can read.
        """
        head = max(self._ahead.head, self._behind.head)
        if self._ahead.position < head:
            return head
        return min(self._open.values(), default=head)

    async def decided(self, block: Block) -> int:
        """How many bytes of lines at the consumer's place are decided. Raises: GazetteError."""
        if not self._is_open:
            self._ahead.begin(self._behind.position)
            self._is_open = True
        self._ahead.used_at = self._behind.used_at
        self._forget(self._behind.position)
        end = self._behind.position + block.size
        while self._ahead.position < end or self._first_open(end) < end:
            self._ahead.check()
            lines = self._ahead.lines(_STEP_BYTES, one=True)
            if not lines.size:
                break
            for message in _messages(lines, self._ahead.position):
                self._note(message)
            self._ahead.advance(lines.size)
        return max(0, min(end, self._ahead.position, self._first_open(end)) - self._behind.position)

    def _first_open(self, end: int) -> int:
        return min(self._open.values(), default=end)

    def _note(self, message: _Message) -> None:
        if message.flags == Flags.CONTINUE_TXN:
            self._open.setdefault(message.producer, message.begin)
        elif message.flags == Flags.ACK_TXN:
            self._open.pop(message.producer, None)
            acks = self._acks.setdefault(message.producer, deque())
            acks.append((message.offset, message.clock))

    def _forget(self, position: int) -> None:
        for producer, acks in [*self._acks.items()]:
            while acks and acks[0][0] < position:
                acks.popleft()
            if not acks:
                del self._acks[producer]

    def of(self, producer: bytes, clock: int, offset: int) -> bool | None:
        """As of `lines.Verdicts`."""
        for at, acknowledged in self._acks.get(producer, ()):
            if at > offset:
                return acknowledged >= clock
        return None

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._ahead.is_closed

    def close(self) -> None:
        """End the read."""
        self._ahead.close()


def _messages(lines: Block, position: int) -> list[_Message]:
    """The messages of transactions among lines."""
    found: list[_Message] = []
    if not has_marks(lines):
        return found
    for line in lines.content[lines.begin : lines.end].split(b"\n")[:-1]:
        begin, position = position, position + len(line) + 1
        if b'"_meta"' not in line:
            continue
        uuid = foreign_uuid(line)
        if uuid is None:
            continue
        try:
            producer, clock, flags = parse_uuid(uuid.decode())
        except DataError:
            continue
        if flags in {Flags.CONTINUE_TXN, Flags.ACK_TXN}:
            found.append(_Message(producer, clock, flags, begin, position - 1))
    return found
