"""`gazctl lake list` and `describe`: raw tables, typed tables and rollups, with what is wrong with each.

Long because the three kinds are listed side by side, in the same columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from gazette_platform.cli.gazctl.lake.commands import ListFormat, OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    apart,
    brokers,
    metastore,
    print_values,
    refused_rollups,
    settings_of,
    specs_named,
    tables_folder,
    write_heads,
)
from gazette_platform.cli.output import NONE, note, print_table, print_text, printable
from gazette_platform.cli.program import EXIT_FAILED
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, LakeError, TransportError
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import BrokerSource, LakeSettings, RefusedSpec, TableSpec
from gazette_platform.lake.dagster_web import DagsterWeb, LastRun, RedCheck
from gazette_platform.lake.iceberg.catalog import (
    TypedCatalog,
    io_properties_of,
    typed_catalog,
)
from gazette_platform.lake.iceberg.metastore import IcebergTables
from gazette_platform.lake.raw.audits.registration_status import (
    TableStanding,
    overdue,
    table_standing,
)
from gazette_platform.lake.rollups import RollupSpec
from gazette_platform.lake.rollups.spec import read_rollup_folder
from gazette_platform.lake.rollups.status import (
    QUERY_CHECK,
    RollupStanding,
    RollupState,
    rollup_standing,
)
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.typed.status import TypedStanding, typed_standing
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted
from gazette_platform.protocol import is_another

_GAUGES = {
    "rows": "Rows of a table.",
    "unfit_records": "Records of a raw table that do not fit its spec.",
    "blocked": "1 while rollups wait for a raw table, because too many records do not fit its spec.",
    "quarantined": "Records of a typed table's quarantine.",
    "lag_bytes": "Bytes that journals have, and the table does not.",
    "problems": "What is wrong with a table.",
}


class _Tables:
    """A collector over what `gazctl lake list` knows of tables."""

    def __init__(self, summaries: Sequence[Mapping[str, Any]]) -> None:
        self._summaries = summaries

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics; what is not known of a table is left out."""
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"gazette_lake_{name}", text, labels=["table"])
            for summary in self._summaries:
                value = summary.get(name)
                if value is not None:
                    count = len(value) if isinstance(value, list) else value
                    gauge.add_metric([str(summary["table"])], count)
            yield gauge


