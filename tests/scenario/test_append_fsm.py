"""The append state machine: Gazette's scenarios FS1 to FS27, as far as one broker meets them.

A scenario is a transcript: events go in, and the effects that come out are compared. What needs
tasks, files or peers (cancellation, sharing a pipeline, the messages of FS3 to FS5, FS20, FS24 and
FS26) is in test_broker_appender*.py, test_broker_replicator.py, test_broker_pipeline.py and in the
integration tests.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from gazette_platform.broker.append.events import (
    Acknowledged,
    AppendRequest,
    AssignmentsFresh,
    AwaitReady,
    CheckAssignments,
    Commit,
    Content,
    ContentBroken,
    ContentEnd,
    CountReplicas,
    Fail,
    Finish,
    Forward,
    Ready,
    Replicas,
    ReplicaView,
    Resolve,
    Resolved,
    Rollback,
    Sync,
    TakeContent,
    Unhealthy,
    WriteSuspend,
    Written,
)
from gazette_platform.broker.append.fsm import (
    AppendFSM,
    State,
    must_roll,
    preconditions,
    updated_registers,
)
from gazette_platform.broker.replicate.fsm import Invalidated, Synced, SyncMismatch, WrongRoute
from gazette_platform.ops.text import SECOND_NS
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

NOW_S = 1_767_323_045.0
SPEC = JournalSpec("a/journal", 1, fragment=FragmentSpec(length=1024))
REQUEST = AppendRequest("a/journal")

ON_THE_WAY = [
    (Resolved(Status.OK, is_local_primary=True, spec=SPEC), Sync()),
    (Synced(), CheckAssignments()),
    (AssignmentsFresh(), CountReplicas()),
    (Replicas(1, 1, 100), AwaitReady()),
]


def spec(*, level=None, offset=0, flags=JournalFlag.O_RDWR, flush_s=0, length=1024):
    return dataclasses.replace(
        SPEC,
        flags=flags,
        suspend=SuspendSpec(level, offset) if level is not None else None,
        fragment=FragmentSpec(length=length, flush_interval_ns=flush_s * SECOND_NS),
    )


def view(of=SPEC, *, spool=(0, 0), index=(0, 0), mod_time=0, **registers):
    return ReplicaView(
        spec=of,
        spool_begin=spool[0],
        spool_end=spool[1],
        index_begin=index[0],
        index_end=index[1],
        index_mod_time=mod_time,
        registers=LabelSet.of(**registers),
        now_s=NOW_S,
    )


def request(**changes):
    return dataclasses.replace(REQUEST, **changes)


def play(machine, script):
    """Step through (event, effect) pairs, comparing each effect."""
    for event, expected in script:
        assert machine.step(event) == expected, (event, machine.story)


def at_ready(asked=REQUEST):
    machine = AppendFSM(asked)
    assert machine.start() == Resolve(asked.min_revision)
    play(machine, ON_THE_WAY)
    return machine


def streaming(asked=REQUEST, seen=None):
    machine = at_ready(asked)
    effect = machine.step(Ready(seen or view()))
    assert isinstance(effect, TakeContent), effect
    return machine


# ---------------------------------------------------------------------------------------- resolve
def test_the_whole_way_of_an_append():
    machine = at_ready(request(union_registers=LabelSet.of(a="1")))
    play(
        machine,
        [
            (Ready(view(b="2")), TakeContent(0)),
            (Content(3), None),
            (Content(3), None),
            (ContentEnd(), Commit(LabelSet.of(a="1", b="2"))),
            (Acknowledged(), Finish(Status.OK)),
        ],
    )
    assert machine.state is State.DONE
    assert machine.content_length == 6
    assert machine.story == [], "nothing was off the path"


@pytest.mark.parametrize(
    "status",
    [
        Status.JOURNAL_NOT_FOUND,
        Status.NO_JOURNAL_PRIMARY_BROKER,
        Status.INSUFFICIENT_JOURNAL_BROKERS,
        Status.NOT_JOURNAL_PRIMARY_BROKER,
    ],
)
def test_fs1_a_failed_resolution_ends_the_append(status):
    machine = AppendFSM(REQUEST)
    play(machine, [(Resolved(status, is_local_primary=False), Fail(status))])
    assert machine.state is State.DONE


def test_fs1_resolves_at_the_revision_asked_for():
    assert AppendFSM(request(min_revision=42)).start() == Resolve(42)


def test_fs1_another_primary_is_proxied_to():
    play(AppendFSM(REQUEST), [(Resolved(Status.OK, is_local_primary=False), Forward())])


def test_fs2_an_invalidated_wait_resolves_again():
    machine = AppendFSM(request(min_revision=7))
    play(machine, [ON_THE_WAY[0], (Invalidated(), Resolve(7)), *ON_THE_WAY])


# ------------------------------------------------------------------------------------------- sync
def test_fs3_a_peer_that_is_ahead_moves_the_spool():
    machine = AppendFSM(REQUEST)
    ahead = LabelSet.of(reg="")
    play(
        machine,
        [
            *ON_THE_WAY[:1],
            (SyncMismatch(892, ahead), Sync(892, ahead)),
            (Synced(), CheckAssignments()),
        ],
    )


def test_fs4_a_wrong_route_resolves_at_the_peers_revision():
    play(AppendFSM(REQUEST), [*ON_THE_WAY[:1], (WrongRoute(101), Resolve(101))])


def test_fs6_fs8_assignments_are_written_and_the_journal_resolved_again():
    machine = AppendFSM(REQUEST)
    play(machine, [*ON_THE_WAY[:2], (Written(77), Resolve(77)), *ON_THE_WAY])


@pytest.mark.parametrize("reached", [1, 2, 4])
def test_fs7_an_invalidation_resolves_again_from_wherever_it_waits(reached):
    machine = AppendFSM(REQUEST)
    play(machine, [*ON_THE_WAY[:reached], (Invalidated(), Resolve(0)), *ON_THE_WAY])


# ---------------------------------------------------------------------------------------- suspend
NOW = request(suspend=AppendSuspend.SUSPEND_NOW)
IF_FLUSHED = request(suspend=AppendSuspend.SUSPEND_IF_FLUSHED)
KEEP = request(suspend=AppendSuspend.SUSPEND_KEEP)
NO_RESUME = request(suspend=AppendSuspend.SUSPEND_NO_RESUME)
PARTIAL = spec(level=SuspendLevel.PARTIAL, offset=1024)


def test_fs9_suspend_now_of_a_journal_with_content_is_partial():
    machine = at_ready(NOW)
    play(
        machine,
        [
            (
                Ready(view(spool=(0, 1024), index=(0, 1024))),
                WriteSuspend(SuspendSpec(SuspendLevel.PARTIAL, 1024)),
            ),
            (Written(88), Resolve(88)),
            *ON_THE_WAY,
            (Ready(view(PARTIAL, spool=(0, 1024), index=(0, 1024))), TakeContent(1024)),
            (ContentEnd(), Commit(LabelSet())),
            (Acknowledged(), Finish(Status.SUSPENDED)),
        ],
    )


def test_fs9_the_open_fragment_is_rolled_even_if_it_is_not_the_first():
    """It would not be persisted else, until the next append."""
    machine = at_ready(NOW)
    play(machine, [(Ready(view(PARTIAL, spool=(512, 1024), index=(0, 1024))), TakeContent(1024))])


def test_fs10_suspend_keep_leaves_the_level():
    machine = at_ready(KEEP)
    play(
        machine,
        [
            (Ready(view(PARTIAL, spool=(1024, 1024), index=(0, 1024))), TakeContent(0)),
            (ContentEnd(), Commit(LabelSet())),
            (Acknowledged(), Finish(Status.OK)),
        ],
    )


@pytest.mark.parametrize("asked", [KEEP, NOW, IF_FLUSHED])
def test_fs11_suspending_appends_take_no_content(asked):
    machine = streaming(asked, view(PARTIAL, spool=(1024, 1024), index=(0, 1024)))
    play(machine, [(Content(3), Rollback(status=Status.NOT_ALLOWED))])
    assert machine.state is State.DONE


@pytest.mark.parametrize("asked", [NOW, IF_FLUSHED])
def test_fs12_an_empty_index_is_suspended_fully(asked):
    machine = at_ready(asked)
    full = SuspendSpec(SuspendLevel.FULL, 1024)
    play(
        machine,
        [
            (Ready(view(PARTIAL, spool=(1024, 1024))), WriteSuspend(full)),
            (Written(99), Resolve(99)),
            (
                Resolved(Status.SUSPENDED, False, spec(level=SuspendLevel.FULL, offset=1024)),
                Fail(Status.SUSPENDED),
            ),
        ],
    )


@pytest.mark.parametrize(
    ("mod_time", "flush_s", "suspends"),
    [
        (0, 60, False),  # the last fragment is local
        (NOW_S - 59, 60, False),
        (NOW_S - 61, 60, True),
        (NOW_S - 86_000, 0, False),  # without an interval a day counts
        (NOW_S - 86_500, 0, True),
    ],
)
def test_fs12_suspend_if_flushed_asks_for_a_quiet_interval(mod_time, flush_s, suspends):
    seen = view(spec(flush_s=flush_s), spool=(10, 10), index=(0, 10), mod_time=mod_time)
    expected = WriteSuspend(SuspendSpec(SuspendLevel.PARTIAL, 10)) if suspends else TakeContent(0)
    assert preconditions(IF_FLUSHED, seen) == expected


@pytest.mark.parametrize("asked", [NO_RESUME, KEEP, NOW, IF_FLUSHED])
def test_fs13_a_fully_suspended_journal_is_left_alone(asked):
    suspended = Resolved(Status.SUSPENDED, False, spec(level=SuspendLevel.FULL, offset=1024))
    play(AppendFSM(asked), [(suspended, Fail(Status.SUSPENDED))])


def test_fs13_suspend_no_resume_of_a_partly_suspended_journal():
    seen = view(PARTIAL, spool=(1024, 1024), index=(0, 1024))
    assert preconditions(NO_RESUME, seen) == Fail(Status.SUSPENDED)


def test_fs14_resume_begins_where_the_journal_was_suspended():
    full = spec(level=SuspendLevel.FULL, offset=1024)
    none = spec(level=SuspendLevel.NONE, offset=1024)
    machine = AppendFSM(REQUEST)
    play(
        machine,
        [
            (
                Resolved(Status.SUSPENDED, False, full),
                WriteSuspend(SuspendSpec(SuspendLevel.NONE, 1024)),
            ),
            (Written(55), Resolve(55)),
            *ON_THE_WAY,
            (Ready(view(none)), Sync(1024)),
            *ON_THE_WAY[1:],
            (Ready(view(none, spool=(1024, 1024))), TakeContent(0)),
        ],
    )


def test_fs14_resume_of_a_partly_suspended_journal():
    machine = at_ready()
    play(
        machine,
        [
            (
                Ready(view(PARTIAL, spool=(1024, 1030), index=(0, 1030))),
                WriteSuspend(SuspendSpec(SuspendLevel.NONE, 1030)),
            ),
            (Written(56), Resolve(56)),
        ],
    )


def test_content_behind_a_resumption_offset_takes_it_back():
    """Else a broker that begins with an empty spool would go on where others did."""
    noted = spec(level=SuspendLevel.NONE, offset=1024)
    machine = AppendFSM(REQUEST, has_content=True)
    play(
        machine,
        [
            *ON_THE_WAY,
            (Ready(view(noted, index=(0, 1024))), Sync(1024)),
            *ON_THE_WAY[1:],
            (
                Ready(view(noted, spool=(1024, 1024), index=(0, 1024))),
                WriteSuspend(SuspendSpec(SuspendLevel.NONE, 0)),
            ),
            (Written(57), Resolve(57)),
            *ON_THE_WAY,
            (Ready(view(spool=(1024, 1024), index=(0, 1024))), TakeContent(0)),
        ],
    )


@pytest.mark.parametrize(
    ("asked", "seen", "effect"),
    [
        (request(offset=9), view(index=(0, 20), spool=(10, 20)), Fail(Status.WRONG_APPEND_OFFSET)),
        (REQUEST, view(index=(0, 30), spool=(10, 20)), Fail(Status.INDEX_HAS_GREATER_OFFSET)),
    ],
)
def test_an_append_that_is_refused_leaves_the_resumption_offset(asked, seen, effect):
    seen = seen._replace(spec=spec(level=SuspendLevel.NONE, offset=20))
    assert preconditions(asked, seen, has_content=True) == effect


# --------------------------------------------------------------------------------------- replicas
@pytest.mark.parametrize(
    ("replicas", "effect"),
    [
        (Replicas(2, 2, 50), AwaitReady()),
        (Replicas(3, 2, 50), Resolve(51)),
        (Replicas(1, 2, 50), Fail(Status.INSUFFICIENT_JOURNAL_BROKERS)),
        (Replicas(1, 2, 50, may_wait=True), Resolve(51)),
    ],
)
def test_fs15_replicas_are_counted(replicas, effect):
    play(AppendFSM(REQUEST), [*ON_THE_WAY[:3], (replicas, effect)])


# ---------------------------------------------------------------------------------- preconditions
def test_fs16_an_unhealthy_store_refuses():
    text = "fragment store file:///test/ unhealthy: too bad"
    play(at_ready(), [(Unhealthy(text), Fail(Status.FRAGMENT_STORE_UNHEALTHY, text))])


def test_fs16_a_store_that_recovers_starts_over():
    play(at_ready(), [(Invalidated(), Resolve(0)), *ON_THE_WAY, (Ready(view()), TakeContent(0))])


def test_fs17_spool_and_index_agree():
    assert preconditions(REQUEST, view(spool=(100, 123), index=(0, 123))) == TakeContent(0)


@pytest.mark.parametrize(
    ("selector", "registers", "effect"),
    [
        ("reg=two", {}, TakeContent(0)),  # a journal without registers was never written with any
        ("reg=two", {"reg": "one"}, Fail(Status.REGISTER_MISMATCH)),
        ("reg=one", {"reg": "one"}, TakeContent(0)),
        ("!other", {"reg": "one"}, TakeContent(0)),
        ("!reg", {"reg": "one"}, Fail(Status.REGISTER_MISMATCH)),
        ("reg in (zero, one)", {"reg": "one"}, TakeContent(0)),
    ],
)
def test_fs18_registers_are_checked(selector, registers, effect):
    asked = request(check_registers=LabelSelector.parse(selector))
    assert preconditions(asked, view(spool=(10, 20), index=(0, 20), **registers)) == effect


@pytest.mark.parametrize(
    ("offset", "flags", "effect"),
    [
        (0, JournalFlag.O_RDWR, Fail(Status.INDEX_HAS_GREATER_OFFSET)),
        (0, JournalFlag.NOT_SPECIFIED, Fail(Status.INDEX_HAS_GREATER_OFFSET)),
        (0, JournalFlag.O_RDONLY, TakeContent(0)),
        (455, JournalFlag.O_RDWR, Fail(Status.WRONG_APPEND_OFFSET)),
        (123, JournalFlag.O_RDWR, Fail(Status.WRONG_APPEND_OFFSET)),
        (456, JournalFlag.O_RDWR, Sync(456)),
    ],
)
def test_fs19_an_index_ahead_of_the_spool(offset, flags, effect):
    seen = view(spec(flags=flags), spool=(100, 123), index=(0, 456))
    assert preconditions(request(offset=offset), seen) == effect


def test_aa12_a_wrong_offset():
    assert preconditions(request(offset=512), view(index=(0, 1024))) == Fail(
        Status.WRONG_APPEND_OFFSET
    )


def test_preconditions_hold_in_their_order():
    """Registers before the suspension's offset, and that before what the index holds."""
    seen = view(spec(level=SuspendLevel.NONE, offset=900), spool=(0, 10), index=(0, 500), reg="one")
    mismatched = request(check_registers=LabelSelector.parse("reg=two"), offset=3)
    assert preconditions(mismatched, seen) == Fail(Status.REGISTER_MISMATCH)
    assert preconditions(request(offset=3), seen) == Sync(900)
    rolled = seen._replace(spool_begin=900, spool_end=900)
    assert preconditions(request(offset=3), rolled) == Fail(Status.WRONG_APPEND_OFFSET)


