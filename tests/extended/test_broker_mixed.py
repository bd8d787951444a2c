"""A broker beside others that record nothing of who holds journals, as Gazette's do, is killed and comes back."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, JournalChange
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(300)]

JOURNALS = [f"mixed/{number:02d}" for number in range(20)]
RECORDLESS = Path(__file__).parents[1] / "e2e" / "faulty_brokers" / "recordless.py"


def spec_of(name):
    return journal_spec(name, 3, codec=CompressionCodec.GZIP, refresh_s=5, flush_s=3600)


@pytest.fixture
def brokers(etcd_server, etcd_prefix, tmp_path):
    """Two of ours, and one that forgets."""
    made = []
    for zone in "abc":
        broker = BrokerServer(
            tmp_path / zone,
            etcd=etcd_server.endpoint,
            prefix=etcd_prefix,
            broker_id=f"broker-{zone}",
            zone=zone,
            fragments=tmp_path / "fragments",
            program=(sys.executable, str(RECORDLESS)) if zone == "c" else (),
        )
        made.append(broker)
        broker.start()
    yield made
    for broker in made:
        broker.kill()


class Writers:
    """One for each journal; `content` has what was acknowledged."""

    def __init__(self, client):
        self.client = client
        self.content = dict.fromkeys(JOURNALS, b"")

    async def append(self, count):
        async def write(journal):
            for number in range(count):
                piece = f"{journal} {len(self.content[journal])} {number}\n".encode() * 20
                await self.client.append(journal, piece, offset=len(self.content[journal]))
                self.content[journal] += piece

        await asyncio.gather(*map(write, JOURNALS))

    async def read(self, journal):
        return b"".join([bytes(p) async for p in self.client.read(journal, 0, block=False)])

    async def check(self):
        for journal, content in self.content.items():
            assert await self.read(journal) == content, journal


def since(broker, at):
    return broker.log.read_bytes()[at:].decode()


def alarms(text):
    return [
        line
        for line in text.splitlines()
        if any(f" {level} " in line for level in ("WARNING", "ERROR", "CRITICAL"))
    ]


async def test_broker_that_returns_says_once_that_nothing_is_lost(brokers):
    ours, other, _ = brokers
    async with AsyncClient(
        ClientConfig(address=other.address, retry_timeout_s=patient(60))
    ) as client:
        await client.apply([JournalChange(spec_of(name)) for name in JOURNALS])
        writers = Writers(client)
        await writers.append(30)
        at = ours.log.stat().st_size
        ours.kill()
        await asyncio.gather(writers.append(30), asyncio.to_thread(ours.start))
        await eventually(
            lambda: "nothing is lost of 20 journals" in since(ours, at), timeout_s=patient(60)
        )
        await writers.check()
    assert alarms(since(ours, at)) == []
    assert not (ours.spool / "set-aside").exists()


async def test_broker_that_returns_warns_of_what_others_lost(brokers):
    """The others die with all that they have. The journals begin again, and then a disk comes back."""
    ours, other, forgetful = brokers
    async with AsyncClient(
        ClientConfig(address=other.address, retry_timeout_s=patient(60))
    ) as client:
        await client.apply([JournalChange(spec_of(name)) for name in JOURNALS])
        writers = Writers(client)
        await writers.append(5)
        lost = writers.content
        for broker in brokers:
            broker.kill()
        kept = ours.spool.rename(ours.spool.with_name("kept"))
        for broker in (other, forgetful):
            shutil.rmtree(broker.spool)
        await asyncio.gather(*[asyncio.to_thread(broker.start) for broker in brokers])
        for name in JOURNALS:
            await client.reset_head(name, give_up=True)
        writers.content = {name: await writers.read(name) for name in JOURNALS}
        await writers.append(1)
        ours.kill()
        shutil.move(kept, ours.spool.with_name("spool-kept"))
        shutil.rmtree(ours.spool)
        shutil.move(ours.spool.with_name("spool-kept"), ours.spool)
        at = ours.log.stat().st_size
        await asyncio.to_thread(ours.start)
        await eventually(lambda: "20 lack content" in since(ours, at), timeout_s=patient(60))
        await writers.check()
    warnings = alarms(since(ours, at))
    assert len(warnings) == len(JOURNALS), warnings
    aside = [json.loads(path.read_text()) for path in (ours.spool / "set-aside").glob("*.json")]
    assert {one["journal"]: one["end"] for one in aside} == {
        name: len(content) for name, content in lost.items()
    }
