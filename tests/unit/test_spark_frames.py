"""Rows as records, and which journal they go to."""

import datetime as dt
import json
import pickle
from collections import defaultdict
from decimal import Decimal

import pytest

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from gazette_platform.errors import DataError, ValidationError  # noqa: E402
from gazette_platform.message import CsvFraming, JsonFraming, MessageClock  # noqa: E402
from gazette_platform.message.publisher import fnv1a32, modulo, rendezvous  # noqa: E402
from gazette_platform.spark.frames import (  # noqa: E402
    encoder,
    layout_of,
    stamped,
)
from gazette_platform.spark.routing import Router, Targets  # noqa: E402

JSON, CSV = "application/x-ndjson", "text/csv"
NONE = "00000000-0000-0000-0000-000000000000"
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


def layout(text, *, key="", uuid=()):
    return layout_of(types._parse_datatype_string(text), key=key, uuid=uuid)


@pytest.fixture(autouse=True)
def parser(monkeypatch):
    """Spark's parser of schemas is in its JVM."""
    kinds = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "bigint": types.LongType(),
        "double": types.DoubleType(),
        "timestamp": types.TimestampType(),
        "void": types.NullType(),
        "map": types.MapType(types.StringType(), types.TimestampType()),
        "odd": types.MapType(types.LongType(), types.LongType()),
        "list": types.ArrayType(types.StructType().add("x", types.LongType())),
        "struct": types.StructType().add("x", types.LongType()).add("y", types.BinaryType()),
        "interval": types.DayTimeIntervalType(),
        "decimal": types.DecimalType(10, 2),
    }

    def parse(text):
        found = types.StructType()
        for part in text.split(", "):
            name, kind = part.split(" ")
            found = found.add(name, kinds[kind])
        return found

    monkeypatch.setattr(types, "_parse_datatype_string", parse)


def rows(text, *values):
    schema = layout(text).schema
    names = [part.split(" ")[0] for part in text.split(", ")]
    kinds = {"_journal": pa.string()}
    schema = pa.schema([(n, kinds.get(n) or schema.field(n).type) for n in names])
    return pa.RecordBatch.from_pylist(
        [dict(zip(names, row, strict=True)) for row in values], schema
    )


def encode(kind, text, *values, uuid=()):
    return encoder(kind, layout(text, uuid=uuid), uuid).encode(rows(text, *values))


def test_json_has_no_null_but_in_lists_and_maps():
    text = "a bigint, b struct, c list, d map, e void, f decimal"
    content = encode(
        JSON,
        text,
        (1, {"x": None, "y": b"\x00\x01"}, [None, {"x": 3}], [("k", NOON), ("l", None)], None, Decimal("1.50")),
        (None, None, None, None, None, None),
    )  # fmt: skip
    assert content == (
        b'{"a":1,"b":{"y":"AAE="},"c":[null,{"x":3}],"d":{"k":"2026-01-02T12:00:00Z","l":null},"f":1.50}\n{}\n'
    )


def test_years_that_no_text_has_are_an_error():
    kind = pa.timestamp("us", "UTC")
    for micros in (253_402_300_800_000_000, -62_135_596_800_000_001):
        batch = pa.record_batch({"at": pa.array([0, micros], pa.int64()).cast(kind)})
        for made in (JSON, CSV):
            with pytest.raises(DataError, match="before the year 1, or after the year 9999"):
                encoder(made, layout("at timestamp"), ()).encode(batch)


def test_json_has_instants_in_utc_and_null_for_nan():
    kind = pa.timestamp("us", "Europe/Berlin")
    made = encoder(JSON, layout("at timestamp, x double"), ())
    batch = pa.record_batch({"at": pa.array([NOON, None], kind), "x": [float("nan"), float("inf")]})
    assert made.encode(batch) == b'{"at":"2026-01-02T12:00:00.000000Z"}\n{}\n'


def test_csv_has_a_line_a_record():
    text = "a bigint, b string, c double, d timestamp, e decimal"
    content = encode(
        CSV,
        text,
        (1, 'say "x", y', 1.5, NOON, Decimal("2.50")),
        (None, "", float("nan"), None, None),
    )
    assert content == (b'1,"say ""x"", y",1.5,"2026-01-02T12:00:00.000000Z",2.50\n,"",,,\n')
    for text in ("a\nb", "a\rb"):
        with pytest.raises(DataError, match="column b: a text has a line break in it"):
            encode(CSV, "a bigint, b string", (1, text))
    with pytest.raises(DataError, match="a row of NULL alone has no record in CSV"):
        encode(CSV, "a bigint", (1,), (None,), (2,))
    assert encode(CSV, "a bigint", (None,), uuid=("x",)) == f"{NONE},\n".encode()


def test_texts_by_longer_offsets_are_the_same():
    # As Spark sends them by `spark.sql.execution.arrow.useLargeVarTypes`.
    batch = pa.record_batch({"s": pa.array(["x"], pa.large_string()), "n": [1]})
    assert encoder(JSON, layout("s string, n bigint"), ()).encode(batch) == b'{"s":"x","n":1}\n'
    assert encoder(CSV, layout("s string, n bigint"), ()).encode(batch) == b'"x",1\n'
    for kind in (pa.large_string(), pa.large_binary()):
        batch = pa.record_batch({"value": pa.array(["2"], pa.string()).cast(kind)})
        assert encoder(JSON, layout("value binary"), ()).encode(batch) == b"2\n"
        router = Router(TARGETS, layout("value binary", key="value"), "modulo")
        assert [place for place, _ in router.share_out(batch)] == [modulo(b"2", 3)]


