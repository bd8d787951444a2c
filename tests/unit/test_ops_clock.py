"""Clocks: the machine's is aware and monotonic, the manual one moves only on request."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gazette_platform.ops.clock import ManualClock, SystemClock


def test_manual_clock_stands_still_until_advanced():
    start = datetime(2013, 1, 1, 5, tzinfo=UTC)
    clock = ManualClock(start)
    assert (clock.now(), clock.monotonic()) == (start, 0.0)
    assert (clock.now(), clock.monotonic()) == (start, 0.0)
    clock.advance(1.5)
    clock.advance(2)
    assert (clock.now(), clock.monotonic()) == (start + timedelta(seconds=3.5), 3.5)


def test_system_clock_is_aware_utc_and_never_goes_back():
    clock = SystemClock()
    before = datetime.now(UTC)  # noqa: TID251  what is tested
    now = clock.now()
    assert now.utcoffset() == timedelta(0)
    assert before <= now <= datetime.now(UTC)  # noqa: TID251  what is tested
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)
