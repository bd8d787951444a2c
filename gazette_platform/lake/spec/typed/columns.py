"""Columns of a typed table: those of its base, with what the spec says otherwise, and those that changes add. Pure.

The base is the raw table, or a JSON Schema of the records. An entry of `columns` is about the column of the
base that has its key (`from`), or else its name; if there is none, it is one more.

A table of changes also says which change of a key is the last, and which ones delete its row:

    typed:
      change_data: debezium     # records are envelopes: op, before, after, source
      key: [id]

    typed:
      deleted: is_deleted       # or: a column says that the row is gone
      key: [id]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import is_column_name, is_key, shown
from gazette_platform.lake.spec.types import (
    FORMATS,
    TRUNCATED,
    has_times,
    leaf_of,
    parse_typed,
    text_of,
    typed_from_raw,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.lake.spec.typed.json_schema import Property
    from gazette_platform.lake.spec.types import ColumnType

_SEGMENT_TYPES: Final = ("string", "int", "bigint", "date")


class RawColumn(Protocol):
    """What is to be known of a column of the raw table."""

    @property
    def name(self) -> str:
        """In the table."""

    @property
    def key(self) -> str:
        """The key that records have."""

    @property
    def comment(self) -> str:
        """What it is; may be empty."""

    @property
    def parsed(self) -> ColumnType:
        """The parsed type."""


class RawTable(Protocol):
    """What is to be known of a raw table's spec, which is read with its section and so knows this package."""

    @property
    def name(self) -> str:
        """``schema.table``."""

    @property
    def format(self) -> str:
        """Of its records."""

    @property
    def columns(self) -> Sequence[RawColumn]:
        """In their order."""


class ColumnEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of `columns`, as it is written."""

    name: str
    type: str = ""
    comment: str = ""
    source: str = msgspec.field(default="", name="from")
    format: str = ""
    truncate: bool = False
    segment: str = ""
    required: bool | None = None


class TypedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a typed table."""

    name: str
    type: str
    """The canonical text of its type."""
    key: str = ""
    """The key that records have; empty: it is not of the records."""
    segment: str = ""
    """Key of the `key=value` segment of the journal's name that its values are; or empty."""
    format: str = ""
    """How values of a type that has several forms are written; see `FORMATS`."""
    truncate: bool = False
    """Whether digits of a second beyond microseconds are cut off, instead of the record being set aside."""
    comment: str = ""
    required: bool = False
    """Whether a record without a value of it is set aside."""
    is_system: bool = False

    @property
    def parsed(self) -> ColumnType:
        """The parsed type."""
        return parse_typed(self.type)

    @property
    def form(self) -> str:
        """How its values are read: the format, and `TRUNCATED`."""
        return f"{self.format} {TRUNCATED}".strip() if self.truncate else self.format


SYSTEM_COLUMNS: Final = (
    TypedColumn(
        name="_journal",
        type="string",
        comment="journal that the message is in",
        required=True,
        is_system=True,
    ),
    TypedColumn(
        name="_begin",
        type="bigint",
        comment="its first byte there",
        required=True,
        is_system=True,
    ),
    TypedColumn(
        name="_end",
        type="bigint",
        comment="the byte after its last one",
        required=True,
        is_system=True,
    ),
    TypedColumn(
        name="_uuid",
        type="uuid",
        comment="its UUID; null: it has none",
        is_system=True,
    ),
)
"""What each row of a typed table has after its columns."""

_SYSTEM_NAMES: Final = frozenset(column.name for column in SYSTEM_COLUMNS)
# Spark refuses to delete or replace rows of a table that has columns of these names.
_ICEBERGS_NAMES: Final = frozenset({
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
})  # fmt: skip


class BaseColumn(NamedTuple):
    """A column that exists unless an entry says otherwise."""

    name: str
    key: str
    kind: ColumnType | None
    comment: str
    is_required: bool
    errors: tuple[ValidationError, ...]
    """Why it is none by itself."""


@final
class PlacedColumn(NamedTuple):
    """A column, and where the spec says what it is."""

    column: TypedColumn
    path: str
    """Of its entry; or empty: it is the base's."""
    kind: ColumnType


def base_of_raw(raw: RawTable) -> list[BaseColumn]:
    """The raw table's columns, of types that Iceberg has."""
    return [
        BaseColumn(c.name, c.key, typed_from_raw(c.parsed), c.comment, is_required=False, errors=())
        for c in raw.columns
    ]


def base_of_properties(properties: Iterable[Property]) -> list[BaseColumn]:
    """The columns that a JSON Schema defines; keys that are not names are errors."""
    return [
        BaseColumn(p.key, p.key, p.kind, p.comment, is_required=p.is_required, errors=p.errors)
        for p in properties
    ]


def merged_columns(
    base: Sequence[BaseColumn], entries: Mapping[int, ColumnEntry]
) -> tuple[list[PlacedColumn], list[ValidationError]]:
    """The columns of the base and of `entries`, and what is wrong with single ones.

    Args:
        entries: those that could be read, by their place in `columns`.

    Returns: columns in the order of the base, then those that the entries add; and errors.
    """
    errors: list[ValidationError] = []
    by_key = {column.key: column for column in base}
    by_name = {column.name: column for column in base}
    changed: dict[str, PlacedColumn | None] = {}
    added: list[PlacedColumn | None] = []
    for index, entry in entries.items():
        path = f"columns[{index}]"
        found = None
        if not entry.segment:
            found = by_key.get(entry.source) if entry.source else by_name.get(entry.name)
        column = _merged(entry, found, path, errors)
        if found is None:
            added.append(column)
        elif found.key in changed:
            errors.append(ValidationError(f"is about {shown(found.key)} again", path=path))
        else:
            changed[found.key] = column
    placed = [changed[b.key] if b.key in changed else _of_base(b, errors) for b in base]
    return [column for column in (*placed, *added) if column is not None], errors


