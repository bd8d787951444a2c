"""Specs out of samples: what of each mess is inferred, and that it fits what was seen."""

import csv
import io
import json

import pytest
from hypothesis import given, settings, strategies as st
from journal_specs import journal_spec

from gazette_platform.errors import LakeError, SchemaMismatch
from gazette_platform.lake.inference.infer import infer_spec
from gazette_platform.lake.raw.applying_specs import problems_with_data
from gazette_platform.lake.reading.sample_check import check_sample
from gazette_platform.lake.reading.scanners import JsonScanner
from gazette_platform.lake.spec.rules import COLUMNS_MAX
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.protocol import CompressionCodec

NAME, SELECTOR = "shop.orders", "name:prefix=orders/"
INTO_HOURS = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}'


def journal(name="orders/region=eu", template=""):
    return journal_spec(name, codec=CompressionCodec.GZIP, refresh_s=60, postfix=template)


def inferred(*records, journals=()):
    return infer_spec(NAME, SELECTOR, [json.dumps(r).encode() for r in records], journals)


def types_of(*records):
    return {c.name: c.type for c in inferred(*records).columns}


@pytest.mark.parametrize(
    ("values", "expected", "remark"),
    [
        ([1, -5, None], "bigint", None),
        ([2**63 - 1, -(2**63)], "bigint", None),
        ([2**63], "decimal(38,0)", "beyond 64 bits"),
        ([2**70, 1], "decimal(38,0)", "beyond 64 bits"),
        ([10**38], "string", "beyond 64 bits"),
        ([10**200], "string", "beyond 64 bits"),
        ([1, 1.5], "double", None),
        ([2**53 + 1, 0.5], "double", "rounded"),
        ([5.0], "double", None),
        ([True, None], "boolean", None),
        ([True, 1], "string", "mixed: 1 boolean (e.g. true), 1 integer (e.g. 1)"),
        (["2026-01-02", None], "date", None),
        (["2026-01-02", "soon"], "string", "1 of 2 texts are not dates"),
        (["2026-02-30"], "string", None),
        (["2026-W01-5"], "string", None),
        (["20260102"], "string", "numbers written as text"),
        (["2026-01-02T03:04:05Z"], "string", "times"),
        (["12", "-1.5e3"], "string", "numbers written as text"),
        ([None, None], "string", "only null was seen"),
        ([[1, 2], []], "array<bigint>", None),
        ([[1, "a"]], "array<string>", "mixed"),
        ([[]], "array<string>", "only empty arrays"),
        ([[None]], "array<string>", "only null"),
        ([[[1.5]]], "array<array<double>>", None),
        ([{"a": 1}, {"b": [True]}], "struct<a:bigint,b:array<boolean>>", None),
        ([{"a b": 1, "c": None}], "map<string,bigint>", "'a b' is not an SQL name"),
        ([{"a": 1, "Größe": 2}], "map<string,bigint>", "kept as a map: the key 'Größe' is not"),
        ([{"a": 1, "A": 2}], "map<string,bigint>", "'a' and 'A' differ in case only"),
        ([{"Osv": 1, "osv": "x"}], "string", "JSON text: the keys 'Osv' and 'osv' differ in case"),
        ([{"a b": 1, "c": "x"}], "string", "kept as JSON text: the key 'a b'"),
        (
            [{f"k{n}": [n] for n in range(500)}],
            "string",
            "it has 500 keys, and a struct at most 400",
        ),
        ([{f"k{n}": n for n in range(100)}], "map<string,bigint>", "100 keys"),
        ([{}], "map<string,string>", "only empty objects"),
        ([{"value": 6.1}, 6.1], "string", "mixed"),
        ([[[[[[[[[[[1]]]]]]]]]]], "array<" * 10 + "bigint" + ">" * 10, None),
        ([[[[[[[[[[[[[[[1]]]]]]]]]]]]]]], None, "deeper than is looked at"),
    ],
)
def test_the_narrowest_type_that_holds_all(values, expected, remark):
    (column,) = inferred(*({"v": value} for value in values)).columns
    if expected is not None:
        assert column.type == expected
    told = " ".join(column.remarks)
    assert (remark in told) if remark else told == ""


def test_integer_of_thousands_of_digits_is_not_a_number():
    found = infer_spec(NAME, SELECTOR, [b'{"v": ' + b"3" * 5000 + b"}", b'{"v": 1}'])
    assert [c.type for c in found.columns] == ["bigint"]
    assert (found.records, len(found.unread)) == (1, 1)


def test_there_are_at_most_so_many_columns():
    found = inferred({f"k{n}": n for n in range(COLUMNS_MAX + 5)}, {"k2004": 1})
    assert len(found.columns) == COLUMNS_MAX
    assert "k2004" in [c.name for c in found.columns]
    assert "the rarer are left out" in " ".join(found.remarks)


