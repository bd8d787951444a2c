"""SQL of Trino that gives the JSON text of a column the type that its table spec declares.

It agrees with Trino's own reader of JSON, except for two things: a value of another shape is NULL rather than an error,
and keys are matched by case. It decodes one level at a time: a cast of a whole value to a row or map would give NULL
for all of it if one part does not fit, and would refuse objects and lists where the type is text.

Views of raw tables: ``<table>_exact``, without files that would show rows twice, and CSV without headers.

One object of the metastore serves both engines: Trino reads the definition that it keeps, encoded, in
the view's original text, and Spark the SQL of the expanded text. As long as nothing overlaps, the
view is the table itself. It names the files to leave out by Hive partition and file name, so a
query prunes as on the table. Where Trino reads a column as text, the view gives it its declared type. A table of
CSV with headers is stored under another name, and is itself a view that leaves these out, as no engine does in the
middle of a file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from gazette_platform.errors import SchemaMismatch
from gazette_platform.hive import HiveTable, StorageFormat, partition_name
from gazette_platform.lake.catalog_settings import HIVE
from gazette_platform.lake.raw.tables import spark_schema, text_columns
from gazette_platform.lake.spec.formats import header_condition
from gazette_platform.lake.spec.rules import EXACT_SUFFIX
from gazette_platform.lake.spec.types import parse_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.hive import HiveColumn, MetastoreSession
    from gazette_platform.lake.raw.reconcile import Finding
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.types import ColumnType

_NESTED = frozenset({"array", "map", "struct"})


def typed_sql(text: str, kind: ColumnType) -> str:
    """Return an expression of type `kind`.

    Args:
        text: an expression of type varchar: a text, number or truth value as it is, an object or list as JSON.
        kind: the declared type.
    """
    if kind.name in _NESTED:
        return _of_json(f"TRY(json_parse({text}))", kind, 0)
    return _of_text(text, kind)


def type_sql(kind: ColumnType) -> str:
    """Return the name of a type, with the names of fields in quotes, as SQL has it.

    >>> from gazette_platform.lake.spec.types import parse_type
    >>> type_sql(parse_type("map<string,struct<aB:int>>"))
    'map(varchar,row("ab" integer))'
    """
    match kind.name:
        case "array" | "map":
            return f"{kind.name}({','.join(map(type_sql, kind.arguments))})"
        case "struct":
            fields = zip(kind.field_names, kind.arguments, strict=True)
            typed = ",".join(f'"{name.lower()}" {type_sql(of)}' for name, of in fields)
            return f"row({typed})"
        case _:
            return kind.trino


def _of_text(text: str, kind: ColumnType) -> str:
    return text if kind.name == "string" else f"TRY_CAST({text} AS {type_sql(kind)})"


def _of_json(value: str, kind: ColumnType, depth: int) -> str:
    """Return an expression of type `kind` for one of type JSON; `depth` makes names of lambdas' arguments differ."""
    name = f"v{depth}"
    match kind.name:
        case "array":
            item = _of_json(name, kind.arguments[0], depth + 1)
            return f"transform(TRY_CAST({value} AS array(json)), {name} -> {item})"
        case "map":
            item = _of_json(name, kind.arguments[1], depth + 1)
            parts = f"TRY_CAST({value} AS map(varchar,json))"
            return f"transform_values({parts}, (k{depth}, {name}) -> {item})"
        case "struct":
            fields = ", ".join(
                _of_json(f"element_at({name}, '{key}')", of, depth + 1)
                for key, of in zip(kind.field_names, kind.arguments, strict=True)
            )
            # A lambda gives the value a name, so that it is decoded once for all fields.
            parts = f"ARRAY[TRY_CAST({value} AS map(varchar,json))]"
            row = f"IF({name} IS NOT NULL, CAST(ROW({fields}) AS {type_sql(kind)}))"
            return f"element_at(transform({parts}, {name} -> {row}), 1)"
        case "string":
            # The text of a scalar; else JSON. A null of JSON is not text.
            return (
                f"coalesce(json_extract_scalar({value}, '$'), nullif(json_format({value}), 'null'))"
            )
        case _:
            return _of_text(f"json_extract_scalar({value}, '$')", kind)


