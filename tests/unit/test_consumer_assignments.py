"""What a process does about its replica, and who serves a shard."""

from __future__ import annotations

import pytest

from gazette_platform.consumer.assignments import (
    MISSING_ID,
    ConsumerState,
    HeldReplica,
    ReplicaStep,
    ReplicaTask,
    check_proxy_header,
    decode_replica_status,
    encode_consumer_spec,
    encode_replica_status,
    encode_shard_spec,
    failed_status,
    replica_step,
    resolve_shard,
    tasks_to_start,
)
from gazette_platform.consumer.protocol import (
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSpec,
    ShardStatus,
)
from gazette_platform.consumer.runtime.status import LocalStep, local_step
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import KeyValue
from gazette_platform.keyspace import assignment_key, item_key, member_key
from gazette_platform.protocol import EtcdHeader, Header, LabelSelector, LabelSet, ProcessId, Route
from gazette_platform.protocol.auth import Claims

P = "/p"
SHARD = "shard-000"
ETCD = EtcdHeader(1, 2, 33, 4)
OURS, OTHER = ProcessId("zone", "ours"), ProcessId("zone", "other")


def kv(key, value=b"", create=5):
    return KeyValue(key, value, create, 7, 1, 9)


def group(slots=None, *, members=(OURS, OTHER), has_shard=True):
    state = ConsumerState(P)
    for member in members:
        spec = ConsumerSpec(member, f"http://{member.suffix}:1")
        state.put(kv(member_key(P, member), encode_consumer_spec(spec)))
    if has_shard:
        spec = ShardSpec(SHARD, max_txn_duration_ns=1, labels=LabelSet.of(team="search"))
        state.put(kv(item_key(P, SHARD), encode_shard_spec(spec)))
    for member, slot in (slots or {}).items():
        state.put(kv(assignment_key(P, SHARD, member, slot)))
    return state


def resolve(state, *, may_proxy=True, **others):
    return resolve_shard(state, ETCD, OURS, SHARD, may_proxy=may_proxy, **others)


@pytest.mark.parametrize(
    ("slots", "may_proxy", "status", "answering", "is_local"),
    [
        ({}, True, "NO_SHARD_PRIMARY", OURS, False),
        ({OURS: 1}, True, "NO_SHARD_PRIMARY", OURS, False),
        ({OTHER: 0}, True, "OK", OTHER, False),
        ({OTHER: 0, OURS: 1}, False, "NOT_SHARD_PRIMARY", OURS, False),
        ({OURS: 0}, True, "OK", OURS, True),
        ({OURS: 0, OTHER: 1}, False, "OK", OURS, True),
    ],
)
def test_primary_answers_or_the_reason_is_reported(slots, may_proxy, status, answering, is_local):
    found = resolve(group(slots), may_proxy=may_proxy)
    assert found.status is ShardStatus[status]
    assert found.header.process_id == answering
    assert found.header.etcd == ETCD
    assert found.header.route.members == tuple(sorted(slots))
    assert found.is_local is is_local
    assert found.is_remote is (status == "OK" and not is_local)
    assert found.spec.id == SHARD


def test_unknown_shard_is_not_found():
    found = resolve(group(has_shard=False))
    assert (found.status, found.spec) == (ShardStatus.SHARD_NOT_FOUND, None)
    # Assignments of a shard that is gone say nothing.
    found = resolve(group({OURS: 0}, has_shard=False))
    assert found.status is ShardStatus.SHARD_NOT_FOUND
    assert found.header == Header(OURS, Route(), ETCD)


@pytest.mark.parametrize(
    ("selector", "is_found"),
    [
        ("id=shard-000", True),
        ("id in (shard-000)", True),
        ("team=search", True),
        ("id=shard-001", False),
        ("!team", False),
    ],
)
def test_shard_beyond_the_claims_does_not_exist(selector, is_found):
    claims = Claims(selector=LabelSelector.parse(selector))
    found = resolve(group({OURS: 0}), claims=claims)
    assert found.status is (ShardStatus.OK if is_found else ShardStatus.SHARD_NOT_FOUND)
    assert bool(found.header.route.members) is is_found
    assert found.is_local is is_found


def test_former_member_resolves_remote_shards_only():
    found = resolve(group({OTHER: 0}, members=(OTHER,)))
    assert found.is_remote
    found = resolve(group({OURS: 0}, members=(OTHER,)), may_proxy=False)
    assert found.status is ShardStatus.NOT_SHARD_PRIMARY
    assert found.header.process_id == MISSING_ID
    MISSING_ID.validate()


