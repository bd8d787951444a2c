"""What the protocol allows during faults is left out of a report, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gazette_platform.protocol import LabelSet
from tests.chaos.allowed import allow, check_but_allow
from tests.chaos.availability import unavailable_s_max
from tests.chaos.plan import FaultKind
from tests.chaos.readers import ReaderKind, _session_s
from tests.checker import Anomaly, Report
from tests.checker.history import (
    Append,
    FinalContent,
    History,
    Outcome,
    Piece,
    Poll,
)

KILLED = (9.5, 12, "last-replica")


def poll(completed_at, *pieces, **fields):
    told = {"write_head": pieces[-1].end} if pieces else {}
    return Poll(
        id=1,
        process="r",
        journal="a",
        offset=0,
        invoked_at=9,
        completed_at=completed_at,
        outcome=Outcome.OK,
        pieces=pieces,
        **{"stream": 1} | told | fields,
    )


def append(invoked_at, registers=None, outcome="ok", **fields):
    return Append(
        id=2,
        process="w",
        journal="a",
        invoked_at=invoked_at,
        outcome=Outcome(outcome),
        registers=registers,
        **{"content": b"x", "completed_at": invoked_at + 1} | fields,
    )


def left(anomaly, *spans, appends=(), polls=(), replication=3):
    """How many anomalies are left of this one."""
    report = Report(anomalies=[anomaly])
    ops = [op for op in anomaly.operations if isinstance(op, Append)]
    history = History(appends=[*ops, *appends], polls=list(polls))
    history.finals["a"] = FinalContent("a", 0, b"x" * 100)
    allowed = allow(report, history, spans, replication=replication)
    assert sum(allowed.values()) + len(report.anomalies) == 1
    return report.anomaly_count


def test_read_of_what_only_killed_brokers_had_is_allowed_while_they_are_killed():
    lost = append(9, outcome="unknown")
    seen = Anomaly("precommitted-read", "a", "r read x", (lost, poll(10)))
    assert left(seen, KILLED) == 0
    for kind in ("kill", "kill-all", "spool-lost", "spool-file-lost", "spool-torn"):
        assert left(seen, (9.5, 12, kind)) == 0
    assert left(seen, (9.5, 12, "reset")) == 1
    for kind in ("restart-killed", "old-listing", "aged-holders", "spool-copied"):
        assert left(seen, (9.5, 12, kind)) == 1, "its kill is a span of its own"
    assert left(seen, (20, 22, "last-replica")) == 1
    assert left(seen) == 1
    assert left(seen, KILLED, replication=1) == 1, "it is recorded before anybody sees it"


def test_read_of_an_earlier_attempt_is_allowed_while_its_brokers_are_killed():
    retried = append(9, attempts=2, completed_at=20)
    assert left(Anomaly("precommitted-read", "a", "r read x", (retried, poll(10))), KILLED) == 0
    once = append(9, completed_at=20)
    assert left(Anomaly("precommitted-read", "a", "r read x", (once, poll(10))), KILLED) == 1


def test_read_of_what_was_not_under_way_when_brokers_were_killed_is_not_allowed():
    for lost in (
        append(2, outcome="unknown"),  # given up long before
        append(10.5, outcome="unknown"),  # invoked after it was read
    ):
        assert left(Anomaly("precommitted-read", "a", "r read x", (lost, poll(10))), KILLED) == 1
    other = append(9, outcome="unknown")
    garbage = Anomaly("precommitted-read", "a", "r got [0, 7), which differs", (poll(10),))
    assert left(garbage, KILLED, appends=[other]) == 1


@pytest.mark.parametrize(("head", "count"), [(150, 0), (151, 1)])
def test_head_that_was_never_reached_goes_too_far_by_what_was_under_way(head, count):
    lost = append(9, outcome="unknown", content=b"x" * 50)
    text = "r got a write head, beyond 100"
    beyond = Anomaly("precommitted-read", "a", text, (poll(10, write_head=head),))
    assert left(beyond, KILLED, appends=[lost]) == count
    assert left(beyond, KILLED) == 1
    assert left(beyond, KILLED, appends=[replace(lost, journal="b")]) == 1


@pytest.mark.parametrize(("head", "count"), [(150, 0), (151, 1)])
def test_head_of_the_future_goes_too_far_by_what_was_under_way(head, count):
    lost = append(9, outcome="unknown", content=b"x" * 50)
    later = append(20, begin=100, end=101)
    text = "r got a write head before w, which lies below it, was invoked"
    early = Anomaly("G1c-realtime", "a", text, (poll(10, write_head=head), later))
    assert left(early, KILLED, appends=[lost]) == count
    assert left(early, KILLED) == 1
    content = Anomaly("G1c-realtime", "a", "r read w before it was invoked", (poll(10), later))
    assert left(content, KILLED, appends=[lost]) == 1


@pytest.mark.parametrize(("head", "count"), [(152, 0), (153, 1)])
def test_head_goes_back_by_what_was_under_way(head, count):
    lost = append(9, outcome="unknown", content=b"x" * 50)
    slow = append(9.9, content=b"yy", completed_at=30)
    told = poll(10, write_head=head)
    back = Anomaly("nonmonotonic-head", "a", "got a write head", (told, poll(11, write_head=100)))
    assert left(back, KILLED, appends=[lost, slow]) == count
    assert left(back, KILLED, appends=[slow]) == 1
    early = replace(back, operations=(poll(5, write_head=head), poll(11, write_head=100)))
    assert left(early, KILLED, appends=[lost, slow]) == 1


@pytest.mark.parametrize(("head", "count"), [(150, 0), (151, 1)])
def test_head_goes_back_by_what_was_under_way_as_all_ended_and_is_stored_later(head, count):
    lost = append(9, outcome="unknown", content=b"x" * 50)
    polls = poll(25, write_head=head), poll(26, write_head=100)
    back = Anomaly("nonmonotonic-head", "a", "got a write head", polls)
    assert left(back, (8, 12, "etcd-away"), appends=[lost]) == count
    assert left(back, (8, 12, "kill"), appends=[lost]) == 1
    assert left(back, (8, 12, "etcd-away")) == 1
    assert left(back, (8, 12, "etcd-away"), appends=[lost], replication=1) == 1
    late = replace(back, operations=(poll(80, write_head=head), poll(81, write_head=100)))
    assert left(late, (8, 12, "etcd-away"), appends=[lost]) == 1


@pytest.mark.parametrize("name", ["lost-write", "inconsistent-offsets", "G1a", "stale-head"])
def test_what_was_acknowledged_is_never_excused(name):
    anomaly = Anomaly(name, "a", "text", (append(9), poll(10)))
    every = [(9.5, 12, kind) for kind in FaultKind]
    assert left(anomaly, *every) == left(anomaly, *every, replication=1) == 1


def test_registers_outlive_all_brokers():
    held, none = LabelSet.of({"a": "b"}), LabelSet()
    gone = Anomaly("nonlinearizable", "a", "got {}", (append(5, held), append(20, none)))
    for kind in FaultKind:
        assert left(gone, (9.5, 12, kind)) == 1


def test_registers_are_empty_and_nothing_else_after_a_journal_was_suspended():
    held, set_by = LabelSet.of({"a": "b"}), LabelSet.of({"c": "d"})
    both = LabelSet.of({"a": "b", "c": "d"})
    for second, count in [
        (append(20, set_by, union=set_by), 0),
        (append(20, both, union=set_by), 1),
        (append(20, LabelSet.of({"a": "z"}), union=set_by), 1),
        # Empty registers match whatever is asked.
        (append(20, outcome="fail", error="RegisterMismatch"), 1),
        (append(20, outcome="unknown"), 0),
    ]:
        anomaly = Anomaly("nonlinearizable", "a", "got", (append(5, held), second))
        report = Report(anomalies=[anomaly])
        allow(report, History(), [], [(6, 7, "a")], replication=3)
        assert len(report.anomalies) == count, second


def test_registers_are_empty_after_a_journal_was_suspended():
    held, none = LabelSet.of({"a": "b"}), LabelSet()
    gone = Anomaly("nonlinearizable", "a", "got {}", (append(5, held), append(20, none)))
    other = replace(gone, operations=(append(5, held), append(20, LabelSet.of({"a": "z"}))))
    for anomaly, suspension, count in [
        (gone, (6, 7, "a"), 0),
        (gone, (6, 7, "b"), 1),
        (gone, (3, 4, "a"), 1),
        (gone, (40, 41, "a"), 1),
        (other, (6, 7, "a"), 1),
    ]:
        report = Report(anomalies=[anomaly])
        allow(report, History(), [], [suspension], replication=3)
        assert len(report.anomalies) == count, suspension


@pytest.mark.parametrize("name", ["stale-head", "nonmonotonic-head"])
def test_head_that_comes_with_content_may_be_old_and_one_that_ends_a_read_may_not(name):
    piece, fault, begun = Piece.of(0, b"content"), (8, 9, "pause"), [append(-100)]
    old = Anomaly(name, "a", "got 7", (append(5), poll(10, piece)))
    assert left(old, fault, appends=begun) == 0
    assert left(Anomaly(name, "a", "got 7", (poll(9, piece), poll(10))), fault, appends=begun) == 1
    assert left(old, appends=begun) == 1, "nothing moves without a fault"
    assert left(old, (11, 12, "pause"), appends=begun) == 1
    assert (
        left(Anomaly(name, "a", "told", (append(5), poll(100, piece))), fault, appends=begun) == 1
    )
    assert (
        left(Anomaly(name, "a", "told", (poll(10, piece, write_head=6),)), fault, appends=begun)
        == 1
    ), "who has content knows of it"


@pytest.mark.parametrize(("begun_at", "count"), [(5, 0), (-60, 1)])
def test_head_may_be_old_while_journals_are_assigned_for_the_first_time(begun_at, count):
    """A replica that is made after the first fragment knows no more than what the store has."""
    old = Anomaly("stale-head", "a", "got 7", (append(5), poll(10, Piece.of(0, b"content"))))
    report = Report(anomalies=[old])
    allow(report, History(appends=[append(begun_at)]), [], replication=3)
    assert len(report.anomalies) == count


@pytest.mark.parametrize(("met", "streams", "count"), [(10, 10, 0), (11, 10, 11), (30, 300, 0)])
def test_heads_are_old_for_few_readers(met, streams, count):
    """As when brokers report the end of a fragment in place of that of the journal."""
    polls = [poll(10, Piece.of(0, b"x"), stream=n) for n in range(streams + met)]
    old = [Anomaly("stale-head", "a", "told", (append(5), one)) for one in polls[:met]]
    old.append(replace(old[0], text="a stream may report it often"))
    report = Report(anomalies=list(old))
    allow(report, History(polls=polls[:streams]), [(8, 9, "pause")], replication=3)
    assert len(report.anomalies) == (count and count + 1)


def test_those_that_were_only_counted_go_with_their_like():
    lost = append(9, outcome="unknown")
    seen = Anomaly("precommitted-read", "a", "r read x", (lost, poll(10)))
    report = Report(anomalies=[seen])
    report.suppressed["precommitted-read"] = 3
    report.suppressed["lost-write"] = 2
    history = History(appends=[lost])
    assert allow(report, history, [KILLED], replication=3) == {"precommitted-read": 4}
    assert report.anomaly_count == 2


def test_many_that_are_allowed_hide_none_that_is_not():
    """Heads that come with content may be late, and a read that ends at one of them may not."""
    ops = [replace(append(1), id=n, begin=n, end=n + 1) for n in range(2)]
    late = [replace(poll(9.5, Piece.of(0, b"x")), id=n, stream=n) for n in range(2, 12)]
    ends = replace(late[0], id=99, stream=99, pieces=())
    history = History(appends=ops, polls=[*late, ends])
    history.finals["a"] = FinalContent("a", 0, b"xx")
    report, allowed = check_but_allow(history, [(9.0, 9.2, "pause")], replication=3)
    assert allowed == {"stale-head": len(late)}
    assert [anomaly.operations for anomaly in report.anomalies] == [(ops[1], ends)]
    assert report.anomaly_count == 1


@pytest.mark.parametrize(("waited_s", "names"), [(66, []), (67, ["stuck-read"])])
def test_readers_may_wait_for_as_long_as_appends_are_refused(waited_s, names):
    limit_s = unavailable_s_max(6.0)
    assert limit_s == 66
    op = append(1, begin=0, end=1, completed_at=2)
    stuck = replace(poll(9 + waited_s), outcome=Outcome.FAIL, error="CancelledError")
    history = History(appends=[op], polls=[stuck])
    history.finals["a"] = FinalContent("a", 0, b"x")
    report, _ = check_but_allow(history, [KILLED], replication=3, lag_s_max=limit_s)
    assert [anomaly.name for anomaly in report.anomalies] == names


def test_some_tails_stay_until_it_is_certain_that_they_are_stuck():
    rng = random.Random(7)
    tails = [_session_s(rng, ReaderKind.TAIL, 6.0) for _ in range(100)]
    assert 10 < sum(session_s > unavailable_s_max(6.0) for session_s in tails) < 50
    assert max(_session_s(rng, ReaderKind.BATCH, 6.0) for _ in range(100)) <= 20
