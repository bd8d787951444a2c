"""External tables that Trino and Spark both read: their definition, creation and evolution.

JSON lines: text input format with the OpenX SerDe, which Trino reads natively, plus parameters that
make Spark use its own JSON source over the same Hive partitions. CSV: OpenCSVSerde in both, so all
columns are strings. Every table carries what made it, in parameters ``gazette.*``.

Making a table what its spec says, in steps that a tick has time for.

Engines read a text file by the columns and the SerDe parameters of its Hive partition, so what is new
must reach each of these. The metastore's own cascade takes columns alone, as the table has them, and for
thousands of Hive partitions outlasts any deadline. So a table that has some is changed in three steps: its own columns; those of its Hive partitions,
a batch at a time, with a mark in the table's parameters of how far that is; and last the digest of the
spec, until which the next tick goes on. Hive partitions that are not reached yet give NULL for what is
new.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import LakeError, SchemaMismatch
from gazette_platform.hive import CSV_STORAGE, JSON_STORAGE, HiveColumn, HiveTable, StorageFormat
from gazette_platform.lake.spec.layout import (
    Layout,
    PartitionColumn,
    is_same_location,
    partition_columns,
)
from gazette_platform.lake.spec.types import parse_type, widens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from gazette_platform.hive import MetastoreSession
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.lake.spec.types import ColumnType

LAYOUT = "gazette.layout"
DIGEST = "gazette.spec"
TABLE = "gazette.table"
"""Parameter of a table of ours: the name that its spec gives it."""
_AS_TEXT = "gazette.as_text"
_EVERY = "*"
_TEXT_COMMENT = "JSON text: some value has another shape. The view _exact has the declared type"
_MAPPING = "mapping."
_IGNORES_CASE = "case.insensitive"

# Older metastores keep a parameter in 4,000 characters; Spark joins numbered parts again.
_PARAMETER_CHARACTERS_MAX = 4000


def table_definition(
    spec: TableSpec, layout: Layout, location: str, as_text: Collection[str] = ()
) -> HiveTable:
    """The table of `spec` over fragments laid out as `layout`.

    Args:
        location: folder that holds all its Hive partitions.
        as_text: names of the columns that Trino reads as text; see `text_columns`.

    Raises: ValidationError: names clash, or the spec describes keys that the layout lacks.
    """
    keys = partition_columns(spec, layout)
    columns = tuple(
        HiveColumn(
            name=c.name.lower(),
            type="string" if c.name.lower() in as_text else c.parsed.hive,
            comment=c.comment or (_TEXT_COMMENT if c.name.lower() in as_text else ""),
        )
        for c in spec.columns
    )
    parameters = {
        TABLE: spec.name,
        DIGEST: _digest(spec, as_text),
        **({_AS_TEXT: _mark(as_text)} if as_text else {}),
        LAYOUT: str(layout),
        "gazette.selector": spec.selector,
        **({"comment": spec.comment} if spec.comment else {}),
        # Without these, Spark would use the OpenX SerDe, which its distribution lacks.
        **(_spark_parameters(spec, keys) if spec.format == "json" else {}),
    }
    return HiveTable(
        database=spec.schema,
        name=spec.stored_table,
        location=location,
        columns=columns,
        partition_columns=tuple(
            HiveColumn(name=k.column, type=k.type, comment=k.comment) for k in keys
        ),
        storage=_storage(spec, location),
        parameters=parameters,
    )


def text_columns(spec: TableSpec, table: HiveTable) -> frozenset[str]:
    """Return the names of columns that Trino reads as text, because a value breaks its JSON reader.

    The reader fails at a list or object where a number is declared, and at a list or scalar where a map or
    struct is. It takes any value for a text. So a column with such a value is text in Trino, for the whole table
    and for good, and the view of the table (`exact`) parses it. Spark never uses these columns.
    """
    names = frozenset(table.parameters.get(_AS_TEXT, "").split(","))
    others = frozenset(c.name.lower() for c in spec.columns if c.parsed.name != "string")
    # A column that the spec now declares as text needs no mark.
    return others if _EVERY in names else others & names


def with_text_columns(
    spec: TableSpec, table: HiveTable, columns: Iterable[str]
) -> HiveTable | None:
    """Return the table with a mark that Trino is to read more columns as text; None if it has the mark.

    The mark alone changes nothing: the table is not current then, and evolves.

    Args:
        columns: their names in the spec.
    """
    known = text_columns(spec, table)
    names = known | {name.lower() for name in columns}
    # The mark only grows. Removing it would make queries fail again at files that are still there.
    if names == known:
        return None
    return replace(table, parameters={**table.parameters, _AS_TEXT: _mark(names)})


def _mark(columns: Collection[str]) -> str:
    """Return the parameter that names columns; too many of them stand for all."""
    text = ",".join(sorted(columns))
    return text if len(text) <= _PARAMETER_CHARACTERS_MAX else _EVERY


def keeping_text_columns(current: HiveTable, changed: HiveTable) -> HiveTable:
    """Return the changed table with the marks of text columns that the current one has by now."""
    # Another registrar may have found a breaking value while this one changed the table.
    mark = current.parameters.get(_AS_TEXT, "")
    if not mark:
        return changed
    return replace(changed, parameters={**changed.parameters, _AS_TEXT: mark})


def is_current(spec: TableSpec, table: HiveTable) -> bool:
    """Return whether the table and all its Hive partitions follow the spec."""
    # The digest is written last, so a change that died halfway is not current, and the next tick
    # continues it.
    return table.parameters.get(DIGEST) == _digest(spec, text_columns(spec, table))


def _digest(spec: TableSpec, as_text: Collection[str]) -> str:
    if not as_text:
        return spec.digest
    names = hashlib.sha256(",".join(sorted(as_text)).encode()).hexdigest()
    return f"{spec.digest}+{names[:8]}"


def evolved_table(existing: HiveTable, wanted: HiveTable) -> HiveTable | None:
    """`existing` with the changes that `wanted` asks for, or None if there are none.

    Columns may be added and widened. Parameters that others set are kept.

    Raises: SchemaMismatch: any other difference.
    """
    parameters = existing.parameters
    # Never take over a table that a person made: its partitions and locations would be mixed with
    # ours.
    if parameters.get(TABLE) != wanted.parameters[TABLE]:
        raise SchemaMismatch(
            f"table {wanted.full_name} exists and was not made from a table spec; give the spec "
            "another name, or drop the table"
        )
    if parameters.get(DIGEST) == wanted.parameters[DIGEST]:
        return None
    # All differences in one error: otherwise users correct one, apply, and meet the next.
    differences = _differences(existing, wanted)
    if differences:
        raise SchemaMismatch(
            f"table {wanted.parameters[TABLE]} cannot become its spec: {'; '.join(differences)}. Undo that part of the "
            "spec, or apply it by `gazctl lake apply --recreate`, which registers all fragments again"
        )
    ours = ("gazette.", "spark.sql.", "comment", _MAPPING, _IGNORES_CASE)
    # A parameter that the new spec no longer has must go, and parameters of engines and people must
    # stay.
    kept = {k: v for k, v in parameters.items() if not k.startswith(ours)}
    # The account of an unpartitioned table is among its parameters. Losing it would register all
    # content again.
    stats = {k: v for k, v in parameters.items() if k.startswith("gazette.") and k not in kept}
    evolved = replace(
        existing,
        columns=wanted.columns,
        partition_columns=wanted.partition_columns,
        storage=wanted.storage,
        parameters={**kept, **stats, **wanted.parameters},
    )
    return keeping_text_columns(existing, evolved)


def _differences(existing: HiveTable, wanted: HiveTable) -> list[str]:
    found: list[str] = []
    if existing.name != wanted.name:
        found.append(f"it is stored as {existing.name}, not {wanted.name}: `header` has changed")
    if existing.parameters.get(LAYOUT) != wanted.parameters[LAYOUT]:
        found.append(
            f"fragments lay in {existing.parameters.get(LAYOUT)} and now in "
            f"{wanted.parameters[LAYOUT]}"
        )
    if not is_same_location(existing.location, wanted.location):
        found.append(f"its location is {existing.location}, not {wanted.location}")
    if existing.storage.serde != wanted.storage.serde:
        found.append(f"its SerDe is {existing.storage.serde}, not {wanted.storage.serde}")
    old_keys = [(c.name, c.type) for c in existing.partition_columns]
    new_keys = [(c.name, c.type) for c in wanted.partition_columns]
    if old_keys != new_keys:
        found.append(f"its partition columns are {_listed(old_keys)}, not {_listed(new_keys)}")
    new = {c.name: c for c in wanted.columns}
    as_text = frozenset(wanted.parameters.get(_AS_TEXT, "").split(","))
    for column in existing.columns:
        if column.name not in new:
            found.append(f"column {column.name} is gone")
        # A column read as text may get any declared type later: the view casts it.
        elif as_text.isdisjoint((column.name, _EVERY)) and not widens(
            parse_type(column.type), parse_type(new[column.name].type)
        ):
            found.append(
                f"column {column.name} would narrow from {column.type} to {new[column.name].type}"
            )
    # Old partitions keep their files; a column in the middle would shift all values after it.
    if wanted.storage.serde == CSV_STORAGE.serde and not found:
        old_order = [c.name for c in existing.columns]
        if [c.name for c in wanted.columns][: len(old_order)] != old_order:
            found.append("CSV columns go by position, so new ones must come last")
    return found


def _listed(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns) or "none"


def key_mappings(spec: TableSpec) -> dict[str, str]:
    """Parameters for the OpenX SerDe: which keys columns and fields have, as written.

    Hive's names are lower case, and so the SerDe ignores the case of keys, which Spark does not. It
    minds it, too, if configured, and gets the keys. It applies a mapping at any depth: where one name
    stands for two keys, it is left as it is.
    """
    keys: dict[str, set[str]] = {}
    for column in spec.columns:
        keys.setdefault(column.name.lower(), set()).add(column.key)
        for name in _field_names(column.parsed):
            keys.setdefault(name.lower(), set()).add(name)
    # The SerDe maps a name once for all depths. Mapping one of two spellings would lose the values
    # of the other.
    if any(len(spellings) > 1 for spellings in keys.values()):
        return {f"{_MAPPING}{c.name.lower()}": c.source for c in spec.columns if c.source}
    mappings = {name: key for name, (key,) in keys.items() if key != name}
    return {_IGNORES_CASE: "false", **{f"{_MAPPING}{n}": key for n, key in mappings.items()}}


def _field_names(kind: ColumnType) -> Iterator[str]:
    """Names of struct fields at any depth."""
    yield from kind.field_names
    for argument in kind.arguments:
        yield from _field_names(argument)


def _storage(spec: TableSpec, location: str) -> StorageFormat:
    if spec.format == "csv":
        parameters = {**CSV_STORAGE.serde_parameters, "separatorChar": spec.separator}
        return replace(CSV_STORAGE, serde_parameters=parameters)
    # Spark's own sources take the table's folder from this SerDe parameter, not from the location.
    return replace(
        JSON_STORAGE,
        serde_parameters={**JSON_STORAGE.serde_parameters, **key_mappings(spec), "path": location},
    )


def _spark_parameters(spec: TableSpec, keys: Sequence[PartitionColumn]) -> dict[str, str]:
    """Parameters that let Spark read the table with its JSON source, keeping the case of keys."""
    parameters = {
        "spark.sql.create.version": "4.1.0",
        "spark.sql.sources.provider": "json",
        # Spark's JSON source knows records' keys only as names of columns.
        **spark_schema([c.key for c in spec.columns], spec, [(k.column, k.type) for k in keys]),
    }
    if keys:
        # With it Spark prunes by the metastore's partitions, and does not list folders to find
        # them.
        parameters["spark.sql.partitionProvider"] = "catalog"
        parameters["spark.sql.sources.schema.numPartCols"] = str(len(keys))
        for index, key in enumerate(keys):
            parameters[f"spark.sql.sources.schema.partCol.{index}"] = key.column
    return parameters


def spark_schema(
    names: Sequence[str], spec: TableSpec, keys: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Parameters with the columns for Spark, as `names` calls those of `spec`.

    Args:
        names: of the data columns, in their order.
        spec: the table's spec.
        keys: names and Hive types of the partition columns.
    """
    fields: list[dict[str, Any]] = [
        {
            "name": name,
            "type": c.parsed.spark,
            "nullable": True,
            "metadata": {"comment": c.comment} if c.comment else {},
        }
        for name, c in zip(names, spec.columns, strict=True)
    ]
    fields += [
        {"name": name, "type": parse_type(kind).spark, "nullable": True, "metadata": {}}
        for name, kind in keys
    ]
    schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    return _in_parts("spark.sql.sources.schema", schema)


