"""CREATE statements of a raw table in the dialects of engines: for those that are not ours.

The platform makes its own tables through the metastore (`lake.tables`). These statements mount the
same files elsewhere: another catalog, a warehouse in the cloud, a laptop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.hive import CSV_ESCAPE, CSV_STORAGE, JSON_STORAGE
from gazette_platform.lake.raw.tables import key_mappings
from gazette_platform.lake.spec.formats import header_condition
from gazette_platform.lake.spec.schema import parse_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gazette_platform.lake.spec.layout import Layout, PartitionColumn
    from gazette_platform.lake.spec.schema import ColumnType
    from gazette_platform.lake.spec.table_spec import TableSpec


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MountedTable:
    """A table and where its files are."""

    spec: TableSpec
    layout: Layout
    partitions: tuple[PartitionColumn, ...]
    location: str
    """URL of the folder of all its files, without a trailing slash."""

    @property
    def folders_below(self) -> int:
        """How many folders lie between the location and a file."""
        base = self.layout.base
        return len(self.layout.segments) - (base.count("/") + 1 if base else 0)


def create_statement(table: MountedTable, dialect: str) -> str:
    """SQL that mounts the table, with comments on what else is to be done. Ends with a newline.

    Raises: ValidationError: no such dialect.
    """
    make = _MAKERS.get(dialect)
    if make is None:
        raise ValidationError(
            f"{dialect!r} is not a dialect (use one of {', '.join(DIALECTS)})", path="--dialect"
        )
    return make(table)


# ------------------------------------------------------------------ Trino, Spark, Hive


def _trino(table: MountedTable) -> str:
    spec = table.spec
    columns = [
        f'"{c.name.lower()}" {_trino_type(c.parsed)}{_comment(c.comment)}' for c in spec.columns
    ]
    columns += [
        f'"{p.column}" {_trino_type(parse_type(p.type))}{_comment(p.comment)}'
        for p in table.partitions
    ]
    properties = {
        "external_location": _text(table.location),
        "format": "'OPENX_JSON'" if spec.format == "json" else "'CSV'",
    }
    if table.partitions:
        names = ", ".join(_text(p.column) for p in table.partitions)
        properties["partitioned_by"] = f"ARRAY[{names}]"
    if spec.format == "json":
        extra = {**JSON_STORAGE.serde_parameters, **key_mappings(spec)}
        keys, values = (", ".join(map(_text, each)) for each in (extra, extra.values()))
        properties["extra_properties"] = f"MAP(ARRAY[{keys}], ARRAY[{values}])"
    else:
        properties["csv_escape"] = f"U&'\\{ord(CSV_ESCAPE):04X}'"
        if spec.delimiter:
            properties["csv_separator"] = f"U&'\\{ord(spec.delimiter):04X}'"
    given = ",\n".join(f"  {name} = {value}" for name, value in properties.items())
    return (
        f'CREATE SCHEMA IF NOT EXISTS "{spec.schema}";\n\n'
        f'CREATE TABLE "{spec.schema}"."{spec.stored_table}" (\n{_lines(columns)}\n)\n'
        f"{_comment(spec.comment, end=chr(10)).lstrip()}WITH (\n{given}\n);\n"
        + _note(
            table,
            "Hive partitions are added by CALL system.register_partition(…), which needs "
            "hive.allow-register-partition-procedure=true",
        )
        + _without_headers(spec, lambda name: _double(name.lower()), _text)
    )


def _trino_type(kind: ColumnType) -> str:
    match kind.name:
        case "array" | "map":
            return f"{kind.name}({', '.join(map(_trino_type, kind.arguments))})"
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return f"row({', '.join(f'{_double(n)} {_trino_type(t)}' for n, t in fields)})"
        case _:
            return kind.trino


def _spark(table: MountedTable) -> str:
    spec = table.spec
    columns = [
        f"{_tick(c.key if spec.format == 'json' else c.name)} {_hive_type(c.parsed)}{_spark_comment(c.comment)}"
        for c in spec.columns
    ]
    columns += [
        f"{_tick(p.column)} {_hive_type(parse_type(p.type))}{_spark_comment(p.comment)}"
        for p in table.partitions
    ]
    options = "escape '\"'" + (f", sep {_spark_text(spec.delimiter)}" if spec.delimiter else "")
    using = "json" if spec.format == "json" else f"csv OPTIONS ({options})"
    keys = ", ".join(_tick(p.column) for p in table.partitions)
    is_renamed = spec.format == "json"
    renamed = [f"{_tick(c.source)} for {c.name}" for c in spec.columns if c.source and is_renamed]
    return (
        f"CREATE SCHEMA IF NOT EXISTS {_tick(spec.schema)};\n\n"
        f"CREATE TABLE {_tick(spec.schema)}.{_tick(spec.stored_table)} (\n{_lines(columns)}\n)\n"
        f"USING {using}\n"
        + (f"PARTITIONED BY ({keys})\n" if keys else "")
        + f"LOCATION {_spark_text(table.location)}"
        + (f"\nCOMMENT {_spark_text(spec.comment)}" if spec.comment else "")
        + ";\n"
        + (_note(table, "Hive partitions are added by ALTER TABLE … ADD IF NOT EXISTS PARTITION …"))
        + (
            f"-- Spark's JSON reader calls columns by their keys: {', '.join(renamed)}.\n"
            if renamed
            else ""
        )
        + _without_headers(spec, _tick, _spark_text)
    )


def _hive(table: MountedTable) -> str:
    spec = table.spec
    storage = JSON_STORAGE if spec.format == "json" else CSV_STORAGE
    columns = [
        f"{_tick(c.name.lower())} {_hive_type(c.parsed)}{_spark_comment(c.comment)}"
        for c in spec.columns
    ]
    keys = [
        f"{_tick(p.column)} {_hive_type(parse_type(p.type))}{_spark_comment(p.comment)}"
        for p in table.partitions
    ]
    own = {"separatorChar": spec.separator} if spec.format == "csv" else key_mappings(spec)
    serde = {**storage.serde_parameters, **own}
    properties = ", ".join(f"{_spark_text(k)} = {_spark_text(v)}" for k, v in serde.items())
    return (
        f"CREATE DATABASE IF NOT EXISTS {_tick(spec.schema)};\n\n"
        f"CREATE EXTERNAL TABLE {_tick(spec.schema)}.{_tick(spec.stored_table)} (\n{_lines(columns)}\n)\n"
        + (f"COMMENT {_spark_text(spec.comment)}\n" if spec.comment else "")
        + (f"PARTITIONED BY (\n{_lines(keys)}\n)\n" if keys else "")
        + f"ROW FORMAT SERDE {_spark_text(storage.serde)}\n"
        + f"WITH SERDEPROPERTIES ({properties})\n"
        + f"STORED AS INPUTFORMAT {_spark_text(storage.input_format)}\n"
        + f"OUTPUTFORMAT {_spark_text(storage.output_format)}\n"
        + f"LOCATION {_spark_text(table.location)};\n"
        + _note(table, "Hive partitions are added by MSCK REPAIR TABLE, or ALTER TABLE … ADD")
        + _without_headers(spec, _tick, _spark_text)
    )


def _hive_type(kind: ColumnType) -> str:
    match kind.name:
        case "array" | "map":
            return f"{kind.name}<{', '.join(map(_hive_type, kind.arguments))}>"
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return f"struct<{', '.join(f'{_tick(n)}: {_hive_type(t)}' for n, t in fields)}>"
        case _:
            return kind.hive


# ------------------------------------------------------------------ warehouses


def _bigquery(table: MountedTable) -> str:
    spec = table.spec
    # BigQuery calls partition columns by the keys in the path, beside which no data has room.
    in_path = {p.key.lower() for p in table.partitions}
    data = [c for c in spec.columns if c.name.lower() not in in_path]
    columns = [f"{_tick(c.name)} {_bigquery_type(c.parsed)}" for c in data]
    keys = [f"{_tick(p.key)} {_bigquery_type(parse_type(p.type))}" for p in table.partitions]
    location = table.location
    options = {
        "format": "'JSON'" if spec.format == "json" else "'CSV'",
        "uris": f"[{_spark_text(f'{location}/*')}]",
        **({"field_delimiter": _bigquery_text(spec.delimiter)} if spec.delimiter else {}),
        **({"hive_partition_uri_prefix": _spark_text(location)} if keys else {}),
        "ignore_unknown_values": "TRUE",
        **({"description": _bigquery_text(spec.comment)} if spec.comment else {}),
    }
    given = ",\n".join(f"  {name} = {value}" for name, value in options.items())
    notes = []
    if not location.startswith("gs://"):
        notes.append("BigQuery reads gs:// only: copy the files to a bucket, and name it here.")
    notes += [
        f"{c.name} of the records is left out: the path has a key of that name."
        for c in spec.columns
        if c not in data
    ]
    lost = [f"{c.name} ({c.source!r})" for c in data if c.source and spec.format == "json"]
    if lost:
        notes.append(
            f"BigQuery finds columns by their keys only, so these are NULL: {', '.join(lost)}. "
            "Load such records as one column of type JSON instead."
        )
    notes += [
        f"{p.column} is called {p.key} here, as in the path."
        for p in table.partitions
        if p.column != p.key
    ]
    return (
        f"CREATE SCHEMA IF NOT EXISTS {_tick(spec.schema)};\n\n"
        f"CREATE EXTERNAL TABLE {_tick(spec.schema)}.{_tick(spec.stored_table)} (\n{_lines(columns)}\n)\n"
        + (f"WITH PARTITION COLUMNS (\n{_lines(keys)}\n)\n" if keys else "")
        + f"OPTIONS (\n{given}\n);\n"
        + "".join(f"-- {note}\n" for note in notes)
        + _without_headers(spec, _tick, _bigquery_text)
    )


_BIGQUERY = {
    "string": "STRING", "boolean": "BOOL", "float": "FLOAT64", "double": "FLOAT64", "date": "DATE",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "INT64"),
}  # fmt: skip


def _bigquery_type(kind: ColumnType) -> str:
    match kind.name:
        case "decimal":
            return f"BIGNUMERIC({kind.precision}, {kind.scale})"
        case "array" if kind.arguments[0].name == "array":
            return "JSON"  # there are no arrays of arrays
        case "array":
            return f"ARRAY<{_bigquery_type(kind.arguments[0])}>"
        case "map":
            return "JSON"
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return f"STRUCT<{', '.join(f'{_tick(n)} {_bigquery_type(t)}' for n, t in fields)}>"
        case _:
            return _BIGQUERY[kind.name]


def _snowflake(table: MountedTable) -> str:
    spec = table.spec
    columns = []
    for index, column in enumerate(spec.columns, 1):
        value = f"VALUE:{_double(column.key)}" if spec.format == "json" else f"VALUE:c{index}"
        kind = _snowflake_type(column.parsed)
        columns.append(f"{_double(column.name.upper())} {kind} AS ({value}::{kind})")
    for partition in table.partitions:
        kind = _snowflake_type(parse_type(partition.type))
        pattern = f"'(^|/){partition.key}=([^/]*)'"
        found = f"REGEXP_SUBSTR(METADATA$FILENAME, {pattern}, 1, 1, 'e', 2)"
        columns.append(f"{_double(partition.column.upper())} {kind} AS ({found}::{kind})")
    keys = ", ".join(_double(p.column.upper()) for p in table.partitions)
    kind = "JSON" if spec.format == "json" else """CSV FIELD_OPTIONALLY_ENCLOSED_BY = '"'"""
    if spec.delimiter:
        kind += f" FIELD_DELIMITER = {_spark_text(spec.delimiter)}"
    # In upper case, as it has names without quotes; one may be a word of SQL.
    schema, name = _double(spec.schema.upper()), _double(spec.stored_table.upper())
    return (
        f"CREATE SCHEMA IF NOT EXISTS {schema};\n\n"
        f"CREATE EXTERNAL TABLE {schema}.{name} (\n{_lines(columns)}\n)\n"
        + (f"PARTITION BY ({keys})\n" if keys else "")
        + f"LOCATION = @gazette/{table.layout.base}/\n"
        + "AUTO_REFRESH = FALSE\n"
        + f"FILE_FORMAT = (TYPE = {kind})"
        # A backslash escapes in its texts.
        + (f"\nCOMMENT = {_spark_text(spec.comment)}" if spec.comment else "")
        + ";\n"
        + f"-- Before: CREATE STAGE gazette over the store that holds {table.location}\n"
        + "-- After, and whenever files have come: ALTER EXTERNAL TABLE … REFRESH\n"
        + _without_headers(spec, lambda name: _double(name.upper()), _spark_text)
    )


_SNOWFLAKE = {
    "string": "VARCHAR", "boolean": "BOOLEAN", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INT", "bigint": "BIGINT",
    "array": "ARRAY", "map": "OBJECT", "struct": "OBJECT",
}  # fmt: skip


def _snowflake_type(kind: ColumnType) -> str:
    if kind.name == "decimal":
        return f"NUMBER({kind.precision}, {kind.scale})"
    return _SNOWFLAKE[kind.name]


# ------------------------------------------------------------------ DuckDB


def _duckdb(table: MountedTable) -> str:
    spec = table.spec
    files = _path(table.location) + "/*" * (table.folders_below + 1)
    is_json = spec.format == "json"
    typed = (
        {c.key: _duckdb_type(c.parsed) for c in spec.columns} if is_json else {"line": "VARCHAR"}
    )
    options: dict[str, str] = {
        "columns": "{" + ", ".join(f"{_text(k)}: {_text(t)}" for k, t in typed.items()) + "}"
    }
    selected = [
        f"{_double(c.source)} AS {_double(c.name)}" if c.source and is_json else _double(c.name)
        for c in spec.columns
    ]
    if not is_json:
        selected = [f"fields[{i}] AS {_double(c.name)}" for i, c in enumerate(spec.columns, 1)]
    # A key of the path that is a key of records, too, would take the place of the latter.
    taken = spec.data_names if is_json else {"line", "text", "fields"}
    is_apart = taken.isdisjoint(p.key.lower() for p in table.partitions)
    if table.partitions and is_apart:
        kinds = {p.key: _duckdb_type(parse_type(p.type)) for p in table.partitions}
        options["hive_partitioning"] = "true"
        options["hive_types"] = (
            "{" + ", ".join(f"{_text(key)}: {kind}" for key, kind in kinds.items()) + "}"
        )
        selected += [
            _double(p.key) if p.key == p.column else f"{_double(p.key)} AS {_double(p.column)}"
            for p in table.partitions
        ]
    elif table.partitions:
        options |= {"hive_partitioning": "false", "filename": "true"}
        selected += [
            f"regexp_extract(filename, '/{p.key}=([^/]*)/', 1)::"
            f"{_duckdb_type(parse_type(p.type))} AS {_double(p.column)}"
            for p in table.partitions
        ]
    else:
        options["hive_partitioning"] = "false"
    options |= _DUCKDB_LINES if spec.format == "csv" else _DUCKDB_JSON
    reader = "read_json" if spec.format == "json" else "read_csv"
    given = "".join(f",\n  {name} = {value}" for name, value in options.items())
    condition = header_condition(spec, _double, _text)
    rows = f"\nWHERE {condition}" if condition else ""
    source = f"{reader}(\n  {_text(files)}{given}\n)"
    return (
        f"CREATE SCHEMA IF NOT EXISTS {_double(spec.schema)};\n\n"
        f"CREATE OR REPLACE VIEW {_double(spec.schema)}.{_double(spec.table)} AS\n"
        + (
            f"WITH {_duckdb_records(source, spec)}\nSELECT\n{_lines(selected)}\nFROM records{rows};\n"
            if spec.format == "csv"
            else f"SELECT\n{_lines(selected)}\nFROM {source};\n"
        )
    )


_DUCKDB_JSON = {"format": "'newline_delimited'", "ignore_errors": "true"}
# DuckDB's own parser takes a field in quotes over several lines, drops lines of another width or fails at
# them, and makes NULL of what is empty. So it reads lines, as wholes, and fields are cut out of them here.
_DUCKDB_LINES = {
    "header": "false",
    "auto_detect": "false",
    "delim": "E'\\x02\\x03\\x02\\x03'",
    "quote": "''",
    "escape": "''",
    "new_line": "'\\r\\n'",  # which takes a newline alone, too
    "strict_mode": "false",
    "max_line_size": str(100 << 20),
}
# A field, with the comma before it: in quotes and what follows them; with a quote that stays open up to the
# end of the line, which makes NULL of it; or plain.
_DUCKDB_FIELD = (
    """[,]((?:[~]*"(?:[^"]|"")*"[^,]*)|(?:[~]*"(?:[^"]|"")*$)|(?:[^",]+"[^"]*$)|[^,]*)"""
)
_DUCKDB_QUOTED = """^[~]*"((?:[^"]|"")*)"(.*)$"""


