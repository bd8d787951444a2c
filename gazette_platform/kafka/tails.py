"""Reads of journals that go on from one Fetch to the next, and what became of the transactions in them.

A consumer asks for what follows its last answer, so a read is kept open between them, at the place where it ended. It reads
ahead, up to a bound for each partition and one for the process; a poll at the end opens nothing.

The verdict on a message of a transaction is the next acknowledgement of its producer after it: committed if its clock is not
smaller, else rolled back. It is found by looking ahead of the consumer, so no gateway has to keep anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, final

from kio.schema.errors import ErrorCode

from gazette_platform.errors import DataError, GazetteError, OffsetJump, StatusError
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.records import foreign_uuid, has_marks
from gazette_platform.message.uuid import Flags, parse_uuid

if TYPE_CHECKING:
    from gazette_platform.client.read.reader import Reader
    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.topics import Partition


_AHEAD_BYTES: Final = 2 << 20
_TOTAL_BYTES: Final = 256 << 20
_BACK_BYTES: Final = 64 << 10
_NEWLINE: Final = b"\n"
# A line may have this many bytes for one of a record: JSON writes some characters as \u0001.
_GROWTH: Final = 6
_LINE_REST_BYTES: Final = 1 << 10
_PRIMARY_S: Final = 3.0


@final
class ReadAhead:
    """Bytes that all tails of the process hold."""

    def __init__(self) -> None:
        self.held = 0

    @property
    def is_full(self) -> bool:
        """Whether tails that hold something read no more."""
        return self.held >= _TOTAL_BYTES


@final
class Tail:
    """A read of a journal, from the begin of a line on.

    Attributes:
        position: offset of the first byte that is held.
        wanted: offset that the consumer asks for next: it may lie in the first line, or before content that is gone.
        start: of the journal, when the tail was opened: no earlier content can be read.
        used_at: when it was last asked, for its owner.

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
        self.used_at = 0.0
        self._gateway = gateway
        self._ahead = ahead
        self._stirred = stirred
        self._pieces: list[bytes] = []
        self._held = 0  # bytes of all pieces
        self._lines_end = 0  # up to where they are whole lines
        self._head = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: GazetteError | None = None
        self._line_max = gateway.config.record_bytes_max * _GROWTH + _LINE_REST_BYTES

    async def open(self, partition: Partition, offset: int) -> None:
        """Begin at the record that holds the byte at `offset`, or at its end if that is the end of one before.

        Raises: KafkaError: there is no such offset; GazetteError.
        """
        self._head = await log_end(self._gateway, self.journal)
        self.start = await log_start(self._gateway, self.journal, self._head)
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
        size = 1
        while offset > self.start:
            begin = max(self.start, offset - size)
            reader = self._gateway.client.read(
                self.journal, begin, end_offset=offset, on_jump="continue"
            )
            async with reader:
                found = await reader.read()
            newline = found.rfind(_NEWLINE)
            if newline >= 0:
                return offset - len(found) + newline + 1
            if begin == self.start:
                return offset - len(found)
            if size > self._line_max:
                raise KafkaError(ErrorCode.corrupt_message, f"{self.journal}: a line is too long")
            size = max(_BACK_BYTES, size * 4)
        return offset

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
                    await self._room.wait()
        except OffsetJump:
            return False
        return True

    def _take(self, piece: bytes | memoryview) -> None:
        content = bytes(piece)
        newline = content.rfind(_NEWLINE)
        if newline >= 0:
            self._lines_end = self._held + newline + 1
            self._stirred.set()
        self._pieces.append(content)
        self._hold(self._held + len(content))

    def _hold(self, size: int) -> None:
        self._ahead.held += size - self._held
        self._held = size

    def _whole(self) -> bytes:
        """All that is held, as one piece."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    async def _jump(self, offset: int) -> None:
        """Content is gone: what follows begins at `offset`. The lines before it are given first."""
        self._pieces = [self._whole()[: self._lines_end]]
        self._hold(self._lines_end)
        while self._lines_end:
            self._room.clear()
            await self._room.wait()
        self.position = offset

    def _is_full(self) -> bool:
        if not self._lines_end:
            if self._held <= self._line_max:
                return False
            raise KafkaError(ErrorCode.corrupt_message, f"{self.journal}: a line is too long")
        return self._held >= _AHEAD_BYTES or self._ahead.is_full

    @property
    def available(self) -> int:
        """Bytes of whole lines that are held."""
        return self._lines_end

    @property
    def head(self) -> int:
        """The end of the journal, as far as known."""
        return max(self._head, self.position + self._held)

    def check(self) -> None:
        """Raises: GazetteError: the read has failed, and all that it gave was taken."""
        if self._error is not None and not self._lines_end:
            raise self._error

    def lines(self, size: int, *, one: bool) -> bytes:
        """Whole lines from `position` on, which stay held until `advance`.

        Args:
            size: bytes at most.
            one: whether to give the first line even if it is larger.
        """
        end, content = self._lines_end, self._whole()
        if end > size:
            end = content.rfind(_NEWLINE, 0, max(0, size)) + 1
            if not end and one:
                end = content.find(_NEWLINE) + 1
        return content[:end]

    def advance(self, size: int) -> None:
        """Let go of the first bytes."""
        self._drop(size)
        self.position += size
        self.wanted = self.position

    def _drop(self, size: int) -> None:
        self._pieces = [self._whole()[size:]]
        self._lines_end = max(0, self._lines_end - size)
        self._hold(self._held - size)
        self._room.set()

    def close(self) -> None:
        """End the read."""
        self._pieces = []
        self._lines_end = 0
        self._hold(0)
        if self._task is not None:
            self._task.cancel()


async def log_start(gateway: Gateway, journal: str, head: int) -> int:
    """The first offset that can be read. Raises: GazetteError. Cancellation: safe."""
    with contextlib.suppress(StopIteration):
        page = await gateway.client.fragment_page(journal, page_limit=1)
        return next(iter(page.fragments)).fragment.begin
    return head


async def log_end(gateway: Gateway, journal: str) -> int:
    """The end of a journal, as its primary knows it; a replica that is new may not know all of it yet.

    A consumer that was given such an end would start over, as its place lies after it. While no primary answers, replicas do.

    Raises: GazetteError. Cancellation: safe.
    """
    try:
        async with asyncio.timeout(_PRIMARY_S):
            return (await gateway.client.append(journal, b"")).end
    except (TimeoutError, StatusError):
        return await gateway.client.write_head(journal)


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

    async def decided(self, block: bytes) -> int:
        """How many bytes of lines at the consumer's place are decided. Raises: GazetteError."""
        if not self._is_open:
            self._ahead.begin(self._behind.position)
            self._is_open = True
        self._forget(self._behind.position)
        end = self._behind.position + len(block)
        while self._ahead.position < end or self._first_open(end) < end:
            self._ahead.check()
            lines = self._ahead.lines(_STEP_BYTES, one=True)
            if not lines:
                break
            for message in _messages(lines, self._ahead.position):
                self._note(message)
            self._ahead.advance(len(lines))
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
        """As of `records.Verdicts`."""
        for at, acknowledged in self._acks.get(producer, ()):
            if at > offset:
                return acknowledged >= clock
        return None

    def close(self) -> None:
        """End the read."""
        self._ahead.close()


def _messages(lines: bytes, position: int) -> list[_Message]:
    """The messages of transactions among lines."""
    found: list[_Message] = []
    if not has_marks(lines):
        return found
    for line in lines.split(b"\n")[:-1]:
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
