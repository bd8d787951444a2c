"""Responses as Go writes them: fields that are plain values in Go are present even when empty.

The contract's tables mark the optional messages; all others a Go broker always writes, though
nothing be in them: so "absent" must never differ from "empty" where Go cannot distinguish them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import DataError
from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    FragmentSpec,
    Header,
    JournalSpec,
    ProcessId,
    Route,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb

# A response without status and journals: field 2, a header of three empty messages.
EMPTY_RESPONSE = bytes.fromhex("12060a0012001a00")
MEMBER = ProcessId("go", "broker")


def listing(revision: int, *names: str) -> bytes:
    header = Header(MEMBER, Route(), EtcdHeader(1, 2, revision, 3))
    response = pb.ListResponse(header=header.to_pb())
    response.journals.extend(listed(name) for name in names)
    return response.SerializeToString()


def listed(name: str) -> pb.ListResponse.Journal:
    fragment = FragmentSpec(length=1 << 20, codec=CompressionCodec.GZIP, refresh_interval_ns=10**10)
    spec = JournalSpec(name, 1, fragment=fragment)
    return pb.ListResponse.Journal(spec=spec.to_pb(), mod_revision=1, route=Route().to_pb())


def continuation(*names: str) -> bytes:
    response = pb.ListResponse.FromString(EMPTY_RESPONSE)
    response.journals.extend(listed(name) for name in names)
    return response.SerializeToString()


@asynccontextmanager
async def client_of(*messages: bytes, ends: bool = False):
    """A client of a server that answers every List with these messages, and then ends, or never."""

    async def serve(_raw, _context):
        for message in messages:
            yield message
        if not ends:
            await asyncio.Event().wait()

    server = grpc.aio.server()
    handlers = {"List": grpc.unary_stream_rpc_method_handler(serve)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("protocol.Journal", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with AsyncClient(ClientConfig(address=f"http://127.0.0.1:{port}")) as client:
            yield client
    finally:
        await server.stop(None)


async def test_a_watch_ends_its_snapshots_with_an_empty_message():
    messages = [
        listing(5, "a/one"),
        continuation("a/two"),
        EMPTY_RESPONSE,
        listing(6),
        EMPTY_RESPONSE,
        listing(7, "a/two"),
        EMPTY_RESPONSE,
    ]
    async with client_of(*messages) as client, asyncio.timeout(5):
        snapshots = client.watch("")
        found = [[each.name for each in await anext(snapshots)] for _ in range(3)]
        await snapshots.aclose()
    assert found == [["a/one", "a/two"], [], ["a/two"]]


async def test_a_continuation_may_have_a_header_that_says_nothing():
    assert pb.ListResponse.FromString(continuation("a/two")).HasField("header")
    async with client_of(listing(5, "a/one"), continuation("a/two"), ends=True) as client:
        assert [each.name for each in await client.list("")] == ["a/one", "a/two"]


def broken(raw: bytes, **fields) -> bytes:
    """A listing whose last journal breaks a rule."""
    response = pb.ListResponse.FromString(raw)
    response.journals[-1].MergeFrom(pb.ListResponse.Journal(**fields))
    return response.SerializeToString()


async def test_a_journal_whose_spec_breaks_our_rules_is_listed_with_all_others():
    """Gazette's are laxer, and those of later brokers unknown; it has to be seen to be mended."""
    odd = broken(
        continuation("a/two"), spec={"name": "../x", "fragment": {"compression_codec": 99}}
    )
    async with client_of(listing(5, "a/one"), odd, ends=True) as client:
        found = await client.list("")
    assert [each.name for each in found] == ["a/one", "../x"]
    assert not found[1].spec.fragment.codec.is_known


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([broken(listing(5, "a/one"), mod_revision=-1)], r"Journals\[0\]: invalid ModRevision"),
        (
            [listing(5, "a/one"), broken(continuation("a/two"), route={"primary": 1})],
            r"Journals\[0\].Route: invalid Primary",
        ),
        ([listing(5, "a/one"), listing(5, "a/two")], "unexpected Header in a continuation"),
        ([continuation("a/one")], "Header"),
    ],
    ids=["first message", "continuation", "two headers", "no header"],
)
@pytest.mark.parametrize("watch", [False, True])
async def test_a_listing_is_not_believed_that_breaks_a_rule(messages, text, watch):
    async with client_of(*messages, EMPTY_RESPONSE, ends=not watch) as client:
        with pytest.raises(DataError, match=f"validating broker response: {text}"):
            await (anext(client.watch("")) if watch else client.list(""))
