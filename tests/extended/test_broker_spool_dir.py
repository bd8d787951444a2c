"""The folder of spools: shared, unwritable, full, removed, with strange things in it."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.client import Change
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import patient
from tests.chaos.disks import SmallDisk

pytestmark = pytest.mark.etcd


@pytest.fixture
def server(etcd_server, etcd_prefix, tmp_path):
    broker = BrokerServer(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix, lease_s=20.0)
    yield broker
    broker.kill()


@pytest.fixture
def disk(tmp_path):
    with SmallDisk(tmp_path / "spool", size_bytes=4 << 20) as found:
        if not found.is_mounted:
            pytest.skip("needs to mount a small file system (run as root)")
        yield found


async def test_a_folder_that_was_removed_takes_no_new_fragment(server):
    """Nothing that is appended there would survive a crash; what was acknowledged is stored."""
    server.start()
    async with client_of(server, retry_timeout_s=1.0) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"abc")
        shutil.rmtree(server.spool)
        async with asyncio.timeout(patient(30)):
            assert await client.flush(f"name={JOURNAL}") == {JOURNAL: 3}
            with pytest.raises(GazetteError, match="start the broker again"):
                await client.append(JOURNAL, b"def")
        assert await read_all(client) == b"abc"
    assert "Traceback" not in server.log_tail()
    assert server.stop() == 0
    server.start()
    async with client_of(server) as client:
        assert (await client.append(JOURNAL, b"def")).begin == 3
        assert await read_all(client) == b"abcdef"


async def test_a_folder_that_was_removed_does_not_hold_up_a_broker_that_leaves(server):
    server.start()
    async with client_of(server) as client:
        await client.apply([Change(spec()), Change(spec("another/journal"))])
        await client.append(JOURNAL, b"abc")
        shutil.rmtree(server.spool)
    assert server.stop() == 0
    server.start()
    async with client_of(server) as client:
        assert await read_all(client) == b"abc"


async def test_a_broker_that_was_killed_starts_on_a_full_disk(server, disk):
    server.start()
    content = b"abc" * 1000
    async with client_of(server) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, content)
    disk.fill()
    for _ in range(2):
        server.kill()
        server.start()
        async with client_of(server) as client:
            assert await read_all(client) == content
    disk.free()
    async with client_of(server) as client, asyncio.timeout(patient(30)):
        assert (await client.append(JOURNAL, b"def")).begin == len(content)
        assert await read_all(client) == content + b"def"
    assert "Traceback" not in server.log_tail()
    assert server.stop() == 0


def test_place_that_is_not_a_folder_is_reported(server):
    server.spool.mkdir(parents=True)
    (server.spool / "spools").write_text("somebody's")
    with pytest.raises(SetupError, match=r"cannot keep spools in .*--broker\.spool-dir"):
        server.start()


async def test_what_others_left_there_is_left_alone(server):
    server.start()
    async with client_of(server) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"abc")
    server.kill()
    base = server.spool / "spools"
    home = next(base.iterdir())
    tenure = next(home.glob("*.content")).name.partition(".")[0]
    foreign = [
        base / "README",
        base / "list" / "home.json",
        base / "newer" / "home.json",
        base / "folder" / "file",
        home / "README",
        home / "a.b.content",
        home / f"{tenure}.one.content",
        home / f"{tenure}.1.2.content",
        home / f"{tenure}.-3.sealed",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"version": 9}' if path.parent.name == "newer" else "[]")
    (base / "link").symlink_to("/")
    os.mkfifo(base / "pipe")
    server.start()
    async with client_of(server) as client:
        assert (await client.append(JOURNAL, b"def")).begin == 3
        assert await read_all(client) == b"abcdef"
    assert "Traceback" not in server.log_tail()
    assert server.stop() == 0
    assert [path for path in foreign if path.read_text() not in ("[]", '{"version": 9}')] == []
    assert list(home.glob(f"{tenure}.1.content")) == []


@pytest.mark.parametrize("name", ["0" * 16, "f" * 16], ids=["before", "behind"])
async def test_of_a_home_and_an_old_copy_of_it_the_one_that_went_on_counts(server, tmp_path, name):
    server.start()
    async with client_of(server) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, b"abc")
    server.kill()
    home = next((server.spool / "spools").iterdir())
    shutil.copytree(home, tmp_path / "copy")
    server.start()
    async with client_of(server) as client:
        await client.append(JOURNAL, b"def")
    server.kill()
    (tmp_path / "copy").rename(home.with_name(name))
    server.start()
    async with client_of(server) as client:
        assert (await client.append(JOURNAL, b"ghi")).begin == 6
        assert await read_all(client) == b"abcdefghi"
    assert server.stop() == 0
    server.start()
    async with client_of(server) as client:
        assert (await client.append(JOURNAL, b"jkl")).begin == 9
        assert await read_all(client) == b"abcdefghijkl"


async def test_brokers_that_share_it_take_over_from_each_other(start_servers, tmp_path):
    """Whoever is started first has what all of them held that were killed."""
    shared = tmp_path / "shared"
    shared.mkdir()
    names = [f"journal/{n}" for n in range(6)]
    flags = [f"--broker.spool-dir={shared}"]
    one, other = start_servers("za", "zb", lease_s=20.0, flags=flags)
    async with client_of(one) as client:
        await client.apply([Change(spec(name)) for name in names])
        for name in names:
            await client.append(name, b"abc")
    one.kill()
    other.kill()
    other.start()
    async with client_of(other) as client, asyncio.timeout(patient(20)):
        for name in names:
            assert (await client.append(name, b"def")).begin == 3
        one.start()
        for name in names:
            assert (await client.append(name, b"ghi")).begin == 6
            assert await read_all(client, name) == b"abcdefghi"
    assert one.stop() == other.stop() == 0
    one.start()
    async with client_of(one) as client:
        for name in names:
            assert (await client.append(name, b"jkl")).begin == 9
            assert await read_all(client, name) == b"abcdefghijkl"
