"""`gazctl lake list` and `describe`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl_lake import ListFormat, OutputFormat
from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    metastore,
    print_values,
    refused_rollups,
    settings_of,
    specs_named,
    tables_folder,
    write_heads,
)
from gazette_platform.cli.gazctl_lake_list_metrics import prometheus_text
from gazette_platform.cli.gazctl_lake_list_rollups import (
    rollup_full,
    rollup_lines,
    rollup_row,
    rollup_standings,
    rollups_apart,
)
from gazette_platform.cli.gazctl_lake_list_typed import (
    typed_full,
    typed_lines,
    typed_row,
    typed_standings,
)
from gazette_platform.cli.output import NONE, note, print_table, print_text, printable
from gazette_platform.cli.typed_tables import apart
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.hive import MetastoreSession
from gazette_platform.lake import BrokerSource, RefusedSpec, TableSpec
from gazette_platform.lake.overdue import overdue
from gazette_platform.lake.rollups.status import RollupStanding
from gazette_platform.lake.standing import TableStanding, table_standing
from gazette_platform.lake.typed.checks.status import TypedStanding
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted

__all__ = ["describe", "list_tables"]

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
    if output_format is ListFormat.TABLE:
        _print_list(found)
    elif output_format is ListFormat.PROMETHEUS:
        print_text(prometheus_text(summaries).rstrip("\n"))
    else:
        print_values(summaries + found.refused(), OutputFormat(output_format.value))
    found.exit()


def _print_list(found: "_Found") -> None:
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
    if output_format is not OutputFormat.TABLE:
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
    """What there is, and what is refused."""

    standings: list[TableStanding] = field(default_factory=list)
    typed: list[TypedStanding] = field(default_factory=list)
    rollups: list[RollupStanding] = field(default_factory=list)
    specs: dict[str, RefusedSpec] = field(default_factory=dict)
    refused_rollups: dict[str, str] = field(default_factory=dict)
    has_failed: bool = False
    """Whether something could not be looked at, so that less is told than there is."""

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
        """Tell a person of refused files."""
        for bad in self.specs.values():
            of_table = f"{bad.table}: " if bad.table else ""
            for error in bad.errors:
                note(f"{of_table}refused: {error}")
        for text in self.refused_rollups.values():
            note(f"rollup refused: {text}")

    def exit(self) -> None:
        """End with 1 if less was told than there is."""
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
        # One that does not answer is told of by `metastore`.
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
                raise  # no broker answers, so nothing is to be told of any table
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


def _cell(value: object) -> str:
    return NONE if value is None else str(value)


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
