"""Blocks of journals as typed rows: values of all types, what fits and what does not, places, UUIDs and ACKs."""

import json
import time
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import TypedColumn
from gazette_platform.lake.typed.iceberg_types import arrow_schema, new_schema
from gazette_platform.lake.typed.rows.parsing import BlockParser
from gazette_platform.lake.typed.rows.placing import bad_rows, placed_rows
from gazette_platform.message import Flags, UuidParts
from gazette_platform.message.uuid import build_uuid

PRODUCER = b"\x01\x03\x05\x07\x09\x0b"
OUT, CONT, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN


def uuid_of(clock, flags=OUT):
    return str(build_uuid(PRODUCER, clock, flags))


def spec(*columns, path=("_meta", "uuid"), **more):
    made = []
    for text in columns:
        name, kind, *options = text.split(" ")
        told = dict(option.split("=") for option in options if "=" in option)
        made.append(
            TypedColumn(
                name=name,
                type=kind,
                key="" if "segment" in told else told.get("from", name),
                format=told.get("format", {"timestamptz": "iso", "binary": "base64"}.get(kind, "")),
                segment=told.get("segment", ""),
                truncate="truncate" in options,
                required="required" in options,
            )
        )
    return TypedSpec(name="typed.t", source="raw.t", uuid=path, columns=tuple(made), **more)


def parse(wanted, content, begin=0):
    parsed = BlockParser(wanted).parse(begin, content)
    # Whatever became of them: messages tile the block, and each is a row, bad, or an ACK.
    assert len(parsed.parts) == len(parsed.begins) == len(parsed.ends)
    assert parsed.ends.to_pylist()[-1:] == [begin + len(content)] * bool(content)
    assert parsed.begins.to_pylist()[1:] == parsed.ends.to_pylist()[:-1]
    good = list(range(len(parsed.parts))) if parsed.good is None else parsed.good.to_pylist()
    assert len(good) == parsed.rows.num_rows
    assert good == sorted(good)
    assert not {one.number for one in parsed.bad} & set(good)
    return parsed


def value(kind, text, **options):
    """The value of a column, of JSON text; `bad` and the reason, if it is set aside."""
    told = " ".join(f"{key}={of}" if of is not True else key for key, of in options.items())
    content = b'{"c":' + text.encode() + b"}\n"
    # Among others it has to be the same as alone: these two fit each type.
    rest = b'{"c":null}\n{}\n'
    wanted = spec(f"c {kind} {told}".strip(), path=())
    alone = parse(wanted, content)
    among = parse(wanted, rest + content + rest)
    assert len(among.bad) == len(alone.bad)
    if alone.bad:
        assert alone.bad[0].reason == among.bad[0].reason
        assert len(alone.bad[0].reason) <= 300
        return "bad", alone.bad[0].reason
    assert among.rows.column("c").to_pylist()[2] == alone.rows.column("c").to_pylist()[0]
    return alone.rows.column("c").to_pylist()[0]


