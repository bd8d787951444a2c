"""`gazctl lake list` and `describe`: typed tables."""

from collections.abc import Iterable, Sequence
from typing import Any

from gazette_platform.cli.gazctl_lake_context import write_heads
from gazette_platform.cli.output import NONE
from gazette_platform.cli.typed_tables import TypedTable
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.iceberg.catalog import TypedCatalog, typed_catalog
from gazette_platform.lake.typed.checks.status import TypedStanding, typed_standing
from gazette_platform.lake.typed_spec.spec import TypedSpec
from gazette_platform.protocol import is_another

__all__ = ["typed_full", "typed_lines", "typed_row", "typed_standings"]


def typed_standings(
    settings: LakeSettings, client: Client, tables: Sequence[TypedTable]
) -> list[TypedStanding]:
    """How typed tables stand. What cannot be looked at says why.

    Raises: TransportError: no broker answers.
    """
    if not tables:
        return []
    if settings.iceberg_catalog.kind == "hive" and not settings.metastore:
        return [
            TypedStanding(spec=table.typed) for table in tables
        ]  # the list says that there is none
    try:
        catalog = typed_catalog(settings)
    except GazetteError as err:
        return [_unread(table, err) for table in tables]
    return [_standing(catalog, client, table) for table in tables]


def _standing(catalog: TypedCatalog, client: Client, table: TypedTable) -> TypedStanding:
    failures: list[str] = []

    def failed(journal: str, err: GazetteError) -> None:
        failures.append(f"{journal} cannot be looked at: {err}")

    try:
        listed = client.list(table.raw.label_selector)
        heads = write_heads(client, listed, failed)
    except TransportError:
        raise
    except GazetteError as err:
        return _unread(table, err)
    standing = typed_standing(catalog.handle(table.typed.name), table.typed, heads)
    standing.problems += failures
    known = {} if standing.state is None else standing.state.journals
    standing.problems += [
        f"{one.name} is not the journal that was read: it was deleted and made again (`gazctl lake run "
        f"{table.typed.name}` says what to do)"
        for one in listed
        if one.name in known and is_another(known[one.name].created, one.created)
    ]
    standing.is_unread |= bool(failures)
    return standing


def _unread(table: TypedTable, err: GazetteError) -> TypedStanding:
    return TypedStanding(spec=table.typed, problems=[str(err)], is_unread=True)


def typed_row(standing: TypedStanding) -> dict[str, str]:
    """Cells of the list, by column."""
    summary = standing.summary()
    return {
        "Table": standing.spec.name,
        "Format": "typed",
        "Journals": str(summary["journals"]),
        "Rows": _cell(summary["rows"]),
        "Quarantined": _cell(summary["quarantined"]),
        "Lag bytes": _cell(summary["lag_bytes"]),
        "Problems": str(len(standing.problems)) if standing.problems else "",
    }


def _cell(value: object) -> str:
    return NONE if value is None else str(value)


def typed_full(standing: TypedStanding) -> dict[str, Any]:
    """All that there is to tell, as plain values."""
    spec, counts = standing.spec, standing.counts
    return {
        **standing.summary(),
        "quarantine": spec.quarantine,
        "location": standing.location or None,
        "uuid": ".".join(spec.uuid) or "none",
        "key": list(spec.key),
        "change_data": spec.change_data or None,
        "deleted": spec.deleted or None,
        "partitioned_by": [partition.text for partition in spec.partitions],
        "columns": [
            {
                "name": column.name,
                "from": (not column.is_system and column.key) or None,
                "type": column.type,
                "comment": column.comment,
            }
            for column in spec.all_columns
        ],
        "messages": None
        if counts is None
        else {
            "read": counts.messages,
            "committed": counts.committed,
            "rows": counts.typed,
            "quarantined": counts.quarantined,
            "duplicates": counts.duplicates,
            "taken_back": counts.taken_back,
            "acks": counts.acks,
            "waiting": counts.waiting,
            "lost_bytes": counts.lost_bytes,
        },
        "journal_offsets": [
            {"journal": journal, "read": read, "head": head}
            for journal, read, head in _offsets(standing)
        ],
    }


def typed_lines(standing: TypedStanding) -> Iterable[str]:
    """The same for people."""
    spec, counts = standing.spec, standing.counts
    yield f"{spec.name}: typed, of {spec.source}"
    rows = [
        ("Location", standing.location or NONE),
        ("UUID", ".".join(spec.uuid) or "none"),
        *([("Key", ", ".join(spec.key))] if spec.key else []),
        *([("Changes", _changes(spec))] if spec.changes else []),
        *([("Parted by", ", ".join(p.text for p in spec.partitions))] if spec.partitions else []),
        ("Rows", _cell(standing.rows)),
        ("Lag", NONE if standing.lag_bytes is None else f"{standing.lag_bytes} bytes"),
        ("Complete", f"before {standing.complete_at}" if standing.complete_at else NONE),
    ]
    yield from (f"  {title + ':':<12}{value}" for title, value in rows)
    if counts is not None:
        yield (
            f"  {'Messages:':<12}{counts.messages} read: {counts.typed} rows, {counts.quarantined} in quarantine, "
            f"{counts.duplicates} there before, {counts.taken_back} taken back, {counts.acks} ACKs, {counts.waiting} "
            "waiting"
        )
    yield "  Columns:"
    width = max(len(column.name) for column in spec.all_columns)
    for column in spec.all_columns:
        is_named = column.is_system or column.key in ("", column.name)
        source = "" if is_named else f"  from {column.key!r}"
        comment = f"  {column.comment}" if column.comment else ""
        yield f"    {column.name:<{width}}  {column.type}{source}{comment}"
    yield f"  Journals ({len(standing.heads)}):"
    for journal, read, head in _offsets(standing):
        yield f"    {journal}  head {head}  read {_cell(read)}"
    yield from (f"  Problem:    {problem}" for problem in standing.problems)


def _changes(spec: TypedSpec) -> str:
    what = f"of {spec.change_data}" if spec.change_data else f"deleted where {spec.deleted} is true"
    return f"{what}, ordered by {spec.order}"


def _offsets(standing: TypedStanding) -> Iterable[tuple[str, int | None, int]]:
    """Journals, how far they were read, and their heads."""
    known = standing.state.journals if standing.state is not None else None
    for journal, head in sorted(standing.heads.items()):
        if known is None:
            yield journal, None, head
        else:
            yield journal, known[journal].offset if journal in known else 0, head
