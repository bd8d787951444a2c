"""A journal whose fragments go to a store of objects: stored, and read by a broker that was just started."""

from __future__ import annotations

import os

from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.local import append, read_all
from gazette_platform.testing.waiting import eventually

JOURNAL = "a/journal"

# A library of a cloud takes seconds to be imported for the first time, on a machine that is busy.
_LEASE_S = 20.0


async def persist_and_restart(cluster, store, fetch, codec=CompressionCodec.NONE):
    """Append to a journal of several fragments, stop its broker, and read all through another one.

    Returns: the content, and the stored bytes that `fetch` gets by the signed URLs of its fragments.
    """
    content = os.urandom(200_000)
    fragment = FragmentSpec(length=1 << 16, codec=codec, stores=(store,), refresh_interval_ns=10**9)
    broker = await cluster.start(drain_timeout_s=20.0, etcd_lease_s=_LEASE_S)
    stub = cluster.stub(broker)
    await cluster.apply(stub, JournalSpec(JOURNAL, 1, fragment=fragment))
    for begin in range(0, len(content), 50_000):
        await append(stub, JOURNAL, content[begin : begin + 50_000])
    await broker.drain()
    stub = cluster.stub(await cluster.start(etcd_lease_s=_LEASE_S))

    async def all_stored():
        request = pb.FragmentsRequest(journal=JOURNAL, signatureTTL={"seconds": 60})
        found = (await stub.ListFragments(request, timeout=30)).fragments
        return found if found and found[-1].spec.end == len(content) else None

    found = await eventually(all_stored)
    assert await read_all(stub, JOURNAL) == content
    return content, [(await fetch(item.signed_url))[1] for item in found]
