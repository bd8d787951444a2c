"""Read at a real broker: Gazette's cases RD1 to RD5 and RD10 to RD14, codecs, stops, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil

import grpc
import pytest
from journal_specs import journal_spec
from wire_limits import limit_stalls

from gazette_platform.broker.etcd_records import epoch_key
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.etcd import Delete
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec, Fragment, JournalFlag
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, NotTaken
from gazette_platform.testing.local import append, calls_begun, read, read_all, store_fragment
from gazette_platform.testing.waiting import eventually, pass_time, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

MIB = 1 << 20
JOURNAL = "a/journal"


def spec(name=JOURNAL, *, length=64 * MIB, stores=("file:///",), codec=None, **fields):
    return journal_spec(
        name, length=length, codec=codec or CompressionCodec.NONE, stores=stores, **fields
    )


def sha1(content):
    return hashlib.sha1(content, usedforsecurity=False).digest()


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def stub(cluster, broker):
    return cluster.stub(broker)


async def next_metadata(responses):
    """The next response of metadata; it has no content."""
    response = await anext(responses)
    assert not response.content
    return response


async def collect(responses):
    return [response async for response in responses]


def stored(cluster):
    folder = cluster.fragments / JOURNAL
    return sorted(folder.rglob("[!.]*-*-*")) if folder.is_dir() else []


# ------------------------------------------------------------------------------------ local content
async def test_rd1_a_blocking_read_follows_the_commits(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"rolled")  # ends the first fragment, so that one stays open
    call = read(stub, JOURNAL, 6, block=True)
    responses = aiter(call)
    await append(stub, JOURNAL, b"open ")
    metadata = await next_metadata(responses)
    assert (metadata.status, metadata.offset, metadata.write_head) == (pb.OK, 6, 11)
    assert (metadata.fragment.begin, metadata.fragment.end) == (6, 11)
    assert Fragment.from_pb(metadata.fragment).sum == sha1(b"open ")
    assert metadata.header.process_id.suffix == "broker-0"
    content = await anext(responses)
    assert (content.offset, content.content) == (6, b"open ")
    await append(stub, JOURNAL, b"more")
    metadata = await next_metadata(responses)
    assert (metadata.offset, metadata.fragment.begin, metadata.fragment.end) == (11, 6, 15)
    assert Fragment.from_pb(metadata.fragment).sum == sha1(b"open more")
    assert not metadata.HasField("header"), "only the first response has one"
    assert (await anext(responses)).content == b"more"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await anext(responses)
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_rd2_end_offset_cuts(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"0123456789")
    metadata, content = await collect(read(stub, JOURNAL, 2, end_offset=7))
    assert metadata.fragment.end == 10
    assert (content.offset, content.content) == (2, b"23456")


async def test_rd3_end_offset_beyond_the_head_is_waited_for(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"0123456789")
    responses = aiter(read(stub, JOURNAL, 8, end_offset=12, block=True))
    await next_metadata(responses)
    assert (await anext(responses)).content == b"89"
    await append(stub, JOURNAL, b"abcdef")
    await next_metadata(responses)
    assert (await anext(responses)).content == b"ab"
    with pytest.raises(StopAsyncIteration):
        await anext(responses)


async def test_rd4_a_read_ends_at_the_head(cluster, stub):
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"01234567")
    metadata, content, end = await collect(read(stub, JOURNAL, 3))
    assert (metadata.offset, metadata.write_head) == (3, 8)
    assert (content.offset, content.content) == (3, b"34567")
    assert (end.status, end.offset, end.write_head) == (pb.OFFSET_NOT_YET_AVAILABLE, 8, 8)
    assert not end.HasField("fragment")


async def test_rd5_metadata_only_waits_for_a_commit(cluster, stub, broker):
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"abc")
    waiting = asyncio.ensure_future(  # noqa: TID251  awaited below
        collect(read(stub, JOURNAL, 3, block=True, metadata_only=True))
    )
    await eventually(lambda: calls_begun(broker, "Read"))
    assert await read_all(stub, JOURNAL) == b"abc"  # the next one has been answered
    assert not waiting.done()
    await append(stub, JOURNAL, b"def")
    (metadata,) = await waiting
    assert (metadata.status, metadata.offset, metadata.write_head) == (pb.OK, 3, 6)


async def test_many_readers_and_a_writer(cluster, stub):
    """Each reader sees every byte once, in order, over rolls and the move into the store."""
    await cluster.apply(stub, spec(length=4096, codec=CompressionCodec.GZIP))
    lines = [b"%06d %s\n" % (n, b"x" * (n % 97)) for n in range(2000)]
    expected = b"".join(lines)

    async def tail():
        responses = read(stub, JOURNAL, 0, block=True, end_offset=len(expected))
        return b"".join([response.content async for response in responses])

    tails = [asyncio.ensure_future(tail()) for _ in range(4)]  # noqa: TID251  awaited below
    for at in range(0, len(lines), 20):
        await append(stub, JOURNAL, b"".join(lines[at : at + 20]))
    assert await asyncio.gather(*tails) == [expected] * 4
    await eventually(lambda: len(stored(cluster)) > 10)
    assert await read_all(stub, JOURNAL) == expected


# ----------------------------------------------------------------------------------- remote content
@pytest.fixture
async def remote(cluster, stub):
    """A journal with [95, 120) in the store, SNAPPY, and nothing at brokers."""
    store_fragment(
        cluster.fragments, JOURNAL, 95, b"remote fragment content!!", codec=CompressionCodec.SNAPPY
    )
    await cluster.apply(stub, spec(codec=CompressionCodec.SNAPPY))
    await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL))  # waits for the listing
    return stub


async def test_rd10_a_remote_fragment_is_decompressed(remote):
    metadata, content, end = await collect(read(remote, JOURNAL, 100))
    assert (metadata.status, metadata.offset, metadata.write_head) == (pb.OK, 100, 120)
    assert metadata.fragment.backing_store == "file:///"
    assert metadata.fragment_url.startswith("file:///a/journal/000000000000005f-")
    assert (content.offset, content.content) == (100, b"e fragment content!!")
    assert (end.status, end.offset) == (pb.OFFSET_NOT_YET_AVAILABLE, 120)


async def test_rd11_do_not_proxy_gives_the_url_only(remote):
    (metadata,) = await collect(read(remote, JOURNAL, 100, do_not_proxy=True))
    assert metadata.status == pb.OK
    assert metadata.fragment_url


async def test_rd12_a_read_jumps_over_what_is_gone(remote):
    (metadata,) = await collect(read(remote, JOURNAL, 10, end_offset=20, block=True))
    assert (metadata.status, metadata.offset, metadata.fragment.begin) == (pb.OK, 95, 95)


async def test_a_remote_fragment_that_lies_about_its_length(remote, cluster):
    """A clear error instead of silently short content."""
    (path,) = stored(cluster)
    path.rename(path.with_name(path.name.replace("0000000000000078", "0000000000000100")))

    async def reads_the_new_name():
        responses = read(remote, JOURNAL, 100, metadata_only=True)
        return [r.fragment.end async for r in responses] == [256]

    await eventually(reads_the_new_name)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(read(remote, JOURNAL, 100))
    assert "ends 136 bytes before its name says" in caught.value.details()


async def test_begin_mod_time_skips_what_was_stored_before(cluster, stub):
    now = int(SystemClock().now().timestamp())
    for n, age_s in enumerate((300, 200, 100)):
        store_fragment(cluster.fragments, JOURNAL, n * 10, b"%d" % n * 10, stored_at=now - age_s)
    await cluster.apply(stub, spec())
    await eventually(lambda: _head_is(stub, 30))
    assert await read_all(stub, JOURNAL, begin_mod_time=now - 250) == b"1" * 10 + b"2" * 10
    assert await read_all(stub, JOURNAL, begin_mod_time=now - 50) == b""
    await append(stub, JOURNAL, offset=30)
    await append(stub, JOURNAL, b"local")
    assert await read_all(stub, JOURNAL, begin_mod_time=now - 50) == b"local"


async def _head_is(stub, head):
    (end,) = await collect(read(stub, JOURNAL, -1))
    return end.write_head == head


async def test_reads_wait_for_the_first_listing(cluster, broker, stub, monkeypatch):
    """Else one to the head would end early, and one from the head begin at 0."""
    store_fragment(cluster.fragments, JOURNAL, 0, b"0123456789")
    gate = asyncio.Event()
    lister = broker._context.lister
    real = lister.list

    async def slow(_, listed):
        await gate.wait()
        return await real(listed)

    monkeypatch.setattr(type(lister), "list", slow)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec().to_pb())
    await stub.Apply(request)
    await eventually(lambda: JOURNAL in broker._resolver.replicas)
    to_head = asyncio.ensure_future(read_all(stub, JOURNAL))  # noqa: TID251  awaited below
    from_head = aiter(read(stub, JOURNAL, -1, block=True))
    await eventually(lambda: calls_begun(broker, "Read") == 2)
    assert (await append(stub, "no/journal")).status == pb.JOURNAL_NOT_FOUND  # it answers others
    assert not to_head.done()
    gate.set()
    assert await to_head == b"0123456789"
    await append(stub, JOURNAL, offset=10)
    await append(stub, JOURNAL, b"tail")
    assert (await next_metadata(from_head)).offset == 10
    assert (await anext(from_head)).content == b"tail"


async def test_reads_do_not_wait_for_ever(cluster, monkeypatch):
    broker = await cluster.start(append_wait_s=0.1)
    stub = cluster.stub(broker)

    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(type(broker._context.lister), "list", never)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec().to_pb())
    await stub.Apply(request)
    await eventually(lambda: JOURNAL in broker._resolver.replicas)
    # Nor do they get a head that no broker knows yet.
    with pytest.raises(grpc.aio.AioRpcError, match=r"its stores are not listed yet .*; ask again"):
        await collect(read(stub, JOURNAL))


# ------------------------------------------------------------------------------------------ codecs
@pytest.mark.parametrize(
    "codec",
    [
        CompressionCodec.NONE,
        CompressionCodec.GZIP,
        CompressionCodec.ZSTANDARD,
        CompressionCodec.SNAPPY,
    ],
)
async def test_content_is_the_same_from_spool_and_from_store(cluster, stub, codec):
    await cluster.apply(stub, spec(codec=codec, length=3 * MIB))
    content = b""
    for n in range(5):
        part = (b"%d," % n) * (400_000) + os.urandom(1000)
        content += part
        await append(stub, JOURNAL, *(part[at : at + MIB] for at in range(0, len(part), MIB)))
    assert await read_all(stub, JOURNAL) == content
    await append(stub, JOURNAL, suspend=pb.AppendRequest.SUSPEND_NOW)
    listed = await eventually(lambda: _all_stored(stub))
    assert await read_all(stub, JOURNAL) == content
    middle = len(content) // 2
    assert await read_all(stub, JOURNAL, middle) == content[middle:]
    for fragment in listed:
        assert fragment.sum == sha1(content[fragment.begin : fragment.end])
        assert (cluster.fragments / fragment.content_path).is_file()


async def _all_stored(stub):
    response = await stub.ListFragments(pb.FragmentsRequest(journal=JOURNAL))
    listed = [Fragment.from_pb(item.spec) for item in response.fragments]
    return listed if all(fragment.backing_store for fragment in listed) else None


# ---------------------------------------------------------------------------------------- refusals
async def test_rd13_refusals(cluster, stub):
    await cluster.apply(stub, spec(flags=JournalFlag.O_WRONLY))
    with pytest.raises(grpc.aio.AioRpcError, match="cannot begin with '/'"):
        await collect(read(stub, "/baddd/name"))
    (refused,) = await collect(read(stub, JOURNAL))
    assert refused.status == pb.NOT_ALLOWED
    assert refused.header.process_id.suffix == "broker-0"
    (unknown,) = await collect(read(stub, "b/journal"))
    assert unknown.status == pb.JOURNAL_NOT_FOUND


async def test_rd14_content_fits_what_clients_take(cluster, stub):
    """Gazette's clients receive messages of 4 MiB at most."""
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, *[b"x" * MIB] * 5)
    sizes = [r.ByteSize() for r in await collect(read(stub, JOURNAL))]
    assert MIB // 4 < max(sizes) <= MIB + 64


