"""`gazctl sql`: its options; the work is in `sql_run`, which imports what is slow."""

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gazette_platform.cli.commands import documented
from gazette_platform.cli.gazctl import connection

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
    from gazette_platform.cli.gazctl.sql_run import run  # noqa: PLC0415  slow to import

    run(ctx, query, output_format, to, tables, rows_max=rows, explain=explain, save=save)


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
    sql.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    sql.__annotations__ = {p.name: p.annotation for p in merged}
    sql.__doc__ = _sql.__doc__


documented(_sql)
_with_options_of_connection()
app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
app.command("sql", epilog=connection.EPILOG)(sql)
