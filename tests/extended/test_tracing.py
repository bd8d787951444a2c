"""Spans of appends and typed runs, as the SDK of OpenTelemetry exports them."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import grpc
import pytest
from journal_specs import journal_spec
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyiceberg.catalog.sql import SqlCatalog

from gazette_platform.client import AsyncClient, Change, Client, ClientConfig
from gazette_platform.lake.iceberg.catalog import CatalogTables
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.message import build_uuid
from gazette_platform.ops import tracing
from gazette_platform.protocol import CompressionCodec
from gazette_platform.testing.local import open_channel
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd


@pytest.fixture
def spans(monkeypatch):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter.get_finished_spans
    provider.shutdown()


def spec(replication):
    return journal_spec("a/journal", replication, codec=CompressionCodec.GZIP, refresh_s=3600)


def named(spans, name):
    return [one for one in spans() if one.name == f"gazette {name}"]


def parents(spans, one):
    """The names of the spans above one, the nearest first."""
    by_id = {each.context.span_id: each for each in spans()}
    found = []
    while one.parent is not None:
        one = by_id[one.parent.span_id]
        found.append(one.name)
    return found


async def test_an_append_is_one_trace_through_brokers_and_peers(local_brokers, spans):
    brokers = [await local_brokers.start(zone=zone) for zone in "abc"]
    async with AsyncClient(ClientConfig(address=brokers[0].endpoint)) as client:
        await client.apply([Change(spec(3))])
        await client.append("a/journal", b"one")
        route = (await client.get("a/journal")).route
    await eventually(lambda: len(named(spans, "replicate")) >= 2)
    (append,) = named(spans, "append")
    assert append.attributes == {"gazette.journal": "a/journal"}
    assert append.parent is None
    served = named(spans, "broker append")
    assert {one.context.trace_id for one in served} == {append.context.trace_id}
    # One that is not the primary forwards it.
    assert [parents(spans, one)[-1] for one in served] == ["gazette append"] * len(served)
    peers = [one for one in named(spans, "replicate") if parents(spans, one)]
    assert {one.context.trace_id for one in peers} == {append.context.trace_id}
    others = {str(member) for member in route.members if member != route.primary_id}
    assert {one.attributes["gazette.peer"] for one in peers} == others

    # From another broker than the primary, there is one hop more.
    other = next(b for b in brokers if b._context.process_id != route.primary_id)
    async with AsyncClient(ClientConfig(address=other.endpoint)) as client:
        await client.append("a/journal", b"two")
    hops = [parents(spans, one) for one in named(spans, "broker append")]
    assert ["gazette broker append", "gazette append"] in hops
    for broker in brokers:
        await broker.drain()
    assert {one.attributes["gazette.journal"] for one in named(spans, "persist")} == {"a/journal"}
    assert max(one.attributes["gazette.end"] for one in named(spans, "persist")) == 6


async def test_a_malformed_append_is_refused_as_without_spans(local_brokers, spans):
    broker = await local_brokers.start()
    async with open_channel(broker.endpoint.partition("//")[2]) as channel:
        call = channel.stream_unary("/protocol.Journal/Append")(iter([b"\xff"]))
        with pytest.raises(grpc.aio.AioRpcError, match="Append: malformed message"):
            await call
    assert broker.faults.reported == 0


async def test_a_typed_run_has_a_span_for_each_step(local_brokers, spans, tmp_path):
    broker = await local_brokers.start()
    config = ClientConfig(address=broker.endpoint, file_root=local_brokers.fragments)
    async with AsyncClient(config) as client:
        await client.apply([Change(spec(1))])
        record = {"n": 1, "_meta": {"uuid": str(build_uuid(b"\1" * 6, 1000, 0))}}
        await client.append("a/journal", json.dumps(record).encode() + b"\n")
    raw = parse_table_spec(
        "name: raw.t\nselector: 'name:prefix=a/'\nformat: json\n"
        "columns: [{name: n, type: bigint}]\n"
    )
    wanted = TypedSpec(
        name="typed.t",
        source="raw.t",
        uuid=("_meta", "uuid"),
        columns=(TypedColumn(name="n", type="bigint", key="n"),),
    )

    def run():
        sql = SqlCatalog(
            "sql", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=tmp_path.as_uri()
        )
        with closing(sql), Client(config) as client:
            tables = CatalogTables(sql, tmp_path.as_uri())
            TypedRunner(tables, LocalWorkers(), client).run(wanted, raw)

    await asyncio.to_thread(run)
    steps = {one.name: parents(spans, one) for one in spans() if "typed" in one.name}
    assert steps == {
        "gazette typed run": [],
        "gazette typed plan": ["gazette typed run"],
        "gazette typed read": ["gazette typed run"],
        "gazette typed publish": ["gazette typed run"],
        "gazette typed commit": ["gazette typed publish", "gazette typed run"],
    }


def test_without_a_provider_nothing_is_made():
    assert not tracing.is_on()
    assert tracing.headers() == ()
    with tracing.span("gazette append", journal="a/journal"):
        assert tracing.headers() == ()