VIEW_OF = "gazette.view_of"
"""Parameter of a view of ours: what it is of."""

_EXCLUDED = "gazette.excluded"
# A parameter has 4,000 characters in the oldest metastores.
_EXCLUDED_MAX = 3500
# What Spark writes for a view; engines never open it.
_STORAGE = StorageFormat(
    input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
    serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
)


def excluded_files(findings: Iterable[Finding]) -> dict[tuple[str, ...], list[str]]:
    """Names of the files to leave out, by values of their Hive partition; both in order."""
    found: dict[tuple[str, ...], set[str]] = {}
    for finding in findings:
        if finding.excluded:
            found.setdefault(finding.values, set()).add(finding.excluded)
    return {values: sorted(found[values]) for values in sorted(found)}


def excluded_digests(view: HiveTable) -> dict[str, str]:
    """Which Hive partitions the view leaves files out of: a digest of their names by its name.

    What is read through the view changes exactly when these do. If they are too many to be kept apart, one
    digest of all is under the name ``*``.
    """
    text = view.parameters.get(_EXCLUDED, "{}")
    return {str(name): str(digest) for name, digest in json.loads(text).items()}


def _excluded_text(table: HiveTable, excluded: Mapping[tuple[str, ...], Collection[str]]) -> str:
    keys = [c.name for c in table.partition_columns]
    # Digests, not names: a Hive partition may leave out hundreds of files, and a parameter has 4,000 characters in the
    # oldest metastores.
    digests = {
        partition_name(keys, values): _digest("/".join(files)) for values, files in excluded.items()
    }
    text = json.dumps(digests, separators=(",", ":"))
    return text if len(text) <= _EXCLUDED_MAX else json.dumps({"*": _digest(text)})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def exact_view(
    spec: TableSpec,
    table: HiveTable,
    excluded: Mapping[tuple[str, ...], Collection[str]],
    *,
    catalog: str = HIVE,
) -> HiveTable:
    """The view of `table` without the `excluded` files.

    Args:
        catalog: Trino's name of the catalog; a definition has to say it.
    """
    comment = f"{spec.name} without files that show rows twice"
    view = _view(spec, table, f"{spec.table}{EXACT_SUFFIX}", comment, excluded, catalog)
    parameters = {**view.parameters, _EXCLUDED: _excluded_text(table, excluded)}
    return replace(view, parameters=parameters)


def plain_view(spec: TableSpec, table: HiveTable, *, catalog: str = HIVE) -> HiveTable | None:
    """The view that is the table of `spec`; None if `table` itself is that.

    Args:
        catalog: as of `exact_view`.
    """
    if table.name == spec.table:
        return None
    comment = spec.comment or f"{table.full_name} without header rows"
    return _view(spec, table, spec.table, comment, {}, catalog)


def _view(  # noqa: PLR0917
    spec: TableSpec,
    table: HiveTable,
    name: str,
    comment: str,
    excluded: Mapping[tuple[str, ...], Collection[str]],
    catalog: str,
) -> HiveTable:
    names = [c.name for c in spec.columns] + [c.name for c in table.partition_columns]
    columns = (*_declared(spec, table), *table.partition_columns)
    parameters = {
        VIEW_OF: table.full_name,
        "presto_view": "true",
        # Trino also recognizes its views by this text; the description is in the definition.
        "comment": "Presto View",
        "view.catalogAndNamespace.numParts": "2",
        "view.catalogAndNamespace.part.0": "spark_catalog",
        "view.catalogAndNamespace.part.1": table.database,
        "view.query.out.numCols": str(len(names)),
        **{f"view.query.out.col.{index}": each for index, each in enumerate(names)},
        # So that Spark keeps the case of names. The view has no data source of its own.
        **{k: v for k, v in table.parameters.items() if k == "spark.sql.create.version"},
        **(_view_schema(spec, table) if spec.format == "json" else {}),
    }
    return HiveTable(
        database=table.database,
        name=name,
        location="",
        columns=columns,
        partition_columns=(),
        storage=_STORAGE,
        parameters=parameters,
        view_original=_trino_definition(
            table, columns, comment, _trino_sql(spec, table, excluded), catalog
        ),
        view_expanded=_spark_sql(spec, table, excluded),
    )