# ------------------------------------------------------------------------------- changes of the end
async def test_e6_a_blocked_read_ends_cleanly_when_the_journal_goes(cluster, stub):
    await cluster.apply(stub, spec())
    responses = aiter(read(stub, JOURNAL, 0, block=True))
    await append(stub, JOURNAL, b"abc")
    assert (await next_metadata(responses)).status == pb.OK
    assert (await anext(responses)).content == b"abc"
    request = pb.ApplyRequest()
    change = request.changes.add(delete=JOURNAL)
    change.expect_mod_revision = -1
    assert (await stub.Apply(request)).status == pb.OK
    with pytest.raises(StopAsyncIteration):
        await anext(responses)


async def test_e7_a_blocked_read_and_a_watch_end_cleanly_at_shutdown(cluster, broker, stub):
    await cluster.apply(stub, spec())
    responses = aiter(read(stub, JOURNAL, 0, block=True))
    watch = aiter(stub.List(pb.ListRequest(watch=True)))
    await append(stub, JOURNAL, b"abc")
    assert (await next_metadata(responses)).status == pb.OK
    assert (await anext(responses)).content == b"abc"
    await anext(watch)
    await anext(watch)
    async with asyncio.timeout(patient(10)):  # well below the grace that calls are given
        assert await broker.drain() == []
    with pytest.raises(StopAsyncIteration):
        await anext(responses)
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_rs12_a_journal_deleted_and_created_at_once_is_another(cluster, stub, broker):
    await cluster.apply(stub, spec(stores=()))
    await append(stub, JOURNAL, b"former")
    before = broker._resolver.replicas[JOURNAL]
    request = pb.ApplyRequest()
    request.changes.add(delete=JOURNAL).expect_mod_revision = -1
    await stub.Apply(request)
    request = pb.ApplyRequest()
    request.changes.add().upsert.CopyFrom(spec(stores=(), labels={"new": "1"}).to_pb())
    await stub.Apply(request)
    response = await append(stub, JOURNAL, b"new")
    assert (response.status, response.commit.begin) == (pb.OK, 0)
    assert broker._resolver.replicas[JOURNAL] is not before
    assert await read_all(stub, JOURNAL) == b"new"


