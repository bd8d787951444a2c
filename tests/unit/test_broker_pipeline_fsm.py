"""What peers' answers amount to: Gazette's P1 to P3, and any order of answers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker.replicate.fsm import (
    Broke,
    Failed,
    Gathered,
    PipelineFSM,
    Replied,
    Reply,
    Settled,
    SyncOutcome,
    sync_outcome,
)
from gazette_platform.protocol import (
    EtcdHeader,
    Fragment,
    Header,
    LabelSet,
    ProcessId,
    Route,
    Status,
)

A, B, OWN = ProcessId("A", "peer-1"), ProcessId("B", "peer-2"), ProcessId("C", "own-1")
ROUTE = Route((A, B, OWN), 2)
OTHER = Route((A, OWN), 1)
REGS = LabelSet.of(reg="a")
OK = Reply(Status.OK)


def header(route=ROUTE, revision=100):
    return Header(A, route, EtcdHeader(1, 1, revision, 1))


def mismatch(begin, end, registers=REGS):
    return Reply(Status.PROPOSAL_MISMATCH, None, Fragment("a/journal", begin, end), registers)


def elsewhere(status=Status.WRONG_ROUTE, *, route=OTHER, revision=4567):
    return Reply(status, header(route, revision))


def outcome(*replies, own_end=500):
    named = list(zip((A, B), replies, strict=True))
    return sync_outcome(named, own_end=own_end, route=ROUTE, revision=100)


def pipeline():
    return PipelineFSM((A, B), route=ROUTE, revision=100)


# ------------------------------------------------------------------------------------------ sync
@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ((OK, OK), SyncOutcome()),
        ((elsewhere(), mismatch(700, 800)), SyncOutcome(800, REGS, 4567)),
        *(
            ((elsewhere(status), OK), SyncOutcome(read_revision=4567))
            for status in (
                Status.NOT_JOURNAL_BROKER,
                Status.JOURNAL_NOT_FOUND,
                Status.SUSPENDED,
                Status.INSUFFICIENT_JOURNAL_BROKERS,
            )
        ),
        ((elsewhere(), elsewhere(revision=5000)), SyncOutcome(read_revision=5000)),
        ((elsewhere(revision=5000), elsewhere()), SyncOutcome(read_revision=5000)),
        ((mismatch(500, 500), OK), SyncOutcome(500, None, unlike=(A,))),
        ((mismatch(500, 500), mismatch(0, 600)), SyncOutcome(600, REGS, unlike=(A,))),
        ((mismatch(0, 600), mismatch(500, 500)), SyncOutcome(600, REGS, unlike=(B,))),
        ((mismatch(0, 600, LabelSet()), mismatch(0, 700)), SyncOutcome(700, REGS)),
        ((mismatch(0, 700), mismatch(0, 600, LabelSet())), SyncOutcome(700, REGS)),
    ],
)
def test_p3_answers_to_a_sync_are_put_together(replies, expected):
    assert outcome(*replies) == expected


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (elsewhere(revision=100), "unexpected WRONG_ROUTE: status:WRONG_ROUTE "),
        (elsewhere(route=ROUTE), "unexpected WRONG_ROUTE: status:WRONG_ROUTE "),
        (elsewhere(Status.JOURNAL_NOT_FOUND, revision=99), "unexpected response: status:JOURNAL_"),
        (mismatch(400, 500), "unexpected response: status:PROPOSAL_MISMATCH fragment:<"),
        (mismatch(0, 499), "unexpected response: status:PROPOSAL_MISMATCH fragment:<"),
        (mismatch(499, 499), "unexpected response: status:PROPOSAL_MISMATCH fragment:<"),
    ],
)
def test_p3_answers_that_lead_nowhere_are_errors(reply, text):
    found = outcome(OK, reply).error
    assert found.startswith(f'gatherSync: recv from zone:"B" suffix:"peer-2" : {text}'), found


def test_a_sync_waits_for_all_peers():
    machine = pipeline()
    machine.sync(500)
    assert machine.step(Replied(1, OK)) is None
    assert machine.step(Replied(0, mismatch(0, 600))) == Gathered(SyncOutcome(600, REGS))
    machine.sync(600)  # the next round, on the same streams
    assert machine.step(Replied(0, OK)) is None
    assert machine.step(Replied(1, OK)) == Gathered(SyncOutcome())


def test_fs5_a_sync_ends_with_the_first_failure():
    machine = pipeline()
    machine.sync(0)
    text = 'recv from zone:"A" suffix:"peer-1" : rpc error: code = Unknown desc = foobar'
    assert machine.step(Failed(0, text)) == Broke(f"gatherSync: {text}")
    assert machine.is_broken
    assert machine.step(Replied(1, OK)) is None


def test_a_peer_answers_a_sync_once():
    machine = pipeline()
    machine.sync(0)
    machine.step(Replied(0, OK))
    broke = machine.step(Replied(0, OK))
    assert isinstance(broke, Broke)
    assert 'gatherSync: recv from zone:"A"' in broke.text


# ---------------------------------------------------------------------------------------- steady
def test_p1_all_peers_must_answer():
    machine = pipeline()
    assert (machine.ask(), machine.ask()) == (1, 2)
    assert machine.step(Replied(0, OK)) is None
    assert machine.step(Replied(0, OK)) is None
    assert machine.unsettled == 2
    assert machine.step(Replied(1, OK)) == Settled(1)
    assert machine.step(Replied(1, OK)) == Settled(2)
    assert machine.unsettled == 0


def test_p2_only_the_first_error_counts():
    machine = pipeline()
    machine.ask()
    reply = Reply(Status.PROPOSAL_MISMATCH)
    assert machine.step(Replied(1, reply)) == Broke(
        'recv from zone:"B" suffix:"peer-2" : unexpected !OK response: status:PROPOSAL_MISMATCH '
    )
    assert machine.step(Failed(0, "recv from A: EOF")) is None
    assert machine.step(Replied(0, OK)) is None


def test_p2_no_replica_answers_unasked():
    broke = pipeline().step(Replied(0, OK))
    assert broke == Broke('recv from zone:"A" suffix:"peer-1" : unexpected response: ')


def test_fs24_a_failed_stream_breaks_the_pipeline():
    machine = pipeline()
    machine.ask()
    text = 'recv from zone:"B" suffix:"peer" : unexpected EOF'
    assert machine.step(Failed(1, text)) == Broke(text)


def test_misuse_is_reported():
    machine = pipeline()
    machine.ask()
    with pytest.raises(RuntimeError, match="1 unsettled"):
        machine.sync(0)
    machine.step(Failed(0, "x"))
    with pytest.raises(RuntimeError, match="BROKEN"):
        machine.ask()


@given(st.lists(st.sampled_from(["ask", 0, 1, 2]), max_size=60), st.integers(1, 3))
def test_what_is_settled_was_answered_by_all(steps, count):
    """Whatever the order: a proposal settles exactly when its last peer answers, once."""
    peers = [ProcessId("A", f"peer-{n}") for n in range(count)]
    machine = PipelineFSM(peers, route=Route((*peers, OWN), count), revision=1)
    asked, answers, settled = 0, [0] * count, 0
    for step in steps:
        if step == "ask":
            asked = machine.ask()
        elif step < count and answers[step] < asked:
            answers[step] += 1
            effect = machine.step(Replied(step, OK))
            if min(answers) > settled:
                settled += 1
                assert effect == Settled(settled)
            else:
                assert effect is None
        assert machine.unsettled == asked - min(answers)
