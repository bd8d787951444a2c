"""The pure parts of a chaos run: plans, payloads, unavailability, and who is to blame."""

from __future__ import annotations

import itertools
import math

import pytest

from gazette_platform.testing.chaos import ALL_KINDS, ChaosConfig, WorkloadConfig, make_plan
from gazette_platform.testing.chaos.__main__ import main
from gazette_platform.testing.chaos.availability import Gap, gaps_of, longest_by_kind
from gazette_platform.testing.chaos.plan import KINDS_WITHOUT_REPLICAS, FaultKind
from gazette_platform.testing.chaos.runner import ChaosResult
from gazette_platform.testing.chaos.watchdog import Stall, starved_s
from gazette_platform.testing.chaos.workload import writes_of
from gazette_platform.testing.checker import Anomaly, Report
from gazette_platform.testing.history import Append, History, Outcome

ZONES = {"broker-1": "a", "broker-2": "a", "broker-3": "b", "broker-4": "b", "broker-5": "c"}
PLAN_7 = [
    "    3.0 s  etcd-restart for 1.2 s",
    "   14.8 s  drain-zone broker-3 broker-4",
    "   31.1 s  store-cut for 2.4 s",
]


def plan(seed=7, duration_s=600.0, kinds=ALL_KINDS, lease_s=6.0):
    return make_plan(seed, duration_s=duration_s, zones=ZONES, lease_s=lease_s, kinds=kinds)


def test_plan_follows_from_the_seed():
    assert plan() == plan()
    assert plan(seed=8) != plan()
    # A seed that was reported must find the same faults in a year.
    assert [str(fault) for fault in plan()[:3]] == PLAN_7


def test_plan_has_every_kind_about_as_often():
    counts = [sum(fault.kind is kind for fault in plan()) for kind in ALL_KINDS]
    assert min(counts) >= 2
    assert max(counts) - min(counts) <= 1


def test_faults_follow_one_another_and_end_within_the_run():
    faults = plan(duration_s=300.0)
    for one, two in itertools.pairwise(faults):
        assert two.at_s >= one.at_s + one.duration_s + 6.0 + 3.0
    assert faults[-1].at_s + faults[-1].duration_s + 6.0 <= 300.0


def test_pauses_outlast_the_lease_and_etcd_does_not():
    for seed in range(20):
        for fault in plan(seed):
            if fault.kind is FaultKind.PAUSE:
                assert fault.duration_s >= 7.2
            if fault.kind is FaultKind.ETCD_RESTART:
                assert fault.duration_s <= 1.5
                assert fault.targets == ()


def test_zone_is_drained_as_a_whole():
    drained = {f.targets for f in plan() if f.kind is FaultKind.DRAIN_ZONE}
    assert drained <= {("broker-1", "broker-2"), ("broker-3", "broker-4"), ("broker-5",)}
    assert drained


def test_plan_of_no_kinds_is_empty():
    assert plan(kinds=()) == ()


def test_short_plan_has_faults():
    assert len(plan(duration_s=60.0)) >= 2


def test_kinds_depend_on_the_replication(tmp_path):
    def kinds(replication, **options):
        workload = WorkloadConfig(replication=replication)
        return ChaosConfig(etcd_binary=tmp_path, workload=workload, **options).kinds_chosen

    assert kinds(3) == ALL_KINDS
    assert kinds(1) == KINDS_WITHOUT_REPLICAS
    assert FaultKind.KILL not in kinds(1)
    assert kinds(1, kinds=[FaultKind.KILL]) == [FaultKind.KILL]


def test_writes_follow_from_the_seed():
    def first(seed, writer, count=200):
        return list(itertools.islice(writes_of(seed, writer, WorkloadConfig()), count))

    writes = first(7, 3)
    assert writes == first(7, 3)
    assert writes != first(8, 3)
    assert writes != first(7, 4)
    assert len({write.payload.tag for write in writes}) == 200
    assert len({write.journal for write in writes}) == 20
    assert any(write.is_contended for write in writes)
    assert all(write.pause_s >= 0.1 for write in writes)


