"""How long a broker that leaves waits for others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gazette_platform.allocator import DrainStatus, member
from gazette_platform.broker.crash.handover import say_leaving, wait_handed_over
from gazette_platform.errors import EtcdError
from gazette_platform.ops.clock import SystemClock


class Leased:
    """A lease that ends after some seconds."""

    def __init__(self, clock, lease_s):
        self._clock = clock
        self._ends = clock.monotonic() + lease_s

    @property
    def remaining_s(self):
        return self._ends - self._clock.monotonic()


class Statuses:
    """Returns one status after the other, and the last one for ever."""

    def __init__(self, *statuses):
        self._statuses = list(statuses)
        self.told = 0

    def drain_status(self):
        self.told += 1
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]


def status(assigned, *, can_complete=False, is_awaited=False):
    return DrainStatus(True, assigned, can_complete=can_complete, is_awaited=is_awaited)


async def told(*statuses, timeout_s, members=3, lease_s=100.0):
    """How often a broker asked before it went on."""
    found = {
        number: SimpleNamespace(spec=SimpleNamespace(exiting=number == 0, endpoint="http://h:80"))
        for number in range(members)
    }
    space = SimpleNamespace(state=SimpleNamespace(members=found))
    context = SimpleNamespace(clock=SystemClock(), space=space)
    allocating = asyncio.get_running_loop().create_future()
    asked = Statuses(*statuses)
    lease = Leased(context.clock, lease_s)
    waiting = wait_handed_over(context, asked, allocating, lease, timeout_s=timeout_s)
    await asyncio.wait_for(waiting, timeout=20)
    return asked.told


@pytest.mark.parametrize("timeout_s", [None, 10.0])
async def test_who_can_be_relieved_waits_until_it_is(timeout_s):
    held = status(2, can_complete=True)
    assert await told(held, held, status(0, can_complete=True), timeout_s=timeout_s) == 3


async def test_who_keeps_journals_to_the_last_waits_for_what_others_hand_over():
    """Left before, it could not say where those journals end."""
    waits, last = status(4, is_awaited=True), status(5)
    assert await told(waits, waits, last, timeout_s=10.0) == 3


async def test_no_peer_is_waited_for_longer_than_the_timeout():
    assert await told(status(4, is_awaited=True), timeout_s=0.25) < 6
    assert await told(status(4, can_complete=True), timeout_s=0.25) < 6


async def test_lone_broker_does_not_wait():
    assert await told(status(4), timeout_s=None, members=1) == 1


@pytest.mark.parametrize("can_complete", [True, False])
async def test_no_broker_waits_beyond_the_lease(can_complete):
    """Etcd may be away: no broker would ever take over, and none would store content."""
    assert await told(status(4, can_complete=can_complete), timeout_s=None, lease_s=0.25) < 6


@pytest.mark.parametrize(
    ("exiting", "hosts", "stays_for_others", "waits"),
    [
        ((True, True, True), 3, False, False),
        ((True, True, True), 3, True, True),
        ((True, True, True), 1, True, False),  # the processes of a host that stops
        ((True, False, True), 3, False, True),  # that one may have room later
        ((True, False, True), 1, True, True),
    ],
)
async def test_broker_that_leaves_with_all_others_waits_only_for_what_no_other_knows(
    exiting, hosts, stays_for_others, waits
):
    clock = SystemClock()
    members = {
        number: SimpleNamespace(
            spec=SimpleNamespace(
                exiting=is_exiting, endpoint=f"http://host-{number % hosts}:80{number}"
            )
        )
        for number, is_exiting in enumerate(exiting)
    }
    asked = Statuses(status(2))
    await asyncio.wait_for(
        member.wait_handed_over(
            SimpleNamespace(state=SimpleNamespace(members=members)),
            asked,
            asyncio.get_running_loop().create_future(),
            Leased(clock, 0.3),
            clock=clock,
            timeout_s=None,
            words=member.Words("shards", "consumer", "", "consumer.drain-timeout"),
            stays_for_others=stays_for_others,
        ),
        timeout=20,
    )
    assert (asked.told > 1) is waits


async def test_who_has_said_that_it_leaves_waits_to_see_it():
    seen = []

    async def wait_for_revision(revision, *, timeout_s):
        seen.append(revision)

    async def set_exiting():
        pass

    space = SimpleNamespace(
        state=SimpleNamespace(members=dict.fromkeys(range(3))), wait_for_revision=wait_for_revision
    )
    context = SimpleNamespace(clock=SystemClock(), space=space)
    announcement = SimpleNamespace(set_exiting=set_exiting, revision=17)
    await say_leaving(context, announcement, Leased(context.clock, 9.0), timeout_s=None)
    assert seen == [17]


async def test_broker_does_not_insist_beyond_the_lease_on_saying_that_it_leaves():
    """Etcd may be away for good, and what it holds is stored only then."""
    space = SimpleNamespace(state=SimpleNamespace(members=dict.fromkeys(range(3))))
    context = SimpleNamespace(clock=SystemClock(), space=space)
    tried = []

    async def set_exiting():
        tried.append(True)
        raise EtcdError("etcd is away")

    saying = say_leaving(
        context,
        SimpleNamespace(set_exiting=set_exiting),
        Leased(context.clock, 0.25),
        timeout_s=None,
    )
    with pytest.raises(EtcdError):
        await asyncio.wait_for(saying, timeout=20)
    assert len(tried) > 1