def _declared(spec: TableSpec, table: HiveTable) -> tuple[HiveColumn, ...]:
    """Columns of the table with the types of the spec, also where Trino reads text."""
    types = {c.name.lower(): c.parsed.hive for c in spec.columns}
    return tuple(replace(c, type=types.get(c.name, c.type)) for c in table.columns)


def _view_schema(spec: TableSpec, table: HiveTable) -> dict[str, str]:
    keys = [(c.name, c.type) for c in table.partition_columns]
    return spark_schema([c.name for c in spec.columns], spec, keys)


def ensure_views(
    session: MetastoreSession,
    spec: TableSpec,
    table: HiveTable,
    excluded: Mapping[tuple[str, ...], Collection[str]],
    *,
    catalog: str = HIVE,
) -> bool:
    """Make the views of a table, or bring them up to date. Idempotent.

    Args:
        session: of the metastore.
        spec: of the table.
        table: the table, as the metastore has it.
        excluded: files that `exact_view` leaves out.
        catalog: Trino's name of the catalog.

    Returns: whether anything changed.
    Raises: SchemaMismatch: something else has the name of a view.
    """
    plain = plain_view(spec, table, catalog=catalog)
    views = [exact_view(spec, table, excluded, catalog=catalog), *([plain] if plain else [])]
    changed = [_ensure(session, view, table) for view in views]
    return any(changed)


def ensure_plain_view(
    session: MetastoreSession, spec: TableSpec, table: HiveTable, *, catalog: str = HIVE
) -> None:
    """Make the view that is the table of `spec`, if that is a view and is missing; see `ensure_views`."""
    plain = plain_view(spec, table, catalog=catalog)
    if plain is not None and session.table(plain.database, plain.name) is None:
        session.create_table(plain)


def _ensure(session: MetastoreSession, wanted: HiveTable, table: HiveTable) -> bool:
    existing = session.table(wanted.database, wanted.name)
    if existing is None:
        return session.create_table(wanted)
    if existing.parameters.get(VIEW_OF) != table.full_name:
        raise SchemaMismatch(
            f"{wanted.full_name} exists and is not a view of {table.full_name}, so there is none: rename "
            "it, or give the table spec another name"
        )
    # Compare the texts alone: metastores and engines add parameters of their own, which must not
    # look like a change at each tick.
    if (existing.view_original, existing.view_expanded) == (
        wanted.view_original,
        wanted.view_expanded,
    ):
        return False
    session.alter_table(replace(wanted, owner=existing.owner))
    return True


def _trino_definition(
    table: HiveTable, columns: Sequence[HiveColumn], comment: str, sql: str, catalog: str
) -> str:
    definition = {
        "originalSql": sql,
        "catalog": catalog,
        "schema": table.database,
        "columns": [{"name": c.name, "type": type_sql(parse_type(c.type))} for c in columns],
        "comment": comment,
        "runAsInvoker": True,
        "path": [],
    }
    text = json.dumps(definition, separators=(",", ":")).encode()
    return f"/* Presto View: {base64.b64encode(text).decode()} */"


