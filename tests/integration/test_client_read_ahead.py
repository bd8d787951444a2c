"""Direct reads against a real broker: history comes from the store, fetched ahead."""

import asyncio
import contextlib
import hashlib
import os
import random
from contextlib import asynccontextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gazette_platform.client import AsyncClient, Change, Client, ClientConfig
from gazette_platform.errors import ChecksumMismatch, DataError, OffsetJump
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = pytest.mark.etcd
FRAGMENTS = 12
SIZE = 1 << 20


@asynccontextmanager
async def client_of(shared, **config):
    settings = ClientConfig(address=shared.address, file_root=shared.fragments, **config)
    async with AsyncClient(settings) as client:
        yield client


@pytest.fixture
def name(names):
    return names.prefix


async def filled(client, name, codec=CompressionCodec.GZIP, fragments=FRAGMENTS):
    """A journal of several stored fragments and some content after them; its content."""
    spec = JournalSpec(
        name=name,
        replication=1,
        fragment=FragmentSpec(
            length=SIZE, codec=codec, stores=("file:///",), refresh_interval_ns=SECOND_NS
        ),
    )
    await client.apply([Change(spec)])
    rng = random.Random(name)
    content = bytearray()
    for _ in range(fragments):
        piece = rng.randbytes(SIZE // 2) + bytes(SIZE // 2)
        await client.append(name, piece)
        content += piece
        await client.flush(f"name={name}")
    await client.append(name, b"not stored yet")
    return bytes(content + b"not stored yet")


async def read_into(got, reader):
    async for piece in reader:
        got += piece


async def stored(client, name):
    return [each.fragment for each in await client.fragments(name) if each.is_persisted]


@pytest.mark.parametrize(
    "codec", [CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD]
)
async def test_history_comes_from_the_store_and_the_rest_from_the_broker(client, name, codec):
    content = await filled(client, name, codec)
    served = []
    reader = client.read(name, 100, direct=True)
    original = reader._next_served

    async def next_served():
        piece = await original()
        served.append(bytes(piece or b""))
        return piece

    reader._next_served = next_served
    async with reader:
        assert await reader.read() == content[100:]
    assert b"".join(served) == b"not stored yet"
    assert client._transport.read_ahead.held_bytes == 0


async def test_one_call_plans_many_fragments(client, name):
    content = await filled(client, name)
    end = len(content) - len(b"not stored yet")
    async with client.read(name, direct=True, end_offset=end) as reader:
        calls = 0
        original = reader._start

        async def start():
            nonlocal calls
            calls += 1
            await original()

        reader._start = start
        assert await reader.read() == content[:end]
        assert calls == 1
        assert reader.fragment.end == end


async def test_memory_is_bounded_by_bytes_and_given_back(shared, name):
    async with client_of(shared, read_ahead_bytes_max=2 << 20) as client:
        content = await filled(client, name)
        pool = client._transport.read_ahead
        reader = client.read(name, direct=True)
        first = await anext(reader)
        # Nothing is read: what is fetched ahead grows up to the bound, and a step of each thread.
        await eventually(lambda: pool.held_bytes >= 1 << 20)
        bytes_max = (2 << 20) + pool.threads * (1 << 20)
        await stays(lambda: pool.held_bytes <= bytes_max, for_s=0.2)
        rest = await reader.read()
        assert bytes(first) + rest == content
        assert pool.held_bytes == 0


async def test_readers_that_pause_do_not_hold_up_another(shared, name):
    async with client_of(shared, read_ahead_bytes_max=2 << 20) as client:
        content = await filled(client, name)
        paused = [client.read(name, direct=True) for _ in range(5)]
        for reader in paused:
            await anext(reader)
        async with asyncio.timeout(patient(60)), client.read(name, direct=True) as reader:
            assert await reader.read() == content
        for reader in paused:
            await reader.aclose()
        assert client._transport.read_ahead.held_bytes == 0


async def test_early_close_ends_all_fetching(client, name):
    await filled(client, name)
    pool = client._transport.read_ahead
    fds = Path("/proc/self/fd")
    for _ in range(10):
        async with client.read(name, direct=True) as reader:
            await anext(reader)
    assert pool.held_bytes == 0

    def is_open():
        found = []
        for fd in fds.iterdir():
            with contextlib.suppress(OSError):  # closed since
                found.append(str(fd.readlink()))
        return any(path.endswith(".gz") and name in path for path in found)

    await eventually(lambda: not is_open())


async def test_a_cancelled_read_loses_nothing(client, name):
    content = await filled(client, name)
    reader, got, is_cancelled = client.read(name, direct=True), bytearray(), False
    async with asyncio.timeout(patient(60)):
        while len(got) < len(content):
            try:
                patience_s, is_cancelled = (10, False) if is_cancelled else (0.0005, True)
                async with asyncio.timeout(patience_s):
                    piece = await anext(reader, None)
            except TimeoutError:
                continue
            if piece is None:
                break
            got += piece
    assert got == content
    await reader.aclose()


@pytest.mark.parametrize("missing", [1, 5, FRAGMENTS - 1])
async def test_a_fragment_that_is_gone_is_read_through_the_broker(client, shared, name, missing):
    content = await filled(client, name)
    fragment = (await stored(client, name))[missing]
    path = shared.fragments / fragment.content_path
    aside = path.with_name(".aside")
    path.rename(aside)
    reader, got = client.read(name, direct=True), bytearray()
    original = reader._store_failed
    failed = []

    def store_failed(store, err):
        failed.append(store.current.fragment)
        aside.rename(path)  # it is back by the time that the broker looks
        original(store, err)

    reader._store_failed = store_failed
    async with asyncio.timeout(patient(60)), reader:
        async for piece in reader:
            assert reader.offset == len(got) + len(piece)
            got += piece
    assert got == content
    assert [each.begin for each in failed] == [fragment.begin]
    assert reader._is_direct


async def test_a_fragment_that_is_damaged_fails_clearly(client, shared, name):
    content = await filled(client, name, CompressionCodec.NONE)
    fragment = (await stored(client, name))[3]
    path = shared.fragments / fragment.content_path
    good = path.read_bytes()
    path.chmod(0o640)
    path.write_bytes(b"\xff" + good[1:])
    got = bytearray()
    with pytest.raises(ChecksumMismatch, match=fragment.content_name):
        await read_into(got, client.read(name, direct=True))
    assert got[: fragment.begin] == content[: fragment.begin]
    assert len(got) == fragment.end
    path.write_bytes(good[:-5])
    with pytest.raises(DataError, match="unexpected EOF"):
        await client.read(name, direct=True).read()
    path.write_bytes(good)
    assert await client.read(name, direct=True).read() == content


async def test_pruned_fragments_in_the_middle_are_a_jump(client, shared, name):
    content = await filled(client, name)
    gone = (await stored(client, name))[4:6]
    for fragment in gone:
        path = shared.fragments / fragment.content_path
        path.unlink()
    old = (await stored(client, name))[6:]
    for fragment in old:  # the gap is an old one, which readers go over
        os.utime(shared.fragments / fragment.content_path, (1, 1))

    async def is_noticed():
        return all(each.begin != gone[0].begin for each in await stored(client, name))

    async with asyncio.timeout(patient(60)):
        await eventually(is_noticed)  # the broker has listed its store
        reader, got = client.read(name, direct=True), bytearray()
        with pytest.raises(OffsetJump) as jump:
            await read_into(got, reader)
        assert got == content[: gone[0].begin]
        assert (jump.value.from_offset, jump.value.to_offset) == (gone[0].begin, gone[-1].end)
        assert await reader.read() == content[gone[-1].end :]


async def test_what_was_stored_before_a_time_is_not_fetched_ahead(client, shared, name):
    content = await filled(client, name, fragments=6)
    fragments = await stored(client, name)
    an_hour_ago = SystemClock().unix_s() - 3600
    for fragment in fragments[2:4]:
        os.utime(shared.fragments / fragment.content_path, (an_hour_ago, an_hour_ago))

    async def is_listed():
        return sum(each.mod_time <= an_hour_ago for each in await stored(client, name)) == 2

    await eventually(is_listed)
    since = int(an_hour_ago) + 60
    async with asyncio.timeout(patient(60)):
        found = await client.read(
            name, direct=True, begin_mod_time=since, on_jump="continue"
        ).read()
    assert found == content[: fragments[2].begin] + content[fragments[3].end :]


def test_threads_share_a_client_that_reads_directly(shared, name):
    config = ClientConfig(address=shared.address, file_root=shared.fragments)
    with Client(config) as client:
        content = client.run(filled(client.asynchronous, name))
        with client.read(name, direct=True) as reader:
            digest = hashlib.sha1()
            for piece in reader.pieces():
                digest.update(piece)
        assert digest.digest() == hashlib.sha1(content).digest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


async def test_fragments_behind_http_are_fetched_ahead(client, shared, name):
    """The URLs of a store that is behind HTTP, where one answer breaks off in the middle."""
    content = await filled(client, name)
    broken = (await stored(client, name))[2].content_name
    requests = []

    class Handler(Quiet):
        def do_GET(self):
            requests.append(self.path)
            if self.path.endswith(broken):
                data = (shared.fragments / self.path[1:]).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:300_000])
                self.wfile.flush()
                self.connection.shutdown(2)
            else:
                super().do_GET()

    def handler(*args):
        return Handler(*args, directory=shared.fragments)

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = asyncio.get_running_loop().run_in_executor(None, server.serve_forever, 0.01)
        reader = client.read(name, direct=True)
        original = reader._open_stream

        def open_stream(listing, offset, is_first):
            url = f"http://127.0.0.1:{server.server_port}/{listing.fragment.content_path}"
            return original(type(listing)(listing.fragment, url), offset, is_first)

        reader._open_stream = open_stream
        try:
            async with asyncio.timeout(patient(60)), reader:
                assert await reader.read() == content
        finally:
            server.shutdown()
            await serving
    # The one that broke off came through the broker, and those after it again from the store.
    assert len(set(requests)) == FRAGMENTS
    assert client._transport.read_ahead.held_bytes == 0


