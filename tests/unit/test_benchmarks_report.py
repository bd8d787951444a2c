"""Benchmarks: targets, the figures of other servers, and the tables."""

from __future__ import annotations

import pytest

from benchmarks.targets import BOUNDS, TARGETS, Target, judge

AT_LEAST = Target("rate_per_s", 10)
AT_MOST = Target("wait_ms", 2, is_upper=True)


@pytest.mark.parametrize(
    ("target", "value", "is_met"),
    [
        (AT_LEAST, 10.0, True),
        (AT_LEAST, 9.99, False),
        (AT_MOST, 2.0, True),
        (AT_MOST, 2.01, False),
        (AT_MOST, None, False),
    ],
)
def test_a_target_is_met_up_to_its_limit(target, value, is_met):
    figures = {} if value is None else {target.name: value}
    (verdict,) = judge(figures, (target,))
    assert verdict.is_met is is_met


OF_REFERENCE = Target("msgs_per_s", 1000, is_of_reference=True)


@pytest.mark.parametrize(
    ("target", "value", "line"),
    [
        (OF_REFERENCE, 500.0, "target met: msgs_per_s 500 (target ≥ 1000, times 0.5: 500)"),
        (OF_REFERENCE, 499.0, "target missed: msgs_per_s 499 (target ≥ 1000, times 0.5: 500)"),
        (AT_LEAST, 9.0, "target missed: rate_per_s 9 (target ≥ 10)"),
    ],
)
def test_limits_of_the_reference_machine_are_times_the_speed_of_this_one(target, value, line):
    (verdict,) = judge({target.name: value, "machine_speed_ratio": 0.5}, (target,))
    assert verdict.line() == line


def test_targets_and_bounds_name_each_figure_once():
    assert len({target.name for target in TARGETS}) == len(TARGETS) == 20
    assert all(bound.startswith("machine_") for bound in BOUNDS.values())
