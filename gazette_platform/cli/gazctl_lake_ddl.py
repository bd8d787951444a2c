"""`gazctl lake ddl`."""

from pathlib import Path

import typer

from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    metastore,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import print_text
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings, StoreRoots, TableSpec, parse_table_spec
from gazette_platform.lake.ddl import MountedTable, create_statement
from gazette_platform.lake.expected import expected_layout, expected_location
from gazette_platform.lake.layout import Layout, partition_columns
from gazette_platform.lake.tables import LAYOUT
from gazette_platform.ops.clock import SystemClock

__all__ = ["ddl"]


def ddl(ctx: typer.Context, table: str, dialect: str, location: str, tables: Path | None) -> None:
    """Print a CREATE statement."""
    settings = settings_of()
    spec = _spec(table, settings, tables)
    layout, found = _place(ctx, settings, spec, needs_location=not location)
    mounted = MountedTable(
        spec=spec,
        layout=layout,
        partitions=partition_columns(spec, layout),
        location=(location or found).rstrip("/"),
    )
    print_text(create_statement(mounted, dialect), end="")


def _spec(table: str, settings: LakeSettings, tables: Path | None) -> TableSpec:
    path = Path(table)
    if path.suffix in {".yaml", ".yml"} or "/" in table:
        try:
            return parse_table_spec(path.read_bytes())
        except ValidationError as err:
            raise err.within(table) from err
    specs, _ = specs_named(tables_folder(settings, tables), [table])
    return specs[table]


def _place(
    ctx: typer.Context, settings: LakeSettings, spec: TableSpec, *, needs_location: bool
) -> tuple[Layout, str]:
    """Layout and location: as the metastore has them, else as journals' specs tell."""
    with metastore(settings) as session:
        table = session.table(spec.schema, spec.table) if session is not None else None
    if table is not None and LAYOUT in table.parameters:
        return Layout.parse(table.parameters[LAYOUT]), table.location
    with brokers(ctx, settings) as client:
        journals = [listing.spec for listing in client.list(spec.label_selector)]
    if not journals:
        raise ValidationError(
            f"{spec.name}: {spec.selector!r} matches no journal, so nothing tells how its files lie",
            path="selector",
        )
    layout = expected_layout(journals, SystemClock().now())
    if not needs_location:
        return layout, ""
    return layout, expected_location(journals, layout, StoreRoots(settings.store_roots))
