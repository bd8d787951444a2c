"""`gazctl lake repair`."""

from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import BrokerSource, Repairer, StoreRoots, TableSpec
from gazette_platform.lake.full_audit import audit_table
from gazette_platform.lake.source import FragmentSource
from gazette_platform.lake.standing import table_standing
from gazette_platform.ops.clock import SystemClock

__all__ = ["repair"]


def repair(ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool) -> None:
    """Move covered files aside, and exit with 1 if some that overlap stay."""
    settings = settings_of()
    specs, _ = specs_named(tables_folder(settings, tables), names)
    roots = StoreRoots(settings.store_roots)
    metastore = MetastoreClient(settings.required("metastore"))
    left = 0
    with brokers(ctx, settings) as client, metastore.connect() as session:
        source = BrokerSource(client)
        for spec in specs.values():
            left += _repair(source, session, spec, roots, dry_run=dry_run)
    if left and not dry_run:
        raise typer.Exit(EXIT_FAILED)


def _repair(
    source: FragmentSource,
    session: MetastoreSession,
    spec: TableSpec,
    roots: StoreRoots,
    *,
    dry_run: bool,
) -> int:
    """Repair one table. Returns: how many files that overlap others stay."""
    table = session.table(spec.schema, spec.table)
    if table is None:
        note(f"{spec.name}: is not made yet")
        return 0
    found = [
        finding
        for finding in audit_table(session, spec, table, source, roots, reads_content=False)
        if finding.kind == "overlap" and finding.excluded
    ]
    if dry_run:
        for finding in found:
            print_text(f"{spec.name}: would look at {finding.path}: {finding.text}")
        return len(found)
    journals = source.journals(spec.label_selector)
    standing = table_standing(spec, journals, {}, session, SystemClock().now())
    cursors = {each.journal: each.cursor for each in standing.journals}
    moved = 0
    repairer = Repairer(source, roots)
    while found:
        done = repairer.repair(session, table, found, cursors)
        for each in done.moved:
            print_text(f"{spec.name}: moved {each.finding.path} to {each.target}")
        for path, why in {**done.waiting, **done.refused}.items():
            note(f"{spec.name}: {path} stays: {why}")
        moved += len(done.moved)
        gone = {each.finding.path for each in done.moved}
        found = [finding for finding in found if finding.path not in gone]
        # A call is bounded. One that moved nothing has nothing more to do.
        if not gone:
            break
    print_text(f"{spec.name}: {moved} file(s) moved aside, {len(found)} that overlap stay")
    return len(found)