GOOD = [
    ("string", '"a\\u0000b"', "a\0b"),
    ("string", "null", None),
    ("boolean", "true", True),
    ("int", "-2147483648", -(2**31)),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("bigint", "-0", 0),
    ("double", "9007199254740993", 9007199254740992.0),
    ("double", "1e3", 1000.0),
    ("float", "0.5", 0.5),
    ("decimal(10,2)", "1e2", Decimal("100.00")),
    ("decimal(10,2)", '"1.25"', Decimal("1.25")),
    ("date", '"2026-01-02"', date(2026, 1, 2)),
    ("timestamptz", '"2026-01-02T03:04:05+02:00"', datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ("timestamptz", '"2026-01-02 03:04:05"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("timestamptz", '"2026-01-02"', datetime(2026, 1, 2, tzinfo=UTC)),
    (
        "timestamptz",
        '"2026-01-02t03:04:05.123456000z"',
        datetime(2026, 1, 2, 3, 4, 5, 123_456, UTC),
    ),
    (
        "timestamptz",
        '"2026-01-02T03:04:05.1000000+01:00"',
        datetime(2026, 1, 2, 2, 4, 5, 100_000, UTC),
    ),
    ("timestamptz", '"2026-01-02 03:04:05.0000000"', datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ("timestamptz", '"2026-01-02T03:04-0130"', datetime(2026, 1, 2, 4, 34, tzinfo=UTC)),
    ("timestamptz", '"2026-01-02T03-01"', datetime(2026, 1, 2, 4, tzinfo=UTC)),
    ("timestamp", '"2026-01-02T03:04:05.5"', datetime(2026, 1, 2, 3, 4, 5, 500_000)),  # noqa: DTZ001
    ("timestamp", '"2026-01-02t03:04:05.5000000"', datetime(2026, 1, 2, 3, 4, 5, 500_000)),  # noqa: DTZ001
    (
        "array<timestamptz>",
        '["2026-01-02t00:00:00z",null]',
        [datetime(2026, 1, 2, tzinfo=UTC), None],
    ),
    ("map<string,timestamp>", '{"a":"2026-01-02t00:00:00"}', [("a", datetime(2026, 1, 2))]),  # noqa: DTZ001
    ("binary", '"/w=="', b"\xff"),
    ("uuid", '"00000000-0000-0000-0000-000000000007"', uuid.UUID(int=7)),
    ("array<string>", '["a",null]', ["a", None]),
    ("struct<zip:int>", '{"ZIP":1}', {"zip": None}),
    ("struct<at:timestamptz>", '{"at":"2026-01-02"}', {"at": datetime(2026, 1, 2, tzinfo=UTC)}),
    ("struct<of:binary>", '{"of":"YQ=="}', {"of": b"a"}),
    ("map<string,bigint>", '{"a":1,"b":null}', [("a", 1), ("b", None)]),
    ("json", '{"a": [1,  2]}', '{"a": [1,  2]}'),
    ("json", "12", "12"),
    ("json", '"12"', '"12"'),
]


@pytest.mark.parametrize(("kind", "text", "expected"), GOOD)
def test_what_fits_is_the_value(kind, text, expected):
    assert value(kind, text) == expected


BAD = [
    ("string", ["12", "true", "{}", '"\\ud800"', '"a\tb"']),
    ("boolean", ['"true"', "1"]),
    ("int", ["2147483648", "1.0", '"1"']),
    ("bigint", ["9223372036854775808", "5.0", "1e3", '"12"', "01", "[1]", "NaN"]),
    ("double", ["NaN", '"NaN"', "-Infinity", "1e400", '"6.1"']),
    ("float", ["1e39"]),
    ("decimal(10,2)", ["1.255", "100000000", "12345678901234567890.5", "{}"]),
    ("decimal(5,2)", ["1234"]),
    ("date", ['"2026-1-2"', '"2026-01-02T03:04:05Z"', '"2023-02-29"', "18263", '"0000-01-01"']),
    ("timestamptz", ['"2026-01-02T03:04:05.123456789Z"', '"2026-01-02T03:04:05.1234560001Z"', '"0000-01-02"', '"2026-02-30T00:00:00Z"', "1767323045", '""']),
    ("timestamp", ['"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05+00:00"']),
    ("binary", ['"x"', '"_w=="']),
    ("uuid", ['"7"', '"0000000000000000000000000000000000007"']),
    ("array<string>", ["[1]", '"x"']),
    ("struct<zip:int>", ['{"zip":"x"}', "[]", '{"zip":1,"zip":2}']),
    ("map<string,bigint>", ['{"a":1,"a":2}', '{"a":"x"}']),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(k, text) for k, texts in BAD for text in texts])
def test_what_does_not_fit_is_set_aside_with_a_reason(kind, text):
    verdict, reason = value(kind, text)
    assert verdict == "bad"
    assert reason


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [("epoch_s", "1767323045", 0), ("epoch_ms", "1767323045500", 500_000), ("epoch_us", "1767323045000007", 7)],
)  # fmt: skip
def test_instants_may_be_numbers(form, text, expected):
    at = datetime(2026, 1, 2, 3, 4, 5, expected, tzinfo=UTC)
    assert value("timestamptz", text, format=form) == at
    assert value("timestamptz", '"2026-01-02"', format=form)[0] == "bad"
    assert value("timestamptz", "99999999999999999", format="epoch_s")[0] == "bad"


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (
            "timestamptz",
            "2026-01-02T03:04:05.123456789Z",
            datetime(2026, 1, 2, 3, 4, 5, 123_456, UTC),
        ),
        (
            "timestamptz",
            "1969-12-31t23:59:59.9999999",
            datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        ),
        ("timestamp", "2026-01-02 03:04:05.12345678901", datetime(2026, 1, 2, 3, 4, 5, 123_456)),  # noqa: DTZ001
    ],
)
def test_digits_beyond_microseconds_are_cut_if_asked(kind, text, expected):
    refused = value(kind, f'"{text}"')
    assert refused[0] == "bad"
    assert refused[1].endswith("has more than six digits of a second (`truncate: true` cuts them)")
    assert value(kind, f'"{text}"', truncate=True) == expected
    nested = f'{{"at":["{text}"]}}'
    assert value(f"struct<at:array<{kind}>>", nested, truncate=True) == {"at": [expected]}
    assert value(kind, '"soon"', truncate=True)[0] == "bad"


