"""What docs/guides/consumers.md says that applications may do: leave messages out, and change their tables."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from totals_specs import totals_journals, totals_shards

from gazette_platform import Flags, read_committed
from gazette_platform.app import Application, SQLiteStore
from gazette_platform.consumer.protocol import parse_shard_changes, shards_yaml
from gazette_platform.testing.waiting import eventually
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]

SCHEMA = "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, amount REAL NOT NULL)"
ADD = "INSERT INTO totals VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount"


class Totals(Application):
    def new_store(self, shard, recorder):
        return SQLiteStore(recorder, schema=SCHEMA)

    async def consume(self, txn, envelope):
        if envelope.uuid.flags == Flags.ACK_TXN:
            return
        try:
            with txn.store.db:
                self.add(txn.store.db, envelope.message)
        except (KeyError, TypeError, ValueError) as error:
            where = {"journal": envelope.journal, "offset": envelope.begin}
            await txn.publisher.publish("rejected", {**where, "error": repr(error)})

    def add(self, db, order):
        db.execute(ADD, (order["customer"], 0))
        db.execute(ADD, (order["customer"], float(order["amount"])))


class WithPages(Totals):
    async def init(self, process):
        self.process = process
        process.add_pages(lambda router: router.add_get("/totals/{shard}", self.page))

    async def page(self, request):
        shard, is_sent_on = request.match_info["shard"], "X-Sent-On" in request.headers
        found = await self.process.resolver.resolve(shard, may_proxy=not is_sent_on, timeout_s=10)
        if found.is_remote:
            peers, headers = self.process.peers, {"X-Sent-On": "yes"}
            page = await peers.page(found.header, shard, request.path_qs, headers, timeout_s=10)
            return web.json_response(status=page.status, body=page.body)
        with found:  # its store stays until then
            if found.store is None:
                return web.Response(status=503, text=f"{shard}: {found.status.name}\n")
            async with asyncio.timeout(10):
                rows = await found.store.read(
                    lambda db: db.execute("SELECT customer, amount FROM totals").fetchall()
                )
        return web.json_response(dict(rows))


class NextTotals(Totals):
    def begin(self, txn):
        db = txn.store.db
        if db.execute("PRAGMA user_version").fetchone() == (0,):
            db.execute(
                "ALTER TABLE totals ADD COLUMN seen INTEGER NOT NULL DEFAULT 0; PRAGMA user_version = 1"
            )

    def add(self, db, order):
        db.execute(
            "INSERT INTO totals VALUES (?, ?, 1) ON CONFLICT DO UPDATE "
            "SET amount = amount + excluded.amount, seen = seen + 1",
            (order["customer"], float(order["amount"])),
        )


async def rows(consumers):
    return list((await consumers.store("totals")).db.execute("SELECT * FROM totals ORDER BY 1"))


async def begun(consumers, application):
    await consumers.client.apply(parse_journal_tree(totals_journals("rejected")))
    process = await consumers.start(application)
    shards = totals_shards(consumers._prefix)
    await consumers.create_shards(*shards)
    return process


async def test_messages_are_rejected_in_the_transaction_and_tables_change_with_the_program(
    local_consumers,
):
    consumers, client = local_consumers, local_consumers.client
    process = await begun(consumers, Totals())
    await client.append(
        "orders",
        b'{"customer":"Ada","amount":2}\n{"customer":"Bob","amount":"x"}\n[1]\n'
        b'{"customer":"Cy"}\n{"customer":"Ada","amount":3}\n',
    )
    await consumers.wait_through()
    assert await rows(consumers) == [("Ada", 5.0)]  # of Bob and Cy nothing stayed
    async with await read_committed(client, "rejected") as reader:
        rejected = [
            (each.message["offset"], each.message["error"].partition("(")[0])
            async for batch in reader
            for each in batch
            if each.uuid.flags != Flags.ACK_TXN
        ]
    assert rejected == [(30, "ValueError"), (62, "TypeError"), (66, "KeyError")]

    for expected in ([("Ada", 6.0, 1)], [("Ada", 7.0, 2)]):
        await consumers.crash(process)
        process = await consumers.start(NextTotals())
        await consumers.wait_primary("totals")
        await client.append("orders", b'{"customer":"Ada","amount":1}\n')
        await consumers.wait_through()
        assert await rows(consumers) == expected


async def test_source_continues_after_an_invalid_line_by_its_min_offset(
    local_consumers,
):
    consumers, client = local_consumers, local_consumers.client
    await begun(consumers, Totals())
    good, bad = b'{"customer":"Ada","amount":2}\n', b"no JSON\n"
    await client.append("orders", good + bad + good)
    async with consumers.shard_client() as shards:

        async def failure():
            (listing,) = await shards.list("id=totals")
            return listing if listing.status.errors else None

        failed = await eventually(failure)
        behind = len(good + bad)
        assert failed.status.errors[0].endswith(f"; the next one begins at {behind}")
        text = shards_yaml([(failed.spec, failed.mod_revision)])
        edited = text.replace(
            "- journal: orders\n", f"- journal: orders\n    min_offset: {behind}\n"
        )
        assert edited != text
        await shards.apply(parse_shard_changes(edited))
        await shards.unassign(["totals"], only_failed=True)
    await consumers.wait_through()
    assert await rows(consumers) == [("Ada", 4.0)]


async def test_pages_of_any_process_show_what_is_committed(local_consumers):
    consumers, client = local_consumers, local_consumers.client
    processes = [await begun(consumers, WithPages()), await consumers.start(WithPages())]
    await client.append("orders", b'{"customer":"Ada","amount":2}\n')
    await consumers.wait_through()
    (await consumers.store("totals")).db.execute(ADD, ("Ada", 100))  # which nothing commits yet
    async with aiohttp.ClientSession() as http:
        for process in processes:
            url = f"http://127.0.0.1:{process.http_port}/totals/totals"
            async with http.get(url) as answer:
                assert (answer.status, await answer.json()) == (200, {"Ada": 2.0})
