"""Flushes and savepoints, on brokers in this event loop and a real etcd."""

from __future__ import annotations

import asyncio
import shutil
import time
import tracemalloc

import pytest
from journal_specs import journal_spec

from gazette_platform.broker.api.admin import AdminApi
from gazette_platform.broker.etcd_records import savepoint_key
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import (
    CallFailed,
    NotAllowed,
    SavepointExists,
    SavepointNotFound,
    StatusError,
    TransportError,
    ValidationError,
)
from gazette_platform.etcd import Put
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import CompressionCodec, LabelSet
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.labels import LabelSelector
from gazette_platform.protocol.pb import admin_pb2 as admin_pb
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.waiting import eventually, turns

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEYS = "c2VjcmV0LWtleQ=="


def spec(name, *, stores=("file:///",), codec=CompressionCodec.GZIP, **fields):
    return journal_spec(name, codec=codec, stores=stores, refresh_s=3600, **fields)


async def apply(client, *specs):
    await client.apply([Change(s) for s in specs])


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        yield client


def files(local_brokers, name):
    folder = local_brokers.fragments / name
    return sorted(path.name for path in folder.rglob("[!.]*") if path.is_file())


async def test_flush_returns_when_the_store_holds_all(local_brokers, client):
    await apply(client, spec("a/one"), spec("a/two"), spec("b/three"))
    await client.append("a/one", b"first")
    await client.append("a/one", b"second")
    await client.append("b/three", b"not asked for")
    assert await client.flush("name:prefix=a/") == {"a/one": 11, "a/two": 0}
    assert len(files(local_brokers, "a/one")) == 2
    assert files(local_brokers, "b/three") == []
    for found in await client.fragments("a/one"):
        assert found.is_persisted
    # Nothing more to do, and nothing done; appends go on after it.
    assert await client.flush("name=a/one") == {"a/one": 11}
    assert len(files(local_brokers, "a/one")) == 2
    assert (await client.append("a/one", b"third")).begin == 11
    assert await client.flush("name:prefix=nothing/") == {}


async def test_flush_waits_its_turn_behind_appends(client):
    """What was begun before is in the store afterwards; what comes later need not be."""
    await apply(client, spec("a/journal"))
    appends = [client.append("a/journal", b"x" * 1000) for _ in range(50)]
    *results, ends = await asyncio.gather(*appends, client.flush("name=a/journal"))
    assert ends["a/journal"] % 1000 == 0
    ends = await client.flush("name=a/journal")
    assert ends["a/journal"] == max(result.end for result in results) == 50_000


async def test_flush_waits_for_a_store_and_says_when_it_gives_up(local_brokers, client):
    await apply(client, spec("a/journal", codec=CompressionCodec.NONE))
    await client.append("a/journal", b"content")
    await client.flush("name=a/journal")
    await client.append("a/journal", b" and more")
    shutil.rmtree(local_brokers.fragments / "a/journal")
    (local_brokers.fragments / "a/journal").write_text("in the way of a folder")
    with pytest.raises(TransportError, match=r"flush of a/journal: not all is in the store within"):
        await client.flush("name=a/journal", timeout_s=0.5)


async def test_flush_of_a_journal_without_a_store_is_refused(client):
    await apply(client, spec("a/journal", stores=()))
    await client.append("a/journal", b"content")
    with pytest.raises(NotAllowed):
        await client.flush("name=a/journal")


async def test_suspended_journals_count_as_flushed(client):
    await apply(client, spec("a/full"), spec("a/partial"))
    assert await client.suspend("a/full", force=True)
    await client.append("a/partial", b"content")
    await client.suspend("a/partial", force=True)
    assert await client.flush("name:prefix=a/") == {"a/full": 0, "a/partial": 7}
    for journal in await client.list():
        assert journal.spec.suspend.level.name == journal.name.removeprefix("a/").upper()


async def test_any_broker_forwards_a_flush(local_brokers):
    first, second = await local_brokers.start(), await local_brokers.start()
    async with (
        AsyncClient(ClientConfig(address=first.endpoint)) as one,
        AsyncClient(ClientConfig(address=second.endpoint)) as other,
    ):
        await apply(one, spec("a/one"), spec("a/two"))
        for client in (one, other):
            for name in ("a/one", "a/two"):
                await client.append(name, b"content")
            ends = await client.flush("")
            assert len(ends) == 2
            for name, end in ends.items():
                assert all(f.is_persisted for f in await client.fragments(name)), (name, end)


