"""`gazctl journals prune` against real brokers: what goes, and what readers and appends make of it."""

import asyncio
import os
import types

import pytest

from gazette_platform.cli.gazctl import main
from gazette_platform.cli.gazctl.journals import prune as pruning
from gazette_platform.client import AsyncClient, Change, ClientConfig
from gazette_platform.errors import OffsetJump
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.stores.fs import FileStore
from gazette_platform.testing.local import store_fragment
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

HOUR_S = 3600
LINE = b"x" * 99 + b"\n"


@pytest.fixture(scope="module")
def shared(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/test-prune") as server:
        yield server


@pytest.fixture
async def client(shared):
    async with AsyncClient(ClientConfig(address=shared.address)) as client:
        yield client


@pytest.fixture
def prune(shared, capfdbinary, tmp_path, monkeypatch):
    """Prune in this process, but on an event loop of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    async def run(selector, *flags, server=shared):
        root = ["--file-root", str(server.fragments), "--broker.address", server.address]
        args = ["journals", "prune", "-l", selector, *root, *map(str, flags)]
        code = await asyncio.to_thread(main, args)
        out, err = capfdbinary.readouterr()
        return types.SimpleNamespace(code=code, out=out.decode(), err=err.decode())

    return run


def spec(name, *, retention_h=1, **fields):
    return JournalSpec(
        name=name,
        replication=1,
        fragment=FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.NONE,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
            retention_ns=retention_h * HOUR_S * SECOND_NS,
            **fields,
        ),
    )


async def made(client, server, name, ages_h, *, count=1, **fields):
    """A journal of fragments of 100 bytes, or `count` times as many, stored so many hours ago.

    Their content is that of offsets: of each line, its number.
    """
    await client.apply([Change(spec(name, **fields))])
    for number, age_h in enumerate(ages_h):
        lines = b"".join(b"%098d\n\n" % (number * count + line) for line in range(count))
        await client.append(name, lines)
        await client.flush(f"name={name}")
        (file,) = [
            f for f in files(server, name) if f.name.startswith(f"{number * len(lines):016x}-")
        ]
        age(file, age_h)
    await known(client, server, name)


def files(server, name):
    folder = server.fragments / name
    return sorted(path for path in folder.rglob("[!.]*") if path.is_file())


def age(file, age_h):
    then = SystemClock().now().timestamp() - age_h * HOUR_S
    os.utime(file, (then, then))


async def known(client, server, name):
    """Wait until the broker has listed what the store holds, with its times."""
    wanted = {path.name: int(path.stat().st_mtime) for path in files(server, name)}

    async def is_known():
        found = await client.fragments(name)
        return {
            f.fragment.content_name: f.fragment.mod_time for f in found if f.is_persisted
        } == wanted

    await eventually(is_known)


def numbers(content):
    return [int(line) for line in bytes(content).split()]


async def read(client, name, offset=0, **fields):
    async with client.read(name, offset, on_jump="continue", **fields) as reader:
        return numbers(await reader.read())


def begins(server, name):
    return [int(path.name[:16], 16) for path in files(server, name)]


async def test_old_content_goes_and_reads_jump_to_the_rest(client, prune, shared):
    name = "prune/by-age"
    await made(client, shared, name, [30, 20, 0.5, 0])
    dry = await prune(f"name={name}", "--dry-run")
    assert dry.code == 0
    assert dry.out.splitlines() == [
        f"would remove {name}/{p.name}" for p in files(shared, name)[:2]
    ]
    assert "2 of 4 fragments would be removed: 200 bytes in stores, 200 bytes of content" in dry.err
    assert begins(shared, name) == [0, 100, 200, 300]
    done = await prune(f"name={name}")
    assert (done.code, done.out.count("removed ")) == (0, 2)
    assert begins(shared, name) == [200, 300]
    await known(client, shared, name)
    async with client.read(name) as reader:
        with pytest.raises(OffsetJump, match="200"):
            await anext(reader)
        assert numbers(await reader.read()) == [2, 3]
    assert await read(client, name, 150) == [2, 3]
    # Once more: nothing is left to do.
    again = await prune(f"name={name}")
    assert (again.code, again.out) == (0, "")
    # The journal goes on.
    assert (await client.append(name, LINE)).begin == 400


async def test_a_broker_that_lost_its_disk_still_knows_where_a_pruned_journal_ends(
    etcd_server, tmp_path, prune
):
    name = "prune/lost-disk"
    flags = {"etcd": etcd_server.endpoint, "prefix": "/test-prune-lost"}
    with BrokerServer(tmp_path / "one", **flags) as server:
        async with AsyncClient(ClientConfig(address=server.address)) as client:
            await made(client, server, name, [30, 20, 10])
            assert (await prune(f"name={name}", server=server)).code == 0
        server.kill()
    fragments = tmp_path / "one" / "fragments"
    with BrokerServer(tmp_path / "two", fragments=fragments, **flags) as server:
        async with AsyncClient(ClientConfig(address=server.address)) as client:
            assert await client.reset_head(name, give_up=True) == 300
            assert (await client.append(name, LINE)).begin == 300


async def test_a_suspended_journal_may_be_pruned_whole_and_goes_on_where_it_ended(
    client, prune, shared
):
    name = "prune/suspended"
    await made(client, shared, name, [30, 20, 10])
    await client.suspend(name, force=True)
    done = await prune(f"name={name}")
    assert (done.code, begins(shared, name)) == (0, []), done.err
    await known(client, shared, name)
    again = await prune(f"name={name}")
    assert again.code == 0, again.err
    async with asyncio.timeout(patient(20)):
        assert await read(client, name) == []
    assert await client.write_head(name) == 300
    assert (await client.append(name, b"%098d\n\n" % 3)).begin == 300
    await client.flush(f"name={name}")
    await known(client, shared, name)
    assert await read(client, name) == [3]


async def test_a_savepoint_protects_what_it_names(client, prune, shared):
    name, other = "prune/saved", "prune/unsaved"
    for journal in (name, other):
        await made(client, shared, journal, [30, 29, 28, 27])
    await client.create_savepoint("prune/backfill", offsets={name: 150})
    await client.create_savepoint("prune/later", offsets={name: 300})
    done = await prune("name in (prune/saved, prune/unsaved)")
    assert done.code == 0
    assert f"{name}: keeps 3 fragments for savepoints, from 150 of prune/backfill on" in done.err
    assert (begins(shared, name), begins(shared, other)) == ([100, 200, 300], [300])
    done = await prune(f"name={name}", "--before-offset", 10**6)
    assert begins(shared, name) == [100, 200, 300]
    async with client.read(name, from_savepoint="prune/backfill") as reader:
        assert len(await reader.read()) == 250
    await client.delete_savepoint("prune/backfill")
    await prune(f"name={name}")
    assert begins(shared, name) == [300]
    await client.create_savepoint("prune/later", offsets={name: 0}, replace=True)
    await client.append(name, LINE)
    await client.flush(f"name={name}")
    await prune(f"name={name}", "--ignore-savepoints")
    assert begins(shared, name) == [400]
    await client.delete_savepoint("prune/later")


async def test_a_savepoint_that_is_made_while_a_run_goes_on_counts(
    client, prune, shared, monkeypatch
):
    name = "prune/saved-meanwhile"
    await made(client, shared, name, [30, 29, 28, 27, 0])
    real, loop = FileStore.remove, asyncio.get_running_loop()

    async def remove(self, path):
        await real(self, path)
        if not path.startswith(f"{name}/{0:016x}-"):
            return
        saving = asyncio.run_coroutine_threadsafe(
            client.create_savepoint("prune/meanwhile", offsets={name: 200}), loop
        )
        await asyncio.wrap_future(saving)

    monkeypatch.setattr(FileStore, "remove", remove)
    monkeypatch.setattr(pruning, "_SAVEPOINTS_AGE_S", 0.0)
    monkeypatch.setattr(pruning, "_REMOVALS_MAX", 1)
    run = await prune(f"name={name}")
    assert run.code == 0, run.err
    await client.delete_savepoint("prune/meanwhile")
    assert begins(shared, name) == [200, 300, 400]
    assert "keeps 2 fragments for savepoints, from 200 of prune/meanwhile on" in run.err


@pytest.mark.parametrize("direct", [False, True])
async def test_a_reader_in_the_middle_of_a_fragment_reads_it_to_its_end(shared, prune, direct):
    name = f"prune/reader-{direct}".lower()
    config = ClientConfig(address=shared.address, file_root=shared.fragments)
    async with AsyncClient(config) as client:
        lines = 200_000  # 20 MB: more than anybody on the way holds in memory
        await made(client, shared, name, [30, 0], count=lines)
        async with client.read(name, direct=direct) as reader:
            first = bytes(await anext(reader))
            done = await prune(f"name={name}")
            assert (done.code, begins(shared, name)) == (0, [lines * 100])
            await known(client, shared, name)
            rest = bytearray(first)
            while reader.offset < lines * 100:
                rest += await anext(reader)
            assert numbers(bytes(rest[-200:])) == [lines - 2, lines - 1]
            assert len(rest) == lines * 100
            assert numbers((await reader.read())[:100]) == [lines]


async def test_two_prunes_at_once_do_no_harm(client, prune, shared):
    name = "prune/twice"
    await client.apply([Change(spec(name))])
    then = SystemClock().now().timestamp() - 30 * HOUR_S
    for number in range(200):
        store_fragment(shared.fragments, name, number * 100, LINE, stored_at=then)
    await known(client, shared, name)
    done = await asyncio.gather(prune(f"name={name}"), prune(f"name={name}"))
    assert [each.code for each in done] == [0, 0]
    assert begins(shared, name) == [199 * 100]
