"""The hdfs store, against a real NameNode and DataNode."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import secrets
import tempfile
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from hdfs_servers import hdfs_servers
from journal_specs import journal_spec

from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import AccessDenied, DataError, ObjectNotFound, StoreUnavailable
from gazette_platform.protocol import CompressionCodec
from gazette_platform.stores import open_store
from gazette_platform.stores.interface import put_bytes
from gazette_platform.testing.store_conformance import StoreConformance, listing, read_all
from gazette_platform.testing.waiting import pass_time

pytestmark = [pytest.mark.hive, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory):
    with hdfs_servers(tmp_path_factory.mktemp("hdfs")) as servers:
        yield servers


def opened(hdfs, path="", *, user="", more=""):
    where = f"{path or secrets.token_hex(4)}/"
    user = user or hdfs.superuser
    url = f"hdfs://namenode/{where}?webhdfs={quote(hdfs.webhdfs, safe='')}&user={user}{more}"
    return open_store(url, file_root=None)


class TestWebHdfsConformance(StoreConformance):
    served_by = "hdfs://, of a NameNode and a DataNode of Hadoop"

    @pytest.fixture
    def store(self, hdfs):
        return opened(hdfs)


class TestWebHdfsOfAnotherUserConformance(StoreConformance):
    served_by = "hdfs://, of a NameNode and a DataNode of Hadoop"

    @pytest.fixture
    async def store(self, hdfs):
        """Of a user who may write below one folder alone."""
        name = secrets.token_hex(4)
        await put_bytes(opened(hdfs, name), "made", b"x")
        await opened(hdfs, name).remove("made")
        chown = (
            f"{hdfs.webhdfs}/webhdfs/v1/{name}?op=SETOWNER&owner=alice&user.name={hdfs.superuser}"
        )
        await asyncio.to_thread(_put, chown)
        return opened(hdfs, name, user="alice")


def _put(url):
    with urlopen(Request(url, method="PUT"), timeout=30) as response:
        assert response.status == 200


async def test_a_store_is_opened_by_its_first_name_node_that_serves(hdfs):
    away = f"http://127.0.0.1:9,{hdfs.webhdfs}"
    url = f"hdfs://cluster/two/?webhdfs={quote(away, safe='')}&user={hdfs.superuser}"
    store = open_store(url, file_root=None)
    await put_bytes(store, "a", b"x")
    assert await read_all(store, "a") == b"x"


async def test_a_folder_of_more_than_one_page_is_listed_whole(hdfs):
    store = opened(hdfs)
    names = [f"j/{number:02}" for number in range(10)] + ["j/05.d/x", "j/0z/y"]
    for name in names:
        await put_bytes(store, name, b"1")
    found = [item.path for item in await listing(store, "j/")]
    assert found == sorted(name.removeprefix("j/") for name in names)


async def test_signed_urls_open_without_more(hdfs):
    store = opened(hdfs)
    await put_bytes(store, "j/date=2/some %file", b"content")
    url = await store.sign_get("j/date=2/some %file", 60.0)
    assert url.startswith(f"{hdfs.webhdfs}/webhdfs/v1/")
    with await asyncio.to_thread(urlopen, url, timeout=30) as response:
        assert response.read() == b"content"


async def test_a_user_without_access_is_refused_for_good(hdfs):
    store = opened(hdfs, user="mallory")
    with pytest.raises(AccessDenied, match="mallory"):
        await put_bytes(store, "a", b"x")


async def test_content_that_is_too_short_leaves_nothing(hdfs):
    store = opened(hdfs)
    await put_bytes(store, "a/there", b"x")
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(bytes(3 << 20))
        with pytest.raises(DataError):
            await store.put("a/short", file.fileno(), (3 << 20) + 1)
    root = f"{(await store.sign_get('a', 0)).partition('?')[0]}?op=LISTSTATUS&user.name={hdfs.superuser}"
    with await asyncio.to_thread(urlopen, root, timeout=30) as response:
        assert b"short" not in response.read()


async def test_a_put_that_is_cancelled_stores_nothing_or_all(hdfs, tasks):
    store = opened(hdfs)
    content = os.urandom(8 << 20)
    for delay_s in (0.0, 0.01, 0.03, 0.1):
        putting = tasks.spawn(put_bytes(store, "a/object", content), name="put")
        await pass_time(delay_s)
        putting.cancel()
        await asyncio.gather(putting, return_exceptions=True)
        with contextlib.suppress(ObjectNotFound):
            assert await read_all(store, "a/object") == content
        assert [item.path for item in await listing(store, "a/")] in ([], ["object"])


async def test_absent_namenode_is_unavailable():
    store = open_store("hdfs://namenode/x/?webhdfs=http://127.0.0.1:9&user=a", file_root=None)
    with pytest.raises(StoreUnavailable, match="is it up"):
        await store.exists("a")
    with pytest.raises(StoreUnavailable):
        await listing(store, "")


def store_url(hdfs):
    where = quote(hdfs.webhdfs, safe="")
    return f"hdfs://namenode/{secrets.token_hex(4)}/?webhdfs={where}&user={hdfs.superuser}"


def spec(url, *, replication=1):
    return journal_spec(
        "a/journal",
        replication,
        codec=CompressionCodec.GZIP,
        stores=(url,),
        refresh_s=3600,
        postfix='date={{.Spool.FirstAppendTime.Format "2006-01-02"}}',
    )


@pytest.mark.etcd
async def test_a_journal_lives_on_in_hdfs_when_its_brokers_are_gone(hdfs, cluster):
    journal = spec(store_url(hdfs))
    content = [os.urandom(300_000) for _ in range(8)]
    first = await cluster.start()
    async with AsyncClient(ClientConfig(address=first.endpoint)) as client:
        await client.apply([Change(journal)])
        for piece in content:
            await client.append("a/journal", piece)
        await client.flush("name=a/journal")
    await first.drain()
    second = await cluster.start()
    async with AsyncClient(ClientConfig(address=second.endpoint)) as client:
        end = sum(map(len, content))
        for direct in (False, True):
            reader = client.read("a/journal", end_offset=end, direct=direct)
            assert b"".join([bytes(piece) async for piece in reader]) == b"".join(content)
        fragments = await client.fragments("a/journal", ttl_s=60.0)
    assert len(fragments) > 1
    for one in fragments:
        with await asyncio.to_thread(urlopen, one.signed_url, timeout=30) as response:
            begin, end = one.fragment.begin, one.fragment.end
            assert gzip.decompress(response.read()) == b"".join(content)[begin:end]
