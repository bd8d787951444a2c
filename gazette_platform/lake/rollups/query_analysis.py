"""What SQL's parser says of a rollup's query: names that do not exist, columns it gives, and their origins.

A column comes from all columns that its expression names, through subqueries, CTEs and functions that make rows. What only
decides which rows there are (joins, WHERE, GROUP BY) is not an origin. Uncertain origins and faults are left out, so that each
reported one is real.

Not by `sqlglot.lineage`, which guesses: EXCEPT has origins in both queries there, a column of `*` beside an unknown table is
certain, of two columns of one name the first one counts, and all arrays of one UNNEST are origins of each of its columns. It
also loses LATERAL subqueries, names in quotes, and Spark's columns that refer to an earlier one of the same SELECT.

This module is slow to import, and no bound holds a parser that tries alternatives at each level: use it through
`query_process`, which runs it in a process with limits of time and memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, build_scope, find_all_in_scope

from gazette_platform.errors import LakeError
from gazette_platform.lake.rollups.spec import QueryFaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gazette_platform.lake.rollups.spec import Dialect

    _Origins = frozenset[tuple[str, str]]

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


_CHARACTERS_MAX: Final = 100_000
_NOTHING: Final[_Origins] = frozenset()
# Their columns have names, or origins, that the text alone does not show.
_ODD: Final = (exp.Pivot, exp.MatchRecognize, exp.QueryTransform, exp.Command)
# Parts of an expression that bring values into it.
_PARTS: Final = (
    *(exp.Column, exp.Star, exp.TableColumn),
    *(exp.Window, exp.Select, exp.SetOperation),
)
# Spark's functions that make several columns, or one of a name of theirs, of one expression.
_GENERATORS: Final = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"}
    | {"stack", "json_tuple", "variant_explode", "variant_explode_outer"}
)


def column_lineage(
    sql: str, dialect: Dialect, sources: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[str, str]]]:
    """The origins of a query's columns.

    Args:
        sql: one query, which names its sources by their aliases.
        dialect: of the query.
        sources: columns by alias, as far as they are known.

    Returns: by lower-case name of each column whose origins are certain: these, as alias and column, in
        the spelling of `sources`, sorted; none, of a literal or a count of rows. Time may grow exponentially
        with the text.
    Raises: LakeError: the query is too long or too odd, or cannot be parsed.
    """
    if len(sql) > _CHARACTERS_MAX:
        raise LakeError(f"the query has more than {_CHARACTERS_MAX} characters")
    # Both engines take names for the same that differ in case only.
    aliases = _by_lower(sources)
    columns = {low: _by_lower(sources[alias]) for low, alias in aliases.items()}
    try:
        found = Tracer(query_scope(sql, dialect, columns), columns).of_query()
    except LakeError:
        raise
    # Text that it does not expect lets the parser fail in any way, by too deep a recursion, say.
    except Exception as err:
        told = " ".join(f"{type(err).__name__}: {err}".split())[:300]
        raise LakeError(f"the query cannot be followed: {told}") from err
    return {
        name: sorted((aliases[alias], columns[alias][column]) for alias, column in origins)
        for name, origins in found.items()
    }


def _by_lower(names: Iterable[str]) -> dict[str, str]:
    """Names by their lower case; without those that would be two of one."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.lower(), []).append(name)
    return {low: same[0] for low, same in found.items() if len(same) == 1}


def query_scope(sql: str, dialect: Dialect, columns: Mapping[str, Mapping[str, str]]) -> Scope:
    """The query with each column bound to its table, as far as that is known, and each star replaced."""
    statements = [s for s in sqlglot.parse(sql, read=dialect) if s is not None]
    if len(statements) != 1 or not isinstance(statements[0], (exp.Select, exp.SetOperation)):
        raise LakeError("the text is not one query")
    (tree,) = statements
    _refuse_odd(tree)
    qualified = qualify(
        tree,
        dialect=dialect,
        # A table without columns would be an error.
        schema={a: dict.fromkeys(known, "unknown") for a, known in columns.items() if known},
        # Copies of what aliases stand for could double with each; `Tracer` follows them.
        expand_alias_refs=False,
        # One unknown column does not make the others unknown.
        allow_partial_qualification=True,
        validate_qualify_columns=False,
        quote_identifiers=False,
    )
    scope = build_scope(qualified)
    if scope is None:
        raise LakeError("the text is not one query")
    return scope


