"""Our HTTP/2 with the gRPC libraries of other languages: clients of our server, and servers of our channel."""

from __future__ import annotations

import asyncio

import pytest
from interop_bench import (
    CHECKS,
    CoreServer,
    GoServer,
    OurServer,
    Security,
    go_program,
    java_program,
    line_of,
    python_program,
    running,
)

from gazette_platform.testing.waiting import patient

OTHERS = ["grpc-core-aio", "grpc-core-sync", "grpc-go", "grpc-java"]
PAIRS = [*((client, "ours") for client in OTHERS), ("ours", "grpc-core"), ("ours", "grpc-go")]
pytestmark = [
    pytest.mark.parametrize(("client", "server"), PAIRS, ids=map(" to ".join, PAIRS)),
    pytest.mark.timeout(patient(240)),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Command of each program, made when it is first needed."""
    made = {}

    def program(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("program")
            if name == "grpc-go":
                made[name] = go_program(folder)
            elif name == "grpc-java":
                made[name] = java_program(folder)
            else:
                made[name] = python_program(name.removeprefix("grpc-core-"))
        return made[name]

    return program


@pytest.fixture
async def start(programs, tmp_path, client, server):
    """Start the server, and the client with a word. Returns: both."""
    errors = tmp_path / "client.log"
    command = await asyncio.to_thread(programs, client)
    if server == "grpc-go":
        GoServer.command = await asyncio.to_thread(programs, server)
    kind = {"ours": OurServer, "grpc-core": CoreServer, "grpc-go": GoServer}[server]
    scopes = []

    async def start(security, word):
        served = kind(security, tmp_path)
        scopes.append(served)
        await served.start()
        address = ["-address", f"127.0.0.1:{served.port}"]
        scopes.append(running([*command, *address, *security.client_options(), word], errors))
        return served, await scopes[-1].__aenter__()

    async with asyncio.timeout(patient(120)):
        yield start
    for scope in reversed(scopes):
        await scope.__aexit__(None, None, None)
    said = errors.read_text()
    assert "Exception" not in said, said


@pytest.mark.parametrize("kind", ["plain", "tls", "mutual"])
async def test_calls_of_all_kinds_behave_alike(start, tmp_path, client, kind):
    _, process = await start(Security.make(tmp_path, kind), "checks")
    problems = {}
    while line := await line_of(process):
        problems[line["check"]] = line["problem"]
    assert not any(problems.values()), problems
    expected = [name for name in CHECKS if (client, name) != ("ours", "compressed")]
    assert list(problems) == expected


async def test_server_that_leaves_costs_no_call(start, tmp_path, client):
    first, process = await start(Security.make(tmp_path, "plain"), "drain")
    assert await line_of(process) == {"event": "waiting"}
    await first.successor()
    assert await line_of(process) == {"event": "moved"}
    first.open_gate()
    assert await line_of(process) == {"check": "drain", "problem": ""}
    await first.leaving
