"""Asks Trino, Spark and DuckDB for all tables, in one statement each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.engines.duckdb import connect
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.lake.spec.rules import EXACT_SUFFIX
from tests.benches.lake_servers import spark_session
from tests.lake_crash.oracle import Numbers
from tests.lake_crash.verdict import EXACT, RAW

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.lake_crash.world import World

__all__ = ["ENGINES", "Engine", "ask_duckdb", "ask_spark", "ask_trino"]

_Answer = dict[tuple[str, str, int, str], Numbers]

# Of one table; its rows by journal and hour.
_QUERY = """
SELECT '{table}', '{kind}', part, hour, count(*), count(DISTINCT id), CAST(sum(id) AS BIGINT)
FROM {source} GROUP BY part, hour
"""


def _statement(
    database: str, tables: Sequence[str], kinds: dict[str, str], catalog: str = ""
) -> str:
    return "UNION ALL".join(
        _QUERY.format(table=table, kind=kind, source=f"{catalog}{database}.{table}{suffix}")
        for table in tables
        for kind, suffix in kinds.items()
    )


def _answer(rows: Iterable[Sequence[Any]]) -> _Answer:
    return {
        (table, kind, int(part), str(hour)): Numbers(count, distinct, ids or 0)
        for table, kind, part, hour, count, distinct, ids in rows
    }


def ask_trino(world: World, database: str, tables: Sequence[str]) -> _Answer:
    """Tables and exact views, by Trino."""
    sql = _statement(database, tables, {RAW: "", EXACT: EXACT_SUFFIX}, "hive.")
    return _answer(TrinoSession(world.settings.trino, timeout_s=300).query(sql))


def ask_spark(world: World, database: str, tables: Sequence[str]) -> _Answer:
    """Tables and exact views, by Spark."""
    sql = _statement(database, tables, {RAW: "", EXACT: EXACT_SUFFIX})
    with spark_session(world.settings) as session:
        return _answer([tuple(row) for row in session.sql(sql).collect()])


def ask_duckdb(world: World, database: str, tables: Sequence[str]) -> _Answer:
    """Journals as tables, by DuckDB in this process. It reads each byte once, whatever overlaps."""
    folder = world.folder / "cases" / database
    specs = [
        parse_table_spec(Path(folder / table / "tables" / "table.yaml").read_text("utf-8"))
        for table in tables
    ]
    sql = _statement(database, tables, {RAW: ""})
    with connect(specs, client=world.client, settings=world.settings) as duckdb:
        found = _answer(duckdb.execute(sql).fetchall())
    return found | {(t, EXACT, part, hour): n for (t, _, part, hour), n in found.items()}


Engine = Callable[["World", str, "Sequence[str]"], _Answer]
"""Asked for the tables of a database."""

ENGINES: dict[str, Engine] = {
    "trino": ask_trino,
    "spark": ask_spark,
    "duckdb": ask_duckdb,
}