@pytest.fixture
def brokers_without_flush(monkeypatch):
    """Brokers that are started from now on pretend not to know the call."""

    async def unimplemented(*_):
        raise RpcFailed(Code.UNIMPLEMENTED, "unknown service gazette_platform.Admin")

    monkeypatch.setattr(AdminApi, "flush", unimplemented)


async def test_brokers_of_gazette_are_flushed_by_suspending(brokers_without_flush, client):
    """They do not know the call."""
    await apply(client, spec("a/journal"), spec("a/empty"))
    await client.append("a/journal", b"content")
    await client.append("a/journal", b" more")
    assert await client.flush("") == {"a/empty": 0, "a/journal": 12}
    assert all(f.is_persisted for f in await client.fragments("a/journal"))
    # They are resumed.
    for journal in await client.list():
        suspend = journal.spec.suspend
        assert suspend is None or suspend.level.name == "NONE"
    assert (await client.append("a/journal", b"x")).begin == 12


# -------------------------------------------------------------------------------- savepoints


async def test_savepoints_keep_offsets_under_names(etcd, etcd_prefix, client):
    await apply(client, spec("a/one"), spec("a/two"), spec("b/three"))
    await client.append("a/one", b"content")
    made = await client.create_savepoint("nightly/1", "name:prefix=a/")
    assert (made.name, made.offsets, made.journals) == ("nightly/1", {"a/one": 7, "a/two": 0}, 2)
    await client.append("a/one", b" more")
    assert await client.get_savepoint("nightly/1") == made
    other = await client.create_savepoint("by-hand", offsets={"a/one": 3, "gone/journal": 5})
    listed = await client.list_savepoints()
    assert [(s.name, s.journals, s.offsets) for s in listed] == [
        ("by-hand", 2, {}),
        ("nightly/1", 2, {}),
    ]
    assert [s.name for s in await client.list_savepoints("nightly/")] == ["nightly/1"]
    with pytest.raises(SavepointExists, match="by-hand exists already"):
        await client.create_savepoint("by-hand", offsets={"a/one": 4})
    assert await client.get_savepoint("by-hand") == other
    await client.create_savepoint("by-hand", offsets={"a/one": 4}, replace=True)
    assert (await client.get_savepoint("by-hand")).offsets == {"a/one": 4}
    # Outside of what brokers watch, and under no lease.
    keys = await etcd.range("/.gazette-platform/savepoints" + etcd_prefix)
    assert [kv.lease for kv in keys.kvs] == [0, 0]
    await client.delete_savepoint("by-hand")
    with pytest.raises(SavepointNotFound, match="no savepoint by-hand"):
        await client.get_savepoint("by-hand")
    with pytest.raises(SavepointNotFound):
        await client.delete_savepoint("by-hand")
    await client.delete_savepoint("nightly/1")
    assert await client.list_savepoints() == []


async def test_a_savepoint_is_where_a_read_goes_on(client):
    await apply(client, spec("a/journal"))
    await client.append("a/journal", b"before ")
    savepoint = await client.create_savepoint("here")
    await client.append("a/journal", b"after")
    async with client.read("a/journal", savepoint.offsets["a/journal"]) as reader:
        assert b"".join([bytes(piece) async for piece in reader]) == b"after"
    async with client.read("a/journal", from_savepoint="here") as reader:
        assert await reader.read() == b"after"
    await client.delete_savepoint("here")


async def test_a_reader_takes_its_offset_from_a_savepoint_when_it_begins(client):
    await apply(client, spec("a/journal"))
    await client.append("a/journal", b"0123456789")
    async with client.read("a/journal", block=True, from_savepoint="later") as reader:
        await client.create_savepoint("later", offsets={"a/journal": 4})
        assert bytes(await anext(reader)) == b"456789"
        # It is looked up once: a stream that breaks is resumed where it was.
        await client.delete_savepoint("later")
        reader._drop()
        await client.append("a/journal", b"more")
        assert bytes(await anext(reader)) == b"more"
    await client.create_savepoint("later", offsets={"a/journal": 4})
    async with client.read("a/journal;meta", from_savepoint="later", end_offset=6) as reader:
        assert await reader.read() == b"45"