def test_proxying_process_has_to_mean_us():
    route = Route()
    assert check_proxy_header(Header(OURS, route, EtcdHeader(1, 9, 44, 9)), ETCD, OURS) == 44
    assert check_proxy_header(Header(None, route, ETCD), ETCD, OURS) == 33
    with pytest.raises(ValidationError, match="ClusterId doesn't match our own \\(8 vs 1\\)"):
        check_proxy_header(Header(OURS, route, EtcdHeader(8, 2, 3, 4)), ETCD, OURS)
    with pytest.raises(ValidationError, match="ProcessId doesn't match our own"):
        check_proxy_header(Header(OTHER, route, ETCD), ETCD, OURS)


@pytest.mark.parametrize(
    ("is_store_ready", "is_loop_ended", "is_reached", "expected"),
    [
        (False, False, True, LocalStep.WAIT),
        (False, True, True, LocalStep.STOPPED),
        (True, False, False, LocalStep.WAIT),
        (True, True, False, LocalStep.STOPPED),
        (True, False, True, LocalStep.SERVE),
        (True, True, True, LocalStep.SERVE),  # failed, but no caller waits for it
    ],
)
def test_call_is_served_once_the_store_is_ready_and_has_read_through(
    is_store_ready, is_loop_ended, is_reached, expected
):
    found = local_step(
        is_store_ready=is_store_ready, is_loop_ended=is_loop_ended, is_reached=is_reached
    )
    assert found is expected


def assigned(slot, create):
    state = ConsumerState(P)
    state.put(kv(assignment_key(P, SHARD, OURS, slot), create=create))
    return state.assignment_of(SHARD, OURS)


@pytest.mark.parametrize(
    ("held", "now", "has_spec", "step", "tasks"),
    [
        (None, None, True, "KEEP", ""),
        (None, (0, 5), False, "KEEP", ""),
        (None, (0, 5), True, "START", "STANDBY PRIMARY"),
        (None, (2, 5), True, "START", "STANDBY"),
        ((0, 5), (0, 5), True, "KEEP", ""),
        ((1, 5), (0, 6), True, "PROMOTE", "PRIMARY"),
        ((2, 5), (1, 6), True, "PROMOTE", ""),
        ((1, 5, True), (0, 6), True, "RESTART", "STANDBY PRIMARY"),
        ((2, 5, True), (1, 6), True, "RESTART", "STANDBY"),
        ((1, 5, True), (1, 5), True, "KEEP", ""),
        ((0, 5), (1, 6), True, "RESTART", "STANDBY"),
        ((0, 5), (0, 6), True, "RESTART", "STANDBY PRIMARY"),
        ((1, 5), (1, 6), True, "RESTART", "STANDBY"),
        ((0, 5), None, True, "STOP", ""),
        ((0, 5), (0, 5), False, "STOP", ""),
    ],
)
def test_cr4_replica_follows_its_assignment(held, now, has_spec, step, tasks):
    found = replica_step(
        None if held is None else HeldReplica(*held[:2], has_failed=len(held) > 2),
        None if now is None else assigned(*now),
        has_spec=has_spec,
    )
    assert found is ReplicaStep[step]
    slot = now[0] if now is not None else 0
    assert tasks_to_start(found, slot) == tuple(ReplicaTask[name] for name in tasks.split())


def test_cs4_error_of_a_primary_is_cut():
    long = "x" * 3000
    cut = failed_status(long, ReplicaTask.PRIMARY)
    assert cut == ReplicaStatus(ReplicaCode.FAILED, ("x" * 2048 + " ...[truncated]",))
    assert failed_status(long, ReplicaTask.STANDBY).errors == (long,)
    assert failed_status("x" * 2048, ReplicaTask.PRIMARY).errors == ("x" * 2048,)
    assert len(failed_status("x" * 10**6, ReplicaTask.STANDBY).errors[0]) < 40_000
    # FAILED has an error always.
    failed_status("", ReplicaTask.PRIMARY).validate()


@pytest.mark.parametrize("task", ReplicaTask)
def test_any_error_can_be_reported(task):
    status = failed_status("no file \udcff, \ud800", task)
    assert status.errors == ("no file \\udcff, \\ud800",)
    assert decode_replica_status(encode_replica_status(status)) == status
