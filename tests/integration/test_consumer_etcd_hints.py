"""What replicas keep in a real etcd: statuses that are folded, and hints, while they are assigned."""

import asyncio

import pytest
from shard_group import FAILED, IDLE, PRIMARY, STANDBY, ShardGroup, shard

from gazette_platform.consumer.assignments import encode_replica_status, primary_hint_key
from gazette_platform.consumer.etcd_hints import EtcdShardHost
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus
from gazette_platform.consumer.recoverylog import FnodeSegments, FsmHints, Segment
from gazette_platform.errors import DataError, JournalReplaced, ShardStopped
from gazette_platform.etcd import Delete, EtcdClient
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.protocol import created_by
from gazette_platform.testing.waiting import eventually, patient, stays

pytestmark = pytest.mark.etcd

SHARD = "shard-000"
BACKFILL = ReplicaStatus(ReplicaCode.BACKFILL)


def hints(author, log=f"logs/{SHARD}"):
    return FsmHints(log, (FnodeSegments(1, (Segment(author, 1, last_seq_no=2),)),))


@pytest.fixture
async def group(etcd, etcd_server, etcd_prefix):
    found = ShardGroup(etcd, etcd_server.endpoint, etcd_prefix)
    yield found
    await found.stop()
    await etcd.delete(f"{etcd_prefix}-hints", prefix=True)


@pytest.fixture
async def ours(group):
    process = await group.start("ours")
    prefix = f"{group.prefix}-hints"
    spec = shard(SHARD, recovery_log_prefix="logs", hint_prefix=prefix, hint_backups=2)
    await group.put_shard(spec)
    return process


def assignment(process):
    return process.space.state.assignment_of(SHARD, process.id)


async def host(group, process, slot=0):
    await group.assign(SHARD, process, slot)
    return EtcdShardHost(process.api, assignment(process))


async def test_status_is_folded_and_known_here_at_once(group, ours):
    replica = await host(group, ours)
    for status, expected in (
        (BACKFILL, BACKFILL),
        (STANDBY, STANDBY),
        (BACKFILL, STANDBY),  # it never goes back
        (PRIMARY, PRIMARY),
        (FAILED, FAILED),
        (FAILED, FAILED),  # as after an attempt whose outcome was not known
        (PRIMARY, FAILED),
    ):
        await replica.set_status(status)
        assert assignment(ours).status == expected
    await replica.set_status(ReplicaStatus(ReplicaCode.FAILED, ("another",)))
    assert assignment(ours).status.errors == ("some error", "another")


async def test_failure_of_a_former_replica_is_replaced(group, ours):
    await group.assign(SHARD, ours, status=FAILED)
    replica = EtcdShardHost(ours.api, assignment(ours))
    await asyncio.gather(replica.set_status(PRIMARY), replica.set_status(STANDBY))
    assert assignment(ours).status == PRIMARY
    another = ReplicaStatus(ReplicaCode.FAILED, ("another",))
    await replica.set_status(another)
    await replica.set_status(PRIMARY)
    assert assignment(ours).status == another


async def test_status_is_retried_when_another_process_wrote(group, ours, monkeypatch):
    replica = await host(group, ours)
    await ours.tasks.close()  # our view stands still
    await group.etcd.put(assignment(ours).key, encode_replica_status(STANDBY))
    txn, refused = ours.etcd.txn, []

    async def noted(*args):
        result = await txn(*args)
        refused.append(not result.succeeded)
        return result

    monkeypatch.setattr(ours.etcd, "txn", noted)
    setting = group.tasks.spawn(replica.set_status(PRIMARY))
    await eventually(lambda: refused)
    assert all(refused)
    assert not setting.done()
    ours.tasks = TaskGroup("again")
    ours.tasks.spawn(ours.space.watch())
    await setting
    assert assignment(ours).status == PRIMARY


async def test_nothing_is_reported_under_an_assignment_that_is_gone(group, ours):
    replica = await host(group, ours)
    key = assignment(ours).key
    await group.txn(Delete(key))
    for call in (
        replica.set_status(PRIMARY),
        replica.confirm(),
        replica.fetch_hints(),
        replica.put_hints(hints(1)),
        replica.put_backup_hints(hints(1)),
        replica.require_log(f"logs/{SHARD}", 7),
    ):
        with pytest.raises(ShardStopped, match=f"{SHARD}: SHARD_STOPPED: its assignment is gone"):
            await call
    await group.assign(SHARD, ours)  # another one, which it does not learn of
    with pytest.raises(ShardStopped):
        await replica.set_status(PRIMARY)
    assert assignment(ours).status == IDLE
    # It is, if the replica is promoted.
    replica.promoted(assignment(ours))
    await replica.set_status(PRIMARY)
    assert assignment(ours).status == PRIMARY


