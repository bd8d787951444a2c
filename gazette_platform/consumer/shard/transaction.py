"""The transactions of a shard's primary: what to do next. Pure.

Two transactions exist at most. The *open* one consumes; the *prior* one, which was prepared before it,
commits and then has its ACKs appended: its *barrier*. The open one begins with its first consumed
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
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import ApplicationFailed
from gazette_platform.message.sequencer import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.consumer.protocol import ShardSpec

__all__ = [
    "Action",
    "CompletedTransaction",
    "TransactionLimits",
    "TransactionTimes",
    "Transactions",
]

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
    def may_publish(self) -> bool:
        """Whether messages may be published: not once ACKs of this transaction were built.

        That the ACKs of the prior one are queued is certain: `prepared` says so.
        """
        return self._preparing is None

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
        wakes_at = self.wakes_at
        if wakes_at is not None and now_s >= wakes_at:
            return Action.TICK
        if has_message and (txn is None or txn.may_read):
            return Action.BEGIN if txn is None else Action.CONSUME
        if has_entry and self.may_take(is_closed=is_closed):
            return Action.TAKE
        if self.is_barrier_up:
            return Action.WAIT
        if txn is None or not txn.consumed:
            return Action.FINISH if is_closed else Action.WAIT
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
        txn.may_read = False

    def tick(self, now_s: float) -> None:
        """The timer was due."""
        txn = self._open
        assert txn is not None
        if txn.is_min_pending:
            txn.is_min_pending = False
            return
        assert txn.is_max_pending
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
