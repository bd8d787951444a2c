"""What a typed table of changes has besides its columns, and what decides which change is the last. Pure.

typed:
  change_data: debezium     # records are envelopes: op, before, after, source
  key: [id]

typed:
  deleted: is_deleted       # or: a column says that the row is gone
  key: [id]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.lake.spec.typed.columns import typed_from_raw
from gazette_platform.lake.spec.typed.typed_columns import BaseColumn, TypedColumn

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.lake.spec.schema import ColumnType
    from gazette_platform.lake.spec.typed.typed_columns import RawTable

OP: Final = "_op"
POSITION: Final = "_position"
OP_KEY: Final = "#op"
"""Key of `OP` in an envelope that was taken apart: not a name that a database's column is likely to have."""
POSITION_KEY: Final = "#position"

DELETE: Final = "d"
TRUNCATE: Final = "t"

CHANGE_COLUMNS: Final = (
    TypedColumn(
        name=OP,
        type="string",
        key=OP_KEY,
        comment="what the source did: c, u, or r of a snapshot",
        required=True,
        is_system=True,
    ),
    TypedColumn(
        name=POSITION,
        type="string",
        key=POSITION_KEY,
        comment="where in the source's log the change is; texts sort as positions do",
        required=True,
        is_system=True,
    ),
)
"""What each row of a table with `change_data` has after its columns."""


@final
class ChangeOrder(NamedTuple):
    """How changes of one key follow each other, and which of them delete the row."""

    deleted: str
    """Column that says so."""
    position: str = ""
    """Column that orders changes, before all else; empty: their journals alone do."""
    is_envelope: bool = False
    """Whether `deleted` holds an operation; one of them truncates the table."""

    def deletes(self, quote: Callable[[str], str], row: str = "") -> str:
        """Return a condition in SQL, never null: a message deletes its key's row.

        Args:
            quote: makes a name one of the engine's SQL.
            row: alias of the message, with its dot.
        """
        column = f"{row}{quote(self.deleted)}"
        if self.is_envelope:
            return f"{column} = '{DELETE}'"
        return f"coalesce(lower(CAST({column} AS STRING)) = 'true', false)"

    def truncates(self, quote: Callable[[str], str], row: str = "") -> str:
        """Return a condition in SQL, never null: a message deletes all rows. Arguments: of `deletes`."""
        return f"{row}{quote(self.deleted)} = '{TRUNCATE}'" if self.is_envelope else "false"


def base_of_envelope(raw: RawTable) -> list[BaseColumn]:
    """Return the columns of the rows that a raw table's envelopes hold; none, if it does not say which those have."""
    by_key = {column.key: column.parsed for column in raw.columns}
    payload = by_key.get("payload")
    after = by_key.get("after") or (_field(payload, "after") if payload is not None else None)
    if after is None or after.name != "struct":
        return []
    return [
        BaseColumn(name, name, typed_from_raw(kind), "", is_required=False, errors=())
        for name, kind in zip(after.field_names, after.arguments, strict=True)
    ]


def _field(kind: ColumnType, name: str) -> ColumnType | None:
    fields = dict(zip(kind.field_names, kind.arguments, strict=False))
    return fields.get(name)