async def test_rs15_changed_stores_are_listed_at_once(cluster, stub, tmp_path):
    store_fragment(cluster.fragments / "one", JOURNAL, 0, b"0123456789")
    store_fragment(cluster.fragments / "two", JOURNAL, 10, b"abcdef")

    async def set_stores(*stores):
        slow = spec(stores=stores)
        request = pb.ApplyRequest()
        change = request.changes.add(expect_mod_revision=-1)
        change.upsert.CopyFrom(slow.to_pb())
        change.upsert.fragment.refresh_interval.seconds = 3600
        assert (await stub.Apply(request)).status == pb.OK

    async def head():
        (end,) = await collect(read(stub, JOURNAL, -1))
        return end.write_head

    await set_stores("file:///one/", "file:///two/")
    await append(stub, JOURNAL)
    await eventually(lambda: _head_is(stub, 16))
    await set_stores("file:///one/")
    await eventually(lambda: _head_is(stub, 10))
    await set_stores("file:///three/", "file:///two/", "file:///one/")
    await eventually(lambda: _head_is(stub, 16))
    await set_stores()
    await eventually(lambda: _head_is(stub, 0))


# ---------------------------------------------------------------------------------------- restarts
async def test_a_drained_journal_goes_on_where_it_was(cluster, broker, stub):
    await cluster.apply(stub, spec(codec=CompressionCodec.GZIP))
    for word in (b"one ", b"two ", b"three "):
        await append(stub, JOURNAL, word)
    assert await broker.drain() == []
    assert len(stored(cluster)) == 2, "all is persisted"
    second = cluster.stub(await cluster.start())
    response = await append(second, JOURNAL, b"four")
    assert (response.status, response.commit.begin) == (pb.OK, 14)
    assert await read_all(second, JOURNAL) == b"one two three four"


