"""`gazctl lake check`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl_lake import OutputFormat
from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    print_values,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import Client
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import BrokerSource, StoreRoots, TableSpec
from gazette_platform.lake.applying import problems_with_journals
from gazette_platform.lake.full_audit import audit_table
from gazette_platform.lake.overdue import overdue
from gazette_platform.lake.standing import table_standing
from gazette_platform.ops.clock import SystemClock

__all__ = ["check"]


@dataclass(frozen=True, slots=True)
class _Told:
    """Something wrong with a table or, before there is one, with its spec."""

    table: str
    kind: str
    is_error: bool
    text: str


def check(
    ctx: typer.Context,
    names: list[str],
    tables: Path | None,
    output_format: OutputFormat,
    *,
    quick: bool,
) -> None:
    """Run the audits of tables, and exit with 1 if anything is red."""
    settings = settings_of()
    specs, refused = specs_named(tables_folder(settings, tables), names, refused_too=True)
    told = [
        _Told(bad.table or file, "spec", True, str(error))
        for file, bad in refused.items()
        for error in bad.errors
    ]
    roots = StoreRoots(settings.store_roots)
    metastore = MetastoreClient(settings.required("metastore"))
    with brokers(ctx, settings) as client, metastore.connect() as session:
        for spec in specs.values():
            told += _check(client, session, spec, roots, reads_content=not quick)
    red = sum(each.is_error for each in told)
    if output_format is OutputFormat.TABLE:
        for each in told:
            colour = "red" if each.is_error else "yellow"
            print_text(f"{each.table}: {colour}: {each.kind}: {each.text}")
        note(f"{len(specs)} table(s): {red} error(s), {len(told) - red} warning(s)")
    else:
        values = [
            {
                "table": each.table,
                "check": each.kind,
                "severity": "error" if each.is_error else "warning",
                "text": each.text,
            }
            for each in told
        ]
        print_values(values, output_format)
    if red:
        raise typer.Exit(EXIT_FAILED)


def _check(
    client: Client,
    session: MetastoreSession,
    spec: TableSpec,
    roots: StoreRoots,
    *,
    reads_content: bool,
) -> Iterator[_Told]:
    source = BrokerSource(client)
    journals = source.journals(spec.label_selector)
    now = SystemClock().now()
    for problem in problems_with_journals(spec, journals, now):
        yield _Told(spec.name, "spec", True, str(problem))
    standing = table_standing(spec, journals, {}, session, now)
    for text in overdue(source, standing, now.timestamp(), from_begin=True):
        yield _Told(spec.name, "lag", True, text)
    table = session.table(spec.schema, spec.table)
    if table is None:
        if journals:
            text = "is not made yet: none of its journals has a fragment that is persisted and fits"
            yield _Told(spec.name, "count", False, text)
        return
    for finding in audit_table(session, spec, table, source, roots, reads_content=reads_content):
        is_red = finding.is_error and finding.is_checked
        kind = finding.kind if finding.is_checked else f"{finding.kind}, not checked"
        yield _Told(spec.name, kind, is_red, finding.text)
