"""`/v1/` of a real broker: List and Read as JSON."""

from __future__ import annotations

import asyncio
import base64

import aiohttp
import orjson
import pytest
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.labels import LabelSelector
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()


def spec(name):
    return journal_spec(name, labels={"env": "test"})


@pytest.fixture
async def broker(cluster):
    return await cluster.start()


@pytest.fixture
async def client(broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([JournalChange(spec(name)) for name in ("a/one", "b/two")])
        await client.append("a/one", b"content")
        yield client


@pytest.fixture
async def http(broker):
    base = f"http://127.0.0.1:{broker.http_port}"
    timeout = aiohttp.ClientTimeout(total=40)
    async with aiohttp.ClientSession(base, timeout=timeout) as session:
        yield session


async def results(response):
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/json"
    return [orjson.loads(line)["result"] for line in (await response.read()).splitlines()]


async def test_journals_are_listed_by_a_selector(client, http, broker):
    selector = {"include": {"labels": [{"name": "name", "value": "a/", "prefix": True}]}}
    async with http.post("/v1/journals/list", json={"selector": selector}) as response:
        (listing,) = await results(response)
    assert listing["status"] == "OK"
    (journal,) = listing["journals"]
    assert journal["spec"]["name"] == "a/one"
    assert journal["spec"]["fragment"]["refreshInterval"] == "1s"
    assert journal["route"]["endpoints"] == [broker.endpoint]
    assert int(listing["header"]["etcd"]["revision"]) >= int(journal["modRevision"])
    async with http.post("/v1/journals/list") as response:
        listings = await results(response)
    names = [each["spec"]["name"] for listing in listings for each in listing["journals"]]
    assert names == ["a/one", "b/two"]


async def test_content_is_read_until_the_head(client, http):
    async with http.post("/v1/journals/read", json={"journal": "a/one", "offset": "2"}) as response:
        parts = await results(response)
    content = b"".join(base64.b64decode(part["content"] or "") for part in parts)
    assert content == b"ntent"
    assert parts[0]["header"]["route"]["members"] == [{"zone": "local", "suffix": "broker-0"}]
    assert parts[-1]["status"] == "OFFSET_NOT_YET_AVAILABLE"
    assert parts[-1]["writeHead"] == "7"
    async with http.post("/v1/journals/read", json={"journal": "no/such"}) as response:
        (answer,) = await results(response)
    assert answer["status"] == "JOURNAL_NOT_FOUND"


async def test_errors_have_gazettes_forms(client, http):
    """Before a call begins, one of a call's own; after that, a line of its stream."""
    async with http.post("/v1/journals/list", data=b"no JSON") as response:
        refused = orjson.loads(await response.read())
        assert response.status == 400
    assert (refused["code"], refused["details"]) == (3, [])
    assert refused["error"] == refused["message"]
    assert "the body is no ListRequest" in refused["error"]
    async with http.post("/v1/journals/read", json={"journal": "/bad"}) as response:
        error = orjson.loads(await response.read())["error"]
        assert (response.status, error["grpcCode"], error["httpCode"]) == (400, 3, 400)


async def test_a_blocking_read_sends_what_is_appended_as_it_comes(client, http):
    body = {"journal": "a/one", "offset": 0, "block": True}
    async with http.post("/v1/journals/read", json=body) as response:
        async with asyncio.timeout(patient(40)):
            seen = b""
            while seen != b"contentlater":
                line = await response.content.readline()
                seen += base64.b64decode(orjson.loads(line)["result"]["content"] or "")
                if seen == b"content":
                    await client.append("a/one", b"later")


async def test_a_watch_lists_again_after_a_change(client, http):
    async with http.post("/v1/journals/list", json={"watch": True}) as response:
        async with asyncio.timeout(patient(40)):
            first = orjson.loads(await response.content.readline())["result"]
            await client.apply([JournalChange(spec("c/three"))])
            names = [each["spec"]["name"] for each in first["journals"]]
            while "c/three" not in names:
                again = orjson.loads(await response.content.readline())["result"]
                names = [each["spec"]["name"] for each in again["journals"]]


async def test_journals_whose_names_are_those_of_routes_are_still_served(client, http):
    await client.apply([JournalChange(spec("v1/journals/list"))])
    await client.append("v1/journals/list", b"")
    async with http.put("/v1/journals/list", data=b"journal") as response:
        assert response.status == 204
    async with http.get("/v1/journals/list") as response:
        assert await response.read() == b"journal"


async def test_tokens_are_asked_for(cluster):
    broker = await cluster.start(auth_keys=KEY)
    claims = Claims(Capability.LIST, LabelSelector.parse("name:prefix=a/"))
    now = SystemClock().unix_s()
    headers = {"Authorization": f"Bearer {KeyRing(KEY).sign(claims, now=now, lifetime_s=60)}"}
    url = f"http://127.0.0.1:{broker.http_port}/v1/journals/"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as http:
        async with http.post(f"{url}list") as response:
            error = orjson.loads(await response.read())["error"]
            assert (response.status, error["grpcCode"]) == (401, 16)
            assert response.headers["WWW-Authenticate"] == "Bearer"
        async with http.post(f"{url}read", json={"journal": "a/one"}, headers=headers) as response:
            error = orjson.loads(await response.read())["error"]
            assert (response.status, error["grpcCode"]) == (403, 7)
        async with http.post(f"{url}list", headers=headers) as response:
            assert response.status == 200


async def test_pages_of_allowed_origins_may_ask(cluster):
    broker = await cluster.start(allow_origin=("https://console.example",))
    url = f"http://127.0.0.1:{broker.http_port}/v1/journals/list"
    ours, theirs = {"Origin": "https://console.example"}, {"Origin": "https://other.example"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as http:
        async with http.options(url, headers=ours) as response:
            assert response.headers["Access-Control-Allow-Methods"] == "POST"
        async with http.post(url, headers=ours) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == "https://console.example"
        async with http.post(url, headers=theirs) as response:
            assert response.status == 403
