"""The key space of a consumer group: codecs, consistency, the allocator's steps, and guarded writes."""

from dataclasses import replace

import pytest

from gazette_platform.allocator import Loads, converge_item, effective_limits
from gazette_platform.consumer.assignments import (
    ConsumerState,
    ShardAssignment,
    backup_hint_keys,
    decode_consumer_spec,
    decode_replica_status,
    decode_shard_spec,
    encode_consumer_spec,
    encode_replica_status,
    encode_shard_spec,
    primary_hint_key,
    rotate_backup_hints,
    write_primary_hints,
    write_status,
)
from gazette_platform.consumer.protocol import (
    ConsumerSpec,
    ReplicaCode,
    ReplicaStatus,
    ShardSource,
    ShardSpec,
)
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Delete, KeyValue, Put
from gazette_platform.keyspace import assignment_key, item_key, member_key
from gazette_platform.protocol import ProcessId, Route

P = "/gazette/consumers/app"
SHARD = "app/shard-000"
A, B, C = (ProcessId("zone", f"member-{n}") for n in "abc")
SPEC = ShardSpec(
    SHARD,
    (ShardSource("a/one"), ShardSource("a/two;meta")),
    recovery_log_prefix="app/logs",
    hint_prefix="/app/hints",
    hint_backups=2,
    max_txn_duration_ns=10**9,
)
IDLE, BACKFILL, STANDBY, PRIMARY = (
    ReplicaStatus(code) for code in ReplicaCode if code is not ReplicaCode.FAILED
)
FAILED = ReplicaStatus(ReplicaCode.FAILED, ("why",))


def kv(key, value, mod=7, lease=0):
    return KeyValue(key, value, 5, mod, 1, lease)


def process(process_id, **changes):
    return ConsumerSpec(process_id, f"http://{process_id.suffix}:80", **changes)


def group(replicas, *, spec=SPEC, **changes):
    """SHARD with replicas (process, slot, status), and the processes A, B, C."""
    state = ConsumerState(P)
    state.begin()
    for member in (A, B, C):
        state.put(
            kv(member_key(P, member), encode_consumer_spec(process(member, **changes)), lease=9)
        )
    state.put(kv(item_key(P, spec.id), encode_shard_spec(spec)))
    for member, slot, status in replicas:
        key = assignment_key(P, spec.id, member, slot)
        state.put(kv(key, encode_replica_status(status), mod=100 + slot, lease=9))
    state.end()
    return state


def test_values_are_read_as_written():
    spec, consumer = SPEC, process(A, shard_limit=3, exiting=True)
    assert decode_shard_spec(encode_shard_spec(spec), shard=SHARD) == spec
    assert decode_consumer_spec(encode_consumer_spec(consumer), process_id=A) == consumer
    for status in (IDLE, BACKFILL, STANDBY, PRIMARY, FAILED):
        assert decode_replica_status(encode_replica_status(status)) == status
    assert encode_replica_status(IDLE) == b""


@pytest.mark.parametrize(
    ("decode", "problem"),
    [
        (
            lambda: decode_shard_spec(encode_shard_spec(SPEC), shard="other"),
            "shard spec is of 'app/shard-000'; the key says 'other'",
        ),
        (lambda: decode_shard_spec(b"\xff", shard=SHARD), "1 bytes are no ShardSpec"),
        (
            lambda: decode_shard_spec(encode_shard_spec(ShardSpec(SHARD)), shard=SHARD),
            "invalid MaxTxnDuration",
        ),
        (
            lambda: decode_consumer_spec(encode_consumer_spec(process(A)), process_id=B),
            "consumer spec is of",
        ),
        (
            lambda: decode_replica_status(
                ReplicaStatus(ReplicaCode.FAILED).to_pb().SerializeToString()
            ),
            "expected Errors with Code FAILED",
        ),
        (lambda: decode_replica_status(b"\x08"), "no ReplicaStatus"),
    ],
)
def test_bad_values_are_refused(decode, problem):
    with pytest.raises(ValidationError, match=problem):
        decode()


