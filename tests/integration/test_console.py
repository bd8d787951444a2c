"""The console's API on real brokers: what a token shows, and what hostile requests get."""

from __future__ import annotations

import asyncio
import base64
import gc
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import orjson
import pytest
from journal_specs import journal_spec

from examples.word_count.application import WordCount
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.console import shards_and_tables
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.etcd import TXN_OPS_MAX, EtcdClient, Put
from gazette_platform.keyspace import item_key
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.labels import LabelSelector
from gazette_platform.testing.local import LocalConsumers
from gazette_platform.testing.waiting import eventually, patient
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()
WORD_COUNT = Path(__file__).parents[2] / "examples" / "word_count"
JOURNALS = 20_000
OURS, THEIRS = "ours/one", "theirs/two"
ALL = Capability.LIST | Capability.READ


def spec(name, **labels):
    return journal_spec(name, labels=labels)


def bearer(capability, selector=""):
    claims = Claims(capability, LabelSelector.parse(selector))
    # Some are made when tests are collected, which a slow machine may be at an hour later.
    token = KeyRing(KEY).sign(claims, now=SystemClock().now().timestamp(), lifetime_s=6 * 3600)
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
async def broker(cluster):
    broker = await cluster.start(auth_keys=KEY)
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client:
        await client.apply([JournalChange(spec(name, env="test")) for name in (OURS, THEIRS)])
        for name in (OURS, THEIRS):
            await client.append(name, b'{"a":1}\n')
    return broker


@pytest.fixture
async def http(broker):
    base = f"http://127.0.0.1:{broker.http_port}"
    async with aiohttp.ClientSession(base, timeout=aiohttp.ClientTimeout(total=40)) as session:
        yield session


async def listed(http, headers, selector=""):
    query = {"selector": selector}
    async with http.get("/console/api/journals", params=query, headers=headers) as response:
        assert response.status == 200, await response.text()
        *parts, last = [orjson.loads(line) for line in (await response.read()).splitlines()]
    assert last.pop("revision") > 0
    return [row["name"] for rows in parts for row in rows], last


