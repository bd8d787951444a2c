"""Does the data fit the spec? Asked once, of the first fragment, before a table is made.

A table over data of another format gives rows full of NULL in both engines and no error in either;
a number written as text reads as a number in Trino and as NULL in Spark. So such a table is refused
with what was found. Single bad records do not cause a refusal, only faults of the whole sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake.spec.formats import OVER_LINES, csv_rows, is_date

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.types import ColumnType

SAMPLE_BYTES = 256 << 10
_LINES_MAX = 200
_KEYS_SHOWN = 12
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def check_sample(spec: TableSpec, sample: bytes, where: str) -> None:
    """Refuse data that does not fit `spec` at all.

    Args:
        spec: the table spec.
        sample: the first bytes of a fragment's content; a line cut off at its end is ignored.
        where: the fragment, for the message.

    Raises: SchemaMismatch: no line is of the format, no column occurs, or some columns never have
        their type; names all of these, what was found, and what to change.
    """
    lines = [line for line in _whole_lines(sample) if line.strip()][:_LINES_MAX]
    if not lines:
        return
    if spec.format == "csv":
        _check_csv(spec, lines, where)
    else:
        _check_json(spec, lines, where)


def _whole_lines(sample: bytes) -> list[bytes]:
    lines = sample.split(b"\n")
    return lines if len(lines) == 1 or len(sample) < SAMPLE_BYTES else lines[:-1]


def _check_json(spec: TableSpec, lines: list[bytes], where: str) -> None:
    records: list[dict[str, Any]] = []
    for line in lines:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict):
            records.append(record)
    if not records:
        raise SchemaMismatch(
            f"{spec.name}: {where} does not hold JSON objects, one a line (it begins "
            f"{_shown(lines[0])}): correct `format` of the table spec, or `selector`"
        )
    keys = dict.fromkeys(key for record in records for key in record)
    wanted = {c.key for c in spec.columns}
    if wanted.isdisjoint(keys):
        found = ", ".join(list(keys)[:_KEYS_SHOWN]) or "none"
        raise SchemaMismatch(
            f"{spec.name}: no record of {where} has any of the columns {_some_values(wanted)} "
            f"(keys found: {found}; their case matters): correct `columns` of the table spec"
        )
    wrong: list[str] = []
    for column in spec.columns:
        values = [r[column.key] for r in records if r.get(column.key) is not None]
        parsed = column.parsed
        if values and not any(_is_of(parsed, value) for value in values):
            owner = "it" if wrong else where
            wrong.append(
                f"column {column.name} is {column.type}, but {owner} has values such as "
                f"{_shown(_json(values[0]))}"
            )
    if wrong:
        more = f"; and {len(wrong) - _KEYS_SHOWN} more" if len(wrong) > _KEYS_SHOWN else ""
        raise SchemaMismatch(
            f"{spec.name}: {'; '.join(wrong[:_KEYS_SHOWN])}{more}, which the engines would read "
            "differently or as NULL: correct the type in the table spec, or how it is written"
        )


def _check_csv(spec: TableSpec, lines: list[bytes], where: str) -> None:
    text = [line.decode("utf-8", "replace") + "\n" for line in lines]
    rows = list(csv_rows(text, spec.separator))
    widths = [len(row) for row in rows]
    several = [row for row in rows if len(row) == len(spec.columns) and "\n" in "".join(row)]
    if several:
        raise SchemaMismatch(
            f"{spec.name}: records of {where} are of several lines (a field in quotes has a line "
            f"break in it: {_shown(','.join(several[0]).encode())}), which engines would take for "
            f"several rows; {OVER_LINES}"
        )
    if all(width != len(spec.columns) for width in widths):
        raise SchemaMismatch(
            f"{spec.name}: lines of {where} have {widths[0]} fields, not the {len(spec.columns)} "
            f"columns of the table spec (it begins {_shown(lines[0])}): correct `columns`, "
            "`delimiter` or `format`"
        )


def _is_of(kind: ColumnType, value: Any) -> bool:
    """Whether both engines read the JSON value as one of the type."""
    if kind.name in _BITS:
        half = 1 << (_BITS[kind.name] - 1)
        return type(value) is int and -half <= value < half
    match kind.name:
        case "string":
            return True  # both keep the text of any value
        case "boolean":
            return isinstance(value, bool)
        case "float" | "double" | "decimal":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "date":
            return isinstance(value, str) and is_date(value)
        case _:
            return isinstance(value, list if kind.name == "array" else dict)


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # it reads deeper values than it writes
        return b"a deeply nested value"


def _shown(raw: bytes) -> str:
    text = raw[:60].decode("utf-8", "replace")
    return repr(text + ("…" if len(raw) > 60 else ""))


def _some_values(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:_KEYS_SHOWN]) + (" …" if len(ordered) > _KEYS_SHOWN else "")
