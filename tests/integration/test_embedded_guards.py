"""Web pages and the servers of a platform: each started as `gazette up` starts it."""

import asyncio
import sys
import threading
import time

import aiohttp
import pytest

from gazette_platform.embedded.etcd import etcd_component
from gazette_platform.embedded.ports import choose_ports
from gazette_platform.embedded.process import Child
from gazette_platform.embedded.web_guard import WebGuard, refusal

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
        wait_until(component.ready)
        yield f"http://127.0.0.1:{ports['one']}"
    finally:
        child.ask_to_stop()
        wait_until(lambda: child.exit_code() is not None)


def wait_until(condition):
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


@pytest.mark.slow
async def test_dagster_takes_no_mutation_from_web_pages(tmp_path, ports):
    """The program that `gazette up` starts, over definitions of its own."""
    pytest.importorskip("dagster_webserver")
    (tmp_path / "few.py").write_text("import dagster\ndefs = dagster.Definitions()\n")
    address = f"http://127.0.0.1:{ports['one']}"
    command = (sys.executable, "-m", "gazette_platform.embedded.dagster_main")
    options = ("--host=127.0.0.1", f"--port={ports['one']}", f"--python-file={tmp_path / 'few.py'}")
    environment = {"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "1"}
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    child = Child(
        "dagster", (*command, *options), log=tmp_path / "log", environment=environment, folder=None
    )
    query = '{"query": "{ version }"}'
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(READY_S):
            while True:
                try:
                    async with session.get(f"{address}/server_info") as found:
                        assert found.status == 200
                        break
                except aiohttp.ClientConnectionError:
                    assert child.exit_code() is None, (tmp_path / "log").read_text()
                    await asyncio.sleep(0.1)
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
    finally:
        child.ask_to_stop()
        await asyncio.to_thread(wait_until, lambda: child.exit_code() is not None)
