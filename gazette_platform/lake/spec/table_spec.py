"""Table specs: which journals make a table, in which format, with which columns.

A spec is a YAML file:

    name: flights.flights               # schema.table, lower case
    selector: name:prefix=flights/      # over journals; label selector text
    format: json                        # json: one object a line; csv: all strings
    delimiter: ";"                      # of csv; default ","
    header: true                        # of csv: rows that name the columns are not rows
    comment: Flights as published.
    fresh_within: 24h                   # Dagster shows the table as stale after that
    unfit: {block: 1%}                  # more records of a Hive partition than that stop rollups
    owners: [team:flights, a@example.com]
    tags: {domain: travel}
    typed: {uuid: _meta.uuid}           # optional: an Iceberg table of it; see lake/spec/typed
    columns:
      - {name: carrier, type: string, comment: two letters}
      - {name: tail_no, from: tail no., type: string}   # a key that is not a SQL name
    partitions:                         # optional: types and names of keys found in the path
      - {name: hour, as: fragment_hour, type: int}

Partition columns are not declared but found: every ``key=value`` segment of the journal name, then
of the path postfix, is one, a string unless `partitions` says otherwise.
"""

from __future__ import annotations

import hashlib
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import (
    COLUMNS_MAX,
    DURATION_EXAMPLE,
    ERRORS_MAX,
    KEY_CHARACTERS_MAX,
    LINES_SUFFIX,
    SPEC_BYTES_MAX,
    UNFIT_EXAMPLE,
    UnfitSpec,
    first_errors,
    freshness_errors,
    is_column_name,
    is_key,
    is_table_name,
    ownership_errors,
    shown,
)
from gazette_platform.lake.spec.typed import TypedSpec, read_typed_spec
from gazette_platform.lake.spec.types import ColumnType, parse_type
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import LabelSelector, parse_duration
from gazette_platform.yaml_specs.documents import check_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Types whose text in a path has one canonical value, so that two directories never claim one
# Hive partition unnoticed.
_PARTITION_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "date")
# A journal's name has no room for more.
_PARTITIONS_MAX = 256
_ERROR_CHARACTERS_MAX = 500
_FORMATS = ("json", "csv")
_DELIMITERS = (",", ";", "\t", "|")
_DELIMITERS_SHOWN = """"," ";" "\\t" "|\""""
_SELECTOR_EXAMPLE = "select journals by name or label, e.g. `name:prefix=flights/`"
# `name==` would match any value: a slip of the pen, as `name` alone says that.
_NO_VALUE = re.compile(r"(?P<term>[^,()]*=)\s*(,|\Z)")
_ENUM = re.compile(r"Invalid enum value (?P<found>'.*') - at")


