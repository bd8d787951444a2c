"""Layouts and partition keys for arbitrary journal names."""

from itertools import pairwise

from hypothesis import given, strategies as st

from gazette_platform.hive import partition_name
from gazette_platform.lake.raw.partition_state import PartitionState
from gazette_platform.lake.spec.layout import Layout, PartitionColumn, partition_key

NAME = st.text("abcxyz_", min_size=1, max_size=4)
VALUE = st.text("aé1%=.-_+|,", min_size=1, max_size=8)
KEYS = st.lists(NAME, min_size=1, max_size=4, unique=True)


@given(keys=KEYS, data=st.data())
def test_match_returns_the_values_of_the_path(keys, data):
    values = data.draw(st.tuples(*[VALUE for _ in keys]))
    directory = "/".join(["base", *(f"{k}={v}" for k, v in zip(keys, values, strict=True))])
    layout = Layout.of_directory(directory)
    assert layout.keys == tuple(keys)
    assert layout.match(directory) == values
    assert Layout.parse(str(layout)) == layout


@given(keys=KEYS, data=st.data())
def test_partition_keys_are_distinct_and_safe_for_dagster(keys, data):
    tuples = st.tuples(*[VALUE for _ in keys])
    first, second = data.draw(tuples), data.draw(tuples)
    columns = [PartitionColumn(key=k, column=k, type="string") for k in keys]
    made = partition_key(columns, first)
    assert (made == partition_key(columns, second)) == (first == second)
    assert not any(special in made for special in ("|", ",", "..."))
    assert made.count("/") == len(keys) - 1


@given(keys=KEYS, data=st.data())
def test_metastore_names_are_distinct(keys, data):
    tuples = st.tuples(*[VALUE for _ in keys])
    first, second = data.draw(tuples), data.draw(tuples)
    assert (partition_name(keys, first) == partition_name(keys, second)) == (first == second)


@given(cuts=st.lists(st.integers(0, 200), min_size=2, max_size=30, unique=True), data=st.data())
def test_state_covers_just_what_was_added(cuts, data):
    cuts.sort()
    spans = list(pairwise(cuts))
    kept = data.draw(st.permutations(data.draw(st.sets(st.sampled_from(spans)).map(sorted))))
    state = PartitionState()
    for begin, end in kept:
        state = state.adding("j", begin, end, rows=1, stored_bytes=2)
    assert all(state.covers(begin, end) == ((begin, end) in kept) for begin, end in spans)
    assert state.covered_bytes == sum(end - begin for begin, end in kept) == state.content_bytes
    assert state.overlap_bytes == 0
    assert (state.rows, state.fragments, state.stored_bytes) == (
        len(kept),
        len(kept),
        2 * len(kept),
    )
    assert PartitionState.from_parameters(state.to_parameters()) == state
