"""The benchmarks of appends on a real broker: what they measure, and that they see what is lost."""

from __future__ import annotations

import dataclasses
import os

import pytest

from benchmarks.acknowledged import check_content
from benchmarks.append_service import through_service
from benchmarks.appends import measure_appends
from benchmarks.bench import FULL, Bench, create, journal_spec, serving
from benchmarks.content import Payloads
from benchmarks.matrix import matrix_cases, measure_matrix, service_figure
from gazette_platform.client.write.writers import AppendService
from gazette_platform.errors import DataError
from gazette_platform.ops.clock import SystemClock

pytestmark = [pytest.mark.etcd]

SCALE = dataclasses.replace(FULL, runs=1, window_s=0.05, codecs=("raw",))


@pytest.fixture
async def bench(etcd_server, etcd_prefix, tmp_path):
    payloads = Payloads(os.urandom(4 << 20), seed=1)
    folder, etcd = tmp_path / "broker", etcd_server.endpoint
    async with serving(folder, etcd=etcd, prefix=etcd_prefix) as (broker, client):
        yield Bench(client, broker, payloads, SystemClock(), SCALE)


async def test_the_matrix_has_each_case_both_ways_and_appends_measure_the_rest(bench):
    figures, labels = {}, []
    async for label, found in measure_matrix(bench):
        figures |= found
        labels.append(label)
    cases = matrix_cases(SCALE)
    assert len(set(labels)) == len(labels) == 2 * len(cases) == 18
    for case in cases:
        for name in (case.figure, service_figure(case)):
            rate = f"{name}_{'per_s' if case.size == '100b' else 'mb_per_s'}"
            assert figures[rate] > 0
            assert figures[f"client_cpu_s_per_gb_{name}"] > 0
            # The kernel counts CPU in ticks, and a run this short may take less than one.
            assert figures[f"broker_cpu_s_per_gb_{name}"] >= 0
            assert 0 < figures[f"{name}_p50_ms"] <= figures[f"{name}_p99_ms"]
    rest = [label async for label, _ in measure_appends(bench, but=cases)]
    assert rest == ["append 100b x 16, raw"]


async def test_caller_that_gets_a_wrong_place_is_reported(bench, monkeypatch):
    await create(bench.client, journal_spec("bench/wrong", "raw"))
    append = AppendService.append

    async def wrong(service, journal, data):
        begin, end = await append(service, journal, data)
        return begin + 1, end + 1

    monkeypatch.setattr(AppendService, "append", wrong)
    with pytest.raises(DataError, match="acknowledged at"):
        await through_service(bench, "bench/wrong", size=100, concurrency=8, window_s=0.05)


async def test_content_that_is_not_what_was_acknowledged_is_seen(bench):
    client, journal = bench.client, "bench/content"
    await create(client, journal_spec(journal, "raw"))
    head = await client.write_head(journal)
    await client.append(journal, b"abcd")
    await check_content(client, journal, head, [b"ab", b"cd"], piece_bytes=2)
    with pytest.raises(DataError, match="other bytes"):
        await check_content(client, journal, head, [b"ab", b"ce"], piece_bytes=2)
    with pytest.raises(DataError, match="it ends at"):
        await check_content(client, journal, head, [b"ab"], piece_bytes=2)