async def test_assignment_that_went_before_we_know_of_it_is_found_out(group, ours):
    replica = await host(group, ours)
    await replica.set_status(PRIMARY)
    await replica.confirm()
    await ours.tasks.close()
    key = assignment(ours).key
    await group.etcd.delete(key)
    for _ in range(2):
        with pytest.raises(ShardStopped):
            await replica.put_hints(hints(1))
        with pytest.raises(ShardStopped):
            await replica.confirm()
        await group.etcd.put(key, encode_replica_status(PRIMARY))  # another one
    assert await group.etcd.get(f"{group.prefix}-hints/{SHARD}.primary") is None


async def test_nothing_is_confirmed_once_our_lease_has_ended_by_our_own_clock(group, ours):
    await group.assign(SHARD, ours)
    lease = await group.etcd.grant_lease(2)  # and no process renews it
    replica = EtcdShardHost(ours.api, assignment(ours), lease=lease)
    await replica.confirm()
    await eventually(lambda: lease.remaining_s <= 0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(replica.confirm(), 0.3)


async def test_hints_come_back_as_they_were_kept(group, ours):
    replica = await host(group, ours)
    assert await replica.fetch_hints() == (None, None, None)
    await replica.put_hints(hints(1))
    await replica.put_backup_hints(hints(2))
    await replica.put_backup_hints(hints(3))
    for _ in "12":  # the second time as after an answer that was lost, or a recovery of the same
        await replica.put_backup_hints(hints(3))
        assert await replica.fetch_hints() == (hints(1), hints(3), hints(2))
    other = hints(4, "logs/other").to_json()
    await group.etcd.put(primary_hint_key(ours.space.state.items[SHARD].spec), other)
    with pytest.raises(DataError, match="are of recovery log logs/other"):
        await replica.fetch_hints()


@pytest.mark.parametrize("prefix", ["moved", ""])
async def test_hints_of_the_log_it_runs_on_are_not_kept_as_those_of_another(
    group, ours, prefix, caplog
):
    """The spec may name another log while a replica runs: what is kept is for whoever starts next."""
    replica = await host(group, ours)
    fields = {"hint_prefix": f"{group.prefix}-hints", "hint_backups": 2} if prefix else {}
    spec = shard(SHARD, recovery_log_prefix=prefix, **fields)
    await group.put_shard(spec)
    written = hints(1, f"moved/{SHARD}")  # by whoever has changed the spec
    if prefix:
        await group.etcd.put(primary_hint_key(spec), written.to_json())
    await replica.put_hints(hints(2))
    await replica.put_backup_hints(hints(3))
    assert await replica.fetch_hints() == ((written, None, None) if prefix else (None,))
    assert (
        f"it runs on recovery log logs/{SHARD}, and its spec names {spec.recovery_log or 'none'}"
        in (caplog.text)
    )


async def test_log_is_the_journal_that_was_noted_first(group, ours):
    replica = await host(group, ours)
    log, key = f"logs/{SHARD}", f"{group.prefix}-hints/{SHARD}.log"
    await replica.require_log(log, 0)  # a broker of an old release does not say it
    await replica.require_log("logs/former", 5)  # it runs on a log that its spec named before
    assert await group.etcd.get(key) is None
    for _ in "12":
        await replica.require_log(log, 7)
    kept = await group.etcd.get(key)
    assert (kept.value, kept.version) == (f'{{"log": "{log}", "created": 7}}'.encode(), 1)
    with pytest.raises(JournalReplaced, match=f"created at revision 9 .* delete the key {key}"):
        await replica.require_log(log, 9)
    known = created_by(7, 1)  # brokers send the history of their etcd since
    for created in (known, 7, known):
        await replica.require_log(log, created)
    kept = await group.etcd.get(key)
    assert (kept.value, kept.version) == (f'{{"log": "{log}", "created": {known}}}'.encode(), 2)
    with pytest.raises(JournalReplaced, match="created at revision 7 of another etcd"):
        await replica.require_log(log, created_by(7, 2))
    await group.put_shard(
        shard(SHARD, recovery_log_prefix="moved", hint_prefix=f"{group.prefix}-hints")
    )
    await replica.require_log(f"moved/{SHARD}", 9)  # another log has no former journal
    await group.etcd.put(key, b"none of ours")
    with pytest.raises(DataError, match=f"{key}: expected JSON with `log` and `created`"):
        await replica.require_log(f"moved/{SHARD}", 9)


@pytest.mark.own_brokers
async def test_it_outlasts_an_etcd_that_does_not_answer(own_etcd_server, etcd_prefix):
    async with EtcdClient([own_etcd_server.endpoint]) as etcd:
        group = ShardGroup(etcd, own_etcd_server.endpoint, etcd_prefix)
        try:
            ours = await group.start("ours")
            await group.put_shard(shard(SHARD))
            replica = await host(group, ours)
            own_etcd_server.kill()
            setting = group.tasks.spawn(replica.set_status(PRIMARY))
            fetching = group.tasks.spawn(replica.fetch_hints())
            confirming = group.tasks.spawn(replica.confirm())
            await stays(lambda: not (setting.done() or confirming.done()), for_s=0.3)
            own_etcd_server.start()
            async with asyncio.timeout(patient(30)):
                await setting
                await confirming
                assert await fetching == (None,)
            assert assignment(ours).status == PRIMARY
        finally:
            await group.stop()
