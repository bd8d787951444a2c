"""Upserts of typed tables, merged by Spark: one statement, whose result is staged."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.planning.last_rows import is_later, last_of_each
from gazette_platform.lake.typed_spec.columns import spark_ddl
from gazette_platform.spark.interrupting import SPARKS, interruptible

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from gazette_platform.lake.schema import ColumnType
    from gazette_platform.lake.typed.tables.upserts import Merge

__all__ = ["SparkMerger"]

# So many rows are looked for by their values; of more only the smallest and the largest are told.
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
WHEN MATCHED AND {later}
  THEN UPDATE SET *
WHEN NOT MATCHED THEN INSERT *
"""


# What is set is of the session, and so of all that it does meanwhile.
_turn = threading.Lock()


@final
class SparkMerger:
    """Merges by a session, classic or of Spark Connect. See `gazette_platform.lake.typed.tables.upserts.Merger`.

    Args:
        session: with the tables' catalog. Nobody else may write by it meanwhile: that would be staged, too.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def merge(self, merge: Merge) -> None:
        """See `Merger`. An interrupt ends what Spark does."""
        session = self._session
        table = ".".join(_quoted(name) for name in (merge.catalog, *merge.table.split(".")))
        settings = {f"{_PROPERTY}{name}": value for name, value in merge.properties.items()}
        # Values of keys are told as texts.
        settings |= {_STAGE: merge.attempt, "spark.sql.session.timeZone": "UTC"}

        def merged() -> None:
            # Catalogs may cache tables, and then know of no new snapshots.
            session.sql(f"REFRESH TABLE {table}")
            near = _near(session, table, merge)
            session.sql(_statement(table, merge, near)).collect()

        try:
            with _turn, _set(session, settings):
                interruptible(session, merged)
        except SPARKS as err:
            why = err.java_exception if isinstance(err, Py4JJavaError) else err
            told = str(why).partition("\n\nJVM stacktrace:")[0].partition("\n\tat ")[0]
            raise LakeError(
                f"Spark could not merge into {merge.table}, and nothing was published: {told}"
            ) from err


def _statement(table: str, merge: Merge, near: Sequence[str]) -> str:
    equal = [f"t.{_quoted(name)} = s.{_quoted(name)}" for name in merge.key]
    return _MERGE.format(
        table=table,
        last=last_of_each(f"{table} VERSION AS OF {merge.upserts}", list(merge.key), _quoted),
        conditions=" AND ".join([*equal, *near]),
        later=is_later(_quoted),
    )


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
