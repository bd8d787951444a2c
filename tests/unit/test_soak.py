"""The parts of the soak that decide: what runs, what goes wrong, and what is reported of sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import pytest

from examples.stream_sum.messages import Sum
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus
from gazette_platform.message import PRUNE_HORIZON
from gazette_platform.message.uuid import clock_of
from gazette_platform.ops.clock import ManualClock, SystemClock
from tests.soak.nemesis import Nemesis, standing
from tests.soak.plan import ALL_KINDS, Fault, Kind, make_plan
from tests.soak.producers import JumpingClock
from tests.soak.runner import _Streams
from tests.soak.specs import journal_changes, shard_specs
from tests.soak.summer import Tally
from tests.soak.verdict import SoakResult, Sums, compare, miscounted

LEASE_S = 6.0
PAST_THE_LEASE = {Kind.PAUSE_BROKER, Kind.PAUSE_CONSUMER}
WITHIN_THE_LEASE = {Kind.KILL_ETCD, Kind.PAUSE_ETCD}


def plan_of(seed, count):
    return list(islice(make_plan(seed, lease_s=LEASE_S, members=3), count))


@pytest.mark.parametrize("seed", range(5))
def test_each_kind_comes_once_before_any_comes_again(seed):
    plan = plan_of(seed, 3 * len(ALL_KINDS))
    for at in range(0, len(plan), len(ALL_KINDS)):
        assert {fault.kind for fault in plan[at : at + len(ALL_KINDS)]} == set(ALL_KINDS)
    # So that all others come behind a jump, and a short run has both.
    assert [fault.kind for fault in plan[:2]] == [Kind.JUMP_CLOCK, Kind.RESTART_POSTGRES]
    for fault in plan:
        assert 0 <= fault.target < 3
        if fault.kind in PAST_THE_LEASE:
            assert LEASE_S < fault.lasts_s <= 2 * LEASE_S
        if fault.kind in WITHIN_THE_LEASE:
            assert fault.lasts_s < LEASE_S / 3


@pytest.mark.parametrize(
    ("kind", "lasts_s", "may", "must"),
    [
        (Kind.PAUSE_CONSUMER, 6.1, True, True),
        (Kind.PAUSE_BROKER, 7.2, True, True),
        (Kind.CUT_CONSUMER, 6.0, True, False),
        (Kind.CUT_BROKER, 12.0, True, True),
        (Kind.CUT_BROKERS, 9.0, False, False),
        (Kind.KILL_CONSUMER, 9.0, False, False),
        (Kind.PAUSE_ETCD, 1.5, False, False),
        (Kind.RESTART_POSTGRES, 3.0, False, False),
        (Kind.JUMP_CLOCK, 0.0, False, False),
    ],
)
def test_who_may_and_who_must_lose_a_lease(kind, lasts_s, may, must):
    fault = Fault(kind, 1, 1.0, lasts_s)
    assert (fault.may_take_lease, fault.takes_lease(LEASE_S)) == (may, must)


class Process:
    """One that no fault can harm, as if none were inflicted."""

    pid = 4711
    has_ended = False

    def pause(self):
        pass

    def resume(self):
        pass

    def log_of_run(self):
        return (
            "consumer: error: unable to keep member lease alive: lease 7 was not renewed within 0 s"
        )


def a_nemesis(process, clock, database=None):
    return Nemesis(
        SimpleNamespace(names=("broker-1",), brokers={}, proxies={}),
        SimpleNamespace(names=("consumer-1",), servers={"consumer-1": process}),
        None,
        database,
        JumpingClock(),
        shards=1,
        lease_s=0.01,
        clock=clock,
        say=lambda text: None,
        is_starved=lambda: False,
    )


async def test_a_pause_that_takes_no_lease_is_reported():
    process = Process()
    nemesis = a_nemesis(process, ManualClock())
    await nemesis._episode([Fault(Kind.PAUSE_CONSUMER, 0, 0.0, 0.02)])
    assert nemesis._unharmed() == (
        "consumer-1 runs on after pause-consumer 1 for 0.0 s, when its lease has ended: was that done "
        "to it?"
    )
    process.pid = 4712  # it has ended, and was started again
    assert nemesis._unharmed() == ""


async def test_who_ends_long_after_a_fault_is_not_excused_by_it():
    process, clock = Process(), ManualClock()
    nemesis = a_nemesis(process, clock)
    await nemesis._episode([Fault(Kind.PAUSE_CONSUMER, 0, 0.0, 0.0)])
    nemesis._note_end("consumer-1", process.pid, process.log_of_run())
    assert not nemesis.troubles
    await nemesis._episode([Fault(Kind.PAUSE_CONSUMER, 0, 0.0, 0.0)])
    clock.advance(0.02)
    process.pid = 4712  # another is paused
    await nemesis._episode([Fault(Kind.PAUSE_CONSUMER, 0, 0.0, 0.0)])
    nemesis._note_end("consumer-1", 4711, process.log_of_run())
    assert "consumer-1 ended by itself" in nemesis.troubles[0]


def a_listing(code, *, log="logs/shard"):
    errors = ("the database is away",) if code is ReplicaCode.FAILED else ()
    return SimpleNamespace(
        id="shard",
        spec=SimpleNamespace(recovery_log=log),
        statuses=(ReplicaStatus(code, errors), ReplicaStatus(ReplicaCode.STANDBY)),
    )


@pytest.mark.parametrize(
    ("code", "log", "what", "fatal"),
    [
        (ReplicaCode.PRIMARY, "logs/shard", "", []),
        (ReplicaCode.BACKFILL, "logs/shard", "1 of 2 shards have a primary", []),
        (
            ReplicaCode.FAILED,
            "",
            "1 of 2 shards have a primary; shard shard has failed: the database is away",
            [],
        ),
        (
            ReplicaCode.FAILED,
            "logs/shard",
            "1 of 2 shards have a primary",
            ["shard shard has failed: the database is away"],
        ),
    ],
)
def test_only_a_shard_without_a_log_may_fail_for_a_while(code, log, what, fatal):
    listings = [a_listing(ReplicaCode.PRIMARY), a_listing(code, log=log)]
    assert standing(listings, 2) == (what, fatal)


def test_a_clock_jumps_by_more_than_readers_remember_and_stays_there():
    clock, right = JumpingClock(), SystemClock()
    for hours in (0, 25, 50):
        assert hours * 3600 - 1 < clock.unix_s() - right.unix_s() < hours * 3600 + 60
        assert abs(clock.now().timestamp() - clock.unix_s()) < 60
        clock.jump()
    assert clock_of(int(25 * 3600e9)) - clock_of(0) > PRUNE_HORIZON


async def test_a_database_is_ended_and_started_again():
    done = []
    database = SimpleNamespace(kill=lambda: done.append("kill"), start=lambda: done.append("start"))
    nemesis = a_nemesis(Process(), ManualClock(), database)
    await nemesis._episode([Fault(Kind.RESTART_POSTGRES, 0, 0.0, 0.0)])
    assert done == ["kill", "start"]


def test_shards_are_on_each_kind_of_store_and_one_is_behind_the_others():
    specs = shard_specs(has_postgres=True)
    for spec in specs:
        spec.validate()
    *chunks, behind = specs
    kinds = [spec.labels.value_of("store") for spec in chunks]
    assert kinds == ["rocksdb", "sqlite", "json", "postgres"] * 2
    assert [spec.id for spec in specs if not spec.recovery_log] == [
        spec.id for spec, kind in zip(chunks, kinds, strict=True) if kind == "postgres"
    ]
    assert [source.journal for source in behind.sources] == ["examples/stream-sum/sums"]
    without = shard_specs(has_postgres=False)
    assert {spec.labels.value_of("store") for spec in without} == {"rocksdb", "sqlite", "json"}
    journals = {change.name for change in journal_changes()}
    for spec in [*specs, *without]:
        assert {source.journal for source in spec.sources} | {
            spec.recovery_log or behind.recovery_log
        } <= journals
    assert {change.spec.replication for change in journal_changes()} == {2}
    assert "examples/stream-sum/tallies" in journals


def total(number, value=5, seq_no=3):
    return Sum(ID=[number] * 16, SeqNo=seq_no, Value=value)


def by_stream(*totals):
    return {bytes(each.ID): each for each in totals}


def test_each_trouble_of_sums_is_reported():
    expected = by_stream(*map(total, range(1, 6)))
    found = [total(1), total(2, value=6), total(3), total(3), total(4, seq_no=4), total(9)]
    sums = compare(expected, found)
    assert sums == Sums(
        wrong=("02" * 16, "04" * 16),
        missing=("05" * 16,),
        twice=("03" * 16,),
        unknown=("09" * 16,),
    )
    assert sums.count == 5
    assert [reason.partition(":")[0] for reason in sums.reasons()] == [
        "2 sums are wrong",
        "1 sums are missing",
        "1 sums are duplicated",
        "1 sums are of streams that were not published",
    ]


def tallies(*numbers):
    return [Tally(ID=[number] * 16, Number=number) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ((), ""),
        ((1, 2, 3), ""),
        ((1, 3), "sum 2 that was passed on was counted as number 3"),
        ((1, 1, 2), "sum 2 that was passed on was counted as number 1"),
        ((2,), "sum 1 that was passed on was counted as number 2"),
    ],
)
def test_a_count_that_leaves_out_or_repeats_is_reported(numbers, wrong):
    found = miscounted(tallies(*numbers))
    assert [text.partition(":")[0] for text in found] == ([wrong] if wrong else [])


def test_what_was_passed_on_is_compared_as_sums_are():
    streams = _Streams()
    for number in (1, 2, 3):
        streams.expect(total(number))
    passed_on = [
        Tally(ID=[n] * 16, SeqNo=3, Value=5, Number=at) for at, n in ((1, 1), (2, 3), (3, 3))
    ]
    streams.is_all_read = True
    streams.compare([total(1), total(2), total(3)], passed_on)
    assert [text.partition(":")[0] for text in streams.reasons()] == [
        "1 sums that were passed on are missing",
        "1 sums that were passed on are duplicated",
    ]
    streams.compare([total(1), total(2), total(3)], passed_on[:2])
    assert streams.reasons() == [f"1 sums that were passed on are missing: {'02' * 16}"]
    assert (streams.sums.count, streams.passed_on.count) == (0, 1)


def test_the_last_line_says_how_it_went():
    faults = Counter({Kind.RESET: 2, Kind.KILL_BROKER: 1})
    well = SoakResult(7, 12, faults, Sums(), Sums(), 3.14159)
    assert well.is_ok
    assert well.summary == "soak: ok seed=7 streams=12 faults=3 wrong=0 late_s_max=3.1"
    less = replace(well, left_out=1)
    assert less.summary == "soak: ok seed=7 left_out=1 streams=12 faults=3 wrong=0 late_s_max=3.1"
    wrong = Sums(missing=("ab",)), Sums(twice=("ab", "cd"))
    ill = SoakResult(7, 12, faults, *wrong, 3.0, ["first\nmore", "second"])
    assert not ill.is_ok
    assert ill.summary == (
        "soak: FAILED seed=7 streams=12 faults=3 wrong=3 late_s_max=3.0: first (and 1 more)"
    )
