"""`gazctl lake`: commands of typed tables."""

import enum
from typing import Annotated

import typer

from gazette_platform.cli.completion import complete_typed_tables
from gazette_platform.cli.gazctl_lake import Output, OutputFormat, Tables, body
from gazette_platform.errors import ValidationError

__all__ = ["Engine", "backfill", "reprocess", "run"]


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

TypedName = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        autocompletion=complete_typed_tables,
        help="A typed table by name, or by that of its raw table.",
    ),
]
Workers = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        show_default=False,
        help="spark, or local: this process, without a JVM. Else Spark, if that is configured.",
    ),
]


def run(
    ctx: typer.Context,
    names: TypedNames = None,
    *,
    tables: Tables = None,
    engine: Workers = None,
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
    begin_anew: Annotated[
        list[str] | None,
        typer.Option(
            "--begin-anew",
            metavar="JOURNAL[=OFFSET]",
            show_default=False,
            help="Read a journal that was deleted and made again from its beginning, or from OFFSET. Rows of the "
            "former one stay.",
        ),
    ] = None,
    accept_rollback: Annotated[
        bool,
        typer.Option(
            "--accept-rollback",
            help="Go on with a table that was rolled back: show what will be read again, and what is lost, ask, and move "
            "the tag of its progress to what it has.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Accept the rollback without a question.")
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Bring typed tables up to date: what their journals hold becomes rows, all of it or nothing.

    One run of each table, which is made or changed first, as its spec says. Of each it is told how many rows and quarantined
    records came to be, of how much content, and how far journals were read. A run that fails, or is killed, leaves the table as it was, and the
    next one does its work. Exits with 1 if one failed, or if a journal stands still because nobody holds what comes next,
    or because it was deleted and made again; the others go on.

    With --continuous it reads specs anew as it goes on, and runs those tables that say `every`. On SIGTERM, or the first
    Ctrl-C, the current run ends and is the last one; a second one drops it.

    **Examples**

    gazctl lake run

    gazctl lake run typed.orders --engine local -o json

    gazctl lake run --continuous

    gazctl lake run typed.orders --give-up orders/region=eu=104857600
    """
    for path, given in (
        ("--give-up", give_up),
        ("--begin-anew", begin_anew),
        ("--accept-rollback", accept_rollback),
    ):
        if given and continuous:
            raise ValidationError("is a word for one run: leave out --continuous", path=path)
    if yes and not accept_rollback:
        raise ValidationError("goes with --accept-rollback", path="--yes")
    if accept_rollback:
        body("accept_rollback").accept(ctx, names or [], tables, is_confirmed=yes)
    work = body("run")
    if continuous:
        work.go_on(ctx, names or [], tables, output_format, engine=engine)
        return
    work.once(
        ctx,
        names or [],
        tables,
        output_format,
        engine=engine,
        give_up=give_up or [],
        begin_anew=begin_anew or [],
    )


def backfill(
    ctx: typer.Context,
    table: TypedName,
    *,
    tables: Tables = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="COLUMN=VALUE",
            show_default=False,
            help="A Hive partition of the raw table; by several columns, if given several times.",
        ),
    ] = None,
    journal: Annotated[
        str,
        typer.Option("--journal", metavar="NAME", show_default=False, help="Or one journal."),
    ] = "",
    begin: Annotated[
        int, typer.Option("--from", min=0, metavar="OFFSET", help="Its first byte to be read.")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            metavar="OFFSET",
            show_default=False,
            help="The byte behind the last one; else where the table has come to.",
        ),
    ] = None,
    engine: Workers = None,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Make rows of a typed table anew, of a Hive partition or of offsets of a journal, in one commit.

    For after a spec was changed, or when `gazctl lake check` tells of rows that are lost or there twice. Rows and quarantined records of these
    offsets go, and what is committed of their messages comes; it may be done any number of times, beside runs. Offsets are made wider, to whole
    fragments. Rows whose content nobody holds any more stay as they are; if there are such, it exits with 1.

    **Examples**

    gazctl lake backfill typed.orders --partition date=2026-01-02

    gazctl lake backfill typed.orders --partition date=2026-01-02 --partition region=eu --engine local

    gazctl lake backfill typed.orders --journal orders/region=eu --from 0 --to 104857600
    """
    if bool(partition) == bool(journal):
        raise ValidationError(
            "say what is made anew: either this, or --journal", path="--partition"
        )
    if partition and (begin or end is not None):
        raise ValidationError("are offsets of one journal: give --journal", path="--from, --to")
    body("backfill").backfill(
        ctx,
        table,
        tables,
        output_format,
        partitions=partition or [],
        journal=journal,
        begin=begin,
        end=end,
        engine=engine,
    )


def reprocess(
    table: TypedName,
    *,
    tables: Tables = None,
    journal: Annotated[
        str,
        typer.Option(
            "--journal", metavar="NAME", show_default=False, help="Only records of this journal."
        ),
    ] = "",
    begin: Annotated[
        int, typer.Option("--begin", min=0, metavar="OFFSET", help="First offset, of that journal.")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            "--end",
            min=1,
            metavar="OFFSET",
            show_default=False,
            help="Offset behind the last one, of that journal.",
        ),
    ] = None,
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            metavar="TEXT",
            show_default=False,
            help="Only those whose reason has this text in it.",
        ),
    ] = "",
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Make rows of quarantined records that can be read by now, as after the spec was changed.

    They are parsed again from the bytes that quarantine keeps of them. Those that fit become rows and leave it, in one commit; the others stay,
    with the reason that there is now. No journal is read. `gazctl lake quarantine` lists them.

    **Examples**

    gazctl lake reprocess typed.orders

    gazctl lake reprocess typed.orders --journal orders/region=eu --reason "no timestamptz" -o json
    """
    if (begin or end is not None) and not journal:
        raise ValidationError("are offsets of one journal: give --journal", path="--begin, --end")
    body("reprocess").reprocess(
        table, tables, output_format, journal=journal, begin=begin, end=end, reason=reason
    )
