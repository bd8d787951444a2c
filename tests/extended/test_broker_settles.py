"""A broker that comes back, and the idle journals that it is assigned again."""

from __future__ import annotations

import pytest

from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, Status
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import LocalBrokers
from gazette_platform.testing.waiting import eventually

pytestmark = pytest.mark.etcd

NAMES = [f"idle/journal-{n:02d}" for n in range(70)]
SETTLED_S = (
    40.0  # a busy machine takes some of it; who waits for an append, or a minute, takes longer
)


async def test_idle_journals_settle_within_seconds_of_a_brokers_return(
    etcd_server, etcd_prefix, tmp_path
):
    """No journal keeps a replica too many, even without appends: its primary syncs by itself."""
    fragment = FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=3600 * 10**9,
    )
    async with LocalBrokers(tmp_path, etcd=etcd_server.endpoint, prefix=etcd_prefix) as local:
        brokers = {zone: await local.start(zone=zone, id=f"broker-{zone}") for zone in "abc"}
        state = brokers["a"]._context.space.state
        request = pb.ApplyRequest()
        for name in NAMES:
            request.changes.add().upsert.CopyFrom(JournalSpec(name, 2, fragment=fragment).to_pb())
        assert (await local.stub(brokers["a"]).Apply(request)).status == Status.OK

        def is_settled():
            return all(
                len(state.assignments_of(name)) == 2 and state.is_consistent(name) for name in NAMES
            )

        def is_balanced():
            held = [len(state.assignments_to(member)) for member in state.members]
            return is_settled() and len(held) == 3 and min(held) > 0

        await eventually(is_settled, timeout_s=SETTLED_S)
        await brokers["c"].drain()
        await eventually(is_settled, timeout_s=SETTLED_S)
        await local.start(zone="c", id="broker-c")
        await eventually(is_balanced, timeout_s=SETTLED_S)
