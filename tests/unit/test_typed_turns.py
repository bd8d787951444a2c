"""Whose turn it is among tables that are run again and again."""

import math

from gazette_platform.cli.gazctl.lake.run import TypedTurns


def test_new_tables_are_due_and_who_waits_longest_comes_first():
    turns, every_s = TypedTurns(), {"a": 10.0, "b": 30.0}
    assert turns.take({}, 0) == ("", math.inf)
    assert turns.take(every_s, 100) == ("a", 0)
    turns.ended("a", began=100, now=103, every_s=10, has_more=False)
    assert turns.take(every_s, 103) == ("b", 0)
    turns.ended("b", began=103, now=115, every_s=30, has_more=False)
    # By the beginnings of runs: a was due at 110, b is at 133.
    assert turns.take(every_s, 115) == ("a", 0)
    turns.ended("a", began=115, now=116, every_s=10, has_more=False)
    assert turns.take(every_s, 116) == ("", 9)
    # A table that is new meanwhile, and one that is gone.
    assert turns.take({"b": 30.0, "c": 5.0}, 117) == ("c", 0)


def test_a_run_that_takes_longer_than_its_time_is_followed_at_once():
    turns = TypedTurns()
    assert turns.take({"a": 5.0}, 0) == ("a", 0)
    turns.ended("a", began=0, now=20, every_s=5, has_more=False)
    assert turns.take({"a": 5.0}, 20) == ("a", 0)


def test_who_has_more_is_due_behind_the_others():
    turns, every_s = TypedTurns(), {"a": 60.0, "b": 60.0}
    assert turns.take(every_s, 0) == ("a", 0)
    turns.ended("a", began=0, now=30, every_s=60, has_more=True)
    assert turns.take(every_s, 30) == ("b", 0)
    turns.ended("b", began=30, now=31, every_s=60, has_more=False)
    assert turns.take(every_s, 31) == ("a", 0)


def test_who_fails_waits_longer_each_time_and_no_longer_once_well():
    turns = TypedTurns()
    pauses = [turns.failed("a", now=0, every_s=5) for _ in range(20)]
    assert pauses[:5] == [5, 10, 20, 40, 60]
    assert set(pauses[5:]) == {60}
    assert turns.take({"a": 5.0}, 59) == ("", 1)
    turns.ended("a", began=60, now=60, every_s=5, has_more=False)
    assert turns.failed("a", now=60, every_s=5) == 5
    assert turns.failed("slow", now=0, every_s=300) == 300
