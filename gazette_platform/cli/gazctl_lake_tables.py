"""`gazctl lake create` and `drop`: their options. The work is in modules that are slow to import."""

from typing import Annotated

import typer

from gazette_platform.cli.completion import complete_all_tables, complete_names
from gazette_platform.cli.gazctl_lake import DataFormat, JournalsMax, SampleBytes, Tables, body
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
    journals: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOURNAL",
            show_default=False,
            autocompletion=complete_names,
            help="Journals by name, instead of a selector. A name that ends in / means all journals below it.",
        ),
    ] = None,
    *,
    selector: SelectorOrNames = None,
    raw_only: Annotated[
        bool, typer.Option("--raw-only", help="Create only the raw table.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("-y", "--yes", help="Create the table without showing the spec and asking."),
    ] = False,
    data_format: Annotated[
        DataFormat | None,
        typer.Option("--data", help="Format of the records. Default: detected."),
    ] = None,
    journals_max: JournalsMax = 16,
    sample_bytes: SampleBytes = 128 << 10,
    tables: Tables = None,
) -> None:
    """Create a table over journals: infer its spec, show it, ask, and apply it.

    The raw table shows every record as it is in the files. JSON records also get a typed table in the schema `typed`: an
    Iceberg table with real types, and each message once. Both tables follow new records by themselves.

    Journals whose names differ in plain words, such as `events/clicks` and `events/views`, cannot share a table: create one
    for each. Journals whose names differ in `key=value`, such as `events/kind=clicks`, can; the key becomes a column.

    To edit the spec before you apply it, use `gazctl lake infer` and `gazctl lake apply`.

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
            help="Raw or typed table, as schema.table.",
        ),
    ],
    *,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Drop a typed table without asking.")
    ] = False,
    tables: Tables = None,
) -> None:
    """Drop a table: remove its spec, and its entry in the metastore or catalog.

    Journals and all files stay. The removed spec goes to stdout; `gazctl lake apply` creates the table again from it.

    A typed table loses its quarantine with it; a raw table, its typed table. A new typed table gets only the rows that
    journals still hold, so the command asks first. Without a terminal it needs --yes.

    If a rollup reads the table, remove the file of the rollup first.

    **Examples**

    gazctl lake drop shop.logs > logs.yaml

    gazctl lake drop typed.orders --yes
    """
    body("drop").drop(table, tables, yes=yes)
