"""Every value that does not fit its column is counted, wherever content is cut."""

import itertools
import json
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.raw.audits.fit import value_scanner
from gazette_platform.lake.reading.sample_check import check_sample
from gazette_platform.lake.reading.scanners import breaks
from gazette_platform.lake.spec.types import parse_type

WIDE = parse_table_spec("""
name: a.wide
selector: name=x
format: json
columns:
  - {name: id, type: bigint}
  - {name: small, type: smallint}
  - {name: text, type: string}
  - {name: price, type: "decimal(10,2)"}
  - {name: ratio, type: float}
  - {name: exact, type: double}
  - {name: day, type: date}
  - {name: ok, type: boolean}
  - {name: tags, type: array<string>}
  - {name: place, type: "struct<lat:double,cityName:string>"}
  - {name: counts, type: "map<string,int>"}
  - {name: odd_key, from: odd key, type: int}
""")

GOOD = {
    "id": -(2**63),
    "small": 32767,
    "text": "x",
    "price": 99999999.99,
    "ratio": 1.5,
    "exact": 1,
    "day": "2024-02-29",
    "ok": False,
    "tags": ["a", None],
    "place": {"lat": 0.5, "cityName": "Köln", "more": [1]},
    "counts": {"a": 1, "b": None},
    "odd key": 3,
    "no column": {"any": ["thing", 1.5]},
}


def report(*contents, spec=WIDE):
    scanner = value_scanner(spec)
    for content in contents:
        scanner.feed(content)
    return scanner.report()


def line(**values):
    return json.dumps(values).encode() + b"\n"


def test_values_of_their_types_fit():
    found = report(line(**GOOD), line(**dict.fromkeys(GOOD)), b"{}\r\n", line(**GOOD)[:-1])
    assert found.count == 0
    assert (found.breaking, found.breaking_unpartitioned) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("id", "5.0"), ("id", '"12"'), ("id", "true"), ("id", "9223372036854775808"), ("id", "1e3"),
        ("id", "{}"), ("id", "[1]"), ("small", "32768"), ("price", "100000000"), ("price", "99999999.996"), ("price", '"1"'),
        ("ratio", "1e39"), ("ratio", '"1"'), ("exact", "1e400"), ("exact", '"NaN"'), ("day", "18263"),
        ("day", '"2020-13-45"'), ("day", '"2023-02-29"'), ("day", '"2020-1-2"'),
        ("day", '"2020-01-02T00:00:00"'), ("ok", "0"), ("ok", '"true"'), ("tags", '"a"'),
        ("tags", '{"a": 1}'), ("place", "7"), ("place", "[]"), ("place", '{"lat":"1"}'),
        ("counts", "[]"), ("counts", '{"a":1.5}'), ("odd key", '"1"'),
    ],
)  # fmt: skip
def test_each_value_of_another_type_is_counted(key, raw):
    content = line(**GOOD) * 3 + f'{{"{key}":{raw}}}\n'.encode() + line(**GOOD) * 3
    found = report(content * 2)
    ((name, unfit),) = found.columns.items()
    assert (name, unfit.count, unfit.example) == (key.replace(" ", "_"), 2, raw.encode())
    assert found.lines == {}


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("text", "12"), ("text", "1.50"), ("id", "-0"), ("text", '"a-0,b"'), ("text", "true"), ("text", '{"a":[1,"b"]}'),
        ("text", "1e3"), ("text", "-0.0"), ("text", '{"a": 1}'), ("text", '[1E400, -0, {"u" : "\\u00e4\\/"}]'),
        ("tags", '[{"a": 1}, -0]'),
        ("tags", '[1.5,{"a":1}]'), ("place", '{"cityname":7}'), ("place", '{"cityName":[1]}'),
        ("no column", "1e999"), ("ID", '"other case"'),
    ],
)  # fmt: skip
def test_what_engines_read_alike_fits(key, raw):
    assert report(f'{{"{key}":{raw}}}\n'.encode()).count == 0


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\n", "a blank line"),
        (b"  \r\n", "a blank line"),
        (b"nope\n", "not JSON"),
        (b'{"id":1\n', "not JSON"),
        (b'{"id":1} {"id":2}\n', "not JSON"),
        (b'{"id":1}{"id":2}\n', "not JSON"),
        (b'{"id":NaN}\n', "not JSON"),
        (b'\xef\xbb\xbf{"id":1}\n', "not JSON"),
        (b'[{"id":1}]\n', "no JSON object"),
        (b"12\n", "no JSON object"),
        (b'{"id":"x","y":}\n', "not JSON"),
        (b"[1\n", "not JSON"),
        (b'{"id":1,"x":"\xff"}\n', "not UTF-8"),
        (b'{"id":\r1}\n', "a carriage return, which ends a line for the engines"),
    ],
)
def test_each_line_that_is_not_an_object_is_counted(content, what):
    found = report(line(**GOOD), content, line(**GOOD), content)
    assert {k: v.count for k, v in found.lines.items()} == {what: 2}
    assert found.columns == {}


