"""`consumer.Shard` over real gRPC and a real etcd, whose keys the test writes."""

import asyncio
import base64
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from aiohttp import ClientSession, web
from shard_group import FAILED, IDLE, PRIMARY, STANDBY, ShardGroup, shard

from gazette_platform.consumer.assignments import MISSING_ID
from gazette_platform.consumer.protocol import ShardChange, ShardSource, ShardStatus
from gazette_platform.consumer.recoverylog import FnodeSegments, FsmHints, Segment
from gazette_platform.consumer.shard_api import ShardGateway
from gazette_platform.errors import (
    CallFailed,
    EtcdTransactionFailed,
    NoShardPrimary,
    ShardNotFound,
    ShardStopped,
    TransportError,
    ValidationError,
)
from gazette_platform.keyspace import item_key
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import Header, LabelSelector, ProcessId
from gazette_platform.protocol.auth import Capability, Claims, KeyRing
from gazette_platform.protocol.pb import consumer_pb2 as pb
from gazette_platform.serving.http_server import Origins
from gazette_platform.serving.interface import Code, RpcFailed

pytestmark = pytest.mark.etcd

SHARD = "shard-000"
KEYS = base64.b64encode(b"a key that no one can guess").decode()
TEAM = {"team": "search"}


@pytest.fixture
async def group(etcd, etcd_server, etcd_prefix):
    found = ShardGroup(etcd, etcd_server.endpoint, etcd_prefix)
    yield found
    await found.stop()
    await etcd.delete(f"{etcd_prefix}-hints", prefix=True)


@pytest.fixture
async def ours(group):
    return await group.start("ours")


def source(*journals, **options):
    return tuple(ShardSource(journal, **options) for journal in journals)


def logged(group, name=SHARD, **changes):
    """A shard with a recovery log."""
    prefix = f"{group.prefix}-hints"
    return shard(name, **({"recovery_log_prefix": "logs", "hint_prefix": prefix} | changes))


def hints(author, log=f"logs/{SHARD}"):
    return FsmHints(log, (FnodeSegments(1, (Segment(author, 1, last_seq_no=2),)),))


def metadata(selector, capability=Capability.ALL):
    claims = Claims(capability, LabelSelector.parse(selector))
    token = KeyRing(KEYS).sign(claims, now=SystemClock().now().timestamp(), lifetime_s=60)
    return (("authorization", f"Bearer {token}"),)