# ------------------------------------------------------------------ availability


def append(invoked_at, completed_at, outcome="ok", journal="a/journal", error=""):
    return Append(
        id=0,
        process="w",
        journal=journal,
        content=b"x",
        invoked_at=invoked_at,
        completed_at=completed_at,
        outcome=Outcome(outcome),
        error=error,
    )


def test_gap_lasts_from_the_first_attempt_to_the_next_success():
    history = History(
        appends=[
            append(0, 0.1),
            append(1, 2, "unknown"),
            append(2, 3, "fail", error="NotAllowed"),
            append(3, 5),
            append(6, 6.1),
        ]
    )
    assert gaps_of(history) == [Gap("a/journal", 1, 5)]


def test_refusal_for_the_request_is_no_gap():
    history = History(appends=[append(0, 0.1, "fail", error="RegisterMismatch: x"), append(9, 9.1)])
    assert gaps_of(history) == []


def test_append_that_others_overtook_is_no_gap():
    assert gaps_of(History(appends=[append(0, 9), append(0.1, 0.2)])) == []


def test_journal_that_never_came_back_is_unavailable_to_the_end():
    history = History(
        appends=[append(1, 2, "unknown"), append(3, math.inf, "unknown"), append(8, 9, journal="b")]
    )
    assert gaps_of(history) == [Gap("a/journal", 1, 9), Gap("b", 8, 9)]


def test_longest_gap_of_each_kind():
    gaps = [Gap("a", 1, 2), Gap("a", 11, 14), Gap("b", 12, 13), Gap("b", 22, 22.5)]
    longest = longest_by_kind(gaps, [(10.0, "kill"), (20.0, "drain"), (30.0, "pause")])
    assert longest == {"none": gaps[0], "kill": gaps[1], "drain": gaps[3]}


def test_starved_time_is_counted_once():
    stalls = [
        Stall("machine", 1, 3),
        Stall("clients", 2, 4),
        Stall("machine", 6, 7),
        Stall("machine", 20, 30),
    ]
    assert starved_s(stalls, 0, 10) == 4
    assert starved_s(stalls, 2.5, 6.5) == 2
    assert starved_s([], 0, 10) == 0


# ------------------------------------------------------------------ the verdict


def result(**fields):
    defaults = {
        "seed": 7,
        "faults": 3,
        "report": Report(operations=10, appends_ok=9),
        "longest": {"drain": Gap("a", 1, 2.25)},
        "stalls": (),
        "folder": None,
    }
    return ChaosResult(**(defaults | fields))


def test_summary_says_how_it_went():
    assert (
        result().summary == "chaos: ok seed=7 ops=10 faults=3 anomalies=0 longest_unavailable_s=1.2"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"trouble": "TimeoutError"},
        {"report": Report(operations=1, appends_ok=0)},
        {"report": Report(appends_ok=1, anomalies=[Anomaly("lost-write", "a", "b")])},
    ],
)
def test_run_that_proved_nothing_or_too_much_is_not_ok(fields):
    assert not result(**fields).is_ok
    assert result(**fields).summary.startswith("chaos: FAILED ")


def test_wrong_options_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GAZETTE_ETCD", "/bin/true")
    assert main(["--faults", "flood"]) == 2
    assert "choose from kill, pause" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    for options, text in [
        (["--minutes", "-1"], "--minutes: must be positive (-1.0)"),
        (["--appends-per-s", "0"], "--appends-per-s: must be positive (0.0)"),
        (["--readers", "-1"], "--readers: must not be negative"),
        (["--zones", "ab"], "--replication: 3 replicas need as many brokers; --zones ab makes 2"),
    ]:
        assert main(options) == 2
        assert text in capsys.readouterr().err
    monkeypatch.delenv("GAZETTE_ETCD")
    monkeypatch.setenv("GAZETTE_TOOLS", "own")
    assert main([]) == 2
    assert "etcd-server" in capsys.readouterr().err
