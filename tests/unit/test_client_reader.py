import asyncio
import dataclasses
import gzip
import hashlib
import io
import random
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest

from gazette_platform.client import AsyncClient, Client, ClientConfig
from gazette_platform.client.read.store_reader import read_fragment
from gazette_platform.client.transport import Patience
from gazette_platform.codecs import compressor
from gazette_platform.errors import (
    CallFailed,
    ChecksumMismatch,
    DataError,
    JournalNotFound,
    ObjectNotFound,
    OffsetJump,
    StatusError,
    StoreUnavailable,
    Suspended,
    TransportError,
    ValidationError,
)
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import CompressionCodec, Fragment
from gazette_platform.protocol.content import encode_read_content
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.interface import Code, RpcFailed
from gazette_platform.testing.fault_proxy import FaultProxy
from gazette_platform.testing.waiting import eventually, turns
from tests.benches.fake_broker import FakeBroker, Fault


@asynccontextmanager
async def connected(content=b"", **config):
    async with FakeBroker() as broker:
        broker.journal("a/journal", content)
        async with AsyncClient(ClientConfig(address=broker.address, **config)) as client:
            yield broker, client


async def test_re2_read_ends_at_the_write_head():
    content = bytes(range(256)) * 1000
    async with connected(content) as (_, client):
        async with client.read("a/journal", 10) as reader:
            assert b"".join([bytes(piece) async for piece in reader]) == content[10:]
        assert reader.offset == reader.write_head == len(content)
        assert reader.fragment is not None


async def test_read_ends_at_end_offset():
    async with connected(b"0123456789") as (_, client):
        assert await client.read("a/journal", 2, end_offset=5).read() == b"234"
        assert await client.read("a/journal", 2, end_offset=5, block=True).read() == b"234"


async def test_re3_read_as_file_returns_existing_content():
    async with connected(b"0123456789") as (_, client):
        reader = client.read("a/journal")
        assert await reader.read(4) == b"0123"
        assert reader.buffered_bytes == 6
        assert reader.offset - reader.buffered_bytes == 4
        assert await reader.read(100) == b"456789"
        assert (reader.offset, reader.buffered_bytes) == (10, 0)
        assert await reader.read(1) == b""


async def test_rr1_tail_waits_for_content_after_the_head():
    async with connected(b"old") as (broker, client):
        reader = client.tail("a/journal")
        first = asyncio.get_running_loop().create_task(anext(reader))
        await eventually(lambda: reader.write_head == 3)
        await turns(5)
        assert not first.done()
        await broker.extend("a/journal", b"new")
        assert bytes(await first) == b"new"
        assert reader.offset == 6
        await reader.aclose()


async def test_rr1_broken_streams_are_resumed_where_they_stopped():
    async with connected(b"one") as (broker, client):
        reader = client.read("a/journal", block=True)
        assert bytes(await anext(reader)) == b"one"
        broker.fail(
            "Read",
            Fault(code=grpc.StatusCode.UNAVAILABLE),
            Fault(status=pb.INSUFFICIENT_JOURNAL_BROKERS),
            Fault(status=pb.NOT_JOURNAL_BROKER),
        )
        reader._drop()
        await broker.extend("a/journal", b"two")
        assert bytes(await anext(reader)) == b"two"
        assert broker.calls["Read"] == 5
        await reader.aclose()


async def test_re5_cancelled_wait_loses_nothing():
    async with connected() as (broker, client):
        reader = client.read("a/journal", block=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.02)
        await broker.extend("a/journal", b"later")
        assert bytes(await anext(reader)) == b"later"
        await reader.aclose()


async def test_re5_rr1_closing_ends_a_waiting_read():
    async with connected() as (broker, client):
        reader = client.read("a/journal", block=True)
        waiting = asyncio.get_running_loop().create_task(reader._next())
        await eventually(lambda: broker.calls["Read"] == 1)
        await reader.aclose()
        assert await waiting is None


