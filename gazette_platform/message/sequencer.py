"""The sequencer: of messages as they lie in journals, those that are committed, each once. Pure.

Per journal and producer it knows the largest clock that was committed (`min_clock`), the largest
that was seen (`max_clock`), and the offset at which a span that is not committed begins (`begin`,
-1 for none). Messages of such spans wait in a ring of fixed size, which drops the oldest of all.

    flags      first that holds                     outcome                   effect
    ---------  -----------------------------------  ------------------------  --------------------------
    OUTSIDE,   clock 0, which is not tracked        outsideCommit             deliver
    unknown    clock <= min_clock                   outsideAlreadyAcked       drop
               else                                 outsideCommit             deliver; the span is dropped
    CONTINUE   clock <= min_clock                   continueAlreadyAcked      drop
               clock <= max_clock                   continueRingClockLarger   drop: it is a duplicate
               there is no span                     continueBeginSpan         begin a span; ring
               else                                 continueExtendSpan        ring
    ACK        clock < min_clock                    ackRollback               known; go back to that clock
               clock = min_clock                    ackRollback               drop the span
               there is no span                     ackEmpty                  deliver the ACK
               all of the span is in the ring       ackCommitRing             deliver span and ACK
               else                                 ackCommitReplay           ask for a replay, then so

A span is delivered in the order of its journal, as far as clocks are up to the ACK's: what has
larger ones was taken back. What the ring has dropped, the caller reads again:

    queue(message) --+--> `dequeued` is None: the next message, please
                     +--> `dequeued`: use it, then step(), until it is None
                     +--> `replay`: offer() each message of that range; where offer() says so, use
                          `dequeued`, and step(); then end_replay()

A checkpoint may be taken at any time. In the middle of a span it says: read up to the ACK, what was
delivered is committed, and the span begins at what was not. Whoever goes on from there meets the ACK
again, is asked for a replay, and gets the rest.

Source: outcomes and their order are those of Gazette's sequencer.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.uuid import Flags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gazette_platform.message.uuid import UuidParts

M = TypeVar("M")


class Envelope(NamedTuple, Generic[M]):
    """A message as it was read."""

    journal: str
    """As it was asked for: `a/journal;one` and `a/journal;two` are different sources."""
    begin: int
    """Offset of the first byte of its frame."""
    end: int
    """Offset after the last one."""
    uuid: UuidParts
    message: M


_NAMES = {int(flag): flag.name for flag in Flags}


@final
class SequencerCounts:
    """Counts of messages: a collector, which ``prometheus_client.REGISTRY.register`` takes.

    Several sequencers of one thread may share it; it is read by any thread.

    Attributes:
        queued: messages that were sequenced, by journal, flags and `Outcome`.
        replayed: messages that were read again, since the ring had dropped them, by journal.
    """

    def __init__(self) -> None:
        self.queued: defaultdict[tuple[str, int, str], int] = defaultdict(int)
        self.replayed: defaultdict[str, int] = defaultdict(int)

    def collect(self) -> Iterator[Any]:
        """The metrics. Their names lack the end that the library gives to counters, so they are untyped."""
        from prometheus_client import Metric  # noqa: PLC0415  slow to import

        queued = Metric("gazette_sequencer_queued", "Messages that were sequenced.", "unknown")
        for (journal, flags, outcome), count in list(self.queued.items()):
            labels = {"journal": journal, "flag": _NAMES.get(flags, str(flags))}
            queued.add_sample(queued.name, {**labels, "outcome": str(outcome)}, count)
        yield queued
        replayed = Metric(
            "gazette_sequencer_replay", "Messages that were read a second time.", "unknown"
        )
        for journal, count in list(self.replayed.items()):
            replayed.add_sample(replayed.name, {"journal": journal}, count)
        yield replayed


RING_SIZE = 8192
"""Messages of open spans that are kept, of all producers together."""

PRUNE_HORIZON = (24 * 3600 * 10_000_000) << 4
"""By how much, in clocks, a producer may lag behind the newest of its journal: 24 hours.

