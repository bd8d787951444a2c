"""What engines read where a value or line is not as its column wants it: cases, and their table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, final

from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.raw.audits.fit import value_scanner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.lake.spec.table_spec import TableSpec

__all__ = [
    "LINES",
    "RECORDS",
    "SHAPES",
    "VALUES",
    "WHOLE_SHAPES",
    "Difference",
    "LineCase",
    "Shape",
    "ValueCase",
    "are_alike",
    "canonical",
    "line_table",
    "shape_table",
    "shown",
    "spec_of",
    "value_table",
]


@final
@dataclass(frozen=True, slots=True)
class ValueCase:
    """A JSON value, as written, in a column of a type."""

    type: str
    raw: str

    @property
    def column(self) -> str:
        """The column's name: one a type."""
        return "c_" + "".join(c if c.isalnum() else "_" for c in self.type)

    @property
    def is_fit(self) -> bool:
        """Whether `fits_spec` takes it."""
        spec = parse_table_spec(
            f"{{name: a.b, selector: name=x, format: json, "
            f"columns: [{{name: c, type: '{self.type}'}}]}}"
        )
        scanner = value_scanner(spec)
        scanner.feed(f'{{"c":{self.raw}}}\n'.encode())
        return scanner.report().count == 0


def _cases(kind: str, *raws: str) -> list[ValueCase]:
    return [ValueCase(kind, raw) for raw in raws]


VALUES: list[ValueCase] = [
    *_cases(
        "string", '"text"', "12", "1.50", "-0", "1e3", "1E400", "true", '{"a":1}', '{"a": 1}', '["b"]',
        '{"u":"a/b"}', '{"u":"ä"}', r'{"u": "\u00e4\/\t"}', '[1.50, 1e3, -0, 1E400]', '{"b":1, "a":2}',
    ),
    *_cases("boolean", "true", "0", "1", '"true"', '"yes"', "{}", "[1]"),
    *_cases(
        "bigint", "5", "5.0", "5.7", "1e3", '"12"', '" 12"', '"0x1F"', '""', "true",
        "9223372036854775808", '{"value":6.1}', "[1]", "{}",
    ),
    *_cases("int", "5", "5.0", "2147483648", '"12"', "[]"),
    *_cases("smallint", "5", "5.0", "32768", '"12"'),
    *_cases("tinyint", "5", "300"),
    *_cases("double", "6", "6.1", '"6.1"', '"NaN"', "NaN", "-Infinity", "1e400", '"x"', "true", '{"value":6.1}', "[6.1]", "{}"),
    *_cases("float", "6.1", "1e39", '"6.1"', "{}"),
    *_cases("decimal(10,2)", "1.25", "7", "1.255", '"1.25"', "100000000", '"x"', "1e2"),
    *_cases(
        "date", '"2026-01-02"', "18263", '"2020-13-45"', '"2023-02-29"', '"2026-1-2"',
        '"2026-01-02T03:04:05"', '"2026-01-02 03:04:05"', '"1500-01-01"', '"0000-01-01"', '"x"',
    ),
    *_cases("array<int>", "[1,null]", '[1,"x"]', "[1.0]", "[[1]]", "1", '"x"', '""', "{}"),
    *_cases("array<string>", "[1.5,true]", '"a"'),
    *_cases("map<string,int>", '{"a":1}', '{"a":"x"}', '{"a":{}}', '""'),
    *_cases(
        "struct<a:int,bC:string>", '{"a":1,"bC":"x"}', '{"a":"x","bC":"y"}', '{"a":{},"bC":"y"}',
        '{"A":1,"bc":"x"}', '[1,"x"]', '""',
    ),
]  # fmt: skip