async def states(http, headers, *journals):
    body = {"journals": journals}
    async with http.post("/console/api/states", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_journals_beyond_the_claims_are_not_listed(http):
    assert await listed(http, bearer(ALL)) == ([OURS, THEIRS], {"complete": True})
    limited = bearer(ALL, "name:prefix=ours/")
    assert await listed(http, limited) == ([OURS], {"complete": True})
    assert await listed(http, limited, "name:prefix=theirs/") == ([], {"complete": True})


async def test_journals_are_listed_again_once_something_has_changed(http, broker):
    async def last(known):
        query = {"known": known}
        async with http.get("/console/api/journals", params=query, headers=bearer(ALL)) as response:
            parts, last = map(orjson.loads, (await response.read()).splitlines()[-2:])
        return len(parts), last

    _, found = await last(0)
    assert await last(found["revision"]) == (0, {"unchanged": True})
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client:
        await client.apply([JournalChange(spec("ours/three"))])
    _, now = await last(found["revision"])
    assert now["complete"]
    assert now["revision"] > found["revision"]
    async with http.get(
        f"/console/api/journals?known={now['revision']}", headers=bearer(Capability.APPEND)
    ) as response:
        assert response.status == 403


async def test_a_list_of_many_journals_lets_other_work_go_on(cluster, etcd_server, etcd_prefix):
    """Of the CPU time of the event loop: what a broker does besides would wait for so long."""
    names = [f"load/part={number:05}" for number in range(JOURNALS)]
    etcd = EtcdClient([etcd_server.endpoint])
    await etcd.connect()
    for at in range(0, JOURNALS, TXN_OPS_MAX):
        some = [(item_key(etcd_prefix, name), spec(name)) for name in names[at : at + TXN_OPS_MAX]]
        puts = [Put(key, each.to_pb().SerializeToString()) for key, each in some]
        await etcd.txn([], puts)
    await etcd.close()
    broker = await cluster.start(journal_limit=0)
    gaps: list[float] = []
    handles: list[asyncio.Handle] = []
    longest: dict[str, float] = {}  # of two lists each: the allocator works, too

    looked_at, loop = [0.0], asyncio.get_running_loop()

    def look():
        now = time.thread_time()
        gaps.append(now - looked_at[0])
        looked_at[0] = now
        handles[:] = [loop.call_soon(look)]

    timeout = aiohttp.ClientTimeout(total=patient(40))
    gc.disable()  # a broker's process keeps what lives long from the collector
    try:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            for selector in ("", "env=none", "name:prefix=load/") * 2:
                query = {"selector": selector}
                look()
                gaps.clear()
                url = f"http://127.0.0.1:{broker.http_port}/console/api/journals"
                async with http.get(url, params=query) as response:
                    read = b"".join([part async for part in response.content.iter_any()])
                handles.pop().cancel()
                assert (len(read) > 1 << 20) == (selector != "env=none")
                assert len(gaps) > 10
                longest[selector] = min(longest.get(selector, 1.0), max(gaps))
    finally:
        gc.enable()
    print(f"{JOURNALS} journals: the event loop was busy for at most so many seconds: {longest}")
    assert max(longest.values()) < patient(0.05)


async def test_journals_beyond_the_claims_are_as_if_they_did_not_exist(http):
    limited = bearer(ALL, "name:prefix=ours/")
    ours, theirs, missing = await states(http, limited, OURS, THEIRS, "theirs/none")
    assert ours == {"name": OURS, "begin": 0, "head": 8, "unpersisted": 8}
    assert theirs["error"].replace(THEIRS, "") == missing["error"].replace("theirs/none", "")
    for name in ("journal", "fragments"):
        query = {"name": THEIRS}
        async with http.get(f"/console/api/{name}", params=query, headers=limited) as response:
            assert response.status == 404
            assert "JOURNAL_NOT_FOUND" in (await response.json())["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer nonsense"}, 401), (bearer(Capability.APPEND), 403)],
)
async def test_calls_without_the_capability_are_refused(http, headers, status):
    async with http.get("/console/api/journals", headers=headers) as response:
        assert response.status == status
        assert response.headers["Cache-Control"] == "no-store"
        assert (await response.json())["error"]


async def test_a_reader_needs_read_for_states(http):
    (state,) = await states(http, bearer(ALL), OURS)
    assert state["head"] == 8
    body = {"journals": [OURS]}
    only_list = bearer(Capability.LIST)
    async with http.post("/console/api/states", json=body, headers=only_list) as response:
        assert response.status == 403


async def test_a_spec_is_yaml_and_a_fragment_has_its_offsets(http):
    query = {"name": OURS}
    async with http.get("/console/api/journal", params=query, headers=bearer(ALL)) as response:
        found = await response.json()
    assert found["name"] == OURS
    assert "compression_codec: NONE" in found["yaml"]
    assert "value: test" in found["yaml"]
    assert len(found["brokers"]) == 1
    async with http.get("/console/api/fragments", params=query, headers=bearer(ALL)) as response:
        page = await response.json()
    assert page["next"] == 0
    ((begin, end),) = [(one["begin"], one["end"]) for one in page["fragments"]]
    assert (begin, end) == (0, 8)


