"""The transactions of a shard's primary: what to do next. Pure.

Two transactions exist at most. The *open* one consumes; the *prior* one, which was prepared before it,
commits and then appends its ACKs: its *barrier*. The open one begins with its first consumed
message, and starts to commit once the barrier is down. So a slow commit makes the next transaction
larger, and never stops the reading before `max_s`.

    first that holds                                 then
    -----------------------------------------------  ------------------------------------------
    the timer is due, and something is consumed      TICK
    else a message waits, which may be consumed      BEGIN if there is no open transaction, or CONSUME
    else an entry waits, and may be read             TAKE
    else:
        the barrier is up                            WAIT
        nothing is consumed, the queue is closed     FINISH
        nothing is consumed                          WAIT
        the shortest time has not passed             WAIT
        ACKs are awaited: see below                  WAIT
        none of these                                COMMIT

ACKs are awaited while sequences are pending that began since the last checkpoint, entries may be read,
and the longest time has not passed. Reading stops when that has passed, or a message is deferred.

    BEGIN    let the application begin, then `begin`
    CONSUME  let it consume the message, then `consumed`; step the sequencer unless it was deferred.
             Or let it consume a batch: all that is got by doing CONSUME and TAKE while time stands still
    TICK     `tick`
    TAKE     queue an entry at the sequencer, then `took`
    WAIT     until an entry comes (if `may_take`), `wakes_at`, or the barrier goes down
    COMMIT   `preparing`; finalize, take the sequencer's checkpoint, build ACKs, start the commit of the
             store; then queue each ACK to be appended after the commit, and call `prepared`, before
             anything else is published
    FINISH   restore a checkpoint and read again

An ACK of the prior transaction takes its place in the FIFO of its journal before any message of the
next one. If such a message came first, the ACK, whose clock is smaller, would take it back.

Source: rules and their order are those of Gazette's consumer; its clock and channels are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from gazette_platform.errors import ApplicationFailed
from gazette_platform.message.sequencer import Outcome, ProducerState, SequencerCheckpoint
from gazette_platform.message.uuid import Flags

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.message import Envelope, Sequencer


# ------------------------------------------------------------------ transactions

_NO_OPS: Final = frozenset(
    {
        Outcome.OUTSIDE_ALREADY_ACKED,
        Outcome.CONTINUE_ALREADY_ACKED,
        Outcome.CONTINUE_RING_CLOCK_LARGER,
        Outcome.ACK_ROLLBACK,
    }
)
"""What moves a journal's offset, and leaves nothing to consume now or later."""


class Action(Enum):
    """What to do next; see the module."""

    BEGIN = auto()
    CONSUME = auto()
    TICK = auto()
    TAKE = auto()
    WAIT = auto()
    COMMIT = auto()
    FINISH = auto()


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """How long a transaction takes messages in, in seconds."""

    min_s: float = 0.0
    max_s: float = 1.0
    waits_for_acks: bool = True

    @classmethod
    def of(cls, spec: ShardSpec) -> TransactionLimits:
        """As a spec says now: a changed one holds from the next transaction on."""
        return cls(
            spec.min_txn_duration_ns / 1e9,
            spec.max_txn_duration_ns / 1e9,
            not spec.disable_wait_for_ack,
        )


@dataclass(slots=True)
class TransactionTimes:
    """When a transaction passed from one phase to the next, in seconds of the caller's clock."""

    before: float
    """The prior one was prepared, or reading began."""
    begun: float
    stalled: float | None = None
    """It might read no more, and had to wait for the prior one."""
    preparing: float = 0.0
    prepared: float = 0.0
    committed: float = 0.0
    acknowledged: float = 0.0

    def phases_s(self) -> dict[tuple[str, str], float]:
        """Seconds by (type, phase), in the names of Gazette's metrics."""
        stalled = self.preparing if self.stalled is None else self.stalled
        return {
            ("sync", "10-not-running"): self.begun - self.before,
            ("sync", "20-consuming"): stalled - self.begun,
            ("sync", "30-stalled"): self.preparing - stalled,
            ("sync", "40-preparing"): self.prepared - self.preparing,
            ("async", "50-committing"): self.committed - self.prepared,
            ("async", "60-acknowledging"): self.acknowledged - self.committed,
        }


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """What is true once a barrier is down: for all that wait for progress."""

    read_through: Mapping[str, int]
    """By source, with what was read since and had nothing to consume."""
    publish_at: Mapping[str, int]
    """By output journal, end of the append of its ACK."""
    consumed: int
    times: TransactionTimes | None
    """None of the ACKs that a restored checkpoint asked for."""