def prometheus_text(summaries: Sequence[Mapping[str, Any]]) -> str:
    """What is known of tables, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Tables(summaries))
    return generate_latest(registry).decode()


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
    return [_typed_standing(catalog, client, table) for table in tables]


def _typed_standing(catalog: TypedCatalog, client: Client, table: TypedTable) -> TypedStanding:
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
    """The whole report, as plain values."""
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


def rollups_apart(
    settings: LakeSettings, names: Sequence[str]
) -> tuple[list[str], list[RollupSpec]]:
    """Return names that are not those of rollups, and the rollups; without names, all rollups."""
    every = read_rollup_folder(settings.rollups, ()).specs
    if not names:
        return [], [*every.values()]
    others = [name for name in names if name not in every]
    return others, [every[name] for name in dict.fromkeys(names) if name in every]


def rollup_standings(settings: LakeSettings, specs: Sequence[RollupSpec]) -> list[RollupStanding]:
    """How rollups stand. Those that cannot be looked at say why."""
    if not specs:
        return []
    if not settings.metastore:
        return [RollupStanding(spec=spec, state=RollupState.UNKNOWN) for spec in specs]
    metastore = MetastoreClient(settings.metastore)
    dagster = DagsterWeb(settings.dagster) if settings.dagster else None
    red, runs = _of_dagster(dagster, specs)
    found = []
    io_properties = io_properties_of(settings, os.environ)
    tables = IcebergTables(metastore, settings.required("warehouse"), io_properties)
    for spec in specs:
        try:
            standing = rollup_standing(
                metastore,
                tables,
                spec,
                dagster=dagster,
                red=red,
                last_run=runs.get(spec.name),
            )
        except GazetteError as err:
            standing = RollupStanding(spec=spec, state=RollupState.UNKNOWN, why=[str(err)])
        found.append(standing)
    return found


def _of_dagster(
    dagster: DagsterWeb | None, specs: Sequence[RollupSpec]
) -> tuple[list[RedCheck], dict[str, LastRun]]:
    """Red checks of all rollups and their sources, and last runs of all rollups, as far as there is a Dagster to ask."""
    if dagster is None:
        return [], {}
    names = [spec.name for spec in specs]
    asked = {*names, *(source for spec in specs for source in spec.sources.values())}
    try:
        return dagster.red_checks(sorted(asked), {QUERY_CHECK}), dagster.last_runs(names)
    except LakeError as err:
        note(f"note: {err}; failed runs and red checks are not looked at")
        return [], {}


def rollup_row(standing: RollupStanding) -> dict[str, str]:
    """Cells of the list, by column."""
    return {
        "Table": standing.spec.name,
        "Format": "rollup",
        "State": standing.state.value,
        "Partitions": _cell(standing.slices),
        "Rows": _cell(standing.rows),
        "Problems": str(len(standing.why)) if standing.why else "",
    }


def rollup_full(standing: RollupStanding) -> dict[str, Any]:
    """All that is known, as plain values."""
    spec = standing.spec
    return {
        **standing.summary(),
        "engine": spec.engine,
        "sources": spec.sources,
        "sliced_by": list(spec.slices),
        "cron": spec.cron,
        "retention": spec.retention,
        "comment": spec.comment,
        "location": standing.location or None,
    }


def rollup_lines(standing: RollupStanding) -> Iterable[str]:
    """The same for people."""
    spec = standing.spec
    yield f"{spec.name}: rollup" + (f": {spec.comment}" if spec.comment else "")
    summary = standing.summary()
    rows = [
        ("State", standing.state.value),
        ("Made", summary["made_at"] or NONE),
        ("Engine", spec.engine),
        ("Sources", ", ".join(sorted(spec.sources.values()))),
        *([("Sliced by", ", ".join(spec.slices))] if spec.slices else []),
        ("Slices", _cell(standing.slices)),
        ("To make", _cell(standing.to_make)),
        ("Rows", _cell(standing.rows)),
        ("Location", standing.location or NONE),
    ]
    yield from (f"  {title + ':':<12}{value}" for title, value in rows)
    yield from (f"  Problem:    {problem}" for problem in standing.problems)


_PARTITIONS_SHOWN = 20
_ALWAYS = (
    "Table", "Format", "Journals", "Partitions", "Rows", "Unfit", "Lag bytes", "Problems"
)  # fmt: skip
# State is of rollups, and Quarantined of typed tables.
_COLUMNS = (*_ALWAYS[:2], "State", *_ALWAYS[2:6], "Quarantined", *_ALWAYS[6:])


def list_tables(
    ctx: typer.Context, names: list[str], tables: Path | None, output_format: ListFormat
) -> None:
    """List tables."""
    found = _standings(ctx, names, tables)
    summaries = [each.summary() for each in found.all]
    if output_format == "table":
        _print_list(found)
    elif output_format == "prometheus":
        print_text(prometheus_text(summaries).rstrip("\n"))
    else:
        print_values(summaries + found.refused(), output_format)
    found.exit()


def _print_list(found: _Found) -> None:
    rows = [_row(standing) for standing in found.standings]
    rows += [typed_row(standing) for standing in found.typed]
    rows += [rollup_row(standing) for standing in found.rollups]
    shown = {*_ALWAYS, *(column for row in rows for column in row)}
    columns = [column for column in _COLUMNS if column in shown]
    print_table(columns, [[row.get(column, "") for column in columns] for row in rows])
    for standing in found.all:
        for problem in standing.problems:
            note(f"{standing.spec.name}: {problem}")
    found.note_refused()


def describe(
    ctx: typer.Context, names: list[str], tables: Path | None, output_format: OutputFormat
) -> None:
    """Describe tables."""
    found = _standings(ctx, names, tables)
    if output_format != "table":
        values = [_full(each) for each in found.standings]
        values += [typed_full(each) for each in found.typed]
        values += [rollup_full(each) for each in found.rollups]
        print_values(values + found.refused(), output_format)
    else:
        texts = ["\n".join(_lines(each)) for each in found.standings]
        texts += ["\n".join(typed_lines(each)) for each in found.typed]
        texts += ["\n".join(rollup_lines(each)) for each in found.rollups]
        for index, text in enumerate(texts):
            print_text(("\n" if index else "") + printable(text))
        found.note_refused()
    found.exit()


@dataclass(slots=True)
class _Found:
    """All specs, and those that are refused."""

    standings: list[TableStanding] = field(default_factory=list)
    typed: list[TypedStanding] = field(default_factory=list)
    rollups: list[RollupStanding] = field(default_factory=list)
    specs: dict[str, RefusedSpec] = field(default_factory=dict)
    refused_rollups: dict[str, str] = field(default_factory=dict)
    has_failed: bool = False
    """Whether something could not be looked at, so that the report is incomplete."""

    @property
    def all(self) -> list[TableStanding | TypedStanding | RollupStanding]:
        """Raw tables, then typed ones, then rollups."""
        return [*self.standings, *self.typed, *self.rollups]

    def refused(self) -> list[dict[str, Any]]:
        """Refused files, as plain values."""
        specs = [
            {"file": file, "table": bad.table or None, "problems": [str(e) for e in bad.errors]}
            for file, bad in self.specs.items()
        ]
        return specs + [
            {"file": file, "rollup": True, "problems": [text]}
            for file, text in self.refused_rollups.items()
        ]

    def note_refused(self) -> None:
        """Print refused files to the terminal."""
        for bad in self.specs.values():
            of_table = f"{bad.table}: " if bad.table else ""
            for error in bad.errors:
                note(f"{of_table}refused: {error}")
        for text in self.refused_rollups.values():
            note(f"rollup refused: {text}")

    def exit(self) -> None:
        """Exit with 1 if the report is incomplete."""
        if self.has_failed:
            raise typer.Exit(EXIT_FAILED)


def _standings(ctx: typer.Context, names: list[str], tables: Path | None) -> _Found:
    settings = settings_of()
    folder = tables_folder(settings, tables)
    others, rollups = rollups_apart(settings, names)
    raw, typed = apart(folder, others) if others or not names else ([], [])
    specs: dict[str, TableSpec] = {}
    found = _Found()
    if raw or not names:
        specs, refused = specs_named(folder, raw, refused_too=True)
        found = _Found(specs=refused, refused_rollups=refused_rollups(settings, folder, names))
    typed_in_hive = typed and settings.iceberg_catalog.kind == "hive"
    if (specs or rollups or typed_in_hive) and not settings.metastore:
        # `metastore` reports one that does not answer.
        note(
            f"note: no metastore is configured, so Hive partitions, rows and lag are not known, {NONE}: add one to the "
            "platform with `gazette up`, or set GAZETTE_METASTORE_URI"
        )
    with brokers(ctx, settings) as client, metastore(settings) as session:
        found.typed = typed_standings(settings, client, typed)
        found.has_failed |= any(each.is_unread for each in found.typed)
        for spec in specs.values():
            try:
                standing, failures = _standing(client, session, spec)
            except TransportError:
                raise  # no broker answers, so there is nothing to report on any table
            except GazetteError as err:
                standing, failures = TableStanding(spec=spec, is_known=False), [str(err)]
            standing.problems += failures
            found.has_failed |= bool(failures)
            found.standings.append(standing)
    found.rollups = rollup_standings(settings, rollups)
    found.has_failed |= any(each.is_unread for each in found.rollups)
    return found


def _standing(
    client: Client, session: MetastoreSession | None, spec: TableSpec
) -> tuple[TableStanding, list[str]]:
    """How a table stands, and what of its journals could not be looked at."""
    failures: dict[str, str] = {}

    def failed(journal: str, err: GazetteError) -> None:
        failures.setdefault(journal, f"{journal} cannot be looked at: {err}")

    now = SystemClock().now()
    listings = client.list(spec.label_selector)
    heads = write_heads(client, listings, failed)
    standing = table_standing(spec, [each.spec for each in listings], heads, session, now)
    if session is not None:
        source = BrokerSource(client)
        standing.problems += overdue(source, standing, now.timestamp(), on_error=failed)
    return standing, list(failures.values())


def _row(standing: TableStanding) -> dict[str, str]:
    summary = standing.summary()
    cells = ("table", "format", "journals", "partitions", "rows", "unfit_records", "lag_bytes")
    problems = str(len(standing.problems)) if standing.problems else ""
    return dict(zip(_ALWAYS, [*(_cell(summary[name]) for name in cells), problems], strict=True))


def _full(standing: TableStanding) -> dict[str, Any]:
    spec = standing.spec
    return {
        **standing.summary(),
        "selector": spec.selector,
        "comment": spec.comment,
        "typed": spec.typed.name if spec.typed is not None else None,
        "location": standing.location or None,
        "columns": [
            {"name": c.name, "from": c.key, "type": c.parsed.hive, "comment": c.comment}
            for c in spec.columns
        ],
        "journal_offsets": [
            {
                "journal": journal.journal,
                "registered": journal.registered if standing.is_known else None,
                "head": journal.head,
            }
            for journal in standing.journals
        ],
        "hive_partitions": [
            {
                "key": partition.key,
                "location": partition.location,
                "fragments": partition.state.fragments,
                "rows": partition.state.rows,
                "unfit_records": partition.state.unfit_records,
                "content_bytes": partition.state.content_bytes,
            }
            for partition in standing.partitions
        ],
    }


def _lines(standing: TableStanding) -> Iterable[str]:
    spec = standing.spec
    summary = standing.summary()
    yield spec.name + (f": {spec.comment}" if spec.comment else "")
    rows = [
        ("Selector", spec.selector),
        ("Format", spec.format),
        *([("Typed", spec.typed.name)] if spec.typed is not None else []),
        ("Location", standing.location or NONE),
        ("Rows", _cell(summary["rows"])),
        ("Unfit", f"{_cell(summary['unfit_records'])} ({_limit(spec)})"),
        ("Lag", f"{summary['lag_bytes']} bytes" if standing.is_known else NONE),
    ]
    yield from (f"  {title + ':':<12}{value}" for title, value in rows)
    yield "  Columns:"
    yield from _aligned(
        [
            [c.name, c.parsed.hive, *([f"from {c.source!r}"] if c.source else []), c.comment]
            for c in spec.columns
        ]
    )
    yield f"  Journals ({len(standing.journals)}):"
    yield from _aligned(
        [
            [each.journal, f"head {each.head}", f"registered {each.registered}"]
            if standing.is_known
            else [each.journal, f"head {each.head}"]
            for each in standing.journals
        ]
    )
    newest = standing.partitions[-_PARTITIONS_SHOWN:]
    yield f"  Hive partitions ({_cell(summary['partitions'])}):"
    yield from _aligned(
        [
            [
                each.key,
                f"{_cell(each.state.rows)} {'row' if each.state.rows == 1 else 'rows'}",
                counted(each.state.fragments, "fragment"),
                f"{each.state.unfit_records} unfit" if each.state.unfit_records else "",
            ]
            for each in newest
        ]
    )
    if len(newest) < len(standing.partitions):
        yield f"    … {len(standing.partitions) - len(newest)} before these"
    yield from (f"  Problem:    {problem}" for problem in standing.problems)


def _limit(spec: TableSpec) -> str:
    threshold = spec.unfit.threshold
    if threshold.is_never:
        return "rollups never wait"
    return f"rollups wait above {threshold} of a Hive partition"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    count = max(map(len, rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "    " + "  ".join(cells).rstrip()