def _trino_sql(
    spec: TableSpec, table: HiveTable, excluded: Mapping[tuple[str, ...], Collection[str]]
) -> str:
    columns = ", ".join(
        [*_trino_columns(spec, table), *(f'"{c.name}"' for c in table.partition_columns)]
    )
    sql = f'SELECT {columns} FROM "{table.database}"."{table.name}"'  # noqa: S608 (valid names)
    conditions = _without_headers(spec, lambda name: f'"{name.lower()}"', _trino_text)
    for values, names in excluded.items():
        keys = [
            f'"{c.name}" = {_trino_literal(c.type, v)}'
            for c, v in zip(table.partition_columns, values, strict=True)
        ]
        listed = ", ".join(_trino_literal("string", name) for name in names)
        keys.append(f"""regexp_extract("$path", '[^/]+$') IN ({listed})""")
        conditions.append(f"NOT ({' AND '.join(keys)})")
    return f"{sql} WHERE {' AND '.join(conditions)}" if conditions else sql


def _trino_columns(spec: TableSpec, table: HiveTable) -> Iterator[str]:
    """Expressions of the data columns, each of its declared type."""
    # The mark may be newer than the columns.
    as_text = {c.name for c in table.columns if c.type == "string"} & text_columns(spec, table)
    kinds = {c.name.lower(): c.parsed for c in spec.columns}
    for column in table.columns:
        name = f'"{column.name}"'
        is_text = column.name in as_text
        yield f"{typed_sql(name, kinds[column.name])} AS {name}" if is_text else name


def _spark_sql(
    spec: TableSpec,
    table: HiveTable,
    excluded: Mapping[tuple[str, ...], Collection[str]],
) -> str:
    # Spark calls columns of the table by the records' keys; those of the view have their names.
    is_renamed = spec.format == "json"
    columns = ", ".join(
        [
            f"{_quoted(c.source)} AS `{c.name}`" if c.source and is_renamed else f"`{c.name}`"
            for c in spec.columns
        ]
        + [f"`{c.name}`" for c in table.partition_columns]
    )
    source, file_name = f"`{table.database}`.`{table.name}`", "_metadata.file_name"
    if spec.format != "json" and excluded:
        # Only Spark's own sources know `_metadata`. For a Hive SerDe the path has to be taken in a
        # query of its own: in a filter, Spark evaluates it before it has opened a file.
        source = f"(SELECT *, input_file_name() AS `_file` FROM {source})"  # noqa: S608 (valid names)
        file_name = "substring_index(`_file`, '/', -1)"
    sql = f"SELECT {columns} FROM {source}"  # noqa: S608 (valid names)
    conditions = _without_headers(spec, _quoted, _spark_text)
    for values, files in excluded.items():
        keys = [
            f"`{c.name}` = {_spark_literal(c.type, v)}"
            for c, v in zip(table.partition_columns, values, strict=True)
        ]
        listed = ", ".join(_spark_literal("string", name) for name in files)
        conditions.append(f"NOT ({' AND '.join([*keys, f'{file_name} IN ({listed})'])})")
    return f"{sql} WHERE {' AND '.join(conditions)}" if conditions else sql


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _without_headers(
    spec: TableSpec, quoted: Callable[[str], str], literal: Callable[[str], str]
) -> list[str]:
    condition = header_condition(spec, quoted, literal)
    return [condition] if condition else []


def _trino_literal(kind: str, value: str) -> str:
    return _literal(kind, value, _trino_text(value))


def _spark_literal(kind: str, value: str) -> str:
    return _literal(kind, value, _spark_text(value))


def _trino_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _spark_text(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace("'", "\\'")
    # Some metastores keep the SQL of a view in a column that has Latin letters alone.
    return "'" + "".join(c if c.isascii() else f"\\U{ord(c):08X}" for c in plain) + "'"


def _literal(kind: str, value: str, quoted: str) -> str:
    match kind:
        case "date":
            return f"DATE {quoted}"
        case "tinyint" | "smallint" | "int" | "bigint":
            return value
        case _:
            return quoted
