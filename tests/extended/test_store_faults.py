"""Brokers on a store that fails in each of the ways that stores and networks do: nothing is lost."""

from __future__ import annotations

import asyncio
import gzip
import os
import uuid

import pytest
from journal_specs import journal_spec
from object_servers import need_go, s3_server, use_keys
from store_proxy import Fault, store_proxy

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.fragments import parse_fragment_path
from gazette_platform.testing.waiting import eventually, pass_time

# The first test may build the server.
pytestmark = [pytest.mark.s3, pytest.mark.etcd, pytest.mark.timeout(900)]

JOURNAL = "a/journal"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    need_go("GAZETTE_VERSITYGW")
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
async def proxy(server, monkeypatch, tmp_path):
    use_keys(server, monkeypatch, tmp_path)
    async with store_proxy(server.endpoint) as between:
        yield between


def spec(bucket, proxy, *, refresh_s=3600):
    url = f"s3://{bucket}/?endpoint={proxy.url}&region=us-east-1"
    return journal_spec(
        JOURNAL, length=256 << 10, codec=CompressionCodec.GZIP, stores=(url,), refresh_s=refresh_s
    )


async def read(client, end, *, direct=False):
    reader = client.read(JOURNAL, end_offset=end, direct=direct)
    return b"".join([bytes(piece) async for piece in reader])


def stored(server, bucket):
    """Content of the bucket: what its fragments say that they hold, they hold."""
    found = {}
    for path in sorted((server.folder / bucket / JOURNAL).rglob("*")):
        if path.is_file():
            name = path.relative_to(server.folder / bucket / JOURNAL).as_posix()
            fragment = parse_fragment_path(JOURNAL, name)
            content = gzip.decompress(path.read_bytes())
            assert len(content) == fragment.end - fragment.begin
            found[fragment.begin] = content
    return b"".join(found[begin] for begin in sorted(found))


@pytest.mark.parametrize(
    "fault",
    [
        Fault.SLOW_DOWN,
        Fault.INTERNAL,
        Fault.RESET,
        Fault.LOST_ANSWER,
        Fault.TRUNCATED_PUT,
    ],
    ids=lambda fault: fault.name.lower(),
)
async def test_what_is_acknowledged_while_the_store_fails_gets_there(
    server, proxy, cluster, tasks, fault
):
    bucket = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(bucket)
    broker = await cluster.start()
    content = [os.urandom(100_000) for _ in range(12)]
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([Change(spec(bucket, proxy))])
        await client.append(JOURNAL, content[0])
        proxy.fault = fault
        for piece in content[1:]:
            await client.append(JOURNAL, piece)
        flushing = tasks.spawn(client.flush(f"name={JOURNAL}", timeout_s=300.0), name="flush")
        await eventually(lambda: proxy.met > 0, timeout_s=60)
        await pass_time(2.0)
        proxy.fault = Fault.NONE
        # What failed is tried again after two or three minutes, or at once on request.
        flushing.cancel()
        await client.flush(f"name={JOURNAL}", timeout_s=300.0)
        end = sum(map(len, content))
        assert await read(client, end) == b"".join(content)
        assert await read(client, end, direct=True) == b"".join(content)
    assert stored(server, bucket) == b"".join(content)


@pytest.mark.parametrize(
    "fault",
    [Fault.SLOW_DOWN, Fault.RESET, Fault.TRUNCATED_GET, Fault.SLOW_BODY, Fault.LOST_ANSWER],
    ids=lambda fault: fault.name.lower(),
)
async def test_what_is_read_while_the_store_fails_is_right(server, proxy, cluster, fault):
    bucket = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(bucket)
    content = [os.urandom(100_000) for _ in range(12)]
    end = sum(map(len, content))
    first = await cluster.start()
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.apply([Change(spec(bucket, proxy))])
        for piece in content:
            await client.append(JOURNAL, piece)
        await client.flush(f"name={JOURNAL}")
    await first.drain()
    second = await cluster.start()
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        assert await read(client, 1) == content[0][:1]  # it has listed the store
        for direct in (False, True):
            proxy.fault, proxy.met = fault, 0

            async def heal():
                await eventually(lambda: proxy.met > 2, timeout_s=60)
                proxy.fault = Fault.NONE

            async with asyncio.TaskGroup() as group:
                group.create_task(heal())
                assert await read(client, end, direct=direct) == b"".join(content)


async def test_an_error_in_place_of_a_listing_hides_nothing(server, proxy, cluster, caplog):
    bucket = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(bucket)
    broker = await cluster.start()
    content = [os.urandom(100_000) for _ in range(6)]
    end = sum(map(len, content))
    journal = spec(bucket, proxy, refresh_s=1)
    url = journal.fragment.stores[0]
    async with AsyncClient(ClientConfig(address=broker.endpoint)) as client:
        await client.apply([Change(journal)])
        for piece in content:
            await client.append(JOURNAL, piece)
        await client.flush(f"name={JOURNAL}", timeout_s=120.0)
        held = [each.fragment for each in await client.fragments(JOURNAL)]
        assert held
        proxy.fault = Fault.ODD_LIST
        refusal = f"LIST {JOURNAL}/ of {url}: the answer is not a listing"
        await eventually(lambda: refusal in caplog.text and proxy.met > 3, timeout_s=60)
        assert [each.fragment for each in await client.fragments(JOURNAL)] == held
        assert await read(client, end) == b"".join(content)

        async def health_says_so():
            health = broker._context.stores.get(url).health
            return health.error is not None and "is not a listing" in str(health.error)

        await eventually(health_says_so, timeout_s=60)
        proxy.fault = Fault.NONE
        assert await read(client, end) == b"".join(content)


async def test_a_listing_that_is_old_hides_nothing_for_long(server, proxy, cluster, tasks):
    """Readers wait for what it lacks, and appends do not go back to where it ends."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    server.make_bucket(bucket)
    content = [os.urandom(100_000) for _ in range(12)]
    end = sum(map(len, content))
    first = await cluster.start()
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.apply([Change(spec(bucket, proxy, refresh_s=1))])
        await client.append(JOURNAL, content[0])  # its journal's folder is listed, and is empty
        await client.flush(f"name={JOURNAL}")
        proxy.fault = Fault.STALE_LIST
        for piece in content[1:]:
            await client.append(JOURNAL, piece)
        await client.flush(f"name={JOURNAL}")
        await eventually(lambda: proxy.met > 1, timeout_s=60)
        # Reads do not wait for a newer one: who stored these fragments knows of them.
        assert await read(client, end) == b"".join(content)
    proxy.fault, proxy.met = Fault.STALE_LIST, 0
    await first.drain()
    second = await cluster.start()
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        # It goes on where the first one ended, as that is noted, and not where the listing does.
        commit = await client.append(JOURNAL, b"more")
        assert commit.begin == end
        assert proxy.met > 0
        proxy.fault = Fault.NONE

        # A listing without content below a noted head looks like that of a journal that was pruned.
        async def is_all_there():
            return await read(client, end) == b"".join(content)

        await eventually(is_all_there, timeout_s=60, poll_s=0.2)
