"""`s3://` stores at a real S3 server, and brokers that persist to them."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from grpc import aio
from journal_specs import journal_spec
from object_servers import need_go, s3_server, use_keys
from object_stores import fetch, opened

from gazette_platform.errors import AccessDenied, DataError, StoreUnavailable, ValidationError
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.pb import protocol_pb2 as pb, protocol_pb2_grpc
from gazette_platform.stores import health_check, s3
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.local import append, read_all as read_journal
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all
from gazette_platform.testing.waiting import eventually, pass_time, patient, stays

# The first test may build the server.
pytestmark = [pytest.mark.s3, pytest.mark.timeout(900)]

JOURNAL = "a/journal"
PART_BYTES = 8 << 20


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    need_go("GAZETTE_VERSITYGW")
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(autouse=True)
def keys(server, monkeypatch, tmp_path):
    use_keys(server, monkeypatch, tmp_path)


@pytest.fixture
def bucket(server):
    name = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(name)
    return name


@pytest.fixture
def url_of(server, bucket):
    """A URL of the bucket, given a prefix and more arguments."""
    return lambda prefix="", more="": (
        f"s3://{bucket}/{prefix}?endpoint={server.endpoint}&region=us-east-1{more}"
    )


class TestS3Conformance(StoreConformance):
    served_by = "s3://, of versitygw"

    @pytest.fixture
    def store(self, url_of):
        return opened(url_of())


class TestPrefixedS3Conformance(StoreConformance):
    served_by = "s3://, of versitygw"

    @pytest.fixture
    def store(self, url_of):
        return opened(url_of("some/prefix=1/"))


class TestRewritingS3Conformance(StoreConformance):
    served_by = "s3://, of versitygw"

    @pytest.fixture
    def store(self, url_of):
        return opened(url_of("p/", "&find=journal/&Replace=elsewhere/"))


async def test_so7_keys_are_prefix_and_rewritten_path(server, bucket, url_of):
    store = opened(url_of("p/", "&find=foo&replace=bar"))
    await put_bytes(store, "foo/foo/f", b"x")
    assert (server.folder / bucket / "p/bar/foo/f").read_bytes() == b"x"
    assert [item.path for item in await listing(store, "foo/")] == ["foo/f"]
    assert await read_all(store, "foo/foo/f") == b"x"


@pytest.mark.parametrize("length", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5])
async def test_content_of_several_parts(url_of, length):
    content = os.urandom(length)
    store = opened(url_of())
    await put_bytes(store, "j/large", content)
    assert await read_all(store, "j/large") == content
    assert [item.size for item in await listing(store, "j/")] == [length]


async def test_credentials_that_end_during_a_large_put_are_renewed(url_of, monkeypatch):
    """obstore asks for them in threads of its own then."""
    monkeypatch.setattr(s3, "_CREDENTIALS_TTL", timedelta(milliseconds=1))
    content, store = os.urandom(3 * PART_BYTES + 5), opened(url_of())
    await put_bytes(store, "j/large", content)
    assert await read_all(store, "j/large") == content


async def test_many_large_puts_at_once_all_arrive(url_of):
    store, content = opened(url_of()), os.urandom(2 * PART_BYTES + 1)
    async with asyncio.timeout(patient(120)):
        await asyncio.gather(*(put_bytes(store, f"j/{number}", content) for number in range(8)))
    assert len(await listing(store, "j/")) == 8
    assert await read_all(store, "j/7") == content


async def test_large_content_that_is_too_short_is_not_stored(url_of):
    store = opened(url_of())
    with tempfile.TemporaryFile(buffering=0) as file:
        file.truncate(PART_BYTES + 5)
        with pytest.raises(DataError, match=r"content ends at byte 8388613, 8388614"):
            await store.put("j/short", file.fileno(), PART_BYTES + 6)
    assert not await store.exists("j/short")


async def test_a_cancelled_put_stores_nothing_and_leaves_no_descriptor(url_of, tasks):
    store = opened(url_of())
    await put_bytes(store, "j/first", b"connects")
    with tempfile.TemporaryFile(buffering=0) as file:
        file.truncate(40 * PART_BYTES)
        putting = tasks.spawn(store.put("j/large", file.fileno(), 40 * PART_BYTES), name="put")
        await pass_time(0.1)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        # Of spools; those of connections come and go.
        own = _target(file.fileno())
        held = [name for name in os.listdir("/proc/self/fd") if _target(name) == own]  # noqa: PTH208
        assert held == [str(file.fileno())]

    async def is_alone():
        return [item.path for item in await listing(store, "j/")] == ["first"]

    await stays(is_alone, for_s=1, poll_s=0.1)


def _target(number):
    try:
        return Path(f"/proc/self/fd/{number}").readlink()
    except FileNotFoundError:
        return None


async def test_the_event_loop_goes_on_during_a_large_put(url_of, tasks):
    store, late = opened(url_of()), 0.0
    await put_bytes(store, "j/first", b"connects")
    putting = tasks.spawn(put_bytes(store, "j/large", bytes(8 * PART_BYTES)), name="put")
    loop = asyncio.get_running_loop()
    while not putting.done():
        at = loop.time()
        await pass_time(0.005)
        late = max(late, loop.time() - at)
    await putting
    assert late < 1, late


async def test_a_signed_url_needs_no_credentials(url_of):
    store = opened(url_of("p/"))
    await put_bytes(store, "j/f=1%/ü", b"content")
    url = await store.sign_get("j/f=1%/ü", 300)
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url
    response, body = await fetch(url)
    assert (response.status, body) == (200, b"content")
    response, _ = await fetch(url.partition("?")[0])
    assert response.status == 403
    response, _ = await fetch(url[:-1] + ("0" if url[-1] != "0" else "1"))
    assert response.status == 403


async def test_signed_urls_end(url_of):
    store = opened(url_of())
    await put_bytes(store, "j/f", b"content")
    url = await store.sign_get("j/f", 1)
    assert (await fetch(url))[0].status == 200

    async def is_refused():
        return (await fetch(url))[0].status == 403

    await eventually(is_refused, poll_s=0.2)
    # Version 4 allows a week, and refuses more.
    long = await store.sign_get("j/f", 365 * 86400)
    assert (await fetch(long))[0].status == 200


async def test_content_encoding_is_reported_and_the_bytes_stay(url_of):
    store = opened(url_of())
    raw = b"\x1f\x8b not even gzip"
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(raw)
        await store.put("j/offload", file.fileno(), len(raw), content_encoding="gzip")
        await store.put("j/plain", file.fileno(), len(raw))
    assert await read_all(store, "j/offload") == raw
    for name, encoding in (("offload", "gzip"), ("plain", None)):
        url = await store.sign_get(f"j/{name}", 60)
        response, body = await fetch(url, **{"Accept-Encoding": "gzip"})
        assert (response.headers.get("Content-Encoding"), body) == (encoding, raw)


async def test_folders_that_other_programs_make_are_not_listed(server, bucket, url_of):
    """A metastore makes an empty object for each partition that is added."""
    store = opened(url_of())
    await put_bytes(store, "j/date=1/f", b"x")
    (server.folder / bucket / "j" / "date=2").mkdir()
    assert [item.path for item in await listing(store, "j/")] == ["date=1/f"]


async def test_so8_a_bucket_that_is_missing_refuses_for_good(server):
    store = opened(f"s3://no-such-bucket/?endpoint={server.endpoint}&region=us-east-1")
    for operation in (put_bytes(store, "j/f", b"x"), read_all(store, "j/f"), listing(store, "j/")):
        with pytest.raises(AccessDenied, match="NoSuchBucket"):
            await operation
    with pytest.raises(AccessDenied, match="health check PUT failed"):
        await health_check(store)


async def test_so8_a_user_without_permission_is_refused_for_good(server, url_of, monkeypatch):
    await put_bytes(opened(url_of()), "j/f", b"x")
    server.add_user("nobody", "nobody-secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nobody-secret")
    store = opened(url_of())
    operations = [put_bytes(store, "j/f", b"y"), read_all(store, "j/f"), listing(store, "j/")]
    operations += [store.exists("j/f"), store.remove("j/f")]
    for operation in operations:
        with pytest.raises(AccessDenied):
            await operation


async def test_so8_wrong_keys_are_not_taken_for_a_refusal(url_of, monkeypatch):
    """They are wrong for every store, so that another one would not help."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = opened(url_of())
    with pytest.raises(StoreUnavailable, match=r"SignatureDoesNotMatch.*check the credentials"):
        await put_bytes(store, "j/f", b"x")


