"""What a run says of a journal that cannot be read to its end, against a real broker."""

from __future__ import annotations

import re
import socket

import pytest
from away_store import spec

from gazette_platform.ops.clock import SystemClock
from gazette_platform.testing.local import append
from tests.chaos import WorkloadConfig
from tests.chaos.finals import read_finals
from tests.chaos.scene import Scene
from tests.checker.history import Recorder

pytestmark = pytest.mark.etcd

CONFIG = WorkloadConfig(journals=1, writers=0, readers=0, replication=1, has_upkeep=False)
(JOURNAL,) = CONFIG.journal_names


@pytest.fixture
def scene_of(tmp_path):
    """Makes the scene of a run whose brokers are at an address."""
    clock = SystemClock()
    with Recorder(tmp_path / "history.jsonl", clock, seed=1) as recorder:

        def make(address):
            return Scene(
                config=CONFIG,
                address=address,
                http_addresses=list,
                fragments=tmp_path,
                lease_s=20.0,
                recorder=recorder,
                clock=clock,
            )

        yield make


async def test_what_reads_to_the_end_failed_by_is_reported(cluster, scene_of):
    """It was not, while one read was patient for as long as there was time."""
    broker = await cluster.start(append_wait_s=0.2)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(name=JOURNAL))
    await append(stub, JOURNAL, b"content")
    scene = scene_of(broker.endpoint)
    assert await read_finals(scene, timeout_s=20.0) == ({JOURNAL: (0, b"content")}, [])
    broker._resolver.replicas[JOURNAL].spool.roll(100)  # as if others had what precedes it
    contents, (told,) = await read_finals(scene, timeout_s=6.0)
    assert contents == {}
    assert re.match(
        rf"{JOURNAL} can be read up to 7, not to its head 100, within 6.0 s: TimeoutError\(\); "
        r"its head was known after \d\.\d s, and the last of \d+ reads began \d\.\d s ago; "
        rf"one before failed: read of {JOURNAL}: .* another broker has content ",
        told,
    ), told


async def test_unreported_head_is_reported(scene_of):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scene = scene_of(f"http://127.0.0.1:{silent.getsockname()[1]}")
        contents, (told,) = await read_finals(scene, timeout_s=1.0)
    assert contents == {}
    assert re.search(r"the append that asks for its head has not ended after 1\.\d s$", told), told
