"""Files that workers write: what is in them, their partition, and what they take. Read back by PyIceberg."""

import random
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.transforms import VoidTransform
from typed_world import World, row, spec

from gazette_platform.errors import LakeError
from gazette_platform.lake.iceberg.publishing import publish_files
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.iceberg_types import (
    arrow_schema,
    new_partition_spec,
    new_schema,
)
from gazette_platform.lake.typed.rows.placing import RowParter
from gazette_platform.lake.typed.tables.writing import RowWriter, data_file_of

COLUMNS = (
    "n bigint", "k string", "small int", "price decimal(9,2)", "wide decimal(38,10)", "at timestamptz", "local timestamp",
    "day date", "id uuid", "ok boolean", "raw binary", "tags array<string>", "extra map<string,bigint>",
    "place struct<zip:string,lines:array<int>>",
)  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANTS = [
    EPOCH, EPOCH - timedelta(microseconds=1), EPOCH + timedelta(hours=5), datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), datetime(1969, 12, 31, tzinfo=UTC), datetime(2026, 2, 28, 23, tzinfo=UTC),
]  # fmt: skip
TEXTS = ["", "a", "é" * 5, "\U0001f600\U0001f600b", "a\0b", "ab", "abc/=%é ?#", "A"]
VALUES = {
    "n": [0, -1, 1, 10, -10, 2**63 - 1, -(2**63) + 100, 12345],
    "k": TEXTS,
    "small": [0, -1, 7, -7, 2**31 - 1, -(2**31) + 100],
    "price": [Decimal(text) for text in ("0.00", "-0.01", "12.50", "-12.50", "9999999.99")],
    "wide": [
        Decimal(text)
        for text in ("0.0000000000", "-0.0000000001", "1234567890123456789012345678.5000000000")
    ],
    "at": INSTANTS,
    "local": [each.replace(tzinfo=None) for each in INSTANTS],
    "day": [each.date() for each in INSTANTS],
    "id": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.UUID(int=7 << 64)],
    "ok": [True, False],
    "raw": [b"", b"\0", b"\xff\xfe", b"abc", b"abe"],
}
PARTITIONS = [
    *("k", "n", "small", "price", "wide", "at", "local", "day", "id", "ok"),
    *(f"{unit}({column})" for unit in ("year", "month", "day") for column in ("at", "local", "day")),
    *("hour(at)", "hour(local)"),
    *(f"bucket(7, {column})" for column in ("n", "k", "small", "price", "wide", "at", "local", "day", "id", "raw")),
    *(f"truncate(3, {column})" for column in ("n", "k", "small", "price", "wide", "raw")),
]  # fmt: skip


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    for catalog in made.catalogs:
        catalog.close()


def parted(*partitions):
    return spec(COLUMNS, partitions=tuple(map(parse_partition, partitions)))


def writer_of(table, **options):
    return RowWriter(table.io, table.location, table.schema, table.partition_spec, **options)


def stored(value):
    """As Arrow makes arrays of it."""
    return value.bytes if isinstance(value, uuid.UUID) else value


def rows_of(schema, rows):
    return pa.Table.from_pylist(
        [{key: stored(value) for key, value in each.items()} for each in rows],
        schema=schema,
    )


def publish(handle, table, written):
    files = [data_file_of(one, table.metadata) for one in written]
    publish_files(handle, table.start, files, "run", {})
    return handle.load().token


def plain(value):
    """A value of a partition, as files have it."""
    match value:
        case datetime():
            return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
        case date():
            return (value - EPOCH.date()).days
        case uuid.UUID():
            return value.bytes
        case _:
            return value


def shuffled(column):
    values = [*VALUES[column], None] * 3
    random.Random(column).shuffle(values)
    return values


@pytest.mark.parametrize("partition", PARTITIONS)
def test_rows_are_parted_as_pyiceberg_parts_them(partition):
    wanted = parted(partition)
    column = parse_partition(partition).column
    schema = new_schema(wanted)
    by = new_partition_spec(wanted, schema)
    transform = by.fields[0].transform.transform(schema.find_field(column).field_type)
    expected = {}
    rows = [row(n) | {column: value, "_begin": n} for n, value in enumerate(shuffled(column))]
    for each in rows:
        expected.setdefault((plain(transform(each[column])),), []).append(each["_begin"])
    parts = RowParter(schema, by).parts(rows_of(arrow_schema(schema), rows))
    assert {part.value: part.rows.column("_begin").to_pylist() for part in parts} == expected
    assert len(parts) == len(expected)
    sizes = [part.rows.num_rows for part in parts]
    assert sizes == sorted(sizes, reverse=True)


def test_rows_are_parted_by_all_fields_together_and_not_moved_if_they_lie_so():
    wanted = parted("k", "bucket(2, n)", "day(at)")
    schema = new_schema(wanted)
    parter = RowParter(schema, new_partition_spec(wanted, schema))
    days = [EPOCH + timedelta(days=day) for day in (0, 0, 1, 1)]
    rows = [
        row(n) | {"k": k, "at": at, "_begin": n}
        for k in ("a", None)
        for n in (0, 1, 5, 10, 11)
        for at in days
    ]
    table = rows_of(arrow_schema(schema), rows)
    parts = parter.parts(table)
    assert {value[0] for value, _ in parts} == {"a", None}
    assert {value[2] for value, _ in parts} == {0, 1}
    assert sum(part.rows.num_rows for part in parts) == len(rows)
    assert len({part.value for part in parts}) == len(parts) == 8
    whole = parter.parts(table.slice(0, 2))
    assert [part.rows for part in whole] == [table.slice(0, 2)]
    assert parter.parts(table.slice(0, 0)) == []


