"""What registration asks of a real broker: holes that fill late, and fragments that take others' place."""

from __future__ import annotations

import asyncio

import pytest
from lake_bench import MemoryMetastore

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import Suspended
from gazette_platform.lake import BrokerSource, Registrar, StoreRoots, parse_table_spec
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.local import append, store_fragment
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/part=0"
HOUR = "hour=05"
LINE = b'{"id":1}\n'
SPEC = parse_table_spec(
    "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [{name: id, type: bigint}]}"
)


async def test_holes_fill_late_and_larger_fragments_take_the_place_of_others(cluster):
    def store(begin, end):
        """Lines [begin, end), stored just now in the directory of an hour."""
        store_fragment(
            cluster.fragments,
            JOURNAL,
            begin * 9,
            LINE * (end - begin),
            codec=CompressionCodec.GZIP,
            postfix=HOUR,
            stored_at=SystemClock().unix_s(),
        )

    broker = await cluster.start()
    store(0, 2)
    store(4, 5)
    spec = JournalSpec(
        JOURNAL,
        1,
        fragment=FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=10**9,
        ),
    )
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec)
    metastore = MemoryMetastore()
    with Client(ClientConfig(address=f"http://{broker.config.host}:{broker.port}")) as client:
        roots = StoreRoots({"file:///": f"file://{cluster.fragments}/"})
        registrar = Registrar(BrokerSource(client), metastore, roots)

        async def tick(cursors):
            return await asyncio.to_thread(registrar.tick, SPEC, cursors)

        report = await tick({})
        (update,) = report.updates
        assert (update.key, update.state.rows) == ("part=0/hour=05", 3)
        assert report.cursors[JOURNAL].holes == ((18, 36),)
        cursors = report.cursors
        store(2, 4)

        async def has(rows):
            nonlocal cursors
            found = await tick(cursors)
            cursors = found.cursors
            return any(u.state.rows == rows for u in found.updates)

        await eventually(lambda: has(5))
        assert (cursors[JOURNAL].offset, cursors[JOURNAL].holes) == (45, ())
        # A replica that kept more of the journal stores it: nothing begins behind the cursor.
        store(2, 7)
        await eventually(lambda: has(10))
        assert (cursors[JOURNAL].offset, cursors[JOURNAL].holes) == (63, ())
        # An open fragment is not stored yet, and awaited at the head: no hole.
        await append(stub, JOURNAL, LINE, offset=63)
        report = await tick(cursors)
        assert report.updates == []
        (progress,) = report.journals
        assert progress.lag_bytes == 9
        assert report.cursors[JOURNAL].holes == ()


async def test_a_suspended_journal_keeps_no_table_from_being_registered(cluster):
    """An idle one that nothing is stored of soon is, and then no broker lists it."""
    broker = await cluster.start()
    store_fragment(cluster.fragments, JOURNAL, 0, LINE, codec=CompressionCodec.GZIP, postfix=HOUR)
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.GZIP,
        stores=("file:///",),
        refresh_interval_ns=10**9,
    )
    empty = "a/part=1"
    stub = cluster.stub(broker)
    for name in (JOURNAL, empty):
        await cluster.apply(stub, JournalSpec(name, 1, fragment=fragment))
    address = f"http://{broker.config.host}:{broker.port}"

    def check():
        with Client(ClientConfig(address=address)) as client:
            assert client.suspend(empty, force=True)
            with pytest.raises(Suspended):
                client.fragments(empty)
            roots = StoreRoots({"file:///": f"file://{cluster.fragments}/"})
            registrar = Registrar(BrokerSource(client), MemoryMetastore(), roots)
            return registrar.tick(SPEC, {})

    report = await asyncio.to_thread(check)
    assert [(u.key, u.state.rows) for u in report.updates] == [("part=0/hour=05", 1)]
    assert report.errors == []