async def test_readers_refuse_savepoints_that_do_not_fit(client):
    await apply(client, spec("a/journal"), spec("a/new"))
    await client.create_savepoint("here", offsets={"a/journal": 4})
    with pytest.raises(ValidationError, match="not both"):
        client.read("a/journal", 3, from_savepoint="here")
    for journal, name, what in [
        ("a/journal", "none", "there is no savepoint none"),
        ("a/new", "here", "savepoint here says nothing of a/new"),
    ]:
        async with client.read(journal, from_savepoint=name) as reader:
            with pytest.raises(SavepointNotFound, match=what):
                await reader.read()
    async with client.read("a/journal", from_savepoint="here", end_offset=3) as reader:
        with pytest.raises(ValidationError, match="end_offset 3 is before offset 4"):
            await reader.read()


@pytest.mark.parametrize("name", ["", "with blank", "hash#tag", "x" * 257])
async def test_bad_names_are_refused(client, name):
    with pytest.raises(CallFailed, match=r"Savepoint\.Name: "):
        await client.create_savepoint(name, offsets={"a/journal": 1})
    assert await client.list_savepoints() == []


async def test_bad_offsets_are_refused(client):
    with pytest.raises(CallFailed, match="expected >= 0"):
        await client.create_savepoint("name", offsets={"a/journal": -1})
    with pytest.raises(CallFailed, match="journal"):
        await client.create_savepoint("name", offsets={"a//journal": 1})
    with pytest.raises(ValidationError, match="no journal to keep an offset of"):
        await client.create_savepoint("name", "name=nobody")


async def test_a_savepoint_of_many_journals_blocks_nothing_else(broker, client):
    request = admin_pb.PutSavepointRequest()
    request.savepoint.name = "large"
    for number in range(50_000):
        request.savepoint.offsets[f"a/j{number:06}"] = number
    raw = request.SerializeToString()
    longest = 0.0

    async def watch():
        nonlocal longest
        while True:
            began = time.thread_time()  # of this thread alone: other processes do not count
            await turns()
            longest = max(longest, time.thread_time() - began)

    tasks = TaskGroup("test")
    tasks.spawn(watch())
    await broker.service.rpcs["PutSavepoint"].handler(raw, {})
    await tasks.close()
    assert longest < 0.2
    assert len((await client.get_savepoint("large")).offsets) == 50_000
    request.savepoint.offsets[f"b/{'x' * 500}"] = 1
    for number in range(20_000):
        request.savepoint.offsets[f"b/j{number:06}"] = number
    with pytest.raises(RpcFailed, match="70001 offsets, too many to keep in etcd"):
        await broker.service.rpcs["PutSavepoint"].handler(request.SerializeToString(), {})