def test_records_that_are_given_whole_are_written_as_they_lie():
    assert encode(JSON, "value string", ('{"a": 1 }',), ("2",)) == b'{"a": 1 }\n2\n'
    assert encode(CSV, "value binary", (b"x,y",)) == b"x,y\n"
    for value in (None, "", "  ", '{"a":\n1}'):
        with pytest.raises(DataError, match="a `value` is not a record"):
            encode(JSON, "value string", ("{}",), (value,))
    # Beside other columns it is one like them.
    assert encode(JSON, "value string, n bigint", ("x", 1)) == b'{"value":"x","n":1}\n'
    assert layout("value string, n bigint", key="n").is_raw


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (
            JSON,
            "a odd, b interval",
            "column a: keys of maps are string; column b: .* is not written",
        ),
        (CSV, "a list", "column a: list.* is not written"),
        (CSV, "a binary", "column a: binary is not written"),
        ("application/x-protobuf-fixed", "a bigint", "records of application/x-protobuf-fixed are"),
    ],
)
def test_columns_that_have_no_record_are_refused(kind, text, told):
    with pytest.raises(ValidationError, match=told):
        encoder(kind, layout(text), ())


def test_columns_that_mean_something_else_are_refused():
    with pytest.raises(ValidationError) as failed:
        layout("_begin bigint, _uuid string, _journal bigint, n bigint", key="m", uuid=("n",))
    for part in (
        "column _begin describes a message that was read",
        "column _uuid describes",
        "column _journal is string, and not int64",
        "key: there is no column m (there are _begin, _uuid, _journal, n)",
        "uuid: column n has the key that is to hold UUIDs",
    ):
        assert part in str(failed.value)
    with pytest.raises(ValidationError, match="uuid: records that are given whole"):
        layout("value binary", uuid=("n",))
    with pytest.raises(ValidationError, match="there is no column to write"):
        layout("_journal string")
    with pytest.raises(ValidationError, match="key: column n is double: make a string of it"):
        layout("n double", key="n")


@pytest.mark.parametrize("path", [("uuid",), ("_meta", "uuid"), ("a", 'q"', "é")])
def test_uuids_of_json_are_where_readers_look(path):
    made = encoder(JSON, layout("n bigint"), path)
    clock = MessageClock(500)
    content = made.encode(rows("n bigint", (1,), (None,)))
    content = stamped(content, made.uuid_at, b"\x01abcde", clock)
    framing = JsonFraming(uuid_field=".".join(path))
    found = [framing.uuid_of(json.loads(line)) for line in content.splitlines()]
    assert [(one.producer, one.flags) for one in found] == [(b"\x01abcde", 0)] * 2
    assert 500 < found[0].clock < found[1].clock == clock.value
    assert [json.loads(line).get("n") for line in content.splitlines()] == [1, None]


def test_uuids_of_csv_are_its_first_field():
    made = encoder(CSV, layout("n bigint, s string"), ("any",))
    content = made.encode(rows("n bigint, s string", (1, "x")))
    content = stamped(content, made.uuid_at, b"\x01abcde", MessageClock(500))
    framing = CsvFraming()
    message = framing.decoder().decode(content)
    assert message[1:] == ["1", "x"]
    assert framing.uuid_of(message).producer == b"\x01abcde"


# ------------------------------------------------------------------ journals

TARGETS = Targets(("a/x", "a/y", "b/z"), (JSON,) * 3)


def shared_out(text, *values, mapping="", key="", targets=TARGETS):
    router = Router(targets, pickle.loads(pickle.dumps(layout(text, key=key))), mapping)
    found = defaultdict(list)
    for place, part in router.share_out(rows(text, *values)):
        found[targets.names[place]] += part.column("n").to_pylist()
    return dict(found)


def test_rows_go_to_the_only_journal_or_to_the_one_they_name():
    one = Targets(("a/x",), (JSON,))
    assert shared_out("n bigint", (1,), (2,), targets=one) == {"a/x": [1, 2]}
    named = (("b/z", 1), ("a/x", 2), ("b/z", 3))
    assert shared_out("_journal string, n bigint", *named) == {"a/x": [2], "b/z": [1, 3]}
    for name in ("a/w", None):
        with pytest.raises(DataError, match=f"_journal of a row is {name!r}, which is none of"):
            shared_out("_journal string, n bigint", ("a/x", 1), (name, 2))


@pytest.mark.parametrize("mapping", ["modulo", "rendezvous"])
def test_rows_of_a_key_go_where_gazettes_mappings_say(mapping):
    keys = ["k1", "k2", None, "k3", "k1", ""]
    found = shared_out(
        "k string, n bigint", *zip(keys, range(6), strict=True), mapping=mapping, key="k"
    )
    hashes = [fnv1a32(name.encode()) for name in TARGETS.names]
    for number, key in enumerate(keys):
        raw = (key or "").encode()
        place = modulo(raw, 3) if mapping == "modulo" else rendezvous(raw, hashes)
        assert number in found[TARGETS.names[place]]
    assert all(numbers == sorted(numbers) for numbers in found.values())
    # A number has the key of its text.
    found = shared_out("n bigint", (17,), mapping=mapping, key="n")
    place = modulo(b"17", 3) if mapping == "modulo" else rendezvous(b"17", hashes)
    assert found == {TARGETS.names[place]: [17]}


def test_random_rows_go_everywhere():
    found = shared_out("n bigint", *((n,) for n in range(200)), mapping="random")
    assert sorted(found) == list(TARGETS.names)
    assert sorted(n for numbers in found.values() for n in numbers) == [*range(200)]


def test_it_has_to_be_said_where_rows_go():
    with pytest.raises(ValidationError, match=r"3 journals match, as a/x and a/y: say which rows"):
        shared_out("n bigint", (1,))
    with pytest.raises(ValidationError, match="column _journal says where rows go"):
        shared_out("_journal string, n bigint", ("a/x", 1), mapping="random")
