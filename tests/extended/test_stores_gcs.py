"""`gs://` stores at fake-gcs-server, an emulator, and a broker that persists to one."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import json
import os
import tempfile
import time
import uuid
import warnings
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from object_servers import gcs_server, need_go
from object_stores import fetch, opened
from stored_journal import persist_and_restart

from gazette_platform.errors import AccessDenied, ObjectNotFound, StoreUnavailable, ValidationError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import CompressionCodec
from gazette_platform.stores import gcs as gcs_bucket, health_check
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all
from gazette_platform.testing.waiting import eventually, patient

# The first test may build the server.
pytestmark = [
    pytest.mark.gcs,
    pytest.mark.timeout(900),
    # Google's library says what it could do besides, of gRPC.
    pytest.mark.filterwarnings("ignore:Please install grpcio:ImportWarning"),
    # Stores leave their connections to the garbage collector, as that library does.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ACCOUNT = "broker@project.iam.gserviceaccount.com"
PART_BYTES = 8 << 20


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    need_go("GAZETTE_FAKE_GCS_SERVER")
    with gcs_server(tmp_path_factory.mktemp("gcs")) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_to_later_tests():
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.fixture(scope="session")
def private_key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(autouse=True)
def account(server, private_key, tmp_path, monkeypatch):
    """The JSON key of a service account. Gives: its file."""
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    pem = private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = tmp_path / "service-account.json"
    content = {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": ACCOUNT,
        "token_uri": "http://127.0.0.1:9/no-token-is-needed",
    }
    file.write_text(json.dumps(content))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    return file


@pytest.fixture
def bucket(server):
    name = f"b{uuid.uuid4().hex}"
    server.make_bucket(name)
    return name


@asynccontextmanager
async def answering(monkeypatch, answer):
    """A server of our own in the place of GCS, for answers that the emulator never gives."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        yield
    finally:
        await runner.cleanup()


class TestGcsConformance(StoreConformance):
    served_by = "gs://, of fake-gcs-server"

    @pytest.fixture
    def store(self, bucket):
        return opened(f"gs://{bucket}/")


class TestPrefixedGcsConformance(StoreConformance):
    served_by = "gs://, of fake-gcs-server"

    @pytest.fixture
    def store(self, bucket):
        return opened(f"gs://{bucket}/some/prefix=1/")


class TestRewritingGcsConformance(StoreConformance):
    served_by = "gs://, of fake-gcs-server"

    @pytest.fixture
    def store(self, bucket):
        return opened(f"gs://{bucket}/p/?find=a/journal/&replace=rewritten/to/")


async def test_so7_keys_are_prefix_and_rewritten_path(bucket):
    store = opened(f"gs://{bucket}/p/?find=foo&Replace=bar")
    await put_bytes(store, "foo/foo/f", b"x")
    assert [item.path for item in await listing(store, "foo/")] == ["foo/f"]
    assert await read_all(opened(f"gs://{bucket}/"), "p/bar/foo/f") == b"x"


@pytest.mark.parametrize("query", ["?profile=x", "?endpoint=http://x"])
async def test_arguments_are_refused(query):
    with pytest.raises(ValidationError, match="unknown query argument"):
        opened(f"gs://bucket/{query}")


@pytest.mark.parametrize("length", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5])
async def test_content_of_one_and_of_several_parts(bucket, length):
    content, store = os.urandom(length), opened(f"gs://{bucket}/")
    await put_bytes(store, "j/large", content)
    assert await read_all(store, "j/large") == content


async def test_what_is_stored_compressed_is_read_as_it_is_stored(bucket):
    plain = b"content " * 400_000
    stored, store = gzip.compress(plain, 1), opened(f"gs://{bucket}/")
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(stored)
        await store.put("j/f", file.fileno(), len(stored), content_encoding="gzip")
    assert await read_all(store, "j/f") == stored
    assert b"".join([piece async for piece in store.get("j/f", piece_bytes=999)]) == stored
    response, body = await fetch(await store.sign_get("j/f", 60), **{"Accept-Encoding": "gzip"})
    assert (response.headers["Content-Encoding"], body) == ("gzip", stored)


async def test_listings_of_many_pages(bucket, server):
    names = [f"{index:04}" for index in range(1234)]
    await asyncio.gather(
        *(asyncio.to_thread(server.put_object, bucket, f"j/{name}", b"x") for name in names)
    )
    found = await listing(opened(f"gs://{bucket}/"), "j/")
    assert [item.path for item in found] == names