def test_state_returns_routes_and_statuses_in_one_order():
    state = group([(B, 0, PRIMARY), (A, 1, STANDBY)])
    assert list(state.shards) == [SHARD]
    assert state.route_of(SHARD) == Route((A, B), 1, ("http://member-a:80", "http://member-b:80"))
    assert state.statuses_of(SHARD) == (STANDBY, PRIMARY)
    primary = state.primary_of(SHARD)
    assert isinstance(primary, ShardAssignment)
    assert (primary.process_id, primary.shard) == (B, SHARD)
    assert state.primary_of("unknown") is None


def test_bad_status_keeps_the_last_good_one():
    state = group([(A, 0, PRIMARY)])
    key = assignment_key(P, SHARD, A, 0)
    with pytest.raises(ValidationError):
        state.put(kv(key, b"\x08", mod=200))
    assert state.primary_of(SHARD).status == PRIMARY
    assert state.primary_of(SHARD).mod_revision == 200
    with pytest.raises(ValidationError):
        state.put(kv(assignment_key(P, SHARD, B, 1), b"\x08"))
    assert state.assignment_of(SHARD, B) is None


def test_cr5_shards_are_found_by_their_sources():
    other = replace(SPEC, id="app/shard-001", sources=(ShardSource("a/two"),))
    state = group([])
    state.begin()
    state.put(kv(item_key(P, other.id), encode_shard_spec(other)))
    state.end()
    assert state.shards_with_source("a/two") == [SPEC, other]
    assert state.shards_with_source("a/two;other") == [SPEC, other]
    assert state.shards_with_source("a/one") == [SPEC]
    assert state.shards_with_source("a/none") == []
    state.begin()
    state.remove(item_key(P, other.id))
    state.put(kv(item_key(P, SHARD), encode_shard_spec(replace(SPEC, sources=())), mod=8))
    state.end()
    assert state.shards_with_source("a/two") == []


@pytest.mark.parametrize(
    ("primary", "standby", "expected"),
    [
        (PRIMARY, STANDBY, (True, True)),
        (PRIMARY, BACKFILL, (True, False)),
        (PRIMARY, IDLE, (True, False)),
        (PRIMARY, FAILED, (True, False)),
        (FAILED, FAILED, (True, True)),
        (FAILED, STANDBY, (True, True)),
        (BACKFILL, FAILED, (False, False)),
    ],
)
def test_cc1_replica_is_consistent_by_its_status(primary, standby, expected):
    state = group([(A, 0, primary), (B, 1, standby)])
    assert tuple(map(state.is_consistent_replica, state.assignments_of(SHARD))) == expected


def test_cc1_failed_replica_without_a_primary_is_not_consistent():
    state = group([(A, 1, FAILED)])
    assert not state.is_consistent_replica(state.assignment_of(SHARD, A))


def step(state, desired, replication=1):
    loads = Loads(state, {A: 10, B: 10, C: 10})
    return converge_item(P, state, SHARD, desired=desired, replication=replication, loads=loads)


def operations(piece):
    return (
        [] if piece is None else [(type(op), op.key.rpartition("/")[2]) for op in piece.operations]
    )


def test_hand_off_waits_until_the_replacement_has_the_state():
    # A is to hand over to B, without a hot standby.
    added = step(group([(A, 0, PRIMARY)]), [B])
    assert operations(added) == [(Put, "shard-000#zone#member-b#1")]
    for status in (IDLE, BACKFILL):
        assert step(group([(A, 0, PRIMARY), (B, 1, status)]), [B]) is None
    handed = step(group([(A, 0, PRIMARY), (B, 1, STANDBY)]), [B])
    # The removal and the promotion are one transaction; the status goes along.
    assert operations(handed) == [
        (Delete, "shard-000#zone#member-a#0"),
        (Delete, "shard-000#zone#member-b#1"),
        (Put, "shard-000#zone#member-b#0"),
    ]
    assert handed.operations[2] == Put(
        assignment_key(P, SHARD, B, 0), encode_replica_status(STANDBY), lease=9
    )


def test_recovered_standby_is_promoted_before_one_that_plays():
    # A's process has died.
    state = group([(B, 1, BACKFILL), (C, 2, STANDBY)])
    assert operations(step(state, [B, C], replication=2)) == [
        (Delete, "shard-000#zone#member-c#2"),
        (Put, "shard-000#zone#member-c#0"),
    ]


