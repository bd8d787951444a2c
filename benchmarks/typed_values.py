"""``python -m benchmarks.typed_values``: what each way makes of records that are odd, as a table of Markdown.

A record is a row, or is set aside (`bad`). Of a row the value that the line is about is shown.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from benchmarks.typed_parse import Block, Stages, TypedParser
from benchmarks.typed_table import COLUMNS, json_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ODD", "Odd", "by_arrow", "by_spark", "main", "table"]

_UUID: Final = b'"_meta":{"uuid":"0000000a-0000-1000-8000-070203040506"}'
_TYPES: Final = {each.name: each.spark for each in COLUMNS}
_KEYS: Final = {each.name: each.key.encode() for each in COLUMNS}


class Odd(NamedTuple):
    """A line, and the column that it is about."""

    what: str
    column: str
    line: bytes


def _value(column: str, value: bytes) -> Odd:
    shown = value.decode(errors="backslashreplace").replace("\0", "␀").replace("\t", "␉")
    line = b'{%b,"%b":%b}\n' % (_UUID, _KEYS[column], value)
    return Odd(f"{_TYPES[column].partition('<')[0]}: `{shown}`", column, line)


def _values() -> list[Odd]:
    values = {
        "order_id": (b"9223372036854775808", b"5.0", b"1e3", b'"12"', b"-0", b"01", b"[1]", b"NaN"),
        "amount": (b"1.255", b"100000000", b"1e2", b'"1.25"', b"12345678901234567890.5", b"{}"),
        "weight": (b"NaN", b'"NaN"', b"-Infinity", b"1e400", b'"6.1"', b"9007199254740993"),
        "gift": (b'"true"', b"1"),
        "placed_at": (
            b'"2026-01-02T03:04:05.123456789Z"',
            b'"2026-01-02T03:04:05+02:00"',
            b'"2026-01-02 03:04:05"',
            b'"2026-01-02"',
            b'"2026-1-2T3:4:5Z"',
            b'"2026-02-30T00:00:00Z"',
            b"1767323045",
            b'""',
        ),
        "day": (
            b'"2026-1-2"',
            b'"2026-01-02T03:04:05Z"',
            b'"2023-02-29"',
            b"18263",
            b'"0000-01-01"',
        ),
        "country": (
            b"12",
            b"true",
            b'{"a": 1}',
            b'"\\ud800"',
            b'"a\\u0000b"',
            b'"a\x00b"',
            b'"a\tb"',
            b'"\xff"',
            b"'DE'",
        ),
        "tags": (b"[1]", b'"x"', b'["a",null]'),
        "address": (b'{"zip":"x"}', b"[]", b'{"zip":1,"zip":2}', b'{"ZIP":1}'),
    }
    return [_value(column, value) for column, of in values.items() for value in of]


def _lines() -> list[Odd]:
    def odd(what: str, line: bytes) -> Odd:
        return Odd(what, "order_id", line.replace(b"UUID", _UUID) + b"\n")

    key = b'{%b,"customer no.":"c-1"}\n' % _UUID
    return [
        Odd("a key that is not a name, `customer no.`", "customer_no", key),
        odd("a key twice", b'{UUID,"order_id":1,"order_id":2}'),
        odd("a key of other case", b'{UUID,"ORDER_ID":1}'),
        odd("two records in a line", b'{UUID,"order_id":1}{UUID,"order_id":2}'),
        odd("text behind the record", b'{UUID,"order_id":1} x'),
        odd("blanks around it", b'  {UUID,"order_id":1} \r'),
        odd("an empty line", b""),
        odd("`null`", b"null"),
        odd("a list", b'[{UUID,"order_id":1}]'),
        odd("truncated", b'{UUID,"order_id":1,"cou'),
        odd("a byte order mark", b'\xef\xbb\xbf{UUID,"order_id":1}'),
        odd("a comma too many", b'{UUID,"order_id":1,}'),
        odd("NaN in a key that is not a column", b'{UUID,"order_id":1,"x":NaN}'),
        odd("no UTF-8 in a key that is not a column", b'{UUID,"order_id":1,"x":"\xff"}'),
        odd("no UUID", b'{"order_id":1}'),
        odd("a UUID that is none", b'{"_meta":{"uuid":"x"},"order_id":1}'),
        odd("20 MB in a line", b'{UUID,"order_id":1,"note":"' + b"x" * 20_000_000 + b'"}'),
        odd("600 lists in each other", b'{UUID,"order_id":1,"x":' + b"[" * 600 + b"]" * 600 + b"}"),
    ]


ODD: Final = (*_values(), *_lines())


def by_arrow(odd: Odd) -> str:
    """What the ways `rows`, `files` and `arrow` make of a line: alone, and by `lines` among good ones."""
    good = b'{%b,"order_id":7}\n' % _UUID
    alone = TypedParser(Stages()).parse(Block(0, odd.line))
    among = TypedParser(Stages(), repair="lines").parse(Block(0, good + odd.line + good))
    kept = among.table.num_rows - 2
    if (kept, len(among.bad)) != (alone.table.num_rows, len(alone.bad)):
        return "otherwise alone than among others"
    if alone.bad:
        return "bad"
    if not alone.table.num_rows:
        return "no record"
    return _shown(alone.table.column(_KEYS[odd.column].decode())[0].as_py())


def by_spark(spark: SparkSession, folder: Path) -> list[tuple[str, str]]:
    """What `from_json` and Spark's source of JSON make of all lines."""
    from pyspark.sql import functions as f  # noqa: PLC0415  slow to import

    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
    found = []
    for number, odd in enumerate(ODD):
        path = folder / f"{number}.json"
        path.write_bytes(odd.line)
        column = f"`{_KEYS[odd.column].decode()}`"
        text = spark.read.text(str(path)).select(f.from_json("value", json_ddl(), how).alias("j"))
        source = spark.read.schema(json_ddl()).json(str(path), **how)
        told = []
        for frame in (text.select("j.*"), source):
            try:
                rows = frame.select("_bad", column, "_meta").collect()
            except Exception as err:  # noqa: BLE001  of any kind; it is what is reported
                told.append(f"fails: {type(err).__name__}")
                continue
            told.append("; ".join(_row_shown(row) for row in rows) or "no record")
        found.append((told[0], told[1]))
    return found


def _row_shown(row: Any) -> str:
    if row[0] is not None:
        return "bad"
    return _shown(row[1])


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if hasattr(value, "asDict"):
        value = value.asDict()
    if hasattr(value, "isoformat"):
        return value.isoformat(" ") if hasattr(value, "hour") else value.isoformat()
    return f"`{value!r}`" if isinstance(value, str | list | dict) else str(value)


def table(rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def other(ours: str, from_json: str, source: str) -> str:
    """Return what Spark makes of a record, where it is not what we make of it."""
    if from_json == source:
        return "" if source == ours else source
    return f"{from_json}; JSON source: {source}"


def main() -> int:
    """Print the table."""
    from benchmarks.typed_ways import Case, spark_session  # noqa: PLC0415  starts a JVM

    with tempfile.TemporaryDirectory(prefix="typed-values-") as name:
        folder = Path(name)
        with spark_session(Case(way="from_json", root="", warm=""), folder) as spark:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            spark_s = by_spark(spark, folder)
    arrow = [by_arrow(odd) for odd in ODD]
    rows = [
        (odd.what, one, other(one, *two)) for odd, one, two in zip(ODD, arrow, spark_s, strict=True)
    ]
    print(table([("record", "typed table", "Spark, if it differs"), ("---",) * 3, *rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
