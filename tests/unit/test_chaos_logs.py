"""What a run takes from the logs of its brokers."""

from __future__ import annotations

import pytest

from tests.chaos.logs import lost_its_lease, unforeseen

TIME = "2026-01-02 03:04:05,678"
SERVES = f"{TIME} INFO gazette_platform.broker.serve: broker serves"
WHY = "unable to keep member lease alive: lease 7 was not renewed within 6 s"
TRACEBACK = """Traceback (most recent call last):
  File "tasks.py", line 91, in _keep
    return await run()
           ^^^^^^^^^^^
"""
LEASE_LOST = f"""{SERVES}
{TIME} WARNING gazette_platform.etcd: lease 7 is not renewed: cannot reach etcd
{TIME} ERROR gazette_platform.ops.tasks: task broker/lease failed: {WHY}
{TRACEBACK}gazette_platform.errors.LeaseLost: {WHY}
{TIME} ERROR gazette_platform.broker.serve: leaving: closing journals takes too long
gazette: error: {WHY}
"""
MEMBER_GONE = LEASE_LOST.replace("broker/lease", "broker/allocator").replace(
    WHY, "member key not found in Etcd: /gazette/members/a#broker-1; its lease ended"
)
CONSUMER = LEASE_LOST.replace("task broker/", "task consumer/").replace("gazette: ", "Summer: ")
FORESEEN = f"""{SERVES}
{TIME} ERROR gazette_platform.broker.spool.persister: persisting failed, trying again later: [Errno 28]
{TIME} ERROR gazette_platform.broker.spool.journal_spool: a/b: spool: [Errno 28] No space left on device
"""
REPORT = f"""{TIME} ERROR gazette_platform.ops.faults: journal a/b: unforeseen KeyError: 'c'
{TRACEBACK}KeyError: 'c'
"""


@pytest.mark.parametrize("log", [LEASE_LOST, MEMBER_GONE, CONSUMER])
def test_end_by_the_lease_is_foreseen(log):
    assert lost_its_lease(log)
    assert unforeseen(log) == []
    assert unforeseen(log * 2 + FORESEEN) == []


@pytest.mark.parametrize("log", ["", SERVES, FORESEEN, REPORT, LEASE_LOST.replace(WHY, "else")])
def test_end_that_does_not_name_the_lease_has_another_reason(log):
    assert not lost_its_lease(log)


def test_unforeseen_error_is_reported_with_its_traceback():
    assert unforeseen(FORESEEN) == []
    assert unforeseen(FORESEEN + REPORT + LEASE_LOST) == [REPORT.rstrip("\n")]
    assert len(unforeseen(REPORT + FORESEEN + REPORT)) == 2


@pytest.mark.parametrize(
    "lines",
    [
        "Fatal Python error: Segmentation fault",
        "sys:1: RuntimeWarning: coroutine 'f' was never awaited",
        f"{TIME} ERROR asyncio: Task exception was never retrieved",
        f"{TIME} ERROR asyncio: Task was destroyed but it is pending!",
        f"{TIME} CRITICAL a: b",
        "Exception ignored in: <function f>",
        "gazette: error: etcd went back from revision 8 to 7",
    ],
)
def test_what_python_says_of_a_fault_is_found(lines):
    (told,) = unforeseen(f"{LEASE_LOST}{SERVES}\n{lines}\n{SERVES}\n")
    assert told == lines


def test_loss_of_a_lease_does_not_hide_what_went_wrong_on_the_way():
    during = f"{TRACEBACK}KeyError: 'c'\n\nDuring handling of it, another:\n\n{TRACEBACK}"
    (told,) = unforeseen(LEASE_LOST.replace(TRACEBACK, during))
    assert "task broker/lease failed" in told
    assert "KeyError: 'c'" in told
