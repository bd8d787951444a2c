"""Fetch, ListOffsets and OffsetForLeaderEpoch: lines of journals become batches of records, and offsets are found.

Answers name no session, so each request lists its partitions. A consumer that reads committed records only gets those up to the
first whose transaction is open.

A position in a topic is an offset of the journal, so the end of a partition is the write head. A time is looked up in two steps:
fragments that were stored before it cannot have a record of it, and then the records' own timestamps count.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.batches import finish_batch, new_builder
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.records import decode_lines
from gazette_platform.kafka.sequences import Sequences
from gazette_platform.kafka.tails import Marks, ReadAhead, Tail, has_marks, log_end, log_start
from gazette_platform.kafka.wire import Api
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Form, Partition
    from gazette_platform.kafka.wire import Call, Peer


_KEY: Final = 1
_LEAST: Final = 4
_MOST: Final = 12
_WAIT_S_MAX: Final = 30.0
_IDLE_S: Final = 60.0
_PART: Final = "fetch"
_COMMITTED: Final = 1


@final
@dataclass(slots=True, eq=False)
class _Followed:
    """A partition that a connection reads."""

    tail: Tail
    created: int
    marks: Marks | None = None


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
        self._ahead = ReadAhead()

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(_KEY, "fetch", _LEAST, _MOST, self._fetch)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end: reads end with their connections."""

    async def _fetch(self, call: Call) -> Any:
        reads = self._reads_of(call.peer)
        request = call.request
        wanted = [
            _Wanted(topic.topic, each.partition, each.fetch_offset, each.partition_max_bytes)
            for topic in request.topics
            for each in topic.partitions
        ]
        for each in wanted:
            await self._follow(call.peer, reads, each)
        self._drop_idle(reads)
        is_committed = request.isolation_level == _COMMITTED
        left_s = call.peer.access.remaining_s  # of the token
        wait_s = min(request.max_wait.total_seconds(), _WAIT_S_MAX)
        if left_s is not None:
            wait_s = min(wait_s, max(0.0, left_s))
        await self._wait(reads, wanted, wait_s, request.min_bytes, is_committed=is_committed)
        return self._answer(call, wanted, is_committed=is_committed)

    def _reads_of(self, peer: Peer) -> _Reads:
        reads: _Reads | None = peer.kept.get(_PART)
        if reads is None:
            reads = peer.kept[_PART] = _Reads()
            peer.on_close(reads.close)
        return reads

    async def _follow(self, peer: Peer, reads: _Reads, wanted: _Wanted) -> None:
        """Have a tail at the place that is wanted."""
        key = wanted.topic, wanted.index
        try:
            partition = await self._gateway.partition(peer.access, Capability.READ, *key)
            wanted.form = partition.form
            followed = reads.followed.get(key)
            if (
                followed is None
                or followed.tail.wanted != wanted.offset
                or followed.created != partition.listing.created
            ):
                if followed is not None:
                    _close(reads.followed.pop(key))
                followed = await self._open(reads, partition, wanted.offset)
                reads.followed[key] = followed
            followed.tail.used_at = self._gateway.clock.monotonic()
            wanted.followed = followed
        except GazetteError as err:
            wanted.error = err

    async def _open(self, reads: _Reads, partition: Partition, offset: int) -> _Followed:
        tail = Tail(self._gateway, partition.journal, self._ahead, reads.stirred)
        await tail.open(partition, offset)
        return _Followed(tail, partition.listing.created)

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
                wanted.end = len(block)
                if followed.marks is not None or has_marks(block):
                    if followed.marks is None:
                        ahead = Tail(
                            self._gateway, followed.tail.journal, self._ahead, reads.stirred
                        )
                        followed.marks = Marks(ahead, followed.tail)
                    wanted.end = await followed.marks.decided(block)
            if is_committed:
                marks, place = followed.marks, followed.tail.position + wanted.end
                wanted.stable = place if marks is None else marks.stable
        except GazetteError as err:
            wanted.error = err
            return 0
        return wanted.end

    def _answer(self, call: Call, wanted: list[_Wanted], *, is_committed: bool) -> Any:
        left = most = self._most(call)
        topics: dict[str, list[Any]] = {}
        for each in wanted:
            part, size = self._part(
                call, each, left, is_committed=is_committed, is_first=left == most
            )
            left -= size
            topics.setdefault(each.topic, []).append(part)
        return call.new(
            "FetchResponse",
            error_code=ErrorCode.none,
            session_id=0,
            responses=tuple(
                call.new("FetchableTopicResponse", topic=topic, partitions=tuple(parts))
                for topic, parts in topics.items()
            ),
        )

    def _most(self, call: Call) -> int:
        """Bytes of the largest answer: with a quota no more than a client may fetch in a second."""
        most: int = call.get("max_bytes", 1 << 30)
        return min(most, self._gateway.config.fetch_quota or most)

    def _part(
        self, call: Call, wanted: _Wanted, left: int, *, is_committed: bool, is_first: bool
    ) -> tuple[Any, int]:
        records, head, stable, start = b"", -1, -1, -1
        error, followed = wanted.error, wanted.followed
        if error is None and followed is not None:
            tail = followed.tail
            if wanted.end and left > 0:
                records = self._records(followed, wanted, left, one=is_first)
            head, start = tail.head, tail.start
            stable = wanted.stable if is_committed else head
        elif followed is not None:
            for key, each in [*_reads(call).followed.items()]:
                if each is followed:
                    _close(_reads(call).followed.pop(key))
        part = call.new(
            "PartitionData",
            partition_index=wanted.index,
            error_code=ErrorCode.none if error is None else code_of(error),
            high_watermark=head,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=None,
            records=records,
        )
        return part, len(records)

    def _records(self, followed: _Followed, wanted: _Wanted, left: int, *, one: bool) -> bytes:
        tail = followed.tail
        size = min(wanted.size, left)
        block = tail.lines(min(size, wanted.end), one=one or size >= wanted.size)
        if not block or wanted.form is None:
            return b""
        builder = new_builder()
        done = decode_lines(
            wanted.form,
            block,
            builder.append,
            verdicts=followed.marks,
            base=tail.position,
            else_ms=int(self._gateway.clock.unix_s() * 1000),
        )
        if not done.size:
            return b""
        base = tail.position
        try:
            built = finish_batch(builder, done.records, base=base, end=base + done.size)
        except (OverflowError, ValueError) as err:
            raise KafkaError(ErrorCode.corrupt_message, str(err)) from err
        tail.advance(done.size)
        self._gateway.metrics.took("out", done.records, len(built))
        return bytes(built)


