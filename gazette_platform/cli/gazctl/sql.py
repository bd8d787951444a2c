"""`gazctl sql`: a query over journals in this process. DuckDB and Arrow are extras, and slow to import."""

from __future__ import annotations

import csv
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import orjson
import typer

from gazette_platform.cli.commands import documented, with_parameters
from gazette_platform.cli.gazctl import connection
from gazette_platform.cli.output import note, print_table, writing
from gazette_platform.cli.program import EXIT_INTERRUPTED
from gazette_platform.client import Client
from gazette_platform.errors import ValidationError
from gazette_platform.ops.extras import required
from gazette_platform.ops.text import counted

if TYPE_CHECKING:
    from gazette_platform.cli.gazctl.lake.create import SavedSpec
    from gazette_platform.lake.engines.duckdb import LocalSql, QueryResult
    from gazette_platform.lake.settings import LakeSettings

SqlFormat = Literal["table", "json", "csv", "parquet"]
"""Formats of rows."""


def _sql(
    ctx: typer.Context,
    query: str,
    *,
    output_format: SqlFormat = "table",
    to: Path | None = None,
    tables: Annotated[Path | None, typer.Option(envvar="GAZETTE_TABLES")] = None,
    rows: Annotated[int, typer.Option(min=1)] = 1000,
    explain: bool = False,
    save: str = "",
) -> None:
    """Query journals as tables, in this process: persisted fragments and the live tail up to now.

    `journal('events/')` is a table of all journals under a prefix, `journal('events/a')` of one journal, and
    `journal('name:prefix=events/,region=eu')` of those that a selector matches. Its columns are inferred from
    samples (JSON or CSV); `DESCRIBE journal('events/')` shows them, and --save makes it a table for good.

    Other tables are those of the folder of table specs; no server but brokers is needed. A query sees each
    journal up to its write head when it began, and reads only the Hive partitions that it may need.
    `"orders$offsets"` is the table orders with the journal, offset and file of each row.
    Typed tables can be queried as well, by their names: rows that runs have published and those that the next run would make,
    each message once. They need the catalog that these are in.

    The folder, the brokers and where fragments lie are those of the platform that runs (`gazette up`). Options win over
    it, and so do variables such as GAZETTE_ENDPOINTS, which names the endpoints file of one platform.

    **Examples**

    gazctl sql "SELECT type, count(*) FROM journal('events/') GROUP BY 1"

    gazctl sql "DESCRIBE journal('events/')" --save shop.events

    gazctl sql "SELECT item, count(*) FROM orders WHERE hour = 5 GROUP BY item"

    gazctl sql "SHOW TABLES" --tables ./tables

    gazctl sql "SELECT * FROM shop.orders" -o parquet --to orders.parquet --explain

    gazctl sql "SELECT status, count(*) FROM typed.orders GROUP BY status" --explain

    Options:
        QUERY: SQL of DuckDB; - reads it from stdin.
        -o, --format: json: one object a line. parquet: needs --to.
        --to FILE: Where to, else stdout.
        --tables DIR: Folder of table specs. Default: that of the running platform.
        --rows: Rows that a table shows at most.
        --explain: Report on stderr up to which offsets journals were read, and what had to be fetched.
        --save SCHEMA.TABLE: Apply the table spec that was inferred for the query's journal(…), under this name.
    """
    _run(ctx, query, output_format, to, tables, rows_max=rows, explain=explain, save=save)


def sql(ctx: typer.Context, **options: Any) -> None:
    """Connect as options say, and run the query."""
    own = inspect.signature(_sql).parameters.keys()
    connection.connect(ctx, **{k: v for k, v in options.items() if k not in own})
    _sql(ctx, **{k: v for k, v in options.items() if k in own})


def _with_options_of_connection() -> None:
    """Give `sql` the options of both: groups take those of the connection, and this is not a group."""
    own = inspect.signature(_sql, eval_str=True)
    common = inspect.signature(connection.connect, eval_str=True)
    merged = [*own.parameters.values()]
    merged += [p for p in common.parameters.values() if p.name not in own.parameters]
    sql.__doc__ = _sql.__doc__
    with_parameters(sql, merged)


