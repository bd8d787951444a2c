"""Benchmarks: targets, the figures of other servers, and the tables."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from benchmarks.appends import append_cases
from benchmarks.bench import FULL, QUICK
from benchmarks.content import Payloads
from benchmarks.load import closed_loop
from benchmarks.matrix import matrix_cases, service_figure
from benchmarks.report import (
    Baseline,
    appends_table,
    load_baseline,
    matrix_table,
    others_table,
    quantity,
    ratio,
)
from benchmarks.tail import Record
from benchmarks.targets import BOUNDS, TARGETS, Target, judge
from gazette_platform.errors import DataError

AT_LEAST = Target("rate_per_s", 10)
AT_MOST = Target("wait_ms", 2, is_upper=True)


@pytest.mark.parametrize(
    ("target", "value", "is_met"),
    [
        (AT_LEAST, 10.0, True),
        (AT_LEAST, 9.99, False),
        (AT_MOST, 2.0, True),
        (AT_MOST, 2.01, False),
        (AT_MOST, None, False),
    ],
)
def test_a_target_is_met_up_to_its_limit(target, value, is_met):
    figures = {} if value is None else {target.name: value}
    (verdict,) = judge(figures, (target,))
    assert verdict.is_met is is_met


@pytest.mark.parametrize(
    ("target", "figures", "line"),
    [
        (AT_LEAST, {"rate_per_s": 12.5}, "target met: rate_per_s 12.5 (target ≥ 10)"),
        (AT_MOST, {"wait_ms": 3.0}, "target missed: wait_ms 3 (target ≤ 2)"),
        (AT_MOST, {}, "target not measured: wait_ms (target ≤ 2)"),
    ],
)
def test_a_verdict_is_one_line(target, figures, line):
    assert judge(figures, (target,))[0].line() == line


OF_REFERENCE = Target("msgs_per_s", 1000, is_of_reference=True)


@pytest.mark.parametrize(
    ("target", "value", "line"),
    [
        (OF_REFERENCE, 500.0, "target met: msgs_per_s 500 (target ≥ 1000, times 0.5: 500)"),
        (OF_REFERENCE, 499.0, "target missed: msgs_per_s 499 (target ≥ 1000, times 0.5: 500)"),
        (AT_LEAST, 9.0, "target missed: rate_per_s 9 (target ≥ 10)"),
    ],
)
def test_limits_of_the_reference_machine_are_times_the_speed_of_this_one(target, value, line):
    (verdict,) = judge({target.name: value, "machine_speed_ratio": 0.5}, (target,))
    assert verdict.line() == line


def test_a_machine_of_unknown_speed_is_judged_as_the_reference_machine():
    assert not judge({"msgs_per_s": 999.0}, (OF_REFERENCE,))[0].is_met
    assert judge({"msgs_per_s": 1000.0}, (OF_REFERENCE,))[0].is_met


def test_targets_of_the_append_service_are_of_the_reference_machine():
    limits = {each.name: each.limit for each in TARGETS if each.is_of_reference}
    assert limits["append_service_writer_msgs_per_s"] == 1_480_000
    assert limits["append_service_await_msgs_per_s"] == 60_000


def rendered(table) -> str:
    out = io.StringIO()
    Console(file=out, width=140).print(table)
    return out.getvalue()


def row_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
    return line.split()


def test_appends_stand_beside_go_with_latencies_and_bound():
    figures = {
        "append_100b_c1_per_s": 2000.0,
        "append_100b_c1_p50_ms": 0.5,
        "append_100b_c1_p99_ms": 1.5,
        "broker_cpu_us_per_append_100b_c1": 340.0,
        "append_1mib_c8_gzip_mb_per_s": 164.0,
        "machine_grpc_small_c1_per_s": 4000.0,
    }
    baseline = Baseline({"append_100b_c1_per_s": {"go": 4000, "nats": 9100}}, {})
    text = rendered(appends_table(figures, baseline))
    assert row_of(text, "append_100b_c1") == [
        "append_100b_c1", "2,000", "/s", "0.5", "1.5", "340", "4,000", "0.50", "0.50",
    ]  # fmt: skip
    assert row_of(text, "append_1mib_c8_gzip")[1:] == ["164", "MB/s", "-", "-", "-", "-", "-", "-"]
    assert "machine" not in text


def test_other_figures_have_a_row_each_and_appends_none():
    figures = {"tail_p50_ms": 0.62, "append_100b_c1_p50_ms": 1.0, "append_writer_100b_per_s": 740e3}
    text = rendered(
        others_table(figures, Baseline({"tail_p50_ms": {"go": 0.31, "nats": 0.18}}, {}))
    )
    assert row_of(text, "tail_p50_ms")[1:] == ["0.62", "0.31", "2.00", "0.18", "-", "-"]
    assert row_of(text, "append_writer_100b_per_s")[1] == "740,000"
    assert "c1_p50" not in text


def test_appends_stand_both_ways_with_cpu_of_broker_and_client_beside_go_at_this_speed():
    figures = {
        "machine_speed_ratio": 0.5,
        "append_100b_c1_per_s": 1000.0,
        "append_100b_c1_p50_ms": 0.9,
        "append_100b_c1_p99_ms": 2.5,
        "broker_cpu_s_per_gb_append_100b_c1": 6800.0,
        "client_cpu_s_per_gb_append_100b_c1": 4000.0,
        "append_service_100b_c1_per_s": 900.0,
        "append_1mib_c8_raw_mb_per_s": 299.0,
        "broker_cpu_s_per_gb_append_1mib_c8_raw": 4.5,
        "append_1mib_c8_gzip_mb_per_s": 77.0,
        "append_service_writer_msgs_per_s": 740e3,
        "append_service_writer_client_cpu_us_per_msg": 0.9,
        "append_service_writer_broker_cpu_us_per_msg": 0.35,
    }
    text = rendered(matrix_table(figures, load_baseline()))
    rows = [line.split("  ") for line in text.splitlines() if " x " in line or "writer" in line]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["100 B x 1", "RPC each", "1,000 /s", "0.9", "2.5", "6,800", "4,000", "2,000", "0.50", "3,400"],
        ["100 B x 1", "service", "900 /s", "-", "-", "-", "-", "-", "-", "-"],
        ["1 MiB x 8", "RPC each", "299 MB/s", "-", "-", "4.5", "-", "150", "2.00", "6.4"],
        ["100 B", "writer", "740,000 /s", "-", "-", "3.5", "9", "740,000", "1.00", "-"],
    ]  # fmt: skip
    others = rendered(others_table(figures, load_baseline()))
    assert "100b" not in others
    assert "1mib" not in others


def test_every_size_is_measured_1_8_and_64_at_a_time_both_ways():
    cases = matrix_cases(FULL)
    assert [(case.size, case.concurrency) for case in cases] == [
        (size, concurrency) for size in ("100b", "16kib", "1mib") for concurrency in (1, 8, 64)
    ]
    names = [case.figure for case in cases] + [service_figure(case) for case in cases]
    assert len(set(names)) == 18
    assert set(matrix_cases(QUICK)) < set(cases) < set(append_cases(FULL))


def test_quantities_and_ratios_of_nothing_are_dashes():
    assert (quantity(None), ratio(1.0, None), ratio(1.0, 0.0)) == ("-", "-", "-")
    assert (quantity(99.96), quantity(100.4), quantity(1234.0)) == ("100", "100", "1,234")


def test_the_speed_of_a_machine_is_the_median_of_its_ratios():
    baseline = Baseline({}, {"a": 100.0, "b": 100.0, "c": 100.0, "d": 100.0})
    assert baseline.speed({"a": 50.0, "b": 60.0, "c": 500.0, "x": 1.0}) == 0.6
    assert baseline.speed({"x": 1.0}) is None


def names_of_appends(scale) -> set[str]:
    units = {"100b": "per_s", "16kib": "mb_per_s", "1mib": "mb_per_s"}
    return {f"{case.figure}_{units[case.size]}" for case in append_cases(scale)}


@pytest.mark.parametrize(
    "name",
    ["append_100b_c16_per_s", "append_1mib_c8_raw_mb_per_s", "append_1mib_c8_gzip_mb_per_s"],
)
@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_promised_figures_are_among_the_cases(scale, name):
    assert name in names_of_appends(scale)


def test_every_figure_of_go_for_a_case_is_one_that_we_measure():
    names = {
        name
        for name in load_baseline().figures
        if name.startswith("append_") and name.endswith("per_s") and "writer" not in name
    }
    assert names
    assert names <= names_of_appends(FULL)


def test_a_full_run_measures_all_sizes_with_all_codecs():
    cases = append_cases(FULL)
    assert len(cases) == len(set(cases)) == 30
    assert [case.figure for case in cases[:2]] == ["append_100b_c1", "append_100b_c8"]


def test_targets_and_bounds_name_each_figure_once():
    assert len({target.name for target in TARGETS}) == len(TARGETS) == 20
    assert all(bound.startswith("machine_") for bound in BOUNDS.values())


@pytest.mark.parametrize(
    "text", ["[", "provenance = 'x'", "[machine]\n[figures]\na = { perl = 1 }"]
)
def test_a_baseline_that_is_wrong_is_named(tmp_path, text):
    path = tmp_path / "base.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"base\.toml"):
        load_baseline(path)


def test_payloads_are_pieces_of_the_content_and_repeat_with_the_seed():
    content = bytes(range(256)) * 8
    first, again, other = (Payloads(content, seed=seed).of(100) for seed in (1, 1, 2))
    pieces = [next(first) for _ in range(25)]
    assert pieces == [next(again) for _ in range(25)]
    assert pieces != [next(other) for _ in range(25)]
    assert all(len(piece) == 100 for piece in pieces)
    assert b"".join(pieces[:20]) in content
    assert pieces[20:] == pieces[:5]


@pytest.mark.parametrize("number", [0, 7, 1234567890])
def test_a_record_knows_its_number(number):
    record = Record.make(number, b'{"flight":1}' * 9)
    assert Record.number(record) == number
    assert len(record) == 108
    assert record.endswith(b"\n")


class Steps:
    """A clock on which each look takes a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 1.0
        return self.now_s


async def test_a_closed_loop_ends_the_calls_under_way_at_its_end():
    under_way = most = 0

    async def work() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    load = await closed_loop(work, Steps(), concurrency=3, window_s=20.0)
    assert under_way == 0
    assert most == 3
    assert len(load.latencies_s) >= 3
    assert load.per_s == pytest.approx(len(load.latencies_s) / load.elapsed_s)


async def test_a_closed_loop_fails_as_its_work_does():
    async def work() -> None:
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        await closed_loop(work, Steps(), concurrency=2, window_s=1.0)
