"""A cluster under chaos is awaited until it is whole again, against a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import FragmentStoreUnhealthy, SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer
from tests.chaos import WorkloadConfig
from tests.chaos.scene import Scene
from tests.chaos.workload import Workload
from tests.checker.history import Recorder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.etcd]

CONFIG = WorkloadConfig(journals=2, writers=0, readers=0, replication=1, has_upkeep=False)


@pytest.fixture
def broker(tmp_path, etcd_binary):
    with (
        EtcdServer(etcd_binary) as etcd,
        BrokerServer(tmp_path / "broker", etcd=etcd.endpoint, prefix="/test/settle") as broker,
    ):
        yield broker


@pytest.fixture
def workload(broker, tmp_path):
    clock = SystemClock()
    with Recorder(tmp_path / "history.jsonl", clock, seed=1) as recorder:
        yield Workload(
            Scene(
                config=CONFIG,
                address=broker.address,
                http_addresses=lambda: [broker.http_address],
                fragments=broker.fragments,
                lease_s=2.0,
                recorder=recorder,
                clock=clock,
            )
        )


def cut(fragments: Path) -> None:
    fragments.rename(fragments.with_name("fragments.cut"))
    fragments.touch()


async def journals_of_a_cut_store(broker: BrokerServer) -> None:
    """Create the journals of the run, which refuse appends, as their stores cannot be listed."""
    cut(broker.fragments)
    async with AsyncClient(ClientConfig(address=broker.address, retry_timeout_s=30)) as client:
        for name in CONFIG.journal_names:
            spec = JournalSpec(
                name=name,
                replication=1,
                fragment=FragmentSpec(
                    length=1 << 20,
                    codec=CompressionCodec.NONE,
                    stores=("file:///",),
                    refresh_interval_ns=5 * SECOND_NS,
                ),
            )
            await client.apply([Change(spec)])
            with pytest.raises(FragmentStoreUnhealthy):
                await client.append(name, b"content\n")


async def test_a_store_that_stays_away_is_reported(broker, workload):
    await journals_of_a_cut_store(broker)
    with pytest.raises(SetupError, match="chaos/journal-00 chaos/journal-01"):
        await workload.settle(3, is_stored=False)