def test_bytes_may_be_hexadecimal():
    assert value("binary", '"ff00"', format="hex") == b"\xff\0"
    assert value("binary", '"ff0"', format="hex")[0] == "bad"


@pytest.mark.parametrize(
    "line",
    [
        b"", b"   ", b"null", b"[]", b"12", b'{"c":"a"}{"c":"b"}', b'{"c":"a"} x', b'{"c":"a"', b'{"c":"a",}',
        b"\xef\xbb\xbf{}", b'{"c":"a","c":"b"}', b'{"other":"\xff"}', b"{'c':1}",
    ],
)  # fmt: skip
def test_lines_that_are_not_records_are_set_aside(line):
    wanted = spec("c string", path=())
    parsed = parse(wanted, b'{"c":"x"}\n' + line + b'\n{"c":"y"}\n')
    assert [one.number for one in parsed.bad] == [1]
    assert parsed.rows.column("c").to_pylist() == ["x", "y"]


def test_blanks_around_a_record_do_no_harm():
    parsed = parse(spec("c string", path=()), b'  {"c":"x"}\t\r\n{"c":"y"}\n')
    assert (parsed.bad, parsed.rows.column("c").to_pylist()) == ((), ["x", "y"])


@pytest.mark.parametrize("count", [3, 500])
def test_rows_stay_in_order_whichever_lines_are_odd_or_bad(count):
    """However a block is taken apart: lines of Windows, no objects, no UTF-8, and such of wrong types."""
    kinds = [
        b'{"c":%d}\n',
        b'{"c":%d}\r\n',
        b'{"c":%d\n',
        b'{"c":"%d"}\n',
        b'{"c":%d,"d":"\xff"}\n',
    ]
    for share in (1, 10, 200):
        lines = [kinds[n // share % 5 if n % share == 0 else 0] % n for n in range(count)]
        content = b"".join(lines)
        parser = BlockParser(spec("c bigint", path=()))
        for _ in range(2):  # it heeds how many were bad in the block before
            parsed = parser.parse(7, content)
            good = [
                n for n, line in enumerate(lines) if line.endswith(b"}\n") and line.count(b'"') == 2
            ]
            good = sorted(good + [n for n, line in enumerate(lines) if line.endswith(b"\r\n")])
            assert parsed.rows.column("c").to_pylist() == good
            assert [one.number for one in parsed.bad] == sorted(set(range(count)) - set(good))
            found = parsed.good.to_pylist() if parsed.good is not None else list(range(count))
            assert found == good
            begins = parsed.begins.to_pylist()
            assert [
                content[b - 7 : e - 7] for b, e in zip(begins, parsed.ends.to_pylist(), strict=True)
            ] == lines


MANY = 20_000


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            b'{"m":{%b,"z":"x"}}' % b", ".join(b'"k%d": 1' % at for at in range(MANY)),
            'm.z: "x" is no int',
        ),
        (b'{"l":[%b"x"]}' % (b"1," * MANY), f'l[{MANY}]: "x" is no int'),
        (
            b'{%b,"z":1e400}' % b",".join(b'"k%d":1' % at for at in range(MANY)),
            "z: 1e400 cannot be read",
        ),
        (
            b'{"m":{%b"z":1,"z":2}}' % b"".join(b'"k%d":1,' % at for at in range(MANY)),
            "m.z: occurs twice",
        ),
    ],
    ids=["map", "array", "keys", "twice"],
)
def test_the_one_bad_value_of_very_many_is_found_soon(record, reason):
    began = time.process_time()
    parsed = parse(spec("m map<string,int>", "l array<int>"), record + b"\n")
    assert [one.reason for one in parsed.bad] == [reason]
    assert time.process_time() - began < 3


