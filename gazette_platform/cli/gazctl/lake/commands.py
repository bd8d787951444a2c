"""`gazctl lake`: its commands and their options. The work is in modules that are slow to import.

Long because help and completion need the options of all commands, and must not import the lake.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer

from gazette_platform.cli.gazctl.arguments import (
    Selection,
    SelectorOrNames,
    complete_all_tables,
    complete_names,
    complete_tables,
    complete_typed_tables,
)
from gazette_platform.errors import SetupError, ValidationError

OutputFormat = Literal["table", "json", "yaml"]
"""Formats of reports on tables."""


ListFormat = Literal["table", "json", "yaml", "prometheus"]
"""Formats of the list of tables."""


DataFormat = Literal["json", "csv"]
"""Formats of the records of raw tables."""


Dialect = Literal["trino", "spark", "hive", "bigquery", "snowflake", "duckdb"]
"""Dialects of SQL."""


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
    files: list[str],
    *,
    tables: Tables = None,
    dry_run: bool = False,
    force: bool = False,
    recreate: bool = False,
) -> None:
    """Check table specs, and copy them to the folder that the platform reads.

    Nothing changes until all specs pass. The command checks each spec by itself, against the other specs, and against the
    journals that it selects: layout, codecs, stores and records. If a metastore or a catalog of typed tables is configured,
    it also checks the tables that exist. It reports every error of every spec, with file and key.

    **Examples**

    gazctl lake apply orders.yaml customers.yaml --dry-run

    gazctl lake infer -l name:prefix=orders/ --name shop.orders | gazctl lake apply -

    Options:
        FILE: Table specs. - reads one from stdin and names its file after the table.
        --dry-run: Check the specs and show what would change, but change nothing.
        -f, --force: Accept specs whose selector matches no journal yet.
        --recreate: Create a raw table again if its new spec cannot follow from the old one. Files stay. A table with
            rows that no journal holds is left alone.
    """
    body("apply").apply(ctx, files, tables, dry_run=dry_run, force=force, recreate=recreate)


def infer(
    ctx: typer.Context,
    journals: Journals = None,
    *,
    selector: SelectorOrNames = None,
    name: str,
    data_format: DataFormat | None = None,
    typed: bool = False,
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

    Options:
        --name SCHEMA.TABLE: Name of the table.
        --data: Format of the records. Default: detected.
        --typed: Also propose a typed table: UUIDs, and types of texts.
    """
    body("create").infer(
        ctx,
        Selection.of(journals, selector),
        name,
        data_format=data_format or "",
        is_typed=typed,
        journals_max=journals_max,
        sample_bytes=sample_bytes,
    )


def list_tables(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    output_format: ListFormat = "table",
) -> None:
    """List tables: journals, Hive partitions, rows, unfit records, lag, and problems.

    Lag is what was appended and is not in a Hive partition yet. Unfit records do not fit the spec. If the spec's `unfit`
    allows fewer than there are, rollups wait, and the list names the table. The list also shows refused specs and refused
    files of rollups. Exits with 1 if a table or journal could not be read; the others are still listed.

    **Examples**

    gazctl lake list

    gazctl lake list shop.orders -o json

    gazctl lake list -o prometheus > /var/lib/node_exporter/gazette.prom

    Options:
        -o, --format: Output format.
    """
    body("list").list_tables(ctx, names or [], tables, output_format)


def describe(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    output_format: Output = "table",
) -> None:
    """Describe tables: columns, journals with their lag, newest Hive partitions, and problems.

    **Examples**

    gazctl lake describe shop.orders

    gazctl lake describe -o yaml
    """
    body("list").describe(ctx, names or [], tables, output_format)


def ddl(
    ctx: typer.Context,
    table: Annotated[str, typer.Argument(autocompletion=complete_all_tables)],
    *,
    dialect: Dialect,
    location: str = "",
    tables: Tables = None,
) -> None:
    """Print the CREATE statement of a table, for another catalog or engine.

    The platform creates its own tables. Use this command for other engines that read the same files. The statement for a
    typed table shows the rows that the table has now.

    **Examples**

    gazctl lake ddl shop.orders --dialect duckdb | duckdb -init /dev/stdin

    gazctl lake ddl shop.orders --dialect bigquery --location gs://bucket/orders

    Options:
        TABLE|FILE: Table, as schema.table, or the file of a spec.
        --dialect: Engine to write for.
        --location URL: Folder of the files, if the engine reaches them by another URL.
    """
    body("create").ddl(ctx, table, dialect, location, tables)


