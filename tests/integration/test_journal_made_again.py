"""Journals that are deleted and made again under their name, while others keep offsets of the former ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest
import spark_journals
from spark_journals import bulk, create, json_lines
from typed_shop import SPEC, Shop, record

from gazette_platform import AsyncClient, Client, ClientConfig
from gazette_platform.client.read import reader
from gazette_platform.client.read.extents import JournalSnapshot
from gazette_platform.errors import GazetteError, JournalReplaced, LakeError, ValidationError
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.typed.planning.ranges import HoleKind
from gazette_platform.lake.typed.runs import backfilling, journals
from gazette_platform.lake.typed.runs.amending import Quarantined, Reprocessor, publish_amendment
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.message import (
    ArrowReader,
    read_arrow,
    read_committed,
    read_journals,
    read_uncommitted,
)
from gazette_platform.protocol import DOUBTED, SuspendLevel, SuspendSpec
from gazette_platform.spark.typed_frames import typed_frame

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def make_again(client, shared):
    return partial(spark_journals.make_again, client, shared)


class TestTypedTables:
    """A run refuses until a person has it restart."""

    @pytest.fixture
    def shop(self, client, tmp_path, names):
        return Shop(client, names.prefix, tmp_path)

    def records(self, numbers, producer):
        return [record(n, producer=producer, clock=1000 + n) for n in numbers]

    def rows(self, shop):
        return sorted(shop.handle().load().token.scan().to_arrow()["n"].to_pylist())

    def test_run_refuses_however_long_the_new_journal_is(self, client, make_again, shop):
        one = shop.journals[0]
        shop.append(0, *self.records(range(100), 1))
        read = shop.run().state.journals[one].offset
        make_again(one)
        shop.append(0, *self.records(range(1000, 1010), 2))
        assert [hole.kind for hole in shop.run().holes] == [HoleKind.MADE_AGAIN]
        shop.append(0, *self.records(range(2000, 2150), 2))
        assert client.write_head(one) > read
        report = shop.run()
        assert [hole.kind for hole in report.holes] == [HoleKind.MADE_AGAIN]
        assert (report.run, report.is_whole) == ("", False)
        assert self.rows(shop) == [*range(100)]

    def test_run_reads_the_new_journal_once_a_person_says_so(self, client, make_again, shop):
        one = shop.journals[0]
        shop.append(0, *self.records(range(100), 1))
        read = shop.run().state.journals[one].offset
        make_again(one)
        shop.append(0, *self.records(range(1000, 1010), 2))
        report = shop.run(begin_anew={one: 0})
        assert (report.is_whole, report.counts.typed) == (True, 10)
        assert report.begun_anew == {one: 0}
        again = shop.run(begin_anew={one: 0})  # once more changes nothing
        assert again.begun_anew == {}
        state = again.state.journals[one]
        assert (state.offset, state.shared_to) == (client.write_head(one), read)
        assert self.rows(shop) == [*range(100), *range(1000, 1010)]

    @pytest.fixture
    def of_former_release(self, shop, monkeypatch):
        """A table whose state does not say which journal its offset belongs to."""
        shop.append(0, *self.records(range(100), 1))
        unnoted = JournalSnapshot.__init__
        with monkeypatch.context() as patched:
            patched.setattr(
                JournalSnapshot,
                "__init__",
                lambda self, **told: unnoted(self, **told | {"created": 0}),
            )
            shop.run()
        return shop

    def test_journal_that_lost_its_end_stays_refused(self, make_again, of_former_release):
        shop = of_former_release
        one = shop.journals[0]
        make_again(one)
        shop.append(0, *self.records(range(10), 2))
        assert shop.run().state.journals[one].created == DOUBTED
        shop.append(0, *self.records(range(2000, 2150), 2))
        assert [hole.kind for hole in shop.run().holes] == [HoleKind.MADE_AGAIN]

    def test_state_that_does_not_say_its_journal_does_not_restart(self, of_former_release):
        one = of_former_release.journals[0]
        report = of_former_release.run(begin_anew={one: 0})
        assert report.state.journals[one].created
        assert (report.begun_anew, report.counts.messages) == ({}, 0)

    def test_run_drops_what_it_read_of_a_journal_that_is_made_again_meanwhile(
        self, make_again, shop
    ):
        one, two = shop.journals
        shop.append(0, *self.records(range(100), 1))
        shop.append(1, *self.records(range(100, 110), 1))

        class Workers:
            merger = None

            def carry_out(self, job, orders):
                done = LocalWorkers().carry_out(job, orders)
                make_again(one)
                return done

        report = shop.run(Workers())
        assert report.unreadable == {one: "it was deleted and made again during the run"}
        assert (report.is_whole, set(report.state.journals)) == (False, {two})
        assert self.rows(shop) == [*range(100, 110)]

    def test_head_of_a_replica_that_lags_is_asked_for_again(self, client, shop, monkeypatch):
        """It says for a moment that the journal is shorter, which a run would keep in mind for good."""
        one = shop.journals[0]
        shop.append(0, *self.records(range(10), 1))
        read = shop.run().state.journals[one].offset
        write_heads, asked = type(client.asynchronous).write_heads, []

        async def lagging(self, journals):
            heads = await write_heads(self, journals)
            asked.extend(heads)
            return {name: head - (asked.count(name) == 1) for name, head in heads.items()}

        monkeypatch.setattr(type(client.asynchronous), "write_heads", lagging)
        monkeypatch.setattr(journals, "_LAG_S", 0.0)
        report = shop.run()
        assert (report.holes, report.state.journals[one].offset) == ((), read)
        assert asked.count(one) == 2

    def test_spec_of_a_broker_that_lags_is_asked_for_again(self, client, shop, monkeypatch):
        """It says that the journal is suspended yet, and ends where it was suspended."""
        one = shop.journals[0]
        shop.append(0, *self.records(range(10), 1))
        read = shop.run().state.journals[one].offset
        listed, lists = type(client.asynchronous).list, []

        async def lagging(self, selector=""):
            found = await listed(self, selector)
            lists.append(selector)
            if len(lists) > 1:
                return found
            suspend = SuspendSpec(level=SuspendLevel.FULL, offset=read - 1)
            return [
                replace(each, spec=replace(each.spec, suspend=suspend))
                if each.name == one
                else each
                for each in found
            ]

        monkeypatch.setattr(type(client.asynchronous), "list", lagging)
        monkeypatch.setattr(journals, "_LAG_S", 0.0)
        report = shop.run()
        assert (report.holes, report.state.journals[one].created != DOUBTED) == ((), True)

    def test_backfill_keeps_rows_of_the_former_journal(self, client, make_again, shop):
        one = shop.journals[0]
        shop.append(0, *self.records(range(100), 1))
        shop.run()
        make_again(one)
        shop.append(0, *self.records(range(1000, 1010), 2))
        backfills = backfilling.BackfillRunner(typed_catalog(shop.settings), LocalWorkers(), client)
        wanted = {one: [(0, 1 << 40)]}
        for options in ({}, {"begin_anew": {one: 0}}):
            shop.run(**options)
            report = backfills.run(shop.spec.typed, shop.spec, wanted)
            assert [hole.kind for hole in report.holes] == [HoleKind.MADE_AGAIN]
        assert self.rows(shop) == [*range(100), *range(1000, 1010)]
        # Behind where the former one ended there are rows of one journal only.
        shop.append(0, *self.records(range(2000, 2150), 2))
        shop.run()
        client.flush(f"name={one}")
        shop.append(0, *self.records(range(3000, 3150), 2))
        shop.run()
        report = backfills.run(shop.spec.typed, shop.spec, wanted)
        assert (report.typed, report.typed_before) == (150, 150)
        assert len(self.rows(shop)) == 100 + 10 + 150 + 150

    @pytest.mark.parametrize("moment", ["as it is read", "as it is published"])
    @pytest.mark.parametrize("begins_anew", [True, False])
    def test_backfill_gives_up_a_journal_that_is_made_again_meanwhile(
        self, client, make_again, shop, monkeypatch, begins_anew, moment
    ):
        """Else it would take rows of the new journal for those of the former one."""
        one = shop.journals[0]
        shop.append(0, *self.records(range(100), 1))
        shop.run()
        left = ["make it again"]

        def at(now):
            if now == moment and left:
                left.clear()
                make_again(one)
                shop.append(0, *self.records(range(1000, 1010), 2))
                if begins_anew:
                    shop.run(begin_anew={one: 0})

        class Workers:
            merger = None

            def carry_out(self, job, orders):
                done = LocalWorkers().carry_out(job, orders)
                at("as it is read")
                return done

        def publish(*args, **options):
            at("as it is published")
            return publish_amendment(*args, **options)

        monkeypatch.setattr(backfilling, "publish_amendment", publish)
        runner = backfilling.BackfillRunner(typed_catalog(shop.settings), Workers(), client)
        wanted = {one: [(0, 1 << 40)]}
        if moment == "as it is published" and not begins_anew:
            # All rows are of the journal that was read.
            assert runner.run(shop.spec.typed, shop.spec, wanted).typed == 100
        else:
            with pytest.raises(GazetteError, match=f"{one} was deleted and made again"):
                runner.run(shop.spec.typed, shop.spec, wanted)
        assert self.rows(shop) == [*range(100), *([*range(1000, 1010)] if begins_anew else [])]

    def test_quarantine_of_two_journals_is_reported_as_such(self, make_again, shop, names):
        one, two = shop.journals
        for at in (0, 1):
            shop.append(at, record(1, name=5))
        shared_to = shop.run().state.journals[one].offset
        make_again(one)
        shop.append(0, record(2, producer=2, name=6), record(3, producer=2, name=7))
        assert shop.run(begin_anew={one: 0}).counts.quarantined == 2
        without = SPEC.replace("  - {{name: name, type: string}}\n", "") + "  retired: [name]\n"
        spec = parse_table_spec(without.format(root=names.prefix)).typed
        reprocessor = Reprocessor(typed_catalog(shop.settings))
        with pytest.raises(LakeError, match=f"`--journal {one} --begin {shared_to}`"):
            reprocessor.run(spec)
        for meant in Quarantined(journal=one, begin=shared_to), Quarantined(journal=two):
            assert reprocessor.run(spec, meant).typed == 1
        assert self.rows(shop) == [1, 3]

    def test_view_in_spark_says_what_it_leaves_out(self, client, make_again, shop, caplog):
        one = shop.journals[0]
        shop.append(0, *self.records(range(100), 1))
        shop.run()
        make_again(one)
        shop.append(0, *self.records(range(10), 2))

        class Session:
            """Of Spark, as far as a view without a tail asks for it."""

            def sql(self, query):
                return query

        frame = typed_frame(Session(), shop.spec, client, shop.settings)
        assert "VERSION AS OF" in frame
        [told] = [each.message for each in caplog.records if one in each.message]
        assert told == (
            f"typed.orders: the view does not have all of {one}: made again (`gazctl lake check typed.orders` says more)"
        )

    def test_table_with_a_key_refuses_to_restart(self, client, make_again, tmp_path, names):
        shop = Shop(client, names.prefix, tmp_path, SPEC + "  key: [n]\n")
        one = shop.journals[0]
        shop.append(0, *self.records(range(100), 1))
        shop.run()
        make_again(one)
        shop.append(0, *self.records(range(10), 2))
        with pytest.raises(
            ValidationError, match="has a `key`, and its rows of the former journal"
        ):
            shop.run(begin_anew={one: 0})


class TestSavepoints:
    """A savepoint knows which journals its offsets belong to."""

    def test_read_from_a_savepoint_refuses_another_journal(self, client, make_again, names):
        kept, other = create(client, names.prefix, "kept", "other")
        for name in (kept, other):
            client.append(name, b"x" * 100)
        label = names.prefix.replace("/", "-")
        made = client.create_savepoint(label, f"name:prefix={names.prefix}/")
        assert made.created == {
            one.name: one.created for one in client.list(f"name:prefix={names.prefix}/")
        }
        # Whoever names offsets has them of the journals of now.
        own = client.create_savepoint(f"{label}-own", offsets={kept: 7})
        assert own.created == {kept: made.created[kept]}
        # A client that learned of it from a broker of Gazette does not know the history of etcd.
        found = client.get(kept)
        less = client.create_savepoint(
            f"{label}-less", offsets={kept: 7}, created={kept: found.create_revision}
        )
        assert less.created == {kept: found.created} != {kept: found.create_revision}
        make_again(other)
        client.append(other, b"y" * 200)
        with pytest.raises(
            JournalReplaced, match=f"{other} was deleted and made again: offset 100"
        ):
            client.read(other, from_savepoint=label).read()
        with pytest.raises(JournalReplaced):
            client.run(read_journals(client.asynchronous, f"name={other}", offsets=made.places))
        client.append(kept, b"z")
        assert client.read(kept, from_savepoint=label).read() == b"z"


class TestReads:
    """A reader that knows its journal does not go on in another one."""

    async def test_waiting_read_ends_when_its_journal_is_made_again(
        self, client, make_again, shared, names
    ):
        [name] = create(client, names.prefix, "a")
        client.append(name, b"x" * 100)
        created = client.get(name).created
        async with AsyncClient(ClientConfig(address=shared.address)) as reading:
            read = reading.read(name, 90, block=True, created=created)
            assert bytes(await anext(read)) == b"x" * 10
            waiting = asyncio.get_running_loop().create_task(anext(read))
            await asyncio.to_thread(make_again, name)
            await asyncio.to_thread(client.append, name, b"y" * 200)
            with pytest.raises(JournalReplaced):
                await waiting
            await read.aclose()
            for read in (read_uncommitted, read_committed):
                messages = await read(reading, name, 90, created=created)
                with pytest.raises(JournalReplaced):
                    await anext(messages)

    async def test_journal_that_is_made_again_between_the_look_and_the_read(
        self, client, make_again, shared, names, monkeypatch
    ):
        [name] = create(client, names.prefix, "a")
        client.append(name, b"x" * 100)
        created = client.get(name).created
        look, looks = reader.list_journals, []

        async def looked(transport, selector):
            found = await look(transport, selector)
            looks.append(selector)
            if len(looks) == 1:
                await asyncio.to_thread(make_again, name)
                await asyncio.to_thread(client.append, name, b"y" * 200)
            return found

        monkeypatch.setattr(reader, "list_journals", looked)
        async with AsyncClient(ClientConfig(address=shared.address)) as reading:
            with pytest.raises(JournalReplaced):
                await reading.read(name, 90, created=created).read()

    async def test_journal_that_is_made_again_amid_a_direct_read(
        self, client, make_again, shared, names, monkeypatch
    ):
        """Fragments are listed ahead, without any new stream."""
        [name] = create(client, names.prefix, "a")
        created = client.get(name).created

        def store(*contents):
            for content in contents:
                client.append(name, content)
                client.flush(f"name={name}")

        await asyncio.to_thread(store, b"x" * 100, b"x" * 100)
        page, pages = reader.fragment_page, []

        async def paged(*args, **options):
            pages.append(options)
            if len(pages) == 1:
                await asyncio.to_thread(make_again, name)
                await asyncio.to_thread(store, b"y" * 100, b"y" * 200)
            return await page(*args, **options)

        monkeypatch.setattr(reader, "fragment_page", paged)
        config = ClientConfig(address=shared.address, file_root=shared.fragments)
        found = bytearray()

        async def read_on():
            async with AsyncClient(config) as reading:
                async for piece in reading.read(name, 0, direct=True, created=created):
                    found.extend(piece)

        with pytest.raises(JournalReplaced):
            await read_on()
        assert pages
        assert set(found) <= set(b"x")

    @pytest.mark.parametrize("committed", [False, True])
    async def test_read_of_many_journals_that_waits_ends_when_one_is_made_again(
        self, client, make_again, shared, names, committed
    ):
        [name] = create(client, names.prefix, "a")
        client.append(name, json_lines({"n": 1}))
        async with AsyncClient(ClientConfig(address=shared.address)) as reading:
            readers = await read_journals(
                reading, f"name={name}", until="never", committed=committed
            )
            [[first]] = [await anext(readers[name])]
            tables = ArrowReader(reading, f"name={name}", until="never", committed=committed)
            batch = await anext(tables)
            assert (first.message, batch.batch.to_pylist()) == ({"n": 1}, [{"n": 1}])
            await asyncio.to_thread(make_again, name)
            await asyncio.to_thread(client.append, name, bulk(100, 10))
            for waiting in (readers[name], tables):
                with pytest.raises(JournalReplaced):
                    await anext(waiting)
                await waiting.aclose()

    @pytest.mark.parametrize("committed", [False, True])
    def test_places_of_a_read_into_arrow_are_of_its_journals(
        self, client, make_again, names, committed
    ):
        kept, other = create(client, names.prefix, "kept", "other")
        selector = f"name:prefix={names.prefix}/"
        for name in (kept, other):
            client.append(name, bulk(0, 10))
        with read_arrow(client, selector, committed=committed) as reading:
            assert reading.read_all().num_rows == 20
            known = {"offsets": reading.places, "committed": committed}
            if committed:
                known["checkpoints"] = reading.checkpoints
        client.append(kept, bulk(10, 5))
        with read_arrow(client, selector, **known) as reading:
            assert reading.read_all().num_rows == 5
        make_again(other)
        client.append(other, bulk(100, 30))
        with read_arrow(client, selector, **known) as reading, pytest.raises(JournalReplaced):
            reading.read_all()
