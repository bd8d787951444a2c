"""The store of a cluster is cut for a while, under load: nothing that was acknowledged is lost.

A minute here; `make test-outage` cuts it for ten (`GAZETTE_TEST_OUTAGE_S`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import urllib.request

import pytest
from object_servers import need_go, s3_server

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.fault_proxy import FaultProxy
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually, pass_time, patient
from tests.harness import Harness

pytestmark = [pytest.mark.e2e, pytest.mark.s3, pytest.mark.etcd]

OUTAGE_S = float(os.environ.get("GAZETTE_TEST_OUTAGE_S", "60"))
QUIET_S = 5.0
# The primaries try again within half a minute. What replicas hold is dropped once they listed the store,
# and looked at what waits, both once a minute; a look that failed is repeated after two
# to three minutes.
DRAIN_S = 600.0
JOURNALS = [f"outage/part-{number}" for number in range(4)]
RECORD_BYTES = 4_000
PERIOD_S = 0.02
BUCKET = "outage"


def record(number):
    return (b"%011d " % number) * (RECORD_BYTES // 12) + b"\n"


class Ledger:
    """What of one journal was acknowledged."""

    def __init__(self, journal):
        self.journal = journal
        self.spans = {}
        self.slowest_s = 0.0

    async def append_all(self, service, is_over):
        """Append records at a steady pace, each once."""
        loop, number = asyncio.get_running_loop(), 0
        while not is_over():
            began = loop.time()
            self.spans[number] = await service.append(self.journal, record(number))
            self.slowest_s = max(self.slowest_s, loop.time() - began)
            number += 1
            await pass_time(PERIOD_S)

    async def check(self, client):
        """Every append exists once, at the offset that its caller got, and nothing else exists."""
        numbers = sorted(self.spans, key=self.spans.__getitem__)
        end = self.spans[numbers[-1]][1]
        content = b"".join([bytes(piece) async for piece in client.read(self.journal)])
        assert len(content) == end == sum(e - b for b, e in self.spans.values())
        for number in numbers:
            begin, after = self.spans[number]
            assert content[begin:after] == record(number), number


def unpersisted_bytes(brokers):
    """As the brokers' metrics report it."""
    total = 0.0
    for broker in brokers:
        url = f"http://127.0.0.1:{broker.http_port}/debug/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        found = re.search(r"^gazette_platform_unpersisted_bytes (\S+)$", text, re.MULTILINE)
        total += float(found[1])
    return total


async def top(broker):
    """Bytes of each journal that no store has, as `gazctl journals top` shows it."""
    command = ["-m", "gazette_platform.cli.gazctl", "journals", "top", "--once", "-o", "json"]
    command += ["--broker.address", f"http://127.0.0.1:{broker.port}", "-l", "prefix=outage/"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(patient(60)):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return {each["name"]: each["unpersisted_bytes"] for each in json.loads(output)["journals"]}


@pytest.fixture(autouse=True)
def hard_end():
    """End the whole run if the timeout of the test, which asks it to stop by itself, does not."""
    with Harness(
        "outage", f"seconds={OUTAGE_S:.0f}", planned_s=OUTAGE_S + DRAIN_S + 660
    ) as harness:
        harness.note(f"cutting the store for {OUTAGE_S:.0f} s, and storing what waited")
        yield


@pytest.mark.timeout(OUTAGE_S + DRAIN_S + 600)
async def test_a_store_that_is_cut_under_load_loses_nothing(
    etcd_server, etcd_prefix, tmp_path, monkeypatch, tasks
):
    need_go("GAZETTE_VERSITYGW")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(s3_server(tmp_path / "s3"))
        server.make_bucket(BUCKET)
        for name in list(os.environ):
            if name.startswith("AWS_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        async with FaultProxy("127.0.0.1", int(server.endpoint.rpartition(":")[2])) as proxy:
            brokers = [
                stack.enter_context(
                    BrokerServer(
                        tmp_path / zone,
                        etcd=etcd_server.endpoint,
                        prefix=etcd_prefix,
                        broker_id=f"broker-{zone}",
                        zone=zone,
                        lease_s=10.0,
                    )
                )
                for zone in ("za", "zb")
            ]
            await _cut(brokers, proxy, tasks)


async def _cut(brokers, proxy, tasks):
    url = f"s3://{BUCKET}/?endpoint={proxy.address}&region=us-east-1"
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=(url,),
        refresh_interval_ns=60 * 10**9,
        flush_interval_ns=60 * 10**9,
    )
    specs = [JournalSpec(name, 2, fragment=fragment) for name in JOURNALS]
    ledgers, is_over = [Ledger(name) for name in JOURNALS], False
    async with AsyncClient(
        ClientConfig(address=f"http://127.0.0.1:{brokers[0].port}", retry_timeout_s=patient(120))
    ) as client:
        await client.apply([Change(spec) for spec in specs])
        service = client.append_service()
        loads = [
            tasks.spawn(one.append_all(service, lambda: is_over), name=one.journal)
            for one in ledgers
        ]
        await eventually(lambda: all(one.spans for one in ledgers), timeout_s=120)
        await pass_time(QUIET_S)
        assert not any(load.done() for load in loads)
        before = sum(len(one.spans) for one in ledgers)

        proxy.refuse()
        await pass_time(OUTAGE_S / 2)
        await proxy.heal()
        proxy.black_hole()
        await pass_time(OUTAGE_S / 2)
        during = sum(len(one.spans) for one in ledgers) - before
        held = await asyncio.to_thread(unpersisted_bytes, brokers)
        shown = await top(brokers[0])
        print(
            f"{OUTAGE_S:.0f} s without store: {during} records appended, {held / 1e6:.1f} MB wait"
        )
        print(f"slowest append: {max(one.slowest_s for one in ledgers):.2f} s")
        assert not any(load.done() for load in loads)
        assert during > OUTAGE_S  # of some 50 a second and journal
        assert held > 0
        assert all(shown[name] > 0 for name in JOURNALS), shown

        await proxy.heal()
        await pass_time(QUIET_S)
        is_over = True
        for load in loads:
            await load
        await service.close()
        loop = asyncio.get_running_loop()
        began = loop.time()

        async def is_drained():
            return not await asyncio.to_thread(unpersisted_bytes, brokers)

        await eventually(is_drained, timeout_s=DRAIN_S, poll_s=1.0)
        print(f"drained by itself {loop.time() - began:.0f} s after")
        await client.flush("prefix=outage/", timeout_s=patient(300.0))
        assert not any((await top(brokers[0])).values())
        for one in ledgers:
            await one.check(client)
        print(f"{sum(len(one.spans) for one in ledgers)} records, each once")
