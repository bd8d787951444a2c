"""Waits of tests: limits follow GAZETTE_TEST_PATIENCE, and what a condition raises is raised."""

from __future__ import annotations

import time

import pytest

from gazette_platform.errors import SetupError
from gazette_platform.testing.waiting import VARIABLE, eventually, patient, wait_until


@pytest.mark.parametrize(
    ("text", "scaled"), [("", 30), (" ", 30), ("1", 30), ("4", 120), ("0.5", 15)]
)
def test_patience_scales_limits(monkeypatch, text, scaled):
    monkeypatch.setenv(VARIABLE, text)
    assert patient(30) == scaled


@pytest.mark.parametrize("text", ["0", "-1", "long", "nan", "inf"])
def test_patience_refuses_odd_factors(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SetupError, match=f"{VARIABLE}={text} is not a positive number"):
        patient(30)


async def test_deadline_follows_patience(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.001")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"not so after 0\.02 s"):
        await eventually(lambda: False)
    with pytest.raises(TimeoutError, match=r"not so after 0\.03 s"):
        wait_until(lambda: 0, timeout_s=30.0)
    assert time.monotonic() - began < 10


async def test_values_are_returned_once_true():
    values = [0, "", 7]
    assert await eventually(lambda: values.pop(0)) == 7
    values = [None, [1]]
    assert wait_until(lambda: values.pop(0)) == [1]

    async def later():
        return len(values) or values.append(1)

    assert await eventually(later) == 1


async def test_errors_of_conditions_are_raised():
    def fails():
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await eventually(fails)
    with pytest.raises(LookupError, match="gone"):
        wait_until(fails)
