"""Committed messages that are about to be consumed, in batches. Pure.

A sequencer gives one message at a time. A backlog takes many from it, and counts each as used at once,
so that the next may be taken; until it really is used the backlog remembers it. A checkpoint therefore
has to be asked of the backlog: what is left over counts as not used there. That is the case when a
message is deferred to the next transaction, or a transaction's time ends in the middle of a batch.

What is left over is consumed first by the next transaction. Whoever restores the checkpoint reads it
again: each journal from the end of the first commit with a part left, and each producer from its
first message that is. What else lies behind is known to the checkpoint, and is dropped when it comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint
from gazette_platform.message.uuid import Flags

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Sequence

    from gazette_platform.message import Envelope, Sequencer

__all__ = ["BATCH_SIZE", "Backlog", "count_as_unused"]

BATCH_SIZE: Final = 1024
"""Messages that are taken at a time: of simple ones some 10 ms of work, for which all else waits."""

_BATCH_BYTES_MAX: Final = 8 << 20
"""Bytes after which no more messages are taken, so that a batch of large ones does not hold much memory."""

M = TypeVar("M")
_CONTINUE: Final = int(Flags.CONTINUE_TXN)


@final
class Backlog(Generic[M]):
    """See the module.

    Attributes:
        messages: to be consumed, in this order.

    Args:
        sequencer: queued messages come from it; no other code steps it.
        size: about how many messages to take at a time.
    """

    def __init__(self, sequencer: Sequencer[M], *, size: int = BATCH_SIZE) -> None:
        self.messages: list[Envelope[M]] = []
        self._sequencer = sequencer
        self._size = size

    @property
    def has_message(self) -> bool:
        """Whether a message may be consumed now."""
        return bool(self.messages) or self._sequencer.dequeued is not None

    def gather(self, entries: deque[Envelope[M]]) -> None:
        """Take what is committed, and what `entries` commit, which are queued as far as need be.

        Ends where a replay is to be read first.
        """
        sequencer, messages, size = self._sequencer, self.messages, self._size
        left = _BATCH_BYTES_MAX - sum(each.end - each.begin for each in messages)
        while len(messages) < size and left > 0:
            if (message := sequencer.dequeued) is not None:
                messages.append(message)
                left -= message.end - message.begin
                sequencer.step()
            elif entries and sequencer.replay is None:
                sequencer.queue(entries.popleft())
            else:
                return

    def offer(self, envelopes: Iterable[Envelope[M]]) -> None:
        """Take in the next messages of a replay that the sequencer asks for.

        Raises: DataError: they are not of its range.
        """
        sequencer, messages = self._sequencer, self.messages
        for envelope in envelopes:
            if sequencer.offer(envelope):
                messages.append(envelope)
                sequencer.step()

    def used(self, count: int) -> None:
        """The first messages were consumed."""
        # A new list: the application may have kept the one that it was given.
        self.messages = self.messages[count:]

    def checkpoint(self, *, now: int | None = None) -> SequencerCheckpoint:
        """Where to continue after what was used. See `Sequencer.checkpoint` for `now`."""
        return count_as_unused(self._sequencer.checkpoint(now=now), self.messages)


def count_as_unused(
    checkpoint: SequencerCheckpoint, messages: Sequence[Envelope[M]]
) -> SequencerCheckpoint:
    """A checkpoint as it would be if messages had not been used, which were the last ones to be.

    Args:
        checkpoint: as they were used.
        messages: in the order in which a sequencer gave them.
    """
    if not messages:
        return checkpoint
    offsets = dict(checkpoint.offsets)
    producers = {(known.journal, known.producer): known for known in checkpoint.producers}
    begun: set[tuple[str, bytes]] = set()
    ended: set[str] = set()
    for journal, begin, _, (producer, clock, flags), _ in messages:
        is_in_span = clock != 0 and flags == _CONTINUE
        # Messages of a commit come in a row, and its last one is what lies furthest behind.
        if not is_in_span and journal not in ended:
            ended.add(journal)
            offsets[journal] = begin
        key = journal, producer
        if clock and key not in begun:
            begun.add(key)
            # Those before have smaller clocks, and were used.
            producers[key] = ProducerState(
                journal, producer, clock - 1, begin if is_in_span else -1
            )
    return SequencerCheckpoint(offsets=offsets, producers=tuple(producers.values()))