async def test_lists_of_large_savepoints_hold_few_of_them(etcd, etcd_prefix, broker):
    """Anybody may ask for the list, and ask a hundred times at once."""
    savepoint = admin_pb.Savepoint(name="large", journals=1)
    savepoint.offsets[f"a/{'x' * 500}"] = 1
    large = savepoint.SerializeToString() * 1900  # the last one of equal keys counts
    for number in range(40):
        await etcd.txn([], [Put(savepoint_key(etcd_prefix, f"large-{number:02}"), large)])
    request = admin_pb.ListSavepointsRequest().SerializeToString()
    tracemalloc.start()
    try:
        lists = await asyncio.gather(
            *(broker.service.rpcs["ListSavepoints"].handler(request, {}) for _ in range(8))
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for raw in lists:
        found = admin_pb.ListSavepointsResponse.FromString(raw)
        assert len(found.savepoints) == 40
    assert peak < 32 << 20, f"{peak >> 20} MiB of {40 * len(large) >> 20}"


# ------------------------------------------------------------------------------ who may what


async def test_claims_limit_flushes_and_savepoints(local_brokers):
    broker = await local_brokers.start(auth_keys=KEYS)

    def allowed(capability, **labels):
        include = LabelSet.of(**labels) if labels else LabelSet()
        claims = Claims(capability, LabelSelector(include=include))
        now = broker._context.clock.now().timestamp()
        token = KeyRing(KEYS).sign(claims, now=now, lifetime_s=60)
        return AsyncClient(ClientConfig(address=broker.endpoint, auth_token=token))

    everything = Capability.LIST | Capability.APPLY | Capability.READ | Capability.APPEND
    async with (
        allowed(everything) as root,
        allowed(everything, name="a/mine") as owner,
        allowed(Capability.LIST | Capability.READ) as reader,
        allowed(everything, name="a/yours") as other,
    ):
        # One by one, so that each has another create revision.
        await apply(root, spec("a/mine"))
        await apply(root, spec("a/yours"))
        await root.append("a/mine", b"content")
        await root.create_savepoint("both")
        assert await owner.flush("") == {"a/mine": 7}
        with pytest.raises(CallFailed, match="APPEND capability"):
            await reader.flush("")
        assert (await owner.get_savepoint("both")).offsets == {"a/mine": 7}
        created = {each.name: each.created for each in await root.list()}
        assert len(set(created.values())) == 2
        for client, names in (
            (root, ["a/mine", "a/yours"]),
            (owner, ["a/mine"]),
            (other, ["a/yours"]),
        ):
            found = (await client.get_savepoint("both")).created
            assert found == {name: created[name] for name in names}
        assert [s.journals for s in await owner.list_savepoints()] == [1]
        whole = "not authorized to all journals of savepoint both"
        for refused, text in (
            (owner.delete_savepoint("both"), whole),
            (owner.create_savepoint("both", replace=True), whole),
            (owner.create_savepoint("new", offsets={"a/yours": 1}), "not authorized to a/yours"),
            (reader.create_savepoint("new"), "APPLY capability"),
            (reader.delete_savepoint("both"), "APPLY capability"),
        ):
            with pytest.raises(CallFailed, match=text) as caught:
                await refused
            assert ("a/yours" in str(caught.value)) == ("a/yours" in text)
        await root.create_savepoint("yours", offsets={"a/yours": 0})
        assert [s.name for s in await owner.list_savepoints()] == ["both"]
        for ask in (owner.get_savepoint, owner.delete_savepoint):
            told = []
            for name in ("yours", "none"):
                with pytest.raises(SavepointNotFound) as caught:
                    await ask(name)
                told.append(str(caught.value).replace(name, ""))
            assert told[0] == told[1]
        with pytest.raises(CallFailed) as caught:
            await owner.create_savepoint("yours", replace=True)
        assert "a/yours" not in str(caught.value)
        for name in ("both", "yours"):
            await root.delete_savepoint(name)


async def test_flush_of_what_does_not_exist(client):
    from gazette_platform.client import admin

    with pytest.raises(StatusError, match="JOURNAL_NOT_FOUND"):
        await admin.flush_journal(client._transport, "no/journal", timeout_s=5)


async def test_stores_that_can_never_work_are_reported_without_asking_them(local_brokers):
    broker = await local_brokers.start()
    stores = [
        "file:///",
        "file:///no/such/folder/",
        "hdfs://127.0.0.1:1/nobody/is/there/",
        "file:///?colour=red",
        "ftp://host/a/",
        "not a url",
    ]
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        refused = await client.refused_stores([*stores, *(f"file:///{n}/" for n in range(600))])
        assert list(refused) == stores[3:]
        assert "colour" in refused["file:///?colour=red"]
        assert await client.refused_stores([]) == {}
    assert not (local_brokers.fragments / "0").exists()


async def test_stores_that_this_broker_cannot_serve_are_refused(local_brokers):
    broker = await local_brokers.start(file_root=None)
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        assert "--broker.file-root" in (await client.refused_stores(["file:///"]))["file:///"]
    allowed = await local_brokers.start(stores_allowed=("file:///a/",))
    async with AsyncClient(ClientConfig(address=allowed.endpoint)) as client:
        refused = await client.refused_stores(["file:///a/b/", "file:///b/"])
    assert list(refused) == ["file:///b/"]
    assert "--broker.stores-allowed" in refused["file:///b/"]


async def test_one_call_checks_a_bounded_number_of_stores(local_brokers):
    broker = await local_brokers.start()
    raw = admin_pb.CheckStoresRequest(stores=["file:///"] * 257).SerializeToString()
    with pytest.raises(RpcFailed, match="too many Stores"):
        await broker.service.rpcs["CheckStores"].handler(raw, {})


async def test_brokers_are_listed_with_their_zones(local_brokers):
    first = await local_brokers.start(zone="b")
    await local_brokers.start(zone="a")
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:

        async def both():
            found = await client.brokers()
            return found if len(found) == 2 else None

        found = await eventually(both)
        assert [each.id.name for each in found] == ["a#broker-1", "b#broker-0"]
        assert found[1].endpoint == first.endpoint
