"""Reads of stored fragments that are not what their names say."""

from __future__ import annotations

import gzip

import grpc
import pytest

from gazette_platform.broker.api import read as read_api
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.local import read, store_fragment
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"


@pytest.fixture
async def stub(cluster):
    return cluster.stub(await cluster.start())


def _flip(content):
    return content[:7] + bytes([content[7] ^ 1]) + content[8:]


DAMAGES = {
    "a flipped bit": (CompressionCodec.NONE, _flip, "content has SHA-1"),
    "bytes behind": (
        CompressionCodec.NONE,
        lambda content: content + b"more",
        "longer than its name",
    ),
    "no last byte": (CompressionCodec.GZIP, lambda content: content[:-1], "truncated"),
    "bytes behind gzip": (CompressionCodec.GZIP, lambda content: content + b"more", "gzip"),
    "another fragment": (CompressionCodec.GZIP, lambda _: gzip.compress(b"x" * 20), "SHA-1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_stored_fragment_is_never_read_whole(cluster, stub, damage):
    codec, change, says = DAMAGES[damage]
    fragment = store_fragment(cluster.fragments, JOURNAL, 0, bytes(range(20)), codec=codec)
    path = cluster.fragments / fragment.content_path
    path.write_bytes(change(path.read_bytes()))
    store = FragmentSpec(
        length=1 << 20, codec=codec, stores=("file:///",), refresh_interval_ns=10**9
    )
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=store))

    async def is_listed():
        return [response.write_head async for response in read(stub, JOURNAL, -1)] == [20]

    await eventually(is_listed)
    responses = aiter(read(stub, JOURNAL, 5))
    assert (await anext(responses)).content == b""
    with pytest.raises(grpc.aio.AioRpcError, match="restore the file, or remove it") as caught:
        await anext(responses)
    assert says in caught.value.details()


async def test_fragment_found_right_is_believed_for_a_while(cluster, stub, monkeypatch):
    fragment = store_fragment(cluster.fragments, JOURNAL, 0, b"0123456789abcdef")
    path = cluster.fragments / fragment.content_path
    store = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=3600 * 10**9,
    )
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=store))

    async def content():
        return b"".join([each.content async for each in read(stub, JOURNAL, 0)])

    assert await content() == b"0123456789abcdef"
    path.write_bytes(b"0123456x89abcdef")
    assert await content() == b"0123456x89abcdef"
    monkeypatch.setattr(read_api, "_PROVEN_S", 0.0)
    with pytest.raises(grpc.aio.AioRpcError, match="content has SHA-1"):
        await content()
