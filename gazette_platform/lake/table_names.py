"""Names of all tables and views that table specs make: no two of them may be one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec_rules import EXACT_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["NameClash", "name_clashes", "names_made"]


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
