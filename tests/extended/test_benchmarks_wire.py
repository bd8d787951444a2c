"""The benchmark of both wires: what its load appends, and what the whole group measures."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from benchmarks import grpc_bound, wire
from benchmarks.bench import FULL, create, journal_spec, serving
from benchmarks.by_wire import use_wire
from benchmarks.content import Payloads
from benchmarks.figures import WIRES, wire_ratios
from benchmarks.targets import WIRE_TARGETS
from benchmarks.wire import measure_wire, run_load
from gazette_platform.errors import SetupError
from gazette_platform.ops.clock import SystemClock

pytestmark = [pytest.mark.etcd]

SCALE = dataclasses.replace(FULL, runs=1, window_s=0.1, tail_s=0.2)
# Other groups of benchmarks measure these.
ELSEWHERE = (
    "wire_ratio_append_service_",
    "wire_ratio_consumer_",
    "wire_ratio_idle_10k_",
)


@pytest.mark.parametrize("name", WIRES)
async def test_journal_grows_by_what_the_load_reports(
    etcd_server, etcd_prefix, tmp_path, capfd, name
):
    served = serving(
        tmp_path / "broker",
        etcd=etcd_server.endpoint,
        prefix=etcd_prefix,
        flags=(f"--broker.wire={name}",),
    )
    async with served as (broker, client):
        await create(client, journal_spec("bench/load", "raw"))
        for size, concurrency in ((100, 16), (1 << 20, 2)):
            head = await client.write_head("bench/load")
            report = await run_load(
                broker.address,
                "bench/load",
                f"--size={size}",
                f"--concurrency={concurrency}",
                "--seconds=0.1",
            )
            grown = await client.write_head("bench/load") - head
            assert report.calls >= concurrency
            assert grown == (report.calls + 1) * size  # the first one connects
            assert 0 < report.p50_ms <= report.p99_ms
        report = await run_load(broker.address, "bench/load", "--tail", "--seconds=0.2")
        assert report.calls == 40
        for mode in ("--concurrency=1", "--tail"):
            with pytest.raises(SetupError, match="load generator failed"):
                await run_load(broker.address, "bench/missing", mode, "--seconds=0.1")
            (line,) = capfd.readouterr().err.splitlines()
            assert line.startswith("wire_load: ")
            assert line.endswith("JOURNAL_NOT_FOUND")


@pytest.mark.parametrize("name", WIRES)
async def test_bare_server_takes_the_same_load(name):
    with grpc_bound.running("benchmarks.wire_bound", name) as (_, port):
        address = f"http://127.0.0.1:{port}"
        large = ("--size=1048576", "--concurrency=2", "--seconds=0.1")
        for arguments in (("--seconds=0.1",), large):
            assert (await run_load(address, "any", *arguments)).calls >= 2
        assert (await run_load(address, "any", "--tail", "--seconds=0.2")).calls == 40


def flags_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def test_option_chooses_the_wire_of_brokers(etcd_server, etcd_prefix, tmp_path, monkeypatch):
    monkeypatch.setenv("GAZETTE_TEST_WIRE", "grpc")
    use_wire("h2")
    served = serving(tmp_path / "broker", etcd=etcd_server.endpoint, prefix=etcd_prefix)
    async with served as (broker, _):
        flags = flags_of(broker.pid)
    assert [each for each in flags if each.startswith("--broker.wire")] == ["--broker.wire=h2"]


@pytest.mark.timeout(300)
async def test_group_measures_each_side_of_each_target(
    etcd_server, etcd_prefix, tmp_path, monkeypatch
):
    monkeypatch.setattr(wire, "_IDLE_S", 1.0)
    monkeypatch.setattr(wire, "_GIVE_BACK_S", 0.0)
    figures = {}
    payloads = Payloads(os.urandom(1 << 20), seed=1)
    cases = measure_wire(
        tmp_path / "wire",
        etcd=etcd_server.endpoint,
        payloads=payloads,
        clock=SystemClock(),
        scale=SCALE,
    )
    async for _, found in cases:
        assert not figures.keys() & found.keys()
        figures |= found
    # A broker at rest may use no tick of CPU in a second.
    figures = {name: value or 1.0 for name, value in figures.items()}
    ratios = wire_ratios(figures)
    for target in WIRE_TARGETS:
        if not target.name.startswith(ELSEWHERE):
            assert ratios[target.name] > 0, target.name
            name = target.name.removeprefix("wire_ratio_")
            if name.startswith(("append_100b", "append_16kib", "append_1mib", "tail")):
                for each in WIRES:
                    assert figures[f"machine_wire_{each}_{name}"] > 0
