"""What commands of `gazctl lake` share: settings, specs, brokers, the metastore, tables by name, and texts on holes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, final

import typer
import yaml

from gazette_platform.cli.gazctl.connection import Connection
from gazette_platform.cli.gazctl.lake.commands import OutputFormat
from gazette_platform.cli.output import note, print_json, print_text
from gazette_platform.client import Client, JournalListing
from gazette_platform.errors import (
    GazetteError,
    LakeError,
    SetupError,
    TableFenced,
    ValidationError,
)
from gazette_platform.hive import HiveTable, MetastoreClient, MetastoreSession
from gazette_platform.lake import (
    BrokerSource,
    JournalCursor,
    LakeSettings,
    RefusedSpec,
    SpecFolder,
    StoreRoots,
    TableSpec,
    read_spec_folder,
)
from gazette_platform.lake.rollups.spec import read_rollup_folder
from gazette_platform.lake.spec.folder import or_meant
from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import JournalSpec

if TYPE_CHECKING:
    from gazette_platform.lake.typed.planning.ranges import Hole

_JOURNALS_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A table that the metastore has, and who is asked about it."""

    source: BrokerSource
    session: MetastoreSession
    spec: TableSpec
    table: HiveTable
    roots: StoreRoots

    def journals(self) -> list[JournalSpec]:
        """Specs of its journals."""
        return self.source.journals(self.spec.label_selector)

    def cursors(self, journals: Sequence[JournalSpec]) -> dict[str, JournalCursor]:
        """How far journals are registered, as accounts say."""
        # Applying a spec needs none of it.
        from gazette_platform.lake.raw.audits.registration_status import table_standing  # noqa: PLC0415

        standing = table_standing(self.spec, journals, {}, self.session, SystemClock().now())
        return {each.journal: each.cursor for each in standing.journals}


def registered_tables(
    ctx: typer.Context, names: list[str], tables: Path | None
) -> Iterator[RegisteredTable]:
    """The tables that were named, or all, over one client and one session; those not made yet are noted.

    Raises: GazetteError: a server cannot be reached, or there is no such spec.
    """
    settings = settings_of()
    specs, _ = specs_named(tables_folder(settings, tables), names)
    roots = StoreRoots(settings.store_roots)
    opened = MetastoreClient(settings.required("metastore"))
    with brokers(ctx, settings) as client, opened.connect() as session:
        source = BrokerSource(client)
        for spec in specs.values():
            table = session.table(spec.schema, spec.stored_table)
            if table is None:
                note(f"{spec.name}: is not made yet")
            else:
                yield RegisteredTable(source, session, spec, table, roots)


def settings_of() -> LakeSettings:
    """Settings of the environment.

    Raises: ValidationError: a file or variable is malformed.
    """
    return LakeSettings.from_environment(os.environ)


def tables_folder(settings: LakeSettings, given: Path | None) -> Path:
    """The folder of table specs.

    Raises: SetupError: none is configured.
    """
    if given is None and not settings.tables:
        raise SetupError(
            "the folder of table specs is not known, and no platform runs: start one with `gazette up "
            "--light`, give --tables, or set GAZETTE_TABLES or GAZETTE_ENDPOINTS"
        )
    return given if given is not None else Path(settings.tables)


@contextmanager
def brokers(
    ctx: typer.Context, settings: LakeSettings, *, reads_files: bool = False
) -> Iterator[Client]:
    """Yield a client of the brokers in the options; closed at the end.

    Args:
        reads_files: whether it is to read fragments from folders of this machine, where they are.
    """
    config = ctx.find_object(Connection).client  # type: ignore[union-attr]
    if reads_files and settings.file_root is not None:
        config = replace(config, file_root=settings.file_root)
    with Client(config) as client:
        yield client


def write_heads(
    client: Client, listings: Sequence[JournalListing], failed: Callable[[str, GazetteError], None]
) -> dict[str, int]:
    """Write heads of journals, by name; without those that failed, which go to `failed`."""

    async def head(listing: JournalListing) -> dict[str, int]:
        try:
            return await client.asynchronous.write_heads([listing])
        except GazetteError as err:
            failed(listing.name, err)
            return {}

    found = client.run(side_by_side(head, listings, at_a_time=_JOURNALS_AT_A_TIME))
    return {journal: end for each in found for journal, end in each.items()}


@contextmanager
def metastore(settings: LakeSettings) -> Iterator[MetastoreSession | None]:
    """A session of the metastore, closed at the end; None, after a note, if there is none."""
    if not settings.metastore:
        yield None
        return
    opened = MetastoreClient(settings.metastore).connect()
    try:
        session = opened.__enter__()
    except LakeError as err:
        note(f"note: {err}; what exists there is not looked at")
        yield None
        return
    try:
        yield session
    finally:
        opened.__exit__(None, None, None)