async def test_the_head_is_remembered_even_if_content_could_not_be_persisted(cluster, broker, stub):
    """Readers may have seen it: other bytes must not take its offsets."""
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"one ")
    await append(stub, JOURNAL, b"two ")
    await eventually(lambda: len(stored(cluster)) == 1)
    cluster.fragments.rename(cluster.fragments.with_name("away"))
    broker._persister._sleep = lambda _: pass_time(0.01)
    left = await _drain_within(broker, 0.5)
    assert [(fragment.begin, fragment.end) for fragment in left] == [(4, 8)]
    cluster.fragments.with_name("away").rename(cluster.fragments)
    second = cluster.stub(await cluster.start())
    response = await append(second, JOURNAL, b"three")
    assert (response.status, response.commit.begin) == (pb.OK, 8)


async def _drain_within(broker, timeout_s):
    drain = broker._persister.drain
    broker._persister.drain = lambda **_: drain(timeout_s=timeout_s)
    return await broker.drain()


async def test_replica_that_closes_reports_no_end_to_who_waits_for_what_is_missing(
    cluster, broker, stub, monkeypatch
):
    """Another broker has what is missing, and what follows it."""
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"content")
    replica = broker._resolver.replicas[JOURNAL]
    replica.spool.roll(100)

    async def close(*_):
        replica.index.close()
        return False

    monkeypatch.setattr(type(replica), "is_filling", property(lambda _: False))
    monkeypatch.setattr(type(replica), "wait_gap", close)
    request = pb.ReadRequest(journal=JOURNAL, offset=7)
    assert [response.status async for response in stub.Read(request)] == []