_DUCKDB_RECORDS = """\
lines AS (
  SELECT *, replace(coalesce(line, ''), chr(1), '') AS text FROM {source}
),
records AS (
  SELECT *, [
    CASE
      WHEN (length(f) - length(replace(f, '"', ''))) % 2 = 1 THEN NULL
      WHEN regexp_matches(f, {quoted}) THEN
        replace(regexp_extract(f, {quoted}, 1), '""', '"') || regexp_extract(f, {quoted}, 2)
      ELSE f
    END FOR f IN CASE WHEN text = '' THEN [] ELSE
      regexp_extract_all({separator} || text, {field}, 1) END
  ] AS fields FROM lines
)"""


def _duckdb_records(source: str, spec: TableSpec) -> str:
    """Subqueries that make lists of fields of lines, by the rules of Trino."""
    blanks = " \t".replace(spec.separator, "")
    field = _DUCKDB_FIELD.replace(",", spec.separator).replace("~", blanks)
    return _DUCKDB_RECORDS.format(
        source=source,
        separator=_text(spec.separator),
        quoted=_text(_DUCKDB_QUOTED.replace("~", blanks)),
        field=_text(field),
    )


_DUCKDB = {
    "string": "VARCHAR", "boolean": "BOOLEAN", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
}  # fmt: skip


