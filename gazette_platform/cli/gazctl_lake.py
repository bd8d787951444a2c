"""`gazctl lake`: tables over journals."""

import enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from gazette_platform.cli.completion import complete_all_tables, complete_names
from gazette_platform.cli.selection import Selection, SelectorOrNames
from gazette_platform.errors import SetupError, ValidationError

__all__ = [
    "DataFormat",
    "Journals",
    "JournalsMax",
    "ListFormat",
    "Output",
    "OutputFormat",
    "SampleBytes",
    "Tables",
    "apply",
    "body",
    "check",
    "ddl",
    "describe",
    "doctor",
    "flush",
    "infer",
    "list_tables",
    "quarantine",
    "repair",
]


class OutputFormat(enum.StrEnum):
    """Formats of what is told of tables."""

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
        help="Folder of table specs; else that of the platform that runs.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE",
        show_default=False,
        autocompletion=complete_all_tables,
        help="Tables by name, as schema.table; none means all.",
    ),
]
Journals = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOURNAL",
        show_default=False,
        autocompletion=complete_names,
        help="Journals by name, in place of a selector; one that ends in / means all below it.",
    ),
]
JournalsMax = Annotated[
    int, typer.Option("--journals", min=1, help="Journals to look into at most.")
]
SampleBytes = Annotated[
    int,
    typer.Option(
        "--bytes", min=1024, help="Bytes to read of each of the up to four places in a journal."
    ),
]
_OF_RECORDS = "Records of typed tables"
Output = Annotated[OutputFormat, typer.Option("-o", "--format", help="Output format.")]


def body(name: str) -> ModuleType:
    """The module that does the work: the lake is an extra, and slow to import.

    Raises: SetupError: a library of the extra is missing.
    """
    try:
        return import_module(f"gazette_platform.cli.gazctl_lake_{name}")
    except ModuleNotFoundError as err:
        raise SetupError(
            f"`gazctl lake` needs the library {err.name} (install the extra: "
            "pip install 'gazette-platform[lake]')"
        ) from err


