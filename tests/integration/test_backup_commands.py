"""`gazette backup` and `gazette restore` as processes: ten thousand journals, and SIGKILL."""

from __future__ import annotations

import subprocess
import sys

import pytest
from journal_calls import spec

from gazette_platform.broker.epochs import EpochRecord
from gazette_platform.etcd import EtcdClient, Put
from gazette_platform.keyspace import encode_journal_spec, item_key, items_prefix
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

PREFIX = "/gazette/cluster"
JOURNALS = 10_000
GAZETTE = (sys.executable, "-m", "gazette_platform.cli.gazette")


def run(*arguments, etcd):
    command = [*GAZETTE, *map(str, arguments), "--etcd.address", etcd.endpoint]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=patient(120)
    )


def begin(*arguments, etcd):
    command = [*GAZETTE, *map(str, arguments), "--etcd.address", etcd.endpoint]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


async def fill(etcd):
    """Write the keys of many journals, and hints of a shard."""
    await etcd.put("/gazette/hints/shard.primary", b"hints")
    await etcd.put("/gazette/consumers/app/items/shard", b"shard")
    for first in range(0, JOURNALS, 100):
        names = [f"many/journal-{number:05}" for number in range(first, first + 100)]
        puts = [Put(item_key(PREFIX, name), encode_journal_spec(spec(name))) for name in names]
        await etcd.txn((), puts)


async def count(etcd, prefix):
    return (await etcd.page(prefix, page_keys=1, keys_only=True)).count


async def test_killed_restore_goes_on(own_etcd_server, etcd_binary, tmp_path):
    file = tmp_path / "etcd.backup"
    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        await fill(etcd)
        done = run("backup", file, etcd=own_etcd_server)
        assert done.returncode == 0, done.stderr
        assert f"{JOURNALS + 2} keys of revision" in done.stdout
        former = {kv.key: kv.value for kv in (await etcd.range(items_prefix(PREFIX))).kvs}
        again = run("restore", file, etcd=own_etcd_server)
        assert again.returncode == 1
        assert "etcd has keys already" in again.stderr
    with EtcdServer(etcd_binary) as empty:
        async with EtcdClient([empty.endpoint]) as etcd:
            for least in (1, JOURNALS // 3, JOURNALS // 2):
                process = begin("restore", file, etcd=empty)
                try:
                    await eventually(lambda: count_reaches(etcd, least))  # noqa: B023  awaited here
                finally:
                    process.kill()
                    process.communicate()
                assert await count(etcd, items_prefix(PREFIX)) < JOURNALS
                assert await count(etcd, "/gazette/consumers/") == 0, "a shard without its hints"
                broker = run("serve", "--broker.port", 0, etcd=empty)
                assert broker.returncode != 0
                assert "being restored from a backup" in broker.stderr
            done = run("restore", file, etcd=empty)
            assert done.returncode == 0, done.stderr
            items = (await etcd.range(items_prefix(PREFIX))).kvs
            assert {kv.key: kv.value for kv in items} == former
            records = (await etcd.range(f"/.gazette-platform/epochs{PREFIX}#")).kvs
            found = {kv.key.partition("#")[2]: EpochRecord.decode(kv.value) for kv in records}
            assert all(each.is_restored for each in found.values())
            assert {name: each.create_revision for name, each in found.items()} == {
                kv.key.removeprefix(items_prefix(PREFIX)): kv.create_revision for kv in items
            }
            assert (await etcd.get("/gazette/hints/shard.primary")).value == b"hints"
            assert (await etcd.get("/gazette/consumers/app/items/shard")).value == b"shard"
            done = run("restore", file, etcd=empty)
            assert (done.returncode, "nothing was done" in done.stdout) == (0, True)


async def count_reaches(etcd, least):
    return await count(etcd, items_prefix(PREFIX)) >= least