def _refuse_odd(tree: exp.Expr) -> None:
    for node in tree.walk():
        is_recursive = isinstance(node, exp.With) and node.recursive
        is_elsewhere = isinstance(node, exp.Table) and bool(node.db)
        by_name = isinstance(node, exp.SetOperation) and bool(node.args.get("by_name"))
        if isinstance(node, _ODD) or is_recursive or is_elsewhere or by_name:
            raise LakeError(f"no origins are known through {node.key}")
        if isinstance(node, exp.Select) and any(map(_is_generator, node.expressions)):
            raise LakeError("a function that makes columns has no names for them")
        if isinstance(node, exp.Select) and _has_star_of_joined(node):
            raise LakeError("engines differ in what the star of one table is behind JOIN … USING")


def _has_star_of_joined(select: exp.Select) -> bool:
    joins = select.args.get("joins") or []
    is_joined = any(join.args.get("using") or join.method == "NATURAL" for join in joins)
    return is_joined and any(isinstance(e, exp.Column) and e.is_star for e in select.expressions)


def _is_generator(node: exp.Expr) -> bool:
    name = node.name if isinstance(node, exp.Anonymous) else ""
    if isinstance(node, exp.Func) and not name:
        name = node.sql_name()
    return name.lower() in _GENERATORS


@final
@dataclass(frozen=True, slots=True)
class _Outputs:
    """Columns of a query, in order."""

    columns: tuple[tuple[str, _Origins | None], ...]
    """Name and origins; None: not known."""
    is_complete: bool = True
    """Whether these are all, so that positions count."""

    def named(self, name: str) -> _Origins | None:
        """Origins of the one column of a name."""
        same = [origins for other, origins in self.columns if other == name]
        return same[0] if len(same) == 1 else None