def test_of_a_record_that_is_too_long_to_be_taken_apart_no_value_is_reported():
    parsed = parse(spec("c int"), b'{"c":"x","d":"%b"}\n' % (b"a" * (4 << 20)))
    assert [one.reason.partition(":")[0] for one in parsed.bad] == [
        "does not fit, and is too long to say where"
    ]


def test_deep_values_are_read_as_soon_as_others():
    line = b'{"d":%b,"c":1}\n' % (b"[" * 490 + b"]" * 490)
    began = time.process_time()
    assert parse(spec("c int"), line * 1000).rows.num_rows == 1000
    assert time.process_time() - began < 2


def test_content_that_ends_within_a_record():
    parsed = parse(spec("c string", path=()), b'{"c":"x"}\n{"c":"y"}', begin=100)
    assert [one.number for one in parsed.bad] == [1]
    assert "ends within" in parsed.bad[0].reason
    assert parsed.ends.to_pylist() == [110, 119]


def test_of_a_block_that_is_cut_other_bad_records_have_reasons_of_their_own():
    parsed = parse(spec("c string", path=()), b'{"c":1}\n{"c":"x"}\n{\n{"c":"y"}')
    assert [one.number for one in parsed.bad] == [0, 2, 3]
    assert ["no newline" in one.reason for one in parsed.bad] == [False, False, True]


def test_only_a_partial_line_that_is_not_text_is_bad():
    parsed = BlockParser(spec()).parse(5, b'{"b":"\xff')
    assert (parsed.begins.to_pylist(), parsed.ends.to_pylist(), len(parsed.bad)) == ([5], [12], 1)


def test_unknown_keys_are_ignored_or_set_aside():
    content = (
        b'{"c":{"a":1}}\n{"c":{"a":1,"b":2}}\n{"c":{"a":1},"d":1}\n{"_meta":{"uuid":null,"x":1}}\n'
    )
    assert parse(spec("c struct<a:int>"), content).bad == ()
    strict = parse(spec("c struct<a:int>", unknown="quarantine"), content)
    assert [one.number for one in strict.bad][:2] == [1, 2]


def test_required_columns_need_a_value():
    content = b'{"c":1}\n{"c":null}\n{}\n'
    parsed = parse(spec("c int required"), content)
    assert [one.number for one in parsed.bad] == [1, 2]
    assert all("c" in one.reason for one in parsed.bad)


def meta(clock, flags=OUT, **more):
    return json.dumps({"_meta": {"uuid": uuid_of(clock, flags)}, **more}).encode() + b"\n"


@pytest.mark.parametrize("columns", [("c int",), ("c int", "_meta struct<uuid:string>")])
def test_uuids_of_all_messages_are_reported_and_acks_make_no_rows(columns):
    lines = [meta(10, c=1), meta(20, c="x"), meta(30, CONT, c=3), meta(40, ACK), b'{"c":5}\n']
    lines.append(b'{"_meta":{"uuid":"none"},"c":6}\n')
    required = (f"{columns[0]} required", *columns[1:])
    parsed = parse(spec(*required), b"".join(lines))
    told = parsed.parts.to_pylist()
    assert [one["clock"] for one in told] == [10, 20, 30, 40, 0, 0]
    assert [one["flags"] for one in told] == [OUT, OUT, CONT, ACK, 0, 0]
    assert [one["producer"] for one in told][:4] == [PRODUCER] * 4
    assert parsed.rows.column("c").to_pylist() == [1, 3, 5]
    assert [one.number for one in parsed.bad] == [1, 5]


