"""The HTTP gateway of a real broker: Gazette's cases H1, H2, H5 and H6, and where we depart."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib

import aiohttp
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange, JournalFlag, LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.local import calls_begun
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
READ_ONLY = "a/read-only"
LEAVING = b"event: close\ndata: this broker is leaving\n\n"
ENDLESS = "bytes {}-9223372036854775807/9223372036854775807"
KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()


def spec(name, flags=JournalFlag.NOT_SPECIFIED):
    return journal_spec(name, flags=flags)


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        specs = [spec(JOURNAL), spec(READ_ONLY, JournalFlag.O_RDONLY)]
        await client.apply([JournalChange(s) for s in specs])
        await client.append(JOURNAL, b"")
        yield client


@pytest.fixture
async def http(broker):
    base = f"http://127.0.0.1:{broker.http_port}"
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(base, timeout=timeout) as session:
        yield session


async def raw_request(broker, *lines, body=b""):
    """All that a connection says until it ends; trailers are beyond aiohttp's client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(
        "\r\n".join((*lines, "Host: localhost", "Connection: close", "", "")).encode() + body
    )
    async with asyncio.timeout(patient(20)):
        answer = await reader.read()
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return head.decode(), rest


# --------------------------------------------------------------------------------------- PUT
async def test_h6_put_appends_its_body_as_one_span(client, http):
    content = b"some content\n" * 50_000
    async with http.put(f"/{JOURNAL}", data=content) as response:
        assert response.status == 204
        assert response.headers["X-Commit-Begin"] == "0"
        assert response.headers["X-Commit-End"] == str(len(content))
        assert response.headers["X-Write-Head"] == str(len(content))
        sum_ = hashlib.sha1(content).hexdigest()
        assert response.headers["X-Commit-SHA1-Sum"] == sum_
        assert response.headers["X-Route-Token"].startswith(
            'members:<zone:"local" suffix:"broker-0"'
        )
        assert "Location" not in response.headers
    async with http.put(f"/{JOURNAL}", data=b"more") as response:
        assert response.headers["X-Commit-Begin"] == str(len(content))
    assert await client.read(JOURNAL).read() == content + b"more"


async def test_h6_put_appends_a_compressed_body_as_it_is(client, http):
    content = gzip.compress(b"content")
    async with http.put(
        f"/{JOURNAL}", data=content, headers={"Content-Encoding": "gzip"}
    ) as response:
        assert response.headers["X-Write-Head"] == str(len(content))
    assert await client.read(JOURNAL).read() == content


async def test_h6_put_takes_a_chunked_body(client, http):
    async def pieces():
        for number in range(100):
            yield b"%d\n" % number

    async with http.put(f"/{JOURNAL}", data=pieces()) as response:
        assert response.status == 204
    assert (await client.read(JOURNAL).read()).split() == [b"%d" % n for n in range(100)]


async def test_h6_a_put_that_breaks_off_is_rolled_back(client, broker):
    _, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(
        f"PUT /{JOURNAL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
    )
    writer.write(b"a" * 50)
    begun = calls_begun(broker, "Append")
    await writer.drain()
    await eventually(lambda: calls_begun(broker, "Append") > begun)
    writer.transport.abort()
    await client.append(JOURNAL, b"whole")
    assert await client.read(JOURNAL).read() == b"whole"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/no/such/journal", 404, "no/such/journal: JOURNAL_NOT_FOUND"),
        (f"/{READ_ONLY}", 403, "NOT_ALLOWED"),
        ("/a", 400, "Journal: "),
        (f"/{JOURNAL}?offset=1", 400, 'schema: invalid path "offset"'),
    ],
)
async def test_h2_a_put_that_cannot_be_is_refused(client, http, path, status, text):
    async with http.put(path, data=b"content") as response:
        assert response.status == status
        assert text in await response.text()


# --------------------------------------------------------------------------------- GET, HEAD
async def test_h5_get_gives_content_and_says_why_it_ended(client, broker, http):
    await client.append(JOURNAL, b"some content")
    async with http.get(f"/{JOURNAL}?offset=5") as response:
        assert response.status == 206
        assert response.headers["Content-Range"] == ENDLESS.format(5)
        assert response.headers["X-Write-Head"] == "12"
        assert response.headers["X-Fragment-Name"].startswith("0000000000000000-000000000000000c")
        assert response.headers["Trailer"] == "X-Close-Error"
        assert "Location" not in response.headers
        assert await response.read() == b"content"
    head, rest = await raw_request(broker, f"GET /{JOURNAL} HTTP/1.1")
    assert head.startswith("HTTP/1.1 206 ")
    assert rest == b"c\r\nsome content\r\n0\r\nX-Close-Error: OFFSET_NOT_YET_AVAILABLE\r\n\r\n"


