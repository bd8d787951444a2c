"""A transaction that is cut inside of an acknowledged sequence, with a real sequencer.

The rest is of the next transaction, and each checkpoint describes the very middle: who restores it
gets the ACK again, asks for a replay, and consumes what is missing, once.
"""

from __future__ import annotations

from collections import deque

import pytest

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.transaction import (
    Action,
    Backlog,
    TransactionLimits,
    Transactions,
)
from gazette_platform.message import Envelope, Flags, Sequencer, UuidParts

PRODUCER = bytes.fromhex("010203040506")
J = "a/one"


def message(number: int, flags: Flags) -> Envelope[int]:
    return Envelope(
        J, number * 10, number * 10 + 10, UuidParts(PRODUCER, number << 4, flags), number
    )


JOURNAL = [
    *(message(number, Flags.CONTINUE_TXN) for number in (1, 2, 3, 4)),
    message(5, Flags.ACK_TXN),
]


class Primary:
    """A primary that reads JOURNAL, and commits at once."""

    def __init__(
        self, checkpoint: Checkpoint, *, cut_after: int | None, by_deferring: bool
    ) -> None:
        self.now = 0.0
        self.sequencer: Sequencer[int] = Sequencer(checkpoint=checkpoint.read)
        self.machine = Transactions(self.now, checkpoint.read_through)
        begin = checkpoint.read_through.get(J, 0)
        self.queue = [envelope for envelope in JOURNAL if envelope.begin >= begin]
        self.cut_after = cut_after
        self.by_deferring = by_deferring
        self.consumed: list[int] = []
        self.offered: set[int] = set()

    def run(self) -> Checkpoint | None:
        """One transaction. Returns: its checkpoint, or None at the end of the journal."""
        count = 0
        while True:
            self._replay()
            match self.machine.decide(
                self.now,
                has_message=self.sequencer.dequeued is not None,
                has_entry=bool(self.queue),
                has_pending=self.sequencer.has_pending,
                is_closed=not self.queue,
            ):
                case Action.BEGIN:
                    self.machine.begin(self.now, TransactionLimits(min_s=0.0, max_s=1.0))
                case Action.CONSUME if count == self.cut_after and self.by_deferring:
                    self.machine.consumed(0, deferred=True)
                case Action.CONSUME:
                    self.consumed.append(self.sequencer.dequeued.message)
                    self.sequencer.step()
                    self.machine.consumed()
                    count += 1
                    if count == self.cut_after and not self.by_deferring:
                        self.now += 1.0
                case Action.TICK:
                    self.machine.tick(self.now)
                case Action.TAKE:
                    envelope = self.queue.pop(0)
                    self.machine.took(self.sequencer.queue(envelope), J, envelope.end)
                case Action.COMMIT:
                    checkpoint = Checkpoint(self.sequencer.checkpoint())
                    self.machine.preparing(self.now)
                    self.machine.prepared(self.now, checkpoint.read_through, [])
                    assert self.machine.committed(self.now).consumed == count
                    return Checkpoint.decode(checkpoint.encode())
                case Action.FINISH:
                    return None

    def _replay(self) -> None:
        """Offer what is asked for, up to the first that is to be used."""
        wanted = self.sequencer.replay
        while wanted is not None and self.sequencer.dequeued is None:
            rest = [
                envelope
                for envelope in JOURNAL
                if wanted.begin <= envelope.begin < wanted.end
                and envelope.message not in self.offered
            ]
            if not rest:
                self.sequencer.end_replay()
                return
            self.offered.add(rest[0].message)
            self.sequencer.offer(rest[0])


@pytest.mark.parametrize("by_deferring", [False, True])
@pytest.mark.parametrize("cut_after", [1, 2, 3, 4])
def test_ct5_ct6_rest_of_a_cut_sequence_is_of_the_next_transaction(cut_after, by_deferring):
    primary = Primary(Checkpoint(), cut_after=cut_after, by_deferring=by_deferring)
    first = primary.run()
    assert primary.consumed == [1, 2, 3, 4, 5][:cut_after]
    # Not behind the ACK, which is to come again.
    assert first.read_through == {J: 50}
    [producer] = first.read.producers
    assert producer.last_ack == cut_after << 4
    while primary.run() is not None:
        pass
    assert primary.consumed == [1, 2, 3, 4, 5]

    # Another process goes on from the checkpoint of the first transaction.
    other = Primary(first, cut_after=None, by_deferring=False)
    last = other.run()
    assert other.consumed == [1, 2, 3, 4, 5][cut_after:]
    assert last.read_through == {J: 60}


@pytest.mark.parametrize("flags", [Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN])
def test_what_has_no_clock_is_read_again_if_it_is_left_over(flags):
    # Without a clock it is of no sequence, whatever its flags say.
    backlog: Backlog[int] = Backlog(Sequencer(checkpoint=Checkpoint().read))
    backlog.gather(
        deque(Envelope(J, at, at + 10, UuidParts(PRODUCER, 0, flags), at) for at in (0, 10))
    )
    assert [each.message for each in backlog.messages] == [0, 10]
    backlog.used(1)
    assert backlog.checkpoint().offsets == {J: 10}
    backlog.used(1)
    assert backlog.checkpoint().offsets == {J: 20}