# Values of another shape than their column, beside good ones. Trino's reader fails at some of each column, so it
# reads the column as text.
SHAPES: list[ValueCase] = [
    *_cases(
        "map<string,int>", '{"a":1}', '{"a":1,"b":"x"}', '{"a":5.0,"b":null}', "null", "[]", '["a"]', "7", '"x"', '""',
    ),
    *_cases("map<string,string>", '{"a":"x","b":{"c": [1]},"d":1.50}', "[]"),
    *_cases(
        "struct<a:int,bC:string>", '{"a":1,"bC":"x"}', '{"a":"x","bC":{"c": 1}}', '{"A":1,"bc":"x"}', "{}", '[1,"x"]',
        "[]", "7", '"x"',
    ),
    *_cases("array<date>", '["2026-01-02",null]', '["2026-01-02",[]]', "[{}]", "{}", '"2026-01-02"'),
    *_cases(
        "array<struct<a:int,tags:array<string>>>", '[{"a":1,"tags":["x"]},{"a":2}]', '[{"a":1},7]', "7", '{"a":1}',
    ),
    *_cases("decimal(10,2)", "7.5", "1.255", "1e2", '{"value":6.1}'),
    *_cases("date", '"2026-01-02"', '"1500-01-01"', '"x"', "[]"),
    *_cases("smallint", "7", "40000", "[1]"),
]  # fmt: skip
# The same of types that Trino takes from text in Hive partitions; in a table without any, a column is text for these.
WHOLE_SHAPES: list[ValueCase] = [
    *_cases("bigint", "5", "5.0", '"12"', "[1]"),
    *_cases("int", "5", "2147483648", "{}"),
    *_cases("double", "6", "1e400", '"NaN"', "[6.1]"),
    *_cases("float", "6.1", "{}"),
    *_cases("array<int>", "[1,null]", "[[1]]"),
    *_cases("map<string,int>", '{"a":1}', "[]"),
]  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class LineCase:
    """A line of a table with columns n (bigint) and Text (string), or two of one file."""

    line: bytes

    def is_fit(self, spec: TableSpec) -> bool:
        """Whether `fits_spec` takes it."""
        scanner = value_scanner(spec)
        scanner.feed(self.line + b"\n")
        return scanner.report().count == 0


LINES = [
    LineCase(line)
    for line in (
        b'{"n":1,"Text":"a"}',
        b'{"n":1,"Text":"a"}\r',
        b'{"N":1,"text":"a"}',
        b'{"n":1,"N":2,"Text":"a"}',
        b'{"n":1,"n":2}',
        b"",
        b"  ",
        b"nope",
        b'{"n":1',
        b'{"n":1} {"n":2}',
        b'{"n":1} rest',
        b"{'n':1}",
        b'{"n":NaN}',
        b'{"n":NaN,"Text":"a"}',
        b'{"n":1,"Text":NaN}',
        b'{"n":1,"other":[NaN,-Infinity],"Text":"a"}',
        b"[1]",
        b'[{"n":1},{"n":2}]',
        b"12",
        b'\xef\xbb\xbf{"n":1}',
        b'{"n":0}\n\xef\xbb\xbf{"n":1}',
        b'{"n":1,"Text":00.5}',
        b'{"Text":00.5,"n":1}',
        b'{"n":1,"other":00.5,"Text":"a"}',
        b'{"n":1,"other":+5,"Text":"a"}',
        b'{"n":1,"other":.5,"Text":"a"}',
        b'{"n":1,"other":5.,"Text":"a"}',
        b'{"n":1,"other":tru,"Text":"a"}',
        b'{"n":1,"Text":"a",}',
        b'{"n":1 "Text":"a"}',
        b'{"n":"x","Text":"a"}',
        b'{"n":1,"Text":"a\tb"}',
        b'{"n":1,"Text":"\xff"}',
        b'{"n":1,\r"Text":"a"}',
    )
]

# CSV, with columns a and b.
RECORDS = [
    LineCase(line)
    for line in (
        b"1,x",
        b'1,"x, y"',
        b'1,"say ""hi"""',
        b"1,C:\\temp",
        b'1,"C:\\"',
        b'"1","x"\r',
        b"1,",
        b'1,""',
        b",",
        b" 1 , x ",
        b"1",
        b"1,2,3",
        b"",
        b"a,b",
        b'1, "x"',
        b'1,x"y"z',
        b'"1"2,x',
        b'1,"x',
        b"1,x\x01y",
    )
]


