"""Table specs that commands infer, and statements made of them: `gazctl lake infer`, `create` and `ddl`, and `gazctl sql --save`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, cast, final

import typer

from gazette_platform.cli.gazctl.arguments import Selection
from gazette_platform.cli.gazctl.lake.apply import apply_files
from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    apart,
    brokers,
    metastore,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import confirmed, note, print_text
from gazette_platform.client import Client
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.lake import LakeSettings, StoreRoots, TableSpec, parse_table_spec
from gazette_platform.lake.engines.ddl import MountedTable, create_statement
from gazette_platform.lake.engines.duckdb import LocalSql
from gazette_platform.lake.inference.infer import Inference, infer_spec
from gazette_platform.lake.inference.sampling import (
    BrokerContent,
    Sample,
    SampleLimits,
    require_whole_lines,
    sample_lines,
)
from gazette_platform.lake.raw.applying_specs import SpecFile
from gazette_platform.lake.raw.tables import LAYOUT
from gazette_platform.lake.spec.folder import files_beside, read_spec_folder
from gazette_platform.lake.spec.layout import (
    Layout,
    expected_layout,
    expected_location,
    partition_columns,
)
from gazette_platform.lake.spec.rules import is_table_name
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted

_LINES_SHOWN = 3
_LINE_BYTES_SHOWN = 60


def infer(
    ctx: typer.Context,
    selection: Selection,
    name: str,
    *,
    data_format: str,
    is_typed: bool,
    journals_max: int,
    sample_bytes: int,
) -> None:
    """Print a spec, and report what it was inferred from."""
    limits = SampleLimits(journals_max=journals_max, sample_bytes=sample_bytes)
    with brokers(ctx, settings_of()) as client:
        found = inferred(
            client, selection, name, data_format=data_format, is_typed=is_typed, limits=limits
        )
    print_text(found.text, end="")


def inferred(
    client: Client,
    selection: Selection,
    name: str,
    *,
    data_format: str,
    is_typed: bool,
    limits: SampleLimits,
) -> Inference:
    """Infer the spec of a table from samples of its journals, and print on stderr what it was inferred from.

    Args:
        client: of the brokers.
        selection: of the journals.
        name: of the table.
        data_format: json or csv; empty: found out.
        is_typed: whether the spec gets a section `typed:`.
        limits: how much to read.

    Raises: ValidationError: no journal matches. SchemaMismatch: no columns can be inferred. LakeError: the journals
        cannot be one table. TransportError: no broker answers.
    """
    journals = [listing.spec for listing in client.list(selection.selector)]
    selection.check(journal.name for journal in journals)
    lines, samples = sample_lines(BrokerContent(client), journals, limits)
    require_whole_lines(lines, samples)
    found = infer_spec(
        name,
        str(selection.selector),
        lines,
        journals,
        data_format=cast('Literal["json", "csv", ""]', data_format),
        is_typed=is_typed,
    )
    report(found, samples, len(journals))
    return found


def report(found: Inference, samples: Sequence[Sample], journals: int, *, called: str = "") -> None:
    """Print on stderr what a spec was inferred of.

    Args:
        found: the spec.
        samples: what was read.
        journals: how many there are.
        called: what to call the table; empty: its name.
    """
    read = sum(sample.end - sample.begin for sample in samples)
    looked_into = {sample.journal: sample.journal_bytes for sample in samples}
    total = sum(looked_into.values())
    note(
        f"{called or found.spec.name}: {counted(found.records, 'record')}, {read} of {total} bytes, of "
        f"{len(looked_into)} of {counted(journals, 'journal')}"
    )
    rows = [["column", "key", "type", "seen", "null", "missing", "values"]]
    for column in found.columns:
        values = ", ".join(f"{count} {kind}" for kind, count in column.kinds.items())
        counts = (str(count) for count in (column.seen, column.nulls, column.missing))
        key = column.key if column.key != column.name else ""
        rows.append([column.name, key, column.type, *counts, values])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        note("  " + "  ".join(map(str.ljust, row, widths)).rstrip())
    for column in found.columns:
        for remark in column.remarks:
            note(f"  {column.name}: {remark}")
    for remark in found.remarks:
        note(f"  note: {remark}")
    if read < total or len(looked_into) < journals:
        note(
            "  note: what was not read may hold other keys, and values of other types: --bytes and --journals "
            "read more; the check `fits_spec` will count what does not fit"
        )
    for line in found.unread[:_LINES_SHOWN]:
        note(f"  not read: {line[:_LINE_BYTES_SHOWN].decode('utf-8', 'backslashreplace')!r}")


@final
class NewTable:
    """A table that a command creates.

    Args:
        name: of the table.
        settings: where servers and specs are.
        tables: the folder, if an option names it.
        option: that gave the name, for errors.

    Raises: ValidationError: no table can have the name. SetupError: no folder is known.
    """

    def __init__(
        self, name: str, settings: LakeSettings, tables: Path | None, *, option: str
    ) -> None:
        if not is_table_name(name):
            raise ValidationError(
                f"{name!r} cannot be a table's name: write it as shop.events, in lower case",
                path=option,
            )
        self.name = name
        self.folder = tables_folder(settings, tables)
        self._settings = settings
        self._option = option
        self._files: list[SpecFile] = []

    @property
    def is_new(self) -> bool:
        """Whether the folder does not have this very spec yet."""
        return any(file.is_changed for file in self._files)

    def take(self, text: str) -> None:
        """Take the text of its spec.

        Raises: ValidationError: the table exists, with another spec.
        """
        file = SpecFile.of(f"{self.name}.yaml", text.encode(), self.folder)
        known = read_spec_folder(self.folder).files.get(self.name)
        if known is not None and file.is_changed:
            raise ValidationError(
                f"the table {self.name} exists with another spec ({self.folder / known}): choose another name, change "
                f"that spec by `gazctl lake apply`, or drop the table first (`gazctl lake drop {self.name}`)",
                path=self._option,
            )
        self._files = [file]

    def apply(self, client: Client) -> None:
        """Apply the spec that was taken, and say so.

        Raises: ValidationError: something speaks against it. LakeError, TransportError: a server fails.
        """
        apply_files(self._files, self.folder, self._settings, lambda: nullcontext(client))


def create(
    ctx: typer.Context,
    name: str,
    selection: Selection,
    tables: Path | None,
    *,
    data_format: str,
    is_typed: bool,
    journals_max: int,
    sample_bytes: int,
    yes: bool,
) -> None:
    """Infer a spec, show it, ask, and apply it."""
    settings = settings_of()
    limits = SampleLimits(journals_max=journals_max, sample_bytes=sample_bytes)
    table = NewTable(name, settings, tables, option="TABLE")
    with brokers(ctx, settings) as client:
        found = inferred(
            client, selection, name, data_format=data_format, is_typed=is_typed, limits=limits
        )
        table.take(found.text)
        if table.is_new and not yes:
            print_text(found.text, end="")
            if not confirmed(f"Create {_tables(found.spec)}?"):
                raise ValidationError(
                    "nothing was created (answer y, or repeat the command with --yes)"
                )
        table.apply(client)
    for line in _next(found.spec, settings):
        note(line)


def _tables(spec: TableSpec) -> str:
    return spec.name if spec.typed is None else f"{spec.name} and {spec.typed.name}"


def _next(spec: TableSpec, settings: LakeSettings) -> list[str]:
    """What to do next, as lines."""
    lines = [f'query it: gazctl sql "FROM {spec.name} LIMIT 10"']
    if settings.metastore:
        return [
            *lines,
            f"Trino sees it within minutes, or at once by: gazctl lake flush {spec.name}",
        ]
    typed = "" if spec.typed is None else f", and to fill {spec.typed.name}"
    return [*lines, f"to query it in Trino and Spark{typed}: gazette up"]


@final
class SavedSpec:
    """The spec of a query's one `journal(…)`, on its way into the folder of specs.

    Args:
        name: of the table.
        settings: where servers and specs are.
        tables: the folder, if an option named it.

    Raises: ValidationError: no table can have the name. SetupError: no folder is known.
    """

    def __init__(self, name: str, settings: LakeSettings, tables: Path | None) -> None:
        self._table = NewTable(name, settings, tables, option="--save")

    def take(self, sql: LocalSql) -> None:
        """Take the spec of the query that `sql` has begun.

        Raises: ValidationError: the query has no `journal(…)`, or several; or the table has another spec.
        """
        inferred = sql.inferred()
        if len(inferred) != 1:
            has = ", ".join(inferred) or "none"
            raise ValidationError(
                f"saves the one journal(…) of a query, and this query has {has}: describe the one to save, as in "
                "\"DESCRIBE journal('events/')\"",
                path="--save",
            )
        (table,) = inferred.values()
        self._table.take(table.inference.named(self._table.name))

    def apply(self, client: Client) -> None:
        """Apply the spec that was taken, and say so.

        Raises: ValidationError: something speaks against it. LakeError, TransportError: a server fails.
        """
        self._table.apply(client)
        note(f"applied the spec that was inferred: {self._table.name} is a table now")


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
    # Slow to import, and of use for typed tables only.
    from gazette_platform.lake.engines.ddl import mount_statement  # noqa: PLC0415
    from gazette_platform.lake.iceberg.catalog import typed_catalog  # noqa: PLC0415

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
