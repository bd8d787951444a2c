"""`gazctl lake repair --pruned`."""

from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl_lake_context import RegisteredTable, registered_tables
from gazette_platform.cli.output import note, print_text
from gazette_platform.errors import GazetteError
from gazette_platform.lake import Shrinker

__all__ = ["forget_pruned"]


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
