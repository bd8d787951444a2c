"""Web pages and the servers of a platform: each started as `gazette up` starts it."""

import asyncio
import contextlib
import gzip
import os
import re
import socket
import sys
import threading
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import Child, choose_ports, hidden_address, is_free
from gazette_platform.platform.servers import etcd_component, guard_component, write_configuration
from gazette_platform.platform.web_guard import WebGuard, refusal
from gazette_platform.testing.waiting import eventually, patient, wait_until

PAGE = "http://evil.example"
READY_S = 120


@pytest.fixture
def ports(tmp_path):
    return choose_ports(["one", "two"])


@pytest.fixture
def etcd(tmp_path, ports):
    component = etcd_component(tmp_path, port=ports["one"], peer_port=ports["two"])
    child = Child(
        component.name,
        component.command,
        log=tmp_path / "etcd.log",
        environment=dict(component.environment),
        folder=component.folder,
    )
    try:
        wait_until(component.ready, timeout_s=READY_S)
        yield f"http://127.0.0.1:{ports['one']}"
    finally:
        child.ask_to_stop()
        wait_until(lambda: child.exit_code() is not None, timeout_s=READY_S)


@pytest.mark.etcd
async def test_etcd_takes_nothing_from_web_pages(etcd):
    body = '{"key": "YQ==", "value": "YQ=="}'
    async with aiohttp.ClientSession() as session:
        for path in ("/v3/kv/put", "/v3beta/kv/put", "/v3/kv/range", "/v2/keys/a"):
            async with session.post(
                etcd + path, data=body, headers={"content-type": "text/plain", "origin": PAGE}
            ) as answer:
                assert answer.status == 404, path


async def answer(scope, receive, send):
    """An application that takes everything."""
    if scope["type"] == "lifespan":
        return
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await send({"type": "websocket.close"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})


@pytest.fixture
def guarded():
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(WebGuard(answer), host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/runs", {}, 200),
        ("POST", "/graphql", {}, 200),
        ("GET", "/graphql", {}, 200),
        ("GET", "/runs?a=b", {"host": "localhost:3000"}, 200),
        ("POST", "/graphql", {"host": "localhost:3000", "origin": "http://localhost:3000"}, 200),
        ("GET", "/runs", {"host": "evil.example"}, 403),
        ("POST", "/graphql", {"host": "evil.example", "origin": PAGE}, 403),
        ("POST", "/graphql", {"origin": PAGE}, 403),
        ("POST", "/graphql", {"origin": "null"}, 403),
        ("POST", "/graphql", {"origin": "http://localhost:1"}, 403),
        ("DELETE", "/any", {"origin": PAGE}, 403),
        ("GET", "/graphql?query=mutation{x}", {}, 403),
        ("GET", "/graphql/?query=mutation{x}", {}, 403),
    ],
)
async def test_requests_of_foreign_pages_are_refused(guarded, method, path, headers, status):
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, guarded + path, headers=headers) as found,
    ):
        assert found.status == status
        assert (await found.text() == "served") == (status == 200)


async def test_web_sockets_of_foreign_pages_are_refused(guarded):
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{guarded}/graphql", origin=guarded) as socket:
            assert await socket.receive_str() == "hello"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(f"{guarded}/graphql", origin=PAGE)
        assert refused.value.status == 403


def test_every_refusal_says_why():
    foreign = {"host": "evil.example", "origin": ""}
    ours = {"host": "127.0.0.1:3000", "origin": PAGE}
    assert "does not go by the name 'evil.example'" in refusal("GET", "/", "", **foreign)
    assert f"pages of {PAGE}" in refusal("POST", "/", "", **ours)
    assert refusal("GET", "/", "", **ours) == ""