def _in_parts(name: str, text: str) -> dict[str, str]:
    if len(text) <= _PARAMETER_CHARACTERS_MAX:
        return {name: text}
    # Spark's own convention for long schemas; it joins the parts again.
    parts = [
        text[at : at + _PARAMETER_CHARACTERS_MAX]
        for at in range(0, len(text), _PARAMETER_CHARACTERS_MAX)
    ]
    return {
        f"{name}.numParts": str(len(parts)),
        **{f"{name}.part.{index}": part for index, part in enumerate(parts)},
    }


_MARK: Final = "gazette.evolving"
_BATCH: Final = 50


def ensure_table(
    session: MetastoreSession, wanted: HiveTable, *, is_over: Callable[[], bool]
) -> HiveTable:
    """Create `wanted`, or evolve what exists to it. Idempotent.

    Args:
        is_over: whether time is up; at least one batch of Hive partitions is changed before.

    Returns: the table as the metastore has it now: with another digest than `wanted` has if there was no
        time for all of its Hive partitions.
    Raises: SchemaMismatch: one exists that cannot become `wanted`; says in what they differ.
    """
    # Two registrars with different specs must not interleave: each would write columns that the
    # other takes away.
    with session.accounts_lock(wanted.database, wanted.name) as lock:
        existing = session.table(wanted.database, wanted.name)
        if existing is None:
            session.ensure_database(wanted.database)
            # The lock is per table name, so a person or an engine may still create the table at
            # this moment.
            if session.create_table(wanted):
                return wanted
            existing = session.table(wanted.database, wanted.name)
            if existing is None:
                raise SchemaMismatch(
                    f"{wanted.full_name} was created and dropped by others; try again"
                )
        evolved = evolved_table(existing, wanted)
        if evolved is None:
            return existing
        # A mark of an abandoned change must not survive a finished one.
        parameters = {k: v for k, v in evolved.parameters.items() if k != _MARK}
        evolved = replace(evolved, parameters=parameters)
        names = session.partition_names(existing) if existing.partition_columns else []
        if not names:
            lock.require()
            session.alter_table(evolved, is_cascading=False)
            return evolved
        table = _begin(existing, evolved)
        # The table before its partitions: until a partition follows, it gives NULL for new columns.
        if table != existing:
            lock.require()
            session.alter_table(table, is_cascading=False)
    # Outside the lock: thousands of Hive partitions outlast its lease. Each batch takes the lock
    # again, and other registrars count in between.
    return _go_on(session, table, evolved, names, is_over)


