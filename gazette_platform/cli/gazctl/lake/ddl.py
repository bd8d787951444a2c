"""`gazctl lake ddl`."""

from pathlib import Path

import typer

from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    apart,
    brokers,
    metastore,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import print_text
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake import LakeSettings, StoreRoots, TableSpec, parse_table_spec
from gazette_platform.lake.engines.ddl import MountedTable, create_statement
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.spec.folder import files_beside
from gazette_platform.lake.spec.layout import (
    Layout,
    expected_layout,
    expected_location,
    partition_columns,
)
from gazette_platform.lake.typed.schema.mounting import mount_statement
from gazette_platform.ops.clock import SystemClock


def ddl(ctx: typer.Context, table: str, dialect: str, location: str, tables: Path | None) -> None:
    """Print a CREATE statement."""
    settings = settings_of()
    path = Path(table)
    if path.suffix in {".yaml", ".yml"} or "/" in table:
        spec = _in_file(path)
    else:
        others, typed = apart(tables_folder(settings, tables), [table])
        if typed:
            _print_mount(settings, typed[0], dialect, location)
            return
        spec = specs_named(tables_folder(settings, tables), others)[0][table]
    layout, found = _place(ctx, settings, spec, needs_location=not location)
    mounted = MountedTable(
        spec=spec,
        layout=layout,
        partitions=partition_columns(spec, layout),
        location=(location or found).rstrip("/"),
    )
    print_text(create_statement(mounted, dialect), end="")


def _in_file(path: Path) -> TableSpec:
    text = path.read_bytes()
    try:
        return parse_table_spec(text, files_beside(text, path.parent))
    except ValidationError as err:
        raise err.within(str(path)) from err


def _print_mount(settings: LakeSettings, table: TypedTable, dialect: str, location: str) -> None:
    name = table.typed.name
    if location:
        raise ValidationError(
            f"the metadata of {name} name its files by whole paths: they cannot be elsewhere",
            path="--location",
        )
    loaded = typed_catalog(settings).handle(name).load()
    if loaded is None:
        raise LakeError(f"there is no table {name} yet: `gazctl lake run {name}` makes it")
    print_text(mount_statement(name, loaded.metadata_location, dialect), end="")


def _place(
    ctx: typer.Context, settings: LakeSettings, spec: TableSpec, *, needs_location: bool
) -> tuple[Layout, str]:
    """Layout and location: as the metastore has them, else by journals' specs."""
    with metastore(settings) as session:
        table = session.table(spec.schema, spec.stored_table) if session is not None else None
    if table is not None and LAYOUT in table.parameters:
        return Layout.parse(table.parameters[LAYOUT]), table.location
    with brokers(ctx, settings) as client:
        journals = [listing.spec for listing in client.list(spec.label_selector)]
    if not journals:
        raise ValidationError(
            f"{spec.name}: {spec.selector!r} matches no journal, so the layout of its files is unknown",
            path="selector",
        )
    layout = expected_layout(journals, SystemClock().now())
    if not needs_location:
        return layout, ""
    return layout, expected_location(journals, layout, StoreRoots(settings.store_roots))