@pytest.mark.parametrize("path", ["j/f", "j/date=2026-01-02/hour=05/f", "j/a+b=1%20 (ü)/日本語"])
async def test_a_signed_url_is_of_the_key_and_leads_to_the_object(bucket, path, private_key):
    """The emulator looks at no signature, so it is verified here, as GCS does."""
    store = opened(f"gs://{bucket}/p/")
    await put_bytes(store, path, b"content")
    before = int(SystemClock().now().timestamp())
    url = await store.sign_get(path, 300)
    response, body = await fetch(url)
    assert (response.status, body) == (200, b"content")

    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert query.keys() == {"Expires", "GoogleAccessId", "Signature"}
    assert query["GoogleAccessId"] == ACCOUNT
    assert before + 299 <= int(query["Expires"]) <= SystemClock().now().timestamp() + 301
    # Of V2: verb, MD5, type, expiry, and the path as it is in the URL.
    signed = f"GET\n\n\n{query['Expires']}\n{parts.path}".encode()
    signature = base64.b64decode(query["Signature"])
    verify = private_key.public_key().verify
    verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
    with pytest.raises(InvalidSignature):
        verify(signature, signed + b"x", padding.PKCS1v15(), hashes.SHA256())


async def test_without_an_emulator_urls_lead_to_google(monkeypatch):
    """Signing calls no server: there is no such bucket, and the account cannot log in."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    url = await opened("gs://b.example/p/").sign_get("j/a=1/f %", 60)
    assert url.startswith("https://storage.googleapis.com/b.example/p/j/a%3D1/f%20%25?Expires=")


async def test_signing_needs_a_key(bucket, monkeypatch, tmp_path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    store = opened(f"gs://{bucket}/")
    await put_bytes(store, "j/f", b"x")
    with pytest.raises(StoreUnavailable, match="GOOGLE_APPLICATION_CREDENTIALS"):
        await store.sign_get("j/f", 60)
    # Once it exists, the same store has it.
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "service-account.json"))
    assert "Signature=" in await store.sign_get("j/f", 60)


async def test_a_user_of_gcloud_cannot_sign(bucket, account):
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    account.write_text(json.dumps({**user, "quota_project_id": "project"}))
    with pytest.raises(StoreUnavailable, match="cannot sign URLs"):
        await opened(f"gs://{bucket}/").sign_get("j/f", 60)


@pytest.mark.parametrize("content", ["{}", "no JSON", '{"type": "service_account"}'])
async def test_a_key_that_is_none(bucket, account, content):
    account.write_text(content)
    with pytest.raises(StoreUnavailable, match="no credentials of Google"):
        await opened(f"gs://{bucket}/").sign_get("j/f", 60)


async def test_no_login_without_an_answer_of_the_token_server(bucket, monkeypatch):
    """Without an emulator the account logs in first; here no server listens."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(gcs_bucket, "_RETRY_TIMEOUT_S", 1.0)
    with pytest.raises(StoreUnavailable, match="no-token-is-needed"):
        await opened(f"gs://{bucket}/").exists("j/f")


async def test_so8_a_bucket_that_is_missing_refuses_for_good():
    store = opened("gs://no-such-bucket/")
    for operation in (
        put_bytes(store, "j/f", b"x"),
        put_bytes(store, "j/f", bytes(PART_BYTES + 1)),
        read_all(store, "j/f"),
        store.exists("j/f"),
        store.remove("j/f"),
        listing(store, "j/"),
    ):
        with pytest.raises(AccessDenied, match="create the bucket"):
            await operation
    with pytest.raises(AccessDenied, match="health check PUT failed"):
        await health_check(store)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def refusal(status, message):
    body = {"error": {"code": status, "message": message, "errors": [{"message": message}]}}
    return web.json_response(body, status=status)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, "No such object: b/j/f", ObjectNotFound),
        (404, "The specified bucket does not exist.", AccessDenied),
        (403, "broker does not have storage.objects.get access", AccessDenied),
        (401, "Invalid Credentials", StoreUnavailable),
        (400, "User project specified in the request is invalid.", StoreUnavailable),
        (503, "Backend Error", StoreUnavailable),
    ],
)
async def test_so8_what_gcs_answers(monkeypatch, status, message, kind):
    """GCS' own words, of its JSON interface; content answers 404 as plain text."""
    monkeypatch.setattr(gcs_bucket, "_RETRY_TIMEOUT_S", 1.0)
    asked = []

    async def answer(request):
        asked.append(request.path)
        is_content = request.path.startswith("/download/")
        return web.Response(status=status, text=message) if is_content else refusal(status, message)

    async with answering(monkeypatch, answer):
        store = opened("gs://b/")
        # To a 401 the library answers by a login, which emulators have none of.
        text = "cannot be refreshed" if status == 401 else message.rstrip(".")
        for call in (lambda: read_all(store, "j/f"), lambda: store.remove("j/f")):
            with pytest.raises(kind, match=text):
                await call()
        kind = AccessDenied if status == 404 else kind  # it can be of the bucket only
        for call in (lambda: put_bytes(store, "j/f", b"x"), lambda: listing(store, "j/")):
            with pytest.raises(kind, match=text):
                await call()
    # Nothing else is asked, such as for the bucket's own properties.
    assert (len(asked) > 4) == (status == 503)