async def test_a_read_of_local_content_outlives_its_journal(cluster, stub):
    """It holds the file, which is closed after it."""
    await cluster.apply(stub, spec(stores=()))
    content = os.urandom(20 * MIB)
    await append(stub, JOURNAL, *(content[at : at + MIB] for at in range(0, len(content), MIB)))
    responses = aiter(read(stub, JOURNAL, 0, block=True))
    assert (await next_metadata(responses)).fragment.end == len(content)
    received = (await anext(responses)).content
    request = pb.ApplyRequest()
    request.changes.add(delete=JOURNAL).expect_mod_revision = -1
    assert (await stub.Apply(request)).status == pb.OK
    async for response in responses:
        received += response.content
    assert received == content


async def test_the_head_can_be_reset_right_after_a_start(cluster, broker, stub, monkeypatch):
    """Before the store was listed."""
    await cluster.apply(stub, spec())
    await append(stub, JOURNAL, b"persisted ")
    await append(stub, JOURNAL, b"lost")
    await eventually(lambda: len(stored(cluster)) == 1)
    # As of brokers whose spools end with their processes.
    epoch = epoch_key(broker.config.etcd_prefix, JOURNAL)
    await broker._context.etcd.txn([], [Delete(epoch)])
    await broker.abandon()  # first, lest it stores the rest once nothing is assigned to it
    await broker._lease.revoke()
    shutil.rmtree(broker.config.spool_dir / "spools")
    again = await cluster.start()
    lister = again._context.lister
    real = lister.list

    async def slow(_, listed):
        await pass_time(0.3)
        return await real(listed)

    monkeypatch.setattr(type(lister), "list", slow)
    async with AsyncClient(ClientConfig(address=again.endpoint)) as client:
        assert await client.reset_head(JOURNAL) == 10
        assert (await client.append(JOURNAL, b"new")).begin == 10


