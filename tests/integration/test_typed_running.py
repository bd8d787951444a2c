"""Runs of typed tables on a real broker and a catalog on disk, with workers in this process."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from msgspec import structs
from pyiceberg.catalog.sql import SqlCatalog
from spark_journals import create

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import LakeError, SchemaMismatch, StoreUnavailable
from gazette_platform.lake.iceberg.catalog import CatalogTables
from gazette_platform.lake.spec.rules import QUARANTINE_SUFFIX
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.planning.ranges import HoleKind, Limits
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.tail import pin_tail, rows_of_order, settle_tail, spool_tail
from gazette_platform.lake.typed.runs.working import LocalWorkers, attempt
from gazette_platform.lake.typed.tables.progress import COMPLETE_AT
from gazette_platform.lake.typed.tables.quarantine import count_rows, quarantined_rows
from gazette_platform.message import Flags, build_uuid
from gazette_platform.testing.waiting import wait_until

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


class Table:
    """A typed table of the journals below a prefix."""

    def __init__(self, client, folder, prefix, workers=None, **spec):
        self.client = client
        self.sql = SqlCatalog(
            "sql", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=folder.as_uri()
        )
        self.catalog = CatalogTables(self.sql, folder.as_uri())
        self.raw = parse_table_spec(
            f"name: raw.t\nselector: 'name:prefix={prefix}/'\nformat: json\n"
            "columns: [{name: n, type: bigint}]\n"
        )
        self.spec = TypedSpec(
            name="typed.t",
            source="raw.t",
            uuid=("_meta", "uuid"),
            columns=(TypedColumn(name="n", type="bigint", key="n"),),
        )
        self.said = []
        self.workers = workers or LocalWorkers()
        self.runner = TypedRunner(self.catalog, self.workers, client, log=self.said.append)

    def run(self, **options):
        return self.runner.run(self.spec, self.raw, **options)

    def numbers(self):
        return sorted(
            self.catalog.handle("typed.t").load().token.scan().to_arrow()["n"].to_pylist()
        )

    def counted(self):
        return count_rows(
            self.catalog.handle("typed.t"), self.catalog.handle(f"typed.t{QUARANTINE_SUFFIX}")
        )


@pytest.fixture
def prefix(names):
    return names.prefix


@pytest.fixture
def table(client, tmp_path, prefix):
    table = Table(client, tmp_path, prefix)
    with closing(table.sql):
        yield table


def lines(*numbers, uuids=True, producer=b"\1" * 6, flags=0):
    records = [
        {"n": n}
        | ({"_meta": {"uuid": str(build_uuid(producer, 1000 + n, flags))}} if uuids else {})
        for n in numbers
    ]
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_stored_content_and_the_live_tail_become_rows_once(client, table, prefix):
    one, two = create(client, prefix, "part=0", "part=1")
    client.append(one, lines(1, 2))
    client.flush(f"name={one}")
    client.append(one, lines(3) + b"no record\n")
    client.append(two, lines(4))
    report = table.run()
    assert (report.counts.committed, report.counts.typed, report.counts.quarantined) == (5, 4, 1)
    assert report.is_whole
    assert report.metadata.current_snapshot().summary[COMPLETE_AT] == report.complete_at.isoformat()
    client.flush(f"name={one}")  # what was the tail is a fragment now
    client.append(two, lines(4, 5))  # the first one exists already
    report = table.run()
    assert (report.counts.committed, report.counts.duplicates) == (1, 1)
    assert table.numbers() == [1, 2, 3, 4, 5]
    assert table.counted().rows == {one: 3, two: 2}
    (bad,) = quarantined_rows(table.catalog.handle(f"typed.t{QUARANTINE_SUFFIX}")).to_pylist()
    assert (bad["_journal"], bad["raw"]) == (one, b"no record\n")


def test_a_run_with_nothing_new_commits_nothing(client, table, prefix):
    (one,) = create(client, prefix, "part=0")
    client.append(one, lines(1))
    first = table.run()
    again = table.run()
    assert (again.run, again.snapshot_id, again.is_whole) == ("", None, True)
    assert again.metadata.current_snapshot().snapshot_id == first.snapshot_id


def test_a_limited_run_says_what_it_left(client, table, prefix):
    one, two = create(client, prefix, "part=0", "part=1")
    for n in range(4):
        client.append(one, lines(n))
        client.flush(f"name={one}")
    client.append(two, lines(9))
    report = table.run(limits=Limits(run_bytes=1, task_bytes=1))
    assert report.left_bytes > 0
    assert report.complete_at is None
    while report.left_bytes:
        report = table.run(limits=Limits(run_bytes=1, task_bytes=1))
    assert table.numbers() == [0, 1, 2, 3, 9]


def test_a_journal_that_cannot_be_read_holds_up_no_other(client, table, prefix, monkeypatch):
    one, two = create(client, prefix, "part=0", "part=1")
    client.append(one, lines(1))
    client.append(two, lines(2))
    heads = type(client.asynchronous).write_heads

    async def failing(self, journals):
        if [each.name for each in journals] == [one]:
            raise StoreUnavailable("no answer")
        return await heads(self, journals)

    monkeypatch.setattr(type(client.asynchronous), "write_heads", failing)
    report = table.run()
    assert report.unreadable == {one: "no answer"}
    assert table.numbers() == [2]
    assert any(one in text and "no answer" in text for text in table.said)


def test_damaged_content_holds_up_its_journal_alone(client, shared, table, prefix):
    one, two = create(client, prefix, "part=0", "part=1")
    client.append(one, lines(1))
    client.flush(f"name={one}")
    (stored,) = client.fragments(one)
    (shared.fragments / stored.fragment.content_path).write_bytes(b"no gzip")
    client.append(two, lines(2))
    report = table.run()
    assert list(report.unreadable) == [one]
    assert "no gzip" not in report.unreadable[one]
    assert not report.is_whole
    assert table.numbers() == [2]
    assert any(one in text and "left to the next run" in text for text in table.said)
    client.append(one, lines(3))
    assert report.state.journals.get(one) is None
    assert table.run().state.journals.get(one) is None


def test_what_was_pruned_before_it_was_read_is_reported_and_passed_on_a_persons_word(
    client, table, prefix, monkeypatch
):
    (one,) = create(client, prefix, "part=0")
    ends = []
    for n in range(3):
        ends.append(client.append(one, lines(n)).end)
        client.flush(f"name={one}")
    assert table.run(limits=Limits(run_bytes=1, task_bytes=1)).counts.committed == 1
    fragments = type(client.asynchronous).fragments

    async def pruned(self, journal, **query):
        listed = await fragments(self, journal, **query)
        return [each for each in listed if each.fragment.begin != ends[0]]

    monkeypatch.setattr(type(client.asynchronous), "fragments", pruned)
    report = table.run()
    assert [(h.kind, h.begin, h.end) for h in report.holes] == [(HoleKind.MISSING, *ends[:2])]
    assert not report.is_whole
    report = table.run(given_up={one: ends[1]})
    assert report.holes == ()
    assert report.counts.lost_bytes == ends[1] - ends[0]
    assert table.numbers() == [0, 2]


def of_transaction(n, flags):
    uuid = str(build_uuid(b"\1" * 6, 1000 + n, flags))
    return json.dumps({"n": n, "_meta": {"uuid": uuid}}).encode() + b"\n"


@pytest.mark.parametrize("is_read", [False, True])
def test_open_transaction_with_a_missing_part_is_given_up_on_request(
    client, shared, table, prefix, is_read
):
    """Whether what is gone was read before or not: else its journal would stand still for ever, once it is committed."""
    (one,) = create(client, prefix, "part=0")
    files = shared.fragments / one
    client.append(one, of_transaction(1, Flags.CONTINUE_TXN))
    table.run()
    lost = client.append(one, of_transaction(2, Flags.CONTINUE_TXN)).end
    client.flush(f"name={one}")
    if is_read:
        table.run()
    client.append(one, lines(9, uuids=False))
    client.flush(f"name={one}")
    *gone, _ = sorted(files.glob("*.gz"))
    for file in gone:
        file.unlink()
    wait_until(lambda: len(client.fragments(one)) < 2)
    client.append(one, of_transaction(3, Flags.ACK_TXN))
    report = table.run()
    assert {hole.kind for hole in report.holes} >= {HoleKind.OPEN_PRUNED}
    assert not report.is_whole
    report = table.run(given_up={one: lost})
    assert report.is_whole, (report.holes, report.unreadable)
    assert (report.counts.taken_back, report.counts.lost_bytes > 0) == (1 + is_read, not is_read)
    assert table.numbers() == [9]
    report = table.run()
    assert (report.run, report.is_whole, report.state.unaccounted) == ("", True, {})


def test_a_failed_order_leaves_the_table_as_it_was(client, tmp_path, prefix):
    class Broken:
        merger = None

        def carry_out(self, job, orders):
            raise LakeError("a worker broke off")

    table = Table(client, tmp_path, prefix, workers=Broken())
    (one,) = create(client, prefix, "part=0")
    client.append(one, lines(1))
    with closing(table.sql), pytest.raises(LakeError, match="broke off"):
        table.run()
    assert table.numbers() == []


def test_history_and_the_live_tail_meet_at_the_state(client, table, prefix):
    one, two = create(client, prefix, "part=0", "part=1")
    handle = table.catalog.handle("typed.t")

    def everything():
        pinned = pin_tail(handle, table.spec, table.raw, client)
        history = pinned.loaded.token.scan().to_arrow()["n"].to_pylist() if pinned.loaded else []
        with closing(spool_tail(pinned, threads=2)) as tail:
            rows = sorted(n for batch in tail.batches() for n in batch["n"].to_pylist())
        # Workers elsewhere find out the same, and make the same rows of it, any number of times.
        orders = settle_tail(pinned, lambda orders: [attempt(pinned.job, o) for o in orders])
        for _ in range(2):
            assert carried_out(pinned, orders.orders) == rows
        assert orders.quarantined == tail.quarantined
        return sorted(history), rows, tail.quarantined

    client.append(one, lines(1, 2))
    assert everything() == ([], [1, 2], 0)
    table.run()
    assert everything() == ([1, 2], [], 0)
    client.append(one, lines(2, 3) + b"none\n")  # the first one comes again
    client.flush(f"name={one}")
    client.append(two, lines(4))
    # A transaction that is acknowledged later is in the tail then, though it began before the seam.
    client.append(two, lines(5, 6, flags=Flags.CONTINUE_TXN, producer=b"\2" * 6))
    assert everything() == ([1, 2], [3, 4], 1)
    before = handle.load().metadata.metadata_log
    assert everything() == ([1, 2], [3, 4], 1)
    assert handle.load().metadata.metadata_log == before
    table.run()
    assert everything() == ([1, 2, 3, 4], [], 0)
    client.append(two, lines(7, flags=Flags.ACK_TXN, producer=b"\2" * 6))
    assert everything() == ([1, 2, 3, 4], [5, 6], 0)


def carried_out(pinned, orders):
    """Numbers of the rows that orders of a tail make."""
    batches = [batch for order in orders for batch in rows_of_order(pinned.job, order)]
    return sorted(n for batch in batches for n in batch["n"].to_pylist())


def test_more_behind_a_table_than_is_read_at_once_is_left_to_a_run(client, table, prefix):
    for one in create(client, prefix, "part=0", "part=1"):
        client.append(one, lines(1))
    handle = table.catalog.handle("typed.t")
    size = len(lines(1))
    assert not pin_tail(handle, table.spec, table.raw, client, bytes_max=2 * size).is_empty
    told = rf"{2 * size} bytes of journals are behind it, .* at once \({size}\).*lake run typed\.t"
    with pytest.raises(LakeError, match=told):
        pin_tail(handle, table.spec, table.raw, client, bytes_max=size)


def test_a_tail_is_of_the_table_that_the_spec_says(client, table, prefix):
    (one,) = create(client, prefix, "part=0")
    client.append(one, lines(1))
    table.run()
    handle = table.catalog.handle("typed.t")
    for other in ({"uuid": ()}, {"source": "raw.others"}):
        with pytest.raises(SchemaMismatch):
            pin_tail(handle, structs.replace(table.spec, **other), table.raw, client)
