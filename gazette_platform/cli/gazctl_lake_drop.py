"""`gazctl lake drop`."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from gazette_platform.cli.gazctl_lake_context import settings_of, tables_folder
from gazette_platform.cli.output import confirmed, note, print_text
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import LakeSettings, SpecFolder, read_spec_folder
from gazette_platform.lake.applying import FolderFile, put_files
from gazette_platform.lake.meant import or_meant
from gazette_platform.lake.recreating import drop_entries, entries_of, stored_entry
from gazette_platform.lake.rollups.folder import read_rollup_folder
from gazette_platform.lake.spec_rules import QUARANTINE_SUFFIX

__all__ = ["drop", "drop_raw", "without_typed"]


@dataclass(slots=True)
class _Table:
    """What goes: a raw table, a typed one, or both."""

    raw: str = ""
    typed: str = ""
    quarantine: str = ""
    """The table of the typed one's quarantine."""
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
    from gazette_platform.lake.typed.catalog.catalogs import typed_catalog  # noqa: PLC0415  slow to import
    from gazette_platform.lake.typed.tables.quarantined import OF  # noqa: PLC0415  as well
    from gazette_platform.lake.typed.tables.table import SOURCE  # noqa: PLC0415  as well

    catalog = typed_catalog(settings)
    held: dict[str, str] = {}
    for name in (table.typed, table.quarantine):
        loaded = catalog.door(name).load()
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
    """Take the spec, or its section `typed:`, out of the folder, and print what was there."""
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
    from gazette_platform.lake.typed.catalog.catalogs import typed_catalog  # noqa: PLC0415  slow to import

    typed_catalog(settings).door(name).drop()


def drop_raw(session: MetastoreSession, name: str) -> None:
    """Drop a raw table and its views, while no sensor changes it.

    Raises: LakeError: the metastore cannot be reached, or has another table of that name.
    """
    schema, _, table = name.partition(".")
    entries = entries_of(session, name)
    if not entries and session.table(schema, table) is not None:
        raise LakeError(f"{name} exists and is not a raw table, so it was not dropped")
    drop_entries(session, entries)
