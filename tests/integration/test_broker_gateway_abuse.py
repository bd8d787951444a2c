"""HTTP requests that no client should send to a real broker: it answers, stays quiet, and holds little."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import socket
import struct

import pytest
from journal_specs import journal_spec

from gazette_platform.broker.api import gateway
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.serving import http_server as http_port
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"


@pytest.fixture
async def broker(cluster):
    broker = await cluster.start()
    await cluster.apply(cluster.stub(broker), spec())
    return broker


def spec():
    return journal_spec(JOURNAL, length=1 << 30)


async def answer(broker, raw):
    """Status, and all that a connection says until it ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(raw)
    async with asyncio.timeout(patient(20)):
        said = await reader.read()
    writer.close()
    return int(said.split(b" ", 2)[1]) if said else 0, said.decode("latin-1")


def request(line, *headers):
    lines = (line.encode(), b"Host: localhost", *headers, b"Connection: close", b"", b"")
    return b"\r\n".join(lines)


ODD = [
    request("GET / HTTP/1.1"),
    request("GET /%00 HTTP/1.1"),
    request("GET /%ff HTTP/1.1"),
    request("GET /a/%ed%b3%a9 HTTP/1.1"),
    request("GET /a/\udce9?\udce9=1 HTTP/1.1".replace("\udce9", "é")),
    request("GET http://[::1/ HTTP/1.1"),
    request("GET http://evil.example/a/journal HTTP/1.1"),
    request("GET * HTTP/1.1"),
    request("OPTIONS * HTTP/1.1"),
    request("CONNECT a:80 HTTP/1.1"),
    request("POST /a/journal HTTP/1.1"),
    request("GET /a/journal?offset HTTP/1.1"),
    request("GET /a/journal?a=b&a=c HTTP/1.1"),
    request("GET /a/journal HTTP/1.1", b"Authorization: Bearer \xe9.\xe9.\xe9"),
    request("GET /a/journal HTTP/1.1", b"Origin: \xff"),
    request("PUT /a/journal HTTP/1.1", b"Origin: http://["),
    request("GET /a/none HTTP/1.1", b"Origin: http://["),
    request(
        "GET /a/journal HTTP/1.1", b"Accept: text/event-stream", b"Last-Event-ID: " + b"9" * 5000
    ),
    request("GET /a/journal HTTP/9.9"),
    request("PUT /a/journal HTTP/1.1", b"Content-Length: -1"),
    request("PUT /a/journal HTTP/1.1", b"Content-Length: " + b"9" * 5000),
    request("PUT /a/journal HTTP/1.1", b"Content-Length: 1", b"Transfer-Encoding: chunked"),
    request("PUT /a/journal HTTP/1.1", b"Transfer-Encoding: chunked") + b"zz\r\n",
    request("PUT /a/journal HTTP/1.1", b"Transfer-Encoding: chunked") + b"f" * 5000 + b"\r\n",
    request("GET /a/journal HTTP/1.1", b"X: " + b"y" * 70_000),
    request("GET /a/journal HTTP/1.1", *[b"A: b"] * 3_000),
    request("GET /a/journal HTTP/1.1", b"A\0: b"),
    request("GET /" + "x" * 70_000 + " HTTP/1.1"),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\0" * 1000 + b"\r\n\r\n",
    b"\r\n" * 100 + request("GET /none HTTP/1.1"),
]


@pytest.mark.parametrize("raw", ODD, ids=range(len(ODD)))
async def test_odd_requests_are_refused_in_silence(broker, raw, caplog):
    caplog.set_level(logging.INFO)
    caplog.clear()
    code, said = await answer(broker, raw)
    assert code == 0 or 400 <= code < 500, said
    assert "Traceback" not in said
    assert broker.faults.reported == 0
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []
    code, _ = await answer(broker, request("GET /debug/ready HTTP/1.1"))
    assert code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/debug/ready"), ("POST", "/v1/journals/list"), ("PUT", "/a/journal")],
)
async def test_those_who_ask_to_go_on_and_leave_leave_no_trace(broker, caplog, method, path):
    raw = request(f"{method} {path} HTTP/1.1", b"Expect: 100-continue", b"Content-Length: 10")
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", broker.http_port)) as one:
            # The connection is reset, not ended, while the broker is about to answer.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.sendall(raw)
    assert (await answer(broker, request("GET /debug/ready HTTP/1.1")))[0] == 200
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_readers_that_leave_leave_no_trace(broker, cluster, caplog):
    stub = cluster.stub(broker)
    await append(stub, JOURNAL, *[b"x\n" * (1 << 18)] * 16)
    caplog.clear()
    for accept in (b"Accept: */*", b"Accept: text/event-stream"):
        for path in (JOURNAL, f"{JOURNAL}?block=true"):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
            writer.write(request(f"GET /{path} HTTP/1.1", accept))
            assert await reader.readexactly(10_000)
            writer.transport.abort()
    await eventually(lambda: not broker.service._read._sending_bytes)
    assert await read_all(stub, JOURNAL) == b"x\n" * (1 << 22)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("accept", [b"Accept: */*", b"Accept: text/event-stream"])
