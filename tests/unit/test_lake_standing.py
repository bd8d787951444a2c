"""How tables stand: what of their journals is registered, and what is wrong."""

from datetime import UTC, datetime

import pytest
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.errors import LakeError
from gazette_platform.lake import Registrar, StoreRoots, parse_table_spec
from gazette_platform.lake.raw.audits.registration_status import overdue, table_standing
from gazette_platform.lake.raw.repair import catch_up, reachable
from gazette_platform.ops.clock import SystemClock
from gazette_platform.protocol import JournalSpec, SuspendLevel, SuspendSpec

SPEC = """
name: shop.orders
selector: name:prefix=orders/
format: json
columns:
  - {name: order, type: bigint}
"""
LINE = b'{"order": 1}\n'
AT = datetime(2026, 1, 2, tzinfo=UTC)


class Lake:
    """Journals, their files and a metastore, with a table over them."""

    def __init__(self, folder):
        self.files, self.metastore = FragmentFiles(folder), MemoryMetastore()
        self.spec = parse_table_spec(SPEC)

    @property
    def registrar(self):
        return Registrar(self.files, self.metastore, StoreRoots(self.files.roots))

    @property
    def journals(self):
        return self.files.journals(self.spec.label_selector)

    def heads(self):
        found = {}
        for journal in self.journals:
            fragments = self.files.fragments(journal.name, 0, 1000)
            found[journal.name] = max((f.end for f in fragments), default=0)
        return found

    def standing(self, spec=None):
        with self.metastore.connect() as session:
            return table_standing(spec or self.spec, self.journals, self.heads(), session, AT)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_a_table_before_and_after_its_first_fragment(lake):
    assert "matches no journal" in lake.standing().problems[0]
    lake.files.create("orders/part=0")
    assert lake.standing().problems == ["the table is not made yet: its journals are empty"]
    lake.files.append("orders/part=0", LINE * 3)
    assert "wait for the flush interval" in lake.standing().problems[0]
    report = lake.registrar.tick(lake.spec, {})
    assert report.errors == []
    lake.files.append("orders/part=0", LINE)
    found = lake.standing()
    assert found.problems == []
    assert (found.rows, found.lag_bytes, found.content_bytes) == (3, len(LINE), 3 * len(LINE))
    assert [(p.key, p.state.rows) for p in found.partitions] == [("part=0", 3)]
    assert found.summary() == {
        "table": "shop.orders",
        "format": "json",
        "journals": 1,
        "partitions": 1,
        "rows": 3,
        "content_bytes": 39,
        "unfit_records": 0,
        "blocked": False,
        "lag_bytes": 13,
        "is_made": True,
        "problems": [],
    }


def test_what_a_store_has_for_a_while_and_no_partition_has_is_overdue(lake):
    now = 10_000
    for n in range(3):
        lake.files.append("orders/part=0", LINE, mod_time=now - 900 + n)
    lake.registrar.tick(lake.spec, {})
    assert overdue(lake.files, lake.standing(), now, from_begin=True) == []
    young = lake.files.append("orders/part=0", LINE, mod_time=now - 299)
    lake.files.append("orders/part=0", LINE, is_persisted=False)
    assert overdue(lake.files, lake.standing(), now) == []
    (text,) = overdue(lake.files, lake.standing(), now + 1)
    assert f"orders/part=0 stalls: a store has its bytes from {young.begin} on" in text
    assert overdue(lake.files, lake.standing(), now + 1, from_begin=True) == [text]


def test_a_hole_that_was_filled_and_is_not_registered_is_overdue(lake):
    late = lake.files.append("orders/part=0", LINE)
    lake.files.forget(late)
    lake.files.append("orders/part=0", LINE, begin=late.end, mod_time=int(SystemClock().unix_s()))
    lake.registrar.tick(lake.spec, {})
    lake.files.append("orders/part=0", LINE, begin=0)
    assert overdue(lake.files, lake.standing(), 10_000) == []  # all content up to the head exists
    (text,) = overdue(lake.files, lake.standing(), 10_000, from_begin=True)
    assert "its bytes from 0 on" in text


def test_without_a_metastore_nothing_is_claimed(lake):
    lake.files.append("orders/part=0", LINE)
    found = table_standing(lake.spec, lake.journals, lake.heads(), None, AT).summary()
    unknown = (
        "partitions", "rows", "content_bytes", "unfit_records", "blocked", "lag_bytes", "is_made"
    )  # fmt: skip
    assert {found[name] for name in unknown} == {None}
    assert found["problems"] == []