async def test_rr1_offset_jump_is_raised_once_and_reading_goes_on():
    async with connected(b"tail") as (broker, client):
        broker.journals["a/journal"].begin = 100
        reader = client.read("a/journal", 7)
        with pytest.raises(OffsetJump) as caught:
            await anext(reader)
        assert (caught.value.from_offset, caught.value.to_offset) == (7, 100)
        assert await reader.read() == b"tail"
        assert await client.read("a/journal", 7, on_jump="continue").read() == b"tail"


async def test_re2_read_from_the_head_is_not_a_jump():
    async with connected(b"tail") as (broker, client):
        broker.journals["a/journal"].begin = 100
        reader = client.read("a/journal", -1)
        assert await reader.read() == b""
        assert reader.offset == 104
        assert await client.write_head("a/journal") == 104


async def test_metadata_only_reads_no_content():
    async with connected(b"0123456789") as (_, client):
        reader = client.read("a/journal", 3, metadata_only=True)
        assert await reader.read() == b""
        assert (reader.offset, reader.write_head) == (3, 10)
        assert reader.fragment is not None
        assert reader.fragment.end == 10


async def test_re2_read_surfaces_what_will_not_pass():
    async with connected(b"x") as (broker, client):
        with pytest.raises(JournalNotFound):
            await client.read("no/journal").read()
        broker.fail("Read", Fault(status=pb.SUSPENDED))
        with pytest.raises(Suspended):
            await client.read("a/journal").read()
        broker.fail("Read", Fault(code=grpc.StatusCode.UNAUTHENTICATED, details="no token"))
        with pytest.raises(CallFailed, match=r"no token \(check the auth token or keys\)"):
            await client.read("a/journal").read()
        with pytest.raises(ValidationError, match="end_offset 3 is before offset 5"):
            client.read("a/journal", 5, end_offset=3)


def stored(broker, tmp_path, content, *, codec=CompressionCodec.GZIP, sum_of=None, end=None):
    """Point reads of the journal to a fragment in a file."""
    digest = hashlib.sha1(content if sum_of is None else sum_of).digest()
    journal = broker.journals["a/journal"]
    fragment = Fragment(
        "a/journal", 0, end or len(content), digest, codec, "file:///", 1000, "date=1"
    )
    file = tmp_path / fragment.content_path
    file.parent.mkdir(parents=True)
    if codec is CompressionCodec.GZIP:
        half = len(content) // 2
        file.write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    else:
        file.write_bytes(content)
    journal.fragment, journal.fragment_url = fragment, f"file:///{fragment.content_path}"
    journal.content = bytearray(b"?" * fragment.content_length + b"live")
    return file


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.GZIP])
async def test_re1_re2_direct_read_fetches_history_and_tails_at_the_broker(tmp_path, codec):
    content = b"history " * 1000
    async with connected(file_root=tmp_path) as (broker, client):
        stored(broker, tmp_path, content, codec=codec)
        assert await client.read("a/journal", direct=True).read() == content + b"live"
        assert await client.read("a/journal", 7995, direct=True).read() == content[7995:] + b"live"
        part = await client.read("a/journal", 10, end_offset=20, direct=True).read()
        assert part == content[10:20]
        assert await client.read("a/journal").read() == b"?" * 8000 + b"live"


async def test_re1_direct_read_checks_digest_and_length(tmp_path):
    async with connected(file_root=tmp_path) as (broker, client):
        stored(broker, tmp_path / "sum", b"history", sum_of=b"other")
    async with connected(file_root=tmp_path / "sum") as (broker, client):
        stored(broker, tmp_path / "sum" / "again", b"history", sum_of=b"other")
        with pytest.raises(
            ChecksumMismatch, match="expected d0941e68da8f38151ff86a61fc59f7c5cf9fc"
        ):
            await client.read("a/journal", direct=True).read()
    for name, end, text in (("long", 3, "longer than its name"), ("short", 9, "unexpected EOF")):
        async with connected(file_root=tmp_path / name) as (broker, client):
            stored(broker, tmp_path / name, b"history", end=end)
            with pytest.raises(DataError, match=text):
                await client.read("a/journal", direct=True).read()


