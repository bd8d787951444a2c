"""Hints of shards in a real etcd: what is read, what is refused, and what guards them."""

import asyncio
import time
from dataclasses import replace

import pytest
from shard_group import PRIMARY, shard

from gazette_platform.consumer.assignments import (
    ConsumerState,
    encode_replica_status,
    encode_shard_spec,
    write_status,
)
from gazette_platform.consumer.etcd_hints import (
    StoredHints,
    fetch_hints,
    put_primary_hints,
    rotate_hints,
)
from gazette_platform.consumer.recoverylog import FnodeSegments, FsmHints, Segment
from gazette_platform.errors import DataError
from gazette_platform.etcd import Put
from gazette_platform.keyspace import KeySpace, assignment_key, item_key
from gazette_platform.protocol import ProcessId
from gazette_platform.testing.waiting import pass_time

pytestmark = pytest.mark.etcd

OURS = ProcessId("zone", "ours")


def hints(author, log="logs/shard-000"):
    return FsmHints(log, (FnodeSegments(1, (Segment(author, 1, last_seq_no=2),)),))


@pytest.fixture
def spec(etcd_prefix):
    return shard(
        "shard-000", recovery_log_prefix="logs", hint_prefix=f"{etcd_prefix}-hints", hint_backups=2
    )


@pytest.fixture
async def keys(etcd, etcd_prefix, spec):
    """Our assignment of the shard, read again at each call."""
    await etcd.txn(
        [],
        [
            Put(item_key(etcd_prefix, spec.id), encode_shard_spec(spec)),
            Put(assignment_key(etcd_prefix, spec.id, OURS, 0), b""),
        ],
    )

    async def assignment():
        space = KeySpace(etcd, etcd_prefix, ConsumerState(etcd_prefix))
        await space.load()
        return space.state.assignment_of(spec.id, OURS)

    yield assignment
    await etcd.delete(spec.hint_prefix, prefix=True)


async def test_ch1_missing_keys_give_no_hints(etcd, spec, keys):
    found = await fetch_hints(etcd, spec)
    assert found == StoredHints(None, (None, None))
    without_log = replace(spec, recovery_log_prefix="", hint_prefix="")
    assert await fetch_hints(etcd, without_log) == StoredHints()
    assert await rotate_hints(etcd, replace(spec, hint_backups=0), await keys(), hints(1))


async def test_ch1_recorded_hints_are_primary_and_recovered_ones_are_rotated_backups(
    etcd, spec, keys
):
    for author in (1, 2, 3):
        assert await put_primary_hints(etcd, spec, await keys(), hints(author))
        assert await rotate_hints(etcd, spec, await keys(), hints(10 + author))
    assert await fetch_hints(etcd, spec) == StoredHints(hints(3), (hints(13), hints(12)))
    kept = await etcd.get(f"{spec.hint_prefix}/shard-000.primary")
    assert kept.value == hints(3).to_json()


async def test_ch1_touch_of_the_status_does_not_break_guards(etcd, spec, keys):
    before = await keys()
    write = write_status(before, PRIMARY)
    assert (await etcd.txn(write.compares, write.operations)).succeeded
    assert await put_primary_hints(etcd, spec, before, hints(1))
    assert await rotate_hints(etcd, spec, before, hints(2))
    assert await fetch_hints(etcd, spec) == StoredHints(hints(1), (hints(2), None))


async def test_writer_with_another_assignment_gets_false_and_writes_nothing(etcd, spec, keys):
    before = await keys()
    await etcd.delete(before.key)
    await etcd.put(before.key, encode_replica_status(PRIMARY))  # the same key, created again
    assert not await put_primary_hints(etcd, spec, before, hints(1))
    assert not await rotate_hints(etcd, spec, before, hints(2))
    assert await fetch_hints(etcd, spec) == StoredHints(None, (None, None))
    assert await put_primary_hints(etcd, spec, await keys(), hints(1))


async def test_hints_are_read_as_protobuf_too(etcd, spec, keys):
    key = f"{spec.hint_prefix}/shard-000.primary"
    await etcd.put(key, hints(4).to_pb().SerializeToString())
    assert (await fetch_hints(etcd, spec)).primary == hints(4)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\xffnothing", "neither JSON nor protobuf"),
        (b'{"log":"logs/shard-000","live_nodes":[{"fnode":1}]}', "expected at least one Segment"),
        (hints(1, log="logs/other").to_json(), "are of recovery log logs/other"),
    ],
    ids=["undecodable", "unplayable", "other-log"],
)
async def test_ch3_bad_hints_are_errors_that_name_their_key(etcd, spec, keys, value, text):
    assert await put_primary_hints(etcd, spec, await keys(), hints(1))
    key = f"{spec.hint_prefix}/shard-000.backup.1"
    await etcd.put(key, value)
    with pytest.raises(DataError, match=f"^{key}: .*{text}"):
        await fetch_hints(etcd, spec)


async def test_others_have_their_turn_while_hints_of_many_files_are_checked(etcd, spec, keys):
    nodes = tuple(
        FnodeSegments(n, (Segment(1 + n % 2, n, last_seq_no=n),)) for n in range(1, 12_000)
    )
    await etcd.put(
        f"{spec.hint_prefix}/shard-000.primary",
        FsmHints("logs/shard-000", nodes).to_pb().SerializeToString(),
    )
    work = asyncio.get_running_loop().create_task(fetch_hints(etcd, spec))
    gaps_s, last_s = [], time.monotonic()
    while not work.done():
        await pass_time(0.001)
        gaps_s.append(time.monotonic() - last_s)
        last_s += gaps_s[-1]
    assert len((await work).primary.live_nodes) == 11_999
    # Threads take turns of 5 ms. In one piece it is all of a gap.
    assert max(gaps_s) < 0.8 * sum(gaps_s)