async def test_a_client_counts_what_it_moves_by_gazettes_names(client, shared, name):
    content = await filled(client, name, fragments=3)
    async with client_of(shared) as other:
        registry = CollectorRegistry()
        registry.register(other.counts)

        def value(metric, **labels):
            return registry.get_sample_value(metric, {"journal": name, **labels})

        assert value("gazette_read_bytes_total") is None
        await other.append(name, b"12345")
        async with other.read(name, SIZE // 4, direct=True) as reader:
            assert await reader.read() == (content + b"12345")[SIZE // 4 :]
        assert value("gazette_append_bytes_total") == 5
        assert value("gazette_read_bytes_total") == len(content) + 5 - SIZE // 4
        codec = {"codec": "GZIP"}
        assert value("gazette_fragment_open_total", **codec) == 3
        assert value("gazette_fragment_open_content_length_total", **codec) == 3 * SIZE
        assert value("gazette_read_fragment_bytes_total", **codec) == 3 * SIZE - SIZE // 4
        assert value("gazette_discard_fragment_bytes_total", **codec) == SIZE // 4
        async with other.read(name) as reader:  # by brokers
            await reader.read()
        assert value("gazette_read_bytes_total") == 2 * (len(content) + 5) - SIZE // 4
        assert value("gazette_fragment_open_total", **codec) == 3
    assert client.counts.appended_bytes[name] == len(content)
