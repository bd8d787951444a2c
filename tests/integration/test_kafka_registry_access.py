"""Who may see and change subjects of schemas: those who may do the same with their topics."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

pytest.importorskip("avro")

from aiohttp import ClientSession
from kafka_servers import topic_specs
from kafka_wire import WireClient, batch_of, gateway_of
from kio.schema.errors import ErrorCode

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.kafka import registry
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange, LabelSelector
from gazette_platform.protocol.auth import Capability, Claims, KeyRing

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

KEY = "c2VjcmV0IGtleSBvZiBhIGRlbW8sIGRvIG5vdCB1c2U="
ALL = Capability.ALL
FLIGHTS, SECRET, MINE = (f"name:prefix=topic/{each}/" for each in ("flights", "secret", "mine"))


def schema_of(*names):
    fields = [{"name": name, "type": "int"} for name in names]
    return {"schema": json.dumps({"type": "record", "name": "R", "fields": fields})}


def token_of(selector, capability=ALL):
    chosen = LabelSelector.parse(selector) if selector else LabelSelector()
    claims = Claims(capability, chosen)
    return KeyRing(KEY).sign(claims, now=SystemClock().unix_s(), lifetime_s=600)


class Caller:
    """One who calls a registry with a token."""

    def __init__(self, session, gateway, selector, capability=ALL):
        self._session = session
        self._url = f"http://127.0.0.1:{gateway.registry.port}"
        self._headers = {"Authorization": f"Bearer {token_of(selector, capability)}"}

    async def call(self, method, path, body=None):
        """Returns: status and body."""
        url = f"{self._url}{path}"
        async with self._session.request(method, url, headers=self._headers, json=body) as answer:
            return answer.status, await answer.json(content_type=None)

    async def register(self, subject, body):
        return await self.call("POST", f"/subjects/{subject}/versions", body)


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start(auth_keys=KEY)


@pytest.fixture
async def gateway(broker):
    async with gateway_of(broker, registry_port=0) as gateway:
        config = ClientConfig(address=broker.endpoint, auth_keys=KEY)
        async with AsyncClient(config) as client:
            specs = topic_specs("flights", partitions=2)
            await client.apply([JournalChange(spec) for spec in specs])
        yield gateway


@pytest.fixture
async def caller(gateway):
    async with ClientSession() as session:
        yield lambda selector, capability=ALL: Caller(session, gateway, selector, capability)


async def test_subjects_of_hidden_topics_are_not_seen(caller):
    owner, other, operator = caller(SECRET), caller(FLIGHTS), caller("")
    status, made = await owner.register("secret-value", schema_of("password"))
    assert status == HTTPStatus.OK
    assert await other.call("GET", "/subjects") == (HTTPStatus.OK, [])
    found = await other.call("GET", f"/schemas/ids/{made['id']}")
    missing = await other.call("GET", "/schemas/ids/4711")
    assert found[0] == missing[0] == HTTPStatus.NOT_FOUND
    for name in ("secret-value", "secret-key", "nothing-value", "com.acme.R"):
        answers = [
            await other.call("GET", f"/subjects/{name}/versions"),
            await other.call("GET", f"/subjects/{name}/versions/latest"),
            await other.call("POST", f"/subjects/{name}", schema_of("password")),
            await other.call("POST", f"/compatibility/subjects/{name}/versions/1", schema_of("a")),
            await other.call("GET", f"/config/{name}"),
            await other.call("PUT", f"/config/{name}", {"compatibility": "NONE"}),
            await other.register(name, schema_of("mine")),
        ]
        assert {status for status, _ in answers} == {HTTPStatus.FORBIDDEN}
        assert {body["message"].replace(name, "…") for _, body in answers} == {
            "the token does not cover the topic of subject …"
        }
    assert await owner.call("GET", "/subjects") == (HTTPStatus.OK, ["secret-value"])
    assert (await operator.register("com.acme.R", schema_of("a")))[0] == HTTPStatus.OK
    assert await operator.call("GET", "/subjects") == (
        HTTPStatus.OK,
        ["com.acme.R", "secret-value"],
    )
    assert (await owner.call("GET", f"/schemas/ids/{made['id']}"))[0] == HTTPStatus.OK


async def test_schemas_of_topics_that_the_token_covers_are_read_and_written(caller):
    mine = caller(FLIGHTS)
    for name in ("flights-value", "flights-key"):
        status, made = await mine.register(name, schema_of("a"))
        assert status == HTTPStatus.OK
    assert (await mine.call("GET", f"/schemas/ids/{made['id']}"))[0] == HTTPStatus.OK
    assert await mine.call("GET", "/subjects") == (HTTPStatus.OK, ["flights-key", "flights-value"])
    level = {"compatibility": "NONE"}
    assert await mine.call("PUT", "/config/flights-value", level) == (HTTPStatus.OK, level)
    # Of one partition of the topic: it reads schemas, and does not change what the others have.
    part = caller("name=topic/flights/part=000")
    assert (await part.call("GET", "/subjects/flights-value/versions"))[0] == HTTPStatus.OK
    assert (await part.register("flights-value", schema_of("b")))[0] == HTTPStatus.FORBIDDEN
    reader = caller(FLIGHTS, Capability.READ)
    assert (await reader.call("GET", f"/schemas/ids/{made['id']}"))[0] == HTTPStatus.OK
    assert (await reader.register("flights-value", schema_of("b")))[0] == HTTPStatus.FORBIDDEN


async def test_names_of_subjects_fill_no_etcd(caller, monkeypatch):
    monkeypatch.setattr(registry, "TEXTS_BYTES_MAX", 2000)
    writer, statuses = caller(""), []
    for number in range(10):
        statuses.append((await writer.register(f"s{number}", schema_of("a")))[0])
        level = {"compatibility": "NONE"}
        statuses.append((await writer.call("PUT", f"/config/c{number}", level))[0])
    refused = statuses.index(HTTPStatus.UNPROCESSABLE_ENTITY)
    assert refused > 2
    assert set(statuses[refused:]) == {HTTPStatus.UNPROCESSABLE_ENTITY}
    assert (await writer.register("s0", schema_of("a")))[0] == HTTPStatus.OK


async def test_records_show_no_hidden_schema(gateway, broker, caller):
    """A value that names the schema of another topic would be a line with the names of its fields."""
    _, hidden = await caller(SECRET).register("secret-value", schema_of("password"))
    _, own = await caller(MINE).register("mine-value", schema_of("a"))
    config = ClientConfig(address=broker.endpoint, auth_keys=KEY)
    async with AsyncClient(config) as client, WireClient.to(gateway.port) as wire:
        (spec,) = topic_specs("mine", partitions=1, **{"kafka.form": "avro"})
        await client.apply([JournalChange(spec)])
        await wire.call("sasl_handshake", 1, mechanism="PLAIN")
        login = b"\0me\0" + token_of(MINE).encode()
        await wire.call("sasl_authenticate", 2, auth_bytes=login)
        answers = [
            await wire.produce("mine", batch_of(b"\0" + schema_id.to_bytes(4, "big") + b"\x02"))
            for schema_id in (hidden["id"], 4711, own["id"], own["id"])
        ]
        content = await client.read(spec.name).read()
    assert b"password" not in content
    assert [each.error_code for each in answers] == [
        *[ErrorCode.invalid_record] * 2,
        *[ErrorCode.none] * 2,
    ]
    texts = [each.error_message for each in answers[:2]]
    assert texts[0].replace(str(hidden["id"]), "N") == texts[1].replace("4711", "N")
