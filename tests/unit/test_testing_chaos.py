"""The pure parts of a chaos run: plans, payloads, unavailability, and who is to blame."""

from __future__ import annotations

import itertools
import math

import pytest

from gazette_platform.testing.chaos import ALL_KINDS, ChaosConfig, WorkloadConfig, make_plan
from gazette_platform.testing.chaos.__main__ import main
from gazette_platform.testing.chaos.availability import Gap, gaps_of, longest_by_kind
from gazette_platform.testing.chaos.plan import KINDS_WITHOUT_REPLICAS, FaultKind
from gazette_platform.testing.chaos.verdict import ChaosResult, Evidence, reasons
from gazette_platform.testing.chaos.watchdog import Stall, starved_s
from gazette_platform.testing.chaos.writers import WriterKind, kind_of, writes_of
from gazette_platform.testing.checker import Anomaly, Report
from gazette_platform.testing.history import Append, History, Outcome

ZONES = {"broker-1": "a", "broker-2": "a", "broker-3": "b", "broker-4": "b", "broker-5": "c"}
JOURNALS = ("a/one", "a/two", "a/three")
KILLS_ALL = (FaultKind.KILL_ALL, FaultKind.SPOOL_LOST, FaultKind.SPOOL_TORN)
TAKES_SOME = (FaultKind.KILL, FaultKind.PAUSE, FaultKind.PARTITION)
TAKES_PROCESSES = (*KILLS_ALL, *TAKES_SOME, FaultKind.LAST_REPLICA, FaultKind.STALE_PRIMARY)
PLAN_7 = [
    "    3.0 s  etcd-away for 7.1 s",
    "   22.0 s  etcd-leader for 4.9 s",
    "   26.6 s  one-way broker-4 for 3.8 s",
]


def plan(seed=7, duration_s=600.0, kinds=ALL_KINDS, lease_s=6.0, replication=3):
    return make_plan(
        seed,
        duration_s=duration_s,
        zones=ZONES,
        lease_s=lease_s,
        replication=replication,
        journals=JOURNALS,
        kinds=kinds,
    )


def episodes(faults):
    return [[*group] for _, group in itertools.groupby(faults, key=lambda fault: fault.episode)]


def test_plan_follows_from_the_seed():
    assert plan() == plan()
    assert plan(seed=8) != plan()
    # A seed that was reported must find the same faults in a year.
    assert [str(fault) for fault in plan()[:3]] == PLAN_7


def test_plan_has_every_kind_about_as_often():
    counts = [sum(fault.kind is kind for fault in plan()) for kind in ALL_KINDS]
    assert min(counts) >= 2
    assert max(counts) - min(counts) <= 2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("duration_s", [1.0, 60.0, 200.0])