def specs_named(
    folder: Path, names: list[str], *, refused_too: bool = False
) -> tuple[dict[str, TableSpec], dict[str, RefusedSpec]]:
    """Specs of the tables that were named, or all; and files that are refused.

    Args:
        folder: of specs.
        names: of tables; none: all.
        refused_too: whether a table that was named may be one whose file is refused.

    Raises: ValidationError: a table that was named has no spec, or there is none at all.
    """
    found = read_spec_folder(folder)
    nothing = ""
    if not found.specs and not found.refused:
        nothing = (
            f"{folder} holds no table spec (*.yaml; `gazctl lake infer` writes one)"
            if folder.is_dir()
            else f"there is no folder {folder} of table specs (`gazctl lake apply` makes it)"
        )
    if not names:
        if nothing:
            note(f"note: {nothing}")
        return dict(found.specs), dict(found.refused)
    if nothing:
        raise ValidationError(nothing)
    refused = {file: bad for file, bad in found.refused.items() if bad.table in names}
    known = {*found.specs, *(bad.table for bad in refused.values() if refused_too)}
    missing = [name for name in names if name not in known]
    if missing:
        typed = {s.typed.name: s.name for s in found.specs.values() if s.typed is not None}
        if missing[0] in typed:
            raise ValidationError(
                f"{missing[0]} is a typed table, and this is done to raw ones: the one that it is made beside is "
                f"{typed[missing[0]]}"
            )
        of_them = [str(e) for bad in refused.values() if bad.table in missing for e in bad.errors]
        why = f"; {len(found.refused)} files there are refused" if found.refused else ""
        raise ValidationError(
            f"no spec in {folder} is of table {', '.join(missing)}"
            + (f": {'; '.join(of_them)}" if of_them else f"{why} (`gazctl lake list` shows all)")
            + or_meant(
                missing,
                {*found.specs, *typed, *(bad.table for bad in found.refused.values())} - {""},
            )
        )
    return {name: found.specs[name] for name in names if name in found.specs}, refused


def refused_rollups(settings: LakeSettings, tables: Path, names: list[str]) -> dict[str, str]:
    """What is wrong with files of rollups, by file, or by name of a rollup.

    Args:
        settings: where the folder of rollups is.
        tables: the folder of table specs, whose names no rollup may have.
        names: of tables that were asked for; then files of rollups are not.
    """
    if names or not settings.rollups:
        return {}
    taken = read_spec_folder(tables).tables
    return {f: str(e) for f, e in read_rollup_folder(settings.rollups, taken).errors.items()}


def print_values(values: list[dict[str, Any]], output_format: OutputFormat) -> None:
    """Print plain values for programs."""
    if output_format == "json":
        print_json(values, indent=True)
    else:
        print_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")


T = TypeVar("T")

_ATTEMPTS = 3


@final
class TypedTable(NamedTuple):
    """A typed table, and the raw table's spec that has it."""

    typed: TypedSpec
    raw: TableSpec


def typed_named(folder: Path, names: list[str]) -> tuple[list[TypedTable], list[str]]:
    """The typed tables that were named, or all.

    Returns: each once, in the order of names, or sorted; and, if none was named, what is wrong with other specs.
    Raises: ValidationError: one that was named is not there; says why.
    """
    found = read_spec_folder(folder)
    every = {
        spec.typed.name: TypedTable(spec.typed, spec)
        for spec in found.specs.values()
        if spec.typed is not None
    }
    if not names:
        return [every[name] for name in sorted(every)], [str(error) for error in found.errors]
    by_raw = {table.raw.name: name for name, table in every.items()}
    wanted = dict.fromkeys(by_raw.get(name, name) for name in names)
    for name in wanted:
        if name not in every:
            raise ValidationError(_why_not(name, folder, found, {*every, *by_raw}))
    return [every[name] for name in wanted], []


def unless_fenced(work: Callable[[], T]) -> T:
    """Do what another one may come in between, some times.

    Raises: TableFenced: another one always did.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except TableFenced as err:
            note(f"{err}; trying again")
    return work()


def apart(folder: Path, names: list[str]) -> tuple[list[str], list[TypedTable]]:
    """Names that are those of typed tables, and others; without names, all typed tables and no others.

    Returns: the others, as they are; and typed tables.
    """
    every = {
        spec.typed.name: TypedTable(spec.typed, spec)
        for spec in read_spec_folder(folder).specs.values()
        if spec.typed is not None
    }
    if not names:
        return [], [every[name] for name in sorted(every)]
    others = [name for name in names if name not in every]
    return others, [every[name] for name in dict.fromkeys(names) if name in every]


def _why_not(name: str, folder: Path, found: SpecFolder, known: set[str]) -> str:
    if name in found.specs:
        return (
            f"the spec of {name} ({folder / found.files[name]}) has no section `typed:` (`gazctl lake infer --typed` "
            "proposes one)"
        )
    refused = [str(e) for bad in found.refused.values() if bad.table == name for e in bad.errors]
    if refused:
        return f"the spec of {name} is refused: {'; '.join(refused)}"
    others = f"; {len(found.refused)} files there are refused" if found.refused else ""
    return (
        f"no spec in {folder} is of a typed table {name}{others} (`gazctl lake list` shows all)"
        + or_meant([name], known)
    )


def hole_text(table: str, hole: Hole) -> str:
    """What a hole of a journal is to a typed table, and what may be done."""
    from gazette_platform.lake.typed.planning.ranges import HoleKind  # noqa: PLC0415  not for raw tables

    what = f"bytes {hole.begin} to {hole.end} of {hole.journal}"
    give_up = f"`gazctl lake run {table} --give-up {hole.journal}={hole.end}`"
    match hole.kind:
        case HoleKind.PRUNED:
            return f"{what} were pruned before they were read, so it stands still; {give_up} goes on without them"
        case HoleKind.MISSING:
            return (
                f"nobody holds {what} now, so it waits: they may be on their way to their store; if they are "
                f"lost, {give_up} goes on without them"
            )
        case HoleKind.OPEN_PRUNED:
            return (
                f"{what} were pruned, in which a transaction begins that is open: if that is committed, runs fail, until "
                f"{give_up} goes on without what is left of it"
            )
        case HoleKind.MADE_AGAIN:
            return (
                f"{hole.journal} is not the journal that was read up to {hole.end}, and ends at {hole.begin}: it was "
                f"deleted and made again, or lost its end. It stands still until you decide: `gazctl lake run {table} "
                f"--begin-anew {hole.journal}` reads it from its beginning, beside the rows of the former one; "
                f"`--begin-anew {hole.journal}=OFFSET` reads on from there, as from {hole.end} if its content is the "
                "same as before"
            )