async def call(process, name, request, response, *, token=None):
    """A call as any program makes it."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{process.server.port}") as channel:
        method = channel.unary_unary(
            f"/consumer.Shard/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return await method(request, timeout=10, metadata=token)


async def failure(process, name, request, response, *, token=None):
    with pytest.raises(grpc.aio.AioRpcError) as info:
        await call(process, name, request, response, token=token)
    return info.value.code().name, info.value.details()


# ---------------------------------------------------------------------------------- resolver


async def test_cr1_unknown_shard_is_not_found_and_names_us_or_a_placeholder(group, ours):
    found = await ours.resolver.resolve(SHARD)
    assert (found.status, found.header.process_id) == (ShardStatus.SHARD_NOT_FOUND, ours.id)
    await group.remove_member(ours)
    found = await ours.resolver.resolve(SHARD)
    assert found.header.process_id == MISSING_ID


async def test_cr1_shard_without_primary_and_primary_elsewhere(group, ours):
    await group.put_shard(shard(SHARD))
    assert (await ours.resolver.resolve(SHARD)).status is ShardStatus.NO_SHARD_PRIMARY
    await group.assign(SHARD, "other")
    found = await ours.resolver.resolve(SHARD)
    assert (found.status, found.header.process_id) == (ShardStatus.NOT_SHARD_PRIMARY, ours.id)
    found = await ours.resolver.resolve(SHARD, may_proxy=True)
    assert found.is_remote
    assert found.replica is None
    assert found.header.process_id == ProcessId("zone", "other")


async def test_cr2_wait_has_an_end_and_a_cancelled_wait_lets_the_replica_go(group, ours):
    replica = await group.serve(shard(SHARD, sources=source("a/source")), ours)
    with pytest.raises(RpcFailed, match=r"waited 0\.01 s for its store, and for 1 offsets") as info:
        await ours.resolver.resolve(SHARD, read_through={"a/source": 5}, timeout_s=0.01)
    assert info.value.code is Code.DEADLINE_EXCEEDED
    replica.used.clear()
    waiting = group.tasks.spawn(ours.resolver.resolve(SHARD, read_through={"a/source": 5}))
    await replica.used.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert replica.users == 0


async def test_cr3_failed_shard_serves_its_store_without_waiting(group, ours):
    replica = await group.serve(shard(SHARD, sources=source("a/source")), ours)
    replica.now(has_ended=True)
    (await ours.resolver.resolve(SHARD)).done()
    found = await ours.resolver.resolve(SHARD, read_through={"a/source": 5})
    assert (found.status, found.replica) == (ShardStatus.SHARD_STOPPED, None)
    replica.now(is_ready=False)
    assert (await ours.resolver.resolve(SHARD)).status is ShardStatus.SHARD_STOPPED
    assert replica.users == 0
    with pytest.raises(ShardStopped, match=SHARD):
        await group.client(ours).stat(SHARD)


async def test_cr5_source_index_follows_edits_of_specs(group, ours):
    await group.put_shard(shard(SHARD, sources=source("a/source", "c/other;meta")))
    assert [each.id for each in ours.resolver.shards_with_source("c/other")] == [SHARD]
    await group.put_shard(shard(SHARD, sources=source("a/source")))
    assert not ours.resolver.shards_with_source("c/other")


# -------------------------------------------------------------------------------------- Stat


async def test_ca1_stat_returns_progress_here_and_through_another_process(group, ours):
    theirs = await group.start("theirs")
    replica = await group.serve(shard(SHARD, sources=source("a/source")), theirs)
    replica.now(read_through={"a/source": 7}, publish_at={"out/put": 9})
    for process in (theirs, ours):
        found = await group.client(process).stat(SHARD, {"a/source": 7})
        assert (found.read_through, found.publish_at) == ({"a/source": 7}, {"out/put": 9})
        assert found.header.process_id == theirs.id
    assert replica.users == 0
    # One that was forwarded is not forwarded once more.
    header = Header(ours.id, ours.space.state.route_of(SHARD), ours.space.header)
    request = pb.StatRequest(shard=SHARD, header=header.to_pb())
    answer = await call(ours, "Stat", request, pb.StatResponse)
    assert answer.status == ShardStatus.NOT_SHARD_PRIMARY.value


async def test_ca1_stat_of_missing_shards_and_of_a_primary_that_cannot_be_reached(group, ours):
    client = group.client(ours)
    with pytest.raises(ShardNotFound, match="no shard"):
        await client.stat("no shard")
    await group.put_shard(shard(SHARD))
    with pytest.raises(NoShardPrimary, match=SHARD):
        await client.stat(SHARD)
    theirs = await group.start("theirs")
    await group.assign(SHARD, theirs)
    await theirs.server.stop(grace_s=0)
    with pytest.raises(TransportError, match=rf"its primary at {theirs.address}.*ask again"):
        await client.stat(SHARD)
    await group.remove_member(theirs)
    with pytest.raises(TransportError, match="has no endpoint"):
        await client.stat(SHARD)


async def test_ca1_claims_hide_shards_from_stat(group):
    ours = await group.start("ours", auth_keys=KEYS)
    await group.serve(shard(SHARD, labels=TEAM), ours)
    request = pb.StatRequest(shard=SHARD)
    for selector, status in (("team=search", 0), (f"id={SHARD}", 0), ("team=other", 1)):
        token = metadata(selector, Capability.READ)
        answer = await call(ours, "Stat", request, pb.StatResponse, token=token)
        assert answer.status == status
        assert bool(answer.header.route.members) is (status == 0)
    code, details = await failure(ours, "Stat", request, pb.StatResponse)
    assert (code, details) == ("UNAUTHENTICATED", "missing or empty Authorization token")
    token = metadata(f"id={SHARD}", Capability.LIST)
    code, details = await failure(ours, "Stat", request, pb.StatResponse, token=token)
    assert (code, details) == (
        "UNAUTHENTICATED",
        "authorization is missing required READ capability",
    )


async def test_processes_sign_calls_to_each_other(group):
    theirs = await group.start("theirs", auth_keys=KEYS)
    ours = await group.start("ours", auth_keys=KEYS)
    await group.serve(shard(SHARD), theirs)
    found = await group.client(ours, auth_keys=KEYS).stat(SHARD)
    assert found.header.process_id == theirs.id
    keyless = await group.start("keyless", peer_keys="")
    with pytest.raises(CallFailed, match="missing or empty Authorization token"):
        await group.client(keyless).stat(SHARD)


# -------------------------------------------------------------------------------------- List


async def test_ca2_list_selects_by_labels_and_id_with_revisions_and_statuses(group, ours):
    first = await group.put_shard(shard("shard-aaa", labels=TEAM))
    second = await group.put_shard(shard("shard-bbb", labels={"team": "other"}))
    await group.put_shard(shard("shard-bbb", labels={"team": "other"}, hot_standbys=1))
    await group.assign("shard-bbb", ours, 1, STANDBY)
    await group.assign("shard-bbb", "zother", 0, PRIMARY)
    client = group.client(ours)
    one, two = await client.list()
    assert (one.id, one.mod_revision, one.create_revision) == ("shard-aaa", first, first)
    assert (one.statuses, one.status) == ((), IDLE)
    assert (two.id, two.create_revision) == ("shard-bbb", second)
    assert two.mod_revision > second
    assert [each.suffix for each in two.route.members] == ["ours", "zother"]
    assert (two.route.primary, two.statuses, two.status) == (1, (STANDBY, PRIMARY), PRIMARY)
    assert two.route.endpoints == (ours.address, "")
    for selector, expected in (
        ("team=search", ["shard-aaa"]),
        ("team!=search", ["shard-bbb"]),
        ("id=shard-bbb", ["shard-bbb"]),
        ("id=shard-bbb, team=search", []),
    ):
        assert [each.id for each in await client.list(selector)] == expected
    snapshot = await client.list("team=none")
    assert snapshot.header.process_id == ours.id
    assert not snapshot.header.route.members


async def test_ca2_list_refuses_a_bad_selector_and_keeps_to_claims(group):
    ours = await group.start("ours", auth_keys=KEYS)
    await group.put_shard(shard("shard-aaa", labels=TEAM))
    await group.put_shard(shard("shard-bbb"))
    request = pb.ListRequest()
    answer = await call(ours, "List", request, pb.ListResponse, token=metadata("team=search"))
    assert [each.spec.id for each in answer.shards] == ["shard-aaa"]
    request.selector.include.labels.add(name="bad name")
    code, details = await failure(ours, "List", request, pb.ListResponse, token=metadata(""))
    assert code == "UNKNOWN"
    assert details.startswith("Selector.Include.Labels[0].Name: not a valid token (bad name)")
    assert [each.id for each in await group.client(ours, auth_keys=KEYS).list("team=search")] == [
        "shard-aaa"
    ]


# ------------------------------------------------------------------------------------- Apply


async def test_ca3_apply_creates_with_hints_updates_and_deletes(group, ours):
    client = group.client(ours)
    spec = logged(group)
    revision = await client.apply([ShardChange(spec)], primary_hints={SHARD: hints(1)})
    (found,) = await client.list()  # at once: the process has seen its own write
    assert (found.spec, found.mod_revision) == (spec, revision)
    kept = await group.etcd.get(f"{group.prefix}-hints/{SHARD}.primary")
    assert kept.value == hints(1).to_json()
    changed = replace(spec, hot_standbys=1)
    revision = await client.apply([ShardChange(changed, revision=revision)])
    with pytest.raises(EtcdTransactionFailed, match=SHARD):
        await client.apply([ShardChange(spec, revision=revision - 1)])
    with pytest.raises(EtcdTransactionFailed, match=SHARD):
        await client.apply([ShardChange(spec)])  # it exists already
    await client.apply([ShardChange(spec, revision=-1)])
    (found,) = await client.list()
    assert found.spec == spec
    await client.apply([ShardChange(None, SHARD, found.mod_revision)])
    assert len(await client.list()) == 0
    await client.apply([ShardChange(None, SHARD, -1)])  # nothing is there to be waited for
    await client.apply([])


async def test_ca4_apply_in_batches_of_a_size_keeps_those_before_one_that_fails(group, ours):
    await group.put_shard(shard("shard-3"))
    changes = [ShardChange(shard(f"shard-{n}")) for n in range(5)]
    client = group.client(ours)
    with pytest.raises(EtcdTransactionFailed, match="shard-2, shard-3"):
        await client.apply(changes, batch_size=2)
    assert [each.id for each in await client.list()] == ["shard-0", "shard-1", "shard-3"]


async def test_racing_applies_of_two_shards_with_one_log_give_one_shard(group, ours):
    clients = [group.client(each) for each in (ours, await group.start("other"))]
    for turn in range(10):
        names = (f"x/shard-{turn}", f"shard-{turn}")
        specs = [
            logged(group, names[0], recovery_log_prefix="log"),
            logged(group, names[1], recovery_log_prefix="log/x"),
        ]
        ended = await asyncio.gather(
            *(
                client.apply([ShardChange(spec)])
                for client, spec in zip(clients, specs, strict=True)
            ),
            return_exceptions=True,
        )
        refused = [each for each in ended if isinstance(each, CallFailed)]
        assert len(refused) == 1, ended
        assert f"its recovery log log/x/shard-{turn} is that of" in str(refused[0])
        found = [await group.etcd.get(item_key(group.prefix, name)) for name in names]
        assert sum(each is not None for each in found) == 1


async def test_ca3_apply_is_held_against_claims_on_labels_and_id(group):
    ours = await group.start("ours", auth_keys=KEYS)
    await group.put_shard(shard("shard-bbb", labels={"team": "other"}))

    async def apply(selector, *, upsert=None, delete="", revision=-1):
        request = pb.ApplyRequest()
        change = request.changes.add(expect_mod_revision=revision, delete=delete)
        if upsert is not None:
            change.upsert.CopyFrom(upsert.to_pb())
        return await call(ours, "Apply", request, pb.ApplyResponse, token=metadata(selector))

    spec = shard(SHARD, labels=TEAM)
    assert not (await apply("team=search", upsert=spec)).status
    for arguments in (
        {"upsert": shard(SHARD)},  # without the label
        {"upsert": shard("shard-bbb", labels=TEAM)},  # which is another team's now
        {"delete": SHARD},  # by its ID alone
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="not authorized to shard") as info:
            await apply("team=search", **arguments)
        assert info.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not (await apply(f"id={SHARD}", delete=SHARD)).status
    assert await group.etcd.get(item_key(group.prefix, SHARD)) is None


# ---------------------------------------------------------------------------------- GetHints


async def test_ca5_hints_none_full_and_without_primary_or_backups(group, ours):
    theirs = await group.start("theirs")
    client = group.client(theirs)
    await group.put_shard(logged(group, hint_backups=2))
    await group.assign(SHARD, ours)
    assert (await client.get_hints(SHARD)).slots == (None, None, None)
    key = f"{group.prefix}-hints/{SHARD}"
    await group.etcd.put(f"{key}.backup.0", hints(2).to_json())
    await group.etcd.put(f"{key}.backup.2", hints(9).to_json())  # beyond those of the spec
    assert (await client.get_hints(SHARD)).slots == (None, hints(2), None)
    await group.etcd.put(f"{key}.primary", hints(1).to_pb().SerializeToString())
    assert (await client.get_hints(SHARD)).slots == (hints(1), hints(2), None)
    await group.put_shard(logged(group))
    assert (await client.get_hints(SHARD)).slots == (hints(1),)
    await group.put_shard(shard(SHARD))
    assert (await client.get_hints(SHARD)).slots == (None,)


async def test_ca5_claims_hide_hints(group):
    ours = await group.start("ours", auth_keys=KEYS)
    await group.put_shard(logged(group, labels=TEAM))
    request = pb.GetHintsRequest(shard=SHARD)
    for selector, status in (("team=search", 0), ("team=other", 1)):
        token = metadata(selector, Capability.READ)
        answer = await call(ours, "GetHints", request, pb.GetHintsResponse, token=token)
        assert (answer.status, answer.HasField("primary_hints")) == (status, True)


# ---------------------------------------------------------------------------------- Unassign


async def assigned(group, name):
    """Slots of a shard that are assigned, by process."""
    found = group.processes[0].space.state.assignments_of(name)
    return {each.process_id.suffix: each.slot for each in found}


async def test_ca7_unassign_of_primaries_and_of_failed_replicas(group, ours):
    client = group.client(ours)
    for name in ("shard-aaa", "shard-bbb", "shard-ccc", "shard-ddd"):
        await group.put_shard(shard(name))
    await group.assign("shard-aaa", ours, 0, PRIMARY)
    await group.assign("shard-bbb", ours, 0, FAILED)
    await group.assign("shard-bbb", "failed", 1, FAILED)
    await group.assign("shard-bbb", "standby", 2, STANDBY)
    await group.assign("shard-ccc", "standby", 1, STANDBY)
    every = ["shard-aaa", "shard-bbb", "shard-ccc", "shard-ddd"]
    assert await client.unassign(every, dry_run=True) == ["shard-aaa", "shard-bbb"]
    assert await client.unassign(every, only_failed=True, dry_run=True) == ["shard-bbb"]
    assert len(await assigned(group, "shard-bbb")) == 3
    assert await client.unassign(every, only_failed=True) == ["shard-bbb"]
    assert await assigned(group, "shard-aaa") == {"ours": 0}
    assert await assigned(group, "shard-bbb") == {"standby": 2}
    assert await client.unassign(every) == ["shard-aaa"]
    assert await assigned(group, "shard-aaa") == {}
    assert await assigned(group, "shard-ccc") == {"standby": 1}
    assert await client.unassign(every) == []
    with pytest.raises(ValidationError, match=r"Shards\[0\]: not a valid token \(a b c d\)"):
        await client.unassign(["a b c d"])


async def test_ca7_unassign_that_raced_with_a_status_is_reported(group, ours):
    key = await group.assign(SHARD, ours, 0, PRIMARY)
    await ours.tasks.close()  # it does not see what comes
    await group.etcd.put(key, b"")
    with pytest.raises(EtcdTransactionFailed):
        await group.client(ours).unassign([SHARD])
    assert await group.etcd.get(key) is not None


async def test_ca7_unassign_is_held_against_claims_on_the_id(group):
    ours = await group.start("ours", auth_keys=KEYS)
    await group.put_shard(shard(SHARD, labels=TEAM))
    await group.assign(SHARD, ours, 0, PRIMARY)
    request = pb.UnassignRequest(shards=[SHARD])
    for selector in ("team=search", "id=shard-111"):
        code, details = await failure(
            ours, "Unassign", request, pb.UnassignResponse, token=metadata(selector)
        )
        assert (code, details) == ("UNAUTHENTICATED", f"not authorized to {SHARD}")
    # As the client signs it.
    assert await group.client(ours, auth_keys=KEYS).unassign([SHARD]) == [SHARD]


# --------------------------------------------------------------------------------------- HTTP


@pytest.fixture
async def gateway(ours):
    """URL of the REST gateway of a process."""
    app = web.Application()
    origins = Origins(["http://page.example"])
    ShardGateway(ours.service, origins=origins).add_to(app.router)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/shards"
    await runner.cleanup()


async def test_gateway_lists_and_stats_as_json(group, ours, gateway):
    replica = await group.serve(shard(SHARD, labels=TEAM, sources=source("a/source")), ours)
    replica.now(read_through={"a/source": 7})
    async with ClientSession(headers={"Origin": "http://page.example"}) as session:
        body = {"selector": {"include": {"labels": [{"name": "team", "value": "search"}]}}}
        async with session.post(f"{gateway}/list", json=body) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "http://page.example"
            (found,) = (await answer.json())["shards"]
        assert found["spec"]["id"] == SHARD
        assert found["spec"]["maxTxnDuration"] == "1s"
        assert found["status"] == [{"code": "PRIMARY", "errors": []}]
        async with session.post(f"{gateway}/stat", json={"shard": SHARD}) as answer:
            told = await answer.json()
        assert (told["status"], told["readThrough"], told["publishAt"]) == (
            "OK",
            {"a/source": "7"},
            {},
        )
        async with session.post(f"{gateway}/stat", json={"shards": SHARD}) as answer:
            assert answer.status == 400
            error = await answer.json()
            assert (error["code"], error["error"]) == (3, error["message"])
            assert "no field named" in error["message"]
        async with session.options(f"{gateway}/list") as answer:
            assert answer.headers["Access-Control-Allow-Methods"] == "POST"
