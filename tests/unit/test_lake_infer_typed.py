"""Sections `typed:` out of samples: what is proposed of each mess, and that it fits what was seen."""

import json
from uuid import uuid1, uuid4

import pytest
from hypothesis import given, strategies as st

from gazette_platform.lake.inference.infer import infer_spec
from gazette_platform.lake.inference.profile import Profile, Profiler
from gazette_platform.lake.spec.table_spec import parse_table_spec
from gazette_platform.lake.typed.rows.parsing import BlockParser
from gazette_platform.message.uuid import Flags, build_uuid, clock_of

CLOCK = clock_of(1_760_000_000_000_000_000)
PRODUCER = bytes.fromhex("070203040506")


def message_uuid(number=0, flags=Flags.OUTSIDE_TXN):
    return str(build_uuid(PRODUCER, CLOCK + number * 160, flags))


def inferred(*records, name="shop.orders"):
    lines = [json.dumps(r).encode() for r in records]
    return infer_spec(name, "name:prefix=orders/", lines, is_typed=True)


def types_of(*records):
    return {c.name: c.type for c in inferred(*records).spec.typed.columns}


# Of version 4, and the same in each process: it names a test.
RANDOM = "721b6513-58d5-4b72-9379-43fcdb76197b"


@pytest.mark.parametrize(
    ("values", "expected", "why"),
    [
        ([1, None], "bigint", ""),
        (["2026-01-02"], "date", ""),
        (["2026-01-02T03:04:05Z", None], "timestamptz", "times with a zone"),
        (
            ["2026-01-02T03:04:05.123456+02:00", "2026-01-02"],
            "timestamptz",
            "1 of 2 without a zone",
        ),
        (["2026-01-02 03:04", "2026-01-02T03:04:05.1"], "timestamp", "times without a zone"),
        (["2026-01-02T03:04:05Z", "soon"], "string", ""),
        (
            ["2026-01-02t03:04:05.123456000z"],
            "timestamptz",
            "times with a zone\n    - {name: v, type: timestamptz}",
        ),
        (
            ["2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05Z"],
            "timestamptz",
            "times with a zone; digits beyond microseconds are cut off\n    - {name: v, type: timestamptz, truncate: true}",
        ),
        (
            [{"at": ["2026-01-02T03:04:05.1234567"]}],
            "struct<at:array<timestamp>>",
            "truncate: true}",
        ),
        (["2026-01-02T03:04:05 Europe/Berlin"], "string", ""),
        ([str(uuid4()), str(uuid4())], "uuid", "UUIDs"),
        ([str(uuid4()), "x"], "string", ""),
        # What a row has as `_uuid` anyway.
        ([message_uuid()], "string", ""),
        (["a", 1], "json", "not only texts (1 integer)"),
        (
            ["186.81", 2],
            "json",
            "takes longer; if all texts are numbers in quotes, `decimal(p,s)` reads",
        ),
        ([{"a": 1}, [1]], "json", "not only texts (1 array, 1 object)"),
        ([None], "string", ""),
        ([["2026-01-02T03:04:05Z"], []], "array<timestamptz>", "times with a zone"),
        (
            [{"at": "2026-01-02T03:04:05Z", "n": 1}],
            "struct<at:timestamptz,n:bigint>",
            "with a zone",
        ),
        ([{"a b": "2026-01-02T03:04:05Z"}], "map<string,timestamptz>", "with a zone"),
    ],
)
def test_types_of_what_was_seen(values, expected, why):
    found = inferred(*[{"v": value} for value in values])
    (column,) = found.spec.typed.columns
    assert column.type == expected
    assert why in found.text
    assert parse_table_spec(found.text) == found.spec
    # And so it says nothing of a column that is as the raw one.
    assert ("- {name: v, type" in found.text.partition("typed:")[2]) == (bool(why))


