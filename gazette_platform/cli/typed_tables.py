"""Typed tables as commands name them: by their own name, or by that of the raw table."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar, final

from gazette_platform.cli.output import note
from gazette_platform.errors import TypedFenced, ValidationError
from gazette_platform.lake import SpecFolder, TableSpec, read_spec_folder
from gazette_platform.lake.meant import or_meant
from gazette_platform.lake.typed_spec import TypedSpec

__all__ = ["TypedTable", "apart", "insisting", "typed_named"]

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


def insisting(work: Callable[[], T]) -> T:
    """Do what another one may come in between, some times.

    Raises: TypedFenced: another one always did.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except TypedFenced as err:
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
