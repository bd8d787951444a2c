"""The folder of table specs: what of it is good, and of each other file all that is wrong with it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec_files import read_spec_file, shown_name
from gazette_platform.lake.spec_rules import SPEC_BYTES_MAX, is_json_file_name, is_table_name
from gazette_platform.lake.table_names import name_clashes, names_made
from gazette_platform.lake.table_spec import TableSpec, json_schema_of, read_table_spec

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

__all__ = [
    "RefusedSpec",
    "SpecFolder",
    "files_beside",
    "in_file",
    "load_table_specs",
    "problems_with_files",
    "read_spec_folder",
    "specs_by_file",
]

# Specs that are kept as they were read. Sensors read the folder every few seconds, and YAML takes long.
_KEPT_MAX: Final = 1024
# Of longer ones it is not worth their memory.
_KEPT_BYTES_MAX: Final = 32 * 1024

# The line with a table's name, also in a text that is not YAML. Names of columns are set in.
_NAMED = re.compile(
    rb"""^(?:\{ *)?name:[ \t]*(?P<quote>['"]?)(?P<table>[a-z0-9_]{1,127}\.[a-z0-9_]{1,127})"""
    rb"(?P=quote)[ \t]*(?:[,#\r].*)?$",
    re.MULTILINE,
)


@final
@dataclass(frozen=True, slots=True)
class RefusedSpec:
    """A file that makes no table."""

    errors: tuple[ValidationError, ...]
    """All that is wrong with it, each with the file's name; at least one."""
    table: str = ""
    """The table that it would be of; empty if that is unknown, or another file makes it."""


@final
@dataclass(frozen=True, slots=True)
class SpecFolder:
    """What a folder says: a bad file hides no good one."""

    specs: Mapping[str, TableSpec] = field(default_factory=dict)
    """By name of the table, sorted."""
    files: Mapping[str, str] = field(default_factory=dict)
    """By name of the table, the file that makes it."""
    refused: Mapping[str, RefusedSpec] = field(default_factory=dict)
    """By file, sorted."""

    @property
    def tables(self) -> frozenset[str]:
        """Names of all tables and views that its specs make; nothing else may be called so."""
        return frozenset(name for spec in self.specs.values() for name in names_made(spec))

    @property
    def errors(self) -> list[ValidationError]:
        """All that is wrong with all files."""
        return [error for refused in self.refused.values() for error in refused.errors]

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of any spec, and with what is refused, and why."""
        texts = [f"{name}:{spec.digest}" for name, spec in self.specs.items()]
        texts += [
            f"{spec.typed.name}:{spec.typed.digest}" for spec in self.specs.values() if spec.typed
        ]
        texts += [f"{file}:{refused.table}" for file, refused in self.refused.items()]
        texts += map(str, self.errors)
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def read_spec_folder(folder: Path) -> SpecFolder:
    """All files ``*.yaml`` and ``*.yml`` of a folder, with the files that they name, read again; a missing one is empty."""
    specs: dict[str, TableSpec] = {}
    files: dict[str, str] = {}
    refused: dict[str, RefusedSpec] = {}
    for path in _spec_files(folder):
        spec, bad = _read(path)
        if bad is not None:
            refused[shown_name(path)] = bad
        elif spec is not None and spec.name in specs:
            text = (
                f"table {spec.name} is defined in {files[spec.name]} already; rename or remove one"
            )
            refused[path.name] = RefusedSpec((ValidationError(text, path=path.name),))
        elif spec is not None:
            specs[spec.name] = spec
            files[spec.name] = path.name
    by_file = {files[name]: spec for name, spec in specs.items()}
    clashes: dict[str, list[ValidationError]] = {}
    for clash in name_clashes(by_file):
        clashes.setdefault(clash.file, []).append(in_file(clash.file, clash.error))
    for file, errors in clashes.items():
        table = by_file[file].name
        refused[file] = RefusedSpec(tuple(errors), table)
        del specs[table], files[table]
    refused = {
        file: RefusedSpec(bad.errors, "" if bad.table in specs else bad.table)
        for file, bad in sorted(refused.items())
    }
    return SpecFolder(dict(sorted(specs.items())), files, refused)


def load_table_specs(folder: Path) -> tuple[dict[str, TableSpec], dict[str, ValidationError]]:
    """As `read_spec_folder`, where one error a file will do.

    Returns: specs by name, sorted, and errors by file.
    """
    found = read_spec_folder(folder)
    return dict(found.specs), {file: _joined(bad.errors) for file, bad in found.refused.items()}


def _joined(errors: tuple[ValidationError, ...]) -> ValidationError:
    return errors[0] if len(errors) == 1 else ValidationError("; ".join(map(str, errors)))


def specs_by_file(folder: Path) -> dict[str, TableSpec]:
    """The good specs of a folder by file name, those of one table each; a missing one is empty."""
    found: dict[str, TableSpec] = {}
    for path in _spec_files(folder):
        spec, _ = _read(path)
        if spec is not None:
            found[path.name] = spec
    return found


def problems_with_files(
    folder: Path, beside: Mapping[str, bytes], *, but: Container[str]
) -> list[ValidationError]:
    """What would be wrong with specs of a folder that are good now, if files that they name were others.

    Args:
        folder: of specs.
        beside: contents that files are to have, by name.
        but: names of specs that are not asked about.
    """
    found: list[ValidationError] = []
    for path in _spec_files(folder):
        spec, _ = (None, None) if path.name in but else _read(path)
        if spec is None:
            continue
        raw = read_spec_file(path, SPEC_BYTES_MAX, "a table spec")
        now = files_beside(raw, folder)
        if now.keys() & beside.keys():
            _, errors = read_table_spec(raw, {**now, **beside})
            found += [in_file(path.name, error) for error in errors]
    return found


def in_file(name: str, error: ValidationError) -> ValidationError:
    """The error with the name of its file before the key."""
    return ValidationError(str(error), path=name)


def _spec_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in {".yaml", ".yml"} and not path.name.startswith(".")
    )


def files_beside(text: bytes, folder: Path) -> dict[str, bytes]:
    """Contents of the files that a spec names, by their names; what is not there is left out.

    Args:
        text: of the spec.
        folder: that the files are in.

    Raises: ValidationError: a file cannot be read, or is too long; the path is that of the key.
    """
    # Most specs name none, and need not be read twice.
    named = _kept_name if len(text) <= _KEPT_BYTES_MAX else json_schema_of
    name = named(text) if b"json_schema" in text else ""
    if not is_json_file_name(name):
        return {}
    try:
        return {name: read_spec_file(folder / name, SPEC_BYTES_MAX, "a JSON Schema")}
    except ValidationError as err:
        if isinstance(err.__cause__, FileNotFoundError):
            return {}
        raise ValidationError(f"{name} {err}", path="typed.json_schema") from err


def _parsed(
    raw: bytes, beside: frozenset[tuple[str, bytes]]
) -> tuple[TableSpec | None, tuple[ValidationError, ...]]:
    spec, errors = read_table_spec(raw, dict(beside))
    return spec, tuple(errors)


_kept = lru_cache(_KEPT_MAX)(_parsed)
_kept_name = lru_cache(_KEPT_MAX)(json_schema_of)


def _read(path: Path) -> tuple[TableSpec | None, RefusedSpec | None]:
    """The spec of a file, or why there is none."""
    errors: list[ValidationError] = []
    raw = b""
    try:
        raw = read_spec_file(path, SPEC_BYTES_MAX, "a table spec")
        beside = files_beside(raw, path.parent)
    except ValidationError as err:
        errors.append(err)
    else:
        size = len(raw) + sum(map(len, beside.values()))
        parse = _kept if size <= _KEPT_BYTES_MAX else _parsed
        spec, found = parse(raw, frozenset(beside.items()))
        errors += found
        if spec is not None:
            return spec, None
    in_it = tuple(in_file(shown_name(path), error) for error in errors)
    named = _NAMED.search(raw)
    table = named["table"].decode() if named is not None else ""
    return None, RefusedSpec(in_it, table if is_table_name(table) else "")
