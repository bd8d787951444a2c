"""A broker that starts on a copy of a living broker's folder of spools."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil

import grpc
import pytest
from spool_files import say_made_here

from gazette_platform.broker.config import FsyncMode
from gazette_platform.broker.etcd_records import own_member_key, read_record
from gazette_platform.broker.spool.home import SPOOLS
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
STORE = FragmentSpec(
    length=1 << 20,
    codec=CompressionCodec.NONE,
    stores=("file:///",),
    refresh_interval_ns=10**9,
)


def spec(replication):
    return JournalSpec(JOURNAL, replication, fragment=STORE)


async def crash(broker):
    """As SIGKILL, once its lease is over."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


async def test_a_copy_of_its_spools_leaves_a_broker_alive(cluster, etcd, etcd_prefix, tmp_path):
    first = await cluster.start()
    stub = cluster.stub(first)
    await cluster.apply(stub, spec(1))
    assert (await append(stub, JOURNAL, b"x" * 1000)).status == pb.OK
    key = own_member_key(etcd_prefix, first._context.process_id)
    before = await etcd.get(key)
    copy = tmp_path / "copy"
    shutil.copytree(first.config.spool_dir, copy)

    second = await cluster.start(id="on-a-copy", spool_dir=copy)
    await eventually(lambda: len(second._context.space.state.members) == 2)

    assert await etcd.get(key) == before
    assert (await append(stub, JOURNAL, b"y" * 10)).status == pb.OK
    assert await read_all(stub, JOURNAL) == b"x" * 1000 + b"y" * 10


async def test_no_broker_goes_on_where_a_copy_elsewhere_ends(cluster, tmp_path):
    """The broker that was copied acknowledged more since: an append would take those offsets again."""
    first = await cluster.start(spool_dir=folder(tmp_path, "one"))
    await cluster.apply(cluster.stub(first), spec(1))
    assert (await append(cluster.stub(first), JOURNAL, b"x" * 1000)).status == pb.OK
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = await cluster.start(id="on-a-copy", spool_dir=tmp_path / "two", append_wait_s=0.5)
    await eventually(lambda: len(second._context.space.state.members) == 2)
    assert (await append(cluster.stub(first), JOURNAL, b"y" * 500)).status == pb.OK
    await crash(first)
    await eventually(lambda: JOURNAL in second._resolver.replicas)

    with pytest.raises(grpc.RpcError, match="only spools of"):
        await append(cluster.stub(second), JOURNAL, b"z" * 10)

    # What the copy says is never stored: the journal goes on with what its broker has.
    third = await cluster.start(id="again", spool_dir=tmp_path / "one")
    stub = cluster.stub(third)
    assert (await appended(stub, b"z" * 10)).commit.begin == 1500
    assert await read_all(stub, JOURNAL) == b"x" * 1000 + b"y" * 500 + b"z" * 10


@pytest.mark.parametrize("is_block_by_block", [False, True], ids=["copy", "block by block"])
async def test_a_broker_on_a_copy_holds_nothing_of_what_it_was_copied_from(
    cluster, tmp_path, is_block_by_block
):
    """Both would be holders by the same name: whoever was left out would seem to have all."""
    first = await cluster.start(
        spool_dir=folder(tmp_path, "one"), zone="zone-a", id="broker-a", fsync=FsyncMode.COMMIT
    )
    await cluster.apply(cluster.stub(first), spec(1))
    assert (await append(cluster.stub(first), JOURNAL, b"x" * 1000)).status == pb.OK
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    if is_block_by_block:  # on another machine, inode and birth are the same
        (home,) = (tmp_path / "two" / SPOOLS).iterdir()
        say_made_here(home)
        said = json.loads((home / "home.json").read_text())
        (home / "home.json").write_text(json.dumps(said | {"boot": "another"}))
    second = await cluster.start(id="broker-b", zone="zone-b", spool_dir=tmp_path / "two")
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.apply([Change(spec(2), revision=-1)])
    await eventually(lambda: JOURNAL in second._resolver.replicas)
    assert (await append(cluster.stub(first), JOURNAL, b"y" * 100)).commit.begin == 1000
    context = first._context
    record, _ = await read_record(context.etcd, context.config.etcd_prefix, JOURNAL)
    assert {one.process.suffix for one in record.holders} == {"broker-a", "broker-b"}
    assert len({one.tenure for one in record.holders}) == 2


