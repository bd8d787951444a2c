"""How long a client waits between attempts."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gazette_platform.client import ClientConfig
from gazette_platform.client.transport import Transport
from gazette_platform.errors import TransportError
from gazette_platform.ops.clock import ManualClock
from gazette_platform.ops.tasks import TaskGroup

REFUSED = TransportError("broker http://127.0.0.1:1 is not reachable: connection refused")


@pytest.fixture
async def attempts(monkeypatch):
    """Seconds, from the first failure, at which a call to a broker that was there before is tried again."""
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


async def test_who_waits_is_told_once_for_what(attempts, caplog):
    (told,) = [one for one in caplog.get_records("setup") if one.levelname == "WARNING"]
    assert told.getMessage() == f"{REFUSED}; trying again for 60 s"
