"""The judge of `make typed-crash`: nothing that is wrong with tables or their state passes it."""

from dataclasses import replace
from random import Random

import pytest
from typed_logs import table_of

from gazette_platform.lake.typed.planning.screening import sequence
from gazette_platform.lake.typed.planning.state import Counts, JournalState, Producer, TypedState
from gazette_platform.message import Envelope, Sequencer, UuidParts
from tests.typed_crash.messages import PRODUCERS, JournalLog, Message, Writer
from tests.typed_crash.oracle import ProducerAt, last_of_keys
from tests.typed_crash.plan import CASES, THEMES, Held, make_case
from tests.typed_crash.verdict import Found, Verdict, judge

ACTS = ("out", "out", "continue", "continue", "ack", "rollback", "again", "odd")
NAMES = ("a", "b")


def logs_of(seed, *, is_keyed=False, batches=40):
    found = {}
    for name in NAMES:
        writer = Writer(Random(f"{seed}-{name}"), name if is_keyed else "")
        found[name] = JournalLog()
        for _ in range(batches):
            found[name].add(writer.batch(ACTS), has_late=writer.random.random() < 0.5)
    return found


def state_of(expected):
    waiting = sum(one.waiting for one in expected.producers.values())
    committed = len(expected.rows) + len(expected.quarantined)
    counts = Counts(
        messages=expected.messages,
        committed=committed,
        typed=len(expected.rows),
        quarantined=len(expected.quarantined),
        acks=expected.acks,
        taken_back=expected.messages - committed - expected.acks - waiting,
    )
    producers = {name: Producer(*one[:3]) for name, one in expected.producers.items()}
    return JournalState(offset=expected.head, producers=producers, counts=counts)


def found_of(wanted, *, is_keyed=False):
    """The content of tables that are right."""
    rows = [(j, begin, row) for j, one in wanted.items() for begin, row in one.rows.items()]
    if is_keyed:
        rows = [(*spot, row) for spot, (row, _) in last_of_keys(wanted).items()]
    records = [(j, b, one) for j, each in wanted.items() for b, one in each.quarantined.items()]
    counted = tuple(
        {name: sum(journal == name for journal, _, _ in some) for name in NAMES}
        for some in (rows, records)
    )
    state = TypedState({name: state_of(one) for name, one in wanted.items()})
    return Found(rows, records, state, counted)


def judged(wanted, found, **more):
    verdict = Verdict()
    judge(verdict, "t", wanted, found, is_parted=True, **more)
    return verdict


@pytest.fixture(params=[False, True], ids=["", "with a key"])
def case(request):
    wanted = {name: log.expected() for name, log in logs_of(1, is_keyed=request.param).items()}
    return wanted, found_of(wanted, is_keyed=request.param), {"is_keyed": request.param}


def test_what_is_right_passes(case):
    wanted, found, more = case
    verdict = judged(wanted, found, **more)
    assert verdict.is_ok, verdict.problems
    assert verdict.committed == verdict.typed + verdict.quarantined > verdict.quarantined > 0


@pytest.mark.parametrize("name", ["end", "uuid", "n", "k", "at", "late", "partition"])
def test_value_of_a_row_that_is_wrong_is_reported(case, name):
    wanted, found, more = case
    journal, begin, row = found.rows[3]
    found.rows[3] = journal, begin, row._replace(**{name: "other"})
    assert not judged(wanted, found, **more).is_ok


@pytest.mark.parametrize("name", ["end", "uuid", "reason", "raw"])
def test_value_of_a_quarantined_record_that_is_wrong_is_reported(case, name):
    wanted, found, more = case
    journal, begin, record = found.quarantined[0]
    found.quarantined[0] = journal, begin, record._replace(**{name: "other"})
    assert not judged(wanted, found, **more).is_ok


@pytest.mark.parametrize("which", ["rows", "quarantined"])
def test_what_is_lost_doubled_or_strange_is_reported(case, which):
    wanted, found, more = case
    right = getattr(found, which)
    journal, _, value = right[2]
    lost = judged(wanted, found._replace(**{which: right[:2] + right[3:]}), **more)
    assert (lost.is_ok, lost.lost) == (False, 1)
    doubled = judged(wanted, found._replace(**{which: [*right, right[2]]}), **more)
    assert (doubled.is_ok, doubled.doubled) == (False, 1)
    strange = judged(wanted, found._replace(**{which: [*right, (journal, -1, value)]}), **more)
    assert not strange.is_ok


def every_producer(one, **more):
    return replace(one, producers={p: at._replace(**more) for p, at in one.producers.items()})


def counting(one, **more):
    return replace(one, counts=one.counts + Counts(**more))


