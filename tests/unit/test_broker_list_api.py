"""A list of very many journals lets others go on, and survives what they change meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from gazette_platform.broker.api.listing import ListApi
from gazette_platform.broker.etcd_records import ClusterIdentity
from gazette_platform.etcd import KeyValue
from gazette_platform.keyspace import BrokerState, item_key
from gazette_platform.protocol import (
    CompressionCodec,
    EtcdHeader,
    FragmentSpec,
    JournalSpec,
    LabelSelector,
    LabelSet,
    ProcessId,
)
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.waiting import turns

JOURNALS = 30_000  # some tenth of a second


async def test_a_list_of_many_journals_blocks_nothing_else():
    state = BrokerState("/p")
    fragment = FragmentSpec(length=1024, codec=CompressionCodec.NONE, refresh_interval_ns=10**9)
    for n in range(JOURNALS):
        name = f"many/{n:05}"
        value = JournalSpec(name, 1, fragment=fragment).to_pb().SerializeToString()
        state.put(KeyValue(item_key("/p", name), value, 5, 5, 1, 0))
    header = EtcdHeader(1, 1, 5, 1)
    space = SimpleNamespace(state=state, observe=lambda _: None, header=header)
    resolver = SimpleNamespace(process_id=ProcessId("a", "broker"))
    api = ListApi(SimpleNamespace(space=space, identity=ClusterIdentity()), resolver)
    selector = LabelSelector(include=LabelSet.of(name=f"many/{JOURNALS - 1:05}"))
    request = pb.ListRequest(selector=selector.to_pb())

    async def listed():
        messages = []

        async def send(message):
            messages.append(message)

        await api.list_journals(request.SerializeToString(), send)
        return [j.spec.name for m in messages for j in pb.ListResponse.FromString(m).journals]

    listing = asyncio.ensure_future(listed())  # noqa: TID251  awaited below
    rounds = 0
    while not listing.done():
        await turns()
        rounds += 1
        if rounds == 2:  # it is under way
            state.remove(item_key("/p", f"many/{JOURNALS - 2:05}"))
    assert await listing == [f"many/{JOURNALS - 1:05}"]
    assert rounds > 2
