"""Splits and offsets of `format("gazette")`: which bytes are read by whom, and from where to where."""

import doctest
import json
import pickle

import pytest
from hypothesis import given, strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    In,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from gazette_platform.client import FragmentListing
from gazette_platform.errors import DataError, JournalReplaced, ValidationError
from gazette_platform.message.sequencer import ProducerState
from gazette_platform.protocol import Fragment, created_by
from gazette_platform.spark import progress
from gazette_platform.spark.progress import (
    INITIAL,
    PRODUCERS_MAX,
    begins_of,
    offset_of,
    positions_of,
    producers_of,
    reach,
    require_created,
)
from gazette_platform.spark.reading import Bounds, Range, pack, plan_range
from gazette_platform.spark.source import bounds_of


def listing(begin, end, *, is_stored=True):
    store = "file:///" if is_stored else ""
    return FragmentListing(Fragment("a/b", begin, end, backing_store=store), "file:///x?secret")


def wanted(begin, end):
    return Range(journal="a/b", content_type="t", begin=begin, end=end)


def spans(plan):
    return [(span.begin, span.end, span.listing is not None) for span in plan[0]]


FRAGMENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20), st.booleans()).map(
        lambda found: listing(found[0], found[0] + found[1], is_stored=found[2])
    ),
    max_size=12,
)


@given(FRAGMENTS, st.integers(0, 70), st.integers(0, 70), st.integers(1, 30))
def test_each_byte_of_a_range_is_in_one_split_or_in_a_hole(listed, begin, end, bytes_max):
    plan = plan_range(wanted(begin, end), listed)
    splits = pack(plan[0], bytes_max)
    read = [at for split in splits for span in split for at in range(span.begin, span.end)]
    gone = [at for low, high in plan[1] for at in range(low, high)]
    assert sorted([*read, *gone]) == [*range(begin, end)]
    assert read == sorted(read)
    for split in splits:
        assert len(split) == 1 or sum(span.end - span.begin for span in split) <= bytes_max
        for span in split:
            held = span.listing and span.listing.fragment
            assert held is None or held.begin <= span.begin < span.end <= held.end
    # A byte is said to be gone only if no listed broker holds it.
    held = {at for each in listed for at in range(each.fragment.begin, each.fragment.end)}
    assert not held & set(gone)


def test_fragments_are_cut_where_they_meet_and_the_tail_is_asked_for():
    listed = [listing(0, 10), listing(5, 20), listing(20, 25, is_stored=False)]
    assert spans(plan_range(wanted(3, 30), listed)) == [
        (3, 10, True),
        (10, 20, True),
        (20, 30, False),
    ]


def test_what_was_pruned_is_a_hole_at_the_beginning():
    plan = plan_range(wanted(0, 30), [listing(10, 20), listing(25, 30)])
    assert plan[1] == [(0, 10), (20, 25)]
    assert spans(plan) == [(10, 20, True), (25, 30, True)]


def test_span_shows_no_signed_url_but_keeps_it():
    [span], _ = plan_range(wanted(0, 10), [listing(0, 10)])
    assert "secret" not in repr(span)
    assert pickle.loads(pickle.dumps(span)) == span


def test_filters_leave_only_what_may_have_rows():
    filters = [
        In(("_journal",), ["a/1", "a/2", "b/1"]),
        StringStartsWith(("_journal",), "a/"),
        GreaterThan(("_begin",), 10),
        LessThanOrEqual(("_begin",), 20),
        Not(EqualTo(("_journal",), "a/1")),
        EqualTo(("n",), 5),
        EqualTo(("x", "_begin"), 99),
    ]
    bounds = bounds_of(filters, is_committed=False)
    assert [name for name in ("a/1", "a/3", "b/1", "a/2") if bounds.takes_journal(name)] == [
        "a/1",
        "a/2",
    ]

    def takes(begin, end):
        return bounds.takes(Range(journal="a/1", content_type="t", begin=begin, end=end))

    assert [takes(0, 10), takes(0, 11), takes(20, 21), takes(21, 22)] == [False, True, True, False]
    everything = bounds_of(filters, is_committed=True)
    assert (everything.begin_min, everything.begin_max) == (0, None)
    assert everything.journals == bounds.journals
    assert bounds_of([], is_committed=False) == Bounds()
    both = [EqualTo(("_journal",), "a"), EqualTo(("_journal",), "b")]
    assert bounds_of(both, is_committed=False).journals == frozenset()


def test_offsets_have_examples_that_hold():
    assert doctest.testmod(progress).failed == 0


HEADS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1000))


