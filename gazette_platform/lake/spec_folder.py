"""The folder of table specs: what of it is good, and of each other file all that is wrong with it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec_files import read_spec_file, shown_name
from gazette_platform.lake.spec_rules import is_table_name
from gazette_platform.lake.table_spec import SPEC_BYTES_MAX, TableSpec, read_table_spec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "RefusedSpec",
    "SpecFolder",
    "in_file",
    "load_table_specs",
    "read_spec_folder",
    "specs_by_file",
]

# Specs that are kept as they were read. Sensors read the folder every few seconds, and YAML takes long.
_KEPT_MAX: Final = 1024
# Of longer ones it is not worth their memory.
_KEPT_BYTES_MAX: Final = 32 * 1024

# The line with a table's name, also in a text that is no YAML. Names of columns are set in.
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
    """The table that it would be of; empty if that cannot be told, or another file makes it."""


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
    def errors(self) -> list[ValidationError]:
        """All that is wrong with all files."""
        return [error for refused in self.refused.values() for error in refused.errors]

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of any spec, and with what is refused, and why."""
        texts = [f"{name}:{spec.digest}" for name, spec in self.specs.items()]
        texts += [f"{file}:{refused.table}" for file, refused in self.refused.items()]
        texts += map(str, self.errors)
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def read_spec_folder(folder: Path) -> SpecFolder:
    """All files ``*.yaml`` and ``*.yml`` of a folder, read anew; a missing one is empty."""
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
    refused = {
        file: RefusedSpec(bad.errors, "" if bad.table in specs else bad.table)
        for file, bad in refused.items()
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


def _parsed(raw: bytes) -> tuple[TableSpec | None, tuple[ValidationError, ...]]:
    spec, errors = read_table_spec(raw)
    return spec, tuple(errors)


_kept = lru_cache(_KEPT_MAX)(_parsed)


def _read(path: Path) -> tuple[TableSpec | None, RefusedSpec | None]:
    """The spec of a file, or why there is none."""
    errors: list[ValidationError] = []
    try:
        raw = read_spec_file(path, SPEC_BYTES_MAX, "a table spec")
    except ValidationError as err:
        errors.append(err)
        raw = b""
    if not errors:
        spec, found = (_kept if len(raw) <= _KEPT_BYTES_MAX else _parsed)(raw)
        errors += found
        if spec is not None:
            return spec, None
    in_it = tuple(in_file(shown_name(path), error) for error in errors)
    named = _NAMED.search(raw)
    table = named["table"].decode() if named is not None else ""
    return None, RefusedSpec(in_it, table if is_table_name(table) else "")
