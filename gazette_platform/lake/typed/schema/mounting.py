"""Statements that show a typed table to engines which do not ask its catalog: as it is now, by a file of its metadata.

Runs that publish afterwards make new such files, and these engines do not know them until they are notified. Whoever is to
follow the table asks the catalog instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STANDS_STILL = "-- This is the table as it is now. To have it follow what runs publish, have the engine ask the table's own catalog.\n"


def mount_statement(name: str, metadata_location: str, dialect: str) -> str:
    """SQL that mounts the table, with comments on what else is to be done. Ends with a newline.

    Args:
        name: ``schema.table``.
        metadata_location: URL of the file with its metadata, as the catalog has it.
        dialect: that of the engine.

    Raises: ValidationError: no such dialect.
    """
    make = _MAKERS.get(dialect)
    if make is None:
        raise ValidationError(
            f"{dialect!r} is not a dialect (use one of {', '.join(_MAKERS)})", path="--dialect"
        )
    return _STANDS_STILL + make(name, metadata_location)


def _trino(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    folder, _, file = metadata.rpartition("/")
    folder = folder.removesuffix("/metadata")
    return (
        "-- In a catalog of the connector iceberg, with iceberg.register-table-procedure.enabled=true.\n"
        f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n'
        f"CALL system.register_table(schema_name => {_text(schema)}, table_name => {_text(table)}, "
        f"table_location => {_text(folder)}, metadata_file_name => {_text(file)});\n"
    )


def _spark(name: str, metadata: str) -> str:
    schema = name.partition(".")[0]
    return (
        "-- In an Iceberg catalog that is called `other` here.\n"
        f"CREATE SCHEMA IF NOT EXISTS other.`{schema}`;\n\n"
        f"CALL other.system.register_table(table => {_text(name)}, metadata_file => {_text(metadata)});\n"
    )


def _hive(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    return (
        "-- Hive 4. It takes the columns from the metadata, and wants one named all the same.\n"
        f"CREATE DATABASE IF NOT EXISTS `{schema}`;\n\n"
        f"CREATE EXTERNAL TABLE `{schema}`.`{table}` (`_journal` string)\nSTORED BY ICEBERG\n"
        f"TBLPROPERTIES ('metadata_location' = {_text(metadata)});\n"
    )


def _bigquery(name: str, metadata: str) -> str:
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


def _snowflake(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    # Below the volume, whose depth is unknown here: its bucket is a guess.
    path = metadata.partition("://")[2].partition("/")[2]
    return (
        "-- With an external volume at the root of the bucket, and a catalog integration for files in object storage.\n"
        f'CREATE ICEBERG TABLE "{schema}"."{table}"\n'
        "  EXTERNAL_VOLUME = 'your_volume'\n  CATALOG = 'your_integration'\n"
        f"  METADATA_FILE_PATH = {_text(path)};\n"
    )


def _duckdb(name: str, metadata: str) -> str:
    schema, _, table = name.partition(".")
    return (
        "INSTALL iceberg;\nLOAD iceberg;\n\n"
        f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n'
        f'CREATE VIEW "{schema}"."{table}" AS\n'
        f"SELECT * FROM iceberg_scan({_text(metadata.removeprefix('file://'))});\n"
    )


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_MAKERS: Mapping[str, Callable[[str, str], str]] = {
    "trino": _trino,
    "spark": _spark,
    "hive": _hive,
    "bigquery": _bigquery,
    "snowflake": _snowflake,
    "duckdb": _duckdb,
}