class Column(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A data column; its `key` is matched with the record's as written."""

    name: str
    type: str
    comment: str = ""
    source: str = msgspec.field(default="", name="from")
    """The record's key, where that is not a SQL name."""

    @property
    def key(self) -> str:
        """The key that records have; of CSV the text that header rows have."""
        return self.source or self.name

    @property
    def parsed(self) -> ColumnType:
        """The parsed type."""
        return parse_type(self.type)


class Partition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to call, and how to type, the partition column of the path's key `name`."""

    name: str
    type: str = "string"
    alias: str = msgspec.field(default="", name="as")
    comment: str = ""

    @property
    def column(self) -> str:
        """The column's name in the table."""
        return (self.alias or self.name).lower()


class TableSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One raw table. Build with `parse_table_spec`, which validates."""

    name: str
    selector: str
    format: Literal["json", "csv"]
    columns: tuple[Column, ...]
    partitions: tuple[Partition, ...] = ()
    comment: str = ""
    fresh_within: str = "24h"
    """Go duration; the table is stale in Dagster if nothing arrived for longer."""
    owners: tuple[str, ...] = ()
    """Email addresses, or `team:` and a name, for Dagster's catalog."""
    tags: dict[str, str] = {}
    """For Dagster's catalog."""
    unfit: UnfitSpec = UnfitSpec()
    """How many records may not fit before rollups wait; see `gazette_platform.lake.spec.rules`."""
    typed: TypedSpec | None = None
    """The typed table that is made of it, if any."""
    delimiter: str = ""
    """Of CSV; empty: a comma."""
    header: bool = False
    """Of CSV: whether rows that hold the columns' keys are headers, and not rows."""

    @property
    def schema(self) -> str:
        """The part of the name before the dot: a database of the metastore."""
        return self.name.partition(".")[0]

    @property
    def table(self) -> str:
        """The part of the name after the dot."""
        return self.name.partition(".")[2]

    @property
    def separator(self) -> str:
        """What separates fields of CSV."""
        return self.delimiter or ","

    @property
    def stored_table(self) -> str:
        """The table's name in the metastore. With headers that is not `table`, which is a view without them."""
        return f"{self.table}{LINES_SUFFIX}" if self.header else self.table

    @property
    def data_names(self) -> set[str]:
        """Names of the data columns in any engine, in lower case: Spark goes by records' keys."""
        return {name.lower() for c in self.columns for name in (c.name, c.key)}

    @property
    def label_selector(self) -> LabelSelector:
        """The parsed selector."""
        return LabelSelector.parse(self.selector)

    @property
    def fresh_within_s(self) -> float:
        """`fresh_within` in seconds."""
        return parse_duration(self.fresh_within) / SECOND_NS

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of the spec of the raw table.

        The raw table follows its spec again when they change, so the typed one's spec has a digest of its own. Nor does
        `unfit` change what the table is.
        """
        parts = msgspec.structs.replace(self, typed=None, unfit=UnfitSpec())
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def parse_table_spec(text: str | bytes, beside: Mapping[str, bytes] | None = None) -> TableSpec:
    """The spec in YAML `text`; see `read_table_spec`.

    Raises: ValidationError: not YAML, unknown or missing keys, or a rule is broken; the path names
        the key. Of several errors the message holds all, each with its key.
    """
    spec, errors = read_table_spec(text, beside)
    if spec is None:
        if len(errors) == 1:
            raise errors[0]
        raise ValidationError("; ".join(map(str, errors)))
    return spec


def read_table_spec(
    text: str | bytes, beside: Mapping[str, bytes] | None = None
) -> tuple[TableSpec | None, list[ValidationError]]:
    """The spec in YAML `text`, or else all that is wrong with it, in the order of its keys.

    Args:
        text: of the spec.
        beside: contents of files beside the spec that it may name; see `json_schema_of`.
    """
    try:
        raw = _decoded(text)
    except ValidationError as err:
        return None, [err]
    if _is_of_journals(raw):
        told = (
            "looks like specs of journals, and not like one of a table: `gazctl journals apply` takes "
            "those (docs/reference/table-spec.md has an example of a table's)"
        )
        return None, [ValidationError(told)]
    sections = [raw.pop("typed")] if isinstance(raw, dict) and "typed" in raw else []
    try:
        spec = msgspec.convert(raw, type=TableSpec)
    except msgspec.ValidationError as err:
        return None, first_errors(_shape_errors(raw)) or [_shape_error(str(err))]
    errors = first_errors(_errors(spec))
    for section in sections:
        # Nothing can be said of a typed table whose records are unknown.
        if not any(error.path.startswith(_BASE_OF_TYPED) for error in errors):
            typed, found = read_typed_spec(spec, section, beside)
            errors = first_errors([*errors, *found])
            spec = msgspec.structs.replace(spec, typed=typed)
    return (None, errors) if errors else (spec, [])


def json_schema_of(text: str | bytes) -> str:
    """The file beside a spec that its section `typed:` names by `json_schema`; empty, if there is none.

    What it gives is as it is written, whatever that may be: `read_table_spec` says if it is not a name.
    """
    try:
        raw = _decoded(text)
    except ValidationError:
        return ""
    section = raw.get("typed") if isinstance(raw, dict) else None
    name = section.get("json_schema") if isinstance(section, dict) else None
    return name if isinstance(name, str) else ""


def _decoded(text: str | bytes) -> Any:
    """What the YAML says. Raises: ValidationError: too long, or not YAML."""
    if len(text) > SPEC_BYTES_MAX:
        raise ValidationError(f"is {len(text)} bytes; a table spec has at most {SPEC_BYTES_MAX}")
    try:
        check_yaml(text)
    except ValidationError as err:
        message = err.message.removeprefix("yaml: ")
        raise ValidationError(f"not valid YAML: {message}") from err
    try:
        return msgspec.yaml.decode(text)
    # Besides what it says, constructors of scalars raise what they meet: of a date such as
    # 2001-99-99, or a number of thousands of digits.
    except Exception as err:
        raise ValidationError(f"not valid YAML: {' '.join(str(err).split())}") from err


def _is_of_journals(raw: object) -> bool:
    """Whether a document has keys that specs of journals have, and none that only those of tables have."""
    if not isinstance(raw, dict):
        return False
    return bool(raw.keys() & _KEYS_OF_JOURNALS) and not raw.keys() & _KEYS_OF_TABLES


_KEYS_OF_JOURNALS = frozenset({"replication", "fragment", "children", "labels"})
_KEYS_OF_TABLES = frozenset({"selector", "format", "columns"})
# Parts of a spec that its section `typed:` is read by.
_BASE_OF_TYPED = ("name", "format", "columns")


def _shape_error(text: str) -> ValidationError:
    """What is wrong with the shape of a spec, and where the shapes are documented."""
    if "`$.format`" in text:
        found = _ENUM.match(text)
        return ValidationError(
            f"{found['found'] if found else 'that'} is not a format of raw tables "
            f"(use one of {', '.join(_FORMATS)})",
            path="format",
        )
    if "`$.unfit" in text:
        path = "unfit.block" if "`$.unfit.block`" in text else "unfit"
        return ValidationError(f"is not {UNFIT_EXAMPLE}", path=path)
    if "`$.fresh_within`" in text:
        return ValidationError(f"is not {DURATION_EXAMPLE}", path="fresh_within")
    return ValidationError(f"{text} (docs/reference/table-spec.md has an example and all keys)")


def _shape_errors(raw: object) -> list[ValidationError]:
    """What is wrong with a spec that has another shape, by trying its parts one by one.

    Rules are looked at as well, of the parts that can be read.
    """
    if not isinstance(raw, dict):
        return []
    fields = {field.encode_name: field for field in msgspec.structs.fields(TableSpec)}
    unknown = (str(key) for key in raw if key not in fields)
    found = [
        _shape_error(f"Object contains unknown field `{key[:_ERROR_CHARACTERS_MAX]}`")
        for key in islice(unknown, ERRORS_MAX + 1)
    ]
    mended: dict[str, object] = {}
    replaced: list[str] = []
    for name, field in fields.items():
        if name not in raw:
            if field.required:
                found.append(_shape_error(f"Object missing required field `{name}`"))
                mended[name] = _STAND_INS[name]
                replaced.append(name)
            continue
        is_list = name in _ITEMS and isinstance(raw[name], list) and len(raw[name]) <= COLUMNS_MAX
        kind = _ITEMS[name] if is_list else field.type
        parts: list[object] = []
        for index, value in enumerate(raw[name] if is_list else [raw[name]]):
            at = f"{name}[{index}]" if is_list else name
            try:
                parts.append(msgspec.convert(value, type=kind))
            except msgspec.ValidationError as err:
                text, _, below = str(err).partition(" - at `$")
                found.append(_shape_error(f"{text} - at `$.{at}{below or '`'}"))
                parts.append(_ITEMS[name](name=f"part_{index}", type="string") if is_list else None)
                replaced.append(at)
        mended[name] = tuple(parts) if is_list else parts[0]
    for name in mended.keys() & set(replaced):
        mended[name] = _STAND_INS[name]
    return [*found, *_errors_beside(replaced, TableSpec(**mended))]  # type: ignore[arg-type]


def _errors_beside(replaced: Sequence[str], spec: TableSpec) -> Iterator[ValidationError]:
    """Rules that the spec breaks in other parts than those that something stands in for."""
    for error in _errors(spec):
        is_of_them = any(error.path == at or error.path.startswith(f"{at}.") for at in replaced)
        # What `from` may say depends on the format.
        if not is_of_them and not ("format" in replaced and error.path.endswith(".from")):
            yield error


_ITEMS: dict[str, type[Column | Partition]] = {"columns": Column, "partitions": Partition}
# What a part that has not its shape is taken for while the others are looked at.
_STAND_INS: dict[str, object] = {
    "name": "a.b",
    "selector": "name=a",
    "format": "json",
    "columns": (Column(name="a", type="string"),),
    "partitions": (),
    "comment": "",
    "fresh_within": "24h",
    "owners": (),
    "tags": {},
    "unfit": UnfitSpec(),
    "delimiter": "",
    "header": False,
}


def _errors(spec: TableSpec) -> Iterator[ValidationError]:
    """Each rule that the spec breaks."""
    if not is_table_name(spec.name):
        yield ValidationError(
            f"{shown(spec.name)} is not schema.table (lower-case letters, digits, `_`)",
            path="name",
        )
    yield from _selector_errors(spec)
    yield from freshness_errors(spec.fresh_within, lambda: spec.fresh_within_s)
    if not 1 <= len(spec.columns) <= COLUMNS_MAX:
        yield ValidationError(f"needs 1 to {COLUMNS_MAX} columns", path="columns")
    if len(spec.partitions) > _PARTITIONS_MAX:
        yield ValidationError(f"has more than {_PARTITIONS_MAX}", path="partitions")
    # With YAML's aliases a short file can have parts that take a day to check.
    if len(spec.columns) > COLUMNS_MAX or len(spec.partitions) > _PARTITIONS_MAX:
        return
    if _characters(spec) > SPEC_BYTES_MAX:
        yield ValidationError(
            f"aliases make it longer than {SPEC_BYTES_MAX} characters: leave some out",
            path="columns",
        )
        return
    types: dict[int, ColumnType] = {}
    for index, column in enumerate(spec.columns):
        try:
            types[index] = column.parsed
        except ValidationError as err:
            yield err.within(f"columns[{index}].type")
    yield from _csv_errors(spec)
    yield from _column_errors(spec, types)
    if spec.format == "json":
        yield from _key_errors(spec, types)
    yield from _partition_errors(spec)
    try:
        _ = spec.unfit.threshold
    except ValidationError as err:
        yield err
    yield from ownership_errors(spec.owners, spec.tags)


def _characters(spec: TableSpec) -> int:
    """Of all columns, as they are without aliases."""
    columns = sum(len(c.name) + len(c.type) + len(c.comment) + len(c.source) for c in spec.columns)
    return columns + sum(
        len(p.name) + len(p.type) + len(p.comment) + len(p.alias) for p in spec.partitions
    )


def _selector_errors(spec: TableSpec) -> Iterator[ValidationError]:
    if not spec.selector.strip():
        yield ValidationError(f"may not be empty; {_SELECTOR_EXAMPLE}", path="selector")
        return
    try:
        _ = spec.label_selector
    except ValidationError as err:
        text = str(err)
        if len(text) > _ERROR_CHARACTERS_MAX:
            text = f"{text[:_ERROR_CHARACTERS_MAX]}…"
        yield ValidationError(f"{text}; {_SELECTOR_EXAMPLE}", path="selector")
        return
    if no_value := _NO_VALUE.search(spec.selector):
        yield ValidationError(
            f"{no_value['term'].strip()!r} has no value; {_SELECTOR_EXAMPLE}", path="selector"
        )


def _csv_errors(spec: TableSpec) -> Iterator[ValidationError]:
    """Errors of the keys that only tables of CSV have."""
    given = {"delimiter": bool(spec.delimiter), "header": spec.header}
    if spec.format != "csv":
        yield from (
            ValidationError("is a key of `format: csv` alone; leave it out", path=key)
            for key, is_given in given.items()
            if is_given
        )
    elif spec.delimiter and spec.delimiter not in _DELIMITERS:
        yield ValidationError(
            f"{shown(spec.delimiter)} is not a delimiter of CSV (use one of {_DELIMITERS_SHOWN})",
            path="delimiter",
        )


def _column_errors(spec: TableSpec, types: Mapping[int, ColumnType]) -> Iterator[ValidationError]:
    seen: dict[str, str] = {}
    for index, column in enumerate(spec.columns):
        path = f"columns[{index}]"
        if not is_column_name(column.name):
            yield ValidationError(
                f"{shown(column.name)} is not a column name (letters, digits, `_`); a JSON key "
                "that is none is given by `from`, e.g. `{name: order_id, from: order-id, …}`",
                path=f"{path}.name",
            )
        name = column.name.lower()
        if name in seen:
            yield ValidationError(
                f"{column.name!r} repeats {seen[name]!r}; engines ignore case", path=f"{path}.name"
            )
        seen[name] = column.name
        if spec.format == "csv" and index in types and types[index].name != "string":
            yield ValidationError(
                f"column {column.name} is {column.type}, but raw CSV tables hold strings in both "
                "engines; declare `string` and cast in SQL",
                path=f"{path}.type",
            )
        if spec.format == "csv" and column.source and not spec.header:
            yield ValidationError(
                "columns of CSV go by position; leave `from` out (with `header: true` it is the text in header rows)",
                path=f"{path}.from",
            )


def _key_errors(spec: TableSpec, types: Mapping[int, ColumnType]) -> Iterator[ValidationError]:
    """Keys of records that no reader could tell apart, or name."""
    seen: dict[str, str] = {}
    fields = {name for parsed in types.values() for name in fields_below(parsed)}
    for index, column in enumerate(spec.columns):
        path = f"columns[{index}].from"
        key = column.key
        if not is_key(key):
            yield ValidationError(
                f"{shown(key)} is longer than {KEY_CHARACTERS_MAX} characters, or has some that "
                'cannot be printed, or " or \\; not all readers can take such a key',
                path=path,
            )
        if key.lower() in seen and (column.source or seen[key.lower()] != key):
            yield ValidationError(
                f"the key {shown(key)} is that of another column ({shown(seen[key.lower()])}); "
                "Trino ignores the case of keys",
                path=path,
            )
        seen.setdefault(key.lower(), key)
        # Trino applies the mapping of a column to every field of that name, at any depth.
        if column.source and column.name.lower() in fields:
            yield ValidationError(
                f"a struct has a field {column.name!r}, which Trino would look for under "
                f"{shown(key)}, too; give this column another name",
                path=path,
            )


def fields_below(parsed: ColumnType) -> Iterator[str]:
    """Names of struct fields at any depth, lower case."""
    yield from (name.lower() for name in parsed.field_names)
    for argument in parsed.arguments:
        yield from fields_below(argument)


def _partition_errors(spec: TableSpec) -> Iterator[ValidationError]:
    data = spec.data_names
    keys: set[str] = set()
    columns: set[str] = set()
    for index, partition in enumerate(spec.partitions):
        path = f"partitions[{index}]"
        for name in dict.fromkeys((partition.name, partition.column)):
            if not is_column_name(name):
                yield ValidationError(
                    f"{shown(name)} is not a column name (letters, digits, `_`)", path=path
                )
        if partition.type not in _PARTITION_TYPES:
            yield ValidationError(
                f"{shown(partition.type)} is not a type of partition columns "
                f"(use one of {', '.join(_PARTITION_TYPES)})",
                path=f"{path}.type",
            )
        if partition.name in keys or partition.column in columns:
            yield ValidationError(f"{partition.name!r} repeats another", path=path)
        try:
            check_clash(partition.name, partition.column, data, path=path)
        except ValidationError as err:
            yield err
        keys.add(partition.name)
        columns.add(partition.column)


def check_clash(key: str, column: str, data_columns: set[str], *, path: str = "") -> None:
    """Refuse a partition column that has the name of a data column.

    Raises: ValidationError: with the two ways out.
    """
    if column in data_columns:
        raise ValidationError(
            f"partition key {key!r} is also a data column: if both mean the same, leave the column "
            f"out of `columns`; else rename the key: "
            f"`partitions: [{{name: {key}, as: fragment_{key}}}]`",
            path=path,
        )
