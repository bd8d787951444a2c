"""A rollup's query to check, and what was found.

What is wrong with a rollup's query, found from its text alone.

Only certain faults are reported. A query part whose columns are unknown raises none, and neither does a
name that the query itself defines anywhere. One fault is not certain: the parser does not know all SQL of the
engines. A run of the same query settles it, see `query_check`.

This module is slow to import, and its parser is unbounded: use it through `query_process`.

What needs SQL's parser, in a process of its own, which ends if it takes too long, or too much memory.

A parser that tries alternatives takes twice as long for each level of some functions within each other, so
no limit of the text's size that lets through what people write would bound it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.optimizer.scope import Scope, find_all_in_scope

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups.lineage import Tracer, query_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.lake.rollups.engines import Dialect

__all__ = ["Query", "QueryFaults", "column_lineage_apart", "query_faults", "query_faults_apart"]


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


_SHOWN: Final = 12
# Words that engines take for a value, and the parser for a column.
_VALUES: Final = frozenset(
    {"all", "auto", "now", "user", "current_user", "session_user", "localtime", "localtimestamp"}
    | {"current_date", "current_time", "current_timestamp", "current_timezone"}
    | {"current_catalog", "current_schema", "current_database", "current_path", "current_role"}
)


def query_faults(
    sql: str,
    dialect: Dialect,
    sources: Mapping[str, Sequence[str] | None],
    slices: Sequence[str] = (),
) -> QueryFaults:
    """Check a query against the columns of its sources.

    Args:
        sql: the query, which names its sources by their aliases.
        dialect: of the query.
        sources: all columns by alias; None: they are not known.
        slices: columns that the query has to give.
    """
    try:
        statements = [s for s in sqlglot.parse(sql, read=dialect) if s is not None]
    except (ParseError, TokenError) as err:
        return QueryFaults(syntax=_syntax(err))
    except Exception:  # noqa: BLE001  the parser fails in any way, by too deep a recursion, say
        return QueryFaults()
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        return QueryFaults(syntax="is not one SELECT (or WITH … SELECT)")
    return _name_faults(statements[0], sql, dialect, sources, slices)


def _name_faults(
    tree: exp.Query,
    sql: str,
    dialect: Dialect,
    sources: Mapping[str, Sequence[str] | None],
    slices: Sequence[str],
) -> QueryFaults:
    """Check the names in a query that could be parsed."""
    names = list(_table_faults(tree, sources))
    columns = {
        alias.lower(): {name.lower(): name for name in of}
        for alias, of in sources.items()
        if of is not None
    }
    try:
        scope = query_scope(sql, dialect, columns)
        tracer = Tracer(scope, columns)
        if not names:
            names += _column_faults(scope, tracer, tree, columns)
        given = tracer.outputs(scope)
    except Exception:  # noqa: BLE001  as above; nothing is certain then
        return QueryFaults(names=tuple(names))
    # What an engine calls a column without a name differs.
    is_named = all(isinstance(e, (exp.Alias, exp.Column, exp.Star)) for e in tree.selects)
    if not given.is_complete or not is_named or names:
        return QueryFaults(names=tuple(dict.fromkeys(names)))
    found = tuple(name.lower() for name, _ in given.columns)
    names += [
        f"the query does not give `{column}`, a column of `slices`{_suggestion(column, found)}"
        for column in slices
        if column not in found
    ]
    return QueryFaults(names=tuple(names), columns=found)


def _syntax(err: ParseError | TokenError) -> str:
    """Say where the parser stopped, and why."""
    found = err.errors[0] if isinstance(err, ParseError) and err.errors else None
    if found is None:
        return "cannot be parsed: " + " ".join(str(err).split())[:300]
    near = " ".join(str(found.get("highlight") or "").split())
    at = f"at `{near}` in line {found.get('line')} of the query" if near else "at its end"
    return f"cannot be parsed {at}: {found.get('description')}"


def _table_faults(tree: exp.Expr, sources: Mapping[str, object]) -> Iterator[str]:
    """Name the tables that are neither sources nor defined in the query."""
    defined = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    defined |= {alias.lower() for alias in sources}
    seen: set[str] = set()
    for table in tree.find_all(exp.Table):
        name = table.name.lower()
        is_plain = isinstance(table.this, exp.Identifier) and not table.args.get("db")
        is_plain = is_plain and not isinstance(table.parent, exp.UserDefinedFunction)
        if is_plain and name not in defined and name not in seen:
            seen.add(name)
            yield (
                f"the query reads `{name}`, which is not one of its sources{_suggestion(name, sources)}; "
                f"they are {_listed(sources)}"
            )


def _column_faults(
    root: Scope, tracer: Tracer, tree: exp.Expr, columns: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Name the columns that no table of the query has."""
    defined = _defined(tree) | {name for known in columns.values() for name in known}
    for scope in root.traverse():
        for column in find_all_in_scope(scope.expression, exp.Column):
            if isinstance(column.this, exp.Star) or column.args.get("db"):
                continue
            fault = _column_fault(column, scope, tracer, defined)
            if fault:
                yield fault


