"""CREATE statements of a raw table in the dialects of engines: for those that are not ours.

The platform makes its own tables through the metastore (`lake.tables`). These statements mount the
same files elsewhere: another catalog, a warehouse in the cloud, a laptop.

`mount_statement` shows a typed table to engines that do not ask its catalog: as it is now, by a file of its metadata. Runs that
publish later write new such files, which these engines do not know until they are notified.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.hive import CSV_ESCAPE, CSV_STORAGE, JSON_STORAGE
from gazette_platform.lake.raw.tables import key_mappings
from gazette_platform.lake.spec.formats import header_condition
from gazette_platform.lake.spec.types import parse_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gazette_platform.lake.spec.layout import Layout, PartitionColumn
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.types import ColumnType


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


# ------------------------------------------------------------------ texts


def _lines(items: Iterable[str]) -> str:
    return ",\n".join(f"  {item}" for item in items)


def _settings(properties: Mapping[str, str]) -> str:
    return _lines(f"{name} = {value}" for name, value in properties.items())


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


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Dialect:
    """How an engine writes names, texts, types and the statements that mount a table."""

    quote: Callable[[str], str]
    """Of names of tables and columns; those of fields need no escapes."""
    text: Callable[[str], str]
    scalars: Mapping[str, str]
    """By the names that specs have, where they differ."""
    decimal: str = "decimal({},{})"
    array: str = "array<{}>"
    matrix: str = ""
    """An array of arrays, if it is not an array."""
    map: str = "map<{}, {}>"
    struct: str = "struct<{}>"
    field: str = "`{}`: {}"
    folder: str = "SCHEMA"
    create: str = "CREATE EXTERNAL TABLE"

    def type(self, kind: ColumnType) -> str:
        parts = map(self.type, kind.arguments)
        match kind.name:
            case "decimal":
                return self.decimal.format(kind.precision, kind.scale)
            case "array" if self.matrix and kind.arguments[0].name == "array":
                return self.matrix
            case "array":
                return self.array.format(*parts)
            case "map":
                return self.map.format(*parts)
            case "struct":
                fields = zip(kind.field_names, parts, strict=True)
                return self.struct.format(", ".join(starmap(self.field.format, fields)))
            case _:
                return self.scalars.get(kind.name, kind.name)

    def column(self, name: str, kind: ColumnType, comment: str = "") -> str:
        described = f" COMMENT {self.text(comment)}" if comment else ""
        return f"{self.quote(name)} {self.type(kind)}{described}"

    def keys(self, table: MountedTable) -> list[str]:
        return [self.column(p.column, parse_type(p.type), p.comment) for p in table.partitions]

    def statement(
        self, table: MountedTable, columns: Iterable[str], clauses: Sequence[str], *notes: str
    ) -> str:
        """Return the statements that mount a table, without empty clauses and notes."""
        spec = table.spec
        schema, stored, view = map(self.quote, (spec.schema, spec.stored_table, spec.table))
        condition = header_condition(spec, self.quote, self.text)
        return (
            f"CREATE {self.folder} IF NOT EXISTS {schema};\n\n"
            f"{self.create} {schema}.{stored} (\n{_lines(columns)}\n)\n"
            + "\n".join(filter(None, clauses))
            + ";\n"
            + "".join(f"-- {note}\n" for note in filter(None, notes))
            # The stored table has header rows, which a view leaves out.
            + f"\nCREATE VIEW {schema}.{view} AS\nSELECT * FROM {schema}.{stored}\nWHERE {condition};\n"
            * bool(condition)
        )


def _listed(table: MountedTable, dialect: _Dialect) -> str:
    return ", ".join(dialect.quote(p.column) for p in table.partitions)


def _comment(spec: TableSpec, dialect: _Dialect) -> str:
    return f"COMMENT {dialect.text(spec.comment)}" if spec.comment else ""


# ------------------------------------------------------------------ Trino, Spark, Hive

_TRINO = _Dialect(
    quote=lambda name: _double(name.lower()),
    text=_text,
    scalars={"string": "varchar", "int": "integer", "float": "real"},
    array="array({})",
    map="map({}, {})",
    struct="row({})",
    field='"{}" {}',
    create="CREATE TABLE",
)
_HIVE = _Dialect(quote=_tick, text=_spark_text, scalars={}, folder="DATABASE")
_SPARK = replace(_HIVE, folder="SCHEMA", create="CREATE TABLE")


def _trino(table: MountedTable) -> str:
    spec = table.spec
    columns = [_TRINO.column(c.name, c.parsed, c.comment) for c in spec.columns]
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
    return _TRINO.statement(
        table,
        columns + _TRINO.keys(table),
        [_comment(spec, _TRINO), f"WITH (\n{_settings(properties)}\n)"],
        "Hive partitions are added by CALL system.register_partition(…), which needs "
        "hive.allow-register-partition-procedure=true." * bool(table.partitions),
    )


def _spark(table: MountedTable) -> str:
    spec = table.spec
    is_json = spec.format == "json"
    columns = [
        _SPARK.column(c.key if is_json else c.name, c.parsed, c.comment) for c in spec.columns
    ]
    options = "escape '\"'" + (f", sep {_spark_text(spec.delimiter)}" if spec.delimiter else "")
    keys = _listed(table, _SPARK)
    renamed = [f"{_tick(c.source)} for {c.name}" for c in spec.columns if c.source and is_json]
    return _SPARK.statement(
        table,
        columns + _SPARK.keys(table),
        [
            "USING json" if is_json else f"USING csv OPTIONS ({options})",
            keys and f"PARTITIONED BY ({keys})",
            f"LOCATION {_spark_text(table.location)}",
            _comment(spec, _SPARK),
        ],
        keys and "Hive partitions are added by ALTER TABLE … ADD IF NOT EXISTS PARTITION ….",
        f"Spark's JSON reader calls columns by their keys: {', '.join(renamed)}." * bool(renamed),
    )


def _hive(table: MountedTable) -> str:
    spec = table.spec
    storage = JSON_STORAGE if spec.format == "json" else CSV_STORAGE
    keys = _HIVE.keys(table)
    own = {"separatorChar": spec.separator} if spec.format == "csv" else key_mappings(spec)
    serde = {**storage.serde_parameters, **own}
    properties = ", ".join(f"{_spark_text(k)} = {_spark_text(v)}" for k, v in serde.items())
    return _HIVE.statement(
        table,
        [_HIVE.column(c.name.lower(), c.parsed, c.comment) for c in spec.columns],
        [
            _comment(spec, _HIVE),
            f"PARTITIONED BY (\n{_lines(keys)}\n)" if keys else "",
            f"ROW FORMAT SERDE {_spark_text(storage.serde)}",
            f"WITH SERDEPROPERTIES ({properties})",
            f"STORED AS INPUTFORMAT {_spark_text(storage.input_format)}",
            f"OUTPUTFORMAT {_spark_text(storage.output_format)}",
            f"LOCATION {_spark_text(table.location)}",
        ],
        "Hive partitions are added by MSCK REPAIR TABLE, or ALTER TABLE … ADD." * bool(keys),
    )


# ------------------------------------------------------------------ warehouses

_BIGQUERY = _Dialect(
    quote=_tick,
    text=_bigquery_text,
    scalars={
        "string": "STRING", "boolean": "BOOL", "float": "FLOAT64", "double": "FLOAT64", "date": "DATE",
        **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "INT64"),
    },
    decimal="BIGNUMERIC({}, {})",
    array="ARRAY<{}>",
    map="JSON",
    struct="STRUCT<{}>",
    field="`{}` {}",
    matrix="JSON",
)  # fmt: skip
_SNOWFLAKE = _Dialect(
    # In upper case, as it has names without quotes; one may be a word of SQL.
    quote=lambda name: _double(name.upper()),
    # A backslash escapes in its texts.
    text=_spark_text,
    scalars={
        "string": "VARCHAR", "boolean": "BOOLEAN", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
        "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INT", "bigint": "BIGINT",
    },
    decimal="NUMBER({}, {})",
    array="ARRAY",
    map="OBJECT",
    struct="OBJECT",
)  # fmt: skip


def _bigquery(table: MountedTable) -> str:
    spec, location = table.spec, table.location
    # BigQuery calls partition columns by the keys in the path, beside which no data has room.
    in_path = {p.key.lower() for p in table.partitions}
    data = [c for c in spec.columns if c.name.lower() not in in_path]
    keys = [_BIGQUERY.column(p.key, parse_type(p.type)) for p in table.partitions]
    options = {
        "format": "'JSON'" if spec.format == "json" else "'CSV'",
        "uris": f"[{_spark_text(f'{location}/*')}]",
        **({"field_delimiter": _bigquery_text(spec.delimiter)} if spec.delimiter else {}),
        **({"hive_partition_uri_prefix": _spark_text(location)} if keys else {}),
        "ignore_unknown_values": "TRUE",
        **({"description": _bigquery_text(spec.comment)} if spec.comment else {}),
    }
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
    return _BIGQUERY.statement(
        table,
        [_BIGQUERY.column(c.name, c.parsed) for c in data],
        [
            f"WITH PARTITION COLUMNS (\n{_lines(keys)}\n)" if keys else "",
            f"OPTIONS (\n{_settings(options)}\n)",
        ],
        *notes,
    )


def _snowflake(table: MountedTable) -> str:
    spec, quote = table.spec, _SNOWFLAKE.quote
    columns = []
    for index, column in enumerate(spec.columns, 1):
        value = f"VALUE:{_double(column.key)}" if spec.format == "json" else f"VALUE:c{index}"
        kind = _SNOWFLAKE.type(column.parsed)
        columns.append(f"{quote(column.name)} {kind} AS ({value}::{kind})")
    for partition in table.partitions:
        kind = _SNOWFLAKE.type(parse_type(partition.type))
        pattern = f"'(^|/){partition.key}=([^/]*)'"
        found = f"REGEXP_SUBSTR(METADATA$FILENAME, {pattern}, 1, 1, 'e', 2)"
        columns.append(f"{quote(partition.column)} {kind} AS ({found}::{kind})")
    keys = _listed(table, _SNOWFLAKE)
    kind = "JSON" if spec.format == "json" else """CSV FIELD_OPTIONALLY_ENCLOSED_BY = '"'"""
    if spec.delimiter:
        kind += f" FIELD_DELIMITER = {_spark_text(spec.delimiter)}"
    return _SNOWFLAKE.statement(
        table,
        columns,
        [
            keys and f"PARTITION BY ({keys})",
            f"LOCATION = @gazette/{table.layout.base}/",
            "AUTO_REFRESH = FALSE",
            f"FILE_FORMAT = (TYPE = {kind})",
            f"COMMENT = {_spark_text(spec.comment)}" if spec.comment else "",
        ],
        f"Before: CREATE STAGE gazette over the store that holds {table.location}",
        "After, and whenever files have come: ALTER EXTERNAL TABLE … REFRESH",
    )


# ------------------------------------------------------------------ DuckDB


_DUCKDB = _Dialect(
    quote=_double,
    text=_text,
    scalars={
        "string": "VARCHAR", "boolean": "BOOLEAN", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
        "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
    },
    decimal="DECIMAL({}, {})",
    array="{}[]",
    map="MAP({}, {})",
    struct="STRUCT({})",
    field='"{}" {}',
)  # fmt: skip


def _duckdb(table: MountedTable) -> str:
    spec = table.spec
    files = table.location.removeprefix("file://") + "/*" * (table.folders_below + 1)
    is_json = spec.format == "json"
    typed = (
        {c.key: _DUCKDB.type(c.parsed) for c in spec.columns} if is_json else {"line": "VARCHAR"}
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
        kinds = {p.key: _DUCKDB.type(parse_type(p.type)) for p in table.partitions}
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
            f"{_DUCKDB.type(parse_type(p.type))} AS {_double(p.column)}"
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


_STANDS_STILL = "-- This is the table as it is now. To have it follow what runs publish, have the engine ask the table's own catalog.\n"


def mount_statement(name: str, metadata_location: str, dialect: str) -> str:
    """Return SQL that mounts a typed table as it is now, by a file of its metadata, with comments on what else is to be done. Ends with a newline.

    Args:
        name: ``schema.table``.
        metadata_location: URL of the file with its metadata, as the catalog has it.
        dialect: that of the engine.

    Raises: ValidationError: no such dialect.
    """
    make = _ICEBERG_MAKERS.get(dialect)
    if make is None:
        raise ValidationError(
            f"{dialect!r} is not a dialect (use one of {', '.join(_ICEBERG_MAKERS)})",
            path="--dialect",
        )
    return _STANDS_STILL + make(name, metadata_location)


def _trino_iceberg(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    folder, _, file = metadata.rpartition("/")
    folder = folder.removesuffix("/metadata")
    return (
        "-- In a catalog of the connector iceberg, with iceberg.register-table-procedure.enabled=true.\n"
        f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n'
        f"CALL system.register_table(schema_name => {_text(schema)}, table_name => {_text(table)}, "
        f"table_location => {_text(folder)}, metadata_file_name => {_text(file)});\n"
    )


def _spark_iceberg(name: str, metadata: str) -> str:
    schema = name.partition(".")[0]
    return (
        "-- In an Iceberg catalog that is called `other` here.\n"
        f"CREATE SCHEMA IF NOT EXISTS other.`{schema}`;\n\n"
        f"CALL other.system.register_table(table => {_text(name)}, metadata_file => {_text(metadata)});\n"
    )


def _hive_iceberg(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    return (
        "-- Hive 4. It takes the columns from the metadata, and wants one named all the same.\n"
        f"CREATE DATABASE IF NOT EXISTS `{schema}`;\n\n"
        f"CREATE EXTERNAL TABLE `{schema}`.`{table}` (`_journal` string)\nSTORED BY ICEBERG\n"
        f"TBLPROPERTIES ('metadata_location' = {_text(metadata)});\n"
    )


def _bigquery_iceberg(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    note = (
        ""
        if metadata.startswith("gs://")
        else "-- BigQuery reads gs:// only; the metadata name files by whole paths, so a copy will not do.\n"
    )
    return (
        f"{note}CREATE EXTERNAL TABLE `{schema}`.`{table}`\n"
        f"OPTIONS (format = 'ICEBERG', uris = [{_text(metadata)}]);\n"
    )


def _snowflake_iceberg(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    # Below the volume, whose depth is unknown here: its bucket is a guess.
    path = metadata.partition("://")[2].partition("/")[2]
    return (
        "-- With an external volume at the root of the bucket, and a catalog integration for files in object storage.\n"
        f'CREATE ICEBERG TABLE "{schema}"."{table}"\n'
        "  EXTERNAL_VOLUME = 'your_volume'\n  CATALOG = 'your_integration'\n"
        f"  METADATA_FILE_PATH = {_text(path)};\n"
    )


def _duckdb_iceberg(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    return (
        "INSTALL iceberg;\nLOAD iceberg;\n\n"
        f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n'
        f'CREATE VIEW "{schema}"."{table}" AS\n'
        f"SELECT * FROM iceberg_scan({_text(metadata.removeprefix('file://'))});\n"
    )


_ICEBERG_MAKERS: Mapping[str, Callable[[str, str], str]] = {
    "trino": _trino_iceberg,
    "spark": _spark_iceberg,
    "hive": _hive_iceberg,
    "bigquery": _bigquery_iceberg,
    "snowflake": _snowflake_iceberg,
    "duckdb": _duckdb_iceberg,
}