def spec_of(cases: Sequence[ValueCase], name: str, *, partitions: str = "") -> TableSpec:
    """A table with a column for each type of the cases, besides ``n``, which numbers them."""
    columns = {case.column: case.type for case in cases}
    listed = ", ".join(f"{{name: {c}, type: '{t}'}}" for c, t in columns.items())
    return parse_table_spec(
        f"{{name: engines.{name}, selector: 'name:prefix={name}/', format: json, "
        f"columns: [{{name: n, type: string}}, {listed}]{partitions}}}"
    )


def shown(value: Any, kind: str = "") -> str:
    """A value of an engine, alike for both.

    Args:
        value: as the engine's client gives it.
        kind: the column's type.
    """
    if kind == "float" and value is not None:
        return f"{value:g}"  # Spark's client gives the nearest double
    if kind == "date":
        return "NULL" if value is None else str(value)  # as text: Python has no year 0
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case date() | Decimal():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in sorted(value.items())) + "}"
        case tuple():
            return "(" + ", ".join(map(shown, value)) + ")"
        case list():
            return "[" + ", ".join(map(shown, value)) + "]"
        case _:
            return str(value)


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """What the engines read of a case, and whether it fits."""

    case: ValueCase | LineCase
    trino: str
    spark: str
    is_fit: bool

    @property
    def are_alike(self) -> bool:
        """Whether the engines give the same value; texts of JSON values need only be the same JSON."""
        return self.trino == self.spark or (
            isinstance(self.case, ValueCase)
            and self.case.type == "string"
            and canonical(self.trino) == canonical(self.spark)
        )


def canonical(text: str) -> object:
    """The JSON value that a shown text holds, if it does; its numbers are exact."""
    try:
        return json.loads(json.loads(text), parse_int=Decimal, parse_float=Decimal)
    except (TypeError, ValueError):
        return text


def are_alike(one: Any, other: Any) -> bool:
    """Whether two values of engines are the same, where texts need only be the same JSON."""
    match one, other:
        case (str(), str()):
            return canonical(json.dumps(one)) == canonical(json.dumps(other))
        case (dict(), dict()):
            return one.keys() == other.keys() and all(are_alike(one[k], other[k]) for k in one)
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(map(are_alike, one, other))
        case (float(), float()):
            return shown(one, "float") == shown(other, "float")
        case _:
            return bool(one == other)


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """What engines read of a value in a column that Trino reads as text."""

    case: ValueCase
    trino: Any
    view: Any
    spark: Any


def shape_table(found: Sequence[Shape]) -> str:
    """The table of values of other shapes, in Markdown."""
    lines = [
        "| type | value in the file | Trino, the table | Trino, `_exact` | Spark | |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        read = (shown(value, one.case.type) for value in (one.trino, one.view, one.spark))
        cells = [one.case.type, one.case.raw, *read]
        lines.append(f"| {' | '.join(map(_code, cells))} | {'' if one.case.is_fit else 'unfit'} |")
    return "\n".join(lines)


def value_table(found: Sequence[Difference]) -> str:
    """The table of values, in Markdown."""
    lines = ["| type | value in the file | Trino | Spark | |", "|---|---|---|---|---|"]
    for one in found:
        assert isinstance(one.case, ValueCase)
        cells = [one.case.type, one.case.raw, one.trino, one.spark]
        lines.append(f"| {' | '.join(map(_code, cells))} | {'' if one.is_fit else 'unfit'} |")
    return "\n".join(lines)


def line_table(found: Sequence[Difference]) -> str:
    """The table of lines, in Markdown."""
    lines = ["| line | rows in Trino | rows in Spark | |", "|---|---|---|---|"]
    for one in found:
        assert isinstance(one.case, LineCase)
        text = repr(one.case.line)[2:-1].replace("\\\\", "\\") or "(empty)"
        cells = [text, one.trino, one.spark]
        lines.append(f"| {' | '.join(map(_code, cells))} | {'' if one.is_fit else 'unfit'} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text.strip() else "` `"
