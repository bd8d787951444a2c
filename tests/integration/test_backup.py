"""Etcd is lost and restored from a backup: what was stored since is kept, and appends go on after it."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from backup_calls import PREFIX, backed_up, crash, lose_etcd, lose_spools, restored
from journal_calls import JOURNAL, client_of, read_all, spec

from gazette_platform.broker import serve
from gazette_platform.broker.backup import BackupFile, make_backup, restore_backup
from gazette_platform.client import Change
from gazette_platform.errors import (
    JournalReplaced,
    RegisterMismatch,
    SetupError,
    TransportError,
)
from gazette_platform.etcd import EtcdClient, Put
from gazette_platform.protocol import LabelSelector, LabelSet, SuspendLevel
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.waiting import patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

FORMER, FENCED = LabelSet.of(writer="former"), LabelSet.of(writer="later")


@pytest.fixture
async def cluster(own_etcd_server, tmp_path):
    async with LocalBrokers(tmp_path, etcd=own_etcd_server.endpoint, prefix=PREFIX) as cluster:
        yield cluster


@pytest.fixture
def file(tmp_path):
    return tmp_path / "etcd.backup"


async def read_stored(client, length):
    """Read this many bytes: where the journal ends is not known yet."""
    content = b""
    async with asyncio.timeout(patient(60)):
        async for piece in client.read(JOURNAL):
            content += piece
            if len(content) >= length:
                break
    return content


async def made(cluster, *, stored):
    broker = await cluster.start(append_wait_s=0.5)
    async with client_of(broker) as client:
        await client.apply([Change(spec())])
        await client.append(JOURNAL, stored, union_registers=FORMER)
        await client.flush(f"name={JOURNAL}")
    return broker


async def test_appends_go_on_after_what_was_stored_since_the_backup(cluster, own_etcd_server, file):
    broker = await made(cluster, stored=b"before ")
    async with client_of(broker) as client:
        before = await client.get(JOURNAL)
        savepoint = await client.create_savepoint("monday", f"name={JOURNAL}")
        await backed_up(own_etcd_server, file)
        fence = {"subtract_registers": FORMER, "union_registers": FENCED}
        await client.append(JOURNAL, b"after ", **fence)
        await client.flush(f"name={JOURNAL}")
    await crash(broker)
    await lose_etcd(own_etcd_server)
    lose_spools(broker)
    assert (await restored(own_etcd_server, file)).written == 4
    broker = await cluster.start(append_wait_s=0.5)
    async with client_of(broker) as client:
        now = await client.get(JOURNAL)
        assert now.created == before.created
        assert now.create_revision == before.create_revision
        assert (await client.get_savepoint("monday")).offsets == savepoint.offsets
        assert await read_stored(client, 13) == b"before after "
        with pytest.raises(TransportError, match="restored from a backup, which does not say"):
            await client.append(JOURNAL, b"!", offset=13)
        state = await client.check_head(JOURNAL)
        assert (state.head, state.is_refused, state.awaited) == (13, True, ())
        assert await client.reset_head(JOURNAL) == 13
        for known in (FORMER, FENCED):  # the former one was fenced since, and nothing shows that
            with pytest.raises(RegisterMismatch):
                await client.append(JOURNAL, b"!", check_registers=LabelSelector(include=known))
        done = await client.append(JOURNAL, b"on")
        assert done.begin == 13
        assert await read_all(client) == b"before after on"
        await client.flush(f"name={JOURNAL}")
    await crash(broker)
    broker = await cluster.start()
    async with client_of(broker) as client:
        assert (await client.append(JOURNAL, b"!")).begin == 15


async def test_spool_that_joins_goes_on_once_heads_are_reset(cluster, own_etcd_server, file):
    broker = await made(cluster, stored=b"stored ")
    await backed_up(own_etcd_server, file)
    async with client_of(broker) as client:
        await client.append(JOURNAL, b"held", union_registers=FENCED)
    await crash(broker)
    await lose_etcd(own_etcd_server)
    await restored(own_etcd_server, file)
    broker = await cluster.start(append_wait_s=0.5)
    async with client_of(broker) as client:
        assert await client.reset_head(JOURNAL) == 11
        assert (await client.append(JOURNAL, b"!")).begin == 11
        assert await read_all(client) == b"stored held!"
    assert not (broker.config.spool_dir / "set-aside").exists()


async def restored_holders(cluster, etcd_server, file, tmp_path, *, later):
    """Have two brokers hold different content from offset 7 on, and etcd restored as of then.

    Returns: the broker that held it first, and the folder of the spools of the other one.
    """
    former = await made(cluster, stored=b"stored ")
    async with client_of(former) as client:
        await client.append(JOURNAL, b"held")
    await crash(former)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = await cluster.start(spool_dir=elsewhere, append_wait_s=0.5)
    async with client_of(other) as client:
        assert await client.reset_head(JOURNAL, give_up=True) == 7
        assert (await client.append(JOURNAL, later)).end == 7 + len(later)
    await backed_up(etcd_server, file)
    await crash(other)
    await lose_etcd(etcd_server)
    await restored(etcd_server, file)
    return await cluster.start(append_wait_s=0.5), elsewhere


async def test_spool_of_a_former_holder_does_not_go_on(cluster, own_etcd_server, file, tmp_path):
    """It joins what is stored. But another broker went on without it, and nothing in etcd says so any more."""
    former, elsewhere = await restored_holders(
        cluster, own_etcd_server, file, tmp_path, later=b"held, and more"
    )
    async with client_of(former) as client:
        with pytest.raises(TransportError, match="restored from a backup, which does not say"):
            await client.append(JOURNAL, b"!", offset=11)
        await cluster.start(id="later", spool_dir=elsewhere, journal_limit=0)
        assert await client.reset_head(JOURNAL) == 21
        assert (await client.append(JOURNAL, b"!")).begin == 21
        assert await read_all(client) == b"stored held, and more!"


async def test_reset_stores_the_furthest_of_spools_that_contradict_each_other(
    cluster, own_etcd_server, file, tmp_path, caplog
):
    """The primary has the shorter one, and is asked last."""
    former, elsewhere = await restored_holders(
        cluster, own_etcd_server, file, tmp_path, later=b"other, and more"
    )
    async with client_of(former) as client:
        assert (await client.check_head(JOURNAL)).is_refused
        await cluster.start(id="later", spool_dir=elsewhere, journal_limit=0)
        assert await client.reset_head(JOURNAL) == 22
        assert (await client.append(JOURNAL, b"!")).begin == 22
        assert await read_all(client) == b"stored other, and more!"
    aside = former.config.spool_dir / "set-aside"
    assert [path.read_bytes() for path in aside.glob("*.content")] == [b"held"]
    (warning,) = [one for one in caplog.messages if "is set aside" in one]
    assert "content [7, 11)" in warning
    assert "the store has, or may have, other content at its offsets" in warning


async def test_reset_stores_what_a_spool_without_assignment_holds(
    cluster, own_etcd_server, file, tmp_path
):
    """The journal came to another broker, whose spools are elsewhere."""
    broker = await made(cluster, stored=b"stored ")
    await backed_up(own_etcd_server, file)
    async with client_of(broker) as client:
        await client.append(JOURNAL, b"held")
    await crash(broker)
    await lose_etcd(own_etcd_server)
    await restored(own_etcd_server, file)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = await cluster.start(spool_dir=elsewhere, append_wait_s=0.5)
    async with client_of(other) as client:
        assert (await client.check_head(JOURNAL)).is_refused
        holder = await cluster.start(id="holder", journal_limit=0)
        assert holder.config.spool_dir == broker.config.spool_dir
        assert await client.reset_head(JOURNAL) == 11
        assert (await client.append(JOURNAL, b"!")).begin == 11
        assert await read_all(client) == b"stored held!"


async def test_spool_is_stored_although_the_restore_created_its_journal_later(
    cluster, own_etcd_server, file, tmp_path
):
    """Revisions of an etcd that is new do not compare with those of the former one."""
    broker = await made(cluster, stored=b"stored ")
    async with client_of(broker) as client, EtcdClient([own_etcd_server.endpoint]) as etcd:
        created = (await client.get(JOURNAL)).create_revision
        for first in range(0, 1000, 100):  # written back before the journal
            keys = [f"/backup/hints/{n:05}" for n in range(first, first + 100)]
            await etcd.txn((), [Put(key, b"") for key in keys])
        await client.append(JOURNAL, b"held")
    await backed_up(own_etcd_server, file)
    await crash(broker)
    await lose_etcd(own_etcd_server)
    await restored(own_etcd_server, file)
    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        assert (await etcd.get(f"{PREFIX}/items/{JOURNAL}")).create_revision > created
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = await cluster.start(spool_dir=elsewhere, append_wait_s=0.5)
    async with client_of(other) as client:
        assert (await client.check_head(JOURNAL)).is_refused
        await cluster.start(id="holder", journal_limit=0)
        assert await client.reset_head(JOURNAL) == 11
        assert await read_all(client) == b"stored held"


async def test_broker_that_starts_during_a_whole_restore_does_not_join(
    cluster, own_etcd_server, file, monkeypatch
):
    """It had read before who its clients think that it is."""
    broker = await made(cluster, stored=b"one")
    await backed_up(own_etcd_server, file)
    await crash(broker)
    await lose_etcd(own_etcd_server)
    take_homes = serve.take_homes

    async def slow(*arguments):
        homes = await take_homes(*arguments)
        await restored(own_etcd_server, file)
        return homes

    monkeypatch.setattr(serve, "take_homes", slow)
    with pytest.raises(SetupError, match=r"was changed \(start again once no restore"):
        await cluster.start()


async def test_pruned_journal_goes_on_after_the_head_that_the_backup_knows(
    cluster, own_etcd_server, file
):
    broker = await made(cluster, stored=b"pruned")
    async with client_of(broker) as client:
        (listed,) = (await client.list_snapshot(f"name={JOURNAL}")).journals
        await client.suspend(JOURNAL, force=True)
        assert (await client.get(JOURNAL)).spec.suspend_level is not SuspendLevel.NONE, listed
    await backed_up(own_etcd_server, file)
    await crash(broker)
    await lose_etcd(own_etcd_server)
    lose_spools(broker)
    shutil.rmtree(cluster.fragments / "a")
    await restored(own_etcd_server, file)
    broker = await cluster.start(append_wait_s=0.5)
    async with client_of(broker) as client:
        assert await client.reset_head(JOURNAL) == 6
        assert (await client.append(JOURNAL, b"!")).begin == 6


async def test_journal_made_after_the_restore_is_another(cluster, own_etcd_server, file):
    broker = await made(cluster, stored=b"first")
    async with client_of(broker) as client:
        created = (await client.get(JOURNAL)).created
    await backed_up(own_etcd_server, file)
    await crash(broker)
    await lose_etcd(own_etcd_server)
    lose_spools(broker)
    await restored(own_etcd_server, file)
    broker = await cluster.start(append_wait_s=0.5)
    async with client_of(broker) as client:
        await client.reset_head(JOURNAL)
        listed = await client.get(JOURNAL)
        assert listed.created == created
        await client.apply([Change(None, delete=JOURNAL, revision=listed.mod_revision)])
        shutil.rmtree(cluster.fragments / "a")
        await client.apply([Change(spec())])
        again = await client.get(JOURNAL)
        assert again.create_revision > listed.create_revision + (1 << 32)
        with pytest.raises(JournalReplaced):
            async for _ in client.read(JOURNAL, 0, created=created):
                pass


async def test_restore_refuses_running_brokers_and_keys(cluster, own_etcd_server, file):
    broker = await made(cluster, stored=b"one")
    await backed_up(own_etcd_server, file)
    with pytest.raises(SetupError, match="1 brokers run in the cluster"):
        await restored(own_etcd_server, file)
    with pytest.raises(SetupError, match="exists"):
        await backed_up(own_etcd_server, file)
    await crash(broker)
    with pytest.raises(SetupError, match="etcd has keys already"):
        await restored(own_etcd_server, file)


async def test_no_broker_joins_while_a_restore_is_not_done(cluster, own_etcd_server, file):
    broker = await made(cluster, stored=b"one")
    await backed_up(own_etcd_server, file)
    await crash(broker)
    await lose_etcd(own_etcd_server)

    def stop(_done, _of):
        raise InterruptedError

    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        with pytest.raises(InterruptedError):
            await restore_backup(etcd, BackupFile(file), progress=stop)
        with pytest.raises(SetupError, match="is being restored"):
            await cluster.start()
        with pytest.raises(SetupError, match="is being restored"):
            await make_backup(etcd, file.with_name("other"), prefix=PREFIX)
        # As a broker of Gazette, which does not look.
        await etcd.put(f"{PREFIX}/members/z#b", b"")
        with pytest.raises(SetupError, match="joined the cluster"):
            await restore_backup(etcd, BackupFile(file))
        await etcd.delete(f"{PREFIX}/members/z#b")
        assert not (await restore_backup(etcd, BackupFile(file))).is_done_before
        assert (await restore_backup(etcd, BackupFile(file))).is_done_before
        again = file.with_name("again")
        await make_backup(etcd, again, prefix=PREFIX)
        with pytest.raises(SetupError, match="etcd has keys already"):
            await restore_backup(etcd, BackupFile(again))


async def test_restore_of_a_part_is_not_that_of_all(own_etcd_server, file):
    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        await etcd.put("/other/hints/shard.primary", b"hints")
    await backed_up(own_etcd_server, file)
    await lose_etcd(own_etcd_server)

    def stop(_done, _of):
        raise InterruptedError

    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        with pytest.raises(InterruptedError):
            await restore_backup(etcd, BackupFile(file), progress=stop)
        with pytest.raises(SetupError, match="or with another --prefix, was interrupted"):
            await restore_backup(etcd, BackupFile(file), scope=[f"{PREFIX}/"])
        await restore_backup(etcd, BackupFile(file))
    await lose_etcd(own_etcd_server)
    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        await restore_backup(etcd, BackupFile(file), scope=[f"{PREFIX}/"])
        done = await restore_backup(etcd, BackupFile(file), scope=[f"{PREFIX}/"])
        assert done.is_done_before
        with pytest.raises(SetupError, match="etcd has keys already"):
            await restore_backup(etcd, BackupFile(file))


async def test_backup_is_of_one_revision(own_etcd_server, file):
    """Keys change after each page."""
    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        for first in range(0, 1200, 100):
            keys = [f"{PREFIX}/hints/{n:05}" for n in range(first, first + 100)]
            await etcd.txn((), [Put(key, b"old") for key in keys])
        lease = await etcd.grant_lease(60)
        await etcd.put(f"{PREFIX}/members/z#b", b"member", lease=lease.id)
        changes = []

        def change(done, _of):
            if done == 1:
                changes.append(tasks.create_task(etcd.put(f"{PREFIX}/hints/01199", b"new")))
                changes.append(tasks.create_task(etcd.delete(f"{PREFIX}/hints/01000")))

        async with asyncio.TaskGroup() as tasks:
            summary = await make_backup(etcd, file, prefix=PREFIX, progress=change)
        assert len(changes) == 2
        assert (await etcd.get(f"{PREFIX}/hints/01199")).value == b"new"
        assert summary.keys == 1200
        assert {each.value for each in BackupFile(file).records()} == {b"old"}
