"""Hive partitions taken together by time: purely, and as a metastore has them."""

import pytest
from hypothesis import given, strategies as st
from lake_bench import FragmentFiles, MemoryMetastore

from gazette_platform.lake import PartitionAccount, Registrar, StoreRoots, parse_table_spec
from gazette_platform.lake.raw.account_book import WHOLE, Time, TimeReader, fold, time_of
from gazette_platform.lake.raw.partition_state import PartitionState

SPEC = parse_table_spec(
    "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [{name: id, type: bigint}], "
    "partitions: [{name: part, type: int}]}"
)
LINE = b'{"id":1}\n'


def account(part, hour, *ranges, rows=1, fragments=None):
    spans = tuple(ranges)
    return PartitionAccount(
        key=f"part={part}/hour={hour}",
        values=(str(part), hour),
        location=f"/a/part={part}/hour={hour}",
        journal=f"a/part={part}",
        state=PartitionState(
            journal=f"a/part={part}",
            ranges=spans,
            fragments=len(spans) if fragments is None else fragments,
            rows=rows if spans else 0,
            content_bytes=sum(end - begin for begin, end in spans),
            stored_bytes=10 * len(spans),
        ),
    )


def test_figures_are_those_of_all_journals():
    one, two, gone = account(0, "05", (0, 9), (18, 27), rows=2), account(1, "05", (0, 9)), None
    gone = account(2, "05")
    (whole,) = fold([two, gone, one])
    assert whole.time == Time(1, "hour=05")
    assert [part.key for part in whole.parts] == [f"part={n}/hour=05" for n in range(3)]
    assert whole.filled == (one, two)
    assert (whole.fragments, whole.rows, whole.content_bytes) == (3, 3, 27)
    assert (whole.stored_bytes, whole.gaps, whole.overlap_bytes) == (30, 1, 0)


def test_rows_are_not_known_once_those_of_one_journal_are_not():
    (whole,) = fold([account(0, "05", (0, 9)), account(1, "05", (0, 9), rows=None)])
    assert (whole.rows, whole.fragments) == (None, 2)


def test_the_last_account_of_a_hive_partition_counts_and_times_keep_their_order():
    old, new = account(0, "06", (0, 9)), account(0, "06", (0, 18))
    late, early = fold([old, account(0, "05", (0, 9)), new])
    assert (late.parts, late.time.key, early.time.key) == ((new,), "hour=06", "hour=05")


@pytest.mark.parametrize(
    ("key", "journal", "time"),
    [
        (
            "origin=JFK/part=000/date=2026-01-31/hour=5",
            "f/origin=JFK/part=000",
            "date=2026-01-31/hour=5",
        ),
        ("hour=5", "logs/web", "hour=5"),
        ("origin=JFK", "f/origin=JFK", WHOLE),
        ("all", "logs", WHOLE),
    ],
)
def test_times_are_what_names_of_journals_do_not_give(key, journal, time):
    assert time_of(key, journal).key == time


states = st.dictionaries(st.integers(0, 3), st.sets(st.integers(0, 3)), max_size=4)


def version(content):
    """Of one hour, that has these fragments of these journals."""
    whole = fold(
        account(p, "05", *((9 * n, 9 * n + 9) for n in sorted(f))) for p, f in content.items()
    )
    return whole[0].data_version if whole else ""


@given(states, states)
def test_data_versions_differ_exactly_where_content_does(one, two):
    filled = [{part: found for part, found in each.items() if found} for each in (one, two)]
    assert (version(one) == version(two)) == (filled[0] == filled[1])
    assert (version(one) == "") == (not filled[0])


# ---------------------------------------------------------------------- metastore


@pytest.fixture
def files(tmp_path):
    return FragmentFiles(tmp_path)


def registered(files):
    metastore = MemoryMetastore()
    Registrar(files, metastore, StoreRoots(files.roots)).tick(SPEC, {})
    return metastore


def test_all_journals_of_a_time_are_read_and_nothing_else(files, monkeypatch):
    for part in range(12):
        for hour in ("05", "06", "07"):
            files.append(f"a/part={part:03}", LINE, postfix=f"hour={hour}")
    metastore = registered(files)
    names = []
    by_name = metastore.thrift.get_partitions_by_names

    def asked(database, table, wanted):
        names.extend(wanted)
        return by_name(database, table, wanted)

    monkeypatch.setattr(metastore.thrift, "get_partitions_by_names", asked)
    for call in ("get_partition_names", "get_partition_names_ps"):
        monkeypatch.setattr(metastore.thrift, call, None)  # which would walk over the table
    with metastore.connect() as session:
        table = session.table("s", "a")
        journals = [f"a/part={part:03}" for part in range(14)]
        reader = TimeReader(session, SPEC, table, [*journals, "b/part=000", "a/x/y/z"])
        assert (reader.columns, reader.own, reader.journals) == (["part", "hour"], [1], 14)
        (one,) = reader.read([Time(1, "hour=06")])
        assert [p.key for p in one.parts] == sorted(f"part={n}/hour=06" for n in range(12))
        assert len(names) == 14
        names.clear()
        # What is known is not asked for again.
        (known, *_) = one.parts
        (again,) = reader.read([], [known])
        assert again == one
        assert len(names) == 13
        assert reader.read([Time(1, "hour=09")]) == []


def test_journals_that_give_no_columns_have_one_hive_partition_a_time(files):
    for hour in ("05", "06"):
        files.append("a/x", LINE, postfix=f"hour={hour}")
    spec = parse_table_spec(
        "{name: s.a, selector: 'name:prefix=a/', format: json, columns: [{name: id, type: bigint}]}"
    )
    metastore = MemoryMetastore()
    Registrar(files, metastore, StoreRoots(files.roots)).tick(spec, {})
    with metastore.connect() as session:
        reader = TimeReader(session, spec, session.table("s", "a"), ["a/x"])
        (one,) = reader.read([Time(0, "hour=05")])
    assert [p.key for p in one.parts] == ["hour=05"]
    assert one.data_version == "0-9"
