"""SQL that says which message of a key is the last, for engines that merge and for queries that see the tail as well. Pure.

Which of two messages is the later one: see `gazette_platform.lake.typed.tables.upserts`. Statements are of what Spark and DuckDB
have in common, except for quotes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_platform.lake.spec.typed.columns import DELETE, POSITION, SYSTEM_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.lake.spec.typed.columns import ChangeOrder

# No names of columns, which have letters, digits and `_` only.
_CLOCK, _OF_JOURNAL, _OF_KEY = "#clock", "#of journal", "#of key"

# 17 hex digits, which sort as clocks do: the upper 60 bits as they lie in the UUID, then two of two bits each, beside which there
# are the variant and flags.
_CLOCK_OF: Final = (
    "concat(substr({0}, 16, 3), substr({0}, 10, 4), substr({0}, 1, 8), "
    "translate(substr({0}, 20, 1), '0123456789abcdef', '0123012301230123'), "
    "translate(substr({0}, 21, 1), '0123456789abcdef', '0000111122223333'))"
)
_NO_UUID: Final = "00000000-0000-0000-0000-000000000000"

_LAST: Final = """
  SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {position}{clock} DESC, _journal DESC) AS {of_key}
    FROM (
      SELECT *, {clock_of_row} AS {clock},
        row_number() OVER (PARTITION BY {key}, _journal ORDER BY {position}_begin DESC) AS {of_journal}
      FROM {source}
    )
    WHERE {of_journal} = 1
  )
  WHERE {of_key} = 1
