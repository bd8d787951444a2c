"""Readers of JSON lines as columns: each line is read as if it were alone, by whichever reader."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from value_cases import LINES, VALUES

from gazette_platform.errors import DataError
from gazette_platform.lake.reading.arrow_types import RefusedError
from gazette_platform.lake.reading.json_columns import Field, JsonReader, ScalarReader, is_scalar
from gazette_platform.lake.reading.raw_rows import row_parser
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.spec.types import parse_type
from gazette_platform.message.arrow_parsers import DEPTH_MAX, check_depth

KINDS = sorted({case.type for case in VALUES} | {"map<string,double>", "array<date>"})
SCALARS = [kind for kind in KINDS if is_scalar(parse_type(kind))]
RAWS = [
    *sorted({case.raw for case in VALUES}), '"Inf: NaN"', "Inf", "-NaN", "[1, -Infinity]", "-0", "01", '"\\ud800"', '"\\u0000"', '"é"', "1e-400",
]  # fmt: skip
records = st.dictionaries(st.sampled_from("vwx"), st.sampled_from(RAWS)).map(
    lambda found: "{{{}}}".format(",".join(f'"{k}":{v}' for k, v in found.items())).encode()
)
odd = st.sampled_from([*(case.line for case in LINES), b'{"v":1,"v":2}', b'{"\\u0076":1}', b"{}{}"])
lines = st.lists(st.one_of(records, records, odd), min_size=1, max_size=8)


def spec_of(v, w):
    return parse_table_spec(
        "{name: a.b, selector: name=x, format: json, "
        f"columns: [{{name: v, type: '{v}'}}, {{name: w, type: '{w}'}}]}}"
    )


def texts(arrays):
    """Comparable values; Python has neither a year 0 nor a NaN that equals another one."""
    return [
        array.to_string() if "date" in str(array.type) else repr(array.to_pylist())
        for array in arrays
    ]


@given(lines, st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_raw_line_is_the_same_row_alone_and_among_others(found, v, w):
    parser = row_parser(spec_of(v, w))
    content = b"".join(line + b"\n" for line in found)
    whole = parser.columns(content, ["v", "w"])
    alone = [parser.columns(line + b"\n", ["v", "w"]) for line in content.split(b"\n")[:-1]]
    assert [len(column) for column in whole] == [len(alone)] * 2
    for at, column in enumerate(whole):
        column.validate(full=True)
        rows = [texts([column.slice(index, 1)]) for index in range(len(column))]
        assert rows == [texts([row[at]]) for row in alone]
    assert texts(parser.columns(content, ["w"])) == texts(whole[1:])


@given(lines, st.sampled_from(SCALARS), st.sampled_from(SCALARS))
def test_both_readers_agree_on_lines_that_both_take(found, v, w):
    kinds = {"v": parse_type(v), "w": parse_type(w)}
    content = b"".join(line + b"\n" for line in found)
    if b"-0" in content or b"Inf" in content or b"NaN" in content:
        return  # `raw_rows` gives neither of them such numbers
    try:
        quick = ScalarReader(kinds).read(content)
        found_by_arrow = JsonReader({key: Field(kind) for key, kind in kinds.items()}).read(content)
    except RefusedError:
        return
    assert texts(quick) == texts(found_by_arrow.arrays.values())


@pytest.mark.parametrize(("depth", "is_refused"), [(DEPTH_MAX, False), (DEPTH_MAX + 1, True)])
@pytest.mark.parametrize("before", [b"", b"{}\n" * 1000, b'{"a":"' + b"x" * 3000 + b'"}\n'])
def test_depth_is_checked_wherever_the_line_is(depth, is_refused, before):
    content = before + b"[" * depth + b"]" * depth + b"\n{}\n"
    if is_refused:
        with pytest.raises(DataError, match="goes too deep"):
            check_depth(content)
    else:
        check_depth(content)
    check_depth(json.dumps(["[" * 5000]).encode())


def test_arrays_have_the_types_that_were_asked_for():
    for kind in SCALARS:
        (array,) = ScalarReader({"v": parse_type(kind)}).read(b'{"v":null}\n')
        assert (array.to_pylist(), array.null_count) == ([None], 1)
        assert isinstance(array.type, pa.DataType)