def test_transform_that_specs_do_not_have_is_refused():
    schema = new_schema(parted())
    by = PartitionSpec(PartitionField(1, PARTITION_FIELD_ID_START, VoidTransform(), "n_gone"))
    with pytest.raises(LakeError, match="partition field n_gone is void of n"):
        RowParter(schema, by)


# Not by UUIDs: PyIceberg 0.12 compares those of manifests with bytes, and finds none.
@pytest.mark.parametrize(
    "partitions",
    [
        ("k", "price", "ok", "day(at)", "truncate(3, n)"),
        ("day", "wide", "bucket(7, k)", "hour(local)", "year(at)"),
        (
            "truncate(1, k)",
            "truncate(3, wide)",
            "bucket(5, at)",
            "month(local)",
            "bucket(3, price)",
        ),
    ],
)
def test_rows_are_found_by_their_values_and_in_no_other_file(world, partitions):
    columns = {parse_partition(partition).column for partition in partitions}
    values = {column: iter(shuffled(column) * 3) for column in sorted(columns)}
    rows = [row(n) | {column: next(of) for column, of in values.items()} for n in range(18)]
    handle, table = world.open(parted(*partitions))
    writer = writer_of(table)
    writer.add(rows_of(table.arrow_schema, rows))
    loaded = publish(handle, table, writer.close())
    files = len(list(loaded.scan().plan_files()))
    assert files > 9
    for column in columns:
        for value in VALUES[column][:3]:
            scan = loaded.scan(row_filter=EqualTo(column, value))
            expected = [one["_begin"] for one in rows if one[column] == value]
            assert sorted(scan.to_arrow()["_begin"].to_pylist()) == expected
            assert len(list(scan.plan_files())) < files
        missing = loaded.scan(row_filter=IsNull(column)).to_arrow()
        assert len(missing) == sum(one[column] is None for one in rows)


def test_all_types_come_back_as_they_were(world):
    handle, table = world.open(parted("bucket(2, k)"))
    rows = [
        row(n)
        | {column: values[n % len(values)] for column, values in VALUES.items()}
        | {"tags": ["a", None], "extra": [("a", 1), ("b", None)], "place": {"zip": "1", "lines": [1, None]}}
        for n in range(50)
    ]  # fmt: skip
    rows += [{**dict.fromkeys(table.arrow_schema.names), **row(50), "n": None, "k": None}]
    writer = writer_of(table)
    for each in rows:
        writer.add(rows_of(table.arrow_schema, [each]))
    loaded = publish(handle, table, writer.close())
    found = loaded.scan().to_arrow().sort_by("_begin")
    assert (
        found.select(table.arrow_schema.names).to_pylist()
        == rows_of(table.arrow_schema, rows).to_pylist()
    )


def test_no_rows_make_no_file(world):
    _, table = world.open()
    writer = writer_of(table)
    writer.add(rows_of(table.arrow_schema, []))
    assert writer.close() == ()
    assert data_files(table) == []


def test_file_ends_at_its_size_and_few_stay_open(world):
    handle, table = world.open(parted("bucket(4, n)"))
    noise = random.Random(1)
    batches = [
        [row(n) | {"k": noise.randbytes(100).hex()} for n in range(first, first + 40)]
        for first in range(0, 160, 40)
    ]
    rows = [each for batch in batches for each in batch]
    counts = {}
    for options in (
        {},
        {"held_bytes": 1},
        {"held_bytes": 1, "open_files": 1},
        {"held_bytes": 1, "file_bytes": 1},
    ):
        writer = writer_of(table, **options)
        assert writer.rows == 0
        for batch in batches:
            writer.add(rows_of(table.arrow_schema, batch))
        written = writer.close()
        assert sum(one.rows for one in written) == writer.rows == len(rows)
        counts[tuple(options)] = len(written)
    whole, held, one_open, small = counts.values()
    assert whole == held == 4
    assert small == 4 * len(batches)
    assert held < one_open < small
    publish(handle, table, written)
    found = handle.load().token.scan().to_arrow().sort_by("_begin")
    assert found["k"].to_pylist() == [each["k"] for each in rows]


def test_file_of_an_hour_that_is_over_is_ended(world):
    _, table = world.open(parted("hour(at)"))
    writer = writer_of(table, held_bytes=1)
    for hour in range(5):
        writer.add(rows_of(table.arrow_schema, [row(hour) | {"at": EPOCH + timedelta(hours=hour)}]))
        assert len(writer._open) == 1
    assert len(writer.close()) == 5


def test_what_was_written_is_removed_if_it_comes_to_nothing(world):
    _, table = world.open(parted("bucket(4, n)"))
    writer = writer_of(table, held_bytes=1, open_files=2)
    for n in range(20):
        writer.add(rows_of(table.arrow_schema, [row(n)]))
    assert len(data_files(table)) > 4
    writer.abort()
    assert data_files(table) == []
    # Once more, as whoever handles an error may.
    writer.abort()


def test_place_that_cannot_be_written_is_reported_and_nothing_stays(world):
    _, table = world.open()
    folder = Path(urlsplit(table.location).path) / "data"
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"in the way")
    writer = writer_of(table)
    writer.add(rows_of(table.arrow_schema, [row(1)]))
    with pytest.raises(LakeError, match=r"cannot write file:.*run again"):
        writer.close()
    writer.abort()
    assert folder.read_bytes() == b"in the way"


def data_files(table):
    return list(Path(urlsplit(table.location).path).glob("data/*.parquet"))
