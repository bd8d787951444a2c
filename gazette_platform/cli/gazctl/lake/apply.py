"""`gazctl lake apply` and `drop`: specs into the folder that the platform reads, and out of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import typer
import yaml

from gazette_platform.cli.gazctl.lake.context import brokers, metastore, settings_of, tables_folder
from gazette_platform.cli.output import confirmed, note, print_text
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, JournalNotFound, LakeError, ValidationError
from gazette_platform.hive import HiveTable, MetastoreClient, MetastoreSession
from gazette_platform.lake import LakeSettings, SpecFolder, StoreRoots, TableSpec, read_spec_folder
from gazette_platform.lake.inference.sampling import BrokerContent, served, spread
from gazette_platform.lake.raw.account_book import AccountBook
from gazette_platform.lake.raw.applying_specs import (
    FolderFile,
    HeldNow,
    SpecFile,
    drop_entries,
    entries_of,
    files_to_put,
    problems_among,
    problems_with_data,
    problems_with_table,
    put_files,
    stored_entry,
    why_doubled,
    why_missed,
)
from gazette_platform.lake.raw.planning import problems_with_journals
from gazette_platform.lake.reading.sample_check import SAMPLE_BYTES
from gazette_platform.lake.rollups.spec import read_rollup_folder
from gazette_platform.lake.spec.folder import in_file, or_meant, problems_with_files, specs_by_file
from gazette_platform.lake.spec.rules import QUARANTINE_SUFFIX
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.text import counted
from gazette_platform.protocol import JournalSpec

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
                        found, one = _recreated(
                            client, session, spec, StoreRoots(settings.store_roots)
                        )
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
    client: Client, session: MetastoreSession, spec: TableSpec, roots: StoreRoots
) -> tuple[list[ValidationError], _Again | None]:
    """The table as one to make again, or why it is not."""
    entries = entries_of(session, spec.name)
    stored = stored_entry(entries)
    if stored is None:
        text = f"{spec.name} was not made from a table spec: drop or rename it, or rename the spec"
        return [ValidationError(text, path="--recreate")], None
    parts = AccountBook(session, stored).every()
    states = [entry.state for entry in parts]
    content = BrokerContent(client)
    held: dict[str, HeldNow] = {}
    for journal in dict.fromkeys(state.journal for state in states if state.ranges):
        with suppress(JournalNotFound):
            created = client.get(journal).created
            held[journal] = HeldNow(*content.span(journal), created)
    if why := why_missed(states, held):
        text = f"{spec.name} cannot be made again without loss: {why}; give the spec another name"
        return [ValidationError(text, path="--recreate")], None
    from gazette_platform.lake.reading.storage import Storage  # noqa: PLC0415  for few commands

    stores: dict[str, tuple[str, ...]] = {}
    for journal in dict.fromkeys(state.journal for state in states if state.moving):
        with suppress(JournalNotFound):
            stores[journal] = client.get(journal).spec.fragment.stores
    if why := why_doubled(parts, stores, roots, Storage(roots)):
        text = f"{spec.name} cannot be made again now: {why}"
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
    from gazette_platform.lake.iceberg.catalog import typed_catalog  # noqa: PLC0415
    from gazette_platform.lake.typed.tables.table import require_able  # noqa: PLC0415

    try:
        existing = typed_catalog(settings).handle(typed.name).load()
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
    """Return the first records of some journals. One that cannot be read is left out, and reported."""
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


@dataclass(slots=True)
class _Table:
    """What goes: a raw table, a typed one, or both."""

    raw: str = ""
    typed: str = ""
    quarantine: str = ""
    """The quarantine table of the typed table."""
    file: Path | None = None
    """The spec."""

    @property
    def names(self) -> list[str]:
        return [name for name in (self.raw, self.typed) if name]


def drop(name: str, tables: Path | None, *, yes: bool) -> None:
    """Drop a table."""
    settings = settings_of()
    folder = tables_folder(settings, tables)
    found = read_spec_folder(folder)
    table = _of_spec(found, folder, name) or _of_servers(settings, name)
    _require_no_rollup(settings, table, name)
    if table is None:
        known = {*found.specs, *(s.typed.name for s in found.specs.values() if s.typed)}
        raise ValidationError(
            f"there is no table {name} to drop (`gazctl lake list` shows all){or_meant([name], known)}",
            path="TABLE",
        )
    held = _typed_held(settings, table)
    for text in held.values():
        note(text)
    if held and not yes and not confirmed(f"Drop {' and '.join(table.names)}?"):
        raise ValidationError("nothing was dropped (answer y, or repeat the command with --yes)")
    # First, so that no sensor makes the table again.
    _remove_spec(table)
    for each in held:
        _drop_typed(settings, each)
    if table.raw and settings.metastore:
        with MetastoreClient(settings.metastore).connect() as session:
            drop_raw(session, table.raw)
    for each in table.names:
        note(f"{each}: dropped; its journals and files stay")


def _of_spec(found: SpecFolder, folder: Path, name: str) -> _Table | None:
    """What the specs say of a table."""
    for spec in found.specs.values():
        typed = spec.typed
        if name not in {spec.name, typed.name if typed else ""}:
            continue
        return _Table(
            raw=spec.name if name == spec.name else "",
            typed=typed.name if typed else "",
            quarantine=typed.quarantine if typed else "",
            file=folder / found.files[spec.name],
        )
    for file, refused in found.refused.items():
        if refused.table == name:
            return _Table(raw=name, file=folder / file)
    return None


def _of_servers(settings: LakeSettings, name: str) -> _Table | None:
    """A table without a spec, as one is after its file was removed by hand."""
    if not settings.metastore or "." not in name:
        return None
    with MetastoreClient(settings.metastore).connect() as session:
        if stored_entry(entries_of(session, name)) is not None:
            return _Table(raw=name)
    found = _Table(typed=name, quarantine=f"{name}{QUARANTINE_SUFFIX}")
    return found if _typed_held(settings, found) else None


def _require_no_rollup(settings: LakeSettings, table: _Table | None, name: str) -> None:
    """Refuse what would break rollups.

    Raises: ValidationError: it is a rollup, or one reads it; says what to do first.
    """
    rollups = read_rollup_folder(settings.rollups, ()).specs
    if table is None and name in rollups:
        raise ValidationError(
            f"{name} is a rollup: remove its file from {settings.rollups}, and drop the table in Trino (`DROP TABLE "
            f"iceberg.{name}`)",
            path="TABLE",
        )
    gone = set(table.names if table is not None else ())
    readers = [each.name for each in rollups.values() if gone & {*each.sources.values()}]
    if readers:
        raise ValidationError(
            f"{' and '.join(readers)} read{'' if len(readers) > 1 else 's'} {name}: remove the file of that rollup from "
            f"{settings.rollups} first",
            path="TABLE",
        )


def _typed_held(settings: LakeSettings, table: _Table) -> dict[str, str]:
    """The typed table and its quarantine as far as the catalog has them, each with what it holds, in words.

    Raises: LakeError: the catalog cannot be reached, or has another table of that name.
    """
    if not table.typed or (settings.iceberg_catalog.kind == "hive" and not settings.metastore):
        return {}
    from gazette_platform.lake.iceberg.catalog import typed_catalog  # noqa: PLC0415  slow to import
    from gazette_platform.lake.typed.tables.quarantine import OF  # noqa: PLC0415  as well
    from gazette_platform.lake.typed.tables.table import SOURCE  # noqa: PLC0415  as well

    catalog = typed_catalog(settings)
    held: dict[str, str] = {}
    for name in (table.typed, table.quarantine):
        loaded = catalog.handle(name).load()
        if loaded is None:
            continue
        properties = loaded.metadata.properties
        is_typed = name == table.typed
        if SOURCE not in properties if is_typed else properties.get(OF) != table.typed:
            if table.file is None:
                return {}
            what = "a typed table" if is_typed else f"the quarantine of {table.typed}"
            raise LakeError(f"{name} exists and is not {what}, so nothing was dropped")
        snapshot = loaded.metadata.current_snapshot()
        summary = snapshot.summary if snapshot is not None else None
        rows = summary.additional_properties.get("total-records", "0") if summary else "0"
        held[name] = f"{name}: {rows} rows; its files stay in {loaded.metadata.location}"
    return held


def _remove_spec(table: _Table) -> None:
    """Take the spec, or its section `typed:`, out of the folder, and print it."""
    if table.file is None:
        return
    text = table.file.read_bytes()
    if table.raw:
        table.file.unlink()
    else:
        rest = without_typed(text)
        put_files([FolderFile(name=table.file.name, text=rest, before=text)], table.file.parent)
    print_text(text.decode("utf-8", "replace"), end="")


def without_typed(text: bytes) -> bytes:
    r"""Return the text of a spec without its section `typed:`, and otherwise as it is, with its comments.

    >>> without_typed(b"name: a.b\ntyped:\n  # why\n  uuid: none\n# of columns\ncolumns: []\n")
    b'name: a.b\n# of columns\ncolumns: []\n'

    Raises: ValidationError: the section does not stand on lines of its own.
    """
    spec = text.decode()
    lines = spec.splitlines(keepends=True)
    root = yaml.compose(spec, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) and not root.flow_style else []
    found = [(key, value) for key, value in pairs if key.value == "typed"]
    if len(found) != 1:
        raise ValidationError(
            "the section `typed:` does not stand on lines of its own: remove it in an editor, and run the command again",
            path="typed",
        )
    key, value = found[0]
    begin, end = key.start_mark.line, value.end_mark.line + (value.end_mark.column > 0)
    while end > begin + 1 and lines[end - 1][:1] in "#\r\n":
        end -= 1  # what stands there is about the next key
    return "".join([*lines[:begin], *lines[end:]]).encode()


def _drop_typed(settings: LakeSettings, name: str) -> None:
    from gazette_platform.lake.iceberg.catalog import typed_catalog  # noqa: PLC0415  slow to import

    typed_catalog(settings).handle(name).drop()


def drop_raw(session: MetastoreSession, name: str) -> None:
    """Drop a raw table and its views, while no sensor changes it.

    Raises: LakeError: the metastore cannot be reached, or has another table of that name.
    """
    schema, _, table = name.partition(".")
    entries = entries_of(session, name)
    if not entries and session.table(schema, table) is not None:
        raise LakeError(f"{name} exists and is not a raw table, so it was not dropped")
    drop_entries(session, entries)
