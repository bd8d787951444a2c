"""`gazctl lake create`."""

from pathlib import Path

import typer

from gazette_platform.cli.gazctl_lake_context import brokers, settings_of
from gazette_platform.cli.gazctl_lake_infer import inferred
from gazette_platform.cli.new_table import NewTable
from gazette_platform.cli.output import confirmed, note, print_text
from gazette_platform.cli.selection import Selection
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings, TableSpec
from gazette_platform.lake.sampling import SampleLimits

__all__ = ["create"]


def create(
    ctx: typer.Context,
    name: str,
    selection: Selection,
    tables: Path | None,
    *,
    data_format: str,
    is_typed: bool,
    journals_max: int,
    sample_bytes: int,
    yes: bool,
) -> None:
    """Infer a spec, show it, ask, and apply it."""
    settings = settings_of()
    limits = SampleLimits(journals_max=journals_max, sample_bytes=sample_bytes)
    table = NewTable(name, settings, tables, option="TABLE")
    with brokers(ctx, settings) as client:
        found = inferred(
            client, selection, name, data_format=data_format, is_typed=is_typed, limits=limits
        )
        table.take(found.text)
        if table.is_new and not yes:
            print_text(found.text, end="")
            if not confirmed(f"Create {_tables(found.spec)}?"):
                raise ValidationError(
                    "nothing was created (answer y, or repeat the command with --yes)"
                )
        table.apply(client)
    for line in _next(found.spec, settings):
        note(line)


def _tables(spec: TableSpec) -> str:
    return spec.name if spec.typed is None else f"{spec.name} and {spec.typed.name}"


def _next(spec: TableSpec, settings: LakeSettings) -> list[str]:
    """What to do next, as lines."""
    lines = [f'query it: gazctl sql "FROM {spec.name} LIMIT 10"']
    if settings.metastore:
        return [
            *lines,
            f"Trino sees it within minutes, or at once by: gazctl lake flush {spec.name}",
        ]
    typed = "" if spec.typed is None else f", and to fill {spec.typed.name}"
    return [*lines, f"to query it in Trino and Spark{typed}: gazette up"]
