"""What is wrong with a rollup's query, found from its text alone.

Only certain faults are reported. A query part whose columns are unknown raises none, and neither does a
name that the query itself defines anywhere. One fault is not certain: the parser does not know all SQL of the
engines. A run of the same query settles it, see `query_check`.

This module is slow to import, and its parser is unbounded: use it through `query_process`.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.optimizer.scope import Scope, find_all_in_scope

from gazette_platform.lake.rollups.lineage import Tracer, query_scope
from gazette_platform.lake.rollups.queries import QueryFaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gazette_platform.lake.rollups.engines import Dialect

_SHOWN: Final = 12
# Words that engines take for a value, and the parser for a column.
_VALUES: Final = frozenset(
    {"all", "auto", "now", "user", "current_user", "session_user", "localtime", "localtimestamp"}
    | {"current_date", "current_time", "current_timestamp", "current_timezone"}
    | {"current_catalog", "current_schema", "current_database", "current_path", "current_role"}
)
# Columns that no list has: Trino's and Spark's of each file, and those that Spark's functions and VALUES name.
_HIDDEN: Final = re.compile(
    r"\$.*|_metadata|_file|_pos|_spec_id|_partition|_deleted|(session_)?window|spark_grouping_id|col\d+"
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
            if isinstance(column.this, exp.Star) or column.args.get("db") or _is_hidden(column):
                continue
            fault = _column_fault(column, scope, tracer, defined)
            if fault:
                yield fault


def _is_hidden(column: exp.Column) -> bool:
    return any(_HIDDEN.fullmatch(name.lower()) for name in (column.name, column.table))


def _column_fault(column: exp.Column, scope: Scope, tracer: Tracer, defined: set[str]) -> str:
    name, table = column.name.lower(), column.table.lower()
    scopes = list(_outwards(scope))
    if table:
        source = next((of[column.table] for s in scopes if column.table in (of := _read(s))), None)
        if source is not None:
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
            for source in _read(each).values()
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
        for source in _read(scope).values()
    )


def _read(scope: Scope) -> dict[str, exp.Expr | Scope]:
    """Return what a query part selects from, by alias. `selected_sources` lacks the right side of SEMI and ANTI joins."""
    return {name: scope.sources[name] for name, _ in scope.references if name in scope.sources}


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
