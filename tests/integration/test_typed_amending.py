"""Backfills and reprocessing of typed tables, on journals of a real broker and a real catalog, without a JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec import structs
from typed_amendments import NAME, QUARANTINE, Interrupted, Journals, everything, filled, spec

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import (
    GazetteError,
    LakeError,
    TableFenced,
)
from gazette_platform.lake.iceberg.publishing import summary_of
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.planning.ranges import Limits
from gazette_platform.lake.typed.runs.amending import Quarantined, Reprocessor
from gazette_platform.lake.typed.runs.backfilling import BackfillRunner
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.lake.typed.tables.progress import COMPLETE_AT
from gazette_platform.lake.typed.tables.quarantine import quarantined_rows
from gazette_platform.lake.typed.tables.table import typed_table
from gazette_platform.ops.clock import ManualClock

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def client(shared):
    with Client(ClientConfig(address=shared.address, file_root=shared.fragments)) as client:
        yield client


@pytest.fixture
def world(client, names, tmp_path):
    made = Journals(client, tmp_path, names.prefix)
    yield filled(made)
    made.catalog.close()


def test_backfill_makes_rows_again_by_the_spec_of_now_and_again_the_same(world):
    world.run(spec(is_strict=True))
    strict = world.check()
    before = typed_table(world.tables.handle(NAME).load(), NAME)
    report = world.backfill(spec(), everything(world))
    assert len(world.check()) < len(strict)
    assert (report.typed_before, report.quarantined_before) == (
        report.typed + report.quarantined - len(strict),
        len(strict),
    )
    assert report.healed == 0
    told = summary_of(report.metadata, report.snapshot_id)
    assert told[COMPLETE_AT] == summary_of(before.metadata, before.start)[COMPLETE_AT]
    for name, one in report.state.journals.items():
        assert (one.offset, one.producers) == (
            before.state.journals[name].offset,
            before.state.journals[name].producers,
        )
    again = world.backfill(spec(), everything(world))
    assert (again.typed, again.quarantined) == (report.typed, report.quarantined)
    assert (again.typed_before, again.quarantined_before) == (report.typed, report.quarantined)
    world.check()
    world.append(next(iter(world.logs)))
    world.run(spec())
    world.check()


def test_rows_that_were_lost_or_doubled_are_healed(world):
    world.run(spec())
    aside = world.check()
    table = world.catalog.load_table(NAME)
    rows = table.scan().to_arrow()
    lost, doubled = len(rows) // 3, 2
    # By hand.
    table.overwrite(pa.concat_tables([rows.slice(lost), rows.slice(lost, doubled)]))
    report = world.backfill(spec(), everything(world))
    assert (report.healed, report.quarantined) == (lost - doubled, len(aside))
    world.check()


def test_runs_go_on_while_rows_are_made_again(world):
    world.run(spec(is_strict=True))

    def meanwhile():
        for name in world.logs:
            world.append(name, ("out",), has_late=False)
        world.run(spec(is_strict=True))

    then = [meanwhile, world.optimize, meanwhile]
    tables = Interrupted(world.tables, then)
    report = world.backfill(spec(), everything(world), tables)
    assert not then
    assert {name: one.offset for name, one in report.state.journals.items()} == {
        name: log.head for name, log in world.logs.items()
    }
    assert world.check()


def test_transactions_that_were_open_are_followed_to_where_runs_have_come_meanwhile(world):
    name = next(iter(world.logs))
    world.append(name, ("continue",))
    world.append(name, ("continue",), has_late=False)
    world.run(spec())
    before = world.check()

    def meanwhile():
        while world.logs[name].messages[-1].message.kind != "ack":
            world.append(name, ("continue", "out", "ack"))
        for _ in range(6):
            world.append(name, ("ack",))
        world.roll()
        world.run(spec())

    # While it is published, and while that is tried again.
    tables = Interrupted(world.tables, [meanwhile, meanwhile])
    report = world.backfill(spec(), everything(world), tables)
    assert report.state.journals[name].offset == world.logs[name].head
    assert len(world.check()) >= len(before)


def test_of_two_backfills_at_once_both_leave_the_table_right(world):
    world.run(spec(is_strict=True))
    other = lambda: world.backfill(spec(), everything(world))  # noqa: E731
    tables = Interrupted(world.tables, [other])
    report = world.backfill(spec(is_strict=True), everything(world), tables)
    assert report.typed_before > report.typed
    world.check()


def test_amendments_that_took_so_long_that_their_files_may_be_gone_are_given_up(world):
    world.run(spec(is_strict=True))
    before = world.check()
    clock = ManualClock()
    late = Interrupted(
        world.tables, [lambda: world.run(spec(is_strict=True)) and clock.advance(13 * 3600)]
    )
    for name in world.logs:
        world.append(name, ("out",))
    with pytest.raises(TableFenced, match="took 13 h to be made"):
        BackfillRunner(late, LocalWorkers(), world.client, clock=clock).run(
            spec(), world.raw, everything(world)
        )
    assert world.check() == before


def test_what_was_written_in_vain_is_removed(world, shared):
    world.run(spec(is_strict=True))
    before = world.files()
    world.roll()
    second = list(world.logs)[1]
    for path in shared.fragments.glob(f"{second}/**/*.gz"):
        path.write_bytes(b"damaged")
    with pytest.raises(GazetteError):
        world.backfill(spec(), everything(world))
    assert world.files() == before
    world.check()


# ------------------------------------------------------------------ reprocessing


def test_records_that_fit_by_now_become_rows_though_content_was_pruned(world, shared):
    world.run(spec(is_strict=True))
    strict = world.check()
    world.roll()
    for path in shared.fragments.glob(f"{world.prefix}/**/*.gz"):
        path.unlink()
    report = world.reprocess(spec())
    left = world.check()
    assert (report.records, report.typed) == (len(strict), len(strict) - len(left))
    assert report.typed > 0
    again = world.reprocess(spec())
    assert (again.run, again.records, again.typed, again.told_anew) == ("", len(left), 0, 0)
    world.append(next(iter(world.logs)), ("out",))


def test_records_that_stay_are_reported_the_reason_of_now(world):
    name = next(iter(world.logs))
    world.append(name, ("odd",), has_late=False)
    world.run(spec(is_strict=True))
    wider = structs.replace(spec(is_strict=True), unknown="quarantine")
    before = quarantined_rows(world.tables.handle(QUARANTINE))
    reprocessor = Reprocessor(world.tables)
    report = reprocessor.run(wider)
    after = quarantined_rows(world.tables.handle(QUARANTINE))
    assert (report.typed, report.told_anew) == (0, 0)
    assert after == before
    # A column that there is now is looked at before `late`.
    columns = (*wider.columns, TypedColumn(name="must", type="bigint", key="must", required=True))
    columns = (columns[0], columns[-1], *columns[1:-1])
    report = reprocessor.run(structs.replace(wider, columns=columns))
    after = quarantined_rows(world.tables.handle(QUARANTINE))
    assert report.typed == 0
    assert report.told_anew > 0
    assert after.drop_columns("reason") == before.drop_columns("reason")
    assert after["reason"] != before["reason"]
    world.check()


def test_records_are_chosen_by_journal_offset_and_reason(world):
    world.run(spec(is_strict=True))
    first, second = world.logs
    held = quarantined_rows(world.tables.handle(QUARANTINE), journal=first)
    lacking = [
        begin
        for begin, reason in zip(
            held["_begin"].to_pylist(), held["reason"].to_pylist(), strict=True
        )
        if "late" in reason
    ]
    report = world.reprocess(
        spec(), Quarantined(journal=first, begin=lacking[1], end=lacking[2] + 1)
    )
    assert report.typed == 2
    world.check()
    assert Reprocessor(world.tables).run(spec(), Quarantined(reason="no such reason")).records == 0
    parts = Reprocessor(world.tables, records_max=1).run(
        spec(), Quarantined(journal=second, reason="late")
    )
    assert (parts.is_whole, parts.typed > 0) == (False, True)
    world.reprocess(spec())
    world.check()


def test_reprocessing_goes_on_top_of_runs_and_not_of_one_who_took_the_records(world):
    world.run(spec(is_strict=True))

    def meanwhile():
        for name in world.logs:
            world.append(name, ("out",), has_late=False)
        world.run(spec(is_strict=True))

    tables = Interrupted(world.tables, [meanwhile, world.optimize])
    world.reprocess(spec(), Quarantined(reason="late"), tables)
    # Those of `meanwhile` came too late.
    late = world.places(QUARANTINE)
    for place in late:
        world.outcomes[place] = False
    world.check()
    other = lambda: world.reprocess(spec())  # noqa: E731
    with pytest.raises(TableFenced, match="changed by others"):
        world.reprocess(spec(), None, Interrupted(world.tables, [other]))
    world.check()


def test_doubled_records_are_not_made_rows(world):
    world.run(spec(is_strict=True))
    table = world.catalog.load_table(QUARANTINE)
    table.append(table.scan().to_arrow().slice(0, 3))
    with pytest.raises(LakeError, match=r"has records of .* twice"):
        world.reprocess(spec())
    world.backfill(spec(is_strict=True), everything(world))
    world.check()
    world.reprocess(spec())
    world.check()


def test_backfill_is_put_into_no_table_that_is_made_again_meanwhile(world):
    """That has not read as far: rows of what it reads next would be duplicated."""
    world.run(spec())
    rows = world.places(NAME)
    one = next(iter(world.logs))

    def made_anew():
        for name in (NAME, QUARANTINE):
            world.catalog.drop_table(name)
        runner = TypedRunner(world.tables, LocalWorkers(), world.client)
        runner.run(spec(), world.raw, limits=Limits(task_bytes=1, tasks_max=2))

    with pytest.raises(TableFenced, match="dropped and recreated"):
        world.backfill(spec(), {one: [(0, 1 << 20)]}, tables=Interrupted(world.tables, [made_anew]))
    world.run(spec())
    assert world.places(NAME) == rows
    world.check()
