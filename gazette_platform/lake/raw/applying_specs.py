"""Table specs on their way into their folder: what is wrong with them, how they get there, and when a table is made again.

Nothing is written before a whole set of specs is found good; each file then takes its place at once.

If a raw table cannot follow a change of its spec, its entries in the metastore are dropped, and the sensor registers all
fragments again that brokers list. No file is deleted. Rows that no broker lists any more, such as those of a deleted journal,
would not come back: such a table is left alone.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

from gazette_platform.errors import (
    SchemaMismatch,
    ValidationError,
)
from gazette_platform.lake.raw.listing import left_at, place_of
from gazette_platform.lake.raw.planning import problems_of
from gazette_platform.lake.raw.tables import LAYOUT, TABLE, evolved_table, table_definition
from gazette_platform.lake.raw.views import VIEW_OF
from gazette_platform.lake.reading.sample_check import check_sample
from gazette_platform.lake.spec.folder import files_beside, in_file, name_clashes
from gazette_platform.lake.spec.layout import (
    Layout,
    expected_layout,
    expected_location,
)
from gazette_platform.lake.spec.rules import EXACT_SUFFIX, LINES_SUFFIX
from gazette_platform.lake.spec.table_spec import TableSpec, read_table_spec
from gazette_platform.protocol import is_another

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.raw.account_book import Entry
    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.reading.storage import Storage
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.protocol import JournalSpec

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFile:
    """A file that is to go into the folder, and what it is to replace."""

    name: str
    """Of the file in the folder."""
    text: bytes
    before: bytes | None
    """What the folder has under that name, if anything."""

    @property
    def is_changed(self) -> bool:
        """Whether the folder has something else under that name, or nothing."""
        return self.text != self.before

    def diff(self) -> str:
        """What changes in the folder, as a unified diff; empty if nothing does."""
        old, new = ((each or b"").decode("utf-8", "replace") for each in (self.before, self.text))
        lines = difflib.unified_diff(
            old.splitlines(),
            new.splitlines(),
            "/dev/null" if self.before is None else f"a/{self.name}",
            f"b/{self.name}",
            lineterm="",
        )
        return "".join(f"{line}\n" for line in lines)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile(FolderFile):
    """A file with a table spec."""

    spec: TableSpec | None
    errors: tuple[ValidationError, ...]
    """All that is wrong with the text, each with the file's name and the key."""
    beside: tuple[FolderFile, ...]
    """Files that it names, which come with it."""

    @classmethod
    def of(cls, name: str, text: bytes, folder: Path, *, source: Path | None = None) -> SpecFile:
        """The file called `name` that is to go into `folder`.

        Args:
            name: of the file.
            text: of the spec.
            folder: that it goes into.
            source: where files are that it names; None: they are in the folder already.

        Raises: OSError: the existing file cannot be read.
        """
        try:
            beside = files_beside(text, source or folder)
        except ValidationError as err:
            spec, errors, beside = None, [err], {}
        else:
            spec, errors = read_table_spec(text, beside)
        if Path(name).suffix not in _SUFFIXES:
            errors = [*errors, ValidationError("is not called *.yaml, so no sensor would read it")]
        elif name.startswith("."):
            errors = [*errors, ValidationError("begins with a dot, so no sensor would read it")]
        return cls(
            name=name,
            text=text,
            spec=spec,
            errors=tuple(in_file(name, error) for error in errors),
            before=_before(folder / name),
            beside=tuple(
                FolderFile(name=other, text=content, before=_before(folder / other))
                for other, content in beside.items()
            ),
        )


def _before(target: Path) -> bytes | None:
    return target.read_bytes() if target.is_file() else None


def files_to_put(files: Iterable[SpecFile]) -> list[FolderFile]:
    """The files with those that they name, in the order in which they take their places."""
    named = {each.name: each for file in files for each in file.beside}
    return [*named.values(), *files]


