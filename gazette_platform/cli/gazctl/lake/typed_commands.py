"""`gazctl lake`: commands of typed tables."""

import enum
from typing import Annotated

import typer

from gazette_platform.cli.gazctl.arguments import complete_typed_tables
from gazette_platform.cli.gazctl.lake.commands import Output, OutputFormat, Tables, body
from gazette_platform.errors import ValidationError


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
        help="Typed tables, by their name or that of their raw table. Default: all.",
    ),
]

TypedName = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        autocompletion=complete_typed_tables,
        help="Typed table, by its name or that of its raw table.",
    ),
]
Workers = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        show_default=False,
        help="spark, or local: this process, without a JVM. Default: spark if it is configured, else local.",
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
            "--continuous",
            help="Keep running each table, as often as its `every` says, until SIGTERM.",
        ),
    ] = False,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            "--give-up",
            metavar="JOURNAL=OFFSET",
            show_default=False,
            help="Skip what no broker and no store holds before this offset. The table will lack its messages.",
        ),
    ] = None,
    begin_anew: Annotated[
        list[str] | None,
        typer.Option(
            "--begin-anew",
            metavar="JOURNAL[=OFFSET]",
            show_default=False,
            help="Read a journal that was deleted and created again from its beginning, or from OFFSET. Rows of the "
            "former journal stay.",
        ),
    ] = None,
    accept_rollback: Annotated[
        bool,
        typer.Option(
            "--accept-rollback",
            help="Continue with a table that was rolled back: show what will be read again and what is lost, ask, and "
            "move the tag of its progress to its current snapshot.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Accept the rollback without asking.")
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Bring typed tables up to date with their journals. A run commits all of its rows, or none.

    The command runs each table once, after it creates or changes the table as the spec says. It reports rows, quarantined
    records, bytes read, and the offset that each journal reached. If a run fails or is killed, the table stays as it was,
    and the next run does the work. Exits with 1 if a run failed, if no broker and no store holds the next bytes of a
    journal, or if a journal was deleted and created again; the other tables still run.

    With --continuous the command keeps reading the specs, and runs the tables that set `every`. SIGTERM or Ctrl-C lets
    the current run finish; a second signal cancels it.

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
        body("backfill").accept(ctx, names or [], tables, is_confirmed=yes)
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
            help="Hive partition of the raw table. Repeat it for several columns.",
        ),
    ] = None,
    journal: Annotated[
        str,
        typer.Option(
            "--journal",
            metavar="NAME",
            show_default=False,
            help="Journal to rebuild, instead of a Hive partition.",
        ),
    ] = "",
    begin: Annotated[
        int,
        typer.Option(
            "--from", min=0, metavar="OFFSET", help="First offset to read in that journal."
        ),
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            metavar="OFFSET",
            show_default=False,
            help="Offset after the last byte to read. Default: where the table is now.",
        ),
    ] = None,
    engine: Workers = None,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Rebuild rows of a typed table, for a Hive partition or for offsets of a journal, in one commit.

    Use it after you change a spec, or when `gazctl lake check` reports lost or repeated rows. It replaces the rows and
    quarantined records of these offsets by those of their committed messages. You may repeat it at any time, also
    during runs. It extends the offsets to whole fragments. Where no broker and no store holds the content any more,
    rows stay as they are, and the command exits with 1.

    **Examples**

    gazctl lake backfill typed.orders --partition date=2026-01-02

    gazctl lake backfill typed.orders --partition date=2026-01-02 --partition region=eu --engine local

    gazctl lake backfill typed.orders --journal orders/region=eu --from 0 --to 104857600
    """
    if bool(partition) == bool(journal):
        raise ValidationError(
            "say what to make again: either this, or --journal", path="--partition"
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
        int, typer.Option("--begin", min=0, metavar="OFFSET", help="First offset in that journal.")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option(
            "--end",
            min=1,
            metavar="OFFSET",
            show_default=False,
            help="Offset after the last one, in that journal.",
        ),
    ] = None,
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            metavar="TEXT",
            show_default=False,
            help="Only records whose reason contains this text.",
        ),
    ] = "",
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Parse quarantined records again, and make rows of those that fit now.

    Use it after you change a spec. The quarantine holds the bytes of its records, so no journal is read. Records that fit
    become rows and leave the quarantine, in one commit. The others stay, with their new reason. `gazctl lake quarantine`
    lists them.

    **Examples**

    gazctl lake reprocess typed.orders

    gazctl lake reprocess typed.orders --journal orders/region=eu --reason "no timestamptz" -o json
    """
    if (begin or end is not None) and not journal:
        raise ValidationError("are offsets of one journal: give --journal", path="--begin, --end")
    body("backfill").reprocess(
        table, tables, output_format, journal=journal, begin=begin, end=end, reason=reason
    )