@given(HEADS, HEADS, st.integers(0, 500))
def test_batches_never_go_back_and_respect_their_limit(positions, more, bytes_max):
    heads = {name: positions.get(name, 0) + length for name, length in more.items()}
    found = reach(positions, heads, bytes_max)
    assert found.keys() == positions.keys() | heads.keys()
    steps = {name: end - positions.get(name, 0) for name, end in found.items()}
    assert min(steps.values(), default=0) >= 0
    assert all(step <= more.get(name, 0) for name, step in steps.items())
    if bytes_max:
        assert sum(steps.values()) <= bytes_max
    else:
        assert steps == {**dict.fromkeys(steps, 0), **more}


def test_journal_that_is_shorter_than_it_was_read_to_is_an_error():
    with pytest.raises(DataError, match="a: the query has read up to offset 10, and it ends at 4"):
        reach({"a": 10, "b": 1}, {"a": 4, "b": 5}, 0)
    with pytest.raises(DataError, match="up to offset 10, and it ends at 9"):
        reach({"a": 10}, {"a": 9}, 0)


def test_first_batch_begins_where_its_end_says():
    end = offset_of({"a": 10, "b": 5}, {"a": 3, "b": 5})
    assert begins_of(INITIAL, end) == {"a": 3, "b": 5}
    assert positions_of(end) == {"a": 10, "b": 5}
    with pytest.raises(ValidationError, match="does not say where it began"):
        begins_of(INITIAL, offset_of({"a": 1}))


def test_offset_keeps_its_journal_though_a_broker_does_not_say_which_it_is():
    end = offset_of({"a": 10}, created={"a": 43})
    assert require_created(end, {"a": 0, "b": 5}) == {"a": 43, "b": 5}
    with pytest.raises(JournalReplaced):
        require_created(end, {"a": 44})


def test_offset_learns_the_history_of_etcd_and_keeps_it():
    known, other = created_by(43, 1), created_by(43, 2)
    former = offset_of({"a": 10}, created={"a": 43})  # of a former release
    assert require_created(former, {"a": known}) == {"a": known}
    end = offset_of({"a": 10}, created={"a": known})
    assert require_created(end, {"a": 43}) == {"a": known}  # a broker of Gazette does not send it
    with pytest.raises(JournalReplaced, match="of another etcd"):
        require_created(end, {"a": other})


def test_journal_that_came_later_is_read_from_its_beginning():
    start = offset_of({"a": 10}, {"a": 3})
    assert begins_of(start, offset_of({"a": 12, "new": 7})) == {"a": 10, "new": 0}


@pytest.mark.parametrize("end", [{"a": 9}, {"b": 20}])
def test_journal_that_ends_before_it_was_read_to_is_an_error(end):
    with pytest.raises(DataError, match="a: the query has read up to offset 10"):
        begins_of(offset_of({"a": 10}), offset_of(end))


@pytest.mark.parametrize("offset", [{}, {"journals": 1}, {"journals": {"a": "1"}}, {"a": 5}])
def test_offset_of_another_source_is_reported(offset):
    with pytest.raises(ValidationError, match="is not an offset of format gazette"):
        positions_of(offset)


def test_offset_of_committed_messages_has_producers_of_its_journals():
    states = (
        ProducerState("a/b", b"\x01aaaaa", (1 << 64) - 1, 17),
        ProducerState("a/b", b"\x03bbbbb", 5, -1),
    )
    offset = json.loads(
        json.dumps(offset_of({"a/b": 20, "a/c": 3}, {"a/b": 0}, {"a/b": states[::-1], "a/c": ()}))
    )
    assert offset["producers"] == {
        "a/b": [["016161616161", (1 << 64) - 1, 17], ["036262626262", 5, -1]]
    }
    assert producers_of(offset, is_committed=True) == {"a/b": states}
    assert producers_of(INITIAL, is_committed=True) == {}
    assert producers_of(offset_of({"a/b": 1}), is_committed=False) == {}
    assert begins_of(INITIAL, offset) == {"a/b": 0, "a/c": 0}


def test_query_keeps_to_committed_messages_or_to_all():
    committed = offset_of({"a/b": 1}, None, {"a/b": (ProducerState("a/b", b"\x01aaaaa", 1, -1),)})
    for offset, is_committed in ((offset_of({"a/b": 1}), True), (committed, False)):
        with pytest.raises(
            ValidationError, match="committed: the query's checkpoint is of one with"
        ):
            producers_of(offset, is_committed=is_committed)
    for odd in ({"a/b": [1]}, {"a/b": [["x", 1, 2]]}, [1]):
        with pytest.raises(ValidationError, match="is not an offset of format gazette"):
            producers_of({"journals": {}, "producers": odd}, is_committed=True)


def test_producers_of_an_offset_are_bounded():
    states = tuple(ProducerState("a/b", n.to_bytes(6), 1, -1) for n in range(PRODUCERS_MAX + 1))
    assert len(offset_of({}, None, {"a/b": states[1:]})["producers"]["a/b"]) == PRODUCERS_MAX
    with pytest.raises(ValidationError, match="committed: 10001 producers have published to these"):
        offset_of({}, None, {"a/b": states})