def _reads(call: Call) -> _Reads:
    reads: _Reads = call.peer.kept[_PART]
    return reads


def _close(followed: _Followed) -> None:
    followed.tail.close()
    if followed.marks is not None:
        followed.marks.close()


_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
# What a search by time reads at most of one journal.
_SEARCH_BYTES: Final = 512 << 20
# Records may be stored a while after the time that their producers gave them, and clocks differ.
_SLACK_S: Final = 300
_CHUNK_BYTES: Final = 1 << 20

_Place = tuple[int, int]
"""Offset and timestamp; -1: none."""


@final
class Offsets:
    """Answers ListOffsets and OffsetForLeaderEpoch."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(2, "list_offsets", 1, 8, self._list)
        yield Api(23, "offset_for_leader_epoch", 2, 4, self._for_epoch)

    async def start(self) -> None:
        """Nothing to begin."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def _list(self, call: Call) -> Any:
        is_committed = call.get("isolation_level", 0) == _COMMITTED
        topics = []
        for topic in call.request.topics:
            parts = [
                await self._part(call, topic.name, each, is_committed=is_committed)
                for each in topic.partitions
            ]
            topics.append(
                call.new("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(parts))
            )
        return call.new("ListOffsetsResponse", topics=tuple(topics))

    async def _part(self, call: Call, topic: str, wanted: Any, *, is_committed: bool) -> Any:
        error, place = ErrorCode.none, (-1, -1)
        try:
            partition = await self._gateway.partition(
                call.peer.access, Capability.READ, topic, wanted.partition_index
            )
            place = await self._place(partition, wanted.timestamp, is_committed=is_committed)
        except GazetteError as err:
            error = code_of(err)
        offset, ts = place
        return call.new(
            "ListOffsetsPartitionResponse",
            partition_index=wanted.partition_index,
            error_code=error,
            timestamp=ts,
            offset=offset,
            leader_epoch=0 if offset >= 0 else -1,
        )

    async def _place(self, partition: Partition, at: int, *, is_committed: bool) -> _Place:
        client, journal = self._gateway.client, partition.journal
        if at == _LATEST and is_committed:
            end = await client.append(journal, b"")
            return Sequences(end.registers).stable(end.end), -1
        head = await log_end(self._gateway, journal)
        if at == _LATEST:
            return head, -1
        if at in {_EARLIEST, _EARLIEST_LOCAL}:
            return await log_start(self._gateway, journal, head), -1
        if at == _MAX_TIMESTAMP:
            return await self._search(partition, head, 0, last=True)
        return await self._search(partition, head, at, last=False)

    async def _search(self, partition: Partition, head: int, at_ms: int, *, last: bool) -> _Place:
        """The first record at or after a time, or the one with the greatest time of what is looked at."""
        begin = await self._begin_of(partition.journal, head, at_ms, last=last)
        best: _Place = (-1, -1)

        def look(offset: int, ts: int, *_: object) -> None:
            nonlocal best
            if (last and ts >= best[1]) or (not last and ts >= at_ms and best[0] < 0):
                best = position + offset, ts

        reader = self._gateway.client.read(
            partition.journal,
            begin,
            end_offset=min(head, begin + _SEARCH_BYTES),
            on_jump="continue",
        )
        position, held = begin, b""
        if begin == head:
            return best
        async with reader:
            while (last or best[0] < 0) and (chunk := await reader.read(_CHUNK_BYTES)):
                held += chunk
                end = held.rfind(b"\n") + 1
                decode_lines(partition.form, held[:end], look)
                position, held = position + end, held[end:]
        return best

    async def _begin_of(self, journal: str, head: int, at_ms: int, *, last: bool) -> int:
        """Where a search begins: at a fragment, whose first line may be the rest of one."""
        if last:
            pages = [page async for page in self._gateway.client.fragment_pages(journal)]
            begins = [each.fragment.begin for page in pages for each in page.fragments]
            return max(begins, default=head)
        since = max(0, at_ms // 1000 - _SLACK_S)
        begins = []
        async for page in self._gateway.client.fragment_pages(journal):
            for each in page.fragments:
                if not each.is_persisted or each.fragment.mod_time >= since:
                    begins.append(each.fragment.begin)
        return min(begins, default=head)

    async def _for_epoch(self, call: Call) -> Any:
        """Every offset is of leader epoch 0, whose end is the write head."""
        topics = []
        for topic in call.request.topics:
            parts = []
            for each in topic.partitions:
                error, end = ErrorCode.none, -1
                try:
                    partition = await self._gateway.partition(
                        call.peer.access, Capability.READ, topic.topic, each.partition
                    )
                    end = await log_end(self._gateway, partition.journal)
                except GazetteError as err:
                    error = code_of(err)
                parts.append(
                    call.new(
                        "EpochEndOffset",
                        error_code=error,
                        partition=each.partition,
                        leader_epoch=0 if end >= 0 else -1,
                        end_offset=end,
                    )
                )
            topics.append(
                call.new("OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(parts))
            )
        return call.new("OffsetForLeaderEpochResponse", topics=tuple(topics))