def test_fs21_the_second_append_flushes_the_first():
    """So that the store shows early that the journal is in use."""
    assert preconditions(REQUEST, view(spool=(0, 6), index=(0, 6))) == TakeContent(6)
    assert preconditions(REQUEST, view(spool=(6, 9), index=(0, 9))) == TakeContent(0)


def test_fs27_reset_head():
    """The store holds more than brokers remember: an append at its end resets the spool."""
    ahead = view(index=(0, 1024))
    play(at_ready(), [(Ready(ahead), Fail(Status.INDEX_HAS_GREATER_OFFSET))])
    play(
        at_ready(request(offset=1024)),
        [
            (Ready(ahead), Sync(1024)),
            *ON_THE_WAY[1:],
            (Ready(view(spool=(1024, 1024), index=(0, 1024))), TakeContent(0)),
            (ContentEnd(), Commit(LabelSet())),
            (Acknowledged(), Finish(Status.OK)),
        ],
    )
    play(at_ready(), [(Ready(view(spool=(1024, 1024), index=(0, 1024))), TakeContent(0))])


# ---------------------------------------------------------------------------------------- content
@pytest.mark.parametrize(
    "text",
    [
        "append stream: Journal: cannot begin with '/' (/invalid)",
        "append stream: expected Content chunk",
        "append stream: unexpected EOF",
        "append stream: expected EOF after empty Content chunk",
    ],
)
def test_fs22_broken_content_is_rolled_back(text):
    machine = streaming()
    play(machine, [(Content(3), None), (ContentBroken(text), Rollback(text))])
    assert machine.state is State.DONE