def check(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    quick: bool = False,
    output_format: Output = "table",
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

    Options:
        --quick: Do not read fragments; use the count of unfit records from registration.
    """
    body("check").check(ctx, names or [], tables, output_format, quick=quick)


def register(
    ctx: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(autocompletion=complete_tables)] = None,
    *,
    tables: Tables = None,
    timeout: str = "10m",
) -> None:
    """Register what fragment stores hold in raw tables, once, without Dagster.

    The command does what a tick of Dagster's sensor does, until nothing is left: it creates missing tables, adds Hive
    partitions, and counts new fragments. Use it after you restored a metastore, or from a timer if you run no Dagster.
    It is safe beside the sensor, and if it is repeated: each fragment counts once. Open fragments stay open, so the
    latest records follow after the flush interval, or by `gazctl lake flush`. Exits with 1 if a fragment or journal
    could not be registered.

    **Examples**

    gazctl lake register

    gazctl lake register shop.orders --timeout 1h

    Options:
        TABLE: Raw tables, as schema.table; none: all.
        --timeout DURATION: Longest wait, as 1h30m. What is registered by then stays.
    """
    body("run").register(ctx, names or [], tables, timeout)


def flush(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(autocompletion=complete_all_tables)],
    *,
    tables: Tables = None,
    timeout: str = "1m",
) -> None:
    """Bring tables up to date now, without waiting for the flush interval.

    The command closes, stores and registers the open fragments of the journals. The sensor may register at the same
    time; its next tick reports the files to Dagster. Then the command runs the typed tables of these journals: in this
    process, or in Spark if the table has a key. Afterwards Trino sees all earlier appends in both. Exits with 1 if a
    typed table could not be brought up to date, or is stalled.

    **Examples**

    gazctl lake flush shop.orders

    gazctl lake flush typed.orders --timeout 10m

    Options:
        TABLE: Raw or typed tables, as schema.table.
        --timeout DURATION: Longest wait, as 1m30s.
    """
    body("run").flush(ctx, names, tables, timeout)


def doctor(
    ctx: typer.Context,
    *,
    tables: Tables = None,
    spark: bool = False,
    output_format: Output = "table",
) -> None:
    """Check the servers that tables need, above all your own, and say what to configure.

    The command asks brokers, stores, the metastore and Trino. Does each answer? Does the catalog have its name? Does Trino
    see the Hive partitions of the metastore, and not old ones from its cache? Can it read the files? Exits with 1 if
    anything is wrong.

    **Examples**

    gazctl lake doctor

    GAZETTE_TRINO_URI=http://trino.example.com:8080 gazctl lake doctor --spark

    Options:
        --spark: Also start Spark, with the platform's settings.
    """
    body("check").doctor(ctx, tables, output_format, spark=spark)


def set_aside(
    ctx: typer.Context,
    table: Annotated[str | None, typer.Argument(autocompletion=complete_all_tables)] = None,
    files: list[str] | None = None,
    *,
    tables: Tables = None,
    unfit: bool = False,
    why: str = "",
    restore: bool = False,
    list_aside: bool = False,
    dry_run: bool = False,
    output_format: Output = "table",
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

    Options:
        TABLE: Table, as schema.table. With --list, all tables if you name none.
        FILE: Fragment files: names, paths or URLs, as checks and $path show them.
        --unfit: Also set aside every file that is damaged or has unfit records.
        --why TEXT: Reason, which --list shows.
        --restore: Restore files to the table instead.
        --list: List the files that are aside, and why.
        --dry-run: Show what would change, but change nothing.
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
    table: Annotated[str, typer.Argument(autocompletion=complete_typed_tables)],
    *,
    tables: Tables = None,
    journal: str = "",
    begin: Annotated[int, typer.Option(min=0)] = 0,
    reason: str = "",
    limit: Annotated[int, typer.Option(min=1)] = 20,
    output_format: Output = "table",
) -> None:
    """List the records that a typed table rejected, by journal and offset, each with its reason.

    -o json shows whole records. `gazctl lake reprocess` reads them again after you changed the spec.

    **Examples**

    gazctl lake quarantine typed.orders

    gazctl lake quarantine typed.orders --journal orders/region=eu --reason "no timestamptz" -o json

    Options:
        TABLE: Typed table, as schema.table.
        --journal NAME: Only records of this journal.
        --begin: First offset in that journal.
        --reason TEXT: Only records whose reason contains this text.
        --limit: Most records to list.
    """
    if begin and not journal:
        raise ValidationError("is an offset of one journal: give --journal, too", path="--begin")
    body("backfill").list_records(
        table, tables, output_format, journal=journal, begin=begin, reason=reason, limit=limit
    )


def repair(
    ctx: typer.Context,
    names: Names = None,
    *,
    tables: Tables = None,
    dry_run: bool = False,
    pruned: bool = False,
    same: bool = False,
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

    Options:
        --dry-run: Show what would change, but change nothing.
        --pruned: Instead, forget fragments that are gone, even without proof that they were pruned.
        --same: Instead, treat journals that were created again as the ones that were registered.
    """
    if pruned and same:
        raise ValidationError("goes without --pruned; give one of them", path="--same")
    if same:
        body("set_aside").adopt(ctx, names or [], tables, dry_run=dry_run)
        return
    if pruned:
        body("set_aside").forget_pruned(ctx, names or [], tables, dry_run=dry_run)
        return
    body("set_aside").repair(ctx, names or [], tables, dry_run=dry_run)


def create(
    ctx: typer.Context,
    table: str,
    journals: Journals = None,
    *,
    selector: SelectorOrNames = None,
    raw_only: bool = False,
    yes: bool = False,
    data_format: DataFormat | None = None,
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

    Options:
        TABLE: Name of the table, as schema.table.
        --raw-only: Create only the raw table.
        -y, --yes: Create the table without showing the spec and asking.
        --data: Format of the records. Default: detected.
    """
    body("create").create(
        ctx,
        table,
        Selection.of(journals, selector),
        tables,
        data_format=data_format or "",
        is_typed=not raw_only,
        journals_max=journals_max,
        sample_bytes=sample_bytes,
        yes=yes,
    )


def drop(
    table: Annotated[str, typer.Argument(autocompletion=complete_all_tables)],
    *,
    yes: bool = False,
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

    Options:
        TABLE: Raw or typed table, as schema.table.
        -y, --yes: Drop a typed table without asking.
    """
    body("apply").drop(table, tables, yes=yes)


Engine = Literal["spark", "local"]
"""Who reads journals and writes files."""


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
    continuous: bool = False,
    give_up: list[str] | None = None,
    begin_anew: list[str] | None = None,
    accept_rollback: bool = False,
    yes: bool = False,
    output_format: Output = "table",
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

    Options:
        --continuous: Keep running each table, as often as its `every` says, until SIGTERM.
        --give-up JOURNAL=OFFSET: Skip what no broker and no store holds before this offset. The table will lack its
            messages.
        --begin-anew JOURNAL[=OFFSET]: Read a journal that was deleted and created again from its beginning, or from
            OFFSET. Rows of the former journal stay.
        --accept-rollback: Continue with a table that was rolled back: show what will be read again and what is lost,
            ask, and move the tag of its progress to its current snapshot.
        -y, --yes: Accept the rollback without asking.
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
    partition: list[str] | None = None,
    journal: str = "",
    begin: Annotated[int, typer.Option(min=0)] = 0,
    end: Annotated[int | None, typer.Option(min=1)] = None,
    engine: Workers = None,
    output_format: Output = "table",
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

    Options:
        --partition COLUMN=VALUE: Hive partition of the raw table. Repeat it for several columns.
        --journal NAME: Journal to rebuild, instead of a Hive partition.
        --from OFFSET: First offset to read in that journal.
        --to OFFSET: Offset after the last byte to read. Default: where the table is now.
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
    journal: str = "",
    begin: Annotated[int, typer.Option(min=0)] = 0,
    end: Annotated[int | None, typer.Option(min=1)] = None,
    reason: str = "",
    output_format: Output = "table",
) -> None:
    """Parse quarantined records again, and make rows of those that fit now.

    Use it after you change a spec. The quarantine holds the bytes of its records, so no journal is read. Records that fit
    become rows and leave the quarantine, in one commit. The others stay, with their new reason. `gazctl lake quarantine`
    lists them.

    **Examples**

    gazctl lake reprocess typed.orders

    gazctl lake reprocess typed.orders --journal orders/region=eu --reason "no timestamptz" -o json

    Options:
        --journal NAME: Only records of this journal.
        --begin OFFSET: First offset in that journal.
        --end OFFSET: Offset after the last one, in that journal.
        --reason TEXT: Only records whose reason contains this text.
    """
    if (begin or end is not None) and not journal:
        raise ValidationError("are offsets of one journal: give --journal", path="--begin, --end")
    body("backfill").reprocess(
        table, tables, output_format, journal=journal, begin=begin, end=end, reason=reason
    )