@dataclass(slots=True)
class _Open:
    limits: TransactionLimits
    times: TransactionTimes
    consumed: int = 0
    is_min_pending: bool = True
    is_max_pending: bool = True
    may_read: bool = True

    def wakes_at(self) -> float | None:
        """When the timer is due, or None once it has done all that it was set for."""
        if self.is_min_pending:
            return self.times.begun + self.limits.min_s
        # A longest time below the shortest would end the reading before a commit is allowed.
        if self.is_max_pending:
            return self.times.begun + max(self.limits.min_s, self.limits.max_s)
        return None


@dataclass(slots=True)
class _Barrier:
    read_through: dict[str, int]
    acks: set[str]
    consumed: int
    times: TransactionTimes | None
    is_committed: bool = False
    publish_at: dict[str, int] = field(default_factory=dict)


@final
class Transactions:
    """See the module. Of one run of a primary, from the restore of a checkpoint on.

    Args:
        now_s: of the caller's monotonic clock.
        read_through: of the checkpoint that was restored.
        acks: journals to which the ACKs of that checkpoint are being appended again: the first barrier.
    """

    def __init__(
        self, now_s: float, read_through: Mapping[str, int], acks: Iterable[str] = ()
    ) -> None:
        self._open: _Open | None = None
        self._before = now_s
        self._preparing: _Open | None = None
        self._barrier: _Barrier | None = _Barrier(
            dict(read_through), set(acks), 0, None, is_committed=True
        )
        self._lower()  # without ACKs there is nothing to wait for

    # ---------------------------------------------------------------------------- deciding

    @property
    def is_barrier_up(self) -> bool:
        """Whether the prior transaction is not done yet."""
        return self._barrier is not None

    @property
    def wakes_at(self) -> float | None:
        """When to call `decide` again, whatever happens; None: nothing is due.

        Not before the first message is consumed, for which the transaction was begun: if the longest
        time passed first, reading would stop, and there would be nothing to commit.
        """
        txn = self._open
        return txn.wakes_at() if txn is not None and txn.consumed else None

    def may_take(self, *, is_closed: bool) -> bool:
        """Whether entries may be taken from the queue now."""
        return not is_closed and (self._open is None or self._open.may_read)

    def decide(
        self,
        now_s: float,
        *,
        has_message: bool,
        has_entry: bool,
        has_pending: bool,
        is_closed: bool,
    ) -> Action:
        """What to do next.

        Args:
            now_s: of the caller's monotonic clock.
            has_message: whether the sequencer has dequeued one.
            has_entry: whether the queue has one.
            has_pending: whether the sequencer has sequences that began since its last checkpoint.
            is_closed: whether the queue is closed, and empty.
        """
        txn = self._open
        # First of all, so that a busy source cannot hold a transaction open beyond its longest time.
        wakes_at = self.wakes_at
        if wakes_at is not None and now_s >= wakes_at:
            return Action.TICK
        if has_message and (txn is None or txn.may_read):
            return Action.BEGIN if txn is None else Action.CONSUME
        if has_entry and self.may_take(is_closed=is_closed):
            return Action.TAKE
        # At most one commit is under way: a store orders its commits, and a checkpoint names ACKs of one
        # transaction only.
        if self.is_barrier_up:
            return Action.WAIT
        if txn is None or not txn.consumed:
            return Action.FINISH if is_closed else Action.WAIT
        # A commit in the middle of others' transactions is right, but then their messages are read twice:
        # it is cheaper to wait for their ACKs, which mostly come within milliseconds.
        awaits_acks = (
            txn.limits.waits_for_acks
            and self.may_take(is_closed=is_closed)
            and txn.is_max_pending
            and has_pending
        )
        return Action.WAIT if txn.is_min_pending or awaits_acks else Action.COMMIT

    # ------------------------------------------------------------------- the open transaction

    def begin(self, now_s: float, limits: TransactionLimits) -> None:
        """The application has begun one: its time runs from here."""
        assert self._open is None
        assert self._preparing is None
        self._open = _Open(limits, TransactionTimes(self._before, now_s))

    def consumed(self, count: int = 1, *, deferred: bool = False) -> None:
        """The application has consumed messages, and left one after them to the next transaction or not.

        Raises: ApplicationFailed: it defers the first one, which the next transaction would do as well.
        """
        txn = self._open
        assert txn is not None
        assert txn.may_read
        txn.consumed += count
        if not deferred:
            return
        if not txn.consumed:
            raise ApplicationFailed(
                "the application deferred the first message of a transaction to the next one, which "
                "would begin with it as well; consume at least one before deferring"
            )
        # The deferred message is the next transaction's first one; nothing after it may overtake it.
        txn.may_read = False

    def tick(self, now_s: float) -> None:
        """The timer was due."""
        txn = self._open
        assert txn is not None
        if txn.is_min_pending:
            txn.is_min_pending = False
            return
        assert txn.is_max_pending
        # Reading ends even if the prior commit still holds this one up: what is read has to fit in memory.
        txn.is_max_pending = False
        txn.may_read = False
        if self.is_barrier_up:
            txn.times.stalled = now_s

    def took(self, outcome: Outcome, journal: str, end: int) -> CompletedTransaction | None:
        """An entry was queued at the sequencer.

        What leaves nothing to consume moves the progress all the same, or a call that waits for the
        offset after it would wait until the next message. It is reported with the prior transaction, and
        is in none of the checkpoints: whoever restores one reads it again.

        Args:
            journal: of the entry.
            end: offset after it.

        Returns: progress to report now, or None.
        """
        if self._open is not None or outcome not in _NO_OPS:
            return None
        # Progress is reported in order: that of the prior transaction is not complete yet.
        if self._barrier is not None:
            through = self._barrier.read_through
            through[journal] = max(end, through.get(journal, 0))
            return None
        return CompletedTransaction({journal: end}, {}, 0, None)

    # ------------------------------------------------------------------------- its commit

    def preparing(self, now_s: float) -> None:
        """The application is asked to finalize: nothing is consumed any more."""
        assert self._open is not None
        assert not self.is_barrier_up
        self._open.times.preparing = now_s
        # Neither open nor prior: what the application publishes now has no place, as ACKs are being built.
        self._preparing, self._open = self._open, None

    def prepared(self, now_s: float, read_through: Mapping[str, int], acks: Iterable[str]) -> None:
        """The store commits, and ACKs are queued after the commit. The next transaction may begin.

        Args:
            read_through: of the checkpoint that is being committed.
            acks: journals that an ACK was queued for.
        """
        txn = self._preparing
        assert txn is not None
        txn.times.prepared = self._before = now_s
        self._preparing = None
        self._barrier = _Barrier(dict(read_through), set(acks), txn.consumed, txn.times)

    def committed(self, now_s: float) -> CompletedTransaction | None:
        """The store has committed the prior transaction. Returns: its completion, if it has no ACKs."""
        barrier = self._barrier
        assert barrier is not None
        assert not barrier.is_committed
        # Only now may readers see the transaction: an ACK before the commit would publish what a crash
        # makes the shard publish again under other clocks. Readers would count both.
        barrier.is_committed = True
        if barrier.times is not None:
            barrier.times.committed = barrier.times.acknowledged = now_s
        return self._lower()

    def acknowledged(
        self, now_s: float, journal: str, end: int | None
    ) -> CompletedTransaction | None:
        """An ACK of the prior transaction was appended.

        Args:
            end: offset after it; None: the journal does not exist any more, which only the ACKs of a
                restored checkpoint are forgiven.

        Returns: the completion of the prior transaction, if this was the last one.
        """
        barrier = self._barrier
        assert barrier is not None
        assert barrier.is_committed, "an ACK is appended only after its commit"
        barrier.acks.remove(journal)
        if end is not None:
            barrier.publish_at[journal] = end
        if barrier.times is not None:
            barrier.times.acknowledged = now_s
        return self._lower()

    def _lower(self) -> CompletedTransaction | None:
        """Take the barrier down, if all that it waits for is done."""
        barrier = self._barrier
        if barrier is None or not barrier.is_committed or barrier.acks:
            return None
        self._barrier = None
        return CompletedTransaction(
            barrier.read_through, barrier.publish_at, barrier.consumed, barrier.times
        )