def _begin(existing: HiveTable, evolved: HiveTable) -> HiveTable:
    """The table with its own columns as they will be, marked as not done."""
    # A former tick began this change: continue after its mark.
    if _goal(existing) == evolved.parameters[DIGEST]:
        return existing
    # Keep the old digest until all partitions are done, so that `is_current` stays false after a
    # crash.
    former = existing.parameters.get(DIGEST, "")
    return _marked(replace(evolved, parameters={**evolved.parameters, DIGEST: former}), evolved, "")


def _goal(table: HiveTable) -> str:
    """Digest of the spec that its Hive partitions are being brought to; empty: of none."""
    return table.parameters.get(_MARK, "").partition(" ")[0]


def _current(session: MetastoreSession, table: HiveTable) -> HiveTable:
    """The table now. Raises: LakeError: there is none."""
    current = session.table(table.database, table.name)
    if current is None:
        raise LakeError(f"table {table.full_name} was dropped meanwhile; it is made again")
    return current


def _marked(table: HiveTable, evolved: HiveTable, name: str) -> HiveTable:
    mark = f"{evolved.parameters[DIGEST]} {name}"
    return replace(table, parameters={**table.parameters, _MARK: mark})


def _go_on(
    session: MetastoreSession,
    table: HiveTable,
    evolved: HiveTable,
    names: list[str],
    is_over: Callable[[], bool],
) -> HiveTable:
    """Bring the columns to the Hive partitions after the mark, as long as there is time."""
    _, _, done = table.parameters[_MARK].partition(" ")
    left = [name for name in names if name > done]
    for start in range(0, len(left), _BATCH):
        if start and is_over():
            break
        batch = left[start : start + _BATCH]
        with session.accounts_lock(table.database, table.name) as lock:
            current = _current(session, table)
            if _goal(current) != _goal(table):
                return current  # another registrar is done, or follows another spec
            # Read within the lock: writing partitions that were read before would undo accounts
            # counted meanwhile.
            found = session.partitions_named(table, batch)
            lock.require()
            session.alter_partitions(table, found)
        done = batch[-1]
    is_done = not left or done == left[-1]
    with session.accounts_lock(table.database, table.name) as lock:
        # Read again: another registrar may have counted, marked a text column, or followed a newer
        # spec since.
        current = _current(session, table)
        if current.parameters.get(_MARK) != table.parameters[_MARK]:
            return current  # another registrar was here, and will finish
        result = keeping_text_columns(
            current, evolved if is_done else _marked(table, evolved, done)
        )
        lock.require()
        session.alter_table(result, is_cascading=False)
    return result
