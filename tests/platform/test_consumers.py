"""A program that keeps state and publishes, each message exactly once, against the platform."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import pytest_asyncio

from gazette_platform import AsyncClient, ClientConfig, Flags, read_committed
from gazette_platform.app import Application, SQLiteStore
from gazette_platform.consumer.protocol import ShardSource, ShardSpec
from gazette_platform.etcd import EtcdClient
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.testing.local import LocalConsumers

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders INTEGER, amount REAL)"
)
ADD = """INSERT INTO totals VALUES (:customer, 1, :amount)
ON CONFLICT DO UPDATE SET orders = orders + 1, amount = amount + :amount
RETURNING customer, orders, amount"""


class Totals(Application):
    def new_store(self, shard, recorder):
        return SQLiteStore(recorder, schema=SCHEMA)

    async def consume(self, txn, envelope):
        txn.store.db.execute(ADD, envelope.message)


@pytest.fixture
def application(own):
    """A program that keeps totals, and one that publishes each new total as well."""

    class Publishing(Totals):
        async def consume(self, txn, envelope):
            if envelope.uuid.flags == Flags.ACK_TXN:
                return
            rows = txn.store.db.execute(ADD, envelope.message)
            for customer, orders, amount in rows:
                total = {"customer": customer, "orders": orders, "amount": amount}
                await txn.publisher.publish(f"{own.name}/totals", total)

    return {"keeping": Totals, "publishing": Publishing}


@pytest_asyncio.fixture
async def consumers(own, platform, tmp_path):
    """A consumer group on the platform's etcd and broker, with one shard over one journal of orders."""
    own.journal("orders/region=eu")
    own.journal("totals")
    own.journal("recovery/totals-eu", label="application/x-gazette-recoverylog")
    etcd, prefix = platform.endpoints.etcd, f"/{own.name}"
    async with AsyncClient(ClientConfig(address=platform.endpoints.broker)) as client:
        group = LocalConsumers(tmp_path / "shards", etcd=etcd, prefix=prefix, client=client)
        async with group:
            yield group
    async with EtcdClient([etcd]) as connection:
        await connection.delete(prefix, prefix=True)


@pytest.fixture
def shard(own):
    return ShardSpec(
        "totals-eu",
        (ShardSource(f"{own.name}/orders/region=eu"),),
        recovery_log_prefix=f"{own.name}/recovery",
        hint_prefix=f"/{own.name}-hints",
        max_txn_duration_ns=SECOND_NS,
    )


def stamped(gazctl, tmp_path, first, count):
    """Orders with UUIDs, as `gazctl attach-uuids` makes them."""
    orders = [{"customer": f"c{n % 5}", "amount": n} for n in range(first, first + count)]
    (tmp_path / "orders.jsonl").write_text("".join(json.dumps(each) + "\n" for each in orders))
    template = '{"UUID":"{{.UUID}}",{{slice .Line 1}}\n'
    template = '{"UUID":"{{.UUID}}","order":{{.Line}}}\n'
    done = gazctl("attach-uuids", "orders.jsonl", "--template", template)
    assert done.code == 0, done.err
    # The program takes messages that are orders themselves.
    lines = (json.loads(line) for line in done.out.splitlines())
    return "".join(
        json.dumps({"UUID": each["UUID"], **each["order"]}) + "\n" for each in lines
    ).encode()


def expected(count):
    counts = Counter(f"c{n % 5}" for n in range(count))
    return [(c, counts[c], float(sum(range(int(c[1]), count, 5)))) for c in sorted(counts)]


async def totals(consumers):
    store = await consumers.store("totals-eu")
    assert isinstance(store, SQLiteStore)
    return list(store.db.execute("SELECT * FROM totals ORDER BY customer"))


async def test_program_counts_each_message_once(
    consumers, application, shard, own, gazctl, tmp_path
):
    await consumers.start(application["keeping"]())
    await consumers.create_shards(shard)
    content = stamped(gazctl, tmp_path, 0, 100)
    for _ in range(2):  # a producer that got no answer appends again
        await consumers.client.append(f"{own.name}/orders/region=eu", content)
    await consumers.wait_through()
    assert await totals(consumers) == expected(100)


async def test_crash_and_takeover_count_nothing_twice(
    consumers, application, shard, own, gazctl, tmp_path
):
    journal = f"{own.name}/orders/region=eu"
    first = await consumers.start(application["publishing"]())
    await consumers.create_shards(shard)
    await consumers.client.append(journal, stamped(gazctl, tmp_path, 0, 50))
    await consumers.wait_through()
    # A second process takes over from one that dies, without any file of it; then one that leaves.
    second = await consumers.start(application["publishing"]())
    await consumers.crash(first)
    await consumers.client.append(journal, stamped(gazctl, tmp_path, 50, 50))
    await consumers.wait_primary("totals-eu")
    await consumers.wait_through()
    assert await totals(consumers) == expected(100)
    await consumers.start(application["publishing"]())
    await consumers.leave(second)
    await consumers.client.append(journal, stamped(gazctl, tmp_path, 100, 20))
    await consumers.wait_primary("totals-eu")
    await consumers.wait_through()
    assert await totals(consumers) == expected(120)

    # What it published is once there, and a table by its spec.
    async with await read_committed(consumers.client, f"{own.name}/totals") as reader:
        published = [
            (each.message["customer"], each.message["orders"])
            async for batch in reader
            for each in batch
            if each.uuid.flags != Flags.ACK_TXN
        ]
    assert sorted(published) == [(f"c{c}", n) for c in range(5) for n in range(1, 25)]
    (own.tables / "totals.yaml").write_text(
        f"name: {own.schema}.totals\nselector: name={own.name}/totals\nformat: json\n"
        "columns: [{name: customer, type: string}, {name: orders, type: bigint}]\n"
        "typed: {uuid: UUID}\n"
    )
    seen = gazctl(
        *("sql", "SELECT customer, max(orders) FROM typed.totals GROUP BY 1 ORDER BY 1"),
        *("-o", "csv", "--tables", own.tables),
    )
    assert seen.out.split()[1:] == [f"c{c},24" for c in range(5)], seen.err