One with an open span, whose messages would be lost, is forgotten only when the journal's newest has moved
on by that much since it was heard of, or since a checkpoint was gone on from. So a host whose clock is wrong
loses nothing.
"""

# Plain numbers, for every message is compared with them.
_OUTSIDE, _CONTINUE, _ACK = map(int, Flags)
_Key = tuple[str, bytes]
_LATE_MAX = 100  # such producers are named
_log = logging.getLogger(__name__)


class Outcome(StrEnum):
    """What became of a message that was queued. The values are labels of Gazette's metrics."""

    OUTSIDE_ALREADY_ACKED = "outsideAlreadyAcked"
    OUTSIDE_COMMIT = "outsideCommit"
    CONTINUE_ALREADY_ACKED = "continueAlreadyAcked"
    CONTINUE_RING_CLOCK_LARGER = "continueRingClockLarger"
    CONTINUE_BEGIN_SPAN = "continueBeginSpan"
    CONTINUE_EXTEND_SPAN = "continueExtendSpan"
    ACK_ROLLBACK = "ackRollback"
    ACK_EMPTY = "ackEmpty"
    ACK_COMMIT_RING = "ackCommitRing"
    ACK_COMMIT_REPLAY = "ackCommitReplay"


class ReplayRange(NamedTuple):
    """What of a journal has to be read again."""

    journal: str
    begin: int
    end: int