def test_where_messages_have_their_uuid():
    plain = [{"_meta": {"uuid": message_uuid(n)}, "n": n} for n in range(3)]
    found = inferred(*plain, {"n": 4})
    assert found.spec.typed.uuid == ("_meta", "uuid")
    assert "# 3 of 4 records have a message's UUID there\n  uuid: _meta.uuid\n" in found.text
    assert inferred({"id": message_uuid()}).spec.typed.uuid == ("id",)
    # Of two, the one that more records have; of equals, the usual place.
    both = [{"id": message_uuid(n), "_meta": {"uuid": message_uuid(n)}} for n in range(3)]
    assert inferred(*both).spec.typed.uuid == ("_meta", "uuid")
    assert inferred(*both, {"id": message_uuid(9)}).spec.typed.uuid == ("id",)
    # ACKs hold nothing else.
    acks = {"_meta": {"uuid": message_uuid(5, Flags.ACK_TXN)}}
    assert inferred(*plain, acks).spec.typed.uuid == ("_meta", "uuid")


@pytest.mark.parametrize(
    "value",
    [RANDOM, str(build_uuid(PRODUCER, CLOCK, 7)), "x", 1, None, {"a.b": message_uuid()}],
)
def test_other_values_are_not_taken_for_message_uuids(value):
    found = inferred({"id": value}, {"id": value})
    assert found.spec.typed.uuid == ()
    assert "uuid: none" in found.text
    assert any("appended twice" in remark for remark in found.remarks)


def test_uuids_of_others_are_seen_by_their_flags():
    """Version 1 has 14 random bits where messages have four of the clock and the flags."""
    found = inferred(*[{"id": str(uuid1(node=1, clock_seq=n * 611 % 16384))} for n in range(1, 30)])
    assert found.spec.typed.uuid == ()


def test_names_of_system_columns_are_given_to_them():
    found = inferred({"_end": 1, "end": 2, "_UUID": "x"})
    assert {c.name: c.key for c in found.spec.typed.columns} == {
        "end_2": "_end",
        "end": "end",
        "UUID": "_UUID",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shop.orders", "typed.orders"),
        ("typed.orders", "typed.orders_typed"),
        (f"shop.{'o' * 127}", f"typed.{'o' * 94}_typed"),
    ],
)
def test_names_of_tables(name, expected):
    assert inferred({"a": 1}, name=name).spec.typed.name == expected


def test_a_partition_is_shown_and_not_taken():
    found = inferred({"at": "2026-01-02T03:04:05Z"})
    assert found.spec.typed.partitions == ()
    assert "# If it is large, and asked by time: partitions: [day(at)]" in found.text


def test_what_would_be_set_aside_is_reported():
    found = inferred({"at": "2026-01-02T03:04:05Z"}, {"at": "2026-02-31T03:04:05Z"})
    (remark,) = [r for r in found.remarks if "quarantine" in r]
    assert remark.startswith("1 of 2 records would go to quarantine, no rows of typed.orders: at: ")


def test_tables_of_csv_have_none():
    found = infer_spec("a.b", "name=a", [b"1,2"], is_typed=True)
    assert found.spec.typed is None
    assert "made of JSON records" in found.remarks[-1]


def test_nothing_is_proposed_unless_asked_for():
    assert infer_spec("a.b", "name=a", [b'{"a":1}']).spec.typed is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text("ab é", max_size=3)
    | st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02 03:04", "2026-01-02", message_uuid(), str(uuid4())])
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b", "_end", "x y"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4), min_size=1, max_size=6))
def test_records_that_were_seen_fit_what_is_proposed(records):
    if not any(records):
        return
    found = inferred(*records)
    lines = [json.dumps(record).encode() for record in records]
    bad = BlockParser(found.spec.typed).parse(0, b"".join(line + b"\n" for line in lines)).bad
    assert bad == ()
    assert not any("quarantine" in remark for remark in found.remarks)


def test_profiles_of_several_places_add_up():
    profiler = Profiler()
    profiler.add(
        {"a": message_uuid(), "b": str(uuid4()), "c": "2026-01-02T03:04Z", "d": "2026-01-02"}
    )
    total = Profile()
    for each in profiler.records.fields.values():
        total.absorb(each)
    assert (total.uuids, total.message_uuids, total.instants, total.zoned) == (2, 1, 2, 1)