def test_inconsistent_surplus_goes_before_a_consistent_one():
    state = group([(A, 0, PRIMARY), (B, 1, STANDBY), (C, 2, BACKFILL)])
    # B ought to go but is needed: only C, in surplus too, has nothing to lose.
    assert operations(step(state, [A], replication=2)) == [(Delete, "shard-000#zone#member-c#2")]


def test_failed_shard_can_be_moved():
    state = group([(A, 0, FAILED), (B, 1, STANDBY)])
    assert (Delete, "shard-000#zone#member-a#0") in operations(step(state, [B]))


def test_gap_is_closed_while_a_standby_plays():
    state = group([(A, 0, PRIMARY), (C, 2, BACKFILL)])
    assert operations(step(state, [A, C], replication=2)) == [
        (Delete, "shard-000#zone#member-c#2"),
        (Put, "shard-000#zone#member-c#1"),
    ]


def test_exiting_process_sheds_its_shards():
    state = group([(A, 0, PRIMARY)], shard_limit=4)
    state.put(
        kv(member_key(P, A), encode_consumer_spec(process(A, shard_limit=4, exiting=True)), 8)
    )
    limits = effective_limits(state.members, replicas=1, replication_max=1)
    assert limits == {A: 0, B: 4, C: 4}


def test_status_is_folded_and_guarded():
    [assignment] = group([(A, 1, STANDBY)]).assignments_of(SHARD)
    key = assignment_key(P, SHARD, A, 1)
    write = write_status(assignment, PRIMARY)
    assert write.compares == (Compare.mod(key, 101),)
    assert write.operations == (Put(key, encode_replica_status(PRIMARY), ignore_lease=True),)
    # It never goes down.
    assert write_status(assignment, BACKFILL).operations[0].value == encode_replica_status(STANDBY)
    failed = replace(assignment, told=FAILED)
    assert write_status(failed, PRIMARY).operations[0].value == encode_replica_status(FAILED)


def test_keys_of_hints():
    assert primary_hint_key(SPEC) == "/app/hints/app/shard-000.primary"
    assert backup_hint_keys(SPEC) == (
        "/app/hints/app/shard-000.backup.0",
        "/app/hints/app/shard-000.backup.1",
    )
    remote = replace(SPEC, recovery_log_prefix="", hint_prefix="")
    assert (primary_hint_key(remote), backup_hint_keys(remote)) == ("", ())


def test_a_spec_that_asks_for_countless_backups_of_hints_is_refused():
    most = replace(SPEC, hint_backups=127)
    assert len(backup_hint_keys(most)) == 127
    with pytest.raises(ValidationError, match="asks for 128 backups of its hints"):
        backup_hint_keys(replace(SPEC, hint_backups=128))
    assert backup_hint_keys(replace(most, hint_backups=1 << 30, recovery_log_prefix="")) == ()


def test_primary_hints_are_guarded_by_the_creation_of_the_assignment():
    [assignment] = group([(A, 0, PRIMARY)]).assignments_of(SHARD)
    write = write_primary_hints(SPEC, assignment, b"{}")
    assert write.compares == (Compare.create(assignment.key, 5),)
    assert write.operations == (Put("/app/hints/app/shard-000.primary", b"{}"),)


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ((None, None), [(0, b"new", 0)]),
        ((b"one", None), [(0, b"new", 70), (1, b"one", 0)]),
        ((b"one", b"two"), [(0, b"new", 70), (1, b"one", 71)]),
        ((None, b"two"), [(0, b"new", 0)]),
    ],
)
def test_backup_hints_move_on_up_to_a_free_key_or_the_last(present, expected):
    [assignment] = group([(A, 0, PRIMARY)]).assignments_of(SHARD)
    keys = backup_hint_keys(SPEC)
    found = [
        None if value is None else kv(key, value, mod=70 + n)
        for n, (key, value) in enumerate(zip(keys, present, strict=True))
    ]
    write = rotate_backup_hints(SPEC, assignment, b"new", found)
    assert write.operations == tuple(Put(keys[n], value) for n, value, _ in expected)
    assert write.compares == (
        Compare.create(assignment.key, 5),
        *(Compare.mod(keys[n], mod) for n, _, mod in expected),
    )


def test_shard_without_backups_writes_none():
    [assignment] = group([(A, 0, PRIMARY)]).assignments_of(SHARD)
    write = rotate_backup_hints(replace(SPEC, hint_backups=0), assignment, b"new", [])
    assert write.operations == ()
