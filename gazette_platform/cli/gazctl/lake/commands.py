"""`gazctl lake`: its commands over tables, and their options. The work is in modules that are slow to import.

Long because help and completion need the options of all commands, and must not import the lake.
"""

from __future__ import annotations

import enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from gazette_platform.cli.gazctl.arguments import (
    Selection,
    SelectorOrNames,
    complete_all_tables,
    complete_names,
)
from gazette_platform.errors import SetupError, ValidationError


class OutputFormat(enum.StrEnum):
    """Formats of reports on tables."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ListFormat(enum.StrEnum):
    """Formats of the list of tables."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    PROMETHEUS = "prometheus"


class DataFormat(enum.StrEnum):
    """Formats of the records of raw tables."""

    JSON = "json"
    CSV = "csv"


class Dialect(enum.StrEnum):
    """Dialects of SQL."""

    TRINO = "trino"
    SPARK = "spark"
    HIVE = "hive"
    BIGQUERY = "bigquery"
    SNOWFLAKE = "snowflake"
    DUCKDB = "duckdb"


Tables = Annotated[
    Path | None,
    typer.Option(
        "--tables",
        envvar="GAZETTE_TABLES",
        metavar="DIR",
        show_default=False,
        help="Folder of table specs. Default: that of the running platform.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE",
        show_default=False,
        autocompletion=complete_all_tables,
        help="Tables, as schema.table. Default: all.",
    ),
]
Journals = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOURNAL",
        show_default=False,
        autocompletion=complete_names,
        help="Journals by name, instead of a selector. A name that ends in / means all journals below it.",
    ),
]
JournalsMax = Annotated[int, typer.Option("--journals", min=1, help="Most journals to sample.")]
SampleBytes = Annotated[
    int,
    typer.Option(
        "--bytes", min=1024, help="Bytes to read at each of up to four places in a journal."
    ),
]
Output = Annotated[OutputFormat, typer.Option("-o", "--format", help="Output format.")]


def body(name: str) -> ModuleType:
    """The module that does the work: the lake is an extra, and slow to import.

    Raises: SetupError: a library of the extra is missing.
    """
    try:
        return import_module(f"gazette_platform.cli.gazctl.lake.{name}")
    except ModuleNotFoundError as err:
        raise SetupError(
            f"`gazctl lake` needs the library {err.name} (install the extra: "
            "pip install 'gazette-platform[lake]')"
        ) from err


def apply(
    ctx: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Table specs. - reads one from stdin and names its file after the table.",
        ),
    ],
    *,
    tables: Tables = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the specs and show what would change, but change nothing."
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("-f", "--force", help="Accept specs whose selector matches no journal yet."),
    ] = False,
    recreate: Annotated[
        bool,
        typer.Option(
            "--recreate",
            help="Create a raw table again if its new spec cannot follow from the old one. Files stay. A table with "
            "rows that no journal holds is left alone.",
        ),
    ] = False,
) -> None:
    """Check table specs, and copy them to the folder that the platform reads.

    Nothing changes until all specs pass. The command checks each spec by itself, against the other specs, and against the
    journals that it selects: layout, codecs, stores and records. If a metastore or a catalog of typed tables is configured,
    it also checks the tables that exist. It reports every error of every spec, with file and key.

    **Examples**

    gazctl lake apply orders.yaml customers.yaml --dry-run

    gazctl lake infer -l name:prefix=orders/ --name shop.orders | gazctl lake apply -
    """
    body("apply").apply(ctx, files, tables, dry_run=dry_run, force=force, recreate=recreate)


def infer(
    ctx: typer.Context,
    journals: Journals = None,
    *,
    selector: SelectorOrNames = None,
    name: Annotated[str, typer.Option("--name", metavar="SCHEMA.TABLE", help="Name of the table.")],
    data_format: Annotated[
        DataFormat | None,
        typer.Option("--data", help="Format of the records. Default: detected."),
    ] = None,
    typed: Annotated[
        bool,
        typer.Option("--typed", help="Also propose a typed table: UUIDs, and types of texts."),
    ] = False,
    journals_max: JournalsMax = 16,
    sample_bytes: SampleBytes = 128 << 10,
) -> None:
    """Write a table spec for journals, inferred from samples of their records.

    The spec goes to stdout, a report to stderr. The report shows what each key held: values of several types, dates,
    times, numbers beyond 64 bits, and keys that are not SQL names. The command samples the beginning of a journal, two
    fragments in the middle, and the newest records.

    With --typed the spec also has a section `typed:`: where records hold the UUID of their message, and which texts are
    times or UUIDs. The report then counts the samples that would go to quarantine. Review the spec before you apply it.

    **Examples**

    gazctl lake infer orders/ --name shop.orders > orders.yaml

    gazctl lake infer -l kind=orders --name shop.orders --typed --journals 100 --bytes 1000000
    """
    body("create").infer(
        ctx,
        Selection.of(journals, selector),
        name,
        data_format=data_format.value if data_format is not None else "",
        is_typed=typed,
        journals_max=journals_max,
        sample_bytes=sample_bytes,
    )