CHANGES = {
    "offset": lambda one: replace(one, offset=one.offset - 1),
    "producers": lambda one: replace(one, producers={}),
    "clocks": lambda one: every_producer(one, last_ack=0),
    "begins": lambda one: every_producer(one, begin=7),
    "messages": lambda one: counting(one, messages=1, taken_back=1),
    "acks": lambda one: counting(one, acks=1, taken_back=-1),
    "rows": lambda one: counting(one, typed=1, quarantined=-1),
    "lost bytes": lambda one: counting(one, lost_bytes=1),
    "waiting by counts": lambda one: counting(one, taken_back=-1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_state_that_is_wrong_is_reported(case, what):
    wanted, found, more = case
    state = found.state.with_journals({"a": CHANGES[what](found.state.journals["a"])})
    assert not judged(wanted, found._replace(state=state), **more).is_ok


def envelopes_of(log):
    """Messages as the product's sequencer takes them."""
    found = []
    for begin, end, message, _ in log.messages:
        none = message.uuid is None
        parts = UuidParts(bytes(6), 0, 0) if none else UuidParts(*message[1:4])
        found.append(Envelope("", begin, end, parts, message))
    return found


def state_of_runs(log, ends):
    """What runs of the product come to that end at these offsets."""
    envelopes = envelopes_of(log)

    def between(begin, end):
        return table_of([one for one in envelopes if begin <= one.begin < end])

    state = JournalState()
    for end in ends:
        found = sequence(state, between(state.offset, end), between, end=end, warn=lambda _: None)
        state = found.state
    return state


def test_transaction_that_comes_again_in_a_later_run_passes_and_no_other_count_of_it_does():
    """The smallest such journal: a message of an open transaction, and a run, and the same message."""
    one = Message("good", PRODUCERS[0], 7, 1, 1, "k1")
    log = JournalLog()
    for _ in range(2):
        log.add([one], has_late=False)
    wanted = log.expected()
    assert wanted.producers == {PRODUCERS[0]: ProducerAt(6, 0, 1, 1)}
    for ends, waiting in (([log.head], 1), ([log.messages[0].end, log.head], 2)):
        state = state_of_runs(log, ends)
        assert state.producers == {PRODUCERS[0]: Producer(6, 0, waiting)}
        assert not judged({"a": wanted}, Found([], [], TypedState({"a": state}), ({}, {}))).problems
    for waiting in (0, 3):
        # As if it were a rollback of others, so that it adds up.
        wrong = replace(
            state,
            producers={PRODUCERS[0]: Producer(6, 0, waiting)},
            counts=Counts(messages=2, taken_back=2 - waiting),
        )
        found = Found([], [], TypedState({"a": wrong}), ({}, {}))
        (told,) = judged({"a": wanted}, found).problems
        assert f"of producer 010101010101 {waiting} messages wait, not 1" in told


@pytest.mark.parametrize("seed", range(8))
def test_state_of_the_product_passes_wherever_runs_end(seed):
    draw = Random(seed)
    for log in logs_of(seed, batches=60).values():
        wanted = log.expected()
        inner = draw.sample([at.end for at in log.messages], 12)
        state = state_of_runs(log, sorted({*inner, log.head}))
        assert (state.counts.committed, state.counts.acks) == (
            len(wanted.rows) + len(wanted.quarantined),
            wanted.acks,
        )
        state = state.with_rows(len(wanted.rows), len(wanted.quarantined))
        found = found_of({"a": wanted})._replace(state=TypedState({"a": state}))
        told = judged({"a": wanted}, found)
        assert told.is_ok, told.problems


def test_unknown_or_invalid_journal_in_the_state_is_reported(case):
    wanted, found, more = case
    journals = dict(found.state.journals)
    other = TypedState(journals | {"c": journals["a"]})
    assert not judged(wanted, found._replace(state=other), **more).is_ok
    del journals["a"]
    assert not judged(wanted, found._replace(state=TypedState(journals)), **more).is_ok


def test_counts_of_the_check_of_completeness_are_compared(case):
    wanted, found, more = case
    rows, records = found.counted
    for counted in ((rows | {"a": 0}, records), (rows, records | {"a": 0})):
        assert not judged(wanted, found._replace(counted=counted), **more).is_ok


def test_first_message_of_a_key_is_not_taken_for_the_last():
    logs = logs_of(1, is_keyed=True)
    wanted = {name: log.expected() for name, log in logs.items()}
    found = found_of(wanted, is_keyed=True)
    at, (journal, begin, row) = next(
        (at, one) for at, one in enumerate(found.rows) if one[2].k.startswith("a-")
    )
    first = min(b for b, other in wanted[journal].rows.items() if other.k == row.k)
    assert first < begin
    found.rows[at] = journal, first, wanted[journal].rows[first]
    verdict = judged(wanted, found, is_keyed=True)
    assert (verdict.is_ok, verdict.lost) == (False, 1)


@pytest.mark.parametrize("seed", range(8))
def test_oracle_and_sequencer_agree_though_they_share_nothing(seed):
    for log in logs_of(seed, batches=60).values():
        sequencer = Sequencer(ring_size=1 << 16, warn=lambda _: None)
        committed = []
        for envelope in envelopes_of(log):
            sequencer.queue(envelope)
            while (used := sequencer.dequeued) is not None:
                committed += [used.begin] if used.message.kind != "ack" else []
                sequencer.step()
        expected = log.expected()
        assert sorted(committed) == sorted({**expected.rows, **expected.quarantined})
        known = sequencer.checkpoint(horizon=None).producers
        assert {one.producer: (one.last_ack, one.begin) for one in known} == {
            name: one[:2] for name, one in expected.producers.items()
        }


def test_cases_follow_from_the_seed_and_each_theme_comes_with_partitions_and_without():
    cases = [make_case(7, number) for number in range(CASES)]
    assert cases == [make_case(7, number) for number in range(CASES)]
    assert cases != [make_case(8, number) for number in range(CASES)]
    assert {(case.theme, case.is_parted) for case in cases} == {
        (theme, is_parted) for theme in THEMES for is_parted in (False, True)
    }
    held = [step for case in cases for step in case.steps if isinstance(step, Held)]
    assert {step.call for step in held} >= {"metastore alter", "merge", "staged", "order"}