async def test_re1_direct_read_falls_back_to_brokers(tmp_path):
    async with connected(file_root=tmp_path) as (broker, client):
        stored(broker, tmp_path, b"history").unlink()
        assert await client.read("a/journal", direct=True).read() == b"???????live"


async def test_synchronous_reader_is_a_file():
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"one\ntwo\nthree\n")

        def run():
            with Client(ClientConfig(address=broker.address)) as client:
                with client.read("a/journal") as reader:
                    assert io.BufferedReader(reader).readlines() == [b"one\n", b"two\n", b"three\n"]
                with client.read("a/journal", 4) as reader:
                    assert reader.read(2) == b"tw"
                    assert reader.offset == 6
                    assert b"".join(reader.pieces()) == b"o\nthree\n"
                assert list(client.read("a/journal").lines()) == [[b"one", b"two", b"three"]]
                with pytest.raises(ValueError, match="closed file"):
                    reader.read(1)

        await asyncio.to_thread(run)


async def test_synchronous_tail_is_ended_by_close():
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"{}\n")

        with Client(ClientConfig(address=broker.address)) as client:
            reader = client.tail("a/journal", 0)
            batches = reader.json_lines()
            assert await asyncio.to_thread(next, batches) == [{}]
            loop = reader._loop._loop
            before = asyncio.all_tasks(loop)
            waiting = asyncio.get_running_loop().create_task(asyncio.to_thread(next, batches, None))
            await eventually(lambda: asyncio.all_tasks(loop) - before)
            reader.close()
            assert await waiting is None


# ------------------------------------------------------------------------ what brokers may answer
def metadata(offset=0, *, begin=0, end=0, head=0, status=pb.OK, url=""):
    response = pb.ReadResponse(status=status, offset=offset, write_head=head, fragment_url=url)
    response.header.CopyFrom(FakeBroker().header())
    if end:
        fragment = Fragment("a/journal", begin, end, b"\1" * 20)
        response.fragment.CopyFrom(fragment.to_pb())
    return response.SerializeToString()


def failed(code=Code.UNAVAILABLE, text="broken"):
    return RpcFailed(code, text)


class Script:
    """Answers of brokers, one list an RPC; they end with the RPC, in order or with an error."""

    endpoint = "http://script"

    def __init__(self, *answers):
        self.answers = [*answers]
        self.requests = []
        self.calls = 0
        self.current = []

    async def connected(self):
        return True

    def read(self, request, metadata):
        self.requests.append(pb.ReadRequest.FromString(request))
        return Call(self.answers.pop(0))


class Call:
    def __init__(self, messages):
        self.messages = [*messages]

    async def next(self):
        await turns()
        if not self.messages:
            return None
        message = self.messages.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    def cancel(self):
        pass


@pytest.fixture
async def scripted(monkeypatch):
    """Makes a client whose brokers answer by a script."""
    async with AsyncClient(ClientConfig(address="http://127.0.0.1:1")) as client:

        def make(*answers):
            script = Script(*answers)
            monkeypatch.setattr(client._transport, "wire", lambda _: script)
            return client, script

        yield make


async def test_re2_a_jump_keeps_fragment_and_head_through_small_reads(scripted):
    client, _ = scripted(
        [
            metadata(110, begin=110, end=120, head=140),
            encode_read_content(110, b"abc"),
            encode_read_content(113, b"defghi"),
            metadata(119, head=140, status=pb.OFFSET_NOT_YET_AVAILABLE),
        ]
    )
    reader = client.read("a/journal", 105, on_jump="continue")
    assert [await reader.read(2) for _ in range(6)] == [b"ab", b"c", b"de", b"fg", b"hi", b""]
    assert (reader.offset, reader.write_head) == (119, 140)
    assert (reader.fragment.begin, reader.fragment.end) == (110, 120)