"""

_LATER: Final = """CASE{position}
    WHEN s._journal = t._journal THEN s._begin > t._begin
    WHEN s.{clock} = {clock_of_target} THEN s._journal > t._journal
    ELSE s.{clock} > {clock_of_target}
  END"""

_OTHER_POSITION: Final = "\n    WHEN s.{0} <> t.{0} THEN s.{0} > t.{0}"

# Deletions that were kept may have fewer columns than messages have by now.
_CHANGES: Final = "SELECT {columns} FROM {new} WHERE NOT {truncates}"
_KEPT_DELETES: Final = " UNION ALL SELECT {deletion} FROM {deletes} WHERE NOT {truncates}"
# What truncates the table deletes each key that it has, and those of new messages.
_TRUNCATED: Final = """
UNION ALL
SELECT {columns} FROM ({keys}) AS k CROSS JOIN ({truncations}) AS c"""
_TRUNCATION: Final = "SELECT {deletion} FROM {source} WHERE {truncates}"
_KEYS: Final = "SELECT {keys} FROM {source}"
_KEYS_TO_TRUNCATE: Final = (
    "SELECT {keys} FROM {target} WHERE EXISTS (SELECT 1 FROM {new} WHERE {truncates})"
)

_EACH_MESSAGE: Final = """SELECT {columns} FROM {history}
UNION ALL
SELECT {columns} FROM {tail}"""

# The rows that stay are few of the tail's, so both joins are with these, and what is asked of columns reaches the history.
_LAST_MESSAGES: Final = """WITH
{last} AS ({last_of_tail}),
{kept} AS (SELECT {keys_of_target} FROM {history} AS t JOIN {last} AS s ON {equal} WHERE NOT ({later}))
SELECT {columns_of_target} FROM {history} AS t
WHERE NOT EXISTS (SELECT 1 FROM {last} AS s WHERE {equal} AND ({later}))
UNION ALL
SELECT {columns_of_source} FROM {last} AS s
WHERE {lives}NOT EXISTS (SELECT 1 FROM {kept} AS t WHERE {equal})"""


def changes_of(
    columns: Sequence[str],
    key: Sequence[str],
    quote: Callable[[str], str],
    changes: ChangeOrder,
    *,
    new: str,
    deletes: str = "",
    target: str = "",
) -> str:
    """A query of all that decides what the rows of the keys in `new` become: new messages, and deletions that were kept.

    A message that truncates the table is given as a deletion of each key.

    Args:
        columns: of the table.
        key: those whose last message counts.
        quote: makes a name one of the engine's SQL.
        changes: which messages delete, and what orders them.
        new: what new messages are selected from, in SQL.
        deletes: what kept deletions are selected from; empty: there are none.
        target: what keys are selected from that a new message may truncate; empty: none does.
    """
    known = {*key, changes.deleted, POSITION, *(column.name for column in SYSTEM_COLUMNS)}
    deletion = ", ".join(
        quote(name) if name in known else f"NULL AS {quote(name)}" for name in columns
    )
    truncates = changes.truncates(quote)
    query = _CHANGES.format(columns=", ".join(map(quote, columns)), new=new, truncates=truncates)
    if deletes:
        query += _KEPT_DELETES.format(deletion=deletion, deletes=deletes, truncates=truncates)
    if not changes.is_envelope:
        return query
    names = ", ".join(map(quote, key))
    keys = [_KEYS.format(keys=names, source=new)]
    if target:
        keys.append(
            _KEYS_TO_TRUNCATE.format(keys=names, target=target, new=new, truncates=truncates)
        )
    truncations = [
        _TRUNCATION.format(deletion=deletion, source=source, truncates=truncates)
        for source in (new, deletes)
        if source
    ]
    of_each = {name: f"k.{quote(name)}" for name in key} | {changes.deleted: f"'{DELETE}'"}
    listed = (f"{of_each.get(name, f'c.{quote(name)}')} AS {quote(name)}" for name in columns)
    return query + _TRUNCATED.format(
        columns=", ".join(listed),
        keys=" UNION ".join(keys),
        truncations=" UNION ALL ".join(truncations),
    )


def last_of_each(
    source: str,
    key: Sequence[str],
    quote: Callable[[str], str],
    changes: ChangeOrder | None = None,
) -> str:
    """A query of the last message of each key, with its clock, which `is_later` looks at.

    Args:
        source: what rows are of, in SQL.
        key: columns.
        quote: makes a name one of the engine's SQL.
        changes: what orders messages besides; None: nothing.
    """
    position = f"{quote(changes.position)} DESC, " if changes and changes.position else ""
    return _LAST.format(
        source=source,
        position=position,
        key=", ".join(map(quote, key)),
        clock=quote(_CLOCK),
        clock_of_row=_clock_of(""),
        of_journal=quote(_OF_JOURNAL),
        of_key=quote(_OF_KEY),
    )


def is_later(quote: Callable[[str], str], changes: ChangeOrder | None = None) -> str:
    """A condition: the message `s`, of `last_of_each`, is later than the row `t` of the same key."""
    position = (
        _OTHER_POSITION.format(quote(changes.position)) if changes and changes.position else ""
    )
    return _LATER.format(position=position, clock=quote(_CLOCK), clock_of_target=_clock_of("t."))


def view_of(
    columns: Sequence[str],
    key: Sequence[str],
    history: str,
    tail: str,
    quote: Callable[[str], str],
    *,
    changes: ChangeOrder | None = None,
    deletes: str = "",
) -> str:
    """A query of a table's rows and its tail, as the table will be once a run has published that.

    Args:
        columns: of both.
        key: columns whose last message counts; none: each message is a row.
        history, tail: what is selected from, in SQL. Each message is in one of them.
        quote: makes a name one of the engine's SQL.
        changes: which messages delete, and what orders them; None: none does.
        deletes: what deletions that runs have published are selected from; empty: there are none.
    """
    names = [quote(name) for name in columns]
    if not key:
        return _EACH_MESSAGE.format(columns=", ".join(names), history=history, tail=tail)
    keys = [quote(name) for name in key]
    if changes is not None:
        found = changes_of(columns, key, quote, changes, new=tail, deletes=deletes, target=history)
        tail = f"({found})"
    return _LAST_MESSAGES.format(
        last=quote("#last"),
        kept=quote("#kept"),
        last_of_tail=last_of_each(tail, key, quote, changes),
        keys_of_target=", ".join(f"t.{name}" for name in keys),
        columns_of_target=", ".join(f"t.{name}" for name in names),
        columns_of_source=", ".join(f"s.{name}" for name in names),
        equal=" AND ".join(f"t.{name} = s.{name}" for name in keys),
        later=is_later(quote, changes),
        lives=f"NOT {changes.deletes(quote, 's.')} AND " if changes else "",
        history=history,
    )


def _clock_of(row: str) -> str:
    return _CLOCK_OF.format(f"coalesce(CAST({row}_uuid AS STRING), '{_NO_UUID}')")
