"""Table specs: which journals make a table, in which format, with which columns.

A spec is a YAML file:

    name: flights.flights               # schema.table, lower case
    selector: name:prefix=flights/      # over journals; label selector text
    format: json                        # json: one object a line; csv: no header, all strings
    comment: Flights as published.
    fresh_within: 24h                   # Dagster shows the table as stale after that
    columns:
      - {name: carrier, type: string, comment: two letters}
    partitions:                         # optional: types and names of keys found in the path
      - {name: hour, as: fragment_hour, type: int}

Partition columns are not declared but found: every ``key=value`` segment of the journal name, then
of the path postfix, is one, a string unless `partitions` says otherwise.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.schema import ColumnType, parse_type
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import LabelSelector, parse_duration
from gazette_platform.yaml_specs.strict_yaml import check_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "Column",
    "Partition",
    "TableSpec",
    "check_clash",
    "load_table_specs",
    "parse_table_spec",
    "specs_digest",
]

_TABLE_NAME = re.compile(r"([a-z_][a-z0-9_]{0,126})\.([a-z_][a-z0-9_]{0,126})\Z")
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,126}\Z")
# Types whose text in a path has one canonical value, so that two directories never claim one
# Hive partition unnoticed.
_PARTITION_TYPES = ("string", "tinyint", "smallint", "int", "bigint", "date")
_COLUMNS_MAX = 2000
# Dagster looks once a minute or so.
_FRESH_MIN_S = 120
_SPEC_BYTES_MAX = 1 << 20
_SHOWN_MAX = 80
_FORMATS = ("json", "csv")
_FRESH_EXAMPLE = "a duration with its unit, such as `90m` or `24h`"
_SELECTOR_EXAMPLE = "select journals by name or label, e.g. `name:prefix=flights/`"
# `name==` would match any value: a slip of the pen, as `name` alone says that.
_NO_VALUE = re.compile(r"(?P<term>[^,()]*=)\s*(,|\Z)")
_ENUM = re.compile(r"Invalid enum value (?P<found>'.*') - at")


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A data column; the name is matched with the record's key as written."""

    name: str
    type: str
    comment: str = ""

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

    @property
    def schema(self) -> str:
        """The part of the name before the dot: a database of the metastore."""
        return self.name.partition(".")[0]

    @property
    def table(self) -> str:
        """The part of the name after the dot."""
        return self.name.partition(".")[2]

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
        """16 hex digits that change with any part of the spec."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def parse_table_spec(text: str | bytes) -> TableSpec:
    """The spec in YAML `text`.

    Raises: ValidationError: not YAML, unknown or missing keys, or a rule is broken; the path names
        the key.
    """
    try:
        check_yaml(text)
    except ValidationError as err:
        raise ValidationError(f"not valid YAML: {err.message.removeprefix('yaml: ')}") from err
    try:
        spec = msgspec.yaml.decode(text, type=TableSpec)
    except msgspec.ValidationError as err:
        raise _shape_error(str(err)) from err
    # Besides what it says, constructors of scalars raise what they meet: of a date such as
    # 2001-99-99, or a number of thousands of digits.
    except Exception as err:
        raise ValidationError(f"not valid YAML: {' '.join(str(err).split())}") from err
    _validate(spec)
    return spec


def load_table_specs(folder: Path) -> tuple[dict[str, TableSpec], dict[str, ValidationError]]:
    """All specs ``*.yaml`` and ``*.yml`` of a folder, read anew.

    Returns: specs by name, sorted, and errors by file name: a bad file hides no good one. A missing
        folder is empty.
    """
    specs: dict[str, TableSpec] = {}
    errors: dict[str, ValidationError] = {}
    origins: dict[str, str] = {}
    if not folder.is_dir():
        return specs, errors
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".yaml", ".yml"}):
        if path.name.startswith("."):
            continue
        try:
            spec = _load(path)
        except ValidationError as err:
            errors[path.name] = err.within(path.name)
            continue
        if spec.name in specs:
            errors[path.name] = ValidationError(
                f"table {spec.name} is defined in {origins[spec.name]} already; rename or remove "
                "one",
                path=path.name,
            )
            continue
        specs[spec.name] = spec
        origins[spec.name] = path.name
    return dict(sorted(specs.items())), errors


def specs_digest(specs: Mapping[str, TableSpec]) -> str:
    """16 hex digits that change with any part of any of `specs`."""
    text = " ".join(f"{name}:{specs[name].digest}" for name in sorted(specs))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _load(path: Path) -> TableSpec:
    try:
        raw = path.read_bytes()
    except OSError as err:
        raise ValidationError(f"cannot be read: {err.strerror}") from err
    if len(raw) > _SPEC_BYTES_MAX:
        raise ValidationError(f"is {len(raw)} bytes; a table spec has at most {_SPEC_BYTES_MAX}")
    return parse_table_spec(raw)


def _shape_error(text: str) -> ValidationError:
    """What is wrong with the shape of a spec, and where the shapes are told."""
    if "`$.format`" in text:
        found = _ENUM.match(text)
        return ValidationError(
            f"{found['found'] if found else 'that'} is not a format of raw tables "
            f"(use one of {', '.join(_FORMATS)})",
            path="format",
        )
    if "`$.fresh_within`" in text:
        return ValidationError(f"is not {_FRESH_EXAMPLE}", path="fresh_within")
    return ValidationError(f"{text} (docs/reference/table-spec.md has an example and all keys)")


def _shown(text: str) -> str:
    """A text of a spec, in an error."""
    return repr(text) if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]!r}…"


def _validate(spec: TableSpec) -> None:
    if not _TABLE_NAME.match(spec.name):
        raise ValidationError(
            f"{_shown(spec.name)} is not schema.table (lower-case letters, digits, `_`)",
            path="name",
        )
    if not spec.selector.strip():
        raise ValidationError(f"may not be empty; {_SELECTOR_EXAMPLE}", path="selector")
    try:
        _ = spec.label_selector
    except ValidationError as err:
        raise ValidationError(f"{err}; {_SELECTOR_EXAMPLE}", path="selector") from err
    if no_value := _NO_VALUE.search(spec.selector):
        raise ValidationError(
            f"{no_value['term'].strip()!r} has no value; {_SELECTOR_EXAMPLE}", path="selector"
        )
    try:
        seconds = spec.fresh_within_s
    except ValidationError as err:
        raise ValidationError(f"{err}: not {_FRESH_EXAMPLE}", path="fresh_within") from err
    if seconds < _FRESH_MIN_S:
        raise ValidationError(
            f"{spec.fresh_within} is less than {_FRESH_MIN_S // 60}m, as often as Dagster looks",
            path="fresh_within",
        )
    if not 1 <= len(spec.columns) <= _COLUMNS_MAX:
        raise ValidationError(f"needs 1 to {_COLUMNS_MAX} columns", path="columns")
    _validate_columns(spec)
    _validate_partitions(spec)


def _validate_columns(spec: TableSpec) -> None:
    seen: dict[str, str] = {}
    for index, column in enumerate(spec.columns):
        path = f"columns[{index}]"
        if not _COLUMN_NAME.match(column.name):
            raise ValidationError(
                f"{_shown(column.name)} is not a column name (letters, digits, `_`)",
                path=f"{path}.name",
            )
        key = column.name.lower()
        if key in seen:
            raise ValidationError(
                f"{column.name!r} repeats {seen[key]!r}; engines ignore case", path=f"{path}.name"
            )
        seen[key] = column.name
        try:
            parsed = column.parsed
        except ValidationError as err:
            raise err.within(f"{path}.type") from err
        if spec.format == "csv" and parsed.name != "string":
            raise ValidationError(
                f"column {column.name} is {column.type}, but raw CSV tables hold strings in both "
                "engines; declare `string` and cast in SQL",
                path=f"{path}.type",
            )


def _validate_partitions(spec: TableSpec) -> None:
    data = {c.name.lower() for c in spec.columns}
    keys: set[str] = set()
    columns: set[str] = set()
    for index, partition in enumerate(spec.partitions):
        path = f"partitions[{index}]"
        for name in (partition.name, partition.column):
            if not _COLUMN_NAME.match(name):
                raise ValidationError(
                    f"{_shown(name)} is not a column name (letters, digits, `_`)", path=path
                )
        if partition.type not in _PARTITION_TYPES:
            raise ValidationError(
                f"{_shown(partition.type)} is not a type of partition columns "
                f"(use one of {', '.join(_PARTITION_TYPES)})",
                path=f"{path}.type",
            )
        if partition.name in keys or partition.column in columns:
            raise ValidationError(f"{partition.name!r} repeats another", path=path)
        check_clash(partition.name, partition.column, data, path=path)
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
