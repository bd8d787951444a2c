"""HTTP requests that no client should send to a real broker: it answers, stays quiet, and holds little."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct

import pytest

from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.serving import http_server as http_port
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"


@pytest.fixture
async def broker(cluster):
    broker = await cluster.start()
    spec = JournalSpec(
        JOURNAL,
        1,
        fragment=FragmentSpec(
            length=1 << 30,
            codec=CompressionCodec.NONE,
            stores=("file:///",),
            refresh_interval_ns=10**9,
        ),
    )
    await cluster.apply(cluster.stub(broker), spec)
    return broker


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
    code, said = await answer(broker, request("GET /debug/ready HTTP/1.1"))
    assert code == 503
    assert "1 requests are under way" in said
    writer.close()


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