class ProducerState(NamedTuple):
    """What a checkpoint says of a producer in a journal."""

    journal: str
    producer: bytes
    last_ack: int
    """Largest clock that was committed, and delivered."""
    begin: int
    """Offset of the first message that was not; -1 if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequencerCheckpoint:
    """Where to go on, so that nothing is delivered twice and nothing is left out."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    """Offset of each journal to read on at."""
    producers: tuple[ProducerState, ...] = ()


@final
class _State(Generic[M]):
    """Of a producer in a journal."""

    __slots__ = ("begin", "heard", "heard_at", "held", "max_clock", "min_clock")

    def __init__(self, clock: int, begin: int = -1) -> None:
        self.min_clock = clock
        self.max_clock = clock
        self.begin = begin
        # As of the last pruning: the largest clock, and what the journal's newest was when it came.
        self.heard, self.heard_at = -1, 0
        # What of the span is in the ring. Each span has a deque of its own, and each slot of the
        # ring names the deque of its message, which is that one's first when the slot is reused.
        self.held: deque[Envelope[M]] = deque()

    def drop_span(self) -> None:
        self.held.clear()
        self.held = deque()
        self.begin = -1


@final
class Sequencer(Generic[M]):
    """See the module. Not for several threads.

    Attributes:
        dequeued: the message to use now, which `step` then counts as used.
        replay: what to read again, and offer, before anything else.

    Args:
        ring_size: messages of open spans to keep; at least one. Larger spans are read twice.
        ring_bytes: of these messages, as they are in their journals; None: any number.
        checkpoint: where to go on.
        warn: called with what should not happen: flags without meaning, spans that their producer dropped,
            ACKs that take back what was delivered, and clocks that are a day behind.
        counts: is to count what becomes of messages.
    """

    def __init__(
        self,
        *,
        ring_size: int = RING_SIZE,
        ring_bytes: int | None = None,
        checkpoint: SequencerCheckpoint | None = None,
        warn: Callable[[str], None] = _log.warning,
        counts: SequencerCounts | None = None,
    ) -> None:
        start = checkpoint or SequencerCheckpoint()
        self.dequeued: Envelope[M] | None = None
        self.replay: ReplayRange | None = None
        self._offsets = dict(start.offsets)
        self._states: dict[_Key, _State[M]] = {
            (one.journal, one.producer): _State(one.last_ack, one.begin) for one in start.producers
        }
        self._pending: set[_Key] = set()
        # It grows as it is used, up to its size.
        self._ring: list[deque[Envelope[M]] | None] = []
        self._ring_size = max(1, ring_size)
        self._ring_bytes_max = ring_bytes
        self._ring_bytes = 0  # of messages that are in it
        self._taken = self._dropped = 0  # slots, ever: those between are the ring's
        self._newest: dict[str, int] = {}  # by journal, as of the last pruning
        self._late: set[bytes] = set()  # producers that are behind that, and named
        self._warn = warn
        self._counts = counts
        # The commit that is being delivered: its ACK, or the message itself; the producer's state; the
        # largest clock of the span that was looked at; how far a replay has come.
        self._last: Envelope[M] | None = None
        self._state: _State[M] | None = None
        self._looked_at = 0
        self._replayed = 0

    @property
    def has_pending(self) -> bool:
        """Whether a span was begun since the last checkpoint, and is neither committed nor dropped."""
        return bool(self._pending)

    @property
    def offsets(self) -> dict[str, int]:
        """Of each journal, how far everything was used or waits in a span."""
        return dict(self._offsets)

    def queue(self, envelope: Envelope[M]) -> Outcome:
        """Take in the next message of a journal. Sets `dequeued`, or `replay`, if it commits.

        Raises: ValidationError: what was committed before is not used up yet.
        """
        outcome = self._queue(envelope)
        if self._counts is not None:
            self._counts.queued[envelope.journal, envelope.uuid.flags, outcome] += 1
        return outcome

    def _queue(self, envelope: Envelope[M]) -> Outcome:
        if self._last is not None:
            raise ValidationError(
                f"{envelope.journal}: step through what is committed before you queue another message"
            )
        producer, clock, flags = envelope.uuid
        if clock == 0:
            # No UUID: nothing to deduplicate by, and no state that a checkpoint would have to keep.
            self._deliver(envelope, None)
            self.dequeued = envelope
            return Outcome.OUTSIDE_COMMIT
        key = (envelope.journal, producer)
        state = self._states.get(key)
        if state is None:
            # One tick less, so that this message is not taken for one that was committed before.
            state = self._states[key] = _State(clock - 1)
            if flags != _ACK and clock < self._newest.get(envelope.journal, 0) - PRUNE_HORIZON:
                self._warn_late(envelope)
        if flags == _CONTINUE:
            outcome = self._continued(envelope, key, state)
        elif flags == _ACK:
            outcome = self._acknowledged(envelope, key, state)
        else:
            if flags != _OUTSIDE:
                self._warn(
                    f"{_where(envelope)}: its flags {flags:#x} mean nothing; it is taken for "
                    "committed (who publishes such messages?)"
                )
            outcome = self._outside(envelope, key, state)
        if self._last is None:
            # A message that commits something moves the offset when its commit is used up, in `step`:
            # a checkpoint in between must read it again.
            self._offsets[envelope.journal] = envelope.end
        return outcome

    def step(self) -> None:
        """Count `dequeued` as used, and set it to the next message of its commit, if there is one.

        Raises: ValidationError: there is none to step from.
        """
        used, state = self.dequeued, self._state
        if used is None:
            raise ValidationError("there is no message to step from")
        self.dequeued = None
        if used is self._last:
            self._last = self._state = None
            self._offsets[used.journal] = used.end
            if state is not None:
                # Also `max_clock`: what the span has above the ACK's clock was taken back by its
                # producer, which may publish under these clocks again.
                state.min_clock = state.max_clock = used.uuid.clock
                self._empty(state)
            return
        assert state is not None  # only a commit of a tracked producer has several messages
        # The rest of the span begins after this message: a checkpoint now delivers only the rest.
        state.min_clock = used.uuid.clock
        state.begin = used.end
        if self.replay is None:
            self._dequeue_held()

    def offer(self, envelope: Envelope[M]) -> bool:
        """Take in the next message of `replay`. Returns: whether it is to be used: see `dequeued`.

        Raises: DataError: it does not lie in the range, or not behind the one before.
            ValidationError: no replay is asked for, or the message before is not used yet.
        """
        wanted, last = self.replay, self._last
        if wanted is None or last is None or self.dequeued is not None:
            raise ValidationError("no message of a replay is asked for now")
        if envelope.journal != wanted.journal:
            raise DataError(f"replay of {wanted.journal} gave a message of {envelope.journal}")
        if envelope.begin < self._replayed or envelope.end > wanted.end:
            raise DataError(
                f"replay of {wanted.journal} gave a message from {envelope.begin} to {envelope.end}, "
                f"outside of {self._replayed} to {wanted.end}"
            )
        self._replayed = envelope.end
        if self._counts is not None:
            self._counts.replayed[envelope.journal] += 1
        uuid = envelope.uuid
        # A range of a journal holds messages of all its producers, and their earlier commits.
        if uuid.producer != last.uuid.producer or uuid.flags != _CONTINUE:
            return False
        return self._is_dequeued(envelope)

    def end_replay(self) -> None:
        """Go on with the ring: all messages of `replay` were offered.

        Raises: ValidationError: as of `offer`.
        """
        if self.replay is None or self.dequeued is not None:
            raise ValidationError("no replay is under way, or its last message is not used yet")
        self.replay = None
        self._dequeue_held()

    def checkpoint(
        self, *, horizon: int | None = PRUNE_HORIZON, now: int | None = None
    ) -> SequencerCheckpoint:
        """Where to continue after what was used, `dequeued` not among it.

        Forgets producers that have published nothing for long, see `PRUNE_HORIZON`: an ACK that comes later
        still commits nothing but itself. Spans that are open now are not `has_pending` any more.

        Args:
            horizon: in clocks; None keeps all producers.
            now: the reader's time, as a clock. A producer whose clock is ahead of it has others forgotten only
                as if its clock was this; None: as if all clocks were right.
        """
        if horizon is not None:
            self._prune(horizon, now)
        self._pending.clear()
        return SequencerCheckpoint(
            offsets=dict(self._offsets),
            producers=tuple(
                ProducerState(journal, producer, state.min_clock, state.begin)
                for (journal, producer), state in self._states.items()
            ),
        )

    def _outside(self, envelope: Envelope[M], key: _Key, state: _State[M]) -> Outcome:
        if envelope.uuid.clock <= state.min_clock:
            return Outcome.OUTSIDE_ALREADY_ACKED
        if state.begin >= 0:
            self._warn(
                f"{_where(envelope)}: it is outside of transactions, and drops the one of its producer "
                f"that began at offset {state.begin} (publish both by producers of their own)"
            )
            self._drop_span(key, state)
        self._deliver(envelope, state)
        self.dequeued = envelope
        return Outcome.OUTSIDE_COMMIT

    def _continued(self, envelope: Envelope[M], key: _Key, state: _State[M]) -> Outcome:
        clock = envelope.uuid.clock
        if clock <= state.min_clock:
            return Outcome.CONTINUE_ALREADY_ACKED
        if clock <= state.max_clock:
            # The producer's append was retried, and both attempts are in the journal.
            return Outcome.CONTINUE_RING_CLOCK_LARGER
        state.max_clock = clock
        outcome = Outcome.CONTINUE_EXTEND_SPAN
        if state.begin < 0:
            state.begin = envelope.begin
            self._pending.add(key)
            outcome = Outcome.CONTINUE_BEGIN_SPAN
        self._take_slot(state.held)
        state.held.append(envelope)
        if self._ring_bytes_max is not None:
            self._ring_bytes += envelope.end - envelope.begin
            while self._ring_bytes > self._ring_bytes_max and self._dropped < self._taken:
                self._drop_oldest()
        return outcome

    def _acknowledged(self, envelope: Envelope[M], key: _Key, state: _State[M]) -> Outcome:
        clock = envelope.uuid.clock
        if clock <= state.min_clock:
            if clock < state.min_clock:
                self._warn(
                    f"{_where(envelope)}: its producer takes back messages up to clock "
                    f"{state.min_clock}, which were delivered: they may come twice"
                )
            # The producer restarted from an older checkpoint and will publish these clocks again. If we
            # kept `min_clock`, its new messages would count as duplicates and be lost.
            state.min_clock = state.max_clock = clock
            self._drop_span(key, state)
            return Outcome.ACK_ROLLBACK
        self._pending.discard(key)
        self._deliver(envelope, state)
        if state.begin < 0:
            self.dequeued = envelope
            return Outcome.ACK_EMPTY
        # An ACK takes a slot as any other message, and may be the one that has the ring drop another.
        self._take_slot(None)
        self._looked_at = state.min_clock
        held_begin = state.held[0].begin if state.held else envelope.begin
        # The ring drops the oldest messages first, so what is left of a span is its end. Only what lies
        # before that is read again.
        if state.begin >= held_begin:
            self._dequeue_held()
            return Outcome.ACK_COMMIT_RING
        self._replayed = state.begin
        self.replay = ReplayRange(envelope.journal, state.begin, held_begin)
        return Outcome.ACK_COMMIT_REPLAY

    def _deliver(self, last: Envelope[M], state: _State[M] | None) -> None:
        """Begin a commit that ends with `last`: until that is used, its journal is read up to it."""
        self._last, self._state = last, state
        self._offsets[last.journal] = last.begin

    def _dequeue_held(self) -> None:
        """Dequeue the next message of the span that is in the ring, or at last the ACK."""
        state, last = self._state, self._last
        assert state is not None  # the caller delivers a span
        assert last is not None
        while state.held:
            if self._is_dequeued(self._pop(state.held)):
                return
        # A checkpoint now has the ACK come again, also after a message of the very same clock.
        state.min_clock = min(state.min_clock, last.uuid.clock - 1)
        state.begin = -1
        self.dequeued = last

    def _is_dequeued(self, envelope: Envelope[M]) -> bool:
        """Dequeue a message of the span, unless it is a duplicate, or was taken back."""
        state, last, clock = self._state, self._last, envelope.uuid.clock
        assert state is not None
        assert last is not None
        if clock <= self._looked_at:
            return False  # a retried append: a replay meets both copies
        self._looked_at = clock
        if clock > last.uuid.clock:
            return False  # the ACK takes back whatever is newer than itself
        state.begin = envelope.begin
        self.dequeued = envelope
        return True

    def _take_slot(self, held: deque[Envelope[M]] | None) -> None:
        """Name `held` in the next slot of the ring, and drop the message that had it."""
        if self._taken < self._ring_size:
            self._ring.append(held)
        else:
            if self._taken - self._dropped == self._ring_size:
                self._drop_oldest()
            self._ring[self._taken % self._ring_size] = held
        self._taken += 1

    def _drop_oldest(self) -> None:
        held = self._ring[self._dropped % self._ring_size]
        self._dropped += 1
        if held:
            self._pop(held)

    def _pop(self, held: deque[Envelope[M]]) -> Envelope[M]:
        """Take the first message of a span out of the ring."""
        envelope = held.popleft()
        if self._ring_bytes_max is not None:
            self._ring_bytes -= envelope.end - envelope.begin
        return envelope

    def _empty(self, state: _State[M]) -> None:
        """Have no span, and none of its messages in the ring."""
        while state.held:
            self._pop(state.held)
        state.drop_span()

    def _drop_span(self, key: _Key, state: _State[M]) -> None:
        self._empty(state)
        self._pending.discard(key)

    def _warn_late(self, envelope: Envelope[M]) -> None:
        """Name a producer that each checkpoint forgets, once."""
        producer = envelope.uuid.producer
        if producer not in self._late and len(self._late) < _LATE_MAX:
            self._late.add(producer)
            self._warn(
                f"{_where(envelope)}: its clock is more than 24 hours behind the newest of the journal, so checkpoints "
                "forget this producer, and an append that came twice counts twice (set the clock of its host)"
            )

    def _prune(self, horizon: int, now: int | None) -> None:
        newest: dict[str, int] = {}
        for (journal, _), state in self._states.items():
            clock = state.min_clock if now is None else min(state.min_clock, now)
            newest[journal] = max(newest.get(journal, 0), clock)
        former, self._newest = self._newest, newest
        for key, state in list(self._states.items()):
            top = newest[key[0]]
            if state.begin < 0:
                is_behind = state.max_clock < top - horizon
            else:
                # Not by its own clock, which may be wrong, and is not known if a checkpoint said that the
                # span is open; nor by the newest if that jumps ahead.
                has_jumped = top - former.get(key[0], top) > horizon
                if state.heard != state.max_clock or has_jumped:
                    state.heard, state.heard_at = state.max_clock, top
                is_behind = state.heard_at < top - horizon
            # Never the producer whose commit is being delivered: `step` still moves its clocks.
            if is_behind and state is not self._state:
                self._empty(state)
                del self._states[key]


def _where(envelope: Envelope[Any]) -> str:
    producer = envelope.uuid.producer.hex()
    return f"{envelope.journal}: the message at offset {envelope.begin} of producer {producer}"