def test_short_plan_has_every_kind(seed, duration_s):
    assert {fault.kind for fault in plan(seed, duration_s)} == set(ALL_KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_minute_of_all_kinds_takes_little_more(seed):
    faults = plan(seed, 60.0, lease_s=3.0)
    assert max(fault.at_s + fault.duration_s for fault in faults) < 90


@pytest.mark.parametrize("seed", range(20))
def test_faults_overlap_or_follow_before_the_cluster_recovered(seed):
    together = [faults for faults in episodes(plan(seed)) if len(faults) > 1]
    assert len(together) > 5
    for faults in together:
        for one, two in itertools.pairwise(faults):
            assert one.at_s < two.at_s <= one.at_s + one.duration_s + 6.0
    # Also with those that take the process of brokers.
    assert any(fault.kind in TAKES_PROCESSES for faults in together for fault in faults)


def test_episodes_follow_one_another_and_end_within_the_run():
    found = episodes(plan(duration_s=400.0))
    for one, two in itertools.pairwise(found):
        mended_at = max(fault.at_s + fault.duration_s for fault in one)
        assert two[0].at_s >= mended_at + 6.0 + 2.9
    assert max(fault.at_s + fault.duration_s for fault in found[-1]) + 6.0 <= 400.0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("replication", [2, 3])
@pytest.mark.parametrize("duration_s", [60.0, 600.0])
def test_episode_takes_no_more_brokers_than_replicas_may_fail(seed, replication, duration_s):
    zones = {zone: {n for n in ZONES if ZONES[n] == zone} for zone in ZONES.values()}
    for faults in episodes(plan(seed, duration_s, replication=replication)):
        assert sum(fault.kind in TAKES_PROCESSES for fault in faults) <= 1
        for fault in faults:
            if fault.kind in TAKES_SOME:
                assert 0 < len(fault.targets) < replication or set(fault.targets) in zones.values()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("duration_s", [60.0, 600.0])
def test_spools_are_lost_or_torn_of_no_more_than_replicas_may_fail(seed, duration_s):
    for replication in (2, 3):
        faults = plan(seed, duration_s, replication=replication)
        lost = [f for f in faults if f.kind in (FaultKind.SPOOL_LOST, FaultKind.SPOOL_TORN)]
        assert {f.kind for f in lost} == {FaultKind.SPOOL_LOST, FaultKind.SPOOL_TORN}
        assert all(0 < len(f.targets) < replication for f in lost)
    torn = plan(seed, duration_s, replication=1, kinds=[FaultKind.SPOOL_TORN])
    assert {f.targets for f in torn} == {()}, "what is recorded is torn of nobody"
    # Whoever asks for it gets it: this is a loss, and has to be found.
    lost = plan(seed, duration_s, replication=1, kinds=[FaultKind.SPOOL_LOST])
    assert {len(f.targets) for f in lost} == {1}


def test_all_are_killed_in_the_middle_of_other_faults():
    found = [faults for seed in range(20) for faults in episodes(plan(seed, 60.0))]
    kinds = [[fault.kind for fault in faults] for faults in found]
    assert sum(len(faults) > 1 and faults[-1] in KILLS_ALL for faults in kinds) > 20
    assert not any(kind in KILLS_ALL for faults in kinds for kind in faults[:-1])


@pytest.mark.parametrize("seed", range(20))
def test_who_is_killed_with_all_others_is_not_taken_by_another_fault(seed):
    others = {FaultKind.DRAIN, FaultKind.DRAIN_ZONE, FaultKind.SPOOL_FULL}
    for faults in [*episodes(plan(seed)), *episodes(plan(seed, 60.0))]:
        kinds = {fault.kind for fault in faults}
        assert not kinds & {*KILLS_ALL, FaultKind.LAST_REPLICA} or not kinds & others


def test_several_brokers_fail_at_once():
    taken = {f.targets for f in plan() if f.kind in TAKES_SOME}
    assert max(map(len, taken)) == 2
    assert min(map(len, taken)) == 1


@pytest.mark.parametrize("seed", range(20))
def test_pauses_outlast_the_lease_and_hiccups_do_not(seed):
    for fault in plan(seed):
        if fault.kind is FaultKind.PAUSE:
            assert fault.duration_s >= 7.2
        if fault.kind is FaultKind.ETCD_AWAY:
            assert fault.duration_s >= 6.6
        if fault.kind in (FaultKind.ETCD_RESTART, FaultKind.HICCUP):
            assert fault.duration_s <= 2.4
        if fault.kind is FaultKind.ETCD_RESTART:
            assert fault.targets == ()


def test_zone_is_drained_as_a_whole():
    drained = {f.targets for f in plan() if f.kind is FaultKind.DRAIN_ZONE}
    assert drained <= {("broker-1", "broker-2"), ("broker-3", "broker-4"), ("broker-5",)}
    assert drained


def test_last_replica_is_of_a_journal():
    named = {f.targets for f in plan() if f.kind is FaultKind.LAST_REPLICA}
    assert named
    assert named <= {(name,) for name in JOURNALS}


def test_plan_of_no_kinds_is_empty():
    assert plan(kinds=()) == ()


def test_kinds_depend_on_the_replication(tmp_path):
    def kinds(replication, **options):
        workload = WorkloadConfig(replication=replication)
        return ChaosConfig(etcd_binary=tmp_path, workload=workload, **options).kinds_chosen

    assert kinds(3, etcd_members=3) == kinds(2, etcd_members=3) == ALL_KINDS
    assert kinds(1, etcd_members=3) == KINDS_WITHOUT_REPLICAS
    assert set(ALL_KINDS) - set(kinds(3)) == {FaultKind.ETCD_LEADER}
    assert set(TAKES_PROCESSES) - set(kinds(1)) == {FaultKind.LAST_REPLICA, FaultKind.SPOOL_LOST}
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
    assert any(write.is_contended and write.gives_up for write in writes)
    assert any(write.is_contended and not write.gives_up for write in writes)
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

TOOK_PART = dict.fromkeys(
    [
        *map(kind_of, range(16)),
        *("tail", "batch", "direct", "http"),
        *("flushes", "spec changes", "suspensions", "head resets", "prunes"),
    ],
    1,
)


def evidence(**fields):
    defaults = {
        "duration_s": 60.0,
        "lease_s": 6.0,
        "workload": WorkloadConfig(),
        "planned": [FaultKind.KILL, FaultKind.RESET],
        "inflicted": [FaultKind.RESET, FaultKind.KILL],
        "took_part": TOOK_PART,
    }
    return Evidence(**(defaults | fields))


def why(report=None, longest=None, stalls=(), **fields):
    report = report or Report(operations=2000, appends_ok=1000, bytes_read=1)
    return reasons(evidence(**fields), report, longest or {}, stalls)


def test_run_that_did_something_and_showed_nothing_is_ok():
    assert why() == []
    assert why(longest={"kill": Gap("a", 0, 20)}) == []


def without(*names):
    return {who: count for who, count in TOOK_PART.items() if who not in names}


def test_long_run_has_a_streamed_append_that_ended_well():
    long = Report(operations=2000, appends_ok=1000, bytes_read=1)
    (reason,) = why(report=long, duration_s=120.0)
    assert reason == "there were no streamed appends"
    assert why(report=long, duration_s=120.0, took_part=TOOK_PART | {"streamed appends": 1}) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"trouble": "a journal takes no appends"}, "a journal takes no appends"),
        ({"findings": ["a flush lied"]}, "a flush lied"),
        ({"ended": ["broker-1 ended by itself"]}, "broker-1 ended by itself"),
        ({"unforeseen": ["broker-1 logged: KeyError"]}, "broker-1 logged: KeyError"),
        ({"planned": [], "inflicted": []}, "there were no faults"),
        ({"inflicted": [FaultKind.KILL]}, "planned, and never begun: reset"),
        ({"report": Report(appends_ok=50, bytes_read=1)}, "only 50 appends were acknowledged"),
        ({"report": Report(appends_ok=1000, bytes_read=0)}, "readers got nothing"),
        ({"took_part": without("direct")}, "direct readers got nothing"),
        ({"took_part": without("flushes")}, "there were no flushes"),
        ({"took_part": without(WriterKind.BATCHING)}, "no writes of an append writer"),
        ({"longest": {"kill": Gap("a/b", 10, 100)}}, "a/b took no appends for 90.0 s (kill)"),
        (
            {
                "report": Report(
                    appends_ok=1000, bytes_read=1, anomalies=[Anomaly("lost-write", "a", "b")]
                )
            },
            "1 anomalies",
        ),
    ],
)
def test_run_that_proved_nothing_or_too_much_is_not_ok(fields, text):
    (reason,) = why(**fields)
    assert text in reason


def test_what_cannot_be_here_is_excused():
    left_out = {FaultKind.KILL: "why"}
    assert why(inflicted=[FaultKind.RESET], left_out=left_out) == []
    stalls = [Stall("machine", 20, 60)]
    assert why(longest={"kill": Gap("a", 10, 100)}, stalls=stalls) == []


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
    line = "seed=7 ops=10 faults=3 anomalies=0 longest_unavailable_s=1.2"
    assert result().summary == f"chaos: ok {line}"
    failed = result(reasons=["readers got nothing\nat all", "and so on"])
    assert not failed.is_ok
    assert failed.summary == f"chaos: FAILED {line}: readers got nothing (and 1 more)"


def test_wrong_options_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("GAZETTE_ETCD", "/bin/true")
    assert main(["--faults", "flood"]) == 2
    assert "choose from kill, kill-all" in capsys.readouterr().err
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
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([]) == 2
    assert "apt-get install strace" in capsys.readouterr().err
    monkeypatch.delenv("GAZETTE_ETCD")
    monkeypatch.setenv("GAZETTE_TOOLS", "own")
    assert main([]) == 2
    assert "etcd-server" in capsys.readouterr().err