@final
class Tracer:
    """Follows columns through the scopes of one query, each of them once."""

    def __init__(self, root: Scope, columns: Mapping[str, Mapping[str, str]]) -> None:
        self._root = root
        self._columns = columns
        self._known: dict[int, _Outputs] = {}

    def of_query(self) -> dict[str, _Origins]:
        """Origins by name, of columns whose origins are certain."""
        outputs = self.outputs(self._root)
        found = {name: outputs.named(name) for name, _ in outputs.columns if name}
        return {name: origins for name, origins in found.items() if origins is not None}

    def outputs(self, scope: Scope) -> _Outputs:
        """Return the columns that a query gives."""
        known = self._known.get(id(scope))
        if known is None:
            known = self._known[id(scope)] = self._new_outputs(scope)
        return known

    def _new_outputs(self, scope: Scope) -> _Outputs:
        expression = scope.expression
        if isinstance(expression, exp.Select):
            return self._of_select(scope, expression)
        if isinstance(expression, exp.SetOperation):
            return self._of_set(scope, expression)
        if isinstance(expression, (exp.Unnest, exp.Lateral, exp.Values)):
            return self._of_rows(scope, expression)
        return _Outputs((), is_complete=False)

    def _of_select(self, scope: Scope, select: exp.Select) -> _Outputs:
        found: list[tuple[str, _Origins | None]] = []
        is_complete = True
        earlier: dict[str, _Origins | None] = {}
        for node in select.expressions:
            if node.is_star:
                is_complete = False
                continue
            origins = self._of_expression(node, scope, earlier)
            is_several = isinstance(node, exp.Aliases)
            names = [n.name for n in node.aliases] if is_several else [node.alias_or_name]
            found += [(name, origins) for name in names]
            earlier |= {name: None if name in earlier else origins for name in names}
        return _Outputs(tuple(found), is_complete)

    def _of_set(self, scope: Scope, expression: exp.SetOperation) -> _Outputs:
        """Columns of the same place; of EXCEPT, whose rows are the first query's, its alone."""
        left, right = (self.outputs(one) for one in scope.set_operation_scopes)
        is_complete = left.is_complete and right.is_complete
        if not is_complete or len(left.columns) != len(right.columns):
            return _Outputs(tuple((name, None) for name, _ in left.columns), is_complete=False)
        if isinstance(expression, exp.Except):
            return left
        return _Outputs(
            tuple(
                (name, _joined([mine, other]))
                for (name, mine), (_, other) in zip(left.columns, right.columns, strict=True)
            )
        )

    def _of_rows(self, scope: Scope, node: exp.Unnest | exp.Lateral | exp.Values) -> _Outputs:
        """Columns of a function that makes rows, in FROM; only such as the query gives names."""
        names = list(node.alias_column_names)
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            within = [s for s in scope.subquery_scopes if s.expression is node.this.unnest()]
            inner = self.outputs(within[0]) if within else _Outputs((), is_complete=False)
            if not inner.is_complete or not names:
                return inner
            together = zip(names, (origins for _, origins in inner.columns), strict=True)
            return _Outputs(tuple(together))
        arguments = [node.this] if isinstance(node, exp.Lateral) else list(node.expressions)
        each = [self._of_expression(argument, scope, {}) for argument in arguments]
        every = _joined(each)
        # A map, or an array of rows, gives several columns; each gives one at least.
        if not isinstance(node, exp.Unnest) or len(each) != len(names):
            each = [every] * len(names)
        found = list(zip(names, each, strict=True))
        offset = node.args.get("offset")
        if isinstance(offset, exp.Expr):
            found.append((offset.name, every))
        return _Outputs(tuple(found), is_complete=bool(names))

    def _of_expression(
        self, node: exp.Expr, scope: Scope, earlier: Mapping[str, _Origins | None]
    ) -> _Origins | None:
        """Origins of all that an expression names."""
        queries = {id(one.expression): one for one in scope.subquery_scopes}
        found: list[_Origins | None] = []
        for part in find_all_in_scope(node, *_PARTS):
            if isinstance(part, exp.Column):
                found.append(self._of_column(part, scope, earlier))
            elif isinstance(part, exp.Star):
                found.append(_NOTHING if isinstance(part.parent, exp.Count) else None)
            elif isinstance(part, exp.Window):
                # One that WINDOW names is looked for in vain.
                found.append(None if part.args.get("alias") else _NOTHING)
            elif id(part) in queries:
                inner = self.outputs(queries[id(part)])
                found += [origins for _, origins in inner.columns]
                found += [] if inner.is_complete else [None]
            else:
                found.append(None)
        return _joined(found)

    def _of_column(
        self, column: exp.Column, scope: Scope, earlier: Mapping[str, _Origins | None]
    ) -> _Origins | None:
        if column.args.get("db") or isinstance(column.this, exp.Star):
            return None
        if not column.table:
            # Spark looks among the names before it in the same SELECT, after all tables.
            is_here = all(self._is_known(source) for _, source in scope.selected_sources.values())
            return earlier.get(column.name) if is_here else None
        at: Scope | None = scope
        while at is not None and column.table not in at.selected_sources:
            at = at.parent
        if at is None:
            return None
        _, source = at.selected_sources[column.table]
        if isinstance(source, Scope):
            outputs = self.outputs(source)
            return outputs.named(column.name) if outputs.is_complete else None
        if not self._is_known(source) or column.name not in self._columns[source.name]:
            return None
        return frozenset({(source.name, column.name)})

    def columns_of(self, source: exp.Expr | Scope) -> tuple[str, ...] | None:
        """Return all columns of what is selected from, in lower case; None: they are not known."""
        if isinstance(source, Scope):
            given = self.outputs(source)
            return tuple(n.lower() for n, _ in given.columns) if given.is_complete else None
        is_known = isinstance(source, exp.Table) and self._is_known(source)
        return tuple(self._columns[source.name]) if is_known else None

    def _is_known(self, source: exp.Table | Scope) -> bool:
        """Whether all columns of what is selected from are known, by these names."""
        if isinstance(source, Scope):
            return self.outputs(source).is_complete
        is_plain = isinstance(source.this, exp.Identifier) and not source.alias_column_names
        return is_plain and bool(self._columns.get(source.name))


def _joined(parts: Iterable[_Origins | None]) -> _Origins | None:
    """All origins of several; None if those of one are not known."""
    found: set[tuple[str, str]] = set()
    for part in parts:
        if part is None:
            return None
        found |= part
    return frozenset(found)