async def test_stored_bytes_are_not_unpersisted(http, broker):
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client:
        await client.flush(f"name={OURS}")

    async def is_stored():
        (state,) = await states(http, bearer(ALL), OURS)
        return state == {"name": OURS, "begin": 0, "head": 8, "unpersisted": 0}

    await eventually(is_stored, timeout_s=20)
    body = {"stores": ["file:///", "s3://not-ours/"]}
    async with http.post("/console/api/stores", json=body, headers=bearer(ALL)) as response:
        healthy, other = await response.json()
    assert healthy == {"store": "file:///", "error": ""}
    assert "not authorized" in other["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"journals": ["a/b"]}', {"Content-Type": "text/plain"}, 400),
        (b'{"journals": ["a/b"]}', {"Sec-Fetch-Site": "cross-site"}, 400),
        (b'{"journals": ["a/b"]}', {"Origin": "http://evil.example"}, 403),
        (b'{"journals": [1]}', {}, 400),
        (b'{"journals": "a"}', {}, 400),
        (b"[" * 40_000, {}, 400),
        (b"x" * 70_000, {}, 400),
        (orjson.dumps({"journals": [f"a/{n}" for n in range(101)]}), {}, 400),
        (b'{"journals": ["../..//etc\\u0000", "a b"]}', {}, 200),
    ],
)
async def test_odd_and_foreign_requests_are_refused(http, body, headers, status):
    every = {"Content-Type": "application/json", **bearer(ALL), **headers}
    async with http.post("/console/api/states", data=body, headers=every) as response:
        assert response.status == status, await response.text()
        assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("query", ["selector=%00", "selector=a%3D%3Db%20in", "selector=,,,"])
async def test_a_selector_that_cannot_be_is_refused(http, query):
    async with http.get(f"/console/api/journals?{query}", headers=bearer(ALL)) as response:
        assert response.status in {200, 400}
        assert b"unforeseen" not in await response.read()


async def test_pages_forbid_scripts_of_others_and_frames(http):
    async with http.get("/console/") as response:
        assert response.status == 200
        page, headers = await response.text(), response.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "<style" not in page
    assert "<script type" in page
    for name in ("main.js", "console.css", "icon.svg"):
        async with http.get(f"/console/static/{name}") as response:
            assert response.status == 200
            assert (await response.read()).strip()


async def test_other_paths_below_the_console_stay_with_journals(broker, http):
    async with AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client:
        await client.apply([JournalChange(spec("console/static/notes"))])
        await client.append("console/static/notes", b"content")
    async with http.get("/console/static/notes", headers=bearer(ALL)) as response:
        assert await response.read() == b"content"
    for path in ("/console/static/../../../../etc/passwd", "/console/static/%2e%2e/routes.py"):
        async with http.get(path, headers=bearer(ALL)) as response:
            assert response.status == 404


async def test_a_broker_without_console_serves_none(cluster):
    broker = await cluster.start(no_console=True)
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{broker.http_port}") as http,
        http.get("/console/") as response,
    ):
        assert response.status == 400 or response.status == 404
        assert "Content-Security-Policy" not in response.headers


async def test_brokers_are_shown_to_operators(http, broker):
    operator = bearer(ALL | Capability.APPLY)
    async with http.get("/console/api/brokers", headers=operator) as response:
        found = await response.json()
    (one,) = found["brokers"]
    assert one["endpoint"] == broker.endpoint
    assert (one["name"], one["is_own"], one["limit"]) == ("local#broker-0", True, 1024)
    vitals = found["own"]["vitals"]
    assert vitals["appended_bytes"] == 16
    assert (vitals["replicas"], vitals["primaries"]) == (2, 2)
    assert 0 < vitals["lease_left_s"] <= 6
    assert vitals["memory_bytes"] > 1 << 20
    assert [len(sample) for sample in found["own"]["samples"]] == [6]
    async with http.get("/console/api/brokers", headers=bearer(ALL)) as response:
        assert response.status == 403


async def test_brokers_report_their_vitals_to_each_other(cluster, http, broker):
    operator = bearer(ALL | Capability.APPLY)
    other = await cluster.start(auth_keys=KEY)

    async def vitals():
        async with http.get("/console/api/brokers", headers=operator) as response:
            assert response.status == 200, await response.text()
            return {one["endpoint"]: one for one in (await response.json())["brokers"]}

    found = await vitals()
    assert found[broker.endpoint]["vitals"].keys() == found[other.endpoint]["vitals"].keys()
    assert found[other.endpoint]["vitals"]["memory_bytes"] > 1 << 20
    assert found[other.endpoint]["vitals"]["appended_bytes"] == 0
    await other._server.stop(grace_s=0.0)

    async def is_missed():
        one = (await vitals())[other.endpoint]
        return "vitals" not in one and one["error"]

    assert "connect" in (await eventually(is_missed, timeout_s=30)).lower()


