"""`gazctl lake create` and `drop`: their options. The work is in modules that are slow to import."""

from typing import Annotated

import typer

from gazette_platform.cli.completion import complete_all_tables
from gazette_platform.cli.gazctl_lake import (
    DataFormat,
    Journals,
    JournalsMax,
    SampleBytes,
    Tables,
    body,
)
from gazette_platform.cli.selection import Selection, SelectorOrNames

__all__ = ["create", "drop"]


def create(
    ctx: typer.Context,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", show_default=False, help="Name of the table, as schema.table."
        ),
    ],
    journals: Journals = None,
    *,
    selector: SelectorOrNames = None,
    raw_only: Annotated[
        bool, typer.Option("--raw-only", help="Create the raw table, and no typed table beside it.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Create without showing the spec and asking.")
    ] = False,
    data_format: Annotated[
        DataFormat | None,
        typer.Option("--data", help="Format of the records; else it is found out."),
    ] = None,
    journals_max: JournalsMax = 16,
    sample_bytes: SampleBytes = 128 << 10,
    tables: Tables = None,
) -> None:
    """Create a table over journals: infer its spec, show it, ask, and apply it.

    The raw table shows every record, as it is in the files. JSON records get a typed table beside it, in the schema
    `typed`: an Iceberg table of real types, with each message once. New records follow in both by themselves.

    Names of journals that differ in plain words, such as `events/clicks` and `events/views`, cannot be one table: create
    one for each. Names that differ in `key=value` can, and the key is a column: `events/kind=clicks`.

    To change the spec before you apply it, use `gazctl lake infer` and `gazctl lake apply`.

    **Examples**

    gazctl lake create shop.clicks events/clicks

    gazctl lake create shop.orders -l name:prefix=orders/ --yes

    gazctl lake create shop.logs logs/ --raw-only
    """
    body("create").create(
        ctx,
        table,
        Selection.of(journals, selector),
        tables,
        data_format=data_format.value if data_format is not None else "",
        is_typed=not raw_only,
        journals_max=journals_max,
        sample_bytes=sample_bytes,
        yes=yes,
    )


def drop(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            show_default=False,
            autocompletion=complete_all_tables,
            help="A raw or typed table, as schema.table.",
        ),
    ],
    *,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Drop a typed table without a question.")
    ] = False,
    tables: Tables = None,
) -> None:
    """Drop a table: remove its spec, and its entry in the metastore or catalog.

    Journals and all files stay. The spec that was removed goes to stdout: `gazctl lake apply` takes it, and makes the
    table again.

    A typed table goes with its quarantine, and with its raw table if you drop that one. As its rows are made again only from
    journals that are still there, the command asks first. Without a terminal it needs --yes.

    A table that a rollup reads stays until the rollup's file is gone.

    **Examples**

    gazctl lake drop shop.logs > logs.yaml

    gazctl lake drop typed.orders --yes
    """
    body("drop").drop(table, tables, yes=yes)