async def test_a_reader_that_takes_nothing_does_not_delay_a_drain(broker, cluster, accept):
    await append(cluster.stub(broker), JOURNAL, *[b"0123456789abcde\n" * (1 << 15)] * 40)
    _, writer = await asyncio.open_connection("127.0.0.1", broker.http_port, limit=1024)
    writer.write(request(f"GET /{JOURNAL}?block=true HTTP/1.1", accept))
    await eventually(lambda: broker.service._read._sending_bytes > 0)
    async with asyncio.timeout(patient(5)):
        await broker.drain()
    writer.close()


# ------------------------------------------------------------------------- foreign pages
async def test_foreign_name_that_leads_here_is_refused(broker):
    raw = f"GET /{JOURNAL} HTTP/1.1\r\nHost: evil.example:8081\r\nConnection: close\r\n\r\n"
    code, said = await answer(broker, raw.encode())
    assert code == 421
    assert "does not go by the name 'evil.example'" in said
    for path in ("/debug/metrics", "/debug/ready"):
        code, _ = await answer(broker, raw.replace(f"/{JOURNAL}", path).encode())
        assert code == 421


async def test_a_page_of_another_origin_appends_nothing(broker, cluster):
    headers = (b"Origin: http://evil.example", b"Content-Length: 3")
    code, said = await answer(broker, request(f"PUT /{JOURNAL} HTTP/1.1", *headers) + b"bad")
    assert code == 403
    assert "--broker.allow-origin" in said
    assert await read_all(cluster.stub(broker), JOURNAL) == b""


# ---------------------------------------------------------------------------- who stops
async def ended(reader):
    """Wait until the other side closed a connection."""
    async with asyncio.timeout(patient(20)):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


async def test_half_sent_headers_do_not_stay(broker, monkeypatch):
    monkeypatch.setattr(http_port, "_IDLE_S", 0.3)

    async def send(part):
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
        writer.write(part)
        await ended(reader)
        writer.close()

    parts = (b"", b"GET / HT", f"GET /{JOURNAL} HTTP/1.1\r\nHost: lo".encode())
    await asyncio.gather(*map(send, parts))