async def test_a_connection_that_breaks_is_resumed(monkeypatch):
    content = os.urandom(3 << 20)
    begins = []

    async def answer(request):
        begin = request.http_range.start or 0
        begins.append((begin, request.query.get("generation"), request.headers["Accept-Encoding"]))
        headers = {
            "Content-Length": str(len(content) - begin),
            "X-Goog-Generation": "17",
            "X-Goog-Stored-Content-Length": str(len(content)),
        }
        response = web.StreamResponse(status=206 if begin else 200, headers=headers)
        await response.prepare(request)
        await response.write(content[begin : begin + 1_500_000])
        if begin + 1_500_000 < len(content):
            request.transport.close()
        return response

    async with answering(monkeypatch, answer):
        assert await read_all(opened("gs://b/"), "j/f") == content
    assert begins[0] == (0, None, "gzip")
    assert len(begins) > 1
    assert all(begin and generation == "17" for begin, generation, _ in begins[1:])


async def test_an_object_that_is_replaced_while_its_connection_breaks(monkeypatch):
    async def answer(request):
        if "Range" in request.headers:
            return web.Response(status=404, text="No such object: b/j/f")
        headers = {"Content-Length": str(2 << 20), "X-Goog-Generation": "17"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(bytes(1 << 20))
        request.transport.close()
        return response

    async with answering(monkeypatch, answer):
        with pytest.raises(StoreUnavailable, match="replaced or removed after 1048576 bytes"):
            await read_all(opened("gs://b/"), "j/f")


async def test_content_that_is_decompressed_on_the_way_is_refused(monkeypatch):
    """Else as much of it as is stored would be taken for that."""
    stored = gzip.compress(bytes(1000))

    async def answer(request):
        headers = {
            "X-Goog-Generation": "17",
            "X-Goog-Stored-Content-Encoding": "gzip",
            "X-Goog-Stored-Content-Length": str(len(stored)),
        }
        return web.Response(body=bytes(1000), headers=headers)

    async with answering(monkeypatch, answer):
        with pytest.raises(StoreUnavailable, match="stored as gzip, and comes as identity"):
            await read_all(opened("gs://b/"), "j/f")


@pytest.mark.parametrize("length", [1000, PART_BYTES + 1])
async def test_a_cancelled_put_leaves_no_part_of_an_object(monkeypatch, server, bucket, length):
    """The server is reached, and silent, when the caller goes."""
    arrived, goes_on = asyncio.Event(), asyncio.Event()

    async def answer(request):
        arrived.set()
        await goes_on.wait()
        return refusal(403, "late")

    fds = open_files()
    async with answering(monkeypatch, answer):
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(bytes(length))
            store = opened(f"gs://{bucket}/")
            async with asyncio.TaskGroup() as group:
                putting = group.create_task(store.put("j/f", file.fileno(), length))
                await asyncio.wait_for(arrived.wait(), patient(60))
                putting.cancel()
                started = time.monotonic()
            assert putting.cancelled()
            assert time.monotonic() - started < 20  # far less than the silence it would wait for
        goes_on.set()

    async def all_closed():
        return open_files() <= fds + 4 or None

    await eventually(all_closed)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
    assert not await opened(f"gs://{bucket}/").exists("j/f")


async def test_a_slow_reader_holds_no_thread(bucket):
    store = opened(f"gs://{bucket}/")
    await put_bytes(store, "j/f", bytes(1 << 20))
    readers = [store.get("j/f", piece_bytes=1000) for _ in range(40)]  # the pool has 16
    for reader in readers:
        assert len(await anext(reader)) == 1000
    assert await store.exists("j/f")
    for reader in readers:
        await reader.aclose()
    async with aclosing(store.get("j/f")) as pieces:
        assert len(await anext(pieces)) == 1 << 20


async def test_key_that_is_not_a_path_fails_the_listing_by_name(server, bucket):
    """Left out, it would hide that others write to the folders of journals."""
    store = opened(f"gs://{bucket}/")
    await put_bytes(store, "j/f", b"x")
    server.put_object(bucket, "j//g", b"x")
    with pytest.raises(StoreUnavailable, match="j//g"):
        await listing(store, "j/")


@pytest.mark.etcd
@pytest.mark.parametrize(
    "codec", [CompressionCodec.NONE, CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION]
)
async def test_a_journal_persists_and_is_read_back_after_a_restart(cluster, bucket, codec):
    content, bodies = await persist_and_restart(cluster, f"gs://{bucket}/p/", fetch, codec)
    if codec is not CompressionCodec.NONE:
        bodies = [gzip.decompress(body) for body in bodies]
    assert b"".join(bodies) == content
