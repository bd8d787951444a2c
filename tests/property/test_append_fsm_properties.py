"""An append that joins another one's plan goes on as if it had looked at everything itself."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gazette_platform.broker.append.events import (
    AppendRequest,
    AssignmentsFresh,
    Content,
    ContentEnd,
    Ready,
    Replicas,
    ReplicaView,
    Resolve,
    Resolved,
)
from gazette_platform.broker.append.fsm import AppendFSM, State
from gazette_platform.broker.replicate.fsm import Synced
from gazette_platform.protocol import (
    AppendSuspend,
    FragmentSpec,
    JournalFlag,
    JournalSpec,
    LabelSelector,
    LabelSet,
    Status,
    SuspendLevel,
    SuspendSpec,
)

OFFSETS = st.integers(0, 4)
REGISTERS = st.sampled_from([LabelSet(), LabelSet.of(reg="1"), LabelSet.of(reg="2")])
SUSPENDS = st.none() | st.builds(SuspendSpec, st.sampled_from(SuspendLevel), OFFSETS)


@st.composite
def requests(draw):
    return AppendRequest(
        "a/journal",
        offset=draw(OFFSETS),
        check_registers=draw(st.none() | st.just(LabelSelector.parse("reg=1"))),
        union_registers=draw(st.none() | REGISTERS),
        suspend=draw(st.sampled_from(AppendSuspend)),
        closes_fragment=draw(st.booleans()),
    )


@st.composite
def views(draw):
    begin, index_begin = draw(OFFSETS), draw(OFFSETS)
    return ReplicaView(
        spec=JournalSpec(
            "a/journal",
            1,
            fragment=FragmentSpec(length=1024),
            flags=draw(st.sampled_from([JournalFlag.O_RDWR, JournalFlag.O_RDONLY])),
            suspend=draw(SUSPENDS),
        ),
        spool_begin=begin,
        spool_end=begin + draw(OFFSETS),
        index_begin=index_begin,
        index_end=index_begin + draw(OFFSETS),
        index_mod_time=draw(st.sampled_from([0, 1])),
        registers=draw(REGISTERS),
        now_s=1e9,
    )


def rest(machine, length):
    """What becomes of it once its content exists."""
    if machine.state is not State.STREAM:
        return machine.state
    effect = machine.step(Content(length)) if length else None
    return effect or machine.step(ContentEnd())


@given(requests(), views(), st.booleans(), OFFSETS)
def test_joining_is_walking(request, view, has_content, length):
    walked, joined = (AppendFSM(request, has_content=has_content) for _ in range(2))
    walked.start()
    for event in (
        Resolved(Status.OK, is_local_primary=True, spec=view.spec),
        Synced(),
        AssignmentsFresh(),
        Replicas(1, 1, 10),
    ):
        walked.step(event)
    assert joined.join(view) == walked.step(Ready(view))
    assert rest(joined, length) == rest(walked, length)
    assert joined == walked


@given(requests(), views(), views(), OFFSETS)
def test_starting_over_forgets_what_it_was_judged_by(request, before, view, length):
    again, fresh = AppendFSM(request), AppendFSM(request)
    again.join(before)
    assert again.start_over() == Resolve(request.min_revision)
    assert again.join(view) == fresh.join(view)
    assert rest(again, length) == rest(fresh, length)
    assert (again.state, again.final_status) == (fresh.state, fresh.final_status)