async def test_re2_an_unknown_status_is_an_error(scripted):
    client, _ = scripted([metadata(status=1000)])
    with pytest.raises(StatusError, match="unknown status 1000"):
        await client.read("a/journal").read()


@pytest.mark.parametrize(
    "back", [metadata(99, begin=50, end=120, head=120), encode_read_content(99, b"again")]
)
async def test_re2_an_offset_that_goes_back_is_an_error(scripted, back):
    client, _ = scripted(
        [metadata(100, begin=50, end=120, head=120), encode_read_content(100, b"xx"), back]
    )
    reader = client.read("a/journal", 100)
    assert bytes(await anext(reader)) == b"xx"
    with pytest.raises(DataError, match=r"invalid ReadResponse offset \(99; expected >= 102\)"):
        await anext(reader)
    assert reader.offset == 102


async def test_re2_failed_partial_response_raises_after_its_content(scripted):
    client, _ = scripted(
        [
            metadata(0, end=9, head=9),
            encode_read_content(0, b"par"),
            failed(Code.UNKNOWN, "tial"),
        ]
    )
    reader = client.read("a/journal")
    assert await reader.read(10) == b"par"
    with pytest.raises(CallFailed, match="tial"):
        await reader.read(10)
    assert reader.offset == 3


async def test_re2_an_invalid_response_is_an_error(scripted):
    headless = pb.ReadResponse(header=pb.Header(route=pb.Route(primary=-1))).SerializeToString()
    client, _ = scripted([headless])
    with pytest.raises(DataError, match=r"Header\.Etcd: invalid ClusterId"):
        await client.read("a/journal").read()


async def test_rr1_the_end_offset_holds_over_restarts(scripted):
    client, script = scripted(
        [metadata(4, end=9, head=9), encode_read_content(4, b"56"), failed()],
        [metadata(6, end=9, head=9), encode_read_content(6, b"78")],
        [failed(Code.DEADLINE_EXCEEDED)],
        [metadata(8, end=9, head=9), encode_read_content(8, b"9")],
    )
    assert await client.read("a/journal", 4, end_offset=9).read() == b"56789"
    assert [(r.offset, r.end_offset) for r in script.requests] == [(4, 9), (6, 9), (8, 9), (8, 9)]


async def test_rr1_a_blocking_read_goes_on_at_the_head(scripted):
    client, script = scripted(
        [metadata(3, head=3, status=pb.OFFSET_NOT_YET_AVAILABLE)],
        [metadata(3, end=6, head=6), encode_read_content(3, b"new"), failed()],
    )
    reader = client.read("a/journal", -1, block=True)
    assert bytes(await anext(reader)) == b"new"
    assert [(r.offset, r.block) for r in script.requests] == [(-1, False), (3, True)]


async def test_rr2_streams_that_trickle_end_early_or_time_out_give_everything_once(scripted):
    content = b"0123456789abcdef"
    answers, at = [], 0
    endings = [[], [failed()], [failed(Code.DEADLINE_EXCEEDED)]]
    while at < len(content):
        end = min(at + 1 + len(answers) % 3, len(content))
        pieces = [encode_read_content(n, content[n : n + 1]) for n in range(at, end)]
        answers.append([metadata(at, end=16, head=16), *pieces, *endings[len(answers) % 3]])
        answers.append([failed()])
        at = end
    answers.append([metadata(16, head=16, status=pb.OFFSET_NOT_YET_AVAILABLE)])
    client, script = scripted(*answers)
    client._transport.random = random.Random(1)
    assert await client.read("a/journal").read() == content
    assert not script.answers


# ------------------------------------------------------------------------ fragments by their URLs
class Stored(BaseHTTPRequestHandler):
    """Serves what its server's `files` hold."""

    def do_GET(self):
        stored = self.server.files.get(self.path)
        self.send_response(200 if stored is not None else 404)
        self.end_headers()
        self.wfile.write(stored or b"no such thing")

    def log_message(self, *_):
        pass


