"""What changes of shards ask of etcd, over a key space that is written by hand and may be out of date."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from gazette_platform.consumer.assignments import (
    ConsumerState,
    encode_replica_status,
    encode_shard_spec,
)
from gazette_platform.consumer.protocol import ReplicaStatus, ShardSource, ShardSpec, ShardStatus
from gazette_platform.consumer.shard_api import ShardChanges
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, EtcdClient, Event, KeyValue, ResponseHeader, WatchBatch
from gazette_platform.keyspace import KeySpace, assignment_key, item_key, items_prefix
from gazette_platform.ops.faults import Faults
from gazette_platform.protocol import LabelSelector, LabelSet, ProcessId
from gazette_platform.protocol.auth import ALL_CLAIMS, Claims, Forbidden
from gazette_platform.protocol.pb import consumer_pb2 as pb
from gazette_platform.testing.waiting import turns

P = "/gazette/consumers/app"
SHARD = "shard-000"
KEY = item_key(P, SHARD)
OF_TEAM = Claims(selector=LabelSelector(include=LabelSet.of(team="search")))


def spec_of(team):
    return ShardSpec(
        SHARD,
        (ShardSource("a/one"),),
        max_txn_duration_ns=10**9,
        labels=LabelSet.of({"team": team}),
    )


class World:
    """A view of etcd, and an etcd that is as far as the test says. `meanwhile` is called after each transaction."""

    def __init__(self):
        self.compares = []
        self.succeeds = []
        self.ahead = 0
        self.meanwhile = lambda: None
        self.revision, self.version, self.created = 10, 0, 0
        nowhere = EtcdClient(["http://127.0.0.1:1"])
        self.space = KeySpace(nowhere, P, ConsumerState(P), faults=Faults())
        self.changes = ShardChanges(self, self.space)

    async def txn(self, compares, operations):
        self.compares.append(compares)
        self.meanwhile()
        succeeded = self.succeeds.pop(0) if self.succeeds else True
        header = ResponseHeader(1, 2, self.revision + self.ahead, 3)
        return SimpleNamespace(succeeded=succeeded, header=header)

    def watched(self, spec):
        self.revision += 1
        self.version += 1
        self.created = self.created or self.revision
        found = KeyValue(
            KEY,
            encode_shard_spec(spec),
            self.revision - self.version + 1,
            self.revision,
            self.version,
        )
        header = ResponseHeader(1, 2, self.revision, 3)
        self.space.apply_batches([WatchBatch(header, (Event(found, is_delete=False),))])

    def watched_shard(self, spec):
        self.revision += 1
        key = item_key(P, spec.id)
        found = KeyValue(key, encode_shard_spec(spec), self.revision, self.revision, 1)
        header = ResponseHeader(1, 2, self.revision, 3)
        self.space.apply_batches([WatchBatch(header, (Event(found, is_delete=False),))])

    def watched_assignment(self):
        self.revision += 1
        key = assignment_key(P, SHARD, ProcessId("zone", "ours"), 0)
        found = KeyValue(
            key, encode_replica_status(ReplicaStatus()), self.revision, self.revision, 1
        )
        header = ResponseHeader(1, 2, self.revision, 3)
        self.space.apply_batches([WatchBatch(header, (Event(found, is_delete=False),))])

    async def delete(self, shard, revision=-1):
        request = pb.ApplyRequest()
        request.changes.add(expect_mod_revision=revision, delete=shard)
        return await self.changes.apply(request, ALL_CLAIMS)

    async def upsert(self, claims, revision):
        request = pb.ApplyRequest()
        request.changes.add(expect_mod_revision=revision).upsert.CopyFrom(spec_of("search").to_pb())
        return await self.changes.apply(request, claims)


@pytest.mark.parametrize(
    ("claims", "expected", "compared"),
    [
        (ALL_CLAIMS, -1, []),
        (ALL_CLAIMS, 7, [7]),
        # What the claims were held against has to be what is replaced.
        (OF_TEAM, -1, [11]),
        (OF_TEAM, 7, [7, 11]),
        (OF_TEAM, 11, [11]),
    ],
)
async def test_ca3_what_is_compared_before_a_shard_is_replaced(claims, expected, compared):
    world = World()
    world.watched(spec_of("search"))
    changed = await world.upsert(claims, expected)
    assert changed == (ShardStatus.OK, 11)
    assert world.compares == [[Compare.mod(KEY, revision) for revision in compared]]


async def test_ca3_claims_are_held_against_the_present_spec():
    world = World()
    world.watched(spec_of("search"))
    world.succeeds = [False]
    world.meanwhile = lambda: world.watched(spec_of("other"))
    with pytest.raises(Forbidden, match=SHARD):
        await world.upsert(OF_TEAM, -1)


async def test_ca3_a_view_that_is_out_of_date_is_waited_for_and_not_for_ever():
    world = World()
    world.watched(spec_of("search"))
    world.succeeds = [False]
    world.meanwhile = lambda: world.watched(spec_of("search"))
    assert (await world.upsert(OF_TEAM, -1)).status is ShardStatus.OK
    assert world.compares == [[Compare.mod(KEY, 11)], [Compare.mod(KEY, 12)]]
    world.meanwhile, world.compares, world.succeeds = lambda: None, [], 9 * [False]
    assert (await world.upsert(OF_TEAM, -1)).status is ShardStatus.ETCD_TRANSACTION_FAILED
    assert len(world.compares) == 4
    # What the caller compares by itself is reported at once.
    world.compares = []
    assert (await world.upsert(ALL_CLAIMS, 7)).status is ShardStatus.ETCD_TRANSACTION_FAILED
    assert len(world.compares) == 1


@pytest.mark.parametrize("change", ["upsert", "delete", "unassign"])
async def test_a_change_is_reported_once_it_is_seen_here(change):
    world = World()
    world.watched(spec_of("search"))
    world.watched_assignment()
    world.ahead = 1  # the watch is behind
    waiting = asyncio.get_running_loop().create_task(
        {
            "upsert": lambda: world.upsert(ALL_CLAIMS, -1),
            "delete": lambda: world.delete(SHARD),
            "unassign": lambda: world.changes.unassign(
                [SHARD], ALL_CLAIMS, only_failed=False, dry_run=False
            ),
        }[change]()
    )
    await turns(20)
    assert not waiting.done()
    world.watched(spec_of("search"))
    await asyncio.wait_for(waiting, 5)


async def test_what_changes_nothing_is_not_waited_for():
    world = World()
    world.watched(spec_of("search"))
    world.ahead = 1
    changed = await asyncio.wait_for(world.delete("shard-999"), 5)
    assert changed.status is ShardStatus.OK


def with_log(shard, log, hints):
    return ShardSpec(
        shard,
        (ShardSource("a/one"),),
        recovery_log_prefix=log,
        hint_prefix=hints,
        max_txn_duration_ns=10**9,
    )


async def applied(world, *changes, claims=ALL_CLAIMS):
    """Apply specs, and delete shards that are named."""
    request = pb.ApplyRequest()
    for change in changes:
        if isinstance(change, str):
            request.changes.add(expect_mod_revision=-1, delete=change)
        else:
            request.changes.add(expect_mod_revision=-1).upsert.CopyFrom(change.to_pb())
    return await world.changes.apply(request, claims)


X, Y = "x/yyyy", "yyyy"


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [
        (with_log(X, "log", "/h"), with_log(Y, "log/x", "/g"), "recovery log log/x/yyyy"),
        (with_log(X, "a", "/h"), with_log(Y, "b", "/h/x"), "key of hints /h/x/yyyy.primary"),
    ],
)
async def test_shards_with_one_log_or_hints_are_refused(first, second, what):
    """They fenced each other, and mixed their state."""
    world = World()
    with pytest.raises(ValidationError, match=f"its {what} is that of {X} too"):
        await applied(world, first, second)
    world.watched_shard(first)
    with pytest.raises(ValidationError, match=f"its {what} is that of {X} too"):
        await applied(world, second)
    limited = Claims(selector=LabelSelector(include=LabelSet.of(id=Y)))
    with pytest.raises(ValidationError, match="is that of another shard too"):
        await applied(world, second, claims=limited)
    assert not world.compares
    # One takes the place of the other, in one transaction; or is applied again.
    assert (await applied(world, X, second)).status is ShardStatus.OK
    assert (await applied(world, first)).status is ShardStatus.OK


async def test_apply_sees_a_shard_with_its_log_created_meanwhile():
    world = World()
    world.watched(spec_of("search"))
    world.succeeds = [False]
    world.meanwhile = lambda: world.watched_shard(with_log(X, "log", "/h"))
    with pytest.raises(ValidationError, match=f"its recovery log log/x/yyyy is that of {X} too"):
        await applied(world, with_log(Y, "log/x", "/g"))
    assert world.compares == [[Compare.none_since(items_prefix(P), 11)]]


@pytest.mark.parametrize(
    ("revision", "log", "is_guarded"),
    [(11, "log", False), (-1, "log", True), (10, "log", True), (11, "other", True)],
)
async def test_apply_guards_other_shards_only_if_names_may_change(revision, log, is_guarded):
    world = World()
    world.watched_shard(with_log(Y, "log", "/h"))
    request = pb.ApplyRequest()
    spec = with_log(Y, log, "/h").to_pb()
    request.changes.add(expect_mod_revision=revision).upsert.CopyFrom(spec)
    await world.changes.apply(request, ALL_CLAIMS)
    assert (Compare.none_since(items_prefix(P), 11) in world.compares[0]) == is_guarded
