"""`gazctl lake repair --same`."""

from pathlib import Path

import typer

from gazette_platform.cli.gazctl_lake_context import registered_tables
from gazette_platform.cli.output import print_text
from gazette_platform.lake.adopting import adopt_journals

__all__ = ["adopt"]


def adopt(ctx: typer.Context, names: list[str], tables: Path | None, *, dry_run: bool) -> None:
    """Have accounts of raw tables belong to the journals of now."""
    for at in registered_tables(ctx, names, tables):
        created = at.source.created(at.spec.label_selector)
        count = adopt_journals(at.session, at.table, created, is_dry_run=dry_run)
        verb = "would belong" if dry_run else "belong"
        print_text(
            f"{at.spec.name}: {count} Hive partition(s) {verb} to the journals that were created again"
        )