def _duckdb_type(kind: ColumnType) -> str:
    match kind.name:
        case "decimal":
            return f"DECIMAL({kind.precision}, {kind.scale})"
        case "array":
            return f"{_duckdb_type(kind.arguments[0])}[]"
        case "map":
            return f"MAP({', '.join(map(_duckdb_type, kind.arguments))})"
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            return f"STRUCT({', '.join(f'{_double(n)} {_duckdb_type(t)}' for n, t in fields)})"
        case _:
            return _DUCKDB[kind.name]


# ------------------------------------------------------------------ texts


def _without_headers(
    spec: TableSpec, quoted: Callable[[str], str], literal: Callable[[str], str]
) -> str:
    """A view that is the table without header rows; empty if it has none."""
    condition = header_condition(spec, quoted, literal)
    if not condition:
        return ""
    view, table = (f"{quoted(spec.schema)}.{quoted(t)}" for t in (spec.table, spec.stored_table))
    return f"\nCREATE VIEW {view} AS\nSELECT * FROM {table}\nWHERE {condition};\n"


def _path(location: str) -> str:
    return location.removeprefix("file://")


def _lines(items: Iterable[str]) -> str:
    return ",\n".join(f"  {item}" for item in items)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _spark_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _bigquery_text(text: str) -> str:
    # Which ends at the end of its line.
    return _spark_text(text).replace("\r", "\\r").replace("\n", "\\n")


def _double(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _tick(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _comment(text: str, *, end: str = "") -> str:
    return f" COMMENT {_text(text)}{end}" if text else ""


def _spark_comment(text: str) -> str:
    return f" COMMENT {_spark_text(text)}" if text else ""


def _note(table: MountedTable, text: str) -> str:
    return f"-- {text}.\n" if table.partitions else ""


_MAKERS: Mapping[str, Callable[[MountedTable], str]] = {
    "trino": _trino,
    "spark": _spark,
    "hive": _hive,
    "bigquery": _bigquery,
    "snowflake": _snowflake,
    "duckdb": _duckdb,
}
DIALECTS = tuple(_MAKERS)
"""Names of the dialects."""
