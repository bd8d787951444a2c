"""`gazctl lake run --accept-rollback`."""

import sys
from pathlib import Path

import typer
from pyiceberg.exceptions import CommitFailedException

from gazette_platform.cli.gazctl_lake_context import brokers, settings_of, tables_folder
from gazette_platform.cli.output import note
from gazette_platform.cli.typed_tables import typed_named
from gazette_platform.errors import TypedFenced, TypedRolledBack, ValidationError
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.tables.rollback import (
    Reread,
    accept_rollback,
    look_at_rollback,
    reread,
)
from gazette_platform.ops.clock import SystemClock

__all__ = ["accept"]


def accept(
    ctx: typer.Context, names: list[str], tables: Path | None, *, is_confirmed: bool
) -> None:
    """Show what accepting the rollback of a table does, and do it, if a person says so.

    Raises: TypedRolledBack: nobody did; nothing was changed.
    """
    settings = settings_of()
    found, _ = typed_named(tables_folder(settings, tables), names)
    if len(names) != 1 or len(found) != 1:
        raise ValidationError("is about one table: name it", path="--accept-rollback")
    table = found[0]
    handle = typed_catalog(settings).handle(table.typed.name)
    rollback = look_at_rollback(handle)
    if rollback is None:
        note(f"{table.typed.name} was not rolled back, so there is nothing to accept")
        return
    with brokers(ctx, settings, reads_files=True) as client:
        asked = client.asynchronous
        selector = table.raw.label_selector
        now = client.run(journals_now(asked, selector, rollback.after, SystemClock()))
    for journal, why in sorted(now.unreadable.items()):
        note(
            f"{table.typed.name}: brokers tell nothing of {journal} now, so it counts as lost: {why}"
        )
    changed = reread(rollback, now.journals)
    for one in changed:
        note(f"{table.typed.name}: {_text(one)}")
    if not changed:
        note(f"{table.typed.name}: nothing is read again: the tag is moved to what the table has")
    if not is_confirmed and not _is_accepted():
        raise TypedRolledBack(
            f"{table.typed.name}: nothing was changed (repeat with --yes to move the tag to snapshot {rollback.to})"
        )
    try:
        accept_rollback(handle, rollback)
    except CommitFailedException as err:
        raise TypedFenced(
            f"{table.typed.name} was changed meanwhile, so nothing was accepted: look at it again"
        ) from err
    note(f"{table.typed.name}: its progress is that of snapshot {rollback.to} now")


def _text(one: Reread) -> str:
    text = f"{one.journal} would be read again from offset {one.begin} to {one.end}"
    if not one.lost_bytes:
        return f"{text}, and nothing of it is lost"
    return f"{text}, of which {one.lost_bytes} bytes are gone: their rows would be lost"


def _is_accepted() -> bool:
    if not sys.stdin.isatty():
        return False
    note("Accept that? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
