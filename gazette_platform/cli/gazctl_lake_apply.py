"""`gazctl lake apply`."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import typer

from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    metastore,
    settings_of,
    tables_folder,
)
from gazette_platform.cli.output import note, print_text
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, JournalNotFound, ValidationError
from gazette_platform.hive import HiveTable, MetastoreSession
from gazette_platform.lake import LakeSettings, StoreRoots, TableSpec
from gazette_platform.lake.applying import (
    SpecFile,
    files_to_put,
    problems_among,
    problems_with_data,
    problems_with_journals,
    problems_with_table,
    put_files,
)
from gazette_platform.lake.check import SAMPLE_BYTES
from gazette_platform.lake.recreating import (
    HeldNow,
    drop_entries,
    entries_of,
    held_states,
    stored_entry,
    why_missed,
)
from gazette_platform.lake.rollups import read_rollup_folder
from gazette_platform.lake.sampling import BrokerContent, served, spread
from gazette_platform.lake.spec_folder import in_file, problems_with_files, specs_by_file
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted
from gazette_platform.protocol import JournalSpec

__all__ = ["apply", "apply_files"]

_JOURNALS_READ_MAX = 5


def apply(
    ctx: typer.Context,
    names: list[str],
    tables: Path | None,
    *,
    dry_run: bool,
    force: bool,
    recreate: bool,
) -> None:
    """Check specs, and put them into the folder."""
    settings = settings_of()
    folder = tables_folder(settings, tables)
    files = [_read(name, folder) for name in names]
    apply_files(
        files,
        folder,
        settings,
        lambda: brokers(ctx, settings),
        dry_run=dry_run,
        may_be_none=force,
        recreate=recreate,
    )


def apply_files(
    files: list[SpecFile],
    folder: Path,
    settings: LakeSettings,
    open_client: Callable[[], AbstractContextManager[Client]],
    *,
    dry_run: bool = False,
    may_be_none: bool = False,
    recreate: bool = False,
) -> None:
    """Check specs, put them into the folder, and say what changed.

    Args:
        files: with the specs.
        folder: of table specs.
        settings: where the metastore and other specs are.
        open_client: of brokers; is asked if there is a spec to check.
        dry_run: whether to show what would change only.
        may_be_none: whether a spec may select no journal.
        recreate: whether to make raw tables again that cannot become their specs.

    Raises: ValidationError: something speaks against a spec; nothing was applied.
    """
    problems = [error for file in files for error in file.errors]
    rollups = read_rollup_folder(settings.rollups, ()).specs
    problems += problems_among(files, specs_by_file(folder), rollups)
    put = files_to_put(files)
    texts = {file.name: file.text for file in put}
    problems += problems_with_files(folder, texts, but={file.name for file in files})
    specs = [(file.name, file.spec) for file in files if file.spec is not None]
    again: list[_Again] = []
    if specs:
        with open_client() as client, metastore(settings) as session:
            for name, spec in specs:
                found = _problems(client, spec, may_be_none=may_be_none)
                if not found and session is not None:
                    found = _table_problems(client, session, settings, spec)
                    if found and recreate:
                        found, one = _recreated(client, session, spec)
                        again += [one] if one else []
                found += _typed_problems(settings, spec)
                problems += [in_file(name, problem) for problem in found]
    for problem in problems:
        note(f"  {problem}")
    if problems:
        raise ValidationError(
            f"{len(problems)} error(s) in {len(files)} spec(s), as above; nothing was applied"
        )
    if dry_run:
        print_text("".join(file.diff() for file in put), end="")
        changed = [file.name for file in files if file.is_changed]
        note(f"would apply {len(changed)} of {len(files)} spec(s) to {folder}")
        for one in again:
            note(f"would make {one.table} again: {one.rows}")
        return
    changed = put_files(put, folder)
    of_tables = {file.name: file.spec.name for file in files if file.spec is not None}
    for each in put:
        state = "unchanged" if each.name not in changed else "changed" if each.before else "new"
        note(f"{of_tables.get(each.name, each.name)}: {state} ({folder / each.name})")
    _make_again(settings, again)


@final
@dataclass(frozen=True, slots=True)
class _Again:
    """A table that is to be made again."""

    table: str
    entries: list[HiveTable]
    """Of the metastore."""
    rows: str
    """How many it has, in words."""


def _make_again(settings: LakeSettings, tables: list[_Again]) -> None:
    """Drop tables whose specs were applied: with the former specs, a sensor would make the former tables again."""
    if not tables:
        return
    with metastore(settings) as session:
        assert session is not None  # it was asked for them
        for each in tables:
            drop_entries(session, each.entries)
            note(
                f"{each.table}: dropped, and the sensor makes it again from the same files: {each.rows} (`gazctl lake "
                f"flush {each.table}` does so at once)"
            )


def _read(name: str, folder: Path) -> SpecFile:
    if name != "-":
        path = Path(name)
        return SpecFile.of(path.name, path.read_bytes(), folder, source=path.parent)
    text = sys.stdin.buffer.read()
    unnamed = SpecFile.of("stdin.yaml", text, folder)
    if unnamed.spec is None:
        return unnamed
    return SpecFile.of(f"{unnamed.spec.name}.yaml", text, folder)


def _problems(
    client: Client,
    spec: TableSpec,
    *,
    may_be_none: bool,
) -> list[ValidationError]:
    """What speaks against a spec whose text is well."""
    journals = [listing.spec for listing in client.list(spec.label_selector)]
    if not journals and may_be_none:
        return []
    now = SystemClock().now()
    problems = problems_with_journals(spec, journals, now)
    return problems or problems_with_data(spec, _samples(client, journals))


def _table_problems(
    client: Client, session: MetastoreSession, settings: LakeSettings, spec: TableSpec
) -> list[ValidationError]:
    """What keeps the table that exists from becoming its spec."""
    journals = [listing.spec for listing in client.list(spec.label_selector)]
    existing = stored_entry(entries_of(session, spec.name)) or session.table(
        spec.schema, spec.stored_table
    )
    roots = StoreRoots(settings.store_roots)
    return problems_with_table(spec, journals, existing, roots=roots, at=SystemClock().now())


def _recreated(
    client: Client, session: MetastoreSession, spec: TableSpec
) -> tuple[list[ValidationError], _Again | None]:
    """The table as one to make again, or why it is not."""
    entries = entries_of(session, spec.name)
    stored = stored_entry(entries)
    if stored is None:
        text = f"{spec.name} was not made from a table spec: drop or rename it, or rename the spec"
        return [ValidationError(text, path="--recreate")], None
    states = held_states(session, stored)
    content = BrokerContent(client)
    held: dict[str, HeldNow] = {}
    for journal in dict.fromkeys(state.journal for state in states if state.ranges):
        with suppress(JournalNotFound):
            created = client.get(journal).created
            held[journal] = HeldNow(*content.span(journal), created)
    if why := why_missed(states, held):
        text = f"{spec.name} cannot be made again without loss: {why}; give the spec another name"
        return [ValidationError(text, path="--recreate")], None
    counts = [state.rows for state in states]
    rows = None if None in counts else sum(count or 0 for count in counts)
    return [], _Again(spec.name, entries, "all rows" if rows is None else counted(rows, "row"))


def _typed_problems(settings: LakeSettings, spec: TableSpec) -> list[ValidationError]:
    """What speaks against the section `typed:` once there is a table."""
    typed, catalog = spec.typed, settings.iceberg_catalog
    if typed is None or (catalog.kind == "hive" and not settings.metastore):
        return []
    # Slow to import.
    from gazette_platform.lake.typed.catalog.catalogs import typed_catalog  # noqa: PLC0415
    from gazette_platform.lake.typed.tables.table import require_able  # noqa: PLC0415

    try:
        existing = typed_catalog(settings).door(typed.name).load()
    except GazetteError as err:
        note(f"note: {err}; whether {typed.name} can become what its spec says is not looked at")
        return []
    try:
        if existing is not None:
            require_able(existing, typed, typed.name)
    except GazetteError as err:
        return [ValidationError(str(err), path="typed")]
    return []


def _samples(client: Client, journals: list[JournalSpec]) -> list[tuple[str, bytes]]:
    """What the first records of some journals are. One that cannot be read is left out, and told."""
    content = BrokerContent(client)
    samples: list[tuple[str, bytes]] = []
    for journal in spread(served(journals), _JOURNALS_READ_MAX):
        try:
            begin, head = content.span(journal.name)
            first = content.read(journal.name, begin, min(head, begin + SAMPLE_BYTES))
        except GazetteError as err:
            note(f"note: {journal.name} cannot be read, so its records are not looked at ({err})")
            continue
        samples.append((f"journal {journal.name}", first))
    return samples