def apply(
    ctx: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Table specs; - is stdin, called after its table."),
    ],
    *,
    tables: Tables = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the specs, show what changes, change nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("-f", "--force", help="Also specs whose selector matches no journal yet."),
    ] = False,
    recreate: Annotated[
        bool,
        typer.Option(
            "--recreate",
            help="Make a raw table again that cannot become its spec. No file is deleted; a table with rows that no "
            "journal has is left alone.",
        ),
    ] = False,
) -> None:
    """Check table specs, and put them into the folder that the platform reads.

    All specs are checked before anything changes: each by itself, against each other and the folder,
    against the journals that they select (layout, codecs, stores, what records hold) and against the
    tables that exist, if a metastore is configured, or the catalog of typed tables. Every error of every spec is told,
    with file and key.

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
    name: Annotated[
        str, typer.Option("--name", metavar="SCHEMA.TABLE", help="What the table is to be called.")
    ],
    data_format: Annotated[
        DataFormat | None,
        typer.Option("--data", help="Format of the records; else it is found out."),
    ] = None,
    typed: Annotated[
        bool,
        typer.Option("--typed", help="Propose a typed table, too: UUIDs, and types of texts."),
    ] = False,
    journals_max: JournalsMax = 16,
    sample_bytes: SampleBytes = 128 << 10,
) -> None:
    """Write a table spec for journals, out of samples of their records.

    The spec goes to stdout, and a report to stderr: what was seen of each key, where values were of
    several types, dates, times, numbers beyond 64 bits, and keys that are no SQL names. Read are the
    beginning, two fragments amid, and what was appended last, of some of the journals.

    With --typed it has a section `typed:`, out of the same samples: where records have their message's UUID, which texts
    are times or UUIDs, and what of the samples would be set aside. Look at it before you apply it.

    **Examples**

    gazctl lake infer orders/ --name shop.orders > orders.yaml

    gazctl lake infer -l kind=orders --name shop.orders --typed --journals 100 --bytes 1000000
    """
    body("infer").infer(
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
    """List tables: their journals, Hive partitions, rows, unfit records, lag, and what is wrong.

    The lag is what was appended and is in no Hive partition yet. Unfit are records that do not fit the spec; if they
    are too many for its `unfit`, rollups wait, and the list says for which table. Specs and files of rollups that are refused are
    listed, too. Exits with 1 if a table or journal could not be looked at; the others are told all the same.

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
    """Describe tables: columns, journals with their lag, newest Hive partitions, and what is wrong.

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
            help="A table by name, or the file of a spec.",
        ),
    ],
    *,
    dialect: Annotated[Dialect, typer.Option("--dialect", help="Of which engine.")],
    location: Annotated[
        str,
        typer.Option(
            "--location",
            metavar="URL",
            show_default=False,
            help="Folder of the files, if the engine has them elsewhere.",
        ),
    ] = "",
    tables: Tables = None,
) -> None:
    """Print the CREATE statement of a table, for another catalog or engine.

    The platform makes its own tables; this is for others that are to read the same files. Of a typed table, they read it as it
    is now.

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
            help="Do not read fragments: unfit records are those counted at registration.",
        ),
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Audit tables at once, as Dagster's checks do; exit with 1 if anything is red.

    Compared are what brokers list, the files, and what the metastore knows: gaps, overlaps, lost and
    foreign files. Every fragment is read, for values that do not fit the spec: they are red if they are more than `unfit`
    of the spec allows, so that rollups wait, and yellow otherwise. Refused specs and files of rollups,
    selectors that match no journal, and what could not be looked at, are red, too. Nothing is changed.

    Of typed tables, what is committed is to be a row or in quarantine, each once. Rows are counted; without --quick journals are read
    again, too, and offsets compared. A journal that stands still, because nobody holds what comes next, is red.

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
            help="Raw tables by name, as schema.table, or their typed tables.",
        ),
    ],
    *,
    tables: Tables = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait, as in 1m30s.")
    ] = "1m",
) -> None:
    """Have tables hold all that was appended until now, without waiting for the flush interval.

    The journals' open fragments are closed and stored, and registered as the sensor does it; what the
    sensor registers at the same time is no matter. Dagster is told by the sensor's next tick.
    Typed tables of these are run behind that, until they hold the same: by this process, or by Spark those with a key. So Trino sees
    in both what was appended before. Exits with 1 if a typed table could not be brought up to date, or stands still.

    **Examples**

    gazctl lake flush shop.orders

    gazctl lake flush typed.orders --timeout 10m
    """
    body("flush").flush(ctx, names, tables, timeout)


