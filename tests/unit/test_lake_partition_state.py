"""Accounts of one Hive partition: what is not known stays so, and nothing is reported that is not held."""

import pytest

from gazette_platform.errors import LakeError
from gazette_platform.lake.raw.partition_state import PartitionState


def state(*ranges, rows=1, stored_bytes=5):
    made = PartitionState()
    for begin, end in ranges:
        made = made.adding("j", begin, end, rows=rows, stored_bytes=stored_bytes)
    return made


@pytest.mark.parametrize("figure", ["rows", "stored_bytes"])
def test_what_is_not_known_of_one_fragment_is_not_known_of_all(figure):
    known = {"rows": 1, "stored_bytes": 5}
    unknown = known | {figure: None}
    for first, second in ((known, unknown), (unknown, known)):
        made = PartitionState().adding("j", 0, 10, **first).adding("j", 10, 20, **second)
        assert getattr(made, figure) is None
        assert (made.fragments, made.content_bytes) == (2, 20)
        left = made.without(10, 20, rows=1, stored_bytes=5, left=[(0, 10)])
        # Of rows it is known which fragment's are not.
        is_known = figure == "rows" and second == unknown
        assert getattr(left, figure) == (1 if is_known else None)
        assert left.ranges == ((0, 10),)


def test_unknown_figure_is_no_longer_given_to_engines():
    before = {"numRows": "1", "totalSize": "5", "numFiles": "1", "owner": "me"}
    found = state((0, 10), rows=None, stored_bytes=None).within(before)
    assert "numRows" not in found
    assert "totalSize" not in found
    assert (found["numFiles"], found["owner"]) == ("1", "me")
    assert PartitionState.from_parameters(found) == state((0, 10), rows=None, stored_bytes=None)


def test_bytes_are_covered_by_one_range_or_not_at_all():
    made = state((0, 10), (10, 20), (30, 40))
    assert made.ranges == ((0, 20), (30, 40))
    for span in ((0, 20), (5, 15), (30, 40), (39, 40)):
        assert made.covers(*span)
    for span in ((15, 35), (0, 40), (19, 21), (29, 31), (20, 30)):
        assert not made.covers(*span)


def test_one_of_two_that_overlap_is_taken_out_and_the_other_stays():
    made = state((0, 10), (20, 30), (20, 25))
    assert (made.covered_bytes, made.overlap_bytes) == (20, 5)
    left = made.without(20, 25, rows=1, stored_bytes=5, left=[(0, 10), (20, 30)])
    assert left == state((0, 10), (20, 30))
    left = made.without(20, 30, rows=1, stored_bytes=5, left=[(0, 10), (20, 25)])
    assert left.ranges == ((0, 10), (20, 25))
    assert (left.fragments, left.rows, left.content_bytes, left.stored_bytes) == (2, 2, 15, 10)


def test_data_have_another_version_when_bytes_come_or_are_doubled():
    versions = [
        state((0, 10)),
        state((0, 10), (0, 10)),
        state((0, 10), (0, 10), (0, 10)),
        state((0, 10), (10, 20)),
        state((0, 10), (11, 20)),
    ]
    assert len({made.data_version for made in versions}) == len(versions)
    assert state((0, 20)).data_version == state((0, 10), (10, 20)).data_version


def test_a_state_with_a_thousand_holes_fits_parameters_and_forgets_no_byte():
    begins = [10**15 + 100 * n for n in range(1000)]
    made = state(*((begin, begin + 50) for begin in begins))
    parameters = made.to_parameters()
    assert max(map(len, parameters.values())) < 4000
    assert PartitionState.from_parameters(parameters) == made
    assert all(made.covers(begin, begin + 50) for begin in begins)
    assert made.fragments == 1000


@pytest.mark.parametrize(
    ("text", "told"), [("{}", "drop that Hive partition"), ('{"version":9}', "update the platform")]
)
def test_a_state_that_cannot_be_read_is_not_taken_for_an_empty_one(text, told):
    with pytest.raises(LakeError, match=told):
        PartitionState.from_parameters({"gazette.state": text})
    assert PartitionState.from_parameters({}) == PartitionState()
