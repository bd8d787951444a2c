"""The folder of table specs: which of its files are good, what is wrong with each other one, and what tables they name.

People and programs put anything into such a folder. A file is read without waiting, up to a bound, and its errors are values:
one bad file hides no good one, and a sensor's tick goes on. Parsed specs are kept by their content, since YAML is slow and
sensors read every few seconds. No two tables or views of a folder may have one name. `or_meant` suggests tables for a misspelt
name.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections import defaultdict
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import (
    EXACT_SUFFIX,
    SPEC_BYTES_MAX,
    is_json_file_name,
    is_table_name,
)
from gazette_platform.lake.spec.table_spec import TableSpec, json_schema_of, read_table_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping
    from pathlib import Path


def read_spec_file(path: Path, bytes_max: int, what: str) -> bytes:
    """The content of a file; no more of it is read than it may have.

    Args:
        path: of the file.
        bytes_max: of its content.
        what: it is, for messages.

    Raises: ValidationError: it cannot be read, is not a regular file, is too long, or has a name that is not text.
    """
    if shown_name(path) != path.name:
        raise ValidationError("has a name that is not UTF-8: rename it")
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise ValidationError("cannot be read: it is a pipe or a device")
            raw = file.read(bytes_max + 1)
    except OSError as err:
        raise ValidationError(f"cannot be read: {err.strerror}") from err
    if len(raw) > bytes_max:
        size = max(info.st_size, len(raw))
        raise ValidationError(f"is {size} bytes; {what} has at most {bytes_max}")
    return raw


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe without a writer would never return.
    return os.open(path, flags | os.O_NONBLOCK)


def shown_name(path: Path) -> str:
    r"""The name of a file, for messages. One that is not UTF-8 could not be printed as it is.

    >>> from pathlib import Path
    >>> shown_name(Path("a/orders.yaml")), shown_name(Path("\udcff.yaml"))
    ('orders.yaml', '\\xff.yaml')
    """
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


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


@final
class NameClash(NamedTuple):
    """A typed table that may not be called so."""

    file: str
    """With the spec that has to change."""
    other: str
    """With the spec that makes what is called so; empty: that is a rollup."""
    error: ValidationError
    """With the key; not with the file's name."""


def names_made(spec: TableSpec) -> Mapping[str, str]:
    """What a spec makes, by its name."""
    made = {spec.name: "the raw table", f"{spec.name}{EXACT_SUFFIX}": "the view of the raw table"}
    if spec.header:
        made[f"{spec.schema}.{spec.stored_table}"] = "the table of all lines of the raw table"
    if spec.typed is not None:
        made[spec.typed.name] = "the typed table"
        made[spec.typed.quarantine] = "the quarantine of the typed table"
    return made


def name_clashes(
    specs: Mapping[str, TableSpec], rollups: Container[str] = ()
) -> Iterator[NameClash]:
    """Typed tables that are called as something else is, or whose quarantine is.

    Of two typed tables the second is refused; beside a raw table, its view or a rollup, it is always the typed one.

    Args:
        specs: by their files; no two of one raw table.
        rollups: names of rollups.
    """
    taken: dict[str, tuple[str, str]] = {}
    for file, spec in specs.items():
        for name, what in names_made(spec).items():
            if spec.typed is None or name not in (spec.typed.name, spec.typed.quarantine):
                taken[name] = (what, file)
    for file, spec in specs.items():
        if spec.typed is None:
            continue
        made = names_made(spec)
        for name in (spec.typed.name, spec.typed.quarantine):
            what, other = taken.setdefault(name, (made[name], file))
            if other != file:
                yield NameClash(file, other, _refused(spec.typed.name, name, f"{what} of {other}"))
            elif name in rollups:
                yield NameClash(file, "", _refused(spec.typed.name, name, "a rollup"))


def _refused(typed: str, name: str, what: str) -> ValidationError:
    its = "" if name == typed else f", for records that {typed} rejects,"
    return ValidationError(
        f"{name}{its} is {what}: give this typed table another name", path="typed.name"
    )


_SHOWN_MAX: Final = 3
# As `difflib` measures: one letter in four may be another, or be missing.
_NEAR: Final = 0.75
# Comparing takes a millisecond for a few dozen names.
_COMPARED_MAX: Final = 2000


def meant(name: str, tables: Collection[str]) -> list[str]:
    """Those of `tables` that `name` is likely to mean, the likeliest first; at most three.

    A name without its schema, or with another one, means the tables that are called so in theirs.

    Args:
        name: as the user wrote it.
        tables: by full name, as ``schema.table``.

    >>> meant("orders", ["shop.orders", "web.orders", "web.items"])
    ['shop.orders', 'web.orders']
    >>> meant("shop.orderz", ["shop.orders", "web.items"]), meant("other", ["shop.orders"])
    (['shop.orders'], [])
    >>> meant("ordres", ["shop.orders", "typed.orders"])
    ['shop.orders', 'typed.orders']
    """
    wanted = name.replace('"', "").lower()[:255]
    last = wanted.rpartition(".")[2]
    same = [table for table in sorted(tables) if table.rpartition(".")[2] == last]
    if same:
        return same[:_SHOWN_MAX]
    compared = sorted(tables)[:_COMPARED_MAX]
    near = get_close_matches(wanted, compared, _SHOWN_MAX, _NEAR)
    if near:
        return near
    by_last: defaultdict[str, list[str]] = defaultdict(list)
    for table in compared:
        by_last[table.rpartition(".")[2]].append(table)
    found = get_close_matches(last, by_last, _SHOWN_MAX, _NEAR)
    return [table for each in found for table in by_last[each]][:_SHOWN_MAX]


def or_meant(names: Iterable[str], tables: Collection[str]) -> str:
    """A question for the end of an error, with a semicolon before it; empty if nothing is near.

    >>> or_meant(["orders"], ["shop.orders", "web.orders"]), or_meant(["orders"], [])
    ('; did you mean shop.orders or web.orders?', '')
    """
    found = dict.fromkeys(table for name in names for table in meant(name, tables))
    return f"; did you mean {' or '.join([*found][:_SHOWN_MAX])}?" if found else ""