def _column_fault(column: exp.Column, scope: Scope, tracer: Tracer, defined: set[str]) -> str:
    name, table = column.name.lower(), column.table.lower()
    scopes = list(_outwards(scope))
    if table:
        holder = next((s for s in scopes if column.table in s.selected_sources), None)
        if holder is not None:
            _, source = holder.selected_sources[column.table]
            has = tracer.columns_of(source)
            if has is None or name in has:
                return ""
            return (
                f"`{table}` has no column `{name}`{_suggestion(name, has)}; it has {_listed(has)}"
            )
        if table in defined or not _is_all_known(scopes, tracer):
            return ""
        return f"the query reads `{table}.{name}`, and no table of that name{_suggestion(table, defined)}"
    if name in defined or name in _VALUES or not _is_all_known(scopes, tracer):
        return ""
    has = tuple(
        dict.fromkeys(
            one
            for each in scopes
            for _, source in each.selected_sources.values()
            for one in tracer.columns_of(source) or ()
        )
    )
    return f"no source has a column `{name}`{_suggestion(name, has)}; there are {_listed(has)}"


def _outwards(scope: Scope) -> Iterator[Scope]:
    at: Scope | None = scope
    while at is not None:
        yield at
        at = at.parent


def _is_all_known(scopes: Iterable[Scope], tracer: Tracer) -> bool:
    """Whether all columns that a name could be of are known."""
    return all(
        tracer.columns_of(source) is not None
        for scope in scopes
        for _, source in scope.selected_sources.values()
    )


def _defined(tree: exp.Expr) -> set[str]:
    """Return all names that the query itself defines, anywhere: aliases, parameters, variables."""
    names = {one.alias.lower() for one in tree.find_all(exp.Alias, exp.CTE, exp.Subquery)}
    for alias in tree.find_all(exp.TableAlias):
        names |= {alias.name.lower(), *(one.name.lower() for one in alias.columns)}
    names |= {one.name.lower() for each in tree.find_all(exp.Aliases) for one in each.aliases}
    names |= {one.name.lower() for one in tree.find_all(exp.ColumnDef)}
    for made in tree.find_all(exp.Lambda):
        names |= {one.name.lower() for one in made.expressions}
    return names - {""}


def _suggestion(name: str, names: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(names), n=1, cutoff=0.7)
    return f" (did you mean `{close[0]}`?)" if close else ""


def _listed(names: Iterable[str]) -> str:
    ordered = list(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in ordered[:_SHOWN]) + more


# It takes one or two, most of which is imports, and more where much else runs.
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
    """Find the origins of a query's columns; see `lineage.column_lineage`.

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
    """Check queries, each of which may read the tables that those before it make.

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
    from gazette_platform.lake.rollups.lineage import column_lineage  # noqa: PLC0415

    sys.stdout.write(json.dumps(column_lineage(sql, dialect, sources)))


def _faults(queries: list[dict[str, Any]], columns: dict[str, list[str] | None]) -> None:
    """Check queries in order; what one gives is known to those after it. Each gets a line."""
    from gazette_platform.lake.rollups.query_process import query_faults  # noqa: PLC0415  as above

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
