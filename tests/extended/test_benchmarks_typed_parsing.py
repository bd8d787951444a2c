"""Benchmarks of typed tables: each way, on little data, makes the same table, in processes of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.typed_data import Plan
from benchmarks.typed_parsing import Step, run_steps

SMALL = Plan(content_bytes=200_000, fragment_bytes=100_000, bad_share=0.05)


def steps(way, **settings):
    """A few of one way: bad records, none, another codec."""
    plans = {
        "bad": SMALL,
        "good": replace(SMALL, bad_share=0.0),
        "raw": replace(SMALL, codec="NONE"),
    }
    return [
        Step(label=f"{way}_{name}", way=way, plan=plan, settings=settings)
        for name, plan in plans.items()
    ]


def check(way, folder, **settings):
    """Run them; all are right."""
    found = list(run_steps(steps(way, **settings), folder, warm=SMALL))
    assert [measured.step.label for measured in found] == [
        f"{way}_bad",
        f"{way}_good",
        f"{way}_raw",
    ]
    for measured in found:
        assert measured.is_right, (measured.truth, measured.result)
        figures = measured.figures()
        assert figures[f"{measured.step.label}_mb_per_s_per_core"] > 0
    # Memory is looked at ten times a second, which the smallest may escape.
    assert max(measured.python_bytes for measured in found) > 10_000_000
    return found


def test_arrow_alone_finds_all_records_and_the_bad_ones(tmp_path):
    found = check("arrow", tmp_path)
    assert found[0].result.bad == found[0].truth.bad > 0
    assert {"parse", "write"} <= found[0].result.stages.keys()


def test_product_finds_all_records_and_the_bad_ones(tmp_path):
    found = check("worker", tmp_path, source={"partitions": "bucket(2,order_id)"})
    assert found[0].result.bad == found[0].truth.bad > 0
    # Of each fragment, a file a bucket.
    assert found[1].result.files == 2 * 2


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["files", "rows", "json_source", "from_json"])
def test_each_way_of_spark_makes_the_same_table(way, tmp_path):
    found = check(way, tmp_path, spark={"spark.sql.shuffle.partitions": "1"})
    assert all(measured.result.bad == measured.truth.bad for measured in found)
    assert max(measured.jvm_bytes for measured in found) > 100_000_000