def list_tables(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    output_format: Annotated[
        ListFormat, typer.Option("-o", "--format", help="Output format.")
    ] = ListFormat.TABLE,
) -> None:
    """List tables: journals, Hive partitions, rows, unfit records, lag, and problems.

    Lag is what was appended and is not in a Hive partition yet. Unfit records do not fit the spec. If the spec's `unfit`
    allows fewer than there are, rollups wait, and the list names the table. The list also shows refused specs and refused
    files of rollups. Exits with 1 if a table or journal could not be read; the others are still listed.

    **Examples**

    gazctl lake list

    gazctl lake list shop.orders -o json

    gazctl lake list -o prometheus > /var/lib/node_exporter/gazette.prom
    """
    body("list").list_tables(ctx, names or [], tables, output_format)


def describe(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Describe tables: columns, journals with their lag, newest Hive partitions, and problems.

    **Examples**

    gazctl lake describe shop.orders

    gazctl lake describe -o yaml
    """
    body("list").describe(ctx, names or [], tables, output_format)


def ddl(
    ctx: typer.Context,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE|FILE",
            autocompletion=complete_all_tables,
            help="Table, as schema.table, or the file of a spec.",
        ),
    ],
    *,
    dialect: Annotated[Dialect, typer.Option("--dialect", help="Engine to write for.")],
    location: Annotated[
        str,
        typer.Option(
            "--location",
            metavar="URL",
            show_default=False,
            help="Folder of the files, if the engine reaches them by another URL.",
        ),
    ] = "",
    tables: Tables = None,
) -> None:
    """Print the CREATE statement of a table, for another catalog or engine.

    The platform creates its own tables. Use this command for other engines that read the same files. The statement for a
    typed table shows the rows that the table has now.

    **Examples**

    gazctl lake ddl shop.orders --dialect duckdb | duckdb -init /dev/stdin

    gazctl lake ddl shop.orders --dialect bigquery --location gs://bucket/orders
    """
    body("ddl").ddl(ctx, table, dialect.value, location, tables)


def check(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Do not read fragments; use the count of unfit records from registration.",
        ),
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Audit tables now, as Dagster's checks do. Exits with 1 if anything is red.

    For raw tables, the command compares what brokers list, the files, and the metastore, and reports gaps, overlaps, lost
    files and foreign files. It reads every fragment for values that do not fit the spec. If there are more than the spec's
    `unfit` allows, they are red and rollups wait; otherwise they are yellow. Refused specs, refused files of rollups,
    selectors that match no journal, and anything that could not be read are red. The command changes nothing.

    For typed tables, each committed message must be a row or in quarantine, exactly once. The command counts rows; without
    --quick it also reads the journals again and compares offsets. A journal is red if no broker and no store holds its next
    bytes.

    A rollup is red if its query cannot be parsed, or names a table or column that its sources lack.

    **Examples**

    gazctl lake check

    gazctl lake check shop.orders --quick -o json
    """
    body("check").check(ctx, names or [], tables, output_format, quick=quick)


def flush(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            autocompletion=complete_all_tables,
            help="Raw or typed tables, as schema.table.",
        ),
    ],
    *,
    tables: Tables = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="Longest wait, as 1m30s.")
    ] = "1m",
) -> None:
    """Bring tables up to date now, without waiting for the flush interval.

    The command closes, stores and registers the open fragments of the journals. The sensor may register at the same
    time; its next tick reports the files to Dagster. Then the command runs the typed tables of these journals: in this
    process, or in Spark if the table has a key. Afterwards Trino sees all earlier appends in both. Exits with 1 if a
    typed table could not be brought up to date, or is stalled.

    **Examples**

    gazctl lake flush shop.orders

    gazctl lake flush typed.orders --timeout 10m
    """
    body("run").flush(ctx, names, tables, timeout)


