"""`gazctl lake repair`: files that others cover, prunes to follow, and journals that were created again."""

from __future__ import annotations

from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl.lake.context import RegisteredTable, registered_tables
from gazette_platform.cli.output import note, print_text
from gazette_platform.errors import GazetteError
from gazette_platform.lake import Repairer, Shrinker
from gazette_platform.lake.raw.accounts import AccountBook, adopt_journals
from gazette_platform.lake.raw.audits.audit import audit_index


def adopt(ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool) -> None:
    """Have accounts of raw tables belong to the journals of now."""
    for at in registered_tables(ctx, names, tables):
        created = at.source.created(at.spec.label_selector)
        count = adopt_journals(AccountBook(at.session, at.table), created, is_dry_run=dry_run)
        verb = "would belong" if dry_run else "belong"
        print_text(
            f"{at.spec.name}: {count} Hive partition(s) {verb} to the journals that were created again"
        )


def forget_pruned(
    ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool
) -> None:
    """Have accounts follow prunes that nothing proves, and exit with 1 if some could not be looked at."""
    left = sum(_forget(each, dry_run=dry_run) for each in registered_tables(ctx, names, tables))
    if left:
        raise typer.Exit(EXIT_FAILED)


def _forget(at: RegisteredTable, *, dry_run: bool) -> int:
    """One table. Returns: how many journals could not be looked at, or not whole."""
    spec = at.spec
    shrinker, shrunk, left = Shrinker(at.source, at.roots), 0, 0
    journals = at.journals()
    cursors = at.cursors(journals)
    for journal in journals:
        after: str | None = ""
        while after is not None:
            try:
                found = shrinker.look(
                    at.session,
                    spec,
                    at.table,
                    journal,
                    cursors[journal.name],
                    after=after,
                    is_confirmed=True,
                    is_dry_run=dry_run,
                )
            except GazetteError as err:
                note(f"{spec.name}: {err}")
                left += 1
                break
            for text in found.doubts:
                note(f"{spec.name}: {text}")
            left += bool(found.doubts)
            shrunk += found.shrunk
            if found.is_complete:
                after = found.following
    verb = "would be forgotten" if dry_run else "is forgotten"
    print_text(
        f"{spec.name}: what was pruned of {shrunk} Hive partition(s) {verb}"
        + ("" if dry_run or not shrunk else "; the sensor drops those that hold nothing any more")
    )
    return left


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