@pytest.fixture
def http_store():
    with ThreadingHTTPServer(("127.0.0.1", 0), Stored) as server:
        server.files = {}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def fetched(fragment, url, offset=100):
    return b"".join([piece async for piece in read_fragment(fragment, url, offset=offset)])


def fragment_of(content, *, codec=CompressionCodec.SNAPPY, more=0):
    digest = hashlib.sha1(content).digest()
    return Fragment("a/journal", 100, 100 + len(content) + more, digest, codec)


async def test_re1_a_fragment_is_fetched_from_its_url(http_store):
    server, url = http_store
    content = b"XXXXXremote fragment content"
    snappy = compressor(CompressionCodec.SNAPPY)
    server.files["/fine"] = stored = snappy.compress(content)
    assert await fetched(fragment_of(content), f"{url}/fine") == content
    assert await fetched(fragment_of(content), f"{url}/fine", 105) == content[5:]
    with pytest.raises(DataError, match=r"unexpected EOF at offset 128, expected 129"):
        await fetched(fragment_of(content, more=1), f"{url}/fine")
    with pytest.raises(DataError, match=r"did not read EOF at expected Fragment\.End \(127\)"):
        await fetched(fragment_of(content, more=-1), f"{url}/fine")
    with pytest.raises(ObjectNotFound) as caught:
        await fetched(fragment_of(content), f"{url}/missing")
    assert str(caught.value) == f'!OK fetching (404, "{url}/missing")'
    server.files["/bad"] = stored[:-1] + bytes([stored[-1] ^ 1])
    with pytest.raises(DataError, match=f"{url}/bad: "):
        await fetched(fragment_of(content), f"{url}/bad")
    server.files["/short"] = stored[:-3]
    with pytest.raises(DataError, match=f"{url}/short: "):
        await fetched(fragment_of(content), f"{url}/short")


async def test_errors_do_not_show_the_signature_of_a_url(http_store):
    server, url = http_store
    content, signed = b"remote fragment content", "?X-Amz-Signature=secret"
    server.files[f"/bad{signed}"] = compressor(CompressionCodec.SNAPPY).compress(content)[:-3]
    with pytest.raises(DataError, match=f"{url}/bad: ") as damaged:
        await fetched(fragment_of(content), f"{url}/bad{signed}")
    with pytest.raises(ObjectNotFound, match=f"{url}/missing") as missing:
        await fetched(fragment_of(content), f"{url}/missing{signed}")
    with pytest.raises(StoreUnavailable) as away:
        await fetched(fragment_of(content), f"http://127.0.0.1:1/away{signed}")
    assert not any("secret" in str(each.value) for each in (damaged, missing, away))


@asynccontextmanager
async def proxied(*, clock=None, **config):
    """A client that has not had an answer yet, and a proxy between it and its broker."""
    async with FakeBroker() as broker:
        broker.journal("a/journal", b"old")
        host, _, port = broker.address.removeprefix("http://").partition(":")
        async with FaultProxy(host, int(port)) as proxy:
            settings = ClientConfig(address=proxy.address, **config)
            async with AsyncClient(settings, clock=clock) as client:
                yield broker, proxy, client


async def next_of_tail(client, offset=3):
    async with client.tail("a/journal", offset) as tail:
        return bytes(await anext(tail))


async def next_of_watch(client):
    watch = client.watch("name:prefix=b/")
    found = await anext(watch)
    while not found:
        found = await anext(watch)
    await watch.aclose()
    return found[0].name