def doctor(
    ctx: typer.Context,
    *,
    tables: Tables = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Start Spark, too, with the platform's settings.")
    ] = False,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Look at the servers that tables need, above all your own, and say what to set.

    Brokers, stores, the metastore and Trino are asked: whether they answer, whether the catalog has its
    name, whether Trino sees the Hive partitions that the metastore has (or old ones that it keeps), and
    whether it can read the files. Exits with 1 if anything is wrong.

    **Examples**

    gazctl lake doctor

    GAZETTE_TRINO_URI=http://trino.example.com:8080 gazctl lake doctor --spark
    """
    body("doctor").doctor(ctx, tables, output_format, spark=spark)


def quarantine(
    ctx: typer.Context,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            show_default=False,
            autocompletion=complete_all_tables,
            help="A table by name, as schema.table; --list takes none for all. Of a typed one, records are listed.",
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="Fragment files by name, or by path or URL, as checks and $path show them.",
        ),
    ] = None,
    *,
    tables: Tables = None,
    unfit: Annotated[
        bool,
        typer.Option(
            "--unfit", help="Set aside, too, every file that is damaged or has unfit records."
        ),
    ] = False,
    why: Annotated[
        str,
        typer.Option("--why", metavar="TEXT", show_default=False, help="A reason, for --list."),
    ] = "",
    restore: Annotated[
        bool, typer.Option("--restore", help="Instead, take files back into the table.")
    ] = False,
    list_aside: Annotated[
        bool, typer.Option("--list", help="Instead, list what is aside, and why.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    journal: Annotated[
        str,
        typer.Option(
            "--journal",
            metavar="NAME",
            show_default=False,
            help="Only of this journal.",
            rich_help_panel=_OF_RECORDS,
        ),
    ] = "",
    begin: Annotated[
        int,
        typer.Option(
            "--begin",
            min=0,
            help="First offset, of that journal.",
            rich_help_panel=_OF_RECORDS,
        ),
    ] = 0,
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            metavar="TEXT",
            show_default=False,
            help="Only those whose reason has this text in it.",
            rich_help_panel=_OF_RECORDS,
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, help="How many at most.", rich_help_panel=_OF_RECORDS),
    ] = 20,
    output_format: Output = OutputFormat.TABLE,
) -> None:
    """Set files of a table aside, so that no query sees their rows, and take them back.

    Of a typed table it lists the records that are no rows of it, by journal and offset: why, and what they are. -o json
    has them whole.

    For a file that is damaged, say, or whose values spoil a table. It goes into the folder `_aside` of its
    journal, where brokers serve it as ever: readers of the journal miss nothing. The table loses its rows at once, and
    `gazctl lake check` names the bytes as aside. Rollups keep what they were made of until their slice changes.

    --unfit reads every fragment, as the check does, and takes those with values or lines that do not fit, or
    that are damaged. --restore registers the file again. Exits with 1 if one stays where it was.

    **Examples**

    gazctl lake quarantine shop.orders 0000000000000000-0000000000000034-….gz --why "see ticket 17"

    gazctl lake quarantine shop.orders --unfit --dry-run

    gazctl lake quarantine --list -o json

    gazctl lake quarantine shop.orders --restore 0000000000000000-0000000000000034-….gz

    gazctl lake quarantine typed.orders --journal orders/region=eu --reason "no timestamptz" -o json
    """
    if table is not None and not (files or unfit or restore or list_aside):
        if begin and not journal:
            raise ValidationError(
                "is an offset of one journal: give --journal, too", path="--begin"
            )
        if body("records").list_records(
            table, tables, output_format, journal=journal, begin=begin, reason=reason, limit=limit
        ):
            return
    if journal or begin or reason:
        raise ValidationError(
            "is about records of a typed table", path="--journal, --begin, --reason"
        )
    work = body("quarantine")
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
            "names the files (`gazctl lake check` and `$path` show them); records are listed of a typed table, by "
            "its own name",
            path="FILE",
        )
    names = files or []
    if restore:
        work.restore(ctx, table, names, tables, output_format, dry_run=dry_run)
        return
    work.set_aside(ctx, table, names, tables, output_format, unfit=unfit, why=why, dry_run=dry_run)


def repair(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    pruned: Annotated[
        bool,
        typer.Option(
            "--pruned",
            help="Instead, forget fragments that are gone, also where nothing proves that they were pruned.",
        ),
    ] = False,
    same: Annotated[
        bool,
        typer.Option(
            "--same",
            help="Instead, take journals that were created again for those that were registered: they hold the same.",
        ),
    ] = False,
) -> None:
    """Move files aside that others cover, so that queries see each row once.

    The sensor does it, too, some files a tick. A file is moved only if brokers do not list it, and those
    that they list hold the same bytes, which are compared. Nothing is deleted: files go to `.covered/`
    at the root of their store. Exits with 1 if files that overlap stay.

    With --pruned it has Hive partitions follow prunes, as the sensor does. But the sensor leaves them as they are
    while a store may just be away or another one, since all that had been registered of a journal is gone, say; this
    takes your word that it was pruned. Hive partitions whose files cannot be listed, or are there, stay in
    any case.

    With --same, registration goes on with journals that were deleted and applied again, and that hold what they held: their
    files stayed, as when etcd was set up again from a listing of specs.

    **Examples**

    gazctl lake repair --dry-run

    gazctl lake repair shop.orders

    gazctl lake repair --pruned shop.orders

    gazctl lake repair --same shop.orders
    """
    if pruned and same:
        raise ValidationError("goes without --pruned; give one of them", path="--same")
    if same:
        body("same").adopt(ctx, names or [], tables, dry_run=dry_run)
        return
    if pruned:
        body("pruned").forget_pruned(ctx, names or [], tables, dry_run=dry_run)
        return
    body("repair").repair(ctx, names or [], tables, dry_run=dry_run)