async def test_tables_need_a_token_for_all_journals(http, monkeypatch):
    limited = bearer(ALL, "name:prefix=ours/")
    async with http.get("/console/api/tables", headers=limited) as response:
        assert response.status == 403
    for name in ("GAZETTE_ENDPOINTS", "GAZETTE_TABLES"):
        monkeypatch.delenv(name, raising=False)
    async with http.get("/console/api/tables", headers=bearer(ALL)) as response:
        assert await response.json() == {"is_known": False}


async def test_tables_are_those_of_the_lake_that_the_environment_names(http, monkeypatch, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "raw.yaml").write_text(
        "name: raw.ours\nselector: name:prefix=ours/\nformat: json\ncolumns:\n  - {name: a, type: bigint}\n"
    )
    monkeypatch.delenv("GAZETTE_ENDPOINTS", raising=False)
    monkeypatch.setenv("GAZETTE_TABLES", str(tables))
    monkeypatch.setenv("GAZETTE_DAGSTER_URI", "javascript:alert(1)")
    monkeypatch.setenv("GAZETTE_TRINO_URI", "http://127.0.0.1:8080")
    async with http.get("/console/api/tables", headers=bearer(ALL)) as response:
        found = await response.json()
    assert found["links"] == {"trino": "http://127.0.0.1:8080"}
    (table,) = found["tables"]
    assert (table["table"], table["format"], table["journals"]) == ("raw.ours", "json", 1)


async def test_consumers_are_those_that_the_broker_was_given(http):
    async with http.get("/console/api/shards", headers=bearer(ALL)) as response:
        assert await response.json() == []
    body = {"consumer": "http://127.0.0.1:1", "shard": "shard-0"}
    operator = bearer(ALL | Capability.APPLY)
    async with http.post("/console/api/unassign", json=body, headers=operator) as response:
        assert response.status == 400
        assert "--broker.console-consumer" in (await response.json())["error"]
    async with http.post("/console/api/unassign", json=body, headers=bearer(ALL)) as response:
        assert response.status == 403
    async with http.get("/console/api/unassign", headers=operator) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    "name", ["", "%00", "%ED%A0%80", "a" * 600, "../../etc/passwd", "ours/one/"]
)
async def test_a_name_that_cannot_be_is_refused(http, name):
    for api in ("journal", "fragments"):
        async with http.get(f"/console/api/{api}?name={name}", headers=bearer(ALL)) as response:
            assert response.status == 400, await response.text()
    async with http.get(
        f"/console/api/journals?selector=a%3D{'b' * 2000}", headers=bearer(ALL)
    ) as response:
        assert response.status == 400, await response.text()