def doctor(
    ctx: typer.Context,
    *,
    tables: Tables = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Also start Spark, with the platform's settings.")
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Check the servers that tables need, above all your own, and say what to configure.

    The command asks brokers, stores, the metastore and Trino. Does each answer? Does the catalog have its name? Does Trino
    see the Hive partitions of the metastore, and not old ones from its cache? Can it read the files? Exits with 1 if
    anything is wrong.

    **Examples**

    gazctl lake doctor

    GAZETTE_TRINO_URI=http://trino.example.com:8080 gazctl lake doctor --spark
    """
    body("doctor").doctor(ctx, tables, output_format, spark=spark)


def set_aside(
    ctx: typer.Context,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            show_default=False,
            autocompletion=complete_all_tables,
            help="Table, as schema.table. With --list, all tables if you name none.",
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="Fragment files: names, paths or URLs, as checks and $path show them.",
        ),
    ] = None,
    *,
    tables: Tables = None,
    unfit: Annotated[
        bool,
        typer.Option(
            "--unfit", help="Also set aside every file that is damaged or has unfit records."
        ),
    ] = False,
    why: Annotated[
        str,
        typer.Option(
            "--why", metavar="TEXT", show_default=False, help="Reason, which --list shows."
        ),
    ] = "",
    restore: Annotated[
        bool, typer.Option("--restore", help="Restore files to the table instead.")
    ] = False,
    list_aside: Annotated[
        bool, typer.Option("--list", help="List the files that are aside, and why.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, but change nothing.")
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Set files of a raw table aside so that queries skip them, or restore them.

    Use it for a damaged file, or for one whose values spoil a table. The file moves to the folder `_aside` of its journal.
    Brokers still serve it there, so readers of the journal miss nothing. The table loses its rows at once, and
    `gazctl lake check` reports its bytes as aside. Rollups keep its rows until their slice changes.

    --unfit reads every fragment, as the check does, and sets aside those that are damaged or have records that do not fit.
    --restore registers a file again. Exits with 1 if a file could not be moved.

    **Examples**

    gazctl lake set-aside shop.orders 0000000000000000-0000000000000034-….gz --why "see ticket 17"

    gazctl lake set-aside shop.orders --unfit --dry-run

    gazctl lake set-aside --list -o json

    gazctl lake set-aside shop.orders --restore 0000000000000000-0000000000000034-….gz
    """
    work = body("set_aside")
    if list_aside:
        if files or unfit or restore:
            raise ValidationError("goes with no FILE, --unfit or --restore", path="--list")
        work.list_aside(ctx, table, tables, output_format)
        return
    if table is None:
        raise ValidationError("names the table: give it, or --list", path="TABLE")
    if restore and unfit:
        raise ValidationError(
            "does not go with --restore, which takes files by name", path="--unfit"
        )
    if not files and not unfit:
        raise ValidationError(
            "names the files (`gazctl lake check` and `$path` show them); give one, or --unfit",
            path="FILE",
        )
    names = files or []
    if restore:
        work.restore(ctx, table, names, tables, output_format, dry_run=dry_run)
        return
    work.set_aside(ctx, table, names, tables, output_format, unfit=unfit, why=why, dry_run=dry_run)


def quarantine(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            show_default=False,
            autocompletion=complete_all_tables,
            help="Typed table, as schema.table.",
        ),
    ],
    *,
    tables: Tables = None,
    journal: Annotated[
        str,
        typer.Option(
            "--journal",
            metavar="NAME",
            show_default=False,
            help="Only records of this journal.",
        ),
    ] = "",
    begin: Annotated[
        int,
        typer.Option(
            "--begin",
            min=0,
            help="First offset in that journal.",
        ),
    ] = 0,
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            metavar="TEXT",
            show_default=False,
            help="Only records whose reason contains this text.",
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, help="Most records to list."),
    ] = 20,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """List the records that a typed table rejected, by journal and offset, each with its reason.

    -o json shows whole records. `gazctl lake reprocess` reads them again after you changed the spec.

    **Examples**

    gazctl lake quarantine typed.orders

    gazctl lake quarantine typed.orders --journal orders/region=eu --reason "no timestamptz" -o json
    """
    if begin and not journal:
        raise ValidationError("is an offset of one journal: give --journal, too", path="--begin")
    body("quarantine").list_records(
        table, tables, output_format, journal=journal, begin=begin, reason=reason, limit=limit
    )


def repair(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, but change nothing.")
    ] = False,
    pruned: Annotated[
        bool,
        typer.Option(
            "--pruned",
            help="Instead, forget fragments that are gone, even without proof that they were pruned.",
        ),
    ] = False,
    same: Annotated[
        bool,
        typer.Option(
            "--same",
            help="Instead, treat journals that were created again as the ones that were registered.",
        ),
    ] = False,
) -> None:
    """Move files aside that other files cover, so that queries see each row once.

    The sensor does the same, a few files in each tick. A file moves only if brokers do not list it, and the files that they
    list hold the same bytes; the command compares them. Nothing is deleted: files go to `.covered/` at the root of their
    store. Exits with 1 if overlaps remain.

    With --pruned, Hive partitions follow prunes, which the sensor does as well. But if everything that was registered
    of a journal is gone, the sensor changes nothing, because the store may be away or may be the wrong one. With this
    option you confirm that the journal was pruned. Hive partitions whose files exist, or cannot be listed, stay in any
    case.

    With --same, registration continues for journals that were deleted and created again with the same content, for example
    after you set up etcd again from a listing of specs.

    **Examples**

    gazctl lake repair --dry-run

    gazctl lake repair shop.orders

    gazctl lake repair --pruned shop.orders

    gazctl lake repair --same shop.orders
    """
    if pruned and same:
        raise ValidationError("goes without --pruned; give one of them", path="--same")
    if same:
        body("repair").adopt(ctx, names or [], tables, dry_run=dry_run)
        return
    if pruned:
        body("repair").forget_pruned(ctx, names or [], tables, dry_run=dry_run)
        return
    body("repair").repair(ctx, names or [], tables, dry_run=dry_run)


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
    body("apply").drop(table, tables, yes=yes)
