"""`gazctl lake repair`."""

from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl_lake_context import RegisteredTable, registered_tables
from gazette_platform.cli.output import note, print_text
from gazette_platform.lake import Repairer
from gazette_platform.lake.full_audit import audit_index

__all__ = ["repair"]


def repair(ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool) -> None:
    """Move covered files aside, and exit with 1 if some that overlap stay."""
    left = sum(_repair(each, dry_run=dry_run) for each in registered_tables(ctx, names, tables))
    if left and not dry_run:
        raise typer.Exit(EXIT_FAILED)


def _repair(at: RegisteredTable, *, dry_run: bool) -> int:
    """Repair one table. Returns: how many files that overlap others stay."""
    spec, table = at.spec, at.table
    found = [
        finding
        for finding in audit_index(at.session, spec, table, at.source, at.roots)
        if finding.kind == "overlap" and finding.excluded
    ]
    if dry_run:
        for finding in found:
            print_text(f"{spec.name}: would look at {finding.path}: {finding.text}")
        return len(found)
    cursors = at.cursors(at.journals())
    moved = 0
    repairer = Repairer(at.source, at.roots)
    while found:
        done = repairer.repair(at.session, table, found, cursors)
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
