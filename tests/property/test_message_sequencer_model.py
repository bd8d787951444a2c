"""The sequencer against a model that remembers everything, through any ring and any crash."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from gazette_platform.message import (
    Envelope,
    Flags,
    Sequencer,
    UuidParts,
)

JOURNALS = ("a/journal", "b/journal;meta")
PRODUCERS = tuple(bytes([n]) * 6 for n in (1, 3, 5))
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN


@dataclass
class Producer:
    """What the model knows of a producer in a journal: all of its open span."""

    acked: int
    span: list[Envelope] = field(default_factory=list)


class Model:
    """What the rules say of messages in order, without ring, replays or checkpoints."""

    def __init__(self):
        self.producers: dict[tuple[str, bytes], Producer] = {}

    def queue(self, envelope):
        """What is to be delivered now."""
        producer, clock, flags = envelope.uuid
        if clock == 0:
            return [envelope]
        key = (envelope.journal, producer)
        known = self.producers.setdefault(key, Producer(clock - 1))
        if flags == ACK:
            span, known.span = known.span, []
            is_commit = clock > known.acked
            known.acked = clock
            committed = [one for one in span if one.uuid.clock <= clock]
            return [*committed, envelope] if is_commit else []
        if clock <= known.acked:
            return []
        if flags == CONT:
            if not known.span or clock > max(one.uuid.clock for one in known.span):
                known.span.append(envelope)
            return []
        known.acked, known.span = clock, []
        return [envelope]


def laid_out(steps):
    """Envelopes of `(journal, producer, clock, flags, length)`, one after the other in each."""
    ends = dict.fromkeys(JOURNALS, 0)
    log = []
    for journal, producer, clock, flags, length in steps:
        name, begin = JOURNALS[journal], ends[JOURNALS[journal]]
        ends[name] = begin + length
        parts = UuidParts(PRODUCERS[producer], clock, flags)
        log.append(Envelope(name, begin, ends[name], parts, None))
    return log


def expected(log):
    model = Model()
    return [delivered for envelope in log for delivered in model.queue(envelope)]


def run_until(sequencer, log, limit):
    """Queue what lies behind the sequencer's offsets. Yields each message, before it counts as used."""
    start = sequencer.offsets
    for envelope in log:
        if envelope.begin < start.get(envelope.journal, 0):
            continue
        sequencer.queue(envelope)
        wanted = sequencer.replay
        if wanted is not None:
            for again in log:
                inside = wanted.begin <= again.begin and again.end <= wanted.end
                if again.journal == wanted.journal and inside and sequencer.offer(again):
                    yield sequencer.dequeued
                    sequencer.step()
            sequencer.end_replay()
        while sequencer.dequeued is not None:
            yield sequencer.dequeued
            sequencer.step()
        limit -= 1
        if limit == 0:
            return


def by_journal(envelopes):
    """Journals are read on from offsets of their own, so that crashes shift them to each other."""
    return {name: [one for one in envelopes if one.journal == name] for name in JOURNALS}


# Anything at all: clocks that go back, duplicates, flags without meaning.
hostile = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 9),
        st.sampled_from([OUT, CONT, CONT, CONT, ACK, ACK, 3]),
        st.integers(1, 3),
    ),
    max_size=40,
)


@st.composite
def honest(draw):
    """Producers that tick, append batches that may come twice, roll back, and commit."""
    clocks = [10 * (n + 1) for n in range(len(PRODUCERS))]
    acked = list(clocks)
    steps = []
    for producer, journal, kind, size, repeats in draw(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.integers(0, 1),
                st.sampled_from(["span", "span", "commit", "roll back", "outside"]),
                st.integers(1, 5),
                st.integers(1, 2),
            ),
            max_size=12,
        )
    ):
        batch = []
        for _ in range(size if kind in {"span", "outside"} else 0):
            clocks[producer] += 1
            batch.append(
                (journal, producer, clocks[producer], OUT if kind == "outside" else CONT, 2)
            )
        if kind == "commit":
            clocks[producer] += 1
            acked[producer] = clocks[producer]
            batch = [(each, producer, clocks[producer], ACK, 2) for each in (0, 1)]
        elif kind == "roll back":
            batch = [(each, producer, acked[producer], ACK, 2) for each in (0, 1)]
        steps += batch * repeats
    # Appends of several producers fall between one another.
    order = draw(st.permutations(range(len(PRODUCERS))))
    if draw(st.booleans()):
        lanes = {p: [one for one in steps if one[1] == p] for p in order}
        steps = []
        while any(lanes.values()):
            lane = lanes[draw(st.sampled_from([p for p in order if lanes[p]]))]
            steps.append(lane.pop(0))
    return steps


# Messages of a ring, and bytes of these, if they are bounded.
rings = st.tuples(st.integers(0, 12), st.none() | st.integers(0, 200))


def sequencer_of(ring, checkpoint=None):
    size, size_bytes = ring
    return Sequencer(
        ring_size=size, ring_bytes=size_bytes, checkpoint=checkpoint, warn=lambda _: None
    )


@settings(max_examples=400)
@given(st.one_of(hostile, honest()), rings)
def test_all_that_is_committed_comes_once_and_in_order(steps, ring):
    log = laid_out(steps)
    sequencer = sequencer_of(ring)
    assert list(run_until(sequencer, log, -1)) == expected(log)
    assert sequencer.offsets == {one.journal: one.end for one in log}
    held = [each for one in sequencer._states.values() for each in one.held]
    assert len(held) <= max(1, ring[0])
    if ring[1] is not None:
        assert sequencer._ring_bytes == sum(each.end - each.begin for each in held) <= ring[1]


@settings(max_examples=400)
@given(
    st.one_of(hostile, honest()),
    rings,
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=6),
)
def test_crashes_anywhere_change_nothing(steps, ring, crashes):
    """A crash forgets all after the last checkpoint: what was used since then comes again."""
    log = laid_out(steps)
    kept: list[Envelope] = []
    sequencer = sequencer_of(ring)
    for count, is_idle in crashes:
        # Either within a commit, before `count` messages are used; or between two that are queued.
        used: list[Envelope] = []
        reading = run_until(sequencer, log, count if is_idle and count else -1)
        is_over = True
        for delivered in reading:
            if not is_idle and len(used) == count:
                is_over = False
                break
            used.append(delivered)
        # A checkpoint is taken with what was used; `delivered` was not, when we broke off.
        assert is_over or sequencer.dequeued is not None
        checkpoint = sequencer.checkpoint(horizon=None)
        kept += used
        sequencer = sequencer_of(ring, checkpoint)
    kept += run_until(sequencer, log, -1)
    assert by_journal(kept) == by_journal(expected(log))


@settings(max_examples=200)
@given(st.one_of(hostile, honest()), rings, rings)
def test_rings_of_different_sizes_end_alike(steps, one, other):
    log = laid_out(steps)
    ends = []
    for ring in (one, other):
        sequencer = sequencer_of(ring)
        list(run_until(sequencer, log, -1))
        ends.append((sequencer.has_pending, sequencer.checkpoint(horizon=None)))
    assert ends[0] == ends[1]