async def test_an_answer_to_head_has_no_body(broker):
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    token = bearer(ALL)["Authorization"]
    writer.write(
        f"HEAD /console/api/journals HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n"
        "GET /debug/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(20):
        answers = await reader.read()
    writer.close()
    _, after_head = answers.split(b"\r\n\r\n", 1)
    assert after_head.startswith(b"HTTP/1.1 200 OK"), answers


@pytest.mark.parametrize("path", ["/console/api/states", "/v1/journals/list"])
async def test_a_body_that_does_not_come_ends_its_request(broker, monkeypatch, path):
    monkeypatch.setattr("gazette_platform.serving.http_server._BODY_S", 0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n{".encode()
    )
    async with asyncio.timeout(20):
        head = await reader.readline()
    writer.close()
    assert b" 400 " in head


async def test_stores_need_a_token(http):
    body = {"stores": ["file:///"]}
    async with http.post("/console/api/stores", json=body) as response:
        assert response.status == 401
    only_list = bearer(Capability.LIST)
    async with http.post("/console/api/stores", json=body, headers=only_list) as response:
        assert response.status == 403


async def test_a_lake_that_fails_is_not_asked_again_at_once(http, monkeypatch, tmp_path):
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text("{")
    monkeypatch.setenv("GAZETTE_ENDPOINTS", str(endpoints))
    errors = []
    for _ in range(2):
        async with http.get("/console/api/tables", headers=bearer(ALL)) as response:
            assert response.status == 502
            errors.append((await response.json())["error"])
        endpoints.unlink(missing_ok=True)  # another process would have another error, or none
    assert "not valid JSON" in errors[0]
    assert errors[1] == errors[0]


@pytest.mark.parametrize(
    ("bound", "value", "text"),
    [
        ("_OUTPUT_BYTES_MAX", 4, "says more than 4 bytes"),
        ("_LAKE_S", 0.01, "did not end within 0.01 s"),
    ],
)
async def test_a_lake_that_says_too_much_or_takes_too_long_is_refused(
    http, monkeypatch, tmp_path, bound, value, text
):
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text("{")
    monkeypatch.setenv("GAZETTE_ENDPOINTS", str(endpoints))
    monkeypatch.setattr(shards_and_tables, bound, value)
    async with http.get("/console/api/tables", headers=bearer(ALL)) as response:
        assert response.status == 502
        assert text in (await response.json())["error"]


@pytest.fixture
async def consumer(cluster, etcd_server, etcd_prefix, tmp_path):
    """A session with a broker that has keys, and knows a consumer that has none; and the consumer's address."""
    keys = f"{KEY},AA=="  # the consumer has no token
    broker = await cluster.start(auth_keys=keys)
    async with (
        AsyncClient(ClientConfig(address=broker.endpoint, auth_keys=KEY)) as client,
        LocalConsumers(
            tmp_path / "consumers",
            etcd=etcd_server.endpoint,
            prefix=f"{etcd_prefix}-group",
            client=client,
        ) as consumers,
    ):
        await client.apply(parse_journal_tree((WORD_COUNT / "journals.yaml").read_text()))
        process = await consumers.start(WordCount(2))
        changes = parse_shard_changes((WORD_COUNT / "shards.yaml").read_text())
        specs = [replace(change.spec, hint_prefix=f"{etcd_prefix}-hints") for change in changes]
        await consumers.create_shards(*specs)
        address = f"http://127.0.0.1:{process.port}"
        knowing = await cluster.start(auth_keys=keys, console_consumer=(address,))
        base = f"http://127.0.0.1:{knowing.http_port}"
        timeout = aiohttp.ClientTimeout(total=40)
        async with aiohttp.ClientSession(base, timeout=timeout) as session:
            yield session, address


async def test_claims_hold_for_shards_of_a_consumer_without_keys(consumer):
    http, address = consumer

    async def shards(headers):
        async with http.get("/console/api/shards", headers=headers) as response:
            (found,) = await response.json()
        return [one["id"] for one in found["shards"]]

    async def progress(headers):
        body = {"consumer": address, "shards": ["shard-000", "shard-001"]}
        async with http.post("/console/api/progress", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return [*await response.json()]

    async def unassign(headers):
        body = {"consumer": address, "shard": "shard-001"}
        async with http.post("/console/api/unassign", json=body, headers=headers) as response:
            return response.status

    every = ALL | Capability.APPLY
    assert await shards(bearer(every)) == [f"shard-00{n}" for n in range(4)]
    assert await shards(bearer(every, "id=shard-000")) == ["shard-000"]
    assert await shards(bearer(every, "name=ours/one")) == []
    assert sorted(await progress(bearer(every))) == ["shard-000", "shard-001"]
    assert await progress(bearer(every, "id=shard-000")) == ["shard-000"]
    assert await progress(bearer(every, "name=ours/one")) == []
    assert await unassign(bearer(every, "name=ours/one")) == 403
    assert await unassign(bearer(every)) == 200