@contextlib.asynccontextmanager
async def dagster(folder, port):
    """The web server that `gazette up` starts, over definitions of its own; gives its address."""
    pytest.importorskip("dagster_webserver")
    (folder / "few.py").write_text("import dagster\ndefs = dagster.Definitions()\n")
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    address = f"http://127.0.0.1:{port}"
    command = (sys.executable, "-m", "gazette_platform.platform.dagster", "web")
    options = ("--host=127.0.0.1", f"--port={port}", f"--python-file={folder / 'few.py'}")
    environment = {"DAGSTER_HOME": str(folder), "DAGSTER_DISABLE_TELEMETRY": "1"}
    child = Child(
        "dagster", (*command, *options), log=folder / "log", environment=environment, folder=None
    )
    try:
        async with aiohttp.ClientSession() as session:

            async def answers():
                try:
                    async with session.get(f"{address}/server_info") as found:
                        assert found.status == 200
                        return True
                except aiohttp.ClientConnectionError:
                    assert child.exit_code() is None, (folder / "log").read_text()
                    return False

            await eventually(answers, timeout_s=READY_S, poll_s=0.1)
        yield address
    finally:
        child.ask_to_stop()
        await eventually(lambda: child.exit_code() is not None, timeout_s=READY_S)


async def test_dagster_takes_no_mutation_from_web_pages(tmp_path, ports):
    query = '{"query": "{ version }"}'
    async with (
        dagster(tmp_path, ports["one"]) as address,
        aiohttp.ClientSession() as session,
        asyncio.timeout(patient(READY_S)),
    ):
        kind = {"content-type": "application/json"}
        async with session.post(f"{address}/graphql", data=query, headers=kind) as found:
            assert "version" in (await found.json())["data"]
        for headers in ({"origin": PAGE}, {"host": "evil.example"}):
            async with session.post(
                f"{address}/graphql", data=query, headers=kind | headers
            ) as found:
                assert found.status == 403
        async with session.get(f"{address}/graphql?query={{version}}") as found:
            assert found.status == 403


@pytest.mark.filterwarnings("ignore:Using variable_values:DeprecationWarning")  # of gql, by Dagster
async def test_a_reload_fails_when_the_definitions_do_not_load(tmp_path, ports):
    pytest.importorskip("dagster")
    from gazette_platform.sensors.catalog import reload_location

    async with dagster(tmp_path, ports["one"]) as address:
        await asyncio.to_thread(reload_location, address, "few.py")
        (tmp_path / "few.py").write_text("raise RuntimeError('no such thing')\n")
        with pytest.raises(SetupError, match=r"cannot reload few.py: .*UserCodeLoadError"):
            await asyncio.to_thread(reload_location, address, "few.py")
        with pytest.raises(SetupError, match=r"cannot reload nowhere: .*nowhere.* does not exist"):
            await asyncio.to_thread(reload_location, address, "nowhere")


