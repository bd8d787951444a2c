"""`gazctl lake`: commands of typed tables."""

import enum
from typing import Annotated

import typer

from gazette_platform.cli.completion import complete_typed_tables
from gazette_platform.cli.gazctl_lake import Output, OutputFormat, Tables, body
from gazette_platform.errors import ValidationError

__all__ = ["Engine", "run"]


class Engine(enum.StrEnum):
    """Who reads journals and writes files."""

    SPARK = "spark"
    LOCAL = "local"


TypedNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE",
        show_default=False,
        autocompletion=complete_typed_tables,
        help="Typed tables by name, or by that of their raw table; none means all.",
    ),
]


def run(
    ctx: typer.Context,
    names: TypedNames = None,
    *,
    tables: Tables = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            show_default=False,
            help="spark, or local: this process, without a JVM. Else Spark, if that is configured.",
        ),
    ] = None,
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous", help="Go on, each table as often as its `every` says, until SIGTERM."
        ),
    ] = False,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            "--give-up",
            metavar="JOURNAL=OFFSET",
            show_default=False,
            help="Go on although nobody holds what is before this offset: its messages will be no rows.",
        ),
    ] = None,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Bring typed tables up to date: what their journals hold becomes rows, all of it or nothing.

    One run of each table, which is made or changed first, as its spec says. Of each it is told how many rows and quarantined
    records came to be, of how much content, and how far journals were read. A run that fails, or is killed, leaves the table as it was, and the
    next one does its work. Exits with 1 if one failed, or if a journal stands still because nobody holds what comes next; the others go on.

    With --continuous it reads specs anew as it goes on, and runs those tables that say `every`. On SIGTERM, or the first
    Ctrl-C, the current run ends and is the last one; a second one drops it.

    **Examples**

    gazctl lake run

    gazctl lake run typed.orders --engine local -o json

    gazctl lake run --continuous

    gazctl lake run typed.orders --give-up orders/region=eu=104857600
    """
    if give_up and continuous:
        raise ValidationError("is a word for one run: leave out --continuous", path="--give-up")
    work = body("run")
    if continuous:
        work.go_on(ctx, names or [], tables, output_format, engine=engine)
        return
    work.once(ctx, names or [], tables, output_format, engine=engine, give_up=give_up or [])