@pytest.mark.parametrize(
    ("wait", "expected"),
    [(next_of_tail, b"new"), (next_of_watch, "b/journal")],
    ids=["tail", "watch"],
)
async def test_rr1_what_waits_survives_restarts_of_its_broker(monkeypatch, wait, expected):
    """Each is shorter than its patience, though there are hours between them."""
    clock, connected = ManualClock(), Patience.connected
    connections = []
    monkeypatch.setattr(Patience, "connected", lambda self: connections.append(connected(self)))
    async with proxied(clock=clock, connect_timeout_s=0.1) as (broker, proxy, client):
        waiting = asyncio.get_running_loop().create_task(wait(client))
        async with asyncio.timeout(20):
            for _ in range(3):
                seen = len(connections)
                await eventually(lambda seen=seen: len(connections) > seen)
                clock.advance(3600)
                proxy.reset()
            broker.journal("b/journal")
            broker.revision += 1
            await broker.extend("a/journal", b"new")
            assert await waiting == expected


async def test_rr1_an_idle_tail_outlives_the_time_that_connecting_may_take():
    async with proxied(connect_timeout_s=0.1) as (broker, proxy, client):
        waiting = asyncio.get_running_loop().create_task(next_of_tail(client))
        await eventually(lambda: broker.calls["Read"] == 1)
        began = asyncio.get_running_loop().time()
        proxy.refuse()
        await eventually(lambda: waiting.done() or asyncio.get_running_loop().time() > began + 0.5)
        await proxy.heal()
        await eventually(lambda: waiting.done() or broker.calls["Read"] == 2)
        await broker.extend("a/journal", b"new")
        assert await waiting == b"new"


async def test_rr1_a_tail_misses_nothing_that_is_appended_while_it_has_no_broker():
    async with proxied() as (broker, proxy, client):
        waiting = asyncio.get_running_loop().create_task(next_of_tail(client, -1))
        await eventually(lambda: broker.requests and broker.requests[-1].block)
        proxy.refuse()
        await broker.extend("a/journal", b"new")
        await proxy.heal()
        async with asyncio.timeout(10):
            assert await waiting == b"new"


async def test_rr1_a_broker_that_takes_each_read_and_ends_it_is_not_asked_for_ever(scripted):
    told = pb.ReadResponse(offset=0, write_head=9, header=FakeBroker().header())
    answers = [[told.SerializeToString()] if n % 2 else [] for n in range(1000)]
    client, script = scripted(*answers)
    client._transport.config = dataclasses.replace(client.config, retry_timeout_s=0.4)
    with pytest.raises(TransportError, match="the broker ended the stream"):
        await anext(client.read("a/journal", block=True))
    assert len(script.requests) == 5


async def test_a_broker_that_was_never_reached_is_not_waited_for():
    async with proxied(connect_timeout_s=0.1) as (_, proxy, client):
        proxy.refuse()
        with pytest.raises(TransportError, match="is it running"):
            await next_of_tail(client)


async def test_re1_a_read_may_end_where_it_begins_and_not_before():
    async with connected(b"0123456789") as (_, client):
        assert await client.read("a/journal", 4, end_offset=4).read() == b""
        assert await client.read("a/journal", 4, end_offset=5).read() == b"4"
        with pytest.raises(ValidationError, match="end_offset 3 is before offset 4"):
            client.read("a/journal", 4, end_offset=3)


async def test_re1_a_journal_that_was_found_may_be_unknown_for_a_while_again(scripted):
    """To a broker that has just started, some hours later."""
    unknown = [[metadata(0, head=0, status=pb.JOURNAL_NOT_FOUND)]] * 2
    client, script = scripted(
        *unknown,
        [metadata(4, end=9, head=9), encode_read_content(4, b"56"), failed()],
        *unknown,
        [metadata(6, end=9, head=9), encode_read_content(6, b"789")],
    )
    assert await client.read("a/journal", 4, end_offset=9).read() == b"56789"
    assert len(script.requests) == 6


async def test_a_fragment_that_cannot_be_is_not_believed(monkeypatch):
    async with connected(b"0123456789") as (broker, client):
        monkeypatch.setattr(broker.journals["a/journal"], "name", "a/ journal")
        async with client.read("a/journal") as reader:
            with pytest.raises(DataError, match=r"Fragment\.Journal: not a valid token"):
                await anext(reader)
        assert reader.fragment is None
