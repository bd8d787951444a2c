"""Back-off steps are those of Gazette's clients."""

from __future__ import annotations

import doctest

from gazette_platform.ops import retry


def test_steps_and_bounds():
    steps = [retry.backoff_s(attempt) for attempt in range(-1, 8)]
    assert steps == [0.0, 0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0, 5.0]


def test_examples_of_the_docstring_hold():
    assert doctest.testmod(retry).failed == 0
