"""The transactions of a shard against a model: whatever happens, what is promised of them holds."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gazette_platform.consumer.transaction import Action, TransactionLimits, Transactions
from gazette_platform.message.sequencer import Outcome

JOURNALS = ["out/one", "out/two"]


class Shard(RuleBasedStateMachine):
    """A primary whose store and journals take as long as they like.

    Messages are numbered. `queue` holds what was read, `dequeued` what is committed and not consumed.
    Each output journal is a FIFO: `published` has, in order, (transaction, whether it is its ACK).
    """

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.queue: deque[int] = deque()
        self.dequeued: deque[int] = deque()
        self.is_closed = self.is_finished = False
        self.open_since: float | None = None
        self.limits = TransactionLimits()
        self.transaction = 0
        self.publishes: set[str] = set()
        self.published: dict[str, list[tuple[int, bool]]] = {journal: [] for journal in JOURNALS}
        self.consumed: list[list[int]] = [[]]
        self.committing = False
        self.acks: list[str] = []
        self.told_consumed = 0
        self.machine = Transactions(self.now, {}, [])

    def decide(self) -> Action:
        return self.machine.decide(
            self.now,
            has_message=bool(self.dequeued),
            has_entry=bool(self.queue),
            has_pending=False,
            is_closed=self.is_closed and not self.queue,
        )

    @precondition(lambda self: not self.is_closed)
    @rule(count=st.integers(1, 3))
    def read(self, count):
        for _ in range(count):
            self.number += 1
            self.queue.append(self.number)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 4.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @precondition(lambda self: not self.is_closed)
    @rule()
    def close(self):
        self.is_closed = True

    @precondition(lambda self: self.committing)
    @rule()
    def store_commits(self):
        self.committing = False
        self._tell(self.machine.committed(self.now))

    @precondition(lambda self: self.acks and not self.committing)
    @rule(data=st.data())
    def ack_is_appended(self, data):
        journal = data.draw(st.sampled_from(self.acks))
        self.acks.remove(journal)
        self._tell(self.machine.acknowledged(self.now, journal, 1))

    def _tell(self, completed):
        is_done = not self.committing and not self.acks
        assert (completed is not None) is is_done
        if completed is not None:
            self.told_consumed += completed.consumed
            assert all(seconds >= 0 for seconds in completed.times.phases_s().values())

    @precondition(lambda self: not self.is_finished)
    @rule(
        limits=st.builds(
            TransactionLimits, min_s=st.sampled_from([0.0, 1.0]), max_s=st.sampled_from([0.5, 2.0])
        ),
        outputs=st.sets(st.sampled_from(JOURNALS)),
        defers=st.booleans(),
    )
    def step(self, limits, outputs, defers):
        match self.decide():
            case Action.BEGIN:
                self.machine.begin(self.now, limits)
                self.limits, self.open_since = limits, self.now
            case Action.CONSUME:
                self._consume(outputs, defers=defers)
            case Action.TICK:
                self.machine.tick(self.now)
            case Action.TAKE:
                self.dequeued.append(self.queue.popleft())
                self.machine.took(Outcome.OUTSIDE_COMMIT, "a/one", self.dequeued[-1])
            case Action.COMMIT:
                self._commit()
            case Action.FINISH:
                assert self.is_closed
                assert not self.queue
                assert not self.dequeued
                assert not self.consumed[-1]
                self.is_finished = True
            case Action.WAIT:
                self._check_wait()

    def _consume(self, outputs, *, defers):
        longest_s = max(self.limits.min_s, self.limits.max_s)
        assert not self.consumed[-1] or self.now < self.open_since + longest_s
        if defers and self.consumed[-1]:
            self.machine.consumed(0, deferred=True)
            return
        for journal in outputs:
            self.published[journal].append((self.transaction, False))
            self.publishes.add(journal)
        self.consumed[-1].append(self.dequeued.popleft())
        self.machine.consumed()

    def _commit(self):
        assert self.consumed[-1], "a transaction consumes something"
        assert not self.committing
        assert not self.acks, "the prior one is done before the next one commits"
        assert self.now >= self.open_since + self.limits.min_s
        self.machine.preparing(self.now)
        self.committing, self.acks = True, sorted(self.publishes)
        for journal in self.acks:
            self.published[journal].append((self.transaction, True))
        self.machine.prepared(self.now, {}, self.acks)
        self.transaction += 1
        self.publishes, self.open_since = set(), None
        self.consumed.append([])

    def _check_wait(self):
        """Some event will wake it."""
        assert (
            self.committing
            or self.acks
            or self.machine.wakes_at is not None
            or (self.machine.may_take(is_closed=self.is_closed) and not self.queue)
        )

    @invariant()
    def messages_are_consumed_in_order_and_once(self):
        flat = [number for transaction in self.consumed for number in transaction]
        assert flat == list(range(1, len(flat) + 1))

    @invariant()
    def acks_are_before_messages_of_later_transactions(self):
        for entries in self.published.values():
            numbers = [transaction for transaction, _ in entries]
            assert numbers == sorted(numbers)
            for (number, is_ack), (following, _) in pairwise(entries):
                assert (following != number) is is_ack

    @invariant()
    def what_is_told_is_what_was_consumed(self):
        done = self.transaction - (self.committing or bool(self.acks))
        assert self.told_consumed == sum(map(len, self.consumed[:done]))


TestShard = Shard.TestCase
TestShard.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
