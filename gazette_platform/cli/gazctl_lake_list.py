"""`gazctl lake list` and `describe`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from gazette_platform.cli.gazctl_lake import OutputFormat
from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    metastore,
    print_values,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import NONE, note, print_table, print_text
from gazette_platform.lake import BrokerSource, RefusedSpec
from gazette_platform.lake.overdue import overdue
from gazette_platform.lake.standing import TableStanding, table_standing
from gazette_platform.ops.clock import SystemClock

__all__ = ["describe", "list_tables"]

_PARTITIONS_SHOWN = 20


def list_tables(
    ctx: typer.Context, names: list[str], tables: Path | None, output_format: OutputFormat
) -> None:
    """List tables."""
    standings, refused = _standings(ctx, names, tables)
    if output_format is not OutputFormat.TABLE:
        print_values(
            [standing.summary() for standing in standings] + _refused(refused), output_format
        )
        return
    print_table(
        ["Table", "Format", "Journals", "Partitions", "Rows", "Lag bytes", "Problems"],
        [_row(standing) for standing in standings],
    )
    for standing in standings:
        for problem in standing.problems:
            note(f"{standing.spec.name}: {problem}")
    _note_refused(refused)


def describe(
    ctx: typer.Context, names: list[str], tables: Path | None, output_format: OutputFormat
) -> None:
    """Describe tables."""
    standings, refused = _standings(ctx, names, tables)
    if output_format is not OutputFormat.TABLE:
        print_values([_full(standing) for standing in standings] + _refused(refused), output_format)
        return
    for index, standing in enumerate(standings):
        print_text(("\n" if index else "") + "\n".join(_lines(standing)))
    _note_refused(refused)


def _standings(
    ctx: typer.Context, names: list[str], tables: Path | None
) -> tuple[list[TableStanding], dict[str, RefusedSpec]]:
    settings = settings_of()
    specs, refused = specs_named(tables_folder(settings, tables), names, refused_too=True)
    now = SystemClock().now()
    found: list[TableStanding] = []
    with brokers(ctx, settings) as client, metastore(settings) as session:
        for spec in specs.values():
            listings = client.list(spec.label_selector)
            heads = client.write_heads(listings)
            journals = [listing.spec for listing in listings]
            standing = table_standing(spec, journals, heads, session, now)
            if session is not None:
                standing.problems += overdue(BrokerSource(client), standing, now.timestamp())
            found.append(standing)
    return found, refused


def _row(standing: TableStanding) -> list[str]:
    summary = standing.summary()
    cells = ("table", "format", "journals", "partitions", "rows", "lag_bytes")
    problems = str(len(standing.problems)) if standing.problems else ""
    return [*(_cell(summary[name]) for name in cells), problems]


def _cell(value: object) -> str:
    return NONE if value is None else str(value)


def _refused(refused: dict[str, RefusedSpec]) -> list[dict[str, Any]]:
    return [
        {"file": file, "table": bad.table or None, "problems": [str(e) for e in bad.errors]}
        for file, bad in refused.items()
    ]


def _note_refused(refused: dict[str, RefusedSpec]) -> None:
    for bad in refused.values():
        of_table = f"{bad.table}: " if bad.table else ""
        for error in bad.errors:
            note(f"{of_table}refused: {error}")


def _full(standing: TableStanding) -> dict[str, Any]:
    spec = standing.spec
    return {
        **standing.summary(),
        "selector": spec.selector,
        "comment": spec.comment,
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
        ("Location", standing.location or NONE),
        ("Rows", _cell(summary["rows"])),
        ("Lag", f"{_cell(summary['lag_bytes'])} bytes"),
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
    yield f"  Hive partitions ({len(standing.partitions)}):"
    yield from _aligned(
        [
            [each.key, f"{_cell(each.state.rows)} rows", f"{each.state.fragments} fragments"]
            for each in newest
        ]
    )
    if len(newest) < len(standing.partitions):
        yield f"    … {len(standing.partitions) - len(newest)} before these"
    yield from (f"  Problem:    {problem}" for problem in standing.problems)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    count = max(map(len, rows), default=0)
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(count)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "    " + "  ".join(cells).rstrip()
