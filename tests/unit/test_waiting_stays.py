"""What must stay so: a condition that becomes false is noticed, and the time follows GAZETTE_TEST_PATIENCE."""

from __future__ import annotations

import time

import pytest

from gazette_platform.testing.waiting import VARIABLE, eventually, stays


async def test_what_becomes_false_is_noticed():
    values = [1, 1, 0]
    with pytest.raises(AssertionError, match=r"no longer so after 0\.\d+ s"):
        await stays(lambda: values.pop(0), for_s=60.0)

    async def later():
        return False

    with pytest.raises(AssertionError, match="no longer so"):
        await stays(later, for_s=0.0)


async def test_it_is_looked_at_for_all_the_time(monkeypatch):
    monkeypatch.setenv(VARIABLE, "2")
    seen = []
    for look in (lambda: seen.append(1) is None, lambda: True):
        began = time.monotonic()
        await stays(look, for_s=0.02)
        assert time.monotonic() - began >= 0.04
    assert len(seen) >= 2


async def test_an_error_says_what_is_wrong():
    with pytest.raises(TimeoutError, match=r"^not so after 0 s: the test did not say go$"):
        await eventually(lambda: False, timeout_s=0.0, what="the test did not say go")