def test_an_object_over_two_lines_beside_a_line_of_two_objects_is_found():
    # As many objects as lines, that is.
    found = report(b'{"id":\n1}\n{"id":2}{"id":3}\n{"id":4}\n')
    assert found.lines["not JSON"].count == 3


@given(cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_counts_do_not_depend_on_how_content_is_cut(cuts):
    content = (line(**GOOD) + b'{"id":"x"}\n\n[1]\n' + line(**GOOD)) * 3 + b'{"ok":1}'
    at = [0, *sorted(min(c, len(content)) for c in cuts), len(content)]
    found = report(*(content[a:b] for a, b in itertools.pairwise(at)))
    assert {k: v.count for k, v in found.columns.items()} == {"id": 3, "ok": 1}
    assert {k: v.count for k, v in found.lines.items()} == {"a blank line": 3, "no JSON object": 3}


def test_many_pieces_are_counted_whole():
    content = line(id="x") * 100_000
    assert report(content).columns["id"].count == 100_000
    assert report(line(id=1) * 100_000).count == 0


def test_a_line_beyond_what_engines_take_is_reported_and_not_kept():
    scanner = value_scanner(WIDE)
    scanner.feed(b'{"id":1}\n{"text":"')
    for _ in range(110):
        scanner.feed(b"x" * (1 << 20))
    scanner.feed(b'"}\n{"id":"y"}\n')
    found = scanner.report()
    assert [(k, v.count) for k, v in found.lines.items()] == [("too long a line (over 100 MiB)", 1)]
    assert found.columns["id"].count == 1


# --------------------------------------------------------------------------- what Trino fails at


@pytest.mark.parametrize(
    ("kind", "raw", "partitioned", "unpartitioned"),
    [
        ("bigint", "{}", False, True),
        ("double", "[1]", False, True),
        ("double", '"x"', False, False),
        ("tinyint", "[1]", True, True),
        ("decimal(5,2)", '{"value":1}', True, True),
        ("date", "[]", True, True),
        ("date", '"x"', False, False),
        ("boolean", "{}", False, False),
        ("string", "{}", False, False),
        ("array<int>", "[[1]]", False, True),
        ("array<date>", "[[1]]", True, True),
        ("array<date>", "{}", True, True),
        ("array<date>", '"x"', False, False),
        ("map<string,int>", "1", True, True),
        ("map<string,int>", "[]", True, True),
        ("map<string,int>", '" "', False, False),
        ("map<string,date>", '{"a":{}}', True, True),
        ("struct<a:int,b:date>", '"x"', True, True),
        ("struct<a:int,b:date>", '""', False, False),
        ("struct<a:int,b:date>", "[1,[]]", True, True),
        ("struct<a:int,b:date>", '{"A":{}}', False, True),
        ("struct<a:int,b:date>", '{"c":{}}', False, False),
        ("struct<a:int,b:date>", "null", False, False),
    ],
)
def test_what_breaks_a_query(kind, raw, partitioned, unpartitioned):
    parsed, value = parse_type(kind), json.loads(raw)
    assert breaks(parsed, value, is_partitioned=True) is partitioned
    assert breaks(parsed, value, is_partitioned=False) is unpartitioned


def test_columns_with_values_that_break_are_named():
    found = report(b'{"id":{},"price":{"value":6.1},"day":"x"}\n{"counts":7}\n')
    assert found.breaking == {"price", "counts"}
    assert found.breaking_unpartitioned == {"id", "price", "counts"}
    # Trino takes the elements of a list for the columns, in order.
    found = report(b"[{},2,3,[4]]\n")
    assert (found.breaking, found.breaking_unpartitioned) == ({"price"}, {"id", "price"})


# --------------------------------------------------------------------------- CSV


PAIR = parse_table_spec(
    "{name: a.pair, selector: name=x, format: csv, "
    "columns: [{name: a, type: string}, {name: b, type: string}]}"
)


def test_records_of_rfc_4180_fit():
    content = b'1,x y\n2,"x, y"\r\n"say ""hi""",a\\b\n,\n"",""\n\xc3\xa4,"\\"\n'
    assert report(content, spec=PAIR).count == 0


@pytest.mark.parametrize(
    ("content", "starts"),
    [
        (b"\n", ["a blank line"]),
        (b"1\n", ["1 fields, not 2"]),
        (b"1,2,3\n", ["3 fields, not 2"]),
        (b'x,a"b"\n', ["a quote within a field without quotes"]),
        (b'"a"b,c\n', ["a quote within a field without quotes"]),
        (b'"x,1\n', ["a quoted field that is not closed on its line"]),
        (b"a\x01,1\n", ["the control character U+0001"]),
        (b"A,b\n", ["a header"]),
        (b'"a","b"\n', ["a header"]),
        (b"\xff,1\n", ["not UTF-8"]),
    ],
)
def test_each_line_that_is_not_a_record_is_counted(content, starts):
    found = report(b"1,2\n", content, b'3,"4"\n', content, spec=PAIR)
    assert [
        (v.count, k[: len(w)]) for (k, v), w in zip(found.lines.items(), starts, strict=True)
    ] == [(2, w) for w in starts]


def test_a_record_of_two_lines_is_reported():
    found = report(b'1,"x\ny"\n', spec=PAIR)
    ((what, unfit),) = found.lines.items()
    assert unfit.count == 2
    assert "records of several lines are not supported" in what


DEEP = ["[" * n + "]" * n for n in (300, 900, 1100, 20_000)]
ODD = [
    *DEEP, '{"a":' * 2000 + "1" + "}" * 2000, "9" * 5000, "-" + "9" * 5000, f'{{"a":{"9" * 5000}}}',
    f"[{'9' * 5000}]", "1e99999999999999999999", "1e-99999999999999999999",
]  # fmt: skip


@pytest.mark.parametrize("raw", ODD, ids=lambda raw: f"{raw[:12]}:{len(raw)}")
@pytest.mark.parametrize(
    "kind",
    ["string", "boolean", "bigint", "float", "double", "decimal(10,2)", "date", "array<string>", "map<string,string>", "struct<a:int>"],
)  # fmt: skip
def test_no_value_ends_a_scan(kind, raw):
    """As it would that of every other table, for the sensor looks at all of them in one tick."""
    spec = parse_table_spec(
        f"{{name: a.b, selector: name=x, format: json, columns: [{{name: v, type: '{kind}'}}]}}"
    )
    bad, other = f'{{"v":{raw}}}\n'.encode(), f'{{"w":{raw}}}\n'.encode()
    found = report(bad, b'{"v":null}\n', spec=spec)
    if kind in {"boolean", "bigint", "date"}:
        assert found.count == 1
    for content in (bad, other, raw.encode() + b"\n"):
        assert report(content, spec=spec).count in (0, 1)
    with suppress(SchemaMismatch):
        check_sample(spec, bad, "here")


def test_long_fields_of_csv_and_carriage_returns_end_no_scan():
    spec = parse_table_spec(
        "{name: a.b, selector: name=x, format: csv, columns: [{name: a, type: string}, "
        "{name: b, type: string}, {name: c, type: string}]}"
    )
    long = b"1," + b"x" * 200_000 + b",\n"
    assert report(long, spec=spec).count == 0
    found = report(long + b"1\n" + b"2,a\rb,\n", spec=spec)
    assert sorted(found.lines) == [
        "1 fields, not 3",
        "a carriage return, which ends a line for the engines",
    ]
    check_sample(spec, long, "here")
    check_sample(spec, b"1,a\rb,\n1,2,3\n", "here")


@pytest.mark.parametrize("text", ["20260102", "2026-W01-5", "2026-02-30"])
def test_sample_of_dates_that_no_engine_reads_is_refused(text):
    spec = parse_table_spec(
        "{name: a.b, selector: name=x, format: json, columns: [{name: day, type: date}]}"
    )
    check_sample(spec, b'{"day": "2026-01-02"}\n', "here")
    with pytest.raises(SchemaMismatch, match="column day is date, but here has values such as"):
        check_sample(spec, b'{"day": "%s"}\n' % text.encode(), "here")


def test_kinds_of_lines_are_bounded():
    content = b"".join(b"," * width + b"\n" for width in range(2, 3000))
    found = report(content, spec=PAIR)
    assert len(found.lines) == 2001
    assert found.count == 2998
