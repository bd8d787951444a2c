"""What tests of backups do with etcd and a broker in their own event loop."""

from __future__ import annotations

import asyncio
import shutil

from gazette_platform.broker.backup import BackupFile, make_backup, restore_backup
from gazette_platform.etcd import EtcdClient

PREFIX = "/backup/cluster"


async def crash(broker):
    """As by SIGKILL, except for what its process shares with the test."""
    await broker._server.stop(grace_s=0.0)
    await broker._lease.revoke()
    await broker.abandon()


async def backed_up(server, file):
    async with EtcdClient([server.endpoint]) as etcd:
        return await make_backup(etcd, file, prefix=PREFIX)


async def lose_etcd(server):
    server.kill()
    folder = server.log_path.with_name("data")
    shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    await asyncio.to_thread(server.start)


async def restored(server, file):
    async with EtcdClient([server.endpoint]) as etcd:
        return await restore_backup(etcd, BackupFile(file))


def lose_spools(broker):
    shutil.rmtree(broker.config.spool_dir)
    broker.config.spool_dir.mkdir(mode=0o700)