def _of_base(base: BaseColumn, errors: list[ValidationError]) -> PlacedColumn | None:
    errors += base.errors
    if base.kind is None:
        return None
    column = TypedColumn(
        name=base.name,
        type=text_of(base.kind),
        key=base.key,
        comment=base.comment,
        format=_format_of(base.kind),
        required=base.is_required,
    )
    return PlacedColumn(column, "", base.kind)


def _merged(
    entry: ColumnEntry, base: BaseColumn | None, path: str, errors: list[ValidationError]
) -> PlacedColumn | None:
    """What an entry says; None, with errors, if not even its type is known."""
    kind = base.kind if base is not None else None
    if entry.type:
        try:
            kind = parse_typed(entry.type)
        except ValidationError as err:
            errors.append(err.within(f"{path}.type"))
            return None
    elif base is not None and kind is None:
        errors += base.errors
        return None
    if kind is None:
        told = "needs a type: there is no such column that it could have it from"
        errors.append(ValidationError(told, path=f"{path}.type"))
        return None
    errors += _entry_errors(entry, kind, path)
    is_required = base is not None and base.is_required
    column = TypedColumn(
        name=entry.name,
        type=text_of(kind),
        key="" if entry.segment else entry.source or (base.key if base else entry.name),
        segment=entry.segment,
        comment=entry.comment or (base.comment if base else ""),
        format=entry.format or _format_of(kind),
        truncate=entry.truncate,
        required=is_required if entry.required is None else entry.required,
    )
    return PlacedColumn(column, path, kind)


def _format_of(kind: ColumnType) -> str:
    """What is meant where nothing is said."""
    return FORMATS.get(leaf_of(kind).name, ("",))[0]


def _entry_errors(entry: ColumnEntry, kind: ColumnType, path: str) -> Iterator[ValidationError]:
    """What an entry says that makes no sense, its name aside."""
    if entry.segment:
        given = {
            "from": entry.source,
            "format": entry.format,
            "truncate": entry.truncate,
            "required": entry.required is not None,
        }
        for key in (key for key, value in given.items() if value):
            yield ValidationError(
                "is about keys of records; a segment is of the journal's name", path=f"{path}.{key}"
            )
        if not is_column_name(entry.segment):
            yield ValidationError(
                f"{shown(entry.segment)} is not the key of a `key=value` segment (letters, digits, `_`)",
                path=f"{path}.segment",
            )
        if kind.name not in _SEGMENT_TYPES:
            yield ValidationError(
                f"{text_of(kind)} is not a type of segments (use one of {', '.join(_SEGMENT_TYPES)})",
                path=f"{path}.type",
            )
        return
    formats = FORMATS.get(leaf_of(kind).name, ())
    if entry.format and entry.format not in formats:
        told = f"use one of {', '.join(formats)}" if formats else "leave it out"
        yield ValidationError(
            f"{shown(entry.format)} is not a form of {text_of(kind)} ({told})",
            path=f"{path}.format",
        )
    if entry.truncate and (entry.format.startswith("epoch") or not has_times(kind)):
        yield ValidationError(
            "is about times that are texts (leave it out, or use timestamptz or timestamp)",
            path=f"{path}.truncate",
        )


def name_errors(columns: Sequence[PlacedColumn]) -> Iterator[ValidationError]:
    """Names and keys that are invalid, duplicates, or those of system columns."""
    names: dict[str, str] = {}
    keys: set[str] = set()
    for column, place, _ in columns:
        path = place or "columns"
        at = f"{place}.name" if place else path
        remedy = f"`columns: [{{name: …, from: {column.key}, …}}]` gives it another name"
        if not is_column_name(column.name):
            yield ValidationError(
                f"{shown(column.name)} is not a column name (letters, digits, `_`); {remedy}",
                path=at,
            )
        if column.name.lower() in _SYSTEM_NAMES:
            yield ValidationError(
                f"{shown(column.name)} is what each row of a typed table has; {remedy}", path=at
            )
        if column.name.lower() in _ICEBERGS_NAMES:
            yield ValidationError(
                f"{shown(column.name)} is Iceberg's name of where a row is; {remedy}", path=at
            )
        if column.name.lower() in names:
            yield ValidationError(
                f"{shown(column.name)} repeats {shown(names[column.name.lower()])}; engines ignore case",
                path=at,
            )
        names[column.name.lower()] = column.name
        if column.segment:
            continue
        if not is_key(column.key):
            yield ValidationError(
                f"{shown(column.key)} cannot be the key of a column: too long, or with characters "
                'that cannot be printed, or " or \\',
                path=f"{place}.from" if place else path,
            )
        if column.key in keys:
            yield ValidationError(
                f"the key {shown(column.key)} is another column's; a value has one type",
                path=f"{place}.from" if place else path,
            )
        keys.add(column.key)


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