def problems_among(
    files: Sequence[SpecFile], folder: Mapping[str, TableSpec], rollups: Container[str] = ()
) -> list[ValidationError]:
    """What speaks against the files as a set, beside the specs that stay in the folder.

    Args:
        files: to be applied.
        folder: by file name, valid specs of the folder now.
        rollups: names of rollups.
    """
    found: list[ValidationError] = []
    # An applied file replaces the one of its name, so it can only clash with the others.
    stays = {name: spec for name, spec in folder.items() if name not in {f.name for f in files}}
    owners = {spec.name: name for name, spec in stays.items()}
    tables: dict[str, str] = {}
    names: set[str] = set()
    applied: dict[str, TableSpec] = {}
    for file in files:
        if file.name in names:
            found.append(ValidationError("is given twice; rename one", path=file.name))
        names.add(file.name)
        if file.spec is None:
            continue
        table = file.spec.name
        other = tables.get(table) or owners.get(table)
        if other is not None:
            found.append(
                ValidationError(
                    f"table {table} is defined in {other} already; apply it under that name, or "
                    "remove one",
                    path=f"{file.name}: name",
                )
            )
        else:
            applied[file.name] = file.spec
        tables.setdefault(table, file.name)
    every = {**owners, **tables}
    views = {f"{table}{EXACT_SUFFIX}": table for table in every}
    stored = {
        f"{spec.schema}.{spec.stored_table}": spec.name
        for spec in (*stays.values(), *applied.values())
        if spec.header
    }
    for what, made in (("view", views), ("table of all lines", stored)):
        found += [
            ValidationError(
                f"{table} is the name of the {what} that table {made[table]} of {every[made[table]]} gets; "
                "rename one",
                path=f"{name}: name",
            )
            for table, name in tables.items()
            if table in made
        ]
    clashes = name_clashes({**stays, **applied}, rollups)
    found += [in_file(c.file, c.error) for c in clashes if c.file in applied or c.other in applied]
    return [*found, *_problems_beside(files)]


def _problems_beside(files: Sequence[SpecFile]) -> Iterator[ValidationError]:
    """Files of one name that several specs bring, and that differ."""
    brought: dict[str, tuple[str, bytes]] = {}
    for file in files:
        for each in file.beside:
            first, text = brought.setdefault(each.name, (file.name, each.text))
            if text != each.text:
                yield ValidationError(
                    f"{each.name} is another file than that of {first}; rename one",
                    path=f"{file.name}: typed.json_schema",
                )


def problems_with_table(
    spec: TableSpec,
    journals: Sequence[JournalSpec],
    existing: HiveTable | None,
    *,
    roots: StoreRoots,
    at: datetime,
) -> list[ValidationError]:
    """What keeps the table that exists from becoming its spec, if there is one."""
    if existing is None:
        return []

    def evolve() -> None:
        text = existing.parameters.get(LAYOUT)
        layout = Layout.parse(text) if text is not None else expected_layout(journals, at)
        location = existing.location or expected_location(journals, layout, roots)
        evolved_table(existing, table_definition(spec, layout, location))

    return problems_of("columns", evolve)


def problems_with_data(
    spec: TableSpec, samples: Iterable[tuple[str, bytes]]
) -> list[ValidationError]:
    """Why none of `samples`, by what they are of, fits the spec; nothing if one does, or none is.

    Of a sample without records nothing can be said, so it is none.
    """
    error: SchemaMismatch | None = None
    for where, content in samples:
        if not content.strip():
            continue
        try:
            check_sample(spec, content, where)
        except SchemaMismatch as err:
            error = error or err
        else:
            return []
    return [] if error is None else [ValidationError(str(error), path="columns")]