async def test_a_tail_is_not_idle(broker, cluster, monkeypatch):
    monkeypatch.setattr(http_port, "_IDLE_S", 0.3)
    monkeypatch.setattr(http_port, "_SWEEP_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(request(f"GET /{JOURNAL}?block=true HTTP/1.1"))
    other, idle = await asyncio.open_connection("127.0.0.1", broker.http_port)
    await ended(other)  # which came later
    await append(cluster.stub(broker), JOURNAL, b"content")
    async with asyncio.timeout(patient(20)):
        assert b"content" in await reader.readuntil(b"content")
    writer.close()
    idle.close()


async def test_more_connections_than_are_served_make_room(broker, monkeypatch):
    monkeypatch.setattr(http_port, "_CONNECTIONS_MAX", 3)
    made = [await asyncio.open_connection("127.0.0.1", broker.http_port) for _ in range(10)]
    await asyncio.gather(*(ended(reader) for reader, _ in made[:7]))
    code, _ = await answer(broker, request("GET /debug/ready HTTP/1.1"))
    assert code == 200
    for _, writer in made:
        writer.close()


async def test_more_requests_than_are_served_are_reported_so(broker, monkeypatch):
    monkeypatch.setattr(http_port, "_REQUESTS_MAX", 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(request(f"GET /{JOURNAL}?block=true HTTP/1.1"))
    await reader.readuntil(b"\r\n\r\n")
    code, said = await answer(broker, request(f"GET /{JOURNAL} HTTP/1.1"))
    assert code == 503
    assert "1 requests are under way" in said
    await answers_meanwhile(broker)
    writer.close()


async def answers_meanwhile(broker):
    """Check what probes and Prometheus ask for."""
    for path, text in (("/debug/ready", "ready"), ("/debug/metrics", "gazette_")):
        code, said = await answer(broker, request(f"GET {path} HTTP/1.1"))
        assert code == 200
        assert text in said


async def begun(broker, raw):
    """Status of a request whose answer may go on, and what ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(raw)
    async with asyncio.timeout(patient(20)):
        head = await reader.readuntil(b"\r\n\r\n")
        said = b"" if head.startswith(b"HTTP/1.1 2") else await reader.read()
    return int(head.split(b" ", 2)[1]), said.decode(), writer


async def test_tails_of_one_address_leave_room_for_all_else(broker, cluster):
    """More tails than requests are served at a time."""
    tail = request(f"GET /{JOURNAL}?block=true HTTP/1.1", b"Accept: text/event-stream")
    made = [await begun(broker, tail) for _ in range(520)]
    assert [code for code, _, _ in made] == [200] * 64 + [429] * 456
    refused = "the address 127.0.0.1 has 64 live tails open at this broker"
    assert all(refused in said for code, said, _ in made if code == 429)
    await answers_meanwhile(broker)
    for path in ("/console/api/journals", f"/{JOURNAL}?offset=-1"):
        code, _ = await answer(broker, request(f"GET {path} HTTP/1.1"))
        assert code in {200, 416}
    code, _, writer = await begun(broker, request(f"PUT /{JOURNAL} HTTP/1.1", b"Content-Length: 0"))
    assert code == 204
    for _, _, one in [*made, (0, "", writer)]:
        one.close()

    async def is_free():
        code, _, writer = await begun(broker, tail)
        writer.close()
        return code == 200

    await eventually(is_free)


async def test_tails_are_counted_by_token_where_tokens_are_verified(cluster):
    key = base64.b64encode(b"a key of 32 bytes, or more or so").decode()
    broker = await cluster.start(auth_keys=key, max_http_tails=2)
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=key)) as client:
        await client.apply([JournalChange(spec())])
        await client.append(JOURNAL, b"content")
        now = SystemClock().now().timestamp()
        tokens = [
            KeyRing(key).sign(Claims(Capability.READ | Capability.LIST), now=now, lifetime_s=each)
            for each in (600, 700)
        ]
        made = []
        for token in (*tokens, *tokens, *tokens):
            bearer = f"Authorization: Bearer {token}".encode()
            made.append(await begun(broker, request(f"GET /{JOURNAL}?block=1 HTTP/1.1", bearer)))
        assert [code for code, _, _ in made] == [206, 206, 206, 206, 429, 429]
        assert "this token has 2 live tails open at this broker" in made[4][1]
        for _, _, writer in made:
            writer.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("list", b'{"watch": true}'),
        ("read", b'{"journal": "a/journal", "block": true}'),
    ],
)
async def test_watches_and_blocking_reads_of_rest_are_tails(cluster, broker, path, body):
    tail = request(f"GET /{JOURNAL}?block=true HTTP/1.1")
    made = [await begun(broker, tail) for _ in range(64)]
    post = request(f"POST /v1/journals/{path} HTTP/1.1", b"Content-Length: %d" % len(body))
    code, said, writer = await begun(broker, post + body)
    assert code == 429
    assert "live tails" in said
    for _, _, one in [*made, (0, "", writer)]:
        one.close()


async def test_reads_leave_room_for_other_requests(broker, monkeypatch):
    monkeypatch.setattr(http_port, "_READS_MAX", 1)
    tail = request(f"GET /{JOURNAL}?block=true HTTP/1.1")
    _, _, writer = await begun(broker, tail)
    code, said, other = await begun(broker, tail)
    assert code == 429
    assert "1 reads are under way" in said
    for one in (writer, other):
        one.close()


@pytest.mark.parametrize("accept", [b"Accept: */*", b"Accept: text/event-stream"])
async def test_a_reader_that_takes_nothing_is_left(broker, cluster, monkeypatch, accept):
    monkeypatch.setattr(http_port, "_STALL_S", 0.3)
    await append(cluster.stub(broker), JOURNAL, *[b"0123456789abcde\n" * (1 << 15)] * 40)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port, limit=1024)
    writer.write(request(f"GET /{JOURNAL} HTTP/1.1", accept))
    reads = broker.service._read
    await eventually(lambda: reads._sending_bytes > 0)
    await eventually(lambda: reads._sending_bytes == 0)
    await ended(reader)
    writer.close()


async def test_a_reader_that_does_not_take_the_last_line_is_left(broker, cluster, monkeypatch):
    """A line without an end is sent last, as one event. Here it is longer than what the kernel holds."""
    monkeypatch.setattr(http_port, "_STALL_S", 0.3)
    monkeypatch.setattr(http_port, "_READS_MAX", 1)
    monkeypatch.setattr(gateway, "_LINE_BYTES_MAX", 1 << 25)
    await append(cluster.stub(broker), JOURNAL, *[b"0123456789abcdef" * (1 << 15)] * 32)
    events = request(f"GET /{JOURNAL} HTTP/1.1", b"Accept: text/event-stream")
    code, _, writer = await begun(broker, events)
    assert code == 200
    writer.transport.pause_reading()

    code, _, other = await begun(broker, events)
    assert code == 429
    other.close()

    async def has_room():
        code, _, other = await begun(broker, events)
        other.close()
        return code == 200

    await eventually(has_room)
    writer.close()
