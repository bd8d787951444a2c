"""`/v1/`: what an answer says of a call that fails, before its first result and behind some."""

from __future__ import annotations

import types

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gazette_platform.broker.api.gateway import RestGateway
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import OpenReads, Origins
from gazette_platform.serving.interface import Code, RpcFailed


@pytest.fixture
async def ask():
    """Answers of a service that sends so many results, and then fails."""
    calls = types.SimpleNamespace(results=0)

    async def serve(raw, send, metadata):
        for number in range(calls.results):
            await send(pb.ReadResponse(offset=number).SerializeToString())
        raise RpcFailed(Code.UNAVAILABLE, "the broker stops")

    application = web.Application()
    service = types.SimpleNamespace(read=serve, list_journals=serve)
    RestGateway(
        service, origins=Origins(()), open_reads=OpenReads(9, "flag", has_keys=False)
    ).add_to(application.router)
    async with TestClient(TestServer(application)) as client:

        async def ask(results):
            calls.results = results
            async with client.post("/v1/journals/read", json={"journal": "a/one"}) as response:
                return response.status, [
                    orjson.loads(line) for line in (await response.read()).splitlines()
                ]

        yield ask


ERROR = {
    "error": {
        "grpcCode": 14,
        "httpCode": 503,
        "message": "the broker stops",
        "httpStatus": "Service Unavailable",
        "details": [],
    }
}


async def test_a_call_that_fails_at_once_is_its_status(ask):
    assert await ask(0) == (503, [ERROR])


@pytest.mark.parametrize("count", [1, 3])
async def test_an_error_behind_results_is_the_last_line(ask, count):
    """Else what came would be taken for all there is."""
    status, lines = await ask(count)
    assert status == 200
    assert [line["result"]["offset"] for line in lines[:-1]] == [str(n) for n in range(count)]
    assert lines[-1] == ERROR
