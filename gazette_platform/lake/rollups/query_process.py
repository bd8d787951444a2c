"""What needs SQL's parser, in a process of its own, which ends if it takes too long, or too much memory.

A parser that tries alternatives takes twice as long for each level of some functions within each other, so
no limit of the text's size that lets through what people write would bound it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.rollups.statements import Dialect

__all__ = ["Query", "QueryFaults", "column_lineage_apart", "query_faults_apart"]

# It takes one or two, most of which is imports, and more where much else runs.
_TIMEOUT_S: Final = 30.0
# Of addresses. Libraries that are only mapped count, too.
_MEMORY_BYTES_MAX: Final = 4 << 30
_REFUSED: Final = 3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query to check."""

    name: str
    """Of the table that it makes."""
    sql: str
    dialect: Dialect
    sources: Mapping[str, str]
    """Tables by alias."""
    slices: Sequence[str] = ()
    """Columns that it has to give."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFaults:
    """What is wrong with a query, and the columns that it gives."""

    syntax: str = ""
    """Why it cannot be parsed. The engine may still take it."""
    names: tuple[str, ...] = ()
    """Tables and columns that it names, or has to give, and that do not exist."""
    columns: tuple[str, ...] | None = None
    """Names of all columns that it gives, in lower case; None: not known."""


def column_lineage_apart(
    sql: str,
    dialect: Dialect,
    sources: Mapping[str, Sequence[str]],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, list[tuple[str, str]]]:
    """Find the origins of a query's columns; see `lineage.column_lineage`.

    Raises: LakeError: as there, or it took longer than `timeout_s`, or the process failed.
    """
    asked = [sql, dialect, {alias: list(names) for alias, names in sources.items()}]
    found: dict[str, list[list[str]]] = _ask("lineage", asked, timeout_s)
    return {name: [(alias, column) for alias, column in of] for name, of in found.items()}


def query_faults_apart(
    queries: Sequence[Query],
    columns: Mapping[str, Sequence[str] | None],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, QueryFaults]:
    """Check queries, each of which may read the tables that those before it make.

    Args:
        queries: what to check, in one process. If that takes too long, each has its own.
        columns: by table; None, or a table that is missing: they are not known.
        timeout_s: for all of them, and then for each.

    Returns: what is wrong with each, by name; without those that take too long by themselves.
    """
    if not queries:
        return {}
    asked = [[asdict(query) for query in queries], {t: c and list(c) for t, c in columns.items()}]
    try:
        found: dict[str, dict[str, Any]] = _ask("faults", asked, timeout_s)
    except LakeError:
        if len(queries) == 1:
            return {}
        each = (query_faults_apart([query], columns, timeout_s=timeout_s) for query in queries)
        return {name: faults for part in each for name, faults in part.items()}
    return {
        name: QueryFaults(
            syntax=told["syntax"],
            names=tuple(told["names"]),
            columns=None if told["columns"] is None else tuple(told["columns"]),
        )
        for name, told in found.items()
    }


def _ask(task: str, asked: list[Any], timeout_s: float) -> Any:
    """Have another process do a task, and return its answer."""
    # Without the working directory among the places that modules are looked for in.
    command = [sys.executable, "-P", "-m", __name__, task]
    try:
        ended = subprocess.run(  # noqa: S603  ourselves
            command,
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise LakeError(f"the query was not followed within {timeout_s:g} s") from err
    if ended.returncode:
        told = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        why = told[0] if ended.returncode == _REFUSED else f"the process failed: {told[0]}"
        raise LakeError(why)
    return json.loads(ended.stdout)


def _faults(
    queries: list[dict[str, Any]], columns: dict[str, list[str] | None]
) -> dict[str, dict[str, Any]]:
    """Check queries in order; what one gives is known to those after it."""
    # Slow to import, and the process that asks has no need of it.
    from gazette_platform.lake.rollups.query_faults import query_faults  # noqa: PLC0415

    known: dict[str, Sequence[str] | None] = dict(columns)
    found: dict[str, dict[str, Any]] = {}
    for query in queries:
        sources = {alias: known.get(table) for alias, table in query["sources"].items()}
        faults = query_faults(query["sql"], query["dialect"], sources, query["slices"])
        known[query["name"]] = faults.columns
        found[query["name"]] = asdict(faults)
    return found


def _main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    from gazette_platform.lake.rollups.lineage import column_lineage  # noqa: PLC0415  as above

    task = {"lineage": column_lineage, "faults": _faults}[sys.argv[1]]
    try:
        found = task(*json.loads(sys.stdin.read()))
    except LakeError as err:
        sys.stderr.write(f"{err}\n")
        return _REFUSED
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