class Upstream:
    """A server that stands where Trino would."""

    def __init__(self):
        self.host, self.port = hidden_address()
        self.seen = []
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0, max_field_size=1 << 20
        )

    async def start(self):
        await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port).start()

    async def handle(self, request):
        self.seen.append(request)
        if request.path == "/echo":
            answer = web.StreamResponse()
            await answer.prepare(request)
            async for piece in request.content.iter_any():
                await answer.write(piece)
            return answer
        if request.path == "/large":
            answer = web.StreamResponse()
            await answer.prepare(request)
            for _ in range(LARGE_BYTES // len(PIECE)):
                await answer.write(PIECE)
            return answer
        if request.path == "/wait":
            self.came.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        if request.path == "/end":
            request.transport.abort()
        if request.path.startswith("/half"):
            answer = web.StreamResponse()
            answer.content_length = 10 if request.path == "/half-of-10" else None
            await answer.prepare(request)
            await answer.write(b"half")
            request.transport.close()
            return answer
        if request.path == "/moved":
            return web.Response(status=303, headers={"location": f"http://{request.host}/ui/"})
        if request.path == "/none":
            return web.Response(status=204)
        answer = web.Response(body=gzip.compress(b"served"), headers={"content-encoding": "gzip"})
        for value in ("a=1", "b=2"):
            answer.headers.add("X-Trino-Set-Session", value)
        answer.headers["Connection"] = "X-Hop"
        answer.headers["X-Hop"] = "of this connection"
        return answer


PIECE = bytes(1 << 20)
LARGE_BYTES = 256 << 20
GROWTH_BYTES_MAX = 32 << 20


@pytest.fixture
async def upstream():
    server = Upstream()
    await server.start()
    yield server
    await server.runner.cleanup()


@pytest.fixture
async def guard(tmp_path, ports, upstream):
    """The guard of Trino, as it is started, before another server; with its address."""
    component = guard_component(port=ports["one"], url=f"http://{upstream.host}:{upstream.port}")
    child = Child(
        component.name,
        component.command,
        log=tmp_path / "guard.log",
        environment={**os.environ, **component.environment},
        folder=component.folder,
    )
    child.address = f"http://127.0.0.1:{ports['one']}"
    child.port = ports["one"]
    try:
        await asyncio.to_thread(wait_until, component.ready)
        yield child
        log = child.log.read_text()
        assert "Traceback" not in log
        assert upstream.host not in log
    finally:
        child.end_group()


@pytest.fixture
async def session():
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


@pytest.mark.parametrize(
    ("method", "path", "headers", "says"),
    [
        ("POST", "/v1/statement", {"origin": PAGE}, f"pages of {PAGE} may not change anything"),
        ("POST", "/v1/statement", {"host": "evil.example"}, "does not go by the name"),
        ("POST", "/v1/statement", {"host": "evil.example:80", "origin": PAGE}, "does not go by"),
        ("POST", "/v1/statement", {"origin": "null"}, "pages of null"),
        ("GET", "/v1/statement/queued/q/y/1", {"host": "evil.example"}, "does not go by"),
        ("GET", "/ui/", {"host": "evil.example"}, "does not go by"),
        ("DELETE", "/v1/query/q", {"origin": PAGE}, "may not change"),
        ("PUT", "/v1/query/q/killed", {"origin": "http://localhost:1"}, "may not change"),
    ],
)
async def test_trino_hears_nothing_of_foreign_pages(
    guard, upstream, session, method, path, headers, says
):
    trino = {"x-trino-user": "page"}
    async with session.request(
        method, guard.address + path, headers=trino | headers, data=b"SELECT 1"
    ) as found:
        assert found.status == 403
        text = await found.text()
    assert says in text
    assert text.count("\n") == 1
    assert upstream.seen == []


async def test_guard_passes_on_what_clients_and_trino_say(guard, upstream, session):
    for host in ("localhost:1234", f"127.0.0.1:{guard.port}"):
        headers = [
            ("host", host),
            ("origin", f"http://{host}"),
            ("x-trino-user", "J\u00fcrgen"),
            ("x-trino-session", "a=1"),
            ("x-trino-session", "b=2"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "of this connection"),
            ("te", "trailers"),
        ]
        url = URL(f"{guard.address}/v1/statement/a%2Fb/../c?x=%20y&x=", encoded=True)
        async with session.post(url, headers=headers, data=b"SELECT 1") as found:
            assert found.status == 200
            assert gzip.decompress(await found.read()) == b"served"
            assert found.headers.getall("X-Trino-Set-Session") == ["a=1", "b=2"]
            assert found.headers["Content-Encoding"] == "gzip"
            assert "X-Hop" not in found.headers
        heard = upstream.seen[-1]
        assert heard.raw_path == "/v1/statement/a%2Fb/../c?x=%20y&x="
        assert heard.headers["Host"] == host
        assert heard.headers["X-Trino-User"] == "J\u00fcrgen"
        assert heard.headers.getall("X-Trino-Session") == ["a=1", "b=2"]
        assert not {"X-Hop", "TE"} & set(heard.headers)
    statement = {"x-trino-prepared-statement": "p=" + "a" * 140_000}
    async with session.get(f"{guard.address}/v1/info", headers=statement) as found:
        assert found.status == 200
    assert upstream.seen[-1].headers["X-Trino-Prepared-Statement"] == statement.popitem()[1]
    async with session.get(f"{guard.address}/moved", allow_redirects=False) as found:
        assert found.status == 303
        assert found.headers["Location"] == f"{guard.address}/ui/"
    async with session.get(f"{guard.address}/none") as found:
        assert (found.status, await found.read()) == (204, b"")
    async with session.head(f"{guard.address}/v1/info") as found:
        assert (found.status, await found.read()) == (200, b"")
        assert int(found.headers["Content-Length"]) > 0


def resident_bytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10


async def test_large_bodies_stream_through_the_guard_both_ways(guard, session):
    async with session.get(f"{guard.address}/echo", data=b"warm") as found:
        assert await found.read() == b"warm"
    before = resident_bytes(guard.id.pid)

    async def pieces():
        for _ in range(LARGE_BYTES // 4 // len(PIECE)):
            yield PIECE

    for path, body, expected in (
        ("/large", None, LARGE_BYTES),
        ("/echo", pieces(), LARGE_BYTES // 4),
    ):
        size = 0
        async with session.post(guard.address + path, data=body) as found:
            async for piece in found.content.iter_any():
                size += len(piece)
        assert size == expected
    assert resident_bytes(guard.id.pid) - before < GROWTH_BYTES_MAX


async def test_reader_that_stops_holds_up_the_server_and_not_the_guard(guard, session):
    async with session.get(f"{guard.address}/echo", data=b"warm") as found:
        assert await found.read() == b"warm"
    before = resident_bytes(guard.id.pid)
    stopped = [await session.get(f"{guard.address}/large") for _ in range(8)]
    # By the end of another, which takes turns with them, they would have come as far.
    async with session.get(f"{guard.address}/large") as found:
        async for _ in found.content.iter_any():
            pass
    for found in stopped:
        found.close()
    assert resident_bytes(guard.id.pid) - before < GROWTH_BYTES_MAX


async def test_guard_says_when_the_server_is_away_or_breaks_off(guard, upstream, session):
    async with session.post(f"{guard.address}/end", data=b"x") as found:
        assert found.status == 502
        assert await found.text() == "trino did not answer: ServerDisconnectedError\n"
    for path in ("/half", "/half-of-10"):
        async with session.get(guard.address + path) as found, asyncio.timeout(patient(30)):
            assert found.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await found.read()
    await upstream.runner.cleanup()
    async with session.get(f"{guard.address}/v1/info") as found:
        assert found.status == 503
        assert await found.text() == "trino cannot be reached: it is starting, or has ended\n"


async def test_clients_that_leave_leave_no_trace(guard, upstream, session):
    async with asyncio.timeout(patient(READY_S)), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(session.get(f"{guard.address}/wait"))
        await upstream.came.wait()
        waiting.cancel()
        await upstream.left.wait()
    for sent in (
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf",
        b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"not HTTP\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * (1 << 20),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", guard.port)
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            await reader.read(10)
        writer.transport.abort()
    async with session.get(f"{guard.address}/v1/info") as found:
        assert found.status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET @{other}/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://{other}/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xfc HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Trino-User: \xfc\r\n\r\n",
        b"CONNECT {other} HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_guard_leads_nowhere_else(guard, upstream, head):
    other = Upstream()
    await other.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", guard.port)
        writer.write(head.replace(b"{other}", f"{other.host}:{other.port}".encode()))
        async with asyncio.timeout(patient(READY_S)):
            assert (await reader.read(12))[9:] in (b"400", b"404")
        writer.transport.abort()
        assert upstream.seen == other.seen == []
    finally:
        await other.runner.cleanup()


async def test_guard_takes_so_many_connections_and_no_more(guard, session):
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            stack.enter_context(socket.create_connection(("127.0.0.1", guard.port)))
        surplus = stack.enter_context(socket.create_connection(("127.0.0.1", guard.port)))
        surplus.settimeout(patient(READY_S))
        assert surplus.recv(1) == b""
    async with asyncio.timeout(patient(READY_S)):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"{guard.address}/v1/info") as found:
                    assert found.status == 200
                    return


async def test_sigterm_ends_the_guard_at_once(guard, session):
    async with session.get(f"{guard.address}/large") as found:
        assert found.status == 200
        guard.ask_to_stop()
        await asyncio.to_thread(wait_until, lambda: guard.exit_code() is not None)
    assert guard.how_it_ended() == "was killed by SIGTERM"


def test_hidden_servers_are_not_where_pages_look():
    found = {hidden_address() for _ in range(20)}
    assert len(found) == 20
    for host, port in found:
        assert host.startswith("127.")
        assert not host.startswith("127.0.")
        assert is_free(port, host)


def test_only_trino_is_reported_where_it_hides(tmp_path):
    etc = tmp_path / "etc"
    write_configuration(etc, host="127.3.2.1", port=12345, data_dir=tmp_path, metastore="")
    having = [
        path.name for path in etc.rglob("*.*") if path.is_file() and "127.3" in path.read_text()
    ]
    assert having == ["config.properties"]
    assert etc.stat().st_mode & 0o077 == 0
    component = guard_component(port=1, url="http://127.3.2.1:12345")
    assert "127.3" not in " ".join(component.command)
