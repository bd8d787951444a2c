"""Runs that were starved differ from those that failed, and each from those that are ok."""

from __future__ import annotations

import os
import subprocess

import pytest

from gazette_platform.client.wire import PeerUnreached
from gazette_platform.errors import (
    CallUnanswered,
    SetupError,
)
from gazette_platform.testing.waiting import TooLate, core_wait
from tests.harness import (
    Late,
    MachineWatch,
    Stall,
    State,
    Strain,
    is_late,
    joined,
    judge,
    reason_of,
    starved_by,
)

BUSY = "80 processes at a time wanted 2 cores, load average 40.1"


@pytest.mark.parametrize(
    ("reasons", "cause", "state", "code"),
    [
        ([], "", State.OK, 0),
        ([], BUSY, State.OK, 0),
        ([Late("broker-1 not ready in 60 s")], "", State.FAILED, 1),
        ([Late("broker-1 not ready in 60 s")], BUSY, State.STARVED, 2),
        ([Late("3 streams did not end"), Late("no fault was inflicted")], BUSY, State.STARVED, 2),
        (["2 sums are wrong"], BUSY, State.FAILED, 1),
        ([Late("3 streams did not end"), "1 sum is there twice"], BUSY, State.FAILED, 1),
    ],
)
def test_starvation_excuses_only_limits_of_time(reasons, cause, state, code):
    assert judge(reasons, cause) is state
    assert state.exit_code == code


@pytest.mark.parametrize(
    ("strain", "waited", "cause"),
    [
        ({}, 0.0, ""),
        ({"ready": 5.0, "stalled_s": 1.0, "load": 40.0}, 0.2, ""),
        (
            {"ready": 40.2, "load": 41.0},
            0.0,
            "40 processes at a time wanted 2 cores, load average 41.0",
        ),
        ({"ready": 40.2, "cores": 16}, 0.0, ""),
        ({"stalled_s": 9.5}, 0.0, "the machine stood still for 9.5 of 30 s, load average 0.0"),
        ({}, 0.9, "it had no core 90% of that time, load average 0.0"),
    ],
)
def test_cause_names_what_the_machine_lacked(strain, waited, cause):
    assert starved_by(Strain(span_s=30.0, **strain), waited=waited) == cause


@pytest.mark.parametrize(
    ("err", "late"),
    [
        (TooLate("broker-1 not ready in 60 s"), True),
        (TimeoutError(), True),
        (subprocess.TimeoutExpired("etcd", 5), True),
        (CallUnanswered("no answer"), True),
        (PeerUnreached("refused"), True),  # a client gives up once its time is out
        (ExceptionGroup("both", [TimeoutError(), TooLate("x")]), True),
        (ExceptionGroup("one", [TimeoutError(), ValueError()]), False),
        (SetupError("broker-1 exited with 1"), False),
        (ValueError("2 and 3"), False),
    ],
)
def test_errors_of_time_are_late(err, late):
    assert is_late(err) is late
    assert isinstance(reason_of(err), Late) is late


def test_joined_reasons_are_late_together():
    assert isinstance(joined([Late("a"), Late("b")]), Late)
    assert not isinstance(joined([Late("a"), "b"]), Late)
    assert joined([Late("a"), "b"]) == "a; b"


def test_own_time_on_cores_is_counted():
    ran_s, waited_s = core_wait(os.getpid())
    assert ran_s > 0
    assert waited_s >= 0
    assert core_wait(2**22 + 1) == (0.0, 0.0)


def test_worst_half_minute_decides():
    """A minute of starvation in an hour is enough: what was late in it says nothing."""
    watch = MachineWatch()
    watch._began -= 3600
    begin = watch._began + 1800
    assert watch.cause() == ""
    watch._samples.extend((begin + second, 1.0, 50.0) for second in range(60))
    watch._samples.extend((begin + 60 + second, 1.0, 1.0) for second in range(600))
    assert watch.cause().startswith("50 processes at a time wanted ")
    watch._samples.clear()
    watch.stalls.append(Stall("clients", begin, begin + 20))
    assert watch.cause() == ""
    watch.stalls.append(Stall("machine", begin, begin + 20))
    assert watch.cause().startswith("the machine stood still for 20.0 of 30 s")


def test_a_sample_that_arrives_while_strain_is_measured_does_no_harm():
    watch = MachineWatch()

    class Sampled(float):
        """A time during whose comparison the next sample arrives, as from the thread that reads them."""

        def __gt__(self, other):
            watch._samples.append((2.0, 1.0, 3.0))
            return float(self) > other

    watch._samples.extend([(Sampled(1.0), 1.0, 3.0)] * 2)
    assert watch.strain(0.0, 1.5).ready == 3.0