def table_of(wanted, content, journal="a/region=eu/part=7", keep=None, begin=50):
    parsed = parse(wanted, content, begin)
    schema = arrow_schema(new_schema(wanted))
    return (
        placed_rows(wanted, schema, journal, parsed, keep),
        bad_rows(journal, parsed, content, begin, keep),
    )


def test_rows_say_where_they_are_and_segments_come_from_the_name():
    wanted = spec("c int", "region string segment=region", "part bigint segment=part")
    lines = [meta(10, c=1), meta(20, c="x"), b'{"c":3}\n', meta(30, ACK)]
    rows, bad = table_of(wanted, b"".join(lines))
    ends = [50 + len(b"".join(lines[: n + 1])) for n in range(4)]
    assert rows.drop_columns(["_uuid"]).to_pylist() == [
        {"c": 1, "region": "eu", "part": 7, "_journal": "a/region=eu/part=7", "_begin": 50, "_end": ends[0]},
        {"c": 3, "region": "eu", "part": 7, "_journal": "a/region=eu/part=7", "_begin": ends[1], "_end": ends[2]},
    ]  # fmt: skip
    assert rows.column("_uuid").to_pylist() == [uuid.UUID(uuid_of(10)), None]
    assert bad.column("raw").to_pylist() == [lines[1]]
    assert bad.column("_begin").to_pylist() == [ends[0]]
    assert bad.column("_uuid").to_pylist() == [uuid.UUID(uuid_of(20))]
    keep = pa.array([False, False, True, True])
    kept, none = table_of(wanted, b"".join(lines), keep=keep)
    assert (kept.column("c").to_pylist(), none.num_rows) == ([3], 0)


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        ("a/b", "has no value there"),
        ("a/part=x", "'x' is no int"),
        ("a/part=2147483648", "'2147483648' is no int"),
        ("a/part=-2147483649", "'-2147483649' is no int"),
        ("a/part=", "has no value there"),
        ("a/part=1/part=2", "occurs more than once"),
    ],
)
def test_segments_that_are_none_are_reported(journal, told):
    wanted = spec("part int segment=part", "c int")
    with pytest.raises(LakeError, match=told):
        table_of(wanted, b'{"c":1}\n', journal=journal)


@pytest.mark.parametrize("value", [-(2**31), 0, 2**31 - 1])
def test_segments_have_all_values_of_their_type(value):
    rows, _ = table_of(spec("part int segment=part", "c int"), b'{"c":1}\n', f"a/part={value}")
    assert rows.column("part").to_pylist() == [value]


def test_columns_that_are_written_no_more_are_null():
    wanted = spec("c struct<a:int>")
    wider = arrow_schema(new_schema(spec("gone string", "c struct<b:string,a:int>")))
    parsed = parse(wanted, b'{"c":{"a":1}}\n{"c":null}\n')
    rows = placed_rows(wanted, wider, "j", parsed, None)
    assert rows.schema.equals(wider, check_metadata=True)
    assert rows.column("gone").to_pylist() == [None, None]
    assert rows.column("c").to_pylist() == [{"b": None, "a": 1}, None]


@pytest.mark.parametrize("flags", [OUT, CONT, ACK])
@pytest.mark.parametrize("clock", [1, 15, 16, 2**32, 2**59 + 12345, 2**64 - 1])
def test_uuids_come_back_as_they_were(clock, flags):
    from gazette_platform.message.uuid import parse_uuid_column, uuid_column

    text = str(build_uuid(*UuidParts(PRODUCER, clock, flags)))
    parts = parse_uuid_column(pa.array([text, None, text]))
    assert uuid_column(parts.slice(1)).to_pylist() == [None, uuid.UUID(text)]
