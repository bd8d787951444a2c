"""Rows of a query, and which statements give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

from gazette_platform.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
