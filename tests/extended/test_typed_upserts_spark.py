"""Upserts of typed tables, merged by Spark into a real metastore."""

import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random

import pytest
from msgspec import structs
from typed_commits import SparkTable
from typed_merges import keyed, merged, said, upsert

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.catalog import MetastoreHandle
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.tables.table import open_table
from gazette_platform.message.uuid import build_uuid
from gazette_platform.spark.typed_workers import SparkWorkers

pytestmark = [
    pytest.mark.hive,
    pytest.mark.spark,
    pytest.mark.timeout(400),  # the first test pays for the start of two servers
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


class Upserts:
    """A typed table with a key in a metastore, and Spark that merges into it."""

    def __init__(self, spark, metastore, warehouse):
        self.tables = IcebergTables(metastore, warehouse)
        self.name = f"typed.u{uuid.uuid4().hex[:8]}"
        self.handle = MetastoreHandle(self.tables, self.name)
        self.spark = SparkTable(spark, self.name)
        self.merger = SparkWorkers(spark).merger

    def open(self, spec):
        location = self.tables.new_location(*self.name.split("."))
        return open_table(self.handle, structs.replace(spec, name=self.name), location)

    def upsert(self, table, rows, **more):
        return upsert(self.handle, table, rows, **{"merger": self.merger, **more})

    def rows(self):
        """By PyIceberg, which heeds the deletes that Spark has written; as they were given."""
        now = self.handle.load()
        found = now.table.scan().to_arrow().to_pylist()
        return [{**one, "_uuid": one["_uuid"] and one["_uuid"].bytes} for one in found]


@pytest.fixture
def upserts(spark, metastore, lake_settings):
    made = Upserts(spark, metastore, lake_settings.warehouse)
    yield made
    made.spark.sql(f"DROP TABLE IF EXISTS {made.spark.full_name} PURGE")


# ------------------------------------------------------------------ which is the last

# Each bit of a clock decides somewhere, also the lowest, which lie beside the variant, and the highest.
CLOCKS = [
    0,
    1,
    2,
    3,
    4,
    15,
    16,
    17,
    1 << 35,
    1 << 36,
    1 << 51,
    1 << 52,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]
JOURNALS = ["raw/t/part=a", "raw/t/part=é", "raw/t/part=𐀀"]


def messages(draw, count, keys):
    """Rows of two columns, whose names are those of Spark's aliases, with anything for a UUID."""
    begins = draw.sample(range(1 << 40), count)
    for begin in begins:
        told = build_uuid(draw.randbytes(6), draw.choice(CLOCKS), draw.randrange(1024)).int
        if draw.random() < 0.3:
            told ^= (
                draw.randrange(16) << 76 | draw.randrange(4) << 62
            )  # another version and variant
        key = draw.choice(keys)
        yield {
            "t": key[0], "s": key[1], "k": str(begin),
            "_journal": draw.choice(JOURNALS), "_begin": begin, "_end": begin + 1,
            "_uuid": None if draw.random() < 0.1 else told.to_bytes(16, "big"),
        }  # fmt: skip


def test_of_messages_of_a_key_the_last_is_the_row_as_it_is_in_python(upserts):
    draw = Random(1)
    spec = keyed(("t string", "s timestamptz", "k string"), ("t", "s"))
    instants = [datetime(1900, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)]
    texts = ["", "a'b\\", "é" * 9, "𐀀" * 20]
    keys = [(text, instant) for text in texts for instant in instants]
    keys += [(f"key {number}", instants[0]) for number in range(200)]
    expected = []
    # Fewer of them than are looked for by their values, and more.
    for count in (300, 1500):
        new = list(messages(draw, count, keys))
        upserts.upsert(upserts.open(spec), new)
        expected = merged(expected, new, spec.key)
        found = sorted(upserts.rows(), key=lambda one: (one["t"], one["s"]))
        assert found == expected


# ------------------------------------------------------------------ changes


def changes(draw, count, *, truncates):
    for begin in draw.sample(range(1 << 40), count):
        op = draw.choice("ccuudd")
        told = {"_position": f"{draw.randrange(2 * count):020d}", "_uuid": None}
        yield said(
            draw.randrange(count // 2), None if op == "d" else str(begin), begin, draw.choice(JOURNALS)
        ) | told | {"_op": "t" if truncates and draw.random() < 0.01 else op}  # fmt: skip


@pytest.mark.parametrize("order", ["source", "journal"])
def test_changes_are_merged_as_they_are_in_python(upserts, order):
    draw = Random(2)
    spec = structs.replace(keyed(), change_data="debezium", order=order)
    # Fewer than are looked for by their values, more, and some that truncate the table.
    expected, kept = [], []
    for count, truncates in ((200, False), (900, False), (200, True), (60, False)):
        new = list(changes(draw, count, truncates=truncates))
        upserts.upsert(upserts.open(spec), new, changes=spec.changes)
        expected = merged(expected, new, spec.key, spec.changes, kept)
        kept += [one for one in new if one["_op"] in {"d", "t"}]
        assert sorted(upserts.rows(), key=lambda one: one["n"]) == expected
    # A column comes, which deletions from before do not have.
    wider = structs.replace(
        keyed(("n bigint", "k string", "more int")), change_data="debezium", order=order
    )
    new = [one | {"more": 1} for one in changes(draw, 60, truncates=False)]
    upserts.upsert(upserts.open(wider), new, changes=wider.changes)
    expected = merged(expected, new, spec.key, spec.changes, kept)
    found = sorted(upserts.rows(), key=lambda one: one["n"])
    assert [one | {"more": None} for one in found] == [one | {"more": None} for one in expected]


def test_column_that_says_deleted_deletes_as_it_does_in_python(upserts):
    spec = structs.replace(keyed(("n bigint", "k string", "gone boolean")), deleted="gone")
    draw = Random(3)
    expected, kept = [], []
    for _ in range(3):
        new = [
            said(draw.randrange(40), str(begin), begin, draw.choice(JOURNALS))
            | {"gone": draw.choice([True, False, None])}
            for begin in draw.sample(range(1 << 40), 80)
        ]
        upserts.upsert(upserts.open(spec), new, changes=spec.changes)
        expected = merged(expected, new, spec.key, spec.changes, kept)
        kept += [one for one in new if one["gone"]]
        assert sorted(upserts.rows(), key=lambda one: one["n"]) == expected


# ------------------------------------------------------------------ tables of all kinds

COLUMNS = (
    "id uuid", "at timestamptz", "local timestamp", "day date", "price decimal(10,2)", "n bigint", "ok boolean", "ratio double",
    "raw binary", "tags array<string>", "extra map<string,bigint>", "place struct<zip:string,lines:array<int>>", "k string",
)  # fmt: skip
KEY = ("id", "at", "local", "day", "price", "n", "ok")


def event(n, k, **more):
    """A row whose key follows from `n`."""
    values = {
        "id": uuid.UUID(int=n << 120).bytes, "at": datetime(2026, 1, 1 + n, 23, 30, tzinfo=UTC),
        "local": datetime(1960, 1, 1) + timedelta(microseconds=n), "day": date(1969, 12, 1 + n),  # noqa: DTZ001
        "price": Decimal(n - 3) / 4, "ok": bool(n % 2), "ratio": 0.5, "raw": b"\xff",
        "tags": ["a", None], "extra": [("a", n)], "place": {"zip": "1", "lines": [n]},
    }  # fmt: skip
    return said(n, k, more.pop("begin"), **more) | values


def test_values_of_all_types_are_merged_in_whatever_partition_and_shape(upserts):
    by_day = keyed(COLUMNS, KEY, partitions=(parse_partition("day(at)"),))
    days = lambda one: [one["at"].date()]  # noqa: E731
    table = upserts.open(by_day)
    upserts.upsert(table, [event(n, "a", begin=10 + n) for n in range(6)], partition_of=days)
    # A column more, and other partitions, one of them not a part of the key: a row moves from one to another.
    wider = keyed((*COLUMNS, "more int"), KEY, partitions=(parse_partition("k"),))
    table = upserts.open(wider)
    new = [event(n, "b", begin=20 + n) | {"more": n} for n in (1, 3, 7)]
    new += [event(4, "old", begin=0), event(5, "c", begin=30)]
    upserts.upsert(table, new, partition_of=lambda one: [one["k"]])
    found = upserts.spark.sql(
        f"SELECT n, k, more, id, hex(raw), tags, extra, place, price FROM {upserts.spark.full_name} ORDER BY n"
    )
    assert [one[:3] for one in found] == [
        (0, "a", None), (1, "b", 1), (2, "a", None), (3, "b", 3), (4, "a", None), (5, "c", None), (7, "b", 7),
    ]  # fmt: skip
    last = found[-1]
    assert last[3:7] == (str(uuid.UUID(int=7 << 120)), "FF", ["a", None], {"a": 7})
    assert (last[7].lines, last[8]) == ([7], Decimal("1.00"))
    parts = f"SELECT partition.k, content, sum(record_count) FROM {upserts.spark.full_name}.files GROUP BY ALL"
    assert set(upserts.spark.sql(parts)) == {
        (None, 0, 6), (None, 1, 3), ("b", 0, 3), ("c", 0, 1),
    }  # fmt: skip


# ------------------------------------------------------------------ who comes between


def test_session_is_left_as_it_was_and_what_spark_refuses_is_reported(upserts):
    table = upserts.open(keyed())
    session = upserts.spark.session
    session.conf.set("spark.wap.id", "of somebody")
    before = session.conf.getAll
    try:
        upserts.upsert(table, [said(1, "a", 10)])
        table = upserts.open(keyed())
        with pytest.raises(
            LakeError, match=rf"Spark could not merge into {upserts.name}, .*nowhere"
        ):
            upserts.upsert(table, [said(1, "b", 20)], catalog="nowhere")
        assert session.conf.getAll == before
    finally:
        session.conf.unset("spark.wap.id")


# ------------------------------------------------------------------ with the tail
