"""`gazctl lake repair --pruned`."""

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
from gazette_platform.errors import GazetteError
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import BrokerSource, FragmentSource, Shrinker, StoreRoots, TableSpec
from gazette_platform.lake.standing import table_standing
from gazette_platform.ops.clock import SystemClock

__all__ = ["forget_pruned"]


def forget_pruned(
    ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool
) -> None:
    """Have accounts follow prunes that nothing proves, and exit with 1 if some could not be looked at."""
    settings = settings_of()
    specs, _ = specs_named(tables_folder(settings, tables), names)
    roots = StoreRoots(settings.store_roots)
    metastore = MetastoreClient(settings.required("metastore"))
    left = 0
    with brokers(ctx, settings) as client, metastore.connect() as session:
        source = BrokerSource(client)
        for spec in specs.values():
            left += _forget(source, session, spec, roots, dry_run=dry_run)
    if left:
        raise typer.Exit(EXIT_FAILED)


def _forget(
    source: FragmentSource,
    session: MetastoreSession,
    spec: TableSpec,
    roots: StoreRoots,
    *,
    dry_run: bool,
) -> int:
    """One table. Returns: how many journals could not be looked at, or not whole."""
    table = session.table(spec.schema, spec.table)
    if table is None:
        note(f"{spec.name}: is not made yet")
        return 0
    shrinker, shrunk, left = Shrinker(source, roots), 0, 0
    journals = source.journals(spec.label_selector)
    standing = table_standing(spec, journals, {}, session, SystemClock().now())
    cursors = {each.journal: each.cursor for each in standing.journals}
    for journal in journals:
        after: str | None = ""
        while after is not None:
            try:
                found = shrinker.look(
                    session,
                    spec,
                    table,
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
            if found.is_complete or not found.shrunk:
                after = found.following
    verb = "would be forgotten" if dry_run else "is forgotten"
    print_text(
        f"{spec.name}: what was pruned of {shrunk} Hive partition(s) {verb}"
        + ("" if dry_run or not shrunk else "; the sensor drops those that hold nothing any more")
    )
    return left
