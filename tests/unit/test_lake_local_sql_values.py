"""Where Trino and Spark agree on a value or line, as the page says, SQL in this process gives the same."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from value_cases import LINES, RECORDS, VALUES, shown

from gazette_platform.lake.reading.raw_rows import row_parser
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.types import parse_type

# It knows JSON as it is defined: no single quotes.
OTHERS = {b"{'n':1}"}
PAGE = Path(__file__).parents[2] / "docs/reference/table-spec.md"


def told(mark, cases):
    """Cases on which engines agree, each with what they read."""
    section = PAGE.read_text("utf-8").split(f"<!-- {mark}: as read by the engines -->\n")[1]
    rows = section.split("\n<!-- end -->")[0].splitlines()[2:]
    cells = [re.findall(r"`([^`]*)`", row)[-2:] for row in rows]
    assert len(cells) == len(cases)
    return [
        (case, trino)
        for case, (trino, spark) in zip(cases, cells, strict=True)
        if trino == spark and "), (" not in trino and getattr(case, "line", b"") not in OTHERS
    ]


def spec_of(data_format, **columns):
    listed = ", ".join(f"{{name: {name}, type: '{kind}'}}" for name, kind in columns.items())
    return parse_table_spec(
        f"{{name: a.b, selector: name=x, format: {data_format}, columns: [{listed}]}}"
    )


def as_engines_have_it(value, kind):
    """A value of Arrow as those of the engines' clients."""
    match kind.name:
        case "struct" if value is not None:
            return tuple(value[name] for name in kind.field_names)
        case "map" if value is not None:
            return dict(value)
        case _:
            return value


def read(spec, line, beside=b""):
    """The row of the first line, with another line after it or not."""
    names = [column.name for column in spec.columns]
    columns = row_parser(spec).columns(line + b"\n" + beside, names)
    return [
        (column.cast(pa.string()) if column.type == pa.date32() else column).to_pylist()[0]
        for column in columns  # Python has no year 0
    ]


@pytest.mark.parametrize(
    "case", told("values", VALUES), ids=lambda each: f"{each[0].type} {each[0].raw}"
)
@pytest.mark.parametrize("beside", [b"", b"nope\n"], ids=["alone", "beside"])
def test_values(case, beside):
    one, expected = case
    (value,) = read(spec_of("json", v=one.type), f'{{"v":{one.raw}}}'.encode(), beside)
    assert shown(as_engines_have_it(value, parse_type(one.type)), one.type) == expected


@pytest.mark.parametrize("case", told("lines", LINES), ids=lambda each: repr(each[0].line))
def test_lines(case):
    one, expected = case
    row = read(spec_of("json", n="bigint", Text="string"), one.line)
    assert shown(tuple(row)) == expected


@pytest.mark.parametrize("case", told("records", RECORDS), ids=lambda each: repr(each[0].line))
def test_records(case):
    one, expected = case
    row = read(spec_of("csv", a="string", b="string"), one.line)
    assert shown(tuple(row)) == expected


@pytest.mark.parametrize("beside", [b"", b"nope\n"], ids=["alone", "beside"])
def test_answers_do_not_depend_on_the_columns_asked(beside):
    for spec, cases in (
        (spec_of("json", n="bigint", Text="string"), LINES),
        (spec_of("csv", a="string", b="string"), RECORDS),
    ):
        parser = row_parser(spec)
        names = [column.name for column in spec.columns]
        for case in cases:
            content = case.line + b"\n" + beside
            whole = parser.columns(content, names)
            assert [parser.columns(content, [name])[0] for name in names] == whole, case
