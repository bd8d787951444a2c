"""The rules of appends, each by itself."""

from __future__ import annotations

import pytest

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.events import (
    AppendRequest,
    ReplicaView,
    Rollback,
    Sync,
    TakeContent,
    WriteSuspend,
)
from gazette_platform.broker.append.fsm import (
    preconditions,
    registers_problem,
    updated_registers,
)
from gazette_platform.protocol import (
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    Label,
    LabelSet,
    SuspendLevel,
    SuspendSpec,
)

BEFORE = LabelSet.of(author="me", epoch="1")


@pytest.mark.parametrize(
    ("subtract", "union", "after"),
    [
        (None, None, BEFORE),
        (LabelSet.of(author="me"), None, LabelSet.of(epoch="1")),
        (LabelSet.of(author="you"), None, BEFORE),
        (None, LabelSet.of(writer="x"), LabelSet.of(author="me", epoch="1", writer="x")),
        (None, LabelSet.of(epoch="2"), LabelSet.of(author="me", epoch="2")),
        # First the one, then the other: what is in both exists afterwards.
        (LabelSet.of(author="me"), LabelSet.of(author="me"), BEFORE),
        (BEFORE, LabelSet.of(epoch="2"), LabelSet.of(epoch="2")),
    ],
)
def test_aa2_registers_after_an_append(subtract, union, after):
    request = AppendRequest("a/journal", subtract_registers=subtract, union_registers=union)
    assert updated_registers(BEFORE, request) == after


def view(*, suspend_offset=0, spool_end=0, registers=BEFORE, is_released=False):
    fragment = FragmentSpec(length=1 << 20, codec=CompressionCodec.NONE)
    suspend = SuspendSpec(SuspendLevel.NONE, suspend_offset) if suspend_offset else None
    return ReplicaView(
        spec=JournalSpec("a/journal", 1, fragment=fragment, suspend=suspend),
        spool_begin=spool_end,
        spool_end=spool_end,
        index_begin=0,
        index_end=0,
        index_mod_time=0,
        registers=registers,
        now_s=0.0,
        is_released=is_released,
    )


@pytest.mark.parametrize(
    ("suspend_offset", "spool_end"), [((1 << 63) - 1, 0), ((1 << 62) + 1, 0), (0, (1 << 62) + 1)]
)
def test_a_journal_goes_nowhere_that_no_fragment_can_be(suspend_offset, spool_end):
    found = view(suspend_offset=suspend_offset, spool_end=spool_end)
    effect = preconditions(AppendRequest("a/journal"), found)
    assert isinstance(effect, Rollback)
    assert f"offset {suspend_offset or spool_end}, beyond" in effect.text


def test_content_waits_until_etcd_says_no_more_where_to_go_on():
    """A broker without our spool would begin before that content, with registers from before."""
    request, taken_back = (
        AppendRequest("a/journal"),
        WriteSuspend(SuspendSpec(SuspendLevel.NONE, 0)),
    )
    for found in (view(is_released=True), view(suspend_offset=7, spool_end=7)):
        assert preconditions(request, found, has_content=True) == taken_back
        assert isinstance(preconditions(request, found), TakeContent)
    assert isinstance(preconditions(request, view(), has_content=True), TakeContent)


def test_a_journal_goes_on_where_its_spec_says():
    found = view(suspend_offset=1 << 62)
    assert preconditions(AppendRequest("a/journal"), found) == Sync(roll_to=1 << 62)


def labels(count, length):
    return LabelSet(tuple(Label(f"label-{n:06}", "x" * length) for n in range(count)))


def test_registers_are_bounded_together():
    """Many small ones are as much for replicas and clients as one that is large."""
    assert registers_problem(LabelSet.of(a="x" * ((256 << 10) - 8 - 1))) == ""
    assert "would take 262145 bytes" in registers_problem(LabelSet.of(a="x" * ((256 << 10) - 8)))
    many = LabelSet.of(**{f"r{number:07}": "" for number in range(16_384)})
    assert registers_problem(many) == ""
    more = LabelSet.of(**{f"r{number:07}": "" for number in range(16_385)})
    assert "would take 262160 bytes" in registers_problem(more)


def test_an_append_may_not_add_registers_beyond_the_bound_and_may_take_some_away():
    many = labels(1000, 240)
    more = AppendRequest("a/journal", union_registers=LabelSet.of(more="x" * 10_000))
    fewer = AppendRequest("a/journal", subtract_registers=labels(500, 500))
    for request, kind in ((more, Rollback), (fewer, events.Commit)):
        before = many if request is more else labels(1000, 500)
        machine = fsm.AppendFSM(request, state=fsm.State.STREAM, view=view(registers=before))
        machine.step(events.Content(1))
        assert isinstance(machine.step(events.ContentEnd()), kind)
