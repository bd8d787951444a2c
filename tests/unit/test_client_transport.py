"""What every call needs: routes, retries, and calls with one response."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gazette_platform.client import ClientConfig
from gazette_platform.client.transport import (
    Repeat,
    RouteCache,
    Transport,
    may_repeat,
    pick_endpoint,
)
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    NotJournalBroker,
    TransportError,
)
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import ProcessId, Route
from gazette_platform.serving.interface import Condition


def route(*zones, primary=0):
    members = tuple(ProcessId(zone, f"broker-{n}") for n, zone in enumerate(zones))
    return Route(members, primary, tuple(f"http://{m.zone}-{m.suffix}" for m in members))


def test_v10_primary_is_picked_for_appends():
    assert pick_endpoint(route("a", "b", primary=1), "a", primary=True) == "http://b-broker-1"
    assert pick_endpoint(route("a", "b", primary=-1), "a", primary=True) == ""


def test_v10_replica_of_the_zone_is_picked_for_reads():
    assert pick_endpoint(route("a", "b", "b"), "b", primary=False) == "http://b-broker-1"
    assert pick_endpoint(route("a", "b"), "c", primary=False) == "http://a-broker-0"


def test_members_without_endpoint_are_passed_over():
    members = (ProcessId("a", "gone"), ProcessId("b", "here"))
    assert pick_endpoint(Route(members, 0, ("", "http://b")), "a", primary=False) == "http://b"
    assert pick_endpoint(Route(members, 0, ()), "a", primary=False) == ""
    assert pick_endpoint(Route(members, 0, ("", "")), "a", primary=False) == ""


def conditions(**found):
    """By the member's number."""
    return lambda endpoint: found.get(f"n{endpoint[-1]}", Condition.UNKNOWN)


def pick(where, *, leaves_zone=False, **found):
    picked = pick_endpoint(
        where, "b", primary=False, condition=conditions(**found), leaves_zone=leaves_zone
    )
    return int(picked[-1])


def test_v10_replicas_that_failed_or_are_not_connected_come_later():
    where = route("a", "b", "b")
    assert pick(where) == 1
    assert pick(where, n2=Condition.READY) == 2
    assert pick(where, n1=Condition.FAILED) == 2
    assert pick(where, n0=Condition.READY, n1=Condition.READY, n2=Condition.READY) == 1
    assert pick(where, n1=Condition.READY, n2=Condition.HERE) == 2
    assert pick(where, n0=Condition.HERE) == 1, "zones count for more"


def test_v10_the_zone_is_not_left_for_a_failure():
    where = route("a", "b", "b")
    failed = {"n0": Condition.READY, "n1": Condition.FAILED, "n2": Condition.FAILED}
    assert pick(where, **failed) == 1
    assert pick(where, **failed, leaves_zone=True) == 0, "but brokers that forward do"


def test_rc1_least_recently_used_is_dropped():
    cache = RouteCache(2, 60, ManualClock())
    cache.update("one", route("a"))
    cache.update("two", route("a"))
    assert cache.get("one") is not None
    cache.update("three", route("a"))
    assert cache.get("two") is None
    assert cache.get("one") is not None
    assert len(cache) == 2


def test_rc1_entries_expire_by_their_last_update():
    clock = ManualClock()
    cache = RouteCache(2, 60, clock)
    cache.update("one", route("a"))
    clock.advance(59)
    assert cache.get("one") is not None
    clock.advance(1)
    assert cache.get("one") is None
    assert len(cache) == 0


def test_rc1_empty_routes_invalidate():
    cache = RouteCache(2, 60, ManualClock())
    for forget in (lambda: cache.update("one", None), lambda: cache.update("one", Route())):
        cache.update("one", route("a"))
        forget()
        assert cache.get("one") is None
    cache.update("one", route("a"))
    cache.invalidate("one")
    assert cache.get("one") is None


def test_size_zero_remembers_nothing():
    cache = RouteCache(0, 60, ManualClock())
    cache.update("one", route("a"))
    assert cache.get("one") is None


PASSING = TransportError("the broker is not reachable")
LATE = CallUnanswered("the broker did not answer in time")


@pytest.mark.parametrize("repeat", Repeat)
@pytest.mark.parametrize(
    ("error", "may"),
    [
        (PASSING, True),
        (NotJournalBroker(journal="a/b"), True),
        (CallFailed("refused", code="PERMISSION_DENIED"), False),
        (DataError("malformed"), False),
    ],
)
def test_what_is_likely_to_pass_is_tried_again(error, may, repeat):
    assert may_repeat(error, repeat) is may


@pytest.mark.parametrize("repeat", Repeat)
def test_without_an_answer_only_what_changes_nothing_is_tried_again(repeat):
    assert may_repeat(LATE, repeat) is (repeat is Repeat.IF_UNANSWERED)


REFUSED = TransportError("broker http://127.0.0.1:1 is not reachable: connection refused")


@pytest.fixture
async def attempts(monkeypatch):
    """Seconds, from the first failure, at which a call to a broker that answered before is tried again."""
    clock = ManualClock()
    transport = Transport(ClientConfig(address="http://127.0.0.1:1"), clock, TaskGroup("test"))
    transport.was_connected = True

    async def sleep(delay_s):
        clock.advance(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    patience, at = transport.patience(), [0.0]
    began = clock.monotonic()

    async def fail_for_ever():
        while True:
            await patience.wait(REFUSED)
            at.append(clock.monotonic() - began)

    with pytest.raises(TransportError):
        await fail_for_ever()
    monkeypatch.undo()
    await transport.close()
    return at


async def test_a_broker_that_is_started_again_is_asked_within_a_second(attempts):
    within_s = {began: after - began for began, after in itertools.pairwise(attempts)}
    assert max(pause for began, pause in within_s.items() if began < 8) <= 1


async def test_one_that_stays_away_is_asked_seldom_and_given_up(attempts):
    assert len(attempts) < 35
    assert 50 < attempts[-1] <= 60


async def test_waiting_caller_learns_once_what_it_waits_for(attempts, caplog):
    (told,) = [one for one in caplog.get_records("setup") if one.levelname == "WARNING"]
    assert told.getMessage() == f"{REFUSED}; trying again for 60 s"
