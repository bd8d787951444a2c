"""The folder of rollups beside the tables of a platform: what of it is good, and what is wrong with the rest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.lake.rollups.spec import load_rollup_specs

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from gazette_platform.lake.rollups.spec import RollupSpec

__all__ = ["RollupFolder", "read_rollup_folder"]


@final
@dataclass(frozen=True, slots=True)
class RollupFolder:
    """What a folder says: a bad file hides no good one."""

    specs: Mapping[str, RollupSpec] = field(default_factory=dict)
    """By name, sorted."""
    errors: Mapping[str, ValidationError] = field(default_factory=dict)
    """By file, or by the name of a table of a table spec that a rollup would be."""

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of any spec, and with what is refused, and why."""
        texts = [f"{name}:{spec.digest}" for name, spec in self.specs.items()]
        texts += [f"{file}:{error}" for file, error in sorted(self.errors.items())]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def read_rollup_folder(folder: str, tables: Container[str]) -> RollupFolder:
    """The rollups of a folder that can be beside the tables of table specs, read again.

    Args:
        folder: see `load_rollup_specs`; empty: there are none.
        tables: names that no rollup may have; see `SpecFolder.tables`.
    """
    if not folder:
        return RollupFolder()
    found, errors = load_rollup_specs(Path(folder))
    for name in [name for name in found if name in tables]:
        errors[name] = ValidationError(
            f"there is a raw or typed table {name}, or a view: give the rollup another name",
            path=name,
        )
        del found[name]
    return RollupFolder(found, errors)