def put_files(files: Iterable[FolderFile], folder: Path) -> list[str]:
    """Put the changed files into the folder, which is made if need be.

    Each takes its place at once, and is on disk before. Files that are read meanwhile are either the
    old or the new one; a crash leaves some of either, and the same call again finishes.

    Returns: names of those that changed.
    Raises: OSError: the folder or a file cannot be written; says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    put: list[str] = []
    for file in files:
        if not file.is_changed:
            continue
        # A name with a dot is none that sensors read.
        # A crash must leave a whole file under the name, the former or the new one: sensors read the folder at any time.
        handle, path = tempfile.mkstemp(prefix=f".{file.name}.", dir=folder)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(file.text)
                out.flush()
                os.fsync(out.fileno())
            Path(path).chmod(0o644)
            Path(path).replace(folder / file.name)
        except OSError:
            Path(path).unlink(missing_ok=True)
            raise
        put.append(file.name)
    if put:
        # Names reach the disk with their folder. The caller may drop a table next, and after a power cut the sensor must not
        # make it again by the former spec.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return put


def entries_of(session: MetastoreSession, name: str) -> list[HiveTable]:
    """Return what the metastore has of the raw table `name`, in whichever form: views first, then the table."""
    schema, _, table = name.partition(".")
    stored = {name, f"{name}{LINES_SUFFIX}"}
    names = (table, f"{table}{EXACT_SUFFIX}", f"{table}{LINES_SUFFIX}")
    found = [entry for each in names if (entry := session.table(schema, each)) is not None]
    own = [
        entry
        for entry in found
        if entry.parameters.get(VIEW_OF) in stored or entry.parameters.get(TABLE) == name
    ]
    return sorted(own, key=lambda entry: VIEW_OF not in entry.parameters)


def stored_entry(entries: Sequence[HiveTable]) -> HiveTable | None:
    """Return the entry with the Hive partitions; None if there is none."""
    return next((entry for entry in entries if LAYOUT in entry.parameters), None)


class HeldNow(NamedTuple):
    """What brokers hold of a journal."""

    begin: int
    """The first offset that they list."""
    head: int
    created: int = 0
    """Which journal it is (`protocol.offsets`)."""


def why_missed(states: Sequence[PartitionState], held: Mapping[str, HeldNow]) -> str:
    """Return why rows would be missed if a table were made again; empty if none would.

    Args:
        states: accounts of its Hive partitions.
        held: by journal that exists, what brokers hold of it.
    """
    for state in states:
        if not state.ranges:
            continue
        now = held.get(state.journal)
        if now is None:
            return f"its rows of {state.journal} would be gone, because that journal is"
        # Beyond the head: brokers lost the end of the journal, or have another one of that name. Their listing would not
        # bring these rows back.
        if is_another(state.created, now.created) or state.ranges[-1][1] > now.head:
            return (
                f"its rows of {state.journal} would be gone, because that journal was deleted and made again since (if it "
                f"holds what it held, `gazctl lake repair --same {state.journal}` says so)"
            )
        if state.ranges[0][0] < now.begin:
            return f"its rows of {state.journal} before offset {now.begin} would be gone, because brokers list none of them"
    return ""


def why_doubled(
    entries: Iterable[Entry],
    stores: Mapping[str, Sequence[str]],
    roots: StoreRoots,
    storage: Storage,
) -> str:
    """Return why rows would be read twice if a table were made again; empty if none would.

    A repair that was killed while it moved a file out of an object store is known to the accounts alone: brokers do not
    list the file, and audits list a directory only if its account says that something is wrong.

    Args:
        entries: its Hive partitions.
        stores: of each journal that exists, as its spec names them.
        roots: where stores lie for engines.
        storage: reaches files.
    """
    for entry in entries:
        state = entry.state
        # A journal that is gone has no rows to be read twice: nothing registers it again.
        if not state.moving or state.journal not in stores:
            continue
        place = place_of(entry.location, state.journal, stores[state.journal], roots)
        for name in left_at(storage, state.journal, place, state.moving):
            directory = place[1] or entry.location
            return (
                f"a repair began to move {directory}/{name} out of it and did not end, and its rows would be read twice: "
                "`gazctl lake repair` ends the move"
            )
    return ""


def drop_entries(session: MetastoreSession, entries: Sequence[HiveTable]) -> None:
    """Drop the entries of a table while no sensor changes it. Idempotent; files stay."""
    # Views first, as they are ordered: a crash in between leaves a table without views, which the same command finds again.
    # Under the lock, because a registrar between its read and its write would count into the new table what it read of
    # the former one.
    for entry in entries:
        with session.accounts_lock(entry.database, entry.name) as lock:
            lock.require()
            session.drop_table(entry.database, entry.name)
