"""Keys of Hive partitions in Dagster, there and back."""

import pytest
from hypothesis import given, strategies as st

from gazette_platform.sensors.keys import hive_partition, table_partition

NAMES = st.lists(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), min_size=1, max_size=4, unique=True)
# As the lake escapes them.
VALUES = st.one_of(st.from_regex(r"[a-z0-9 .:-]{0,6}", fullmatch=True), st.just("%3D%25"))


@given(NAMES, st.data())
def test_there_and_back(names, data):
    key = "/".join(f"{name}={data.draw(VALUES)}" for name in names)
    assert hive_partition(table_partition(key), names) == key
    # Of a former release, whose keys Dagster may still have.
    assert hive_partition(key, names) == key


@pytest.mark.parametrize("key", ["all", "1/2/3", ""])
def test_what_is_of_no_such_table_stays_as_it_is(key):
    assert hive_partition(key, ["day", "hour"]) == key


def test_a_table_without_partition_columns():
    assert hive_partition(table_partition("all"), []) == "all"