def test_keys_become_columns():
    found = inferred(
        {
            "order id": 1,
            "unit.price": 2,
            "2nd": 3,
            "no": 4,
            "Größe": 5,
            "…": 6,
            "prénom": 6,
            "x-y": 7,
            "x_y": 8,
        }
    )
    assert [(c.name, c.key) for c in found.columns] == [
        ("order_id", "order id"),
        ("unit_price", "unit.price"),
        ("_2nd", "2nd"),
        ("no", "no"),
        ("grosse", "Größe"),
        ("column", "…"),
        ("prenom", "prénom"),
        ("x_y_2", "x-y"),
        ("x_y", "x_y"),
    ]
    assert [(c.name, c.key) for c in found.spec.columns] == [(c.name, c.key) for c in found.columns]


def test_a_renamed_column_is_called_like_no_field_of_a_struct():
    assert list(types_of({"a b": 1, "s": {"A_B": 1}})) == ["a_b_2", "s"]


def test_keys_that_no_engine_distinguishes_are_left_out_and_reported():
    found = inferred({"ID": 1, "": 2, "a\tb": 3}, {"ID": 2, "id": 4})
    assert [c.key for c in found.columns] == ["ID"]
    told = " ".join(found.remarks)
    assert "keys 'id' and 'ID' differ in case only" in told
    assert "left out: '', 'a\\tb'" in told


def test_partition_columns_are_typed_and_kept_apart_from_data():
    found = inferred({"hour": 5, "a": 1}, journals=[journal(template=INTO_HOURS)])
    assert [(p.name, p.column, p.type) for p in found.spec.partitions] == [
        ("date", "date", "date"),
        ("hour", "fragment_hour", "int"),
    ]
    assert "called fragment_hour" in " ".join(found.remarks)
    # A key of records that is spelled otherwise, but is Spark's name of the column, counts, too.
    found = inferred({"fragment_hour": 1, "hour": 2}, journals=[journal(template=INTO_HOURS)])
    assert found.spec.partitions[1].column == "fragment_hour_2"


def test_a_key_that_is_not_a_time_in_every_journal_is_a_string():
    other = journal("orders/region=us", 'date={{ .Spool.FirstAppendTime.Format "20060102" }}')
    one = journal(template='date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}')
    assert inferred({"a": 1}, journals=[one, other]).spec.partitions == ()
    assert [p.type for p in inferred({"a": 1}, journals=[one]).spec.partitions] == ["date"]


def test_journals_without_a_common_layout_are_refused():
    with pytest.raises(LakeError, match="differ in segment 2"):
        inferred({"a": 1}, journals=[journal("orders/eu"), journal("orders/us")])


def test_invalid_record_is_reported_and_does_not_matter():
    lines = [b"", b'{"a": 1}', b"  ", b"[1, 2]", b"oops", b'{"a": 2}', b'{"a": 3']
    found = infer_spec(NAME, SELECTOR, [*lines, b'{"a": 4}'])
    assert found.records == 3
    assert found.unread == [b"[1, 2]", b"oops", b'{"a": 3']
    assert found.remarks[0].startswith("3 lines are not JSON objects")


def test_a_record_behind_a_byte_order_mark_counts_as_engines_read_it():
    found = infer_spec(NAME, SELECTOR, [b'\xef\xbb\xbf{"a": 1, "b": "x"}', b'{"a": 2}'])
    assert (found.records, found.unread) == (2, [])
    assert {column.name: column.type for column in found.columns} == {"a": "bigint", "b": "string"}
    assert found.remarks[0].startswith("1 lines begin with a byte order mark")


def test_the_report_counts_what_was_seen():
    (column, _) = inferred({"a": 1, "b": 1}, {"a": None, "b": 2}, {"b": 3}).columns
    assert (column.seen, column.nulls, column.missing) == (1, 1, 1)
    assert column.kinds == {"integer": 1}


@pytest.mark.parametrize("lines", [[], [b"", b"  "]])
def test_nothing_to_infer_from(lines):
    with pytest.raises(SchemaMismatch, match="append some records first"):
        infer_spec(NAME, SELECTOR, lines)


def test_neither_json_nor_csv():
    with pytest.raises(SchemaMismatch, match="neither JSON objects nor have they several fields"):
        infer_spec(NAME, SELECTOR, [b"plain", b"text"])
    with pytest.raises(SchemaMismatch, match="no line is a JSON object"):
        infer_spec(NAME, SELECTOR, [b"1,2"], data_format="json")


def test_csv_with_quotes_and_other_widths():
    lines = [b'1,"a, b",2026-01-02\r', b'2,"say ""x""",', b"short", b""]
    found = infer_spec(NAME, SELECTOR, lines)
    assert found.spec.format == "csv"
    assert [(c.name, c.type) for c in found.spec.columns] == [
        ("c1", "string"),
        ("c2", "string"),
        ("c3", "string"),
    ]
    assert "1 of 3 lines do not have 3 fields" in found.remarks