def test_fs21_aa6_registers_change_only_with_content():
    text = "append stream: register modification requires non-empty Append"
    for asked in (
        request(union_registers=LabelSet.of(a="1")),
        request(subtract_registers=LabelSet.of(a="1")),
    ):
        play(streaming(asked), [(ContentEnd(), Rollback(text))])


def test_fs23_a_read_only_journal_takes_barriers_only():
    read_only = view(spec(flags=JournalFlag.O_RDONLY))
    play(
        streaming(REQUEST, read_only),
        [(ContentEnd(), Commit(LabelSet())), (Acknowledged(), Finish(Status.OK))],
    )
    play(streaming(REQUEST, read_only), [(Content(1), Rollback(status=Status.NOT_ALLOWED))])


def test_an_event_out_of_place_is_a_fault_of_the_shell():
    with pytest.raises(RuntimeError, match=r"append of a/journal: Acknowledged\(\) in State\.RES"):
        AppendFSM(REQUEST).step(Acknowledged())
    machine = at_ready()
    with pytest.raises(RuntimeError):
        machine.step(ContentEnd())


def test_an_append_starts_over_until_its_content_is_taken():
    """And once it ended, so a refusal without a receiver can be looked at again."""
    machine = streaming()
    assert machine.start_over() == Resolve(0)
    machine = streaming()
    machine.step(Content(3))
    with pytest.raises(RuntimeError, match="append of a/journal: it cannot start over"):
        machine.start_over()
    machine.step(ContentBroken("gone"))
    assert machine.state is State.DONE
    assert machine.start_over() == Resolve(0)
    assert machine.content_length == 0