# ------------------------------------------------------------------ progress


@final
class Progress:
    """Offsets that a shard has read through and published at, as of its last completed transaction.

    Attributes:
        read_through: by source.
        publish_at: by journal, end of the last ACK, of those written since the shard was assigned.

    Args:
        read_through: of the checkpoint that was restored.
    """

    def __init__(self, read_through: Mapping[str, int] | None = None) -> None:
        self.read_through: dict[str, int] = dict(read_through or {})
        self.publish_at: dict[str, int] = {}

    def advance(self, completed: CompletedTransaction) -> None:
        """Take note of a transaction that is done. Offsets never go back."""
        for known, new in (
            (self.read_through, completed.read_through),
            (self.publish_at, completed.publish_at),
        ):
            for journal, offset in new.items():
                # A journal that was read again after a restore must not take back what a caller was promised.
                known[journal] = max(offset, known.get(journal, 0))

    def has_reached(self, wanted: Mapping[str, int], spec: ShardSpec) -> bool:
        """Whether all that lies before these offsets is in completed transactions.

        Journals that the shard does not read are not waited for. What lies before the least offset of a
        source is never read, so that it is reached from the start.
        """
        for journal, offset in wanted.items():
            source = spec.source_of(journal)
            if source is None or offset <= source.min_offset:
                continue
            if self.read_through.get(journal, 0) < offset:
                return False
        return True


