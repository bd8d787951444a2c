"""A rollup goes on where a run of a former version ended."""

from __future__ import annotations

import golden_former
import pytest

OFFSETS = {"orders/shop=a": [(0, 27)], "orders/shop=b": [(0, 9)]}
ROWS = [("a", 5, 1), ("a", 6, 1), ("b", 5, 1)]


@pytest.fixture(params=golden_former.former_versions(), ids=lambda path: path.name)
def lake(request, tmp_path):
    return golden_former.restore_rollup(request.param, tmp_path)


def test_a_run_finds_nothing_to_do_and_then_makes_what_came(lake):
    assert lake.metastore.partitions_added == 0
    report = lake.run()
    assert (lake.engine.asked, report.made, report.dropped) == ([], [], [])
    assert report.covers.offsets() == OFFSETS
    assert lake.rows() == ROWS
    lake.publish(("b", 5), ("c", 7))
    lake.run()
    assert lake.engine.asked == [[("b", "5"), ("c", "7")]]
    assert lake.rows() == [*ROWS, ("c", 7, 1)]
    assert len(lake.tables.load("rollups", "sums").metadata.snapshots) == 2


def test_slices_whose_content_is_gone_stay(lake):
    lake.prune("a", 6)
    lake.publish(("b", 6))
    report = lake.run()
    assert report.made == [("b", "6")]
    assert lake.rows() == [*ROWS, ("b", 6, 1)]