def test_detours_off_the_path_are_reported():
    machine = AppendFSM(REQUEST)
    play(machine, [*ON_THE_WAY[:2], (Written(77), Resolve(77))])
    assert machine.story == ["ASSIGNMENTS: Written(revision=77)"]


# -------------------------------------------------------------------------------------- registers
def test_aa2_registers_are_subtracted_from_then_united():
    held = LabelSet()
    held = updated_registers(held, request(union_registers=LabelSet.of(AA="11", BB="22")))
    assert held == LabelSet.of(AA="11", BB="22")
    held = updated_registers(
        held,
        request(
            subtract_registers=LabelSet.of(AA="11", BB="XYZ"), union_registers=LabelSet.of(CC="33")
        ),
    )
    assert held == LabelSet.of(BB="22", CC="33"), "BB stays: its value differs"
    held = updated_registers(
        held,
        request(subtract_registers=LabelSet.of(CC="33"), union_registers=LabelSet.of(AA="44")),
    )
    assert held == LabelSet.of(AA="44", BB="22")
    assert updated_registers(held, REQUEST) is held


def test_united_registers_replace_those_of_their_name():
    """Else no writer could fence another off, nor compare and set twice."""
    held = updated_registers(
        LabelSet.of(author="a", epoch="1"), request(union_registers=LabelSet.of(author="b"))
    )
    assert held == LabelSet.of(author="b", epoch="1")


