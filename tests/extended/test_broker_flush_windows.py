"""Fragments of an idle journal, persisted at the end of a flush window: it takes most of a minute."""

from __future__ import annotations

import dataclasses

import pytest
from journal_specs import journal_spec

from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.local import append
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd
JOURNAL = "a/journal"


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


def spec(*, stores=("file:///",), length=1 << 20, **fields):
    return journal_spec(
        JOURNAL, length=length, codec=CompressionCodec.GZIP, stores=stores, **fields
    )


@pytest.mark.timeout(180)
async def test_an_idle_fragment_is_persisted_at_the_end_of_its_window(cluster, stub):
    """Within seconds of it, and without another append."""
    flushed = dataclasses.replace(spec().fragment, flush_interval_ns=60 * 10**9)
    await cluster.apply(stub, dataclasses.replace(spec(), fragment=flushed))
    await append(stub, JOURNAL, b"one ")
    await append(stub, JOURNAL, b"two ")
    folder = cluster.fragments / JOURNAL
    began = SystemClock().now().timestamp()
    await eventually(lambda: folder.is_dir() and len(list(folder.iterdir())) == 2, timeout_s=66)
    ended = SystemClock().now().timestamp()
    assert ended // 60 > began // 60, "not before the end of the window"
    assert ended % 60 < 5
