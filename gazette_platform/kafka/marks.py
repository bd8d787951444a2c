"""What became of transactions in a journal: their ends, found by looking ahead of a consumer.

The verdict on a message of a transaction is the next acknowledgement of its producer after it: committed if its clock is not
smaller, else rolled back. So no gateway has to keep anything.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.errors import DataError
from gazette_platform.kafka.records import foreign_uuid
from gazette_platform.message.uuid import Flags, parse_uuid

if TYPE_CHECKING:
    from gazette_platform.kafka.tails import Tail

_MARK: Final = re.compile(rb'"uuid"\s*:\s*"[0-9a-fA-F-]{21}0[12]-')
_STEP_BYTES: Final = 1 << 20


def has_marks(block: bytes) -> bool:
    """Whether lines may belong to transactions."""
    return _MARK.search(block) is not None


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