# ------------------------------------------------------------------------------ readers that stop
async def test_reader_that_takes_nothing_is_asked_to_come_back(cluster, broker, stub, monkeypatch):
    limit_stalls(monkeypatch, broker, 0.5)
    await cluster.apply(stub, spec(JOURNAL))
    content = bytes(1 << 20)
    for _ in range(12):
        await append(stub, JOURNAL, content)
    call = stub.Read(pb.ReadRequest(journal=JOURNAL), timeout=60)
    await call.read()
    reads = broker.service._read
    await eventually(lambda: reads._sending_bytes > 0)

    async def has_ended():
        if reads._sending_bytes:
            return False
        await pass_time(0.2)  # else it may be between two pieces
        return reads._sending_bytes == 0

    await eventually(has_ended)  # more than a window holds is left
    with contextlib.suppress(grpc.RpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert "nothing was taken of the responses for 0.5 s" in await call.details()
    assert len(await read_all(stub, JOURNAL)) == 12 << 20


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP])
async def test_reader_that_goes_away_is_not_a_fault_of_what_it_reads(cluster, broker, stub, codec):
    """Be that a store, or a file of ours: it gives back all that it held, and hears of itself alone."""
    await cluster.apply(stub, spec(codec=codec, length=1024))
    persisted = os.urandom(1024)
    for content in (persisted, b"open"):
        await append(stub, JOURNAL, content)
    index = broker._resolver.replicas[JOURNAL].index
    await eventually(lambda: index.lookup(0).file is None)
    file = index.lookup(1024).file
    held = file._holders
    gone = NotTaken(Code.UNAVAILABLE, "the caller has gone")
    cancelled = broker._context.metrics.completed.labels("Read", "cancelled")

    for offset, content in ((0, persisted), (1024, b"open")):
        before = cancelled._value.get()
        responses = []

        async def send(raw, responses=responses):
            responses.append(pb.ReadResponse.FromString(raw))
            if responses[-1].content:
                raise gone

        request = pb.ReadRequest(journal=JOURNAL, offset=offset, block=True)
        with pytest.raises(NotTaken) as caught:
            await broker.service.read(request.SerializeToString(), send, {})
        assert caught.value is gone
        assert responses[-1].content == content
        assert broker.service._read._sending_bytes == 0
        await eventually(lambda: file._holders <= held)
        assert cancelled._value.get() == before + 1


async def test_a_byte_at_the_end_of_what_is_stored_counts_as_all_that_is_read_for_it(
    cluster, broker, stub
):
    """A store is read from the beginning of a fragment, in pieces as large as for anybody else."""
    await cluster.apply(stub, spec(codec=CompressionCodec.NONE, length=1 << 20))
    await append(stub, JOURNAL, bytes(1 << 20))
    await append(stub, JOURNAL, b"open")
    index = broker._resolver.replicas[JOURNAL].index
    await eventually(lambda: index.lookup(0).file is None)
    reads, counted = broker.service._read, []

    async def send(raw):
        if pb.ReadResponse.FromString(raw).content:
            counted.append(reads._sending_bytes)

    request = pb.ReadRequest(journal=JOURNAL, offset=MIB - 1, end_offset=MIB)
    await broker.service.read(request.SerializeToString(), send, {})
    assert counted == [MIB - 4096]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_our_client_receives_large_pieces_without_copies(cluster, broker, stub, is_stored):
    """A piece fits in one frame, and two in the window, so each is received where it belongs."""
    content = os.urandom(8 * MIB)
    if is_stored:
        store_fragment(cluster.fragments, JOURNAL, 0, content)
    await cluster.apply(stub, spec())
    if not is_stored:
        await append(stub, JOURNAL, *[content[at : at + MIB] for at in range(0, 8 * MIB, MIB)])
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        reader = client.read(JOURNAL, 0, end_offset=len(content))
        pieces = [piece async for piece in reader]
        assert bool(reader.fragment_url) is is_stored
    assert b"".join(pieces) == content
    assert [type(piece.obj) for piece in pieces[:-1]] == [bytearray] * 8
