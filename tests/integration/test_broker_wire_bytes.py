"""A broker as seen by a client that knows nothing but the wire: every byte is put together here.

Protobuf lets writers order fields as they like, pad varints, repeat fields (the last counts, and
messages merge), write what is zero, and send fields that the reader does not know. Writers in other
languages use some of that freedom, so a broker must not mind any of it; and what it answers must
be right byte for byte, not only to our own classes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
from typing import Any

import grpc
import pytest
from grpc import aio
from raw_protobuf import blob, decode, number, only

from gazette_platform.keyspace import item_key
from gazette_platform.serving.grpc_transport import CALL_ERRORS
from gazette_platform.testing.waiting import eventually

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

JOURNAL = "wire/journal"
UNKNOWN_FIELDS = bytes.fromhex("98067ba20603616263ad0601020304b1060102030405060708")
"""Fields 99 to 102, which no message has, one of each wire type."""

_DEADLINE_S = 20.0
_OFFSET_NOT_YET_AVAILABLE = 6
_JOURNAL_NOT_FOUND = 1


# ---------------------------------------------------------------------------------------- writing
def label(name: str, value: str, *, prefix: bool = False) -> bytes:
    return blob(1, name) + (blob(2, value) if value else b"") + (number(3, 1) if prefix else b"")


def label_set(*labels: bytes) -> bytes:
    return b"".join(blob(1, each) for each in labels)


def journal_spec(name: str) -> bytes:
    fragment = number(1, 1 << 20) + number(2, 1) + blob(3, "file:///") + blob(4, number(1, 60))
    return blob(1, name) + number(2, 1) + blob(3, b"") + blob(4, fragment)


def create(*specs: bytes) -> bytes:
    return b"".join(blob(1, blob(2, spec)) for spec in specs)


def selector(*include: bytes) -> bytes:
    return blob(1, blob(1, label_set(*include)) + blob(2, b""))


def etcd_state(cluster: int, revision: int) -> bytes:
    return number(1, cluster) + number(2, 1) + number(3, revision) + number(4, 1)


# ---------------------------------------------------------------------------------------- reading
def sha1_parts(content: bytes) -> dict[int, list[int]]:
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    return {
        number: [part] for number, part in enumerate(struct.unpack(">QQI", digest), 1) if part != 0
    }


class Wire:
    """Calls by their full names, with bytes in and bytes out."""

    def __init__(self, channel: aio.Channel) -> None:
        self.channel = channel

    async def unary(self, method: str, request: bytes) -> dict[int, list[Any]]:
        call = self.channel.unary_unary(f"/protocol.Journal/{method}")
        return decode(await call(request, timeout=_DEADLINE_S))

    async def streamed(self, method: str, request: bytes) -> list[dict[int, list[Any]]]:
        call = self.channel.unary_stream(f"/protocol.Journal/{method}")
        return [decode(raw) async for raw in call(request, timeout=_DEADLINE_S)]

    async def append(self, *messages: bytes, **options: Any) -> dict[int, list[Any]]:
        method = self.channel.stream_unary("/protocol.Journal/Append")
        return decode(await method(iter(messages), timeout=_DEADLINE_S, **options))

    async def read(self, request: bytes) -> tuple[bytes, list[dict[int, list[Any]]]]:
        """Content, whose messages are checked, and the other messages."""
        content, others, offset = b"", [], 0
        for message in await self.streamed("Read", request):
            if 7 not in message:
                others.append(message)
                offset = only(message, 3, 0)
                continue
            assert set(message) <= {3, 7}, "content comes with its offset alone"
            assert only(message, 3, 0) == offset
            offset += len(only(message, 7))
            content += only(message, 7)
        return content, others


@pytest.fixture
async def broker(local_brokers):
    return await local_brokers.start()


@pytest.fixture
async def wire(broker):
    # What Go's clients receive at most in one message.
    options = [("grpc.max_receive_message_length", 16 << 20)]
    target = f"{broker.config.host}:{broker.port}"
    async with aio.insecure_channel(target, options=options) as channel:
        yield Wire(channel)


@pytest.fixture
async def journal(wire):
    response = await wire.unary("Apply", create(journal_spec(JOURNAL)))
    assert 1 not in response
    return JOURNAL


# ------------------------------------------------------------------------------------------ specs
async def test_specs_in_odd_but_legal_encodings(wire):
    half = number(2, 3) + number(1, 1 << 19)  # overwritten, and merged with the other half
    rest = blob(4, number(1, 60)) + blob(3, "file:///") + number(1, 1 << 20, padded_to=9)
    spec = (
        UNKNOWN_FIELDS
        + blob(4, half)
        + blob(3, blob(1, label("content-type", "text/csv")))
        + blob(4, rest, padded_to=4)
        + number(6, 0)
        + number(2, 2)
        + number(2, 1)
        + blob(1, "wire/never")
        + blob(1, "wire/odd")
    )
    change = number(1, 0) + blob(2, spec) + UNKNOWN_FIELDS
    response = await wire.unary("Apply", UNKNOWN_FIELDS + blob(1, change))
    assert 1 not in response
    (listing,) = await wire.streamed("List", b"")
    found = decode(only(decode(only(listing, 3)), 1))
    assert only(found, 1) == b"wire/odd"
    assert only(found, 2) == 1
    assert only(found, 3) == label_set(label("content-type", "text/csv"))
    fragment = decode(only(found, 4))
    assert (only(fragment, 1), only(fragment, 2), only(fragment, 3)) == (1 << 20, 3, b"file:///")
    assert only(fragment, 4) == number(1, 60)
    assert 8 not in found  # absent, which is not the same as a suspension of level NONE


async def test_a_spec_that_others_wrote_to_etcd_is_served(etcd, wire, etcd_prefix):
    raw = UNKNOWN_FIELDS + journal_spec("wire/foreign")
    await etcd.put(item_key(etcd_prefix, "wire/foreign"), raw)

    async def known():
        response = await wire.append(blob(2, "wire/foreign"), blob(4, b"x"), b"")
        return response if response.get(1) != [_JOURNAL_NOT_FOUND] else None

    assert 1 not in await eventually(known)
    assert (await wire.read(blob(2, "wire/foreign")))[0] == b"x"


async def test_names_with_meta_are_for_calls_and_not_for_specs(wire, journal):
    named = f"{journal};some/meta"
    response = await wire.append(blob(2, named), blob(4, b"abc"), b"")
    assert only(decode(only(response, 3)), 1) == journal.encode()
    content, others = await wire.read(blob(2, named))
    assert content == b"abc"
    assert only(decode(only(others[0], 5)), 1) == journal.encode()
    listed = await wire.unary("ListFragments", blob(2, named))
    assert only(decode(only(decode(only(listed, 3)), 1)), 1) == journal.encode()
    with pytest.raises(aio.AioRpcError) as failed:
        await wire.unary("Apply", create(journal_spec("wire/other;meta")))
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    assert failed.value.details().startswith("Changes[0].Upsert")


# ---------------------------------------------------------------------------------------- appends
async def test_the_answer_to_an_append(wire, journal, broker):
    response = await wire.append(blob(2, journal), blob(4, b"foo"), blob(4, b"bar"), b"")
    assert set(response) == {2, 3, 4, 5}  # OK and "no delayed chunks" are zero, so left out
    header = decode(only(response, 2))
    own = decode(only(header, 1))
    assert (only(own, 1), only(own, 2)) == (b"local", b"broker-0")
    route = decode(only(header, 2))
    assert only(route, 1) == only(header, 1)
    assert 2 not in route  # the primary is member 0
    assert only(route, 3) == f"http://127.0.0.1:{broker.port}".encode()
    assert set(decode(only(header, 3))) == {1, 2, 3, 4}
    commit = decode(only(response, 3))
    assert set(commit) == {1, 3, 4, 5}  # begins at 0; not stored yet
    assert (only(commit, 1), only(commit, 3), only(commit, 5)) == (journal.encode(), 6, 1)
    assert decode(only(commit, 4)) == sha1_parts(b"foobar")
    assert only(response, 4) == b""  # registers are present, and empty
    assert only(response, 5) == 3


@pytest.mark.parametrize("chunk", [1, 1000, (1 << 15) - 32, 1 << 15, (4 << 20) - 6])
async def test_chunks_of_any_size(wire, journal, chunk):
    content = bytes(range(256)) * (1 if chunk == 1 else 1 << 15)
    pieces = [content[at : at + chunk] for at in range(0, len(content), chunk)]
    response = await wire.append(blob(2, journal), *[blob(4, piece) for piece in pieces], b"")
    commit = decode(only(response, 3))
    assert only(commit, 3) == len(content)
    assert decode(only(commit, 4)) == sha1_parts(content)
    assert only(response, 5) == len(pieces) + 1
    read, others = await wire.read(blob(2, journal))
    assert read == content
    assert only(others[-1], 1) == _OFFSET_NOT_YET_AVAILABLE


@pytest.mark.parametrize(
    "chunk",
    [
        blob(4, b"foobar", padded_to=7),
        blob(4, b"overruled") + blob(4, b"foobar"),
        blob(4, b"") + blob(4, b"foobar"),
        blob(4, b"foobar") + UNKNOWN_FIELDS,
        UNKNOWN_FIELDS + blob(4, b"foobar"),
        blob(2, b"") + number(3, 0) + number(5, 0) + blob(4, b"foobar") + number(9, 0),
    ],
    ids=["padded", "twice", "empty first", "unknown behind", "unknown before", "zeros"],
)
@pytest.mark.parametrize(
    "end", [b"", blob(4, b""), UNKNOWN_FIELDS, number(3, 0)], ids=["", "empty", "unknown", "zero"]
)
async def test_content_and_commit_in_odd_but_legal_encodings(wire, journal, chunk, end):
    first = UNKNOWN_FIELDS + blob(4, b"") + number(10, 1) + number(9, 0) + blob(2, journal)
    response = await wire.append(first, chunk, chunk, end)
    assert decode(only(decode(only(response, 3)), 4)) == sha1_parts(b"foobarfoobar")
    assert (await wire.read(blob(2, journal)))[0] == b"foobarfoobar"


async def test_compressed_messages(wire, journal):
    chunk = blob(4, b"a" * 100_000)
    response = await wire.append(blob(2, journal), chunk, b"", compression=grpc.Compression.Gzip)
    assert only(decode(only(response, 3)), 3) == 100_000


@pytest.mark.parametrize(
    "chunk",
    [
        b"\x22\x05abc",
        b"\x22\x80",
        number(4, 1) + b"\xff",
        blob(4, b"abc") + blob(2, "wire/journal"),
        number(5, 1) + blob(4, b"abc"),
    ],
    ids=["truncated", "no length", "garbage", "with a journal", "with an offset"],
)
async def test_a_bad_chunk_fails_its_append_and_nothing_else(wire, journal, chunk):
    with pytest.raises(aio.AioRpcError) as failed:
        await wire.append(blob(2, journal), blob(4, b"lost"), chunk, b"")
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    await wire.append(blob(2, journal), blob(4, b"kept"), b"")
    assert (await wire.read(blob(2, journal)))[0] == b"kept"


async def test_a_message_beyond_the_limit_is_refused(wire, journal):
    call = wire.channel.stream_unary("/protocol.Journal/Append")(timeout=_DEADLINE_S)
    await call.write(blob(2, journal))
    with contextlib.suppress(*CALL_ERRORS):
        await call.write(blob(4, bytes((4 << 20) - 4)))
        await call.write(b"")
        await call.done_writing()
    # grpc.aio reports its own write that failed, if it learns of that before the broker's status.
    own = (grpc.StatusCode.INTERNAL, "Internal error from Core")
    refused = (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SERVER: Received message larger than max (4194305 vs. 4194304)",
    )
    assert (await call.code(), await call.details()) in {own, refused}
    assert (await wire.read(blob(2, journal)))[0] == b""


@pytest.mark.parametrize("method", ["Apply", "ListFragments", "FragmentStoreHealth"])
async def test_a_malformed_request_is_an_error(wire, method):
    with pytest.raises(aio.AioRpcError) as failed:
        await wire.unary(method, b"\x0a\x7f")
    assert failed.value.code() is grpc.StatusCode.INTERNAL


# ------------------------------------------------------------------------------------------ reads
async def test_the_answer_to_a_read(wire, journal):
    await wire.append(blob(2, journal), blob(4, b"foobar"), b"")
    content, (first, last) = await wire.read(number(3, 2, padded_to=6) + blob(2, journal))
    assert content == b"obar"
    assert set(first) == {2, 3, 4, 5}
    assert (only(first, 3), only(first, 4)) == (2, 6)
    fragment = decode(only(first, 5))
    assert (only(fragment, 3), only(fragment, 5)) == (6, 1)
    assert decode(only(fragment, 4)) == sha1_parts(b"foobar")
    assert last == {1: [_OFFSET_NOT_YET_AVAILABLE], 3: [6], 4: [6]}  # no header: not the first


async def test_a_read_from_the_head_and_one_of_metadata(wire, journal):
    await wire.append(blob(2, journal), blob(4, b"foobar"), b"")
    content, (head,) = await wire.read(blob(2, journal) + number(3, -1))
    assert content == b""
    assert (only(head, 1), only(head, 3), only(head, 4)) == (_OFFSET_NOT_YET_AVAILABLE, 6, 6)
    assert 5 not in head
    # Any number but 0 is true.
    content, (metadata,) = await wire.read(number(6, 1 << 40) + blob(2, journal))
    assert content == b""
    assert only(metadata, 4) == 6


async def test_a_read_of_what_is_not_there(wire):
    content, (answer,) = await wire.read(blob(2, "wire/none"))
    assert content == b""
    assert set(answer) == {1, 2}
    assert only(answer, 1) == _JOURNAL_NOT_FOUND
    route = decode(only(decode(only(answer, 2)), 2))
    assert route == {2: [(1 << 64) - 1]}  # no member, and primary -1


# ---------------------------------------------------------------------------------------- headers
async def etcd_of(wire) -> tuple[int, int]:
    """Cluster and revision, as the broker sees them."""
    (listing,) = await wire.streamed("List", b"")
    state = decode(only(decode(only(listing, 2)), 3))
    return only(state, 1), only(state, 3)


STALE_ROUTE = blob(1, blob(1, "za") + blob(2, "gone-broker")) + blob(3, "http://gone:1")


@pytest.mark.parametrize("process", [None, b"", blob(1, "local") + blob(2, "broker-0")])
async def test_headers_with_stale_routes_are_those_of_proxies(wire, journal, process):
    cluster, _ = await etcd_of(wire)
    header = blob(2, STALE_ROUTE) + blob(3, etcd_state(cluster, 1))
    if process is not None:
        header = blob(1, process) + header
    response = await wire.append(blob(1, header) + blob(2, journal), blob(4, b"abc"), b"")
    assert 1 not in response
    content, _ = await wire.read(blob(1, header) + blob(2, journal))
    assert content == b"abc"
    listed = await wire.unary("ListFragments", blob(1, header) + blob(2, journal))
    assert len(listed[3]) == 1


async def test_headers_of_another_cluster_or_for_another_process_are_refused(wire, journal):
    cluster, revision = await etcd_of(wire)
    route = blob(2, number(2, -1))
    other_cluster = route + blob(3, etcd_state(cluster ^ 1, revision))
    other_process = blob(1, blob(1, "local") + blob(2, "other")) + route
    other_process += blob(3, etcd_state(cluster, revision))
    for header, text in (
        (
            other_cluster,
            f"request Etcd ClusterId doesn't match our own ({cluster ^ 1} vs {cluster}",
        ),
        (other_process, "request ProcessId doesn't match our own ("),
    ):
        with pytest.raises(aio.AioRpcError) as failed:
            await wire.append(blob(1, header) + blob(2, journal), b"")
        assert failed.value.code() is grpc.StatusCode.UNKNOWN
        assert text in failed.value.details()


async def test_a_header_from_the_future_waits_for_its_revision(wire, journal):
    await wire.append(blob(2, journal), b"")  # it is assigned: the revision rests from now on
    cluster, revision = await etcd_of(wire)
    header = blob(2, number(2, -1)) + blob(3, etcd_state(cluster, revision + 1))
    read = wire.channel.unary_stream("/protocol.Journal/Read")
    call = read(blob(1, header) + blob(2, "wire/later"), timeout=_DEADLINE_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await call.read()
    # A wait that is given up ends the call, so it is made again.
    call = read(blob(1, header) + blob(2, "wire/later"), timeout=_DEADLINE_S)
    await wire.unary("Apply", create(journal_spec("wire/later")))
    answer = decode(await call.read())
    call.cancel()
    assert only(answer, 1, 0) != _JOURNAL_NOT_FOUND


# ------------------------------------------------------------------------------------------ lists
async def test_chunks_of_a_listing(wire):
    names = [f"wire/{n:02d}" for n in range(60)]
    await wire.unary("Apply", create(*map(journal_spec, names)))
    first, *rest = await wire.streamed("List", b"")
    assert [len(message[3]) for message in (first, *rest)] == [25, 25, 10]
    header = decode(only(first, 2))
    assert decode(only(header, 2)) == {2: [(1 << 64) - 1]}
    assert all(set(message) == {3} for message in rest)
    listed = [decode(raw) for message in (first, *rest) for raw in message[3]]
    assert [only(decode(only(each, 1)), 1).decode() for each in listed] == names
    assert all(set(each) == {1, 2, 3, 4} for each in listed)


async def test_selectors_in_odd_but_legal_encodings(wire):
    names = ["wire/a/one", "wire/a/two", "wire/b/one"]
    await wire.unary("Apply", create(*map(journal_spec, names)))

    async def found(request: bytes) -> list[str]:
        (listing,) = await wire.streamed("List", request)
        journals = listing.get(3, [])
        return [only(decode(only(decode(raw), 1)), 1).decode() for raw in journals]

    assert await found(selector(label("prefix", "wire/a/"))) == names[:2]
    assert await found(selector(label("name", "wire/a/", prefix=True))) == names[:2]
    # Fields 2 and 3 were a page limit and token long ago: writers of then may still send them.
    assert await found(number(2, 1) + blob(3, "token") + UNKNOWN_FIELDS) == names
    # Two selectors merge: the labels of both are included.
    merged = selector(label("name", names[0])) + selector(label("name", names[2]))
    assert await found(merged) == [names[0], names[2]]


async def test_a_watch_ends_each_snapshot_with_an_empty_message(wire, journal):
    call = wire.channel.unary_stream("/protocol.Journal/List")(number(4, 1), timeout=_DEADLINE_S)
    first = decode(await call.read())
    assert len(first[3]) == 1
    assert await call.read() == b""
    await wire.unary("Apply", create(journal_spec("wire/second")))
    second = decode(await call.read())
    assert len(second[3]) == 2
    assert await call.read() == b""
    call.cancel()
    # Resumed, by the header of the first: only what is newer.
    resumed = wire.channel.unary_stream("/protocol.Journal/List")(
        number(4, 1) + blob(5, only(first, 2)), timeout=_DEADLINE_S
    )
    assert len(decode(await resumed.read())[3]) == 2
    resumed.cancel()