async def test_h5_a_broker_that_leaves_says_so_behind_the_content(client, broker):
    await client.append(JOURNAL, b"some content")
    reading = asyncio.ensure_future(  # noqa: TID251  awaited below
        raw_request(broker, f"GET /{JOURNAL}?block=true HTTP/1.1")
    )
    await eventually(lambda: calls_begun(broker, "Read"))
    assert await client.read(JOURNAL).read() == b"some content"  # the next one has been answered
    assert not reading.done()
    await broker.drain()
    _, rest = await reading
    assert rest == b"c\r\nsome content\r\n0\r\nX-Close-Error: broker terminated RPC\r\n\r\n"


@pytest.mark.parametrize("error", [None, RpcFailed(Code.UNAVAILABLE, "a peer left")])
async def test_a_get_that_ends_before_its_content_is_read_again(
    client, broker, http, monkeypatch, error
):
    await client.append(JOURNAL, b"content")
    read, ended = broker.service.read, []

    async def ending(raw, send, metadata):
        if not pb.ReadRequest.FromString(raw).metadata_only and not ended:
            ended.append(raw)  # as when the replica closes, which ends a read in order
            if error is not None:
                raise error
            return
        await read(raw, send, metadata)

    monkeypatch.setattr(broker.service, "read", ending)
    async with http.get(f"/{JOURNAL}?offset=0") as response:
        assert response.status == 206
        assert await response.read() == b"content"
    assert ended


async def test_head_gives_the_headers_alone(client, http):
    await client.append(JOURNAL, b"some content")
    async with http.head(f"/{JOURNAL}?offset=5") as response:
        assert response.status == 206
        assert response.headers["Content-Range"] == ENDLESS.format(5)
        assert response.headers["X-Write-Head"] == "12"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/no/such/journal", 404, "no/such/journal: JOURNAL_NOT_FOUND"),
        (f"/{JOURNAL}?offset=13", 416, "OFFSET_NOT_YET_AVAILABLE"),
        (f"/{JOURNAL}?offset=-1", 416, "OFFSET_NOT_YET_AVAILABLE"),
        (f"/{JOURNAL}?offset=-2", 400, "invalid Offset (-2; expected >= -1)"),
        (f"/{JOURNAL}?offset=x", 400, 'schema: error converting value for "offset"'),
        (f"/{JOURNAL}?block=x", 400, 'schema: error converting value for "block"'),
        (f"/{JOURNAL}?extra=1", 400, 'schema: invalid path "extra"'),
        ("//a/journal", 400, "Journal: "),
        ("/a/../journal", 400, "Journal: "),
        ("/", 400, "Journal: "),
    ],
)
async def test_h1_a_get_that_cannot_be_is_refused(client, broker, path, status, text):
    await client.append(JOURNAL, b"some content")
    head, rest = await raw_request(broker, f"GET {path} HTTP/1.1")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert text in rest.decode()


async def test_416_says_where_the_head_is(client, http):
    await client.append(JOURNAL, b"some content")
    async with http.get(f"/{JOURNAL}?offset=100") as response:
        assert response.status == 416
        assert response.headers["X-Write-Head"] == "12"
        assert response.headers["Content-Range"] == "bytes */12"


# ------------------------------------------------------------------------------- live tails
async def test_a_blocking_get_answers_at_once_and_streams_what_comes(client, http):
    await client.append(JOURNAL, b"before")
    async with http.get(f"/{JOURNAL}?offset=-1&block=true") as response:
        assert response.status == 206
        assert response.headers["Content-Range"] == ENDLESS.format(6)
        for piece in (b"first", b"second"):
            await client.append(JOURNAL, piece)
            assert await response.content.readexactly(len(piece)) == piece


async def test_a_tail_ends_in_order_with_its_broker(client, broker, http):
    await client.append(JOURNAL, b"content")
    async with http.get(f"/{JOURNAL}?block=true") as response:
        assert await response.content.readexactly(7) == b"content"
        draining = asyncio.get_running_loop().create_task(broker.drain())
        assert await response.content.read() == b""
        await draining


@pytest.mark.parametrize("others", [0, 1])
async def test_events_end_with_their_broker_and_do_not_delay_it(cluster, others):
    """Alone, or while its journal moves to another broker."""
    leaving = await cluster.start()
    async with AsyncClient(ClientConfig(address=leaving.endpoint)) as client:
        await client.apply([JournalChange(spec(JOURNAL))])
        await client.append(JOURNAL, b"one\n")
    for _ in range(others):
        await cluster.start()
    base, accept = f"http://127.0.0.1:{leaving.http_port}", {"Accept": "text/event-stream"}
    async with (
        aiohttp.ClientSession(base) as http,
        http.get(f"/{JOURNAL}?block=true", headers=accept) as response,
        http.get(f"/{JOURNAL}?offset=-1&block=true", headers=accept) as at_head,
    ):
        await response.content.readuntil(b"data: one\n\n")
        draining = asyncio.get_running_loop().create_task(leaving.drain())
        async with asyncio.timeout(patient(10)):
            assert await response.content.read() == LEAVING
            assert (await at_head.content.read()).endswith(LEAVING)
            await draining


