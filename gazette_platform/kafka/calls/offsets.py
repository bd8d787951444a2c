"""Where journals begin and end for consumers, and reads of them that go on from one Fetch to the next.

A consumer asks for what follows its last answer, so a read is kept open between them, at the place where it ended. It reads
ahead, up to a bound for each partition and one for the process; a poll at the end opens nothing.

A position in a topic is an offset of the journal, so the end of a partition is the write head. A time is looked up in two steps:
fragments that were stored before it cannot have a record of it, and then the records' own timestamps count.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, Self, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError, OffsetJump, StatusError
from gazette_platform.kafka.calls.sequences import Sequences
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.records.lines import Block, decode_lines
from gazette_platform.kafka.wire import Api
from gazette_platform.kafka.wire.bounds import Budget
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_platform.client.read.reader import Reader
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Partition
    from gazette_platform.kafka.wire import Call

_AHEAD_BYTES: Final = 2 << 20
_TOTAL_BYTES: Final = 256 << 20
_BACK_BYTES: Final = 64 << 10
_NEWLINE: Final = b"\n"
_LINE_END: Final = re.compile(_NEWLINE)  # which can be searched for in a view
# Smaller pieces are copied: a view keeps a message, and is as large.
_VIEW_BYTES: Final = 4 << 10
# A line may have this many bytes for one of a record: JSON writes some characters as \u0001.
_GROWTH: Final = 6
_LINE_REST_BYTES: Final = 1 << 10
_PRIMARY_S: Final = 3.0
_TURN_S: Final = 1.0
_UNUSED_S: Final = 35.0  # longer than a consumer waits


@final
class ReadAhead:
    """Bytes that all tails of the process hold.

    Once they hold `_TOTAL_BYTES`, a tail that has whole lines reads no more. One that has only a part of a line longer than
    `_AHEAD_BYTES` waits for its turn: such tails read on one after the other. Those that are not used give up what they hold.

    Attributes:
        held: bytes of all tails.

    Args:
        line_max: bytes of the longest line.
        now: gives seconds of a clock that never goes back.
    """

    def __init__(self, line_max: int, now: Callable[[], float]) -> None:
        self.line_max = line_max
        self.now = now
        self.held = 0
        self._tails: dict[Tail, int] = {}
        self._waiting: dict[Tail, None] = {}
        self._grower: Tail | None = None

    @property
    def is_full(self) -> bool:
        """Whether tails that hold something read no more."""
        return self.held >= _TOTAL_BYTES

    def note(self, tail: Tail, size: int) -> None:
        """Note what a tail holds."""
        self.held += size - self._tails.pop(tail, 0)
        if size:
            self._tails[tail] = size

    def may_grow(self, tail: Tail) -> bool:
        """Whether a tail may read on that has a part of a long line. Otherwise it asks again."""
        if self._grower is tail or not self.is_full:
            self._waiting.pop(tail, None)
            return True
        self._waiting[tail] = None
        self._shed()
        is_first = next(iter(self._waiting), None) is tail
        if self._grower is None and is_first and self.held < _TOTAL_BYTES + self.line_max:
            self._waiting.pop(tail)
            self._grower = tail
            tail.moved_at = self.now()
            return True
        return False

    def waits(self, tail: Tail) -> bool:
        """Whether a tail asks for its turn."""
        return tail in self._waiting

    def end_turn(self, tail: Tail) -> None:
        """A tail has its line, or is closed."""
        self._waiting.pop(tail, None)
        if self._grower is tail:
            self._grower = None
        for following in self._waiting:
            following.look()
            break

    def _shed(self) -> None:
        """Close large tails that no one asks for, or that stay as they are although they are asked for."""
        limit = self.now() - _UNUSED_S
        for tail, size in [*self._tails.items()]:
            since = tail.used_at if tail in self._waiting else min(tail.used_at, tail.moved_at)
            if size > _AHEAD_BYTES and since < limit:
                tail.close()


@final
class Tail:
    """A read of a journal, from the begin of a line on.

    Attributes:
        position: offset of the first byte that is held.
        wanted: offset that the consumer asks for next: it may lie in the first line, or before content that is gone.
        start: of the journal, when the tail was opened: no earlier content can be read.
        used_at: when it was last asked for; its owner sets it.
        moved_at: when a line of it was last taken, or it began.
        is_closed: whether it gives nothing any more.

    Args:
        stirred: set when there is more, or the read has failed.
    """

    def __init__(
        self, gateway: Gateway, journal: str, ahead: ReadAhead, stirred: asyncio.Event
    ) -> None:
        self.journal = journal
        self.position = 0
        self.wanted = 0
        self.start = 0
        self.used_at = self.moved_at = ahead.now()
        self.is_closed = False
        self._gateway = gateway
        self._ahead = ahead
        self._stirred = stirred
        self._content = b""  # has whole lines, which are given
        self._at = 0  # what of it was let go
        self._lines_end = 0  # up to where it has whole lines
        self._pieces: list[bytes | memoryview] = []  # what comes after it
        self._pieces_bytes = 0
        self._has_more = False  # lines that end in them
        self._head = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: GazetteError | None = None
        self._line_max = ahead.line_max

    async def open(self, partition: Partition, offset: int) -> None:
        """Begin at the record that holds the byte at `offset`, or at its end if that is the end of one before.

        Raises: KafkaError: there is no such offset; GazetteError.
        """
        self._head, is_sure = await _known_end(self._gateway, self.journal)
        self.start = await log_start(self._gateway, self.journal, self._head)
        if offset > self._head and not is_sure:
            raise KafkaError(
                ErrorCode.offset_not_available,
                f"{self.journal}: no primary says whether there is an offset {offset}",
            )
        if not self.start <= offset <= self._head:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"{self.journal} has offsets {self.start} to {self._head}, and not {offset}",
            )
        self.begin(await self._line_begin(offset), created=partition.listing.created)
        self.wanted = offset

    def begin(self, position: int, *, created: int = 0) -> None:
        """Begin at a place that is known to be the begin of a line.

        Args:
            created: of the journal that the place belongs to; 0: not known.
        """
        self.position = self.wanted = position
        self._task = self._gateway.tasks.spawn(self._pump(created), name="tail")

    async def _line_begin(self, offset: int) -> int:
        """The begin of the line that holds the byte at `offset`."""
        end, size = offset, 1
        while end > self.start:
            begin = max(self.start, end - size)
            reader = self._gateway.client.read(
                self.journal, begin, end_offset=end, on_jump="continue"
            )
            async with reader:
                found = await reader.read()
            newline = found.rfind(_NEWLINE)
            if newline >= 0 or len(found) < end - begin:  # or what comes before is gone
                return end - len(found) + newline + 1
            if offset - begin > self._line_max:
                raise KafkaError(ErrorCode.corrupt_message, f"{self.journal}: a line is too long")
            end, size = begin, min(max(_BACK_BYTES, size * 4), _AHEAD_BYTES)
        return end

    async def _pump(self, created: int) -> None:
        try:
            reader = self._gateway.client.read(
                self.journal, self.position, block=True, created=created
            )
            async with reader:
                while not await self._pump_to_jump(reader):
                    await self._jump(reader.offset)
        except GazetteError as err:
            self._error = err
        finally:
            self._stirred.set()

    async def _pump_to_jump(self, reader: Reader) -> bool:
        """Take what comes. Returns: False: content after it is gone."""
        try:
            async for piece in reader:
                # Of a replica, which may be new.
                self._head = max(self._head, reader.write_head)
                self._take(piece)
                while self._is_full():
                    self._room.clear()
                    limit_s = _TURN_S if self._ahead.waits(self) else None
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(limit_s):
                            await self._room.wait()
        except OffsetJump:
            return False
        return True

    def _take(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece if len(piece) >= _VIEW_BYTES else bytes(piece))
        self._pieces_bytes += len(piece)
        self._count()
        if _LINE_END.search(piece):
            self._has_more = True
            self._stirred.set()

    @property
    def _held(self) -> int:
        return len(self._content) - self._at + self._pieces_bytes

    def _count(self) -> None:
        """Note what is in memory."""
        self._ahead.note(self, len(self._content) + self._pieces_bytes)

    def _join(self) -> None:
        """Add lines that end in the pieces. Bytes of long lines are copied once, and of others little more."""
        if self._has_more:
            rest = memoryview(self._content)[self._at :]
            self._set(b"".join((rest, *self._pieces)))

    def _set(self, content: bytes) -> None:
        """Hold this, and no more."""
        self._content, self._at, self._lines_end = content, 0, content.rfind(_NEWLINE) + 1
        self._pieces, self._pieces_bytes, self._has_more = [], 0, False
        self._count()

    async def _jump(self, offset: int) -> None:
        """Content is gone: what follows begins at `offset`. The lines before it are given first."""
        self._join()
        self._set(self._content[self._at : self._lines_end])
        while self._content:
            self._room.clear()
            await self._room.wait()
        self.position = offset

    def look(self) -> None:
        """Ask again whether to read on."""
        self._room.set()

    def _is_full(self) -> bool:
        if self._held < _AHEAD_BYTES and not self._ahead.is_full:
            return False
        if self.available:
            self._ahead.end_turn(self)
            return True
        if self._held <= self._line_max:
            return self._held >= _AHEAD_BYTES and not self._ahead.may_grow(self)
        raise KafkaError(ErrorCode.corrupt_message, f"{self.journal}: a line is too long")

    @property
    def available(self) -> int:
        """Bytes of whole lines that are held."""
        self._join()
        return self._lines_end - self._at

    @property
    def head(self) -> int:
        """The end of the journal, as far as known."""
        return max(self._head, self.position + self._held)

    def check(self) -> None:
        """Raises: GazetteError: the read has failed, and all that it gave was taken."""
        if self._error is not None and not self.available:
            raise self._error

    def lines(self, size: int, *, one: bool) -> Block:
        """Whole lines from `position` on, which stay held until `advance`.

        Args:
            size: bytes at most.
            one: whether to give the first line even if it is larger.
        """
        at, end = self._at, self._lines_end
        if self._has_more and end - at < size:
            self._join()
            at, end = self._at, self._lines_end
        content = self._content
        if end - at > size:
            end = content.rfind(_NEWLINE, at, at + max(0, size)) + 1
            if not end:
                end = content.find(_NEWLINE, at) + 1 if one else at
        return Block(content, at, end)

    def advance(self, size: int) -> None:
        """Let go of the first bytes."""
        self._at += size
        if self._at == self._lines_end:
            rest = self._content[self._at :]
            self._content, self._at, self._lines_end = rest, 0, 0
            self._count()
        self.position += size
        self.wanted = self.position
        self.moved_at = self._ahead.now()
        self._room.set()

    def close(self) -> None:
        """End the read."""
        self.is_closed = True
        self._ahead.end_turn(self)
        self._set(b"")
        if self._task is not None:
            self._task.cancel()


def line_bytes_max(gateway: Gateway) -> int:
    """Bytes of the longest line that a record may become."""
    return gateway.config.record_bytes_max * _GROWTH + _LINE_REST_BYTES


async def log_start(gateway: Gateway, journal: str, head: int) -> int:
    """The first offset that can be read. Raises: GazetteError. Cancellation: safe."""
    with contextlib.suppress(StopIteration):
        page = await gateway.client.fragment_page(journal, page_limit=1)
        return next(iter(page.fragments)).fragment.begin
    return head


async def log_end(gateway: Gateway, journal: str) -> int:
    """The end of a journal. Raises: GazetteError. Cancellation: safe."""
    end, _ = await _known_end(gateway, journal)
    return end


async def _known_end(gateway: Gateway, journal: str) -> tuple[int, bool]:
    """The end of a journal, and whether its primary says so.

    While no primary answers, replicas do. One that is new may not know all of the journal: a consumer whose place lies after such
    an end must not learn that there is no such place, as it would start over.

    Raises: GazetteError. Cancellation: safe.
    """
    try:
        async with asyncio.timeout(_PRIMARY_S):
            return (await gateway.client.append(journal, b"")).end, True
    except (TimeoutError, StatusError):
        return await gateway.client.write_head(journal), False


_COMMITTED: Final = 1
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
class _Pieces:
    """Makes whole lines of what is read. A long line takes room, which it waits for.

    Args:
        room: for long lines.
        line_max: bytes of the longest.
    """

    def __init__(self, room: Budget, line_max: int) -> None:
        self._room = room
        self._line_max = line_max
        self._pieces: list[bytes] = []
        self._size = self._taken = 0

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Give room back."""
        self._room.give(self._taken)

    async def add(self, piece: bytes) -> bytes:
        """Whole lines, as far as there are some now. Raises: KafkaError: one is too long."""
        self._pieces.append(piece)
        self._size += len(piece)
        end = piece.rfind(_NEWLINE) + 1
        if end:
            content = b"".join(self._pieces)
            end += len(content) - len(piece)
            self._pieces, self._size = [content[end:]], len(content) - end
            return content[:end]
        if self._size > self._line_max:
            raise KafkaError(ErrorCode.corrupt_message, "a line is too long")
        if self._size > _AHEAD_BYTES and not self._taken:
            self._taken = await self._room.take(self._line_max)
        return b""


@final
class Offsets:
    """Answers ListOffsets and OffsetForLeaderEpoch."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._long = Budget(_TOTAL_BYTES)

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
        position = begin
        if begin == head:
            return best
        async with reader, _Pieces(self._long, line_bytes_max(self._gateway)) as pieces:
            while (last or best[0] < 0) and (chunk := await reader.read(_CHUNK_BYTES)):
                lines = await pieces.add(chunk)
                decode_lines(partition.form, Block(lines, 0, len(lines)), look)
                position += len(lines)
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
