"""What commands of `gazctl lake` work with: settings, the folder of specs, brokers, the metastore."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
import yaml

from gazette_platform.cli.connection import Connection
from gazette_platform.cli.gazctl_lake import OutputFormat
from gazette_platform.cli.output import note, print_json, print_text
from gazette_platform.client import Client
from gazette_platform.errors import LakeError, ValidationError
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import LakeSettings, RefusedSpec, TableSpec, read_spec_folder

__all__ = ["brokers", "metastore", "print_values", "settings_of", "specs_named", "tables_folder"]


def settings_of() -> LakeSettings:
    """Settings of the environment.

    Raises: ValidationError: a file or variable is malformed.
    """
    return LakeSettings.from_environment(os.environ)


def tables_folder(settings: LakeSettings, given: Path | None) -> Path:
    """The folder of table specs.

    Raises: SetupError: none is configured.
    """
    return given if given is not None else Path(settings.required("tables"))


@contextmanager
def brokers(ctx: typer.Context, settings: LakeSettings) -> Iterator[Client]:
    """A client of the brokers that options told, else of the platform's; closed at the end."""
    config = ctx.find_object(Connection).client  # type: ignore[union-attr]
    source = ctx.parent.get_parameter_source("address") if ctx.parent is not None else None
    if source is not None and source.name == "DEFAULT" and settings.broker:
        config = replace(config, address=settings.broker)
    with Client(config) as client:
        yield client


@contextmanager
def metastore(settings: LakeSettings) -> Iterator[MetastoreSession | None]:
    """A session of the metastore, closed at the end; None, after a note, if there is none."""
    if not settings.metastore:
        yield None
        return
    opened = MetastoreClient(settings.metastore).connect()
    try:
        session = opened.__enter__()
    except LakeError as err:
        note(f"note: {err}; what exists there is not looked at")
        yield None
        return
    try:
        yield session
    finally:
        opened.__exit__(None, None, None)


def specs_named(
    folder: Path, names: list[str], *, refused_too: bool = False
) -> tuple[dict[str, TableSpec], dict[str, RefusedSpec]]:
    """Specs of the tables that were named, or all; and files that are refused.

    Args:
        folder: of specs.
        names: of tables; none: all.
        refused_too: whether a table that was named may be one whose file is refused.

    Raises: ValidationError: a table that was named has no spec.
    """
    found = read_spec_folder(folder)
    if not names:
        return dict(found.specs), dict(found.refused)
    refused = {file: bad for file, bad in found.refused.items() if bad.table in names}
    known = {*found.specs, *(bad.table for bad in refused.values() if refused_too)}
    missing = [name for name in names if name not in known]
    if missing:
        of_them = [str(e) for bad in refused.values() if bad.table in missing for e in bad.errors]
        why = f"; {len(found.refused)} files there are refused" if found.refused else ""
        raise ValidationError(
            f"no spec in {folder} is of table {', '.join(missing)}"
            + (f": {'; '.join(of_them)}" if of_them else f"{why} (`gazctl lake list` shows all)")
        )
    return {name: found.specs[name] for name in names if name in found.specs}, refused


def print_values(values: list[dict[str, Any]], output_format: OutputFormat) -> None:
    """Print plain values for programs."""
    if output_format is OutputFormat.JSON:
        print_json(values, indent=True)
    else:
        print_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