documented(_sql)
_with_options_of_connection()
app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
app.command("sql", epilog=connection.EPILOG)(sql)


_NULL = "NULL"
_JOIN_S = 0.1
# DuckDB looks for an interrupt between pieces of work, and some take very long.
_INTERRUPT_S = 2.0


def _run(
    ctx: typer.Context,
    query: str,
    output_format: str,
    to: Path | None,
    tables: Path | None,
    *,
    rows_max: int,
    explain: bool,
    save: str,
) -> None:
    """Run `query` and write its rows as table, json, csv or parquet; then apply the spec of its journals as `save`.

    Raises: as `connect`, `LocalSql.execute` and `SavedSpec`. ValidationError: the output makes no sense.
    """
    from gazette_platform.lake.engines.duckdb import connect  # noqa: PLC0415  an extra, and slow
    from gazette_platform.lake.settings import LakeSettings  # noqa: PLC0415  slow to import

    if output_format == "parquet" and to is None:
        raise ValidationError("give the file to write: -o parquet needs one", path="--to")
    if to is not None and output_format == "table":
        raise ValidationError("goes with -o json, csv or parquet", path="--to")
    settings = LakeSettings.from_environment(os.environ)
    config = ctx.find_object(connection.Connection).client  # type: ignore[union-attr]
    config = replace(config, file_root=config.file_root or settings.file_root)
    text = sys.stdin.read() if query == "-" else query
    saved = _saved_spec(save, settings, tables) if save else None
    specs: Path | tuple[()] | None = tables
    if tables is not None and not tables.is_dir():
        note(f"note: there is no folder {tables} of table specs")
        specs = ()  # journals can be read without
    with Client(config) as client, connect(specs, client=client, settings=settings) as sql:
        for error in sql.refused.values():
            note(f"note: no table of this spec: {error}")

        def ask(hide: Callable[[], None]) -> None:
            result = sql.execute(text)
            if saved is not None:
                saved.take(sql)
            _write(result, output_format, to, rows_max, hide=hide)

        with _progress(sql) as hide:
            _in_thread(sql, lambda: ask(hide))
        _tell_inferred(sql, explain=explain or saved is not None)
        _tell(sql, explain=explain)
        _tell_typed(sql, explain=explain)
        if saved is not None:
            saved.apply(client)


def _saved_spec(name: str, settings: LakeSettings, tables: Path | None) -> SavedSpec:
    from gazette_platform.cli.gazctl.lake.create import SavedSpec  # noqa: PLC0415  slow to import

    return SavedSpec(name, settings, tables)


