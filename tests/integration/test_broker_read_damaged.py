"""Reads of stored fragments that are not what their names say."""

from __future__ import annotations

import gzip
import os

import grpc
import pytest

from gazette_platform import stores
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.local import append, read, store_fragment
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "a/journal"
CONTENT = bytes(range(256)) * 4
RAW = FragmentSpec(
    length=len(CONTENT),
    codec=CompressionCodec.NONE,
    stores=("file:///",),
    refresh_interval_ns=3600 * 10**9,
)


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


async def _content(stub):
    return b"".join([each.content async for each in read(stub, JOURNAL, 0)])


def _rot(path):
    """Flip a bit below the file system, which knows of no change."""
    before = path.stat()
    path.write_bytes(_flip(path.read_bytes()))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


async def _found_right(cluster, stub):
    fragment = store_fragment(cluster.fragments, JOURNAL, 0, CONTENT)
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=RAW))
    assert await _content(stub) == CONTENT
    return cluster.fragments / fragment.content_path


async def _written(cluster, stub):
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=RAW))
    await append(stub, JOURNAL, CONTENT)
    await append(stub, JOURNAL, b"what closes the fragment before")

    async def stored():
        responses = [each async for each in read(stub, JOURNAL, 0, end_offset=1)]
        return responses[0].fragment_url and list(cluster.fragments.rglob(f"{0:016x}-*.raw"))

    return (await eventually(stored))[0]


@pytest.mark.parametrize("known", [_found_right, _written])
async def test_fragment_known_to_be_right_is_believed_for_a_while(
    cluster, stub, monkeypatch, known
):
    path = await known(cluster, stub)
    _rot(path)
    assert (await _content(stub)).startswith(_flip(CONTENT))
    monkeypatch.setattr(stores, "_PROVEN_S", 0.0)
    with pytest.raises(grpc.aio.AioRpcError, match="content has SHA-1"):
        await _content(stub)


@pytest.mark.parametrize("known", [_found_right, _written])
async def test_fragment_whose_file_changes_is_not_believed(cluster, stub, known):
    path = await known(cluster, stub)
    path.write_bytes(_flip(CONTENT))
    with pytest.raises(grpc.aio.AioRpcError, match="content has SHA-1"):
        await _content(stub)
