"""Shards that a process starts again by itself, over a real broker and a real etcd."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from shard_bench import LOG, SHARD, Bench, Numbered, make_journals, spec_of

from gazette_platform.consumer.protocol import ReplicaCode
from gazette_platform.consumer.recoverylog import FsmHints, Player
from gazette_platform.errors import ApplicationFailed, GazetteError
from gazette_platform.testing.local import LocalConsumers
from gazette_platform.testing.waiting import eventually, pass_time

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]


class Case:
    """A group of one process, with one shard."""

    def __init__(self, consumers, folder, **settings):
        self.consumers = consumers
        self.bench = Bench(consumers.client, folder)
        self.application = Numbered()
        self.settings = settings
        self.published = 0

    async def begin(self, spec):
        await make_journals(self.consumers.client)
        self.process = await self.consumers.start(self.application, **self.settings)
        await self.consumers.create_shards(spec)

    async def publish(self):
        await self.bench.publish(self.published, self.published + 1)
        self.published += 2

    async def check(self):
        """All is read, soon, and was counted once."""

        async def is_through():
            with contextlib.suppress(GazetteError, LookupError):
                await self.consumers.wait_through()
                store = await self.consumers.store(SHARD)
                return store.state.get("all") == self.published
            return False

        await eventually(is_through)
        numbers = [each["number"] for each in await self.bench.output()]
        assert numbers == [*range(1, self.published + 1)]

    async def status(self):
        async with self.consumers.shard_client() as client:
            (listing,) = await client.list()
            return listing.status

    async def failed(self):
        async def has_failed():
            status = await self.status()
            return status if status.code is ReplicaCode.FAILED else None

        return await eventually(has_failed)


@pytest.mark.parametrize("log", [True, False])
async def test_the_rightful_owner_that_was_fenced_goes_on_by_itself(
    local_consumers, tmp_path, etcd_prefix, log
):
    case = Case(local_consumers, tmp_path / "bench")
    await case.begin(spec_of(log=log, hint_prefix=f"{etcd_prefix}-hints"))
    await case.publish()
    await case.check()
    took_s = []
    for author in (7, 8):
        if log:
            late = Player(case.bench.client, FsmHints(LOG), tmp_path / f"late-{author}")
            late.inject_handoff(author)
            await late.play()
        else:
            case.application.remote.fence += 1
        await case.publish()
        began = asyncio.get_running_loop().time()
        await case.check()
        took_s.append(asyncio.get_running_loop().time() - began)
    # Soon; and less so the second time, for two may believe that they are the owner.
    assert took_s[0] > 0.9
    assert took_s[1] > 1.9


async def test_a_shard_starts_again_though_etcd_was_away_when_it_was_to(
    local_consumers, own_etcd_server, etcd_prefix, tmp_path
):
    class Moody(Numbered):
        has_failed = False

        async def consume(self, txn, envelope):
            if not self.has_failed:
                self.has_failed = True
                raise ApplicationFailed("not yet")
            await super().consume(txn, envelope)

    async with LocalConsumers(
        tmp_path / "others",
        etcd=own_etcd_server.endpoint,
        prefix=f"{etcd_prefix}-others",
        client=local_consumers.client,
    ) as consumers:
        case = Case(consumers, tmp_path / "bench", restart_failed_s=0.5, etcd_lease_s=30.0)
        case.application = Moody()
        await case.begin(spec_of())
        await case.publish()
        await case.failed()
        case.process._etcd._timeout_s = 0.2
        own_etcd_server.kill()
        await pass_time(1.5)
        own_etcd_server.start()
        await case.check()


async def test_a_standby_that_has_failed_restarts_when_it_is_promoted(
    local_consumers, tmp_path, etcd_prefix
):
    case = Case(local_consumers, tmp_path / "bench")
    await case.begin(spec_of(hint_prefix=f"{etcd_prefix}-hints", hot_standbys=1))
    folder = tmp_path / "second"
    folder.mkdir()
    (process,) = case.consumers.processes
    second = await case.consumers.start(case.application, directory=folder)
    (own,) = (each for each in folder.iterdir() if each.is_dir())
    own.rmdir()
    own.touch()  # as a disk that takes nothing

    async def has_failed():
        replica = second.replicas.get(SHARD)
        return replica is not None and replica.error is not None

    await eventually(has_failed)
    own.unlink()
    own.mkdir()
    await case.publish()
    await case.consumers.crash(process)
    await case.check()

    async def is_told():
        return (await case.status()).code is ReplicaCode.PRIMARY

    await eventually(is_told)
