"""Benchmarks of both wires: turns, messages, names of figures, ratios, and their table."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.appends import AppendCase
from benchmarks.by_wire import show_wires
from benchmarks.figures import merged, of_wire, wire_ratios
from benchmarks.targets import WIRE_TARGETS
from benchmarks.wire import append_figures, in_turn
from benchmarks.wire_load import Report, append_messages, check_append, read_content
from gazette_platform.errors import DataError
from gazette_platform.protocol.content import decode_append_content, encode_read_content
from gazette_platform.protocol.pb import protocol_pb2 as pb


async def test_sides_alternate_and_give_medians():
    turns = []

    def side(name, values):
        async def measure():
            turns.append(name)
            return {"x_s": values[turns.count(name) - 1]}

        return measure

    measures = {"a_": side("a", [3.0, 1.0, 9.0]), "b_": side("b", [4.0, 6.0, 5.0])}
    assert await in_turn(measures, rounds=3) == {"a_x_s": 3.0, "b_x_s": 5.0}
    assert "".join(turns) == "abbaab"


@pytest.mark.parametrize(("size", "chunks"), [(100, 1), (1 << 20, 2), ((1 << 20) + 1, 3)])
def test_append_is_request_content_and_commit_marker(size, chunks):
    content = bytes(range(256)) * (size // 256 + 1)
    first, *middle, last = append_messages(b"request", content[:size])
    assert (first, len(middle), last) == (b"request", chunks, b"")
    assert b"".join(decode_append_content(each) for each in middle) == content[:size]


def test_refused_append_is_not_a_success():
    check_append(pb.AppendResponse(total_chunks=1).SerializeToString())
    header = pb.AppendResponse(header=pb.Header()).SerializeToString()
    # Brokers encode the header once, and put it ahead of the status.
    status = pb.AppendResponse(status=pb.Status.NOT_JOURNAL_PRIMARY_BROKER).SerializeToString()
    refused = header + status
    with pytest.raises(DataError, match="an append with NOT_JOURNAL_PRIMARY_BROKER"):
        check_append(refused)


def test_read_gives_content_or_an_error():
    assert read_content(encode_read_content(7, b"abc")) == b"abc"
    assert read_content(pb.ReadResponse(offset=7, write_head=9).SerializeToString()) == b""
    refused = pb.ReadResponse(status=pb.Status.JOURNAL_NOT_FOUND).SerializeToString()
    with pytest.raises(DataError, match="a read with JOURNAL_NOT_FOUND"):
        read_content(refused)


@pytest.mark.parametrize(
    ("size", "rate"), [("100b", {"x_per_s": 500.0}), ("16kib", {"x_mb_per_s": 8.192})]
)
def test_figures_have_units_that_suit_the_size(size, rate):
    report = Report(calls=1000, elapsed_s=2.0, p50_ms=1.0, p99_ms=3.0, cpu_s=0.02)
    found = append_figures(AppendCase("raw", size, 8), "x", report, server_s=0.1)
    assert found == pytest.approx(
        rate
        | {
            "x_p50_ms": 1.0,
            "x_p99_ms": 3.0,
            "broker_cpu_us_per_x": 100.0,
            "load_cpu_us_per_x": 20.0,
        }
    )


def test_figures_of_a_wire_keep_the_names_of_the_machine():
    figures = {"tail_p50_ms": 1.0, "machine_sha1_mb_per_s": 2.0, "wire_h2_tail_p50_ms": 3.0}
    assert of_wire(figures, None) == figures
    named = {"wire_grpc_tail_p50_ms": 1.0, "machine_sha1_mb_per_s": 2.0, "wire_h2_tail_p50_ms": 3.0}
    assert of_wire(figures, "grpc") == named


def test_ratios_need_both_wires():
    figures = {"wire_grpc_a_s": 2.0, "wire_h2_a_s": 1.0, "wire_grpc_b_s": 1.0, "wire_h2_c_s": 1.0}
    assert wire_ratios(figures) == {"wire_ratio_a_s": 0.5}
    assert wire_ratios({"wire_grpc_a_s": 0.0, "wire_h2_a_s": 1.0}) == {}


def test_kept_result_has_ratios_of_two_runs():
    first = merged({}, {"figures": {"wire_grpc_a_s": 3.0}})
    second = merged(first, {"figures": {"wire_h2_a_s": 1.0}})
    assert second["figures"]["wire_ratio_a_s"] == 0.3333


def test_table_has_target_and_bare_server():
    name = "append_r3_100b_c16_per_s"
    figures = {f"wire_grpc_{name}": 1000.0, f"wire_h2_{name}": 3000.0, f"wire_ratio_{name}": 3.0}
    figures["machine_wire_h2_append_100b_c16_per_s"] = 12_000.0
    console = Console(file=io.StringIO(), width=200)
    assert not show_wires(figures, console)
    said = console.file.getvalue()
    (row,) = (line.split() for line in said.splitlines() if line.strip().startswith(name))
    assert row == [name, "1,000", "3,000", "3.00", "≥", "4", "-", "12,000", "0.25"]
    assert f"target missed: wire_ratio_{name} 3 (target ≥ 4)" in said
    assert show_wires(figures | {f"wire_ratio_{name}": 4.0}, console)


def test_targets_of_wires_are_ratios_and_named_once():
    names = [target.name for target in WIRE_TARGETS]
    assert all(name.startswith("wire_ratio_") for name in names)
    assert len(set(names)) == len(names)
