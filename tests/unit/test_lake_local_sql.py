"""What SQL in this process decides without a server: extents, values, rows, pruning."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings, strategies as st

from gazette_platform import FragmentListing
from gazette_platform.client.read.extents import snapshot_of
from gazette_platform.lake.engines.duckdb.dataset import TableDataset, prune, selected
from gazette_platform.lake.engines.duckdb.snapshot import Piece, TableExtent, TableSnapshot
from gazette_platform.lake.reading.arrow_types import arrow_type
from gazette_platform.lake.reading.raw_rows import fitted, parse_line, row_parser
from gazette_platform.lake.spec.layout import PartitionColumn
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.types import parse_type
from gazette_platform.protocol import Fragment


def listing(begin, end, store="file:///"):
    return FragmentListing(Fragment("a/b", begin, end, backing_store=store))


def planned(listed, head):
    return snapshot_of("a/b", listed, head)


def spans(plan):
    return [(s.begin, s.end, s.listing and s.listing.fragment.begin) for s in plan.extents]


@pytest.mark.parametrize(
    ("listed", "head", "expected"),
    [
        ([], 0, []),
        # Brokers list what their spools hold: all was pruned.
        ([], 5, []),
        ([listing(0, 5)], 5, [(0, 5, 0)]),
        ([listing(0, 5)], 9, [(0, 5, 0), (5, 9, None)]),
        # What was persisted after the head is of another query.
        ([listing(0, 9)], 5, [(0, 5, 0)]),
        ([listing(0, 5), listing(5, 9)], 5, [(0, 5, 0)]),
        # In part, covered, and in a chain.
        ([listing(0, 6), listing(4, 9)], 9, [(0, 6, 0), (6, 9, 4)]),
        ([listing(0, 9), listing(2, 5)], 9, [(0, 9, 0)]),
        ([listing(0, 4), listing(2, 6), listing(3, 9)], 9, [(0, 4, 0), (4, 9, 3)]),
        # Pruned in front; a spool in the middle, as while one of two is still being stored.
        ([listing(4, 9)], 9, [(4, 9, 4)]),
        ([listing(0, 3), listing(3, 6, ""), listing(6, 9)], 9, [(0, 3, 0), (3, 6, None), (6, 9, 6)]),
        ([listing(2, 4, ""), listing(6, 9)], 9, [(2, 4, None), (6, 9, 6)]),
        ([listing(0, 3), listing(3, 6, ""), listing(6, 9)], 5, [(0, 3, 0), (3, 5, None)]),
    ],
)  # fmt: skip
def test_each_byte_has_one_holder(listed, head, expected):
    assert spans(planned(listed, head)) == expected


def test_holes_are_reported():
    plan = planned([listing(2, 4), listing(6, 8), listing(7, 9, "")], 12)
    assert (plan.begin, plan.stored_end, plan.gaps) == (2, 8, [(4, 6)])
    assert spans(plan) == [(2, 4, 2), (6, 8, 6), (8, 12, None)]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans()), max_size=12),
    st.integers(0, 60),
)
def test_extents_are_what_is_held_and_nothing_twice(pieces, head):
    listed = [listing(b, b + n, "file:///" if stored else "") for b, n, stored in pieces]
    plan = planned(listed, head)
    covered: list[int] = []
    for extent in plan.extents:
        assert extent.begin < extent.end <= head
        covered += range(extent.begin, extent.end)
        if extent.listing is not None:
            fragment = extent.listing.fragment
            assert fragment.begin <= extent.begin < extent.end <= fragment.end
            assert extent.listing.is_persisted
    assert covered == sorted(set(covered))
    held = {at for f in listed for at in range(f.fragment.begin, f.fragment.end) if at < head}
    assert held <= set(covered)
    gaps = {at for begin, end in plan.gaps for at in range(begin, end)}
    assert not gaps & set(covered)
    if held:
        assert gaps | set(covered) == set(range(plan.begin, head))


FITS = [
    ("string", '"a"', "a"), ("string", "1.50", "1.50"), ("string", "true", "true"),
    ("string", '{"a":[1.0,null,"é"]}', '{"a":[1.0,null,"é"]}'), ("string", '"\\ud800"', "?"),
    ("boolean", "true", True), ("boolean", '"FALSE"', False), ("boolean", "0", None),
    ("tinyint", "127", 127), ("tinyint", "128", None), ("tinyint", "-128", -128),
    ("bigint", "9223372036854775807", (1 << 63) - 1), ("bigint", "9223372036854775808", None),
    ("bigint", "5.0", None), ("bigint", "5.5", None), ("bigint", '"12"', 12), ("bigint", '" 12"', None),
    ("bigint", "1e3", None), ("bigint", "1e9999", None), ("bigint", "true", None),
    ("bigint", "[1]", None), ("bigint", "{}", None), ("int", '"٣"', None),
    ("double", "1e3", 1000.0), ("double", '"1.5"', 1.5), ("double", '"x"', None),
    ("double", '"NaN"', "nan"), ("double", "false", None), ("double", "1e400", float("inf")),
    ("decimal(5,2)", "1.005", Decimal("1.01")), ("decimal(5,2)", "999.995", None),
    ("decimal(5,2)", "1000", None), ("decimal(5,2)", "-1000", None), ("decimal(5,2)", "1e3", None),
    ("decimal(38,37)", "10", None), ("array<decimal(4,2)>", "[99,100]", [Decimal("99.00"), None]),
    ("struct<a:decimal(4,2)>", '{"a":100}', {"a": None}), ("date", '"0000-01-01"', -719528), ("date", '"0000-02-29"', -719469), ("date", '"0000-02-30"', None),
    ("decimal(5,2)", '"-1"', Decimal("-1.00")), ("decimal(5,2)", "1e9999", None),
    ("decimal(38,9)", "12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
    ("date", '"2020-02-29"', date(2020, 2, 29)), ("date", '"2019-02-29"', None),
    ("date", '"20200229"', None), ("date", '"2020-01-311"', None), ("date", '"2020-01-31x"', None), ("date", "18263", None), ("date", '"2020-2-29T00:00"', date(2020, 2, 29)),
    ("array<int>", "[1,null,\"x\"]", [1, None, None]), ("array<int>", "1", None),
    ("map<string,int>", '{"a":1,"b":{}}', [("a", 1), ("b", None)]), ("map<string,int>", "[]", None),
    ("map<string,int>", '{"\\ud800":1,"\\ud801":2}', [("?", 2)]),
    ("struct<a:int,B:date>", '{"a":"1","B":"2020-01-01","c":0}', {"a": 1, "B": date(2020, 1, 1)}),
    ("struct<a:int>", "[1]", None), ("struct<a:int>", "5", None),
]  # fmt: skip


def spec_of(kind, data_format="json"):
    source = "from: 'w w', " if data_format == "json" else ""
    return parse_table_spec(
        f"name: a.b\nselector: name=a\nformat: {data_format}\n"
        f"columns: [{{name: v, type: '{kind}'}}, {{name: w, {source}type: string}}]"
    )


@pytest.mark.parametrize(("kind", "text", "expected"), FITS)
def test_a_value_fits_or_is_null(kind, text, expected):
    row = parse_line(f'{{"v": {text}}}')
    found = fitted(row["v"], parse_type(kind))
    if expected == "nan":
        assert found != found
        return
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a":' * 450 + "[1.50,{}]" + "}" * 450])
def test_deep_values_are_texts(text):
    assert fitted(parse_line(f'{{"v":{text}}}')["v"], parse_type("string")) == text


def test_a_line_that_is_deeper_than_calls_may_be_is_a_row_of_nulls():
    deep = '{"v":' * 100_000 + "1" + "}" * 100_000
    assert parse_line(deep) is None
    (found,) = row_parser(spec_of("string")).columns(f'{deep}\n{{"v":"x"}}\n'.encode(), ["v"])
    assert found.to_pylist() == [None, "x"]


@pytest.mark.parametrize(("kind", "text", "expected"), FITS)
def test_what_arrow_takes_is_what_the_rules_give(kind, text, expected):
    """A line by itself, where Arrow may parse it, and beside one that Arrow refuses."""
    rows = row_parser(spec_of(kind))
    line = f'{{"v": {text}, "w w": "x"}}\n'.encode()
    alone, w = rows.columns(line, ["v", "w"])
    beside = rows.columns(line + b"nonsense\n", ["v"])[0]
    assert (len(alone), len(beside), w.to_pylist()) == (1, 2, ["x"])
    assert alone.slice(0, 1).to_string() == beside.slice(0, 1).to_string()
    assert alone.type == beside.type == arrow_type(parse_type(kind))


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NaN", ("nan", "b")), ("Infinity", ("inf", "b")), ("-Infinity", ("-inf", "b")),
        ("-NaN", ("None", None)), ("Inf", ("None", None)), ("-Inf", ("None", None)),
    ],
)  # fmt: skip
def test_a_number_that_json_has_not_is_one_where_engines_have_it_and_else_the_row_is_of_nulls(
    kind, text, expected
):
    """Arrow takes all of these for numbers, and engines some."""
    content = b'{"v":1.5,"w w":"a"}\n{"v":%s,"w w":"b"}\n' % text.encode()
    v, w = row_parser(spec_of(kind)).columns(content, ["v", "w"])
    assert (v.to_pylist()[0], w.to_pylist()[0]) == (1.5, "a")
    assert (str(v.to_pylist()[1]), w.to_pylist()[1]) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"null\n", b"\n", b"[1]\n", b'{"v":1\n', b'{"v":1}{"v":2}\n', b'{"v":\n1}\n', b'\xef\xbb\xbf{"v":1}\n',
        b'{"v":1}{"v":2}\n{"w":\n{}}\n', b'{"v":1} \n', b'{"v":1}\r\n{"v":2}\n', b'{"v":NaN}\n', b"{}\n",
        b'{"v":1,"v":2}\n', b'{"v":1}\n\n{"v":3}\n', b"{" * 3000 + b"\n", b'{"w w":"\xff\xfe"}\n', b'{"v":01}\n',
    ],
)  # fmt: skip
def test_each_line_is_a_row_whatever_it_holds(content):
    """None ends the process, moves values to other rows, or adds any."""
    rows = row_parser(spec_of("bigint"))
    count = content.count(b"\n")
    (found,) = rows.columns(content, ["v"])
    expected = []
    for line in content.decode("utf-8", "replace").split("\n")[:-1]:
        try:
            decoder = json.JSONDecoder(parse_constant=lambda _: 1 / 0)
            value, _ = decoder.raw_decode(line.removeprefix("\ufeff"))
        except (ValueError, RecursionError, ArithmeticError):
            value = None
        expected.append(value.get("v") if isinstance(value, dict) else None)
    assert found.to_pylist() == expected
    assert (rows.count(content), len(rows.ends(content))) == (count, count)


@given(st.lists(st.lists(st.text(alphabet='a,"é', max_size=4), min_size=1, max_size=3), max_size=6))
def test_csv_rows_are_what_was_written(records):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(records)
    content = out.getvalue().encode()
    rows = row_parser(spec_of("string", "csv"))
    assert rows.cut(content) == len(content)
    assert rows.count(content) == len(records)
    if records:
        v, w = rows.columns(content, ["v", "w"])
        padded = [[*record, None, None][:2] for record in records]
        assert [list(row) for row in zip(v.to_pylist(), w.to_pylist(), strict=True)] == padded
        ends = rows.ends(content).to_pylist()
        assert ends == sorted(ends)
        assert ends[-1] == len(content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'1,5" pipe\n2,a\n3,b\n', [("1", None), ("2", "a"), ("3", "b")]),
        (b'1,5" pipe\n2,6" pipe\n3,c\n', [("1", None), ("2", None), ("3", "c")]),
        (b'1,"two\nlines"\n2,b\n', [("1", None), (None, None), ("2", "b")]),
        (b'1,a\r\n\r\n2,"b"\r\n', [("1", "a"), (None, None), ("2", "b")]),
        # As many rows for Arrow as lines, and others.
        (b"1,a\r2,b\n\n", [(None, None), (None, None)]),
        (b"1," + b"x" * 200_000 + b"\n2\n", [("1", "x" * 200_000), ("2", None)]),
        (b'1,\xff\n2,5" \xff\n3,c\n', [("1", "\ufffd"), ("2", None), ("3", "c")]),
        (b"1,\xff\n2,b\n", [("1", "\ufffd"), ("2", "b")]),
    ],
    ids=["inches", "twice", "two lines", "returns", "balanced", "long", "open", "bytes"],
)
def test_each_line_of_csv_is_a_row_whatever_its_quotes(content, expected):
    """So what one piece of a journal leaves open is not in another."""
    rows = row_parser(spec_of("string", "csv"))
    v, w = rows.columns(content, ["v", "w"])
    assert list(zip(v.to_pylist(), w.to_pylist(), strict=True)) == expected
    assert rows.cut(content + b'9,"') == len(content)
    assert rows.count(content) == len(rows.ends(content)) == len(expected)


def test_byte_order_mark_is_part_of_a_csv_field_wherever_a_block_begins():
    rows = row_parser(spec_of("string", "csv"))
    marked = b"\xef\xbb\xbf1,a\n"
    for content in (marked + b"2,b\n", b"2,b\n" + marked, marked + b'3,"open\n'):
        (v,) = rows.columns(content, ["v"])
        assert "\ufeff1" in v.to_pylist(), content


def test_many_columns_are_read_as_few_are():
    """More columns than msgspec reads go to Arrow."""
    names = "abcdef"
    listed = ", ".join(f"{{name: {name}, type: bigint}}" for name in names)
    spec = parse_table_spec(f"{{name: a.b, selector: name=a, format: json, columns: [{listed}]}}")
    content = b"".join(
        json.dumps({name: at if at % 7 else str(at) for name in names}).encode() + b"\n"
        for at in range(300)
    )
    rows = row_parser(spec)
    whole = rows.columns(content, list(names))
    assert whole == [rows.columns(content, [name])[0] for name in names]
    assert whole[0].to_pylist() == list(range(300))


SCHEMA = pa.schema(
    [("_journal", pa.string()), ("_offset", pa.int64()), ("v", pa.string()), ("hour", pa.int32()), ("day", pa.date32())]
)  # fmt: skip


def test_extents_that_cannot_match_are_pruned():
    extents = tuple(
        TableExtent("a/b", 10 * hour, 10 * hour + 10, None, (str(hour), "2020-01-02"))
        for hour in range(24)
    )
    live = TableExtent("a/b", 240, 250, None, (None, None))
    columns = (
        PartitionColumn(key="hour", column="hour", type="int"),
        PartitionColumn(key="day", column="day", type="date"),
    )
    snapshot = TableSnapshot(
        spec=spec_of("string"),
        columns=columns,
        journals=(),
        extents=(*extents, live),
        taken_at=datetime(2020, 1, 2, tzinfo=UTC),
    )
    hour, offset, day = ds.field("hour"), ds.field("_offset"), ds.field("day")
    other = ds.field("v") == "x"

    def begins(condition):
        return [extent.begin for extent in prune(snapshot, SCHEMA, condition)]

    assert begins(None) == [*range(0, 250, 10)]
    assert begins(hour == 5) == [50]
    assert begins((hour == 5) & other) == [50]
    assert begins((hour == 5) | other) == [*range(0, 250, 10)]
    assert begins(hour.isin([5, 7])) == [50, 70]
    assert begins((hour > 21) & (day == pa.scalar(date(2020, 1, 2)))) == [220, 230]
    assert begins(day == pa.scalar(date(2020, 1, 3))) == []
    assert begins(hour.is_null()) == [240]
    assert begins((offset >= 15) & (offset < 31)) == [10, 20, 30]
    for first, last in ((50, 59), (0, 9), (240, 249)):
        assert begins(offset == first) == begins(offset == last) == [first]
    assert begins(ds.field("_journal") == "other") == []


def test_columns_of_the_data_may_have_the_names_of_where_rows_come_from():
    spec = parse_table_spec(
        "{name: a.b, selector: name=a, format: json, columns: [{name: _Offset, type: bigint}, "
        "{name: _journal, type: string}]}"
    )
    extent = TableExtent("a/b", 100, 200, None, ())
    snapshot = TableSnapshot(
        spec=spec,
        columns=(),
        journals=(),
        extents=(extent,),
        taken_at=datetime(2020, 1, 2, tzinfo=UTC),
    )
    pieces = [[Piece(extent, 100, b'{"_Offset":7,"_journal":"mine"}\n')], []]
    with ThreadPoolExecutor(1) as parsers, duckdb.connect() as engine:
        dataset = TableDataset(
            snapshot,
            open_reader=lambda *_: iter(pieces),
            next_block=next,
            close=lambda _: None,
            failed=lambda _: None,
            parsers=parsers,
        )
        assert dataset.schema.names == ["_fragment", "_Offset", "_journal"]
        engine.register("t", dataset)
        query = "SELECT _offset, _journal FROM t WHERE _offset = 7 AND _journal = 'mine'"
        assert engine.execute(query).fetchall() == [(7, "mine")]


@pytest.fixture
def scanned():
    """Makes data sets of one extent [100, 200) of a journal; closed, and failed, note what became of scans."""
    with ThreadPoolExecutor(1) as parsers:

        def make(columns, content, next_block=next):
            spec = parse_table_spec(
                f"name: a.b\nselector: name=a/b\nformat: json\ncolumns: [{columns}]"
            )
            extent = TableExtent("a/b", 100, 200, None, ("5",))
            hour = PartitionColumn(key="hour", column="hour", type="int")
            snapshot = TableSnapshot(
                spec=spec,
                columns=(hour,),
                journals=(),
                extents=(extent,),
                taken_at=datetime(2020, 1, 2, tzinfo=UTC),
            )
            closed, failed = [], []
            dataset = TableDataset(
                snapshot,
                open_reader=lambda *_: iter([[Piece(extent, 100, content)], []]),
                next_block=next_block,
                close=closed.append,
                failed=failed.append,
                parsers=parsers,
            )
            return dataset, closed, failed

        yield make


def test_a_column_of_the_data_that_is_called_offset_is_not_where_its_row_is(scanned):
    dataset, _, _ = scanned("{name: _offset, type: bigint}", b'{"_offset":7}\n{"_offset":8}\n')
    found = dataset.scanner(["_offset"], ds.field("_offset") == 7).to_reader().read_all()
    assert found.to_pylist() == [{"_offset": 7}]


def test_rows_are_filtered_by_columns_that_were_not_selected(scanned):
    content = b'{"v":1,"w":2}\n{"v":3,"w":4}\n'
    dataset, closed, _ = scanned("{name: v, type: int}, {name: w, type: int}", content)
    condition = (ds.field("w") == 4) & (ds.field("hour") == 5) & (ds.field("_offset") == 114)
    found = dataset.scanner(["v"], condition).to_reader().read_all()
    assert found.to_pylist() == [{"v": 3}]
    assert len(closed) == 1


_NUMBERS = [-1.5, -0.0, 0.0, 2.5, math.inf, -math.inf, math.nan]
_ATOMS = st.builds(
    "{} {} {}".format,
    st.sampled_from(["d", "f", "s.x", "l[1]"]),
    st.sampled_from([">", ">=", "<", "<=", "=", "<>", "IS DISTINCT FROM"]),
    st.sampled_from(_NUMBERS).map(lambda number: f"'{number}'::DOUBLE"),
) | st.sampled_from(["d IN (2.5, 'nan')", "f BETWEEN 0 AND 'nan'", "s IS NULL", "n % 2 = 0"])


@given(st.lists(_ATOMS, min_size=1, max_size=3), st.sampled_from([" AND ", " OR "]))
@settings(max_examples=120)
def test_comparisons_of_arrow_data_are_duckdbs(atoms, joint):
    values = [*_NUMBERS, None]
    table = pa.table(
        {
            "n": range(len(values)),
            "d": pa.array(values, pa.float64()),
            "f": pa.array(values[::-1], pa.float32()),
            "s": pa.array(
                [{"x": value} for value in values[:-1]] + [None], pa.struct([("x", pa.float64())])
            ),
            "l": pa.array([[value] for value in values]),
        }
    )
    with duckdb.connect() as engine:
        engine.register("rows", ds.dataset(table))
        engine.execute("CREATE TABLE own AS FROM rows")
        engine.execute(f"CREATE VIEW seen AS SELECT {selected(table.schema)} FROM rows")
        told = [
            engine.execute(f"SELECT n FROM {name} WHERE {joint.join(atoms)} ORDER BY n").fetchall()
            for name in ("own", "seen")
        ]
        assert (
            engine.execute("DESCRIBE seen").fetchall() == engine.execute("DESCRIBE own").fetchall()
        )
    assert told[0] == told[1]


def test_failure_of_a_scan_is_reported_and_its_reader_closed(scanned):
    def broken(_reader):
        raise OSError("the store went away")

    dataset, closed, failed = scanned("{name: v, type: int}", b"", next_block=broken)
    with pytest.raises(OSError, match="went away"):
        dataset.scanner(["v"]).to_reader().read_all()
    assert [str(error) for error in failed] == ["the store went away"]
    assert len(closed) == 1


def test_it_needs_neither_metastore_nor_dagster():
    program = (
        "import sys, gazette_platform.cli.gazctl.sql, gazette_platform.lake.engines.duckdb.dataset\n"
        "print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint(
        {"hive_metastore", "hive_metastore.ttypes", "dagster", "pyspark", "trino"}
    )
