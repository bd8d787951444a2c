"""ListFragments and FragmentStoreHealth at a real broker: Gazette's cases FR1 to FR4, FH1, FH2."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest
from journal_specs import journal_spec

from gazette_platform.protocol import ZERO_SUM, CompressionCodec, Fragment, JournalFlag
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.stores.fs import FileStore
from gazette_platform.testing.local import append, calls_begun, spans, store_fragment
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
TIMES = {0: 90, 40: 100, 110: 160, 200: 180, 255: 200}  # begin: modification time
SIZES = {0: 40, 40: 70, 110: 52, 200: 40, 255: 45}


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


async def fragments(stub, **fields):
    return await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL, **fields), timeout=20)


def listed(response):
    return spans(item.spec for item in response.fragments)


@pytest.fixture
async def five(cluster, stub):
    """A journal of five fragments in the store, and a local one after them."""
    for begin, stored_at in TIMES.items():
        content = bytes([65 + begin % 26]) * SIZES[begin]
        store_fragment(cluster.fragments, JOURNAL, begin, content, stored_at=stored_at)
    await cluster.apply(stub, spec(flags=JournalFlag.O_RDWR))
    assert (await append(stub, JOURNAL, offset=300)).status == pb.OK
    await append(stub, JOURNAL, b"local")
    return stub


ALL = [(0, 40), (40, 110), (110, 162), (200, 240), (255, 300), (300, 305)]


async def test_fr1_refusals(cluster, stub):
    assert (await fragments(stub)).status == pb.JOURNAL_NOT_FOUND
    await cluster.apply(stub, spec(flags=JournalFlag.O_WRONLY))
    response = await fragments(stub)
    assert response.status == pb.NOT_ALLOWED
    assert response.header.process_id.suffix == "broker-0"


async def test_fr2_a_window_that_ends_before_it_begins(stub):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await fragments(stub, begin_mod_time=50, end_mod_time=40)
    assert caught.value.details() == "invalid EndModTime (40 must be after 50)"


async def test_fr3_all_with_signed_urls_but_the_local_one(five):
    request = pb.FragmentsRequest(journal=JOURNAL)
    request.signatureTTL.seconds = 60
    response = await five.ListFragments(request)
    assert response.status == pb.OK
    assert listed(response) == ALL
    assert [bool(item.signed_url) for item in response.fragments] == [True] * 5 + [False]
    assert [item.spec.mod_time for item in response.fragments] == [*TIMES.values(), 0]
    assert {item.spec.backing_store for item in response.fragments[:5]} == {"file:///"}
    local = Fragment.from_pb(response.fragments[5].spec)
    assert local.sum == hashlib.sha1(b"local", usedforsecurity=False).digest()
    assert local.backing_store == ""
    assert response.next_page_token == 0


async def test_fr3_without_a_ttl_nothing_is_signed(five):
    assert {item.signed_url for item in (await fragments(five)).fragments} == {""}


async def test_fr3_waits_for_the_first_listing(cluster, broker, stub, monkeypatch):
    gate = asyncio.Event()
    real = broker._context.lister.list

    async def listing(spec):
        await gate.wait()
        return await real(spec)

    monkeypatch.setattr(type(broker._context.lister), "list", lambda _, spec: listing(spec))
    store_fragment(cluster.fragments, JOURNAL, 0, b"content")
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec().to_pb())
    await stub.Apply(request)
    await eventually(lambda: JOURNAL in broker._resolver.replicas)
    call = stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL))
    await eventually(lambda: calls_begun(broker, "ListFragments"))
    # It answers others.
    absent = await stub.ListFragments(pb.FragmentsRequest(journal="no/journal"))
    assert absent.status == pb.JOURNAL_NOT_FOUND
    assert not call.done()
    gate.set()
    assert listed(await call) == [(0, 7)]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"begin_mod_time": 100, "end_mod_time": 180}, ALL[1:4]),
        ({"begin_mod_time": 101, "end_mod_time": 179}, ALL[2:3]),
        ({"begin_mod_time": 180}, ALL[3:]),  # an open end takes the local one
        ({"end_mod_time": 100}, ALL[:2]),
        ({"begin_mod_time": 1000, "end_mod_time": 1001}, []),
        ({"begin_mod_time": 1000}, ALL[5:]),
    ],
)
async def test_fr4_windows_of_time(five, window, expected):
    response = await fragments(five, **window)
    assert listed(response) == expected
    assert response.next_page_token == 0


async def test_fr4_pages(five):
    first = await fragments(five, page_limit=3)
    assert (listed(first), first.next_page_token) == (ALL[:3], 200)
    second = await fragments(five, page_limit=3, next_page_token=first.next_page_token)
    assert (listed(second), second.next_page_token) == (ALL[3:], 0)
    between = await fragments(five, next_page_token=120)
    assert listed(between) == ALL[3:]
    beyond = await fragments(five, next_page_token=1000)
    assert (listed(beyond), beyond.next_page_token) == ([], 0)


async def test_sums_are_never_missing(cluster, stub):
    """Not at commits, not at rolls, and not between roll and completion."""
    await cluster.apply(stub, spec(length=4096))
    stop = asyncio.Event()
    seen = 0

    async def watch():
        nonlocal seen
        while not stop.is_set():
            for item in (await fragments(stub)).fragments:
                assert Fragment.from_pb(item.spec).sum != ZERO_SUM, item
                seen += 1
            async for response in stub.Read(
                pb.ReadRequest(journal=JOURNAL, offset=0, metadata_only=True)
            ):
                if response.fragment.end > response.fragment.begin:
                    assert Fragment.from_pb(response.fragment).sum != ZERO_SUM, response

    watching = [asyncio.ensure_future(watch()) for _ in range(3)]  # noqa: TID251  awaited below
    for n in range(150):
        await append(stub, JOURNAL, b"%d" % n * 700)
    stop.set()
    await asyncio.gather(*watching)
    assert seen > 100


async def test_persisted_fragments_are_listed_at_once(cluster, stub):
    """The refresh of the listing is an hour away."""
    request = pb.ApplyRequest()
    change = request.changes.add()
    change.upsert.CopyFrom(spec().to_pb())
    change.upsert.fragment.refresh_interval.seconds = 3600
    await stub.Apply(request)
    await append(stub, JOURNAL, b"one")
    await append(stub, JOURNAL, b"two")

    async def first_is_stored():
        return (await fragments(stub)).fragments[0].spec.backing_store == "file:///"

    await eventually(first_is_stored)


async def test_foreign_file_is_not_a_fragment(cluster, stub):
    store_fragment(cluster.fragments, JOURNAL, 0, b"content")
    (cluster.fragments / JOURNAL / "README.txt").write_text("not a fragment")
    await cluster.apply(stub, spec(flags=JournalFlag.O_RDONLY))

    async def is_assigned():
        return listed(await fragments(stub)) == [(0, 7)]

    await eventually(is_assigned)


# ------------------------------------------------------------------------------------------ health
async def health(stub, store="file:///", **fields):
    request = pb.FragmentStoreHealthRequest(fragment_store=store, **fields)
    return await stub.FragmentStoreHealth(request, timeout=20)


async def test_fh1_health(stub):
    response = await health(stub)
    assert (response.status, response.store_health_error) == (pb.OK, "")
    assert response.header.process_id.suffix == "broker-0"


async def test_fh1_a_store_that_cannot_be_opened(cluster):
    stub = cluster.stub(await cluster.start(file_root=None))
    response = await health(stub)
    assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
    assert "--broker.file-root" in response.store_health_error


async def test_fh1_an_invalid_url(stub):
    with pytest.raises(grpc.aio.AioRpcError, match="FragmentStore"):
        await health(stub, "not a url")


async def test_fh1_a_store_that_cannot_be_written(cluster, stub):
    locked = cluster.fragments / "locked"
    locked.write_text("a file where a directory should be")
    response = await health(stub, "file:///locked/")
    assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
    assert "locked" in response.store_health_error


async def test_fh2_the_delete_probe(cluster, stub):
    response = await health(stub, check_delete=True, check_delete_prefix="some/prefix/")
    assert response.status == pb.OK
    assert not list(cluster.fragments.rglob(".gazette-delete-probe"))


async def test_fh2_a_delete_probe_that_is_denied(cluster, broker, stub, monkeypatch):
    assert (await health(stub)).status == pb.OK
    from gazette_platform.errors import AccessDenied

    async def remove(_, path):
        raise AccessDenied(f"{path}: denied")

    monkeypatch.setattr(FileStore, "remove", remove)
    response = await health(stub, check_delete=True)
    assert response.status == pb.FRAGMENT_STORE_UNHEALTHY
    assert "delete-probe DELETE failed" in response.store_health_error
    assert "denied" in response.store_health_error
    assert (await health(stub)).status == pb.OK, "without the probe nothing is wrong"
