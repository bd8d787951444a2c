"""What the protocol allows during faults is left out of a report, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_platform.protocol import LabelSet
from gazette_platform.testing.chaos.allowed import allow, check_but_allow
from gazette_platform.testing.checker import Anomaly, Report
from gazette_platform.testing.history import (
    Append,
    FinalContent,
    History,
    Outcome,
    Piece,
    Poll,
)


def poll(completed_at, *pieces):
    return Poll(
        id=1,
        process="r",
        journal="a",
        stream=1,
        offset=0,
        invoked_at=9,
        completed_at=completed_at,
        pieces=pieces,
    )


def append(invoked_at, registers=None, outcome="ok"):
    return Append(
        id=2,
        process="w",
        journal="a",
        content=b"x",
        invoked_at=invoked_at,
        completed_at=invoked_at + 1,
        outcome=Outcome(outcome),
        registers=registers,
    )


def left(anomaly, *spans):
    report = Report(anomalies=[anomaly])
    allowed = allow(report, spans)
    assert sum(allowed.values()) + len(report.anomalies) == 1
    return report.anomaly_count


def test_read_of_what_only_killed_brokers_had_is_allowed_while_they_are_killed():
    seen = Anomaly("precommitted-read", "a", "r read x", (append(9, outcome="unknown"), poll(10)))
    assert left(seen, (9.5, 12, "last-replica")) == 0
    assert left(seen, (9.5, 12, "reset")) == 1
    assert left(seen, (20, 22, "last-replica")) == 1
    assert left(seen) == 1


@pytest.mark.parametrize("name", ["lost-write", "inconsistent-offsets", "G1a", "stale-head"])
def test_what_was_acknowledged_is_never_excused(name):
    anomaly = Anomaly(name, "a", "text", (append(9), poll(10)))
    assert left(anomaly, (9.5, 12, "last-replica"), (9.5, 12, "etcd-away")) == 1


def test_registers_are_empty_after_all_brokers_ended():
    held, none = LabelSet.of({"a": "b"}), LabelSet()
    gone = Anomaly("nonlinearizable", "a", "was told {}", (append(5, held), append(20, none)))
    assert left(gone, (9.5, 12, "restart-all")) == 0
    late_first = Anomaly("nonlinearizable", "a", "was told", (append(20, none), append(5, held)))
    assert left(late_first, (9.5, 12, "restart-all")) == 0
    assert left(gone, (9.5, 12, "kill")) == 1
    assert left(gone, (30, 32, "restart-all")) == 1
    wrong = Anomaly("nonlinearizable", "a", "told c", (append(15, held), append(20, held)))
    assert left(wrong, (9.5, 12, "restart-all")) == 1


def test_registers_are_empty_after_a_journal_was_suspended():
    gone = Anomaly(
        "nonlinearizable",
        "a",
        "was told {}",
        (append(5, LabelSet.of({"a": "b"})), append(20, LabelSet())),
    )
    for suspension, count in [
        ((6, 7, "a"), 0),
        ((6, 7, "b"), 1),
        ((3, 4, "a"), 1),
        ((40, 41, "a"), 1),
    ]:
        report = Report(anomalies=[gone])
        allow(report, [], [suspension])
        assert len(report.anomalies) == count, suspension


@pytest.mark.parametrize("name", ["stale-head", "nonmonotonic-head"])
def test_head_that_comes_with_content_may_be_old_and_one_that_ends_a_read_may_not(name):
    piece, fault = Piece.of(0, b"content"), (8, 9, "pause")
    old = Anomaly(name, "a", "told of 7", (append(5), poll(10, piece)))
    assert left(old, fault) == 0
    assert left(Anomaly(name, "a", "told of 7", (poll(9, piece), poll(10))), fault) == 1
    assert left(old) == 1, "nothing moves without a fault"
    assert left(old, (11, 12, "pause")) == 1
    assert left(Anomaly(name, "a", "told", (append(5), poll(100, piece))), fault) == 1


def test_those_that_were_only_counted_go_with_their_like():
    seen = Anomaly("precommitted-read", "a", "r read x", (poll(10),))
    report = Report(anomalies=[seen])
    report.suppressed["precommitted-read"] = 3
    report.suppressed["lost-write"] = 2
    assert allow(report, [(9.5, 12, "last-replica")]) == {"precommitted-read": 4}
    assert report.anomaly_count == 2


def test_many_that_are_allowed_hide_none_that_is_not():
    """Heads that come with content may be late, and a read that ends at one of them may not."""
    op = replace(append(1), begin=0, end=1)
    late = [
        replace(poll(9.5, Piece.of(0, b"x")), id=n, stream=n, outcome=Outcome.OK, write_head=0)
        for n in range(2, 20)
    ]
    ends = replace(late[0], id=99, stream=99, pieces=())
    history = History(appends=[op], polls=[*late, ends])
    history.finals["a"] = FinalContent("a", 0, b"x")
    report, allowed = check_but_allow(history, [(9.0, 9.2, "pause")])
    assert allowed == {"stale-head": len(late)}
    assert [anomaly.operations for anomaly in report.anomalies] == [(op, ends)]
    assert report.anomaly_count == 1