async def test_no_keys_at_all(url_of, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    store = opened(url_of())
    with pytest.raises(StoreUnavailable, match="no AWS credentials found"):
        await put_bytes(store, "j/f", b"x")
    with pytest.raises(StoreUnavailable, match="no AWS credentials found"):
        await store.sign_get("j/f", 1)


async def test_a_profile_gives_keys_and_region(server, bucket, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "config").write_text("[profile ours]\nregion = us-east-1\n")
    (tmp_path / "credentials").write_text(
        f"[ours]\naws_access_key_id = {server.access_key}\n"
        f"aws_secret_access_key = {server.secret_key}\n"
    )
    store = opened(f"s3://{bucket}/?endpoint={server.endpoint}&profile=ours")
    await put_bytes(store, "j/f", b"x")
    assert await read_all(store, "j/f") == b"x"
    other = opened(f"s3://{bucket}/?endpoint={server.endpoint}&profile=theirs")
    with pytest.raises(StoreUnavailable, match="theirs"):
        await put_bytes(other, "j/f", b"x")


async def test_a_region_is_needed_and_may_come_later(server, bucket, monkeypatch):
    store = opened(f"s3://{bucket}/?endpoint={server.endpoint}")
    with pytest.raises(StoreUnavailable, match=r"no AWS region \(add \?region="):
        await put_bytes(store, "j/f", b"x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    await put_bytes(store, "j/f", b"x")


async def test_a_server_that_stalls_is_waited_for(tmp_path, monkeypatch, tasks):
    """It goes on where it stood; what was refused meanwhile may be tried again."""
    with s3_server(tmp_path / "own") as own:
        own.make_bucket("bucket")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", own.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", own.secret_key)
        store = opened(f"s3://bucket/?endpoint={own.endpoint}&region=us-east-1")
        content = os.urandom(4 * PART_BYTES)
        await put_bytes(store, "j/f", b"connects")
        os.kill(own.pid, signal.SIGSTOP)
        try:
            putting = tasks.spawn(put_bytes(store, "j/large", content), name="put")
            await stays(lambda: not putting.done(), for_s=1)
        finally:
            os.kill(own.pid, signal.SIGCONT)
        async with asyncio.timeout(patient(60)):
            await putting
        assert await read_all(store, "j/large") == content
    with pytest.raises(StoreUnavailable):
        await store.exists("j/large")


async def test_what_other_programs_may_not_have_in_a_url(url_of):
    with pytest.raises(ValidationError, match="empty segment"):
        opened(url_of("a//b/"))


# ---------------------------------------------------------------------------------- brokers
def spec(*stores, codec=CompressionCodec.GZIP):
    return journal_spec(JOURNAL, length=1 << 16, codec=codec, stores=stores)


async def fragments(stub, **fields):
    request = pb.FragmentsRequest(journal=JOURNAL, **fields)
    return (await stub.ListFragments(request, timeout=30)).fragments


async def all_stored(stub, end):
    """The fragments up to `end`, once all are in a store; None before."""
    found = await fragments(stub, signatureTTL={"seconds": 60})
    if found and found[-1].spec.end == end and all(item.spec.backing_store for item in found):
        return found
    return None


@pytest.mark.etcd
@pytest.mark.parametrize(
    "codec",
    [CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION],
)
async def test_a_journal_persists_and_is_read_back_after_a_restart(
    cluster, server, bucket, url_of, codec
):
    content = os.urandom(200_000)
    broker = await cluster.start(drain_timeout_s=20.0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec(url_of("p/"), codec=codec))
    for begin in range(0, len(content), 50_000):
        await append(stub, JOURNAL, content[begin : begin + 50_000])
    await broker.drain()
    files = list((server.folder / bucket / "p" / JOURNAL).iterdir())
    assert files
    assert not any(cluster.fragments.iterdir()), "nothing goes to files"

    second = await cluster.start()
    stub = cluster.stub(second)
    found = await eventually(lambda: all_stored(stub, len(content)))
    assert len(found) == len(files)
    assert await read_journal(stub, JOURNAL) == content
    for item in found:
        response, body = await fetch(item.signed_url)
        assert response.status == 200
        if codec is CompressionCodec.NONE:
            assert body == content[item.spec.begin : item.spec.end]
        if codec is CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION:
            assert response.headers["Content-Encoding"] == "gzip"


@pytest.mark.etcd
async def test_a_journal_reads_the_union_of_its_stores(cluster, bucket, url_of):
    """New fragments go to the first store; old ones stay where they are."""
    broker = await cluster.start(drain_timeout_s=20.0)
    stub = cluster.stub(broker)
    await cluster.apply(stub, spec("file:///"))
    await append(stub, JOURNAL, b"in a file, ")
    await broker.drain()
    second = await cluster.start(drain_timeout_s=20.0)
    stub = cluster.stub(second)
    await eventually(lambda: all_stored(stub, 11))
    listed = [item async for item in stub.List(pb.ListRequest(), timeout=20)]
    request = pb.ApplyRequest()
    change = request.changes.add(expect_mod_revision=listed[0].journals[0].mod_revision)
    change.upsert.CopyFrom(spec(url_of(), "file:///").to_pb())
    assert (await stub.Apply(request, timeout=20)).status == pb.OK
    assert (await append(stub, JOURNAL, b"and in a bucket")).status == pb.OK
    await second.drain()
    stub = cluster.stub(await cluster.start())
    found = await eventually(lambda: all_stored(stub, 26))
    assert [item.spec.backing_store for item in found] == ["file:///", url_of()]
    assert await read_journal(stub, JOURNAL) == b"in a file, and in a bucket"


@pytest.mark.etcd
async def test_store_health_of_a_bucket(cluster, server, url_of):
    broker = await cluster.start()
    stub = cluster.stub(broker)

    async def health(url, **fields):
        request = pb.FragmentStoreHealthRequest(fragment_store=url, **fields)
        return await stub.FragmentStoreHealth(request, timeout=30)

    assert (await health(url_of(), check_delete=True)).status == pb.OK
    missing = f"s3://no-such-bucket/?endpoint={server.endpoint}&region=us-east-1"
    answer = await health(missing)
    assert answer.status == pb.FRAGMENT_STORE_UNHEALTHY
    assert "NoSuchBucket" in answer.store_health_error


@pytest.mark.etcd
async def test_a_broker_process_stores_what_it_holds_before_it_ends(start_servers, bucket, url_of):
    content = os.urandom(300_000)
    (first,) = start_servers("zone-a")
    async with aio.insecure_channel(first.address.removeprefix("http://")) as channel:
        stub = protocol_pb2_grpc.JournalStub(channel)
        request = pb.ApplyRequest()
        request.changes.add().upsert.CopyFrom(spec(url_of()).to_pb())
        assert (await stub.Apply(request, timeout=20)).status == pb.OK
        for begin in range(0, len(content), 50_000):
            await append(stub, JOURNAL, content[begin : begin + 50_000])
    assert await asyncio.to_thread(first.stop, timeout_s=60) == 0
    (second,) = start_servers("zone-b")
    async with aio.insecure_channel(second.address.removeprefix("http://")) as channel:
        stub = protocol_pb2_grpc.JournalStub(channel)
        await eventually(lambda: all_stored(stub, len(content)))
        assert await read_journal(stub, JOURNAL) == content