def _in_thread(sql: LocalSql, work: Callable[[], None]) -> None:
    """Do `work` in a thread, so that an interrupt is heard: DuckDB may compute for minutes.

    Raises: what `work` raises. KeyboardInterrupt: once it has ended; it is not waited for long.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as err:  # noqa: BLE001  raised below
            errors.append(err)

    thread = threading.Thread(target=run, name="gazctl-sql", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_JOIN_S)
    except KeyboardInterrupt:
        sql.interrupt()
        thread.join(_INTERRUPT_S)
        if thread.is_alive():
            print("gazctl: error: interrupted", file=sys.stderr, flush=True)
            os._exit(EXIT_INTERRUPTED)
        raise
    if errors:
        raise errors[0]


def _nothing() -> None:
    return


def _write(
    result: QueryResult,
    output_format: str,
    to: Path | None,
    rows_max: int,
    *,
    hide: Callable[[], None] = _nothing,
) -> None:
    """Write the rows; `hide` is called before the first one goes to a terminal."""
    if output_format in {"json", "parquet"}:
        _require_distinct(result.columns, output_format)
    match output_format:
        case "table":
            _table(result, rows_max, hide)
        case "json":
            _to(to, lambda out: _json(result, out), hide)
        case "csv":
            _to(to, lambda out: _csv(result, out), hide)
        case _:
            assert to is not None  # checked before the query ran
            _parquet(result, to)


def _require_distinct(columns: list[str], output_format: str) -> None:
    """Refuse what would lose a column in silence, such as those of a join that have one name."""
    for index, name in enumerate(columns):
        if name in columns[:index]:
            raise ValidationError(
                f"two columns of the query are called {name!r}, which {output_format}cannot keep "
                "apart: name one otherwise (AS), or use -o csv"
            )


def _table(result: QueryResult, rows_max: int, hide: Callable[[], None]) -> None:
    if not result.columns:
        return
    rows = list(islice(result, rows_max + 1))
    hide()
    print_table(result.columns, [[_cell(value) for value in row] for row in rows[:rows_max]])
    if len(rows) > rows_max:
        note(f"the first {rows_max} rows; --rows shows more, and -o json, csv or parquet give all")


def _cell(value: object) -> str:
    match value:
        case None:
            return _NULL
        case bool():
            return str(value).lower()
        case list() | dict():
            return _json_of(value)
        case _:
            return str(value)


def _json_of(value: object) -> str:
    """JSON of a value of SQL, whatever its keys are, and however large its numbers."""
    option = orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default=_plain, option=option).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_encodable(value), default=_plain, option=option).decode()


def _encodable(value: object) -> object:
    """The value with keys that are texts, and as texts the integers beyond 64 bits, as sums may be."""
    match value:
        case dict():
            return {_cell(key): _encodable(each) for key, each in value.items()}
        case list() | tuple():
            return [_encodable(each) for each in value]
        case int() if not -(1 << 63) <= value < 1 << 64:
            return str(value)
        case _:
            return value


def _plain(value: object) -> object:
    """What JSON has for a value of SQL: decimals as texts, which lose no digit."""
    match value:
        case Decimal() | date():
            return str(value)
        case bytes():
            return value.hex()
        case _:
            return str(value)


def _to(to: Path | None, write: Callable[[TextIO], int], hide: Callable[[], None]) -> None:
    """Have `write` write, and say how many rows a file got."""
    if to is None:
        if sys.stdout.isatty():
            hide()
        with writing("stdout"):
            write(sys.stdout)
            sys.stdout.flush()
        return
    with _replaced(to) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
        rows = write(out)
    _note_written(rows, to)


def _note_written(rows: int, to: Path) -> None:
    note(f"wrote {counted(rows, 'row')} to {to}")


@contextmanager
def _replaced(to: Path) -> Iterator[Path]:
    """A file beside `to`, which takes its place when all is well: no half a file is left."""
    temporary = to.with_name(f".{to.name}.{os.getpid()}.temp")
    try:
        with writing(str(to)):
            yield temporary
            temporary.replace(to)
    finally:
        temporary.unlink(missing_ok=True)


def _json(result: QueryResult, out: TextIO) -> int:
    columns, count = result.columns, 0
    for count, row in enumerate(result, 1):  # noqa: B007  the last one shows how many
        out.write(_json_of(dict(zip(columns, row, strict=True))) + "\n")
    return count


def _csv(result: QueryResult, out: TextIO) -> int:
    rows, count = csv.writer(out, lineterminator="\n"), 0
    rows.writerow(result.columns)
    for count, row in enumerate(result, 1):  # noqa: B007  as above
        rows.writerow(["" if value is None else _cell(value) for value in row])
    return count


def _parquet(result: QueryResult, to: Path) -> None:
    parquet: Any = required("pyarrow.parquet", extra="sql", by="Parquet files")
    rows = 0
    with _replaced(to) as temporary:
        reader = result.reader()
        with parquet.ParquetWriter(str(temporary), reader.schema, compression="zstd") as writer:
            for batch in result.batches_of(reader):
                writer.write_batch(batch)
                rows += batch.num_rows
    _note_written(rows, to)


@contextmanager
def _progress(sql: LocalSql) -> Iterator[Callable[[], None]]:
    """Show on a terminal how much of what has to be read was read. Yields: what hides it."""
    if not sys.stderr.isatty():
        yield _nothing
        return
    from gazette_platform.cli.bars import transfer_bar  # noqa: PLC0415  slow to import

    with transfer_bar("reading", is_shown=True) as bar:
        task = bar.add_task("", total=None)

        def show() -> None:
            scans = [scan for each in sql.scans().values() for scan in each]
            done = sum(scan.bytes_stored + scan.bytes_served for scan in scans)
            bar.update(task, completed=done, total=sum(scan.bytes_planned for scan in scans))

        sql.on_progress = show
        yield bar.stop
        sql.on_progress = None


def _tell_inferred(sql: LocalSql, *, explain: bool) -> None:
    """Say what tables without a spec were taken for: in full if explained, else what may surprise."""
    for name, table in sql.inferred().items():
        found = table.inference
        if explain:
            from gazette_platform.cli.gazctl.lake.create import report  # noqa: PLC0415  slow to import

            report(found, table.samples, table.journals, called=name)
            continue
        if name not in sql.scans():  # it was described
            note(
                f"{name}: {found.spec.format.upper()}, {counted(found.records, 'record')} of "
                f"{counted(table.journals_read, 'journal')} read"
            )
        for remark in found.remarks:
            note(f"{name}: {remark}")
        if not table.is_read_whole:
            note(
                f"{name}: columns were inferred from a part of the content; a value that does not fit its column's "
                "type is NULL (--explain shows what was read, and `gazctl lake infer` reads more)"
            )


def _tell(sql: LocalSql, *, explain: bool) -> None:
    """Say what is missing; and what was read, if asked for."""
    for name, scans in sql.scans().items():
        snapshot = sql.snapshot(name)
        if len(snapshot.layouts) > 1:
            note(
                f"{name}: its files lie in {len(snapshot.layouts)} ways ({', '.join(snapshot.layouts[:3])}), "
                "so partition columns that a path lacks are NULL; the platform's table takes but one of "
                "them (select fewer journals, or make two tables)"
            )
        for journal in snapshot.journals:
            for begin, end in journal.aside:
                note(
                    f"{name}: bytes [{begin}, {end}) of {journal.name} are aside "
                    f"(`gazctl lake set-aside {name} --list` says why)"
                )
            for begin, end in journal.gaps:
                note(
                    f"{name}: no broker or store holds bytes [{begin}, {end}) of {journal.name} now"
                )
        missing = sum(scan.bytes_missing for scan in scans)
        if missing:
            note(f"{name}: {missing} bytes were not there any more when they were read")
        if not explain:
            continue
        at = snapshot.taken_at.astimezone(UTC)
        note(f"{name} as of {_instant(at)}:")
        for journal in snapshot.journals:
            note(
                f"  {journal.name}: [{journal.begin}, {journal.stored_end}) in "
                f"{counted(journal.fragments, 'fragment')}, live to {journal.head}"
            )
        for scan in scans:
            note(
                f"  scan: {scan.extents} of {scan.extents_planned} parts, "
                f"{counted(scan.fragments_opened, 'fragment')} fetched, {scan.bytes_stored} bytes "
                f"from stores, {scan.bytes_served} through brokers"
            )


def _tell_typed(sql: LocalSql, *, explain: bool) -> None:
    """The same of typed tables."""
    for name, seam in sql.seams().items():
        for hole in seam.holes:
            from gazette_platform.cli.gazctl.lake.context import hole_text  # noqa: PLC0415  slow to import

            note(f"{name}: {hole_text(name, hole)}")
        if seam.quarantined:
            note(
                f"{name}: {counted(seam.quarantined, 'record')} that no run has read yet will be no "
                f"{'row' if seam.quarantined == 1 else 'rows'}, but quarantined"
            )
        if not explain:
            continue
        at = "no snapshot yet" if seam.snapshot_id is None else f"snapshot {seam.snapshot_id}"
        note(f"{name} as of {_instant(seam.taken_at.astimezone(UTC))}: {at}")
        for journal in seam.journals:
            note(f"  {journal.journal}: rows up to {journal.offset}, live to {journal.head}")
        note(f"  scan: {counted(seam.files, 'file')} of the table opened")


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