@pytest.mark.parametrize("name", ["broker-0", "another"])
@pytest.mark.parametrize(
    "is_original_back", [False, True], ids=["alone", "original is back, and empty"]
)
async def test_operator_stores_a_copy_whose_original_is_lost(
    cluster, tmp_path, name, is_original_back
):
    first = await cluster.start(spool_dir=folder(tmp_path, "one"))
    await cluster.apply(cluster.stub(first), spec(1))
    assert (await append(cluster.stub(first), JOURNAL, b"x" * 1000)).status == pb.OK
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    await crash(first)
    second = await cluster.start(id=name, spool_dir=tmp_path / "two", append_wait_s=0.5)
    if is_original_back:
        id_ = "broker-0" if name == "another" else "broker-1"
        await cluster.start(id=id_, spool_dir=folder(tmp_path, "new"), append_wait_s=0.5)
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        state = await client.check_head(JOURNAL)
        assert len(state.awaited) == 1
        assert await client.reset_head(JOURNAL, give_up=True) == 1000
        assert (await client.append(JOURNAL, b"z" * 10)).begin == 1000
    assert await read_all(cluster.stub(second), JOURNAL) == b"x" * 1000 + b"z" * 10


async def appended(stub, content):
    """Append once brokers take it: they may have to store what they hold first."""

    async def answer():
        with contextlib.suppress(grpc.RpcError):
            return await append(stub, JOURNAL, content)

    return await eventually(answer, timeout_s=30)


async def test_brokers_that_come_back_with_each_others_folders_lose_nothing(cluster, tmp_path):
    """A holder that lives by name, and has another folder now, holds nothing any more."""
    places = [folder(tmp_path, "one"), folder(tmp_path, "two")]
    brokers = [await cluster.start(id=f"broker-{n}", spool_dir=places[n]) for n in (0, 1)]
    stub = cluster.stub(brokers[0])
    await cluster.apply(stub, spec(1))
    assert (await append(stub, JOURNAL, b"x" * 1000)).status == pb.OK
    for one in brokers:
        await crash(one)
    brokers = [await cluster.start(id=f"broker-{n}", spool_dir=places[1 - n]) for n in (0, 1)]
    stub = cluster.stub(brokers[0])
    assert (await appended(stub, b"y" * 10)).commit.begin == 1000
    assert await read_all(stub, JOURNAL) == b"x" * 1000 + b"y" * 10


async def test_cluster_restored_from_copies_continues_after_them(cluster, tmp_path):
    settings = [{"id": f"broker-{n}", "zone": f"zone-{n}", "append_wait_s": 0.5} for n in (0, 1)]
    brokers = [
        await cluster.start(**one, spool_dir=folder(tmp_path, one["id"])) for one in settings
    ]
    stub = cluster.stub(brokers[0])
    await cluster.apply(stub, spec(2))
    assert (await appended(stub, b"x" * 1000)).status == pb.OK
    shutil.copytree(tmp_path / "broker-1", tmp_path / "copy of broker-1")
    assert (await appended(stub, b"y" * 100)).commit.begin == 1000
    shutil.copytree(tmp_path / "broker-0", tmp_path / "copy of broker-0")
    await asyncio.gather(*map(crash, brokers))  # else the last one goes on as the only holder
    brokers = [
        await cluster.start(**one, spool_dir=tmp_path / f"copy of {one['id']}") for one in settings
    ]
    await eventually(lambda: all(JOURNAL in one._resolver.replicas for one in brokers))
    async with AsyncClient(ClientConfig(address=brokers[1].endpoint)) as client:
        assert len((await client.check_head(JOURNAL)).awaited) == 2
        assert await client.reset_head(JOURNAL, give_up=True) == 1100
        assert (await client.append(JOURNAL, b"z" * 10)).begin == 1100
    for one in brokers:
        assert await read_all(cluster.stub(one), JOURNAL) == b"x" * 1000 + b"y" * 100 + b"z" * 10
        await eventually(lambda one=one: len(one._leftovers) == 0)
    assert not list(tmp_path.glob("*/set-aside/*.content"))
