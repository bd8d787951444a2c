"""Benchmarks: how samples and runs become figures, and how results are kept."""

from __future__ import annotations

import json

import pytest

from benchmarks.figures import load, medians, merged, percentile, rounded, write
from gazette_platform.errors import DataError


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([5.0], 1.0, 5.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0], 0.51, 2.0),
        ([float(n) for n in range(100, 0, -1)], 0.99, 99.0),
        ([float(n) for n in range(1, 1001)], 0.99, 990.0),
        ([float(n) for n in range(1, 11)], 0.99, 10.0),
    ],
)
def test_percentile_is_the_nearest_rank(values, share, expected):
    assert percentile(values, share) == expected


def test_percentile_leaves_its_samples_alone():
    values = [3.0, 1.0, 2.0]
    percentile(values, 0.5)
    assert values == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1)])
def test_percentile_refuses_what_has_none(values, share):
    with pytest.raises(ValueError, match=r"no values|share"):
        percentile(values, share)


def test_medians_take_each_figure_alone_and_keep_the_order():
    runs = [{"b": 1.0, "a": 9.0}, {"b": 3.0, "a": 7.0}, {"b": 2.0, "c": 4.0}]
    found = medians(runs)
    assert found == {"b": 2.0, "a": 8.0, "c": 4.0}
    assert list(found) == ["b", "a", "c"]


def test_medians_of_no_runs_are_none():
    assert medians([]) == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, 0.0),
        (0.00123456, 0.001235),
        (1.23456, 1.235),
        (98765.4, 98770.0),
        (-12.3456, -12.35),
        (float("inf"), float("inf")),
    ],
)
def test_rounded_keeps_four_digits(value, expected):
    assert rounded(value) == expected


def test_merged_keeps_figures_of_other_benchmarks_and_replaces_its_own():
    previous = {"date": "old", "spark": {"note": 1}, "figures": {"z": 1.0, "a": 1.0}}
    result = {"date": "new", "figures": {"m": 3.0, "a": 2.0}}
    found = merged(previous, result)
    assert found == {
        "date": "new",
        "spark": {"note": 1},
        "figures": {"a": 2.0, "m": 3.0, "z": 1.0},
    }
    assert list(found["figures"]) == ["a", "m", "z"]
    assert previous["figures"] == {"z": 1.0, "a": 1.0}


def test_a_result_is_written_and_loaded_again(tmp_path):
    path = tmp_path / "results" / "latest.json"
    assert load(path) == {}
    write(path, {"figures": {"a": 1.5}, "machine": {"cpu": "Ünit"}})
    assert load(path) == {"figures": {"a": 1.5}, "machine": {"cpu": "Ünit"}}
    assert [child.name for child in path.parent.iterdir()] == ["latest.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"figures": [1]}'])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    path = tmp_path / "latest.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"latest\.json.*remove the file"):
        load(path)


def test_a_failed_write_leaves_the_old_result(tmp_path):
    path = tmp_path / "latest.json"
    write(path, {"figures": {"a": 1.0}})
    with pytest.raises(TypeError):
        write(path, {"figures": {"a": object()}})
    assert json.loads(path.read_text()) == {"figures": {"a": 1.0}}