# ------------------------------------------------------------------ batches of committed messages


BATCH_SIZE: Final = 1024
"""Messages that are taken at a time: of simple ones some 10 ms of work, for which all else waits."""

_BATCH_BYTES_MAX: Final = 8 << 20
"""Bytes after which no more messages are taken, so that a batch of large ones does not hold much memory."""

M = TypeVar("M")
_CONTINUE: Final = int(Flags.CONTINUE_TXN)


@final
class Backlog(Generic[M]):
    """Committed messages that are about to be consumed, in batches. Pure.

    A sequencer gives one message at a time. A backlog takes many from it, and counts each as used at once,
    so that the next may be taken; until it really is used the backlog remembers it. A checkpoint therefore
    has to be asked of the backlog: what is left over counts as not used there. That is the case when a
    message is deferred to the next transaction, or a transaction's time ends in the middle of a batch.

    What is left over is consumed first by the next transaction. Whoever restores the checkpoint reads it
    again: each journal from the end of the first commit with a part left, and each producer from its
    first message that is. What else lies behind is known to the checkpoint, and is dropped when it comes again.

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
        # By bytes as well as by number: a thousand messages may have a megabyte each.
        left = _BATCH_BYTES_MAX - sum(each.end - each.begin for each in messages)
        while len(messages) < size and left > 0:
            if (message := sequencer.dequeued) is not None:
                messages.append(message)
                left -= message.end - message.begin
                sequencer.step()
            # What a commit replays was written before the entries that are queued, and is consumed before them.
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
    # Cheaper than to keep a checkpoint for each message: it takes back what the sequencer has counted.
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
            # Those before have smaller clocks, and were used. A producer's clocks rise, so the clock just before this
            # one stands for theirs: none lies between.
            producers[key] = ProducerState(
                journal, producer, clock - 1, begin if is_in_span else -1
            )
    return SequencerCheckpoint(offsets=offsets, producers=tuple(producers.values()))
