"""A replica's spool under proposals: Gazette's S4 to S7, RP4 to RP6, and a model of all of it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker.epochs import RESTORED
from gazette_platform.broker.replicate.fsm import (
    Abort,
    Answer,
    Commit,
    Discard,
    Proposal,
    ReplicateFSM,
    Roll,
    SpoolState,
    Write,
    apply_proposal,
    response_text,
)
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, LabelSet, Status

NAME = "a/journal"
SNAPPY, GZIP = CompressionCodec.SNAPPY, CompressionCodec.GZIP
EMPTY, REGS = LabelSet(), LabelSet.of(reg="a")
OK, MISMATCH = Status.OK, Status.PROPOSAL_MISMATCH


def sha(content):
    return hashlib.sha1(content, usedforsecurity=False).digest() if content else ZERO_SUM


def fragment(begin, content=b"", codec=SNAPPY):
    return Fragment(NAME, begin, begin + len(content), sha(content), codec)


def state(begin, content=b"", *, registers=EMPTY, delta=0):
    return SpoolState(fragment(begin, content), registers, delta)


def proposal(of, registers=EMPTY, *, acknowledge=True):
    return Proposal(of, registers, acknowledge)


def applied(before, proposed, registers=EMPTY, next_sum=ZERO_SUM):
    result = apply_proposal(before, proposal(proposed, registers), next_sum)
    return result.status, result.state, result.effects


def test_s4_a_roll_before_the_end_is_refused_and_beyond_it_done():
    before = state(0, b"content", registers=REGS)
    assert applied(before, fragment(3), REGS) == (MISMATCH, before, ())
    after = SpoolState(fragment(10), EMPTY)
    assert applied(before, fragment(10), EMPTY) == (OK, after, (Roll(10, SNAPPY, EMPTY),))


def test_an_empty_proposal_at_our_end_rolls_and_keeps_our_registers():
    before = state(0, b"content", registers=REGS)
    after = SpoolState(fragment(7, codec=GZIP), REGS)
    roll = Roll(7, GZIP, REGS)
    assert applied(before, fragment(7, codec=GZIP), REGS) == (OK, after, (roll,))
    # With other registers it has rolled all the same.
    assert applied(before, fragment(7, codec=GZIP), EMPTY) == (MISMATCH, after, (roll,))


@pytest.mark.parametrize(
    ("own", "named"),
    [
        (EMPTY, LabelSet.of({RESTORED: "5c"})),
        (REGS, LabelSet.of({RESTORED: "5c"})),
        (LabelSet.of({RESTORED: "4b"}), LabelSet.of({RESTORED: "5c"})),
    ],
)
def test_an_empty_proposal_at_our_end_may_have_registers_of_a_restore(own, named):
    after = SpoolState(fragment(7), named)
    expected = (OK, after, (Roll(7, SNAPPY, named),))
    assert applied(state(0, b"content", registers=own), fragment(7), named) == expected
    assert applied(state(7, registers=own), fragment(7), named) == expected


@pytest.mark.parametrize("own", [LabelSet.of({RESTORED: "5c"}), EMPTY])
def test_former_registers_are_not_taken_at_our_end(own):
    """Neither after a restore, nor where a newer primary has removed them: a writer without them may rely on that."""
    before = state(0, b"content", registers=own)
    kept = (MISMATCH, SpoolState(fragment(7), own), (Roll(7, SNAPPY, own),))
    assert applied(before, fragment(7), REGS) == kept


def test_s5_what_is_committed_may_be_proposed_again():
    before = state(0, b"content", registers=REGS)
    assert applied(before, fragment(0, b"content"), REGS) == (OK, before, ())
    assert applied(before, fragment(0, b"content"), EMPTY) == (MISMATCH, before, ())
    rolled_back = applied(replace(before, delta=5), fragment(0, b"content"), REGS)
    assert rolled_back == (OK, before, (Discard(),))
    # A rollback with other registers is a mismatch, and forgets nothing.
    dirty = replace(before, delta=5)
    assert applied(dirty, fragment(0, b"content"), EMPTY) == (MISMATCH, dirty, ())


def test_s5_a_mismatch_rolls_only_beyond_our_end():
    before = state(0, b"content", registers=REGS, delta=3)
    within = fragment(0, b"another!")
    assert applied(before, within, EMPTY, sha(b"contentxyz")) == (MISMATCH, before, ())
    beyond = fragment(0, b"x" * 11)
    after = SpoolState(fragment(11), EMPTY)
    assert applied(before, beyond, EMPTY) == (MISMATCH, after, (Roll(11, SNAPPY, EMPTY),))
    # An empty spool rolls just so.
    assert applied(state(0), beyond, REGS) == (
        MISMATCH,
        SpoolState(fragment(11), REGS),
        (Roll(11, SNAPPY, REGS),),
    )


@pytest.mark.parametrize(
    ("proposed", "status"),
    [
        (fragment(0, b"some content"), OK),
        (replace(fragment(0, b"some content"), end=11), MISMATCH),
        (replace(fragment(0, b"some content"), sum=sha(b"other")), MISMATCH),
        (replace(fragment(0, b"some content"), codec=GZIP), MISMATCH),
        (replace(fragment(0, b"some content"), mod_time=1), MISMATCH),
    ],
)
def test_s6_commits_are_of_exactly_what_was_written(proposed, status):
    before = state(0, b"some", delta=8)
    found, after, effects = applied(before, proposed, REGS, sha(b"some content"))
    assert found is status
    if status is OK:
        assert effects == (Commit(REGS),)
        assert after == SpoolState(proposed, REGS)
    else:
        assert (after, effects) == (before, ())


def test_s7_content_comes_in_order():
    machine = ReplicateFSM(state(100))
    assert machine.on_content(3, 0) == Write()
    assert machine.on_content(2, 3) == Write()
    assert machine.on_content(2, 3) == Abort("invalid ContentDelta (3; expected 5)")
    assert machine.state.delta == 5


def test_rp4_rp5_mismatches_say_what_we_have():
    machine = ReplicateFSM(state(0))
    far = replace(fragment(1234, b"x" * 10), end=5678)
    own = Fragment(NAME, 5678, 5678, ZERO_SUM, SNAPPY)
    roll, answer = machine.on_proposal(proposal(far), ZERO_SUM)
    assert roll == Roll(5678, SNAPPY, EMPTY)
    assert answer == Answer(MISMATCH, own, EMPTY)
    # The stream goes on, at the place that both know now.
    assert machine.on_proposal(proposal(own), ZERO_SUM) == (
        Roll(5678, SNAPPY, EMPTY),
        Answer(OK),
    )
    (answer,) = machine.on_proposal(proposal(replace(own, begin=0, end=1)), ZERO_SUM)
    assert answer == Answer(MISMATCH, own, EMPTY)


def test_rp6_unexpected_mismatch_ends_the_stream():
    machine = ReplicateFSM(state(0, b"content"))
    (effect,) = machine.on_proposal(proposal(fragment(0, b"c"), acknowledge=False), ZERO_SUM)
    assert isinstance(effect, Abort)
    assert effect.text.startswith("no ack requested but status != OK: status:PROPOSAL_MISMATCH ")


def test_proposals_without_a_waiter_are_not_answered():
    machine = ReplicateFSM(state(0, b"content"))
    effects = machine.on_proposal(proposal(fragment(7), acknowledge=False), ZERO_SUM)
    assert effects == (Roll(7, SNAPPY, EMPTY),)


def test_content_that_the_primary_lacks_is_persisted_at_once():
    """A primary died between two commits, and the new one is the replica that had fewer."""
    machine = ReplicateFSM(state(0, b"content", registers=REGS))
    (answer,) = machine.on_proposal(proposal(fragment(0, b"cont")), ZERO_SUM)
    assert answer == Answer(MISMATCH, fragment(0, b"content"), REGS)
    effects = machine.on_proposal(proposal(fragment(7), REGS), ZERO_SUM)
    assert effects == (Roll(7, SNAPPY, REGS, is_urgent=True), Answer(OK))
    effects = machine.on_proposal(proposal(fragment(7), REGS), ZERO_SUM)
    assert effects == (Roll(7, SNAPPY, REGS), Answer(OK))


def test_responses_have_gazettes_text():
    assert response_text(OK) == ""
    text = response_text(MISMATCH, fragment(1, b"x"))
    assert text.startswith('status:PROPOSAL_MISMATCH fragment:<journal:"a/journal" begin:1 end:2 ')


# ------------------------------------------------------------------------------------- properties
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("content"), st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("commit"), st.sampled_from([EMPTY, REGS])),
        st.tuples(st.just("rollback"), st.none()),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("ahead"), st.integers(1, 9)),
        st.tuples(st.just("wrong"), st.integers(-3, 3)),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_replica_that_agrees_holds_what_the_primary_proposed(steps):
    """After each OK the spool is the proposal's; a mismatch never takes back what was committed."""
    machine = ReplicateFSM(state(0))
    committed, draft = b"", b""  # of the open fragment
    for kind, argument in steps:
        own = machine.state
        end_before = own.fragment.end
        match kind:
            case "content":
                assert machine.on_content(len(argument), len(draft)) == Write()
                draft += argument
                continue
            case "commit":
                proposed = proposal(
                    fragment(own.fragment.begin, committed + draft),
                    argument if draft else own.registers,
                )
            case "rollback":
                proposed = proposal(own.fragment, own.registers)
            case "roll":
                proposed = proposal(fragment(own.fragment.end), own.registers)
            case "ahead":
                proposed = proposal(
                    fragment(own.fragment.end + len(draft) + argument), own.registers
                )
            case _:
                end = max(own.fragment.begin, own.fragment.end + argument)
                proposed = proposal(replace(own.fragment, end=end, sum=b"\1" * 20), own.registers)
        effects = machine.on_proposal(proposed, sha(committed + draft))
        answer = effects[-1]
        assert isinstance(answer, Answer)
        now = machine.state.fragment
        assert now.end >= end_before
        if any(isinstance(effect, Roll) for effect in effects):
            committed, draft = b"", b""
            assert now.content_length == 0
        if any(isinstance(effect, Commit) for effect in effects):
            committed, draft = committed + draft, b""
        if any(isinstance(effect, Discard) for effect in effects):
            draft = b""
        assert now == fragment(now.begin, committed)
        assert machine.state.delta == len(draft)
        if answer.status is OK:
            assert (now, machine.state.registers) == (proposed.fragment, proposed.registers)
            assert not draft
        else:
            assert (answer.fragment, answer.registers) == (now, machine.state.registers)
            assert kind == "wrong" or (kind == "commit" and not draft)
