"""Dagster's keys of the times of a table, there and back."""

import pytest
from dagster import DynamicPartitionsDefinition
from hypothesis import given, strategies as st

from gazette_platform.assets.raw import (
    parse_partition,
    time_partition,
)
from gazette_platform.lake import PartitionAccount, PartitionColumn, partition_key
from gazette_platform.lake.raw.account_book import WHOLE, Time, time_of
from gazette_platform.lake.raw.partition_state import PartitionState

NAMES = st.lists(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), min_size=1, max_size=4, unique=True)
# As the lake escapes them.
VALUES = st.one_of(st.from_regex(r"[a-z0-9 .:-]{0,6}", fullmatch=True), st.just("%3D%25"))


def part(key, journal):
    return PartitionAccount(
        key=key, values=(), location="", journal=journal, state=PartitionState()
    )


@given(NAMES, st.data())
def test_there_and_back(names, data):
    key = "/".join(f"{name}={data.draw(VALUES)}" for name in names)
    own = data.draw(st.integers(0, len(names)))
    time = Time(own, "/".join(key.split("/")[own:]) or WHOLE)
    assert parse_partition(time_partition(time), names, [own]) == time


@pytest.mark.parametrize("key", ["1/2/3", "", "x"])
def test_what_is_of_no_such_table_is_nothing(key):
    assert parse_partition(key, ["a", "day", "hour"], [1]) is None
    assert parse_partition(key, ["a", "b", "day", "hour"], [2]) is None


def test_a_table_without_partition_columns():
    assert parse_partition("all", [], [0]) == Time(0, WHOLE)


def test_a_table_whose_journals_give_all_columns_has_one_key():
    time = time_of("part=0", "logs/part=0")
    assert (time_partition(time), parse_partition("all", ["part"], [1])) == ("all", time)
    assert parse_partition("0", ["part"], [1]) is None


def test_a_table_whose_journals_give_no_columns_keeps_its_keys():
    account = part("day=2026-01-31/hour=5", "logs")
    time = time_of(account.key, account.journal)
    assert time_partition(time) == "2026-01-31/5"
    assert parse_partition("2026-01-31/5", ["day", "hour"], [0]) == time


def test_keys_are_distinct_and_such_as_dagster_takes():
    columns = [PartitionColumn(key=k, column=k, type="string") for k in ("a", "b")]
    texts = ("", "%", "x", "x=y", "a/b", "/", "%25", "...", "all", "|")
    values = [(one, two) for one in texts for two in texts]
    keys = [time_partition(Time(0, partition_key(columns, pair))) for pair in values]
    assert len(set(keys)) == len(keys)
    assert time_partition(Time(0, partition_key(columns, ("x=y", "5")))) == "x=y/5"
    assert time_partition(Time(0, partition_key(columns[:1], [""]))) == "%"
    for key in keys:
        DynamicPartitionsDefinition(name="a").build_add_request([key])