# ------------------------------------------------------------------------------------------ rolls
def at(hour, minute=0, second=0):
    return datetime(2026, 1, 2, hour, minute, second, tzinfo=UTC)


@pytest.mark.parametrize(
    ("span", "roll_to", "rolls"),
    [
        ((5, 5), 0, True),  # empty: takes on the codec
        ((0, 1024), 0, False),  # the length is exceeded by an append, never reached exactly
        ((0, 1025), 0, True),
        ((10, 20), 20, True),
        ((20, 30), 20, False),
    ],
)
def test_r3_rolls_by_length_and_offset(span, roll_to, rolls):
    begin, end = span
    assert rolls == must_roll(
        SPEC, begin=begin, end=end, first_append_at=at(1), now_s=at(2).timestamp(), roll_to=roll_to
    )


@pytest.mark.parametrize(
    ("interval_s", "first", "now", "rolls"),
    [
        (3600, at(1, 59, 59), at(2), True),  # windows are aligned to UTC
        (3600, at(1), at(1, 59, 59), False),
        (3600, at(1), at(5), True),
        (60, at(1, 0, 59), at(1, 1), True),
        (0, at(1), at(23), False),
        (3600, None, at(5), False),
    ],
)
def test_r3_rolls_at_the_end_of_the_flush_window(interval_s, first, now, rolls):
    assert rolls == must_roll(
        spec(flush_s=interval_s), begin=0, end=10, first_append_at=first, now_s=now.timestamp()
    )


def test_replicas_that_change_before_content_send_an_append_back():
    """Those before it were being written, and the replicas failed meanwhile."""
    machine = streaming(request(min_revision=7))
    assert machine.step(Invalidated()) == Resolve(7)
    play(machine, ON_THE_WAY)


def test_replicas_that_change_after_content_do_not():
    machine = streaming()
    assert machine.step(Content(3)) is None
    with pytest.raises(RuntimeError):
        machine.step(Invalidated())
