"""Back-off steps are those of Gazette's clients."""

from __future__ import annotations

import doctest

import pytest

from gazette_platform.errors import EtcdError, LeaseLost
from gazette_platform.ops import faults
from gazette_platform.ops.faults import insist


def test_steps_and_bounds():
    steps = [faults.backoff_s(attempt) for attempt in range(-1, 8)]
    assert steps == [0.0, 0.05, 0.05, 0.1, 0.1, 1.0, 1.0, 5.0, 5.0]


def test_examples_of_the_docstring_hold():
    assert doctest.testmod(faults).failed == 0


class Failing:
    """A call that ends with one outcome after the other."""

    def __init__(self, *outcomes):
        self.left = list(outcomes)

    async def __call__(self):
        outcome = self.left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def test_who_insists_gets_an_answer_in_the_end():
    call = Failing(EtcdError("one"), EtcdError("two"), "an answer", "more")
    assert await insist(call, is_over=lambda: False) == "an answer"
    assert call.left == ["more"]


async def test_what_fails_for_good_is_not_tried_again():
    call = Failing(EtcdError("one"), LeaseLost("gone"), "more")
    with pytest.raises(LeaseLost):
        await insist(call, is_over=lambda: False)
    assert call.left == ["more"]


async def test_the_last_error_is_reported_when_it_is_over():
    call, asked = Failing(EtcdError("one"), EtcdError("two"), "more"), iter([False, True])
    with pytest.raises(EtcdError, match="two"):
        await insist(call, is_over=lambda: next(asked))
    assert call.left == ["more"]