def test_table_without_keys_and_one_that_lags_its_spec(lake):
    lake.files.append("orders", LINE)
    lake.spec = parse_table_spec(SPEC.replace("name:prefix=orders/", "name=orders"))
    lake.registrar.tick(lake.spec, {})
    assert [(p.key, p.state.rows) for p in lake.standing().partitions] == [("all", 1)]
    wider = parse_table_spec(
        SPEC.replace("name:prefix=orders/", "name=orders") + "  - {name: x, type: date}\n"
    )
    assert "not as its spec says yet" in lake.standing(wider).problems[0]


def test_accounts_that_cannot_be_read_are_reported(lake):
    lake.files.append("orders/part=0", LINE)
    lake.registrar.tick(lake.spec, {})
    with lake.metastore.connect() as session:
        table = session.table("shop", "orders")
        (partition,) = session.partitions(table)
        partition.parameters["gazette.state"] = "{}"
        session.alter_partitions(table, [partition])
    assert "was changed by others" in lake.standing().problems[0]


def test_catching_up_registers_all_below_the_ends(lake):
    for part in range(3):
        lake.files.append(f"orders/part={part}", LINE * 2)
    clock = SystemClock()
    done = catch_up(
        lake.registrar, lake.spec, {}, lake.heads(), deadline=clock.monotonic() + 60, clock=clock
    )
    assert (done.rows, done.keys, done.told) == (6, {"part=0", "part=1", "part=2"}, [])
    lake.files.append("orders/part=1", LINE)
    begins = {each.journal: each.cursor for each in lake.standing().journals}
    done = catch_up(
        lake.registrar,
        lake.spec,
        begins,
        lake.heads(),
        deadline=clock.monotonic() + 60,
        clock=clock,
    )
    assert (done.rows, done.keys) == (1, {"part=1"})


def test_catching_up_ends_in_time_and_says_what_is_behind(lake):
    lake.files.append("orders/part=0", LINE)
    lake.files.append("orders/part=0", LINE, is_persisted=False)
    clock = SystemClock()
    with pytest.raises(LakeError, match=r"not registered in time: orders/part=0"):
        catch_up(
            lake.registrar, lake.spec, {}, lake.heads(), deadline=clock.monotonic() + 1, clock=clock
        )


@pytest.mark.parametrize("late", [1, 5, 40])
def test_catching_up_registers_what_was_stored_late(lake, late):
    """After what others registered: who only ever flushes would never have it else."""
    journal, now = "orders/part=0", int(SystemClock().unix_s())
    spool = []
    for _ in range(late):
        spool.append(lake.files.append(journal, LINE, is_persisted=False))
        lake.files.append(journal, LINE, mod_time=now)
    lake.registrar.tick(lake.spec, {})
    for fragment in spool:
        lake.files.persist(fragment, mod_time=now)
    clock = SystemClock()
    begins = {each.journal: each.cursor for each in lake.standing().journals}
    done = catch_up(
        lake.registrar,
        lake.spec,
        begins,
        lake.heads(),
        deadline=clock.monotonic() + 60,
        clock=clock,
    )
    assert done.rows == late
    (partition,) = lake.standing().partitions
    assert partition.state.ranges == ((0, 2 * late * len(LINE)),)


def test_catching_up_reports_what_it_cannot_take_and_goes_on(lake):
    journal = "orders/part=0"
    lake.files.append(journal, LINE, mod_time=1)
    lake.registrar.tick(lake.spec, {})
    lake.files.append(journal, LINE, postfix="other=1")
    lake.files.append(journal, LINE)
    lake.registrar.tick(lake.spec, {})
    lake.files.append(journal, LINE)
    clock = SystemClock()
    begins = {each.journal: each.cursor for each in lake.standing().journals}
    done = catch_up(
        lake.registrar,
        lake.spec,
        begins,
        lake.heads(),
        deadline=clock.monotonic() + 60,
        clock=clock,
    )
    assert done.rows == 1
    (told,) = done.told
    assert "other=1" in told


def test_the_end_of_a_suspended_journal_is_not_waited_for():
    """All of it was pruned before any of it was registered, say."""
    served = JournalSpec(name="a", replication=1)
    suspended = JournalSpec(name="b", replication=1, suspend=SuspendSpec(SuspendLevel.FULL, 99))
    assert reachable([served, suspended], {"a": 9, "b": 99}) == {"a": 9}
