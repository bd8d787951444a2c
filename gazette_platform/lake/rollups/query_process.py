"""What needs SQL's parser, in a process of its own, which ends if it takes too long, or too much memory.

A parser that tries alternatives takes twice as long for each level of some functions within each other, so
no limit of the text's size that lets through what people write would bound it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups.spec import QueryFaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gazette_platform.lake.rollups.spec import Dialect, Query

# It takes one or two, mostly for imports, and more on a busy machine.
_TIMEOUT_S: Final = 30.0
# Of a check of all queries: two processes have to end within a tick of a sensor, which has 60 s.
_CHECK_TIMEOUT_S: Final = 20.0
_PROCESSES_MAX: Final = 2
# Of addresses. Libraries that are only mapped count, too.
_MEMORY_BYTES_MAX: Final = 4 << 30
_REFUSED: Final = 3


def column_lineage_apart(
    sql: str,
    dialect: Dialect,
    sources: Mapping[str, Sequence[str]],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, list[tuple[str, str]]]:
    """Find the origins of a query's columns; see `query_analysis.column_lineage`.

    Raises: LakeError: as there, or it took longer than `timeout_s`, or the process failed.
    """
    asked = [sql, dialect, {alias: list(names) for alias, names in sources.items()}]
    found: dict[str, list[list[str]]] = json.loads(_ask("lineage", asked, timeout_s))
    return {name: [(alias, column) for alias, column in of] for name, of in found.items()}


def query_faults_apart(
    queries: Sequence[Query],
    columns: Mapping[str, Sequence[str] | None],
    *,
    timeout_s: float = _CHECK_TIMEOUT_S,
) -> dict[str, QueryFaults]:
    """Check queries in order: each may read the tables that earlier ones make.

    Args:
        queries: what to check.
        columns: by table; None, or a table that is missing: they are not known.
        timeout_s: for all of them in one process. The query that does not end is left out then, and another process
            has as long for those after it, once.

    Returns: what is wrong with each, by name; without those that were left out.
    """
    left, known = list(queries), {table: of and list(of) for table, of in columns.items()}
    checked: dict[str, QueryFaults] = {}
    for _ in range(_PROCESSES_MAX):
        if not left:
            break
        try:
            out = _ask("faults", [[asdict(query) for query in left], known], timeout_s)
        except _Ended as err:
            out = err.out
        lines = [json.loads(line) for line in out.splitlines() if line.endswith("]")]
        found = {name: _read(faults) for name, faults in lines}
        checked |= found
        known |= {name: faults.columns and list(faults.columns) for name, faults in found.items()}
        left = left[len(found) + 1 :]
    return checked


def _read(raw: Mapping[str, Any]) -> QueryFaults:
    columns = raw["columns"]
    return QueryFaults(
        syntax=raw["syntax"],
        names=tuple(raw["names"]),
        columns=None if columns is None else tuple(columns),
    )


class _Ended(LakeError):
    """The process ended before its time, or was ended."""

    out: str = ""
    """What it had written by then."""


def _ask(task: str, asked: list[Any], timeout_s: float) -> str:
    """Have another process do a task, and return what it writes."""
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
        late = _Ended(f"the query was not followed within {timeout_s:g} s")
        late.out = (err.stdout or b"").decode("utf-8", "replace")  # bytes, whatever was asked for
        raise late from err
    if ended.returncode:
        told = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        why = told[0] if ended.returncode == _REFUSED else f"the process failed: {told[0]}"
        failed = _Ended(why)
        failed.out = ended.stdout
        raise failed
    return ended.stdout


def _lineage(sql: str, dialect: Dialect, sources: dict[str, list[str]]) -> None:
    # Slow to import, and the process that asks has no need of it.
    from gazette_platform.lake.rollups.query_analysis import column_lineage  # noqa: PLC0415

    sys.stdout.write(json.dumps(column_lineage(sql, dialect, sources)))


def _faults(queries: list[dict[str, Any]], columns: dict[str, list[str] | None]) -> None:
    """Check queries in order; what one gives is known to those after it. Each gets a line."""
    from gazette_platform.lake.rollups.query_analysis import query_faults  # noqa: PLC0415  as above

    known: dict[str, Sequence[str] | None] = dict(columns)
    for query in queries:
        sources = {alias: known.get(table) for alias, table in query["sources"].items()}
        faults = query_faults(query["sql"], query["dialect"], sources, query["slices"])
        known[query["name"]] = faults.columns
        sys.stdout.write(f"{json.dumps([query['name'], asdict(faults)])}\n")
        sys.stdout.flush()


def _main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    tasks: dict[str, Callable[..., None]] = {"lineage": _lineage, "faults": _faults}
    task = tasks[sys.argv[1]]
    try:
        task(*json.loads(sys.stdin.read()))
    except LakeError as err:
        sys.stderr.write(f"{err}\n")
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main())
