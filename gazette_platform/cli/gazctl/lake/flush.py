"""`gazctl lake flush`."""

from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl.arguments import seconds_of
from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    apart,
    brokers,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import BrokerSource, LakeSettings, Registrar, StoreRoots, TableSpec
from gazette_platform.lake.raw.audits.status import TableStanding, table_standing
from gazette_platform.lake.raw.catch_up import CaughtUp, catch_up, reachable
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted


def flush(ctx: typer.Context, names: list[str], tables: Path | None, timeout: str) -> None:
    """Have tables hold what was appended until now."""
    timeout_s = seconds_of(timeout, "--timeout")
    settings = settings_of()
    folder = tables_folder(settings, tables)
    others, typed = apart(folder, names)
    specs, _ = specs_named(folder, [*dict.fromkeys([*others, *(each.raw.name for each in typed)])])
    metastore = MetastoreClient(settings.required("metastore"))
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    with brokers(ctx, settings) as client:
        source = BrokerSource(client)
        registrar = Registrar(
            source,
            metastore,
            StoreRoots(settings.store_roots),
            trino_catalog=settings.trino_catalogs.hive,
        )
        for spec in specs.values():
            left = max(1.0, deadline - clock.monotonic())
            ends = client.flush(spec.label_selector, timeout_s=left)
            journals = source.journals(spec.label_selector)
            with metastore.connect() as session:
                standing = table_standing(spec, journals, ends, session, clock.now())
            begins = {each.journal: each.cursor for each in standing.journals}
            reached = reachable(journals, ends)
            done = catch_up(registrar, spec, begins, reached, deadline=deadline, clock=clock)
            for text in done.told:
                note(f"{spec.name}: {text}")
            if done.keys:
                print_text(_more(spec, done))
                continue
            with metastore.connect() as session:
                standing = table_standing(spec, journals, ends, session, clock.now())
            print_text(nothing_more(standing))
    behind = [TypedTable(spec.typed, spec) for spec in specs.values() if spec.typed is not None]
    if behind and not _typed_too(ctx, settings, behind, deadline):
        raise typer.Exit(EXIT_FAILED)


def _typed_too(
    ctx: typer.Context, settings: LakeSettings, behind: list[TypedTable], deadline: float
) -> bool:
    """Have typed tables hold the same. Returns: whether they do."""
    from gazette_platform.cli.gazctl.lake.run import caught_up  # noqa: PLC0415  slow to import

    return caught_up(ctx, settings, behind, deadline)


def _more(spec: TableSpec, done: CaughtUp) -> str:
    rows = "rows that could not be counted" if done.rows is None else f"{done.rows} row(s)"
    return f"{spec.name}: {rows} more, in {len(done.keys)} Hive partition(s)"


def nothing_more(standing: TableStanding) -> str:
    """What to say of a table with nothing left to register."""
    name = standing.spec.name
    if not standing.location:
        why = standing.problems[0] if standing.problems else "nothing was appended to its journals"
        return f"{name}: nothing to register ({why})"
    partitions = counted(len(standing.partitions), "Hive partition")
    rows = "rows not all counted yet" if standing.rows is None else counted(standing.rows, "row")
    return f"{name}: all is registered already, {rows} in {partitions}"
