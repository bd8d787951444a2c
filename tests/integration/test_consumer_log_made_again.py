"""A recovery log that is deleted and made again beneath its shard: nothing is published twice."""

from __future__ import annotations

import pytest
from totals_specs import totals_journals, totals_shards

from gazette_platform import Flags, Mapped, Publisher, read_committed
from gazette_platform.app import Application, JSONFileStore
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalChange
from gazette_platform.testing import local
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

LOG = "recovery/totals"


class Totals(Application):
    def new_store(self, shard, recorder):
        return JSONFileStore(recorder, {})

    async def consume(self, txn, envelope):
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        customer, amount = envelope.message["customer"], envelope.message["amount"]
        total = txn.store.state[customer] = txn.store.state.get(customer, 0) + amount
        await txn.publisher.publish("totals", {"customer": customer, "total": total})


async def publish(client, *orders):
    service = client.append_service()
    mapped = Mapped("orders", "application/x-ndjson")
    publisher = Publisher(service, lambda _: mapped, SystemClock())
    for customer, amount in orders:
        await publisher.publish_committed({"customer": customer, "amount": amount})
    await service.close()


async def totals(client):
    async with await read_committed(client, "totals") as reader:
        return [
            each.message["total"]
            async for batch in reader
            for each in batch
            if each.uuid.flags != Flags.ACK_TXN
        ]


async def test_shard_whose_log_was_made_again_fails_and_publishes_nothing_twice(
    local_consumers, monkeypatch, etcd_prefix
):
    """It went on to record, and its successor began with empty state: totals were [12, 111, 112, 12, 111, 112]."""
    monkeypatch.setattr(local, "_FAILED_S", 0.2)
    client = local_consumers.client
    await client.apply(parse_journal_tree(totals_journals("totals")))
    first = await local_consumers.start(Totals())
    shards = totals_shards(etcd_prefix)
    await local_consumers.create_shards(*shards)
    await publish(client, ("Ada", 12), ("Ada", 99))
    await local_consumers.wait_through()

    await client.apply([JournalChange(None, LOG, -1)])
    again = parse_journal_tree(totals_journals("totals").replace("file:///", "file:///again/"))
    await client.apply([each for each in again if each.name == LOG])
    await publish(client, ("Ada", 1))
    with pytest.raises(AssertionError, match=rf"{LOG}: an append is at offset 0, .*made again"):
        await local_consumers.wait_through()

    await local_consumers.crash(first)
    await local_consumers.start(Totals())
    with pytest.raises(AssertionError, match=f"{LOG} was deleted and made again"):
        await local_consumers.wait_primary("totals")
    assert await totals(client) == [12, 111]
