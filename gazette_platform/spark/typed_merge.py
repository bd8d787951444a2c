"""Upserts of typed tables, merged by Spark: one statement, whose result is staged."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.planning.last_rows import changes_of, is_later, last_of_each
from gazette_platform.lake.typed_spec.columns import spark_ddl
from gazette_platform.spark.interrupting import SPARKS, interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from gazette_platform.lake.schema import ColumnType
    from gazette_platform.lake.typed.tables.upserts import Merge

__all__ = ["SparkMerger"]

# So many rows are looked for by their values; of more only the smallest and the largest are given.
_FEW: Final = 500
_BYTES: Final = frozenset({"string", "binary"})
# Of a UUID Spark thinks as of a text, and engines have not always agreed on which is larger.
_UNTOLD: Final = frozenset({"uuid", "boolean"})

_STAGE: Final = "spark.wap.id"
_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."

_MERGE: Final = """
MERGE INTO {table} AS t
USING ({last}) AS s
ON {conditions}
{deleting}WHEN MATCHED AND {later}
  THEN UPDATE SET *
WHEN NOT MATCHED{living} THEN INSERT *
"""
_DELETING: Final = "WHEN MATCHED AND {later} AND {deletes} THEN DELETE\n"


# What is set is of the session, and so of all that it does meanwhile.
_turn = threading.Lock()


@final
class SparkMerger:
    """Merges by a session, classic or of Spark Connect. See `gazette_platform.lake.typed.tables.upserts.Merger`.

    Args:
        session: with the tables' catalog. No other code may write with it meanwhile: that would be staged, too.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def merge(self, merge: Merge) -> None:
        """See `Merger`. An interrupt ends what Spark does."""
        session = self._session
        table = ".".join(_quoted(name) for name in (merge.catalog, *merge.table.split(".")))
        settings = {f"{_PROPERTY}{name}": value for name, value in merge.properties.items()}
        # Values of keys are given as texts.
        settings |= {_STAGE: merge.attempt, "spark.sql.session.timeZone": "UTC"}

        def merged() -> None:
            # Catalogs may cache tables, and then know of no new snapshots.
            session.sql(f"REFRESH TABLE {table}")
            # What truncates the table is about keys that are nowhere in the run.
            truncates = _truncates(session, table, merge)
            near = [] if truncates else _near(session, table, merge)
            session.sql(_statement(table, merge, near, truncates=truncates)).collect()

        try:
            with _turn, _set(session, settings):
                interruptible(session, merged)
        except SPARKS as err:
            why = err.java_exception if isinstance(err, Py4JJavaError) else err
            told = str(why).partition("\n\nJVM stacktrace:")[0].partition("\n\tat ")[0]
            raise LakeError(
                f"Spark could not merge into {merge.table}, and nothing was published: {told}"
            ) from err


def _statement(table: str, merge: Merge, near: Sequence[str], *, truncates: bool) -> str:
    equal = [f"t.{_quoted(name)} = s.{_quoted(name)}" for name in merge.key]
    changes = merge.changes
    source, later = f"{table} VERSION AS OF {merge.upserts}", is_later(_quoted, changes)
    deleting = living = ""
    if changes is not None:
        deletes = changes.deletes(_quoted, "s.")
        deleting = _DELETING.format(later=later, deletes=deletes)
        living = f" AND NOT {deletes}"
        source = f"({_changes(table, source, merge, near, truncates=truncates)})"
    return _MERGE.format(
        table=table,
        last=last_of_each(source, list(merge.key), _quoted, changes),
        conditions=" AND ".join([*equal, *near]),
        later=later,
        deleting=deleting,
        living=living,
    )


def _changes(table: str, new: str, merge: Merge, near: Sequence[str], *, truncates: bool) -> str:
    """What is merged of a table of changes: also deletions of earlier runs, whose keys may be in this one."""
    assert merge.changes is not None
    deletes = ""
    if merge.deletes is not None:
        wanted = " AND ".join(near)
        if wanted:
            wanted = f" WHERE ({wanted}) OR {merge.changes.truncates(_quoted, 't.')}"
        deletes = f"(SELECT * FROM {table} VERSION AS OF {merge.deletes} AS t{wanted})"  # noqa: S608 (names of ours)
    return changes_of(
        merge.columns,
        list(merge.key),
        _quoted,
        merge.changes,
        new=new,
        deletes=deletes,
        target=table if truncates else "",
    )


def _truncates(session: SparkSession, table: str, merge: Merge) -> bool:
    """Whether a new message deletes all rows."""
    if merge.changes is None or not merge.changes.is_envelope:
        return False
    condition = merge.changes.truncates(_quoted)
    query = f"SELECT 1 FROM {table} VERSION AS OF {merge.upserts} WHERE {condition} LIMIT 1"  # noqa: S608 (names of ours)
    return bool(session.sql(query).collect())


def _near(session: SparkSession, table: str, merge: Merge) -> list[str]:
    """Conditions that each row of the table meets whose key is in the run.

    They follow from the keys' being equal. Spark does not see that, and would look at all files, and sort all keys.
    """
    told = {name: kind for name, kind in merge.key.items() if kind.name not in _UNTOLD}
    if not told:
        return []
    source = f"{table} VERSION AS OF {merge.upserts}"
    if merge.rows <= _FEW:
        texts = ", ".join(_text(_quoted(name), kind) for name, kind in told.items())
        rows = session.sql(f"SELECT DISTINCT {texts} FROM {source}").collect()  # noqa: S608 (names of ours)
        return [
            f"t.{_quoted(name)} IN ({', '.join(sorted({_literal(row[at], kind) for row in rows}))})"
            for at, (name, kind) in enumerate(told.items())
        ]
    texts = ", ".join(
        _text(f"{bound}({_quoted(name)})", kind)
        for name, kind in told.items()
        for bound in ("min", "max")
    )
    (row,) = session.sql(f"SELECT {texts} FROM {source}").collect()  # noqa: S608 (names of ours)
    return [
        f"t.{_quoted(name)} BETWEEN {_literal(row[2 * at], kind)} AND {_literal(row[2 * at + 1], kind)}"
        for at, (name, kind) in enumerate(told.items())
    ]


def _text(value: str, kind: ColumnType) -> str:
    """An expression whose value `_literal` writes as a literal."""
    return f"hex({value})" if kind.name in _BYTES else f"CAST({value} AS STRING)"


def _literal(text: str, kind: ColumnType) -> str:
    return f"CAST({'X' if kind.name in _BYTES else ''}'{text}' AS {spark_ddl(kind)})"


@contextmanager
def _set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            if was is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, was)


def _quoted(name: str) -> str:
    return f"`{name}`"