async def test_events_are_lines_and_resume_where_they_broke_off(client, http):
    accept = {"Accept": "text/event-stream"}
    await client.append(JOURNAL, b"one\ntwo\n")
    async with http.get(f"/{JOURNAL}?block=true", headers=accept) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["X-Write-Head"] == "8"
        opening = b"retry: 1000\n\nid: 4\ndata: one\n\nid: 8\ndata: two\n\n"
        assert await response.content.readexactly(len(opening)) == opening
        await client.append(JOURNAL, b"three\nfo")
        await client.append(JOURNAL, b"ur\n")
        more = b"id: 14\ndata: three\n\nid: 19\ndata: four\n\n"
        assert await response.content.readexactly(len(more)) == more
    resume = accept | {"Last-Event-ID": "14"}
    async with http.get(f"/{JOURNAL}", headers=resume) as response:
        assert await response.text() == (
            "retry: 1000\n\nid: 19\ndata: four\n\nevent: close\ndata: OFFSET_NOT_YET_AVAILABLE\n\n"
        )
    async with http.get(f"/{JOURNAL}", headers=accept | {"Last-Event-ID": "x"}) as response:
        assert response.status == 400


async def test_a_quiet_event_stream_is_kept_alive(client, http, monkeypatch):
    monkeypatch.setattr("gazette_platform.broker.api.gateway._KEEPALIVE_S", 0.05)
    headers = {"Accept": "text/event-stream"}
    async with http.get(f"/{JOURNAL}?block=true", headers=headers) as response:
        expected = b"retry: 1000\n\n:\n\n:\n\n"
        assert await response.content.readexactly(len(expected)) == expected


# ------------------------------------------------------------------------------ who may call
@pytest.fixture
async def guarded(cluster):
    return await cluster.start(auth_keys=KEY)


def bearer(capability, selector="", keys=KEY):
    claims = Claims(capability, LabelSelector.parse(selector))
    now = SystemClock().now().timestamp()
    return {"Authorization": f"Bearer {KeyRing(keys).sign(claims, now=now, lifetime_s=60)}"}


async def test_the_gateway_verifies_its_caller(guarded):
    base = f"http://127.0.0.1:{guarded.http_port}"
    config = ClientConfig(address=guarded.endpoint, auth_keys=KEY)
    async with AsyncClient(config) as client, aiohttp.ClientSession(base) as http:
        await client.apply([JournalChange(spec(JOURNAL))])
        await client.append(JOURNAL, b"content")

        async def status(method, headers):
            async with http.request(method, f"/{JOURNAL}", headers=headers) as response:
                if response.status == 401:
                    assert response.headers["WWW-Authenticate"] == "Bearer"
                return response.status

        other = base64.b64encode(b"another key").decode()
        for method, capability in (("GET", Capability.READ), ("PUT", Capability.APPEND)):
            assert await status(method, {}) == 401
            assert await status(method, {"Authorization": "Basic x"}) == 401
            assert await status(method, bearer(capability, keys=other)) == 401
            assert await status(method, bearer(Capability.LIST)) == 403
            assert await status(method, bearer(capability, "name=another")) == 404
            assert await status(method, bearer(capability, f"name={JOURNAL}")) in {204, 206}
        async with http.get("/debug/ready") as response:
            assert response.status == 200


# ------------------------------------------------------------------ other origins, diagnostics
async def test_pages_of_allowed_origins_may_read(cluster):
    broker = await cluster.start(allow_origin=("https://console.example",))
    base = f"http://127.0.0.1:{broker.http_port}"
    async with aiohttp.ClientSession(base) as http:
        ours, theirs = {"Origin": "https://console.example"}, {"Origin": "https://other.example"}
        async with http.get("/no/such", headers=ours) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "https://console.example"
        async with http.get("/no/such", headers=theirs) as response:
            assert "Access-Control-Allow-Origin" not in response.headers
        wanted = ours | {"Access-Control-Request-Headers": "Authorization"}
        async with http.options("/no/such", headers=wanted) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Methods"] == "GET, HEAD, PUT"
            assert response.headers["Access-Control-Allow-Headers"] == "Authorization"
            assert await response.text() == ""


async def test_diagnostics_may_move_to_a_port_of_their_own(cluster):
    broker = await cluster.start(debug_private=True, debug_port=0)
    async with aiohttp.ClientSession() as http:
        for path in ("/debug/ready", "/debug/metrics"):
            async with http.get(f"http://127.0.0.1:{broker.debug_port}{path}") as response:
                assert response.status == 200
            async with http.get(f"http://127.0.0.1:{broker.http_port}{path}") as response:
                assert response.status == 404
        async with http.get(f"http://127.0.0.1:{broker.debug_port}/a/journal") as response:
            assert response.status == 404
