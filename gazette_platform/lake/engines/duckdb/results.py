"""Rows of a query, which statements give them, and errors of DuckDB in one line with the next step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import duckdb
    import pyarrow as pa  # type: ignore[import-untyped]

T = TypeVar("T")

_BATCH_ROWS: Final = 65536
# Types of statements that return rows. Others report how many they changed.
_ANSWERS: Final = frozenset({"SELECT", "EXPLAIN", "CALL", "EXECUTE"})


class Failing(Protocol):
    """Finds the cause of an error that DuckDB raised."""

    def told(self, error: Exception) -> BaseException:
        """Return the error to raise instead."""
        ...


@final
class QueryResult:
    """Rows of a query, once. Of a statement without rows it is empty. The next query ends it.

    All methods raise as `LocalSql.execute`: content is read as rows are taken.
    """

    def __init__(self, owner: Failing, result: duckdb.DuckDBPyConnection) -> None:
        self._owner = owner
        self._result = result

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [column[0] for column in self._result.description or ()]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self._run(self._result.fetchall)

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None at the end."""
        return self._run(self._result.fetchone)

    def arrow(self) -> pa.Table:
        """All rows that are left, as an Arrow table: for pandas, polars and others."""
        return self._run(self._result.to_arrow_table)

    def batches(self, rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Rows as Arrow record batches of at most about `rows` rows, as they come."""
        return self.batches_of(self.reader(rows))

    def reader(self, rows: int = _BATCH_ROWS) -> pa.RecordBatchReader:
        """The batches, as a reader. What fails is an error of Arrow: `batches_of` raises ours."""
        return self._run(lambda: self._result.to_arrow_reader(rows))

    def batches_of(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """What is left of a `reader`."""
        while True:
            try:
                batch = self._run(reader.read_next_batch)
            except StopIteration:
                return
            yield batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def _run(self, take: Callable[[], T]) -> T:
        import duckdb  # noqa: PLC0415

        try:
            return take()
        except duckdb.Error as err:
            raise self._owner.told(err) from err
        except OSError as err:  # as Arrow calls what a stream fails with
            raise self._owner.told(err) from err


def require_one_answer(statements: Sequence[duckdb.Statement]) -> None:
    """Refuse a query that gives nothing, or rows that would not be shown.

    Raises: ValidationError: with what to do instead.
    """
    if not statements:
        raise ValidationError(
            "is empty: it takes a statement of SQL, such as SHOW TABLES", path="query"
        )
    for number, statement in enumerate(statements[:-1], 1):
        if statement.type.name in _ANSWERS:
            raise ValidationError(
                f"has {len(statements)} statements; only the last one's rows are shown, and "
                f"statement {number} gives rows, too: run each by itself, or join them by UNION ALL",
                path="query",
            )


_MISSING: Final = (
    re.compile(r'Table with name "?(?P<name>[^\s"]+)"? does not exist'),
    # It looks for variables of the calling function, too.
    re.compile(r'Python Object "(?P<name>[^"]+)" of type .* not suitable for replacement scans'),
)
_NEAR: Final = re.compile(r'syntax error at or near "(?P<word>[^"]*)"')
_NO_TABLE: Final = re.compile(
    r"is not an table|is of type View|Can only (?:update|delete from) base table|Can only modify view"
)
_NO_CATALOG: Final = re.compile(r'Catalog "[^"]*" does not exist')
_JOURNAL_AS_TABLE: Final = re.compile(r"(?i)\b(?:from|join)\s+([\w.=%+-]+(?:/[\w.=%+-]*)+)")
_JOURNAL_UNQUOTED: Final = re.compile(r"(?i)\bjournal\(\s*([^'\"\s)][^)]*?)\s*\)")
_OF_TEXT: Final = re.compile(
    r"^(?P<what>.*argument types '(?P<function>\w+)\(VARCHAR\)'\.) You might need"
)
_READ_ONLY: Final = (
    " (tables over journals are only read here: `gazctl journals append` adds records, and CREATE TABLE "
    "mine AS SELECT … makes a table of your own, for this query)"
)


def table_missing(error: str) -> str:
    """The table that DuckDB did not find, as the query calls it; empty if the error is another one.

    >>> table_missing('Catalog Error: Table with name "x.y" does not exist because schema "x" …')
    'x.y'
    """
    found = next(filter(None, (each.search(error) for each in _MISSING)), None)
    return found["name"] if found is not None else ""


def advised(error: str, query: str, names: Iterable[str]) -> str:
    """The error in one line.

    Args:
        error: of DuckDB: a line, lines with hints, an empty one, and the place in the query.
        query: that it is of.
        names: of tables, and of columns, which a query may have to quote.

    >>> advised('Parser Error: syntax error at or near "order"', "FROM order", ["order", "shop"])
    'Parser Error: syntax error at or near "order" (a name that is a word of SQL goes in double quotes: "order")'
    """
    text = " ".join(error.partition("\n\n")[0].split())
    if _NO_TABLE.search(text):
        return text.replace("is not an table", "is not a table of its own") + _READ_ONLY
    if _NO_CATALOG.search(text):
        return f"{text} (tables are called schema.table here, or just table, without a catalog)"
    if unquoted := _JOURNAL_UNQUOTED.search(query):
        return f"{text} (the name of a journal goes in quotes: journal('{unquoted[1]}'))"
    if found := _OF_TEXT.search(text):
        column = re.search(rf'(?i)\b{found["function"]}\(\s*([\w."]+)\s*\)', query)
        cast = f"TRY_CAST({column[1] if column else 'column'} AS DOUBLE)"
        return (
            f"{found['what']} The column is text: use {cast}. DESCRIBE shows the types of columns"
        )
    return text + _of_syntax(text, query, names)


def _of_syntax(text: str, query: str, names: Iterable[str]) -> str:
    """The next step after an error of syntax, in parentheses; empty if it is another error, or none is known."""
    near = _NEAR.search(text)
    if near is None:
        return ""
    if table := _JOURNAL_AS_TABLE.search(query):
        return f" (to read a journal without a table spec, write FROM journal('{table[1]}'))"
    if word := _unquoted(near["word"], query, names):
        return f' (a name that is a word of SQL goes in double quotes: "{word}")'
    return ""


def _unquoted(near: str, query: str, names: Iterable[str]) -> str:
    """The name that stands in a query without quotes where DuckDB stumbled; empty if none is."""
    known = {name.lower() for name in names}
    if near.lower() in known:
        return near.lower()
    # It stumbles behind a word, such as at the dot of `order.id`.
    behind = re.findall(rf'(?<![\w"])(\w+)\s*{re.escape(near)}', query) if near else []
    return next((word.lower() for word in behind if word.lower() in known), "")
