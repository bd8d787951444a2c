"""Kafka's quotas: how long a caller that takes too much has to wait."""

from __future__ import annotations

from random import Random

import pytest

from gazette_platform.kafka import access
from gazette_platform.kafka.access import Quota

RATE = 1000


def test_nothing_is_counted_without_a_limit():
    assert Quota(0).take("a", 1 << 40, 5.0) == 0


def test_a_quiet_caller_has_a_second_at_its_rate_free():
    quota = Quota(RATE)
    assert quota.take("a", RATE, 100.0) == 0
    assert quota.take("a", 500, 100.0) == pytest.approx(0.5)
    assert quota.take("b", RATE, 100.0) == 0
    # It does not save up more than that.
    assert quota.take("a", 2 * RATE, 1000.0) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(5))
def test_who_waits_as_long_as_asked_keeps_the_rate(seed):
    random = Random(seed)
    quota, now, taken = Quota(RATE), 50.0, 0
    while taken < 200 * RATE:
        size = random.randrange(1, 3 * RATE)
        taken += size
        now += quota.take("a", size, now) + random.random() / 10
    assert taken / (now - 50.0) == pytest.approx(RATE, rel=0.02)


def test_callers_are_bounded_and_those_that_wait_are_kept(monkeypatch):
    monkeypatch.setattr(access, "_CALLERS_MAX", 10)
    quota = Quota(RATE)
    quota.take("busy", 100 * RATE, 0.0)
    for number in range(1000):
        quota.take(f"c{number}", 1, number / 100)
    assert len(quota._paid_at) <= 10 + 1
    for number in range(1000):
        quota.take(f"c{number}", 2 * RATE, 20.0)
    assert len(quota._paid_at) <= 10