def test_csv_with_a_line_of_names():
    found = infer_spec(NAME, SELECTOR, [b"Order id,Name", b"1,x", b"2,y"])
    assert [c.name for c in found.spec.columns] == ["order_id", "name"]
    assert "rows that name the columns are header rows" in " ".join(found.remarks)


def test_csv_of_several_lines_a_record_is_reported():
    found = infer_spec(NAME, SELECTOR, [b'1,"a', b'b"', b"2,c"])
    assert "read each line as a row; append its rows as JSON lines (`gazctl sql" in " ".join(
        found.remarks
    )


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.dates().map(str)
    | st.sampled_from(["n/a", "12", "2026-01-02T00:00:00Z"])
)
KEYS = st.text(max_size=6) | st.sampled_from(
    ["a", "A", "b", "order id", "x.y", "x_y", "x-y", "no", "on", "date", "hour", "1st", "ß", "`"]
)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3), max_leaves=6
)
RECORDS = st.lists(st.dictionaries(KEYS, VALUES, max_size=5), min_size=1, max_size=8)


@settings(max_examples=40)
@given(RECORDS, st.lists(st.sampled_from([b"", b" ", b"oops", b"[1]", b'{"a":']), max_size=2))
def test_what_is_inferred_is_accepted_and_fits_every_record(records, others):
    lines = [json.dumps(record).encode() for record in records]
    try:
        found = infer_spec(
            NAME, SELECTOR, [*lines, *others], [journal(template=INTO_HOURS)], data_format="json"
        )
    except SchemaMismatch as err:
        assert "no record has a key that can be a column" in str(err)  # noqa: PT017
        return
    assert parse_table_spec(found.text) == found.spec
    assert problems_with_data(found.spec, [("all", b"\n".join(lines))]) == []
    keys = {c.key for c in found.spec.columns}
    for record, line in zip(records, lines, strict=True):
        if keys & set(record):
            check_sample(found.spec, line, "this record alone")
    assert unfit(JsonScanner(found.spec), lines).columns == {}


# Backslashes mean different things to readers of CSV.
FIELDS = st.text(st.characters(exclude_characters="\\\r\n\0", codec="utf-8"), max_size=6)


@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(FIELDS, min_size=n, max_size=n), min_size=1, max_size=5)
    )
)
def test_what_is_inferred_of_csv_is_accepted_and_fits(rows):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    content = text.getvalue().encode()
    found = infer_spec(NAME, SELECTOR, content.split(b"\n"), data_format="csv")
    assert parse_table_spec(found.text) == found.spec
    assert len(found.spec.columns) == len(rows[0])
    check_sample(found.spec, content, "this file")


def unfit(scanner, lines):
    scanner.feed(b"".join(line + b"\n" for line in lines))
    return scanner.report()


@given(
    st.lists(
        st.sampled_from(
            [None, 1, 2.5, True, 2**64, "x", "2026-01-02", [1], [2.5], {"a": 1}, {"a": None}]
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_value_fits_what_is_inferred(values):
    lines = [json.dumps({"v": value}).encode() for value in values]
    found = infer_spec(NAME, SELECTOR, lines)
    assert unfit(JsonScanner(found.spec), lines).count == 0, found.text


@pytest.mark.parametrize("depth", [900, 1000, 1020])
def test_values_nested_as_deep_as_json_goes_are_inferred(depth):
    found = infer_spec(NAME, SELECTOR, [f'{{"v":{"[" * depth}{"]" * depth}}}'.encode(), b'{"v":1}'])
    assert [column.type for column in found.spec.columns] == ["string"]


def test_a_carriage_return_amid_a_line_of_csv_is_reported_and_hides_no_other():
    found = infer_spec(NAME, SELECTOR, [b"1,a\rb", b"2,c", b"3,d"], data_format="csv")
    assert len(found.spec.columns) == 2
    assert any(remark.startswith("1 lines have a carriage return") for remark in found.remarks)


def test_one_line_of_words_is_a_row_and_not_a_header():
    found = infer_spec(NAME, SELECTOR, [b"id,place\n"], data_format="csv")
    assert [column.name for column in found.columns] == ["c1", "c2"]


def test_of_keys_that_differ_in_case_the_one_with_most_values_is_a_column():
    found = inferred({"Id": 1}, {"id": 2, "Id": 3}, {"Id": 4})
    assert [column.key for column in found.columns] == ["Id"]
    assert "keys 'id' and 'Id' differ in case only" in found.remarks[0]


def test_a_key_whose_times_are_written_in_two_ways_is_a_string():
    templates = [f'day={{{{ .Spool.FirstAppendTime.Format "{f}" }}}}' for f in ("02", "2006-01-02")]
    for first, second in (templates, templates[::-1]):
        found = inferred({"v": 1}, journals=[journal(template=first), journal(template=second)])
        assert "type: date" not in found.text
        assert "type: int" not in found.text
