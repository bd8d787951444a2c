"""The console of real brokers with certificates: pages, tails, and consumers and a lake that ask for tokens."""

from __future__ import annotations

import base64
import contextlib
import ssl
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from examples.word_count.application import WordCount
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.testing.etcd import CertificateAuthority
from gazette_platform.testing.local import LocalConsumers
from gazette_platform.testing.waiting import patient
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = pytest.mark.etcd

KEY = base64.b64encode(b"a key of 32 bytes, or more or so").decode()
WORD_COUNT = Path(__file__).parents[2] / "examples" / "word_count"
SHARD = "shard-000"
TABLE = """\
name: raw.words
selector: name:prefix=examples/
format: json
columns:
  - {name: word, type: string}
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


def serving(authority, name):
    issued = authority.issue(name)
    return {
        "server_cert_file": issued.cert,
        "server_cert_key_file": issued.key,
        "peer_ca_file": authority.ca,
    }


def bearer(capability=Capability.LIST | Capability.READ | Capability.APPLY):
    now = SystemClock().now().timestamp()
    return {
        "Authorization": f"Bearer {KeyRing(KEY).sign(Claims(capability), now=now, lifetime_s=600)}"
    }


@contextlib.asynccontextmanager
async def word_counts(client, etcd_server, etcd_prefix, folder, **settings):
    """Yield the address of a consumer of `settings` with shards."""
    group = LocalConsumers(
        folder, etcd=etcd_server.endpoint, prefix=f"{etcd_prefix}-group", client=client
    )
    async with group as consumers:
        await client.apply(parse_journal_tree((WORD_COUNT / "journals.yaml").read_text()))
        process = await consumers.start(WordCount(2), **settings)
        changes = parse_shard_changes((WORD_COUNT / "shards.yaml").read_text())
        specs = [replace(change.spec, hint_prefix=f"{etcd_prefix}-hints") for change in changes]
        await consumers.create_shards(*specs)
        yield process.endpoint


@contextlib.asynccontextmanager
async def console(broker, authority=None):
    """Yield a session with a broker's HTTP port."""
    context = None if authority is None else ssl.create_default_context(cafile=authority.ca)
    base = f"{'http' if authority is None else 'https'}://127.0.0.1:{broker.http_port}"
    timeout = aiohttp.ClientTimeout(total=patient(60))
    connector = aiohttp.TCPConnector(ssl=context) if context else None
    async with aiohttp.ClientSession(base, connector=connector, timeout=timeout) as session:
        yield session


async def answer(http, name, body=None, headers=None):
    """Status and value of a request of a page."""
    ask = http.get if body is None else http.post
    options = {} if body is None else {"json": body}
    async with ask(f"/console/api/{name}", headers=headers, **options) as response:
        return response.status, await response.json(content_type=None)


async def test_all_of_the_console_over_tls_with_tokens(
    cluster, authority, etcd_server, etcd_prefix, tmp_path, monkeypatch
):
    (tmp_path / "raw.yaml").write_text(TABLE)
    monkeypatch.delenv("GAZETTE_ENDPOINTS", raising=False)
    monkeypatch.setenv("GAZETTE_TABLES", str(tmp_path))
    secure = serving(authority, "broker") | {"auth_keys": KEY}
    first = await cluster.start(**secure)
    config = ClientConfig(address=first.endpoint, auth_keys=KEY, trusted_ca_file=str(authority.ca))
    async with (
        AsyncClient(config) as client,
        word_counts(client, etcd_server, etcd_prefix, tmp_path / "group", **secure) as consumer,
    ):
        assert consumer.startswith("https://")
        broker = await cluster.start(**secure, console_consumer=(consumer,))
        async with console(broker, authority) as http:
            async with http.get("/console/") as response:
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert (await answer(http, "shards"))[0] == 401
            ours = bearer()
            _, (found,) = await answer(http, "shards", headers=ours)
            assert [one["id"] for one in found["shards"]] == [f"shard-00{n}" for n in range(4)]
            asked = {"consumer": consumer, "shards": [SHARD]}
            status, progress = await answer(http, "progress", asked, ours)
            assert (status, [*progress]) == (200, [SHARD])
            asked = {"consumer": consumer, "shard": SHARD}
            assert (await answer(http, "unassign", asked, ours))[0] == 200
            _, tables = await answer(http, "tables", headers=ours)
            assert [one["table"] for one in tables["tables"]] == ["raw.words"]
            journal = next(iter(await client.list())).name
            accept = {**ours, "Accept": "text/event-stream"}
            async with http.get(f"/{journal}?block=true", headers=accept) as tail:
                assert tail.status == 200, await tail.text()
                await tail.content.readuntil(b"retry: 1000\n\n")


async def test_a_consumer_may_ask_for_tokens_that_the_broker_does_not(
    cluster, etcd_server, etcd_prefix, tmp_path
):
    first = await cluster.start()
    async with (
        AsyncClient(ClientConfig(address=first.endpoint, auth_keys=KEY)) as client,
        word_counts(client, etcd_server, etcd_prefix, tmp_path, auth_keys=KEY) as consumer,
    ):
        broker = await cluster.start(console_consumer=(consumer,))
        async with console(broker) as http:
            asked = {"consumer": consumer, "shards": [SHARD]}
            _, (refused,) = await answer(http, "shards")
            assert refused["shards"] == []
            advice = "press Token, and give one that a key of this consumer has signed"
            assert refused["error"].endswith(f"missing or empty Authorization token ({advice})")
            unassigned = {"consumer": consumer, "shard": SHARD}
            reader = bearer(Capability.LIST | Capability.READ)
            status, refused = await answer(http, "unassign", unassigned, reader)
            assert status == 502
            assert "authorization is missing required APPLY capability" in refused["error"]
            _, (found,) = await answer(http, "shards", headers=bearer())
            assert len(found["shards"]) == 4
            assert (await answer(http, "progress", asked, bearer()))[1].keys() == {SHARD}


async def test_a_consumer_of_another_authority_is_named_so(
    cluster, authority, etcd_server, etcd_prefix, tmp_path, tmp_path_factory
):
    other = CertificateAuthority(tmp_path_factory.mktemp("other"), name="another authority")
    first = await cluster.start(**serving(authority, "broker"))
    trusted = str(authority.ca)
    async with (
        AsyncClient(ClientConfig(address=first.endpoint, trusted_ca_file=trusted)) as client,
        word_counts(
            client, etcd_server, etcd_prefix, tmp_path, **serving(authority, "consumer")
        ) as consumer,
    ):
        trusting = serving(authority, "broker") | {"peer_ca_file": other.ca}
        broker = await cluster.start(**trusting, console_consumer=(consumer,))
        async with console(broker, authority) as http:
            _, (found,) = await answer(http, "shards")
            assert "its certificate is of no authority that is trusted here" in found["error"]
            assert "--broker.peer-ca-file" in found["error"]
