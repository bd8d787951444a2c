"""The present version reads what a former one left: keys, spools, fragments, and the state of a typed table."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from contextlib import closing

import golden_former
import pytest
from golden_former import CODECS, ORDERS, PLACE, REGISTERS, SHARD, SHARDS, TypedTable, orders

from gazette_platform import Client, ClientConfig
from gazette_platform.consumer.assignments import ConsumerState
from gazette_platform.errors import RegisterMismatch
from gazette_platform.etcd import EtcdClient
from gazette_platform.keyspace import KeySpace
from gazette_platform.protocol import LabelSelector, LabelSet

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


@pytest.fixture(params=golden_former.former_versions(), ids=lambda path: path.name)
def data(request):
    return request.param


@pytest.fixture
def etcd(own_etcd_server, data):
    keys = json.loads((data / "etcd.json").read_text())
    endpoint = own_etcd_server.endpoint
    return endpoint, asyncio.run(golden_former.restore_etcd(endpoint, keys))


@pytest.fixture
def client(etcd, data, tmp_path):
    """Of a broker of the present version, in the place of the one that was killed."""
    endpoint, cluster_id = etcd
    golden_former.restore_broker(data, tmp_path / "broker", cluster_id)
    broker = golden_former.broker_at(tmp_path / "broker", endpoint)
    with broker, Client(ClientConfig(address=broker.address, file_root=broker.fragments)) as client:
        yield client
        assert broker.stop() == 0
        assert "Traceback" not in broker.log_tail()


def test_content_and_registers_of_spools_and_store_are_kept(client, data):
    found = golden_former.expected(data)["journals"]
    assert found.keys() == CODECS.keys()
    for name, golden in found.items():
        content = b"".join(client.read(name, 0, block=False))
        assert len(content) == golden["end"]
        assert hashlib.sha1(content, usedforsecurity=False).hexdigest() == golden["sha1"]
    other = LabelSelector(include=LabelSet.of(("holder", "another")))
    with pytest.raises(RegisterMismatch):
        client.append("golden/gzip", b"no\n", check_registers=other)
    ours = LabelSelector(include=REGISTERS)
    result = client.append("golden/gzip", b"more\n", check_registers=ours)
    assert (result.begin, result.registers) == (found["golden/gzip"]["end"], REGISTERS)
    for name in found:
        end = client.write_head(name)
        client.flush(f"name={name}")
        assert [each.fragment.end for each in client.fragment_page(name).fragments][-1] == end


def test_typed_table_goes_on_where_a_run_of_the_former_version_ended(client, data, tmp_path):
    found = golden_former.expected(data)
    golden_former.move_iceberg(data / "iceberg", tmp_path / "iceberg", PLACE, str(tmp_path))
    table = TypedTable(client, tmp_path)
    with closing(table.sql):
        table.register({k: v.replace(PLACE, str(tmp_path)) for k, v in found["locations"].items()})
        assert table.numbers() == found["numbers"]
        # These commit the message of the transaction that was open; 41 exists already.
        client.append(ORDERS, golden_former.orders_acknowledged())
        client.append(ORDERS, orders(41, 44))
        report = table.run()
        assert (report.counts.typed, report.counts.duplicates) == (4, 1)
        assert table.numbers() == sorted([*found["numbers"], 42, 43, 44, 60])
        assert report.is_whole


async def test_spec_of_a_shard_is_the_one_that_was_put(etcd):
    async with EtcdClient([etcd[0]]) as client:
        space = KeySpace(client, SHARDS, ConsumerState(SHARDS))
        await space.load()
    assert [item.spec for item in space.state.items.values()] == [SHARD]


async def test_restored_keys_have_their_revisions(etcd, data):
    keys = json.loads((data / "etcd.json").read_text())
    async with EtcdClient([etcd[0]]) as client:
        found = await client.range("/")
    assert [
        (each.key, base64.b64encode(each.value).decode(), each.create_revision, each.mod_revision)
        for each in found.kvs
    ] == [(each["key"], each["value"], each["created"], each["changed"]) for each in keys]
