"""What the section `typed:` of a table spec says: the Iceberg table, its columns, and when it is made. Pure.

    typed:
      name: typed.flights                 # default: typed. and the raw table's name
      uuid: _meta.uuid                    # where records have the message's UUID, or `none`
      columns:                            # what differs from the raw table's columns
        - {name: departure, type: timestamptz}
      partitions: [day(departure)]
      every: 30s

docs/reference/table-spec.md has all keys, docs/internals/typed-tables.md the reasons.

Nouns: a *typed spec* is what a good section says; a *typed column* is a key of the records with a type that Iceberg
has; *system columns* say of each row where it came from; a *partition transform* is what rows of one data file
have in common.

Apart from `lake.typed`, which makes such tables, because table specs are read with their section and must not need
what works by them.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal, final

import msgspec

from gazette_platform.errors import ValidationError
from gazette_platform.lake.spec.rules import (
    COLUMNS_MAX,
    EXACT_SUFFIX,
    QUARANTINE_SUFFIX,
    SPEC_BYTES_MAX,
    cron_errors,
    first_errors,
    is_column_name,
    is_json_file_name,
    is_key,
    is_table_name,
    shown,
)
from gazette_platform.lake.spec.typed.columns import (
    CHANGE_COLUMNS,
    OP,
    POSITION,
    SYSTEM_COLUMNS,
    ChangeOrder,
    ColumnEntry,
    TypedColumn,
    base_of_envelope,
    base_of_properties,
    base_of_raw,
    merged_columns,
    name_errors,
)
from gazette_platform.lake.spec.typed.json_schema import parse_document, properties_of
from gazette_platform.lake.spec.types import (
    KEY_TYPES,
    TRANSFORMS,
    PartitionTransform,
    parse_partition,
)
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gazette_platform.lake.spec.typed.columns import BaseColumn, RawTable
    from gazette_platform.lake.spec.types import ColumnType

__all__ = ["PartitionTransform", "TypedColumn", "TypedSpec", "read_typed_spec"]

SCHEMA: Final = "typed"
"""Of typed tables that have no name of their own."""

# Of each part of the name: rollups have no longer ones, either.
_NAME_CHARACTERS_MAX: Final = 100
_KEY_COLUMNS_MAX: Final = 16
_PARTITIONS_MAX: Final = 8
_UUID_DEPTH_MAX: Final = 8
# A commit is a metadata file of its own, and a snapshot that has to be expired.
_EVERY_MIN_S: Final = 5
_COLUMN_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")


@final
class TypedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A typed table. Read with `read_typed_spec`, which validates."""

    name: str
    """``schema.table`` of the Iceberg table."""
    source: str
    """``schema.table`` of the raw table."""
    uuid: tuple[str, ...]
    """Keys down to the message's UUID within a record; empty: messages have none."""
    columns: tuple[TypedColumn, ...]
    """In their order, without the system's."""
    key: tuple[str, ...] = ()
    """Names of the key columns, whose last message wins; empty: each message is a row."""
    partitions: tuple[PartitionTransform, ...] = ()
    unknown: Literal["ignore", "quarantine"] = "ignore"
    """What becomes of a record with a key, at any depth of structs, that is not a column."""
    every_s: float = 0.0
    """Seconds between runs that go on without end; 0: it does not."""
    cron: str = ""
    """When to run; empty: when the raw table has changed, unless `every_s`."""
    retention: Literal["keep", "follow"] = "keep"
    """Whether rows go when the content that they were made of was pruned."""
    retired: tuple[str, ...] = ()
    """Columns of the table, or fields of structs by their path, that are written no more."""
    change_data: Literal["", "debezium"] = ""
    """What wraps records: envelopes that say what became of a row; empty: nothing."""
    deleted: str = ""
    """The column that says of a message that it deletes its key's row; empty: none does."""
    order: Literal["journal", "source"] = "journal"
    """Which of two changes of a key is the later one: by the journal, or by the position that the source had."""

    @property
    def written_columns(self) -> tuple[TypedColumn, ...]:
        """The columns that records fill, and what an envelope says of them."""
        return (*self.columns, *(CHANGE_COLUMNS if self.change_data else ()))

    @property
    def all_columns(self) -> tuple[TypedColumn, ...]:
        """The columns, then those of the system."""
        return (*self.written_columns, *SYSTEM_COLUMNS)

    @property
    def changes(self) -> ChangeOrder | None:
        """How messages delete rows; None: they do not."""
        if self.change_data:
            return ChangeOrder(
                deleted=OP, position=POSITION if self.order == "source" else "", is_envelope=True
            )
        return ChangeOrder(deleted=self.deleted) if self.deleted else None

    @property
    def quarantine(self) -> str:
        """``schema.table`` of the table beside it, of rejected records."""
        return f"{self.name}{QUARANTINE_SUFFIX}"

    @property
    def digest(self) -> str:
        """16 hex digits that change with any part of the spec."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """The section as it is written; what a key may be, and what is meant without it."""

    uuid: str
    name: str = ""
    key: tuple[str, ...] = ()
    change_data: Literal["", "debezium"] = ""
    deleted: str = ""
    order: Literal["", "journal", "source"] = ""
    partitions: tuple[str, ...] = ()
    columns: tuple[ColumnEntry, ...] = ()
    json_schema: str = ""
    unknown: Literal["ignore", "quarantine"] = "ignore"
    every: str = ""
    cron: str = ""
    retention: Literal["keep", "follow"] = "keep"
    retired: tuple[str, ...] = ()


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(_Section)}
# What a list may hold, and of what.
_ITEMS: Final[dict[str, tuple[int, Any]]] = {
    "key": (_KEY_COLUMNS_MAX, str),
    "partitions": (_PARTITIONS_MAX, str),
    "columns": (COLUMNS_MAX, ColumnEntry),
    "retired": (COLUMNS_MAX, str),
}
_NO_TEXT: Final = " (quote it, where YAML takes it for something else)"


def read_typed_spec(
    raw: RawTable, section: object, beside: Mapping[str, bytes] | None = None
) -> tuple[TypedSpec | None, list[ValidationError]]:
    """The typed table that a table spec describes, or else all that is wrong with its section.

    Args:
        raw: the spec of the raw table, which has to be a good one.
        section: what its key `typed` holds, as a reader of YAML gives it.
        beside: contents of files that `json_schema` may name, by their names.

    Returns: errors have paths that begin with ``typed``, and cover every part that can be read.
    """
    reader = _Reader(raw, section, beside or {})
    errors = first_errors(error.within("typed") for error in reader.errors())
    return (None, errors) if errors else (reader.spec(), [])


@final
class _Reader:
    """Reads a section part by part, so that what is wrong with one hides no other."""

    def __init__(self, raw: RawTable, section: object, beside: Mapping[str, bytes]) -> None:
        self._raw = raw
        self._beside = beside
        self._shape_errors: list[ValidationError] = []
        # Parts that could be read; items of lists by their index.
        self._values: dict[str, Any] = {}
        self._items: dict[str, dict[int, Any]] = {name: {} for name in _ITEMS}
        if isinstance(section, dict):
            self._read_shape(section)
        else:
            self._shape_errors.append(
                ValidationError("is not a mapping: it needs `uuid`, at least")
            )
        self._is_endless = self._characters() > SPEC_BYTES_MAX
        self._base_columns = self._base()
        entries = {} if self._is_endless else self._items["columns"]
        columns, self._column_errors = merged_columns(self._base_columns, entries)
        # Columns of a wrong shape have no names.
        self._is_in_part = any(
            error.path.startswith(("columns", "json_schema")) for error in self._shape_errors
        )
        self._columns = columns
        self._by_name = {placed.column.name: placed for placed in columns}
        self._partitions: dict[int, PartitionTransform] = {}
        self._partition_form_errors: list[ValidationError] = []
        for index, text in self._items["partitions"].items():
            try:
                self._partitions[index] = parse_partition(text)
            except ValidationError as err:
                self._partition_form_errors.append(err.within(f"partitions[{index}]"))

    def errors(self) -> Iterator[ValidationError]:
        """Everything that is wrong, part by part. If nothing is, there is a `spec`."""
        yield from self._shape_errors
        if self._is_endless:
            yield ValidationError(
                f"aliases make it longer than {SPEC_BYTES_MAX} characters", path="columns"
            )
            return
        yield from self._name_errors()
        yield from self._uuid_errors()
        yield from self._column_errors
        yield from name_errors(self._columns)
        yield from self._key_errors()
        yield from self._change_errors()
        yield from self._partition_errors()
        yield from self._times_errors()
        yield from self._retired_errors()

    def spec(self) -> TypedSpec:
        """The spec, once it is known to be good."""
        values = self._values
        key = tuple(self._items["key"].values())
        return TypedSpec(
            name=self._name(),
            source=self._raw.name,
            uuid=self._uuid(),
            columns=tuple(
                msgspec.structs.replace(column, required=column.required or column.name in key)
                for column, _, _ in self._columns
            ),
            key=key,
            partitions=tuple(self._partitions.values()),
            unknown=values["unknown"],
            every_s=parse_duration(values["every"]) / SECOND_NS if values["every"] else 0.0,
            cron=values["cron"],
            retention=values["retention"],
            retired=tuple(self._items["retired"].values()),
            change_data=values["change_data"],
            deleted=values["deleted"],
            order=values["order"] or ("source" if values["change_data"] else "journal"),
        )

    def _read_shape(self, section: dict[Any, Any]) -> None:
        for key in section:
            if key not in _FIELDS:
                told = f"there is no such key (use one of {', '.join(_FIELDS)})"
                self._shape_errors.append(
                    ValidationError(
                        told, path=str(key) if is_column_name(str(key)) else shown(str(key))
                    )
                )
        if "uuid" not in section and not section.get("change_data"):
            told = (
                "is missing: where do records have their message's UUID, e.g. `_meta.uuid`? `none` says "
                "that they have none, and that what is appended twice may be two rows"
            )
            self._shape_errors.append(ValidationError(told, path="uuid"))
        for name, field in _FIELDS.items():
            if name not in section:
                # A repeated change changes nothing.
                self._values[name] = None if field.required else field.default
            elif name in _ITEMS:
                self._read_items(name, section[name])
            else:
                self._values[name] = self._converted(section[name], field.type, name)

    def _read_items(self, name: str, found: object) -> None:
        count_max, kind = _ITEMS[name]
        if not isinstance(found, list):
            self._shape_errors.append(ValidationError("is not a list", path=name))
        elif len(found) > count_max:
            self._shape_errors.append(ValidationError(f"has more than {count_max}", path=name))
        else:
            for index, value in enumerate(found):
                item = self._converted(value, kind, f"{name}[{index}]")
                if item is not None:
                    self._items[name][index] = item

    def _converted(self, value: object, kind: Any, path: str) -> Any:
        """A part as what it has to be; None, if it is not, which is noted."""
        try:
            return msgspec.convert(value, type=kind)
        except msgspec.ValidationError as err:
            text, _, below = str(err).partition(" - at `$")
            hint = _NO_TEXT if "Expected `str`" in text else ""
            at = f"{path}{below.rstrip('`')}"
            self._shape_errors.append(ValidationError(f"{text}{hint}", path=at))
            return None

    def _characters(self) -> int:
        """Of all that is in lists: by aliases of YAML a short file has more than anybody could look at."""
        entries = self._items["columns"].values()
        told = sum(len(e.name) + len(e.type) + len(e.comment) + len(e.source) for e in entries)
        texts = (
            text for name in ("key", "partitions", "retired") for text in self._items[name].values()
        )
        return told + sum(map(len, texts))

    def _base(self) -> Sequence[BaseColumn]:
        name = self._values.get("json_schema")
        if not name and self._values.get("change_data"):
            return base_of_envelope(self._raw)
        if not name:
            return base_of_raw(self._raw)
        try:
            properties = properties_of(self._json_schema(name))
        except ValidationError as err:
            self._shape_errors.append(err.within("json_schema"))
            return []
        return [
            base._replace(errors=tuple(error.within("json_schema") for error in base.errors))
            for base in base_of_properties(properties)
        ]

    def _json_schema(self, name: str) -> object:
        if not is_json_file_name(name):
            raise ValidationError(f"{shown(name)} is not the name of a file such as `a.json`")
        if name not in self._beside:
            raise ValidationError(f"there is no file {name} beside the spec")
        return parse_document(self._beside[name])

    def _name(self) -> str:
        return self._values.get("name") or f"{SCHEMA}.{self._raw.name.partition('.')[2]}"

    def _uuid(self) -> tuple[str, ...]:
        text = self._values.get("uuid")
        return () if text in (None, "none") else tuple(text.split("."))

    def _name_errors(self) -> Iterator[ValidationError]:
        name = self._name()
        taken = {self._raw.name, f"{self._raw.name}{EXACT_SUFFIX}"}
        if not is_table_name(name, _NAME_CHARACTERS_MAX):
            yield ValidationError(
                f"{shown(name)} is not schema.table (lower-case letters, digits, `_`; "
                f"{_NAME_CHARACTERS_MAX} of them)",
                path="name",
            )
        for own in taken & {name, f"{name}{QUARANTINE_SUFFIX}"}:
            its = "" if own == name else ", where its quarantine goes,"
            yield ValidationError(f"{own}{its} is the raw table, or its view", path="name")
        if self._raw.format != "json":
            yield ValidationError(
                f"typed tables are made of JSON records, and this table's are {self._raw.format}"
            )

    def _uuid_errors(self) -> Iterator[ValidationError]:
        path = self._uuid()
        if len(path) > _UUID_DEPTH_MAX or not all(map(is_key, path)):
            yield ValidationError(
                f"{shown('.'.join(path))} is not a path of keys, such as `_meta.uuid`, or `none`",
                path="uuid",
            )
            return
        if self._values.get("change_data"):
            return  # it lies in the envelope, and columns in what that holds
        column = next((p for p in self._columns if path and p.column.key == path[0]), None)
        kind: ColumnType | None = column.kind if column is not None else None
        for key in path[1:]:
            if kind is None:
                return
            if kind.name != "struct":
                yield ValidationError(
                    f"within {shown(path[0])} there is no key {shown(key)}: its column is not a struct of one",
                    path="uuid",
                )
                return
            fields = dict(zip(kind.field_names, kind.arguments, strict=True))
            kind = fields.get(key)
        if kind is not None and kind.name not in ("string", "uuid"):
            yield ValidationError(
                f"is a column of type {kind.name}; a UUID is a `string`, or a `uuid`", path="uuid"
            )

    def _no_column_errors(self, name: str) -> Iterator[ValidationError]:
        """What to say of a name that is not one of a column; nothing, if it may be of one with an error."""
        keys = {placed.column.key for placed in self._columns}
        failed = {entry.name for entry in self._items["columns"].values()}
        failed |= {base.name for base in self._base_columns if base.key not in keys}
        if name in failed or self._is_in_part:
            return
        same = [
            other
            for other, placed in self._by_name.items()
            if other.lower() == name.lower() or placed.column.key == name
        ]
        hint = f" (`{same[0]}`?)" if same else ""
        yield ValidationError(f"{shown(name)} is not a column{hint}")

    def _key_errors(self) -> Iterator[ValidationError]:
        seen: set[str] = set()
        for index, name in self._items["key"].items():
            path = f"key[{index}]"
            if name in seen:
                yield ValidationError(f"{shown(name)} is repeated", path=path)
            seen.add(name)
            found = self._by_name.get(name)
            if found is None:
                yield from (error.within(path) for error in self._no_column_errors(name))
            elif found.kind.name not in KEY_TYPES:
                yield ValidationError(
                    f"{name} is a {found.kind.name}, and engines do not agree when two are equal",
                    path=path,
                )

    def _change_errors(self) -> Iterator[ValidationError]:
        change_data, deleted = self._values.get("change_data"), self._values.get("deleted")
        for name, value in (("change_data", change_data), ("deleted", deleted)):
            if value and not self._items["key"]:
                yield ValidationError(
                    "needs `key`: the columns that say which row a change is of", path=name
                )
        if change_data and deleted:
            yield ValidationError(
                f"is either this or `change_data`: {change_data} says itself what is deleted",
                path="deleted",
            )
        elif deleted:
            found = self._by_name.get(deleted)
            if found is None:
                yield from (error.within("deleted") for error in self._no_column_errors(deleted))
            elif found.kind.name not in ("boolean", "string"):
                yield ValidationError(
                    f"{deleted} is a {found.kind.name}; it has to be a `boolean`, or a `string` that is "
                    "`true` where the row is deleted",
                    path="deleted",
                )
        if self._values.get("order") == "source" and not change_data:
            yield ValidationError(
                "`source` needs `change_data`, whose records say where in the source they are from",
                path="order",
            )
        if not change_data:
            return
        if not self._columns and not self._is_in_part:
            yield ValidationError(
                "finds no columns: the raw table has no `after` (or `payload.after`) of type "
                "struct<…>. Declare it so, or list the row's columns with their types under `columns`",
                path="change_data",
            )
        for placed in self._columns:
            if placed.column.name.lower() in (OP, POSITION):
                yield ValidationError(
                    f"{placed.column.name} is a column that `change_data` adds; give this one another name",
                    path=placed.path or "columns",
                )

    def _partition_errors(self) -> Iterator[ValidationError]:
        yield from self._partition_form_errors
        names: dict[str, str] = {}
        times: dict[str, str] = {}
        for index, found in self._partitions.items():
            path = f"partitions[{index}]"
            yield from (error.within(path) for error in self._source_errors(found))
            if found.name.lower() in names:
                told = f"{found.text} repeats {names[found.name.lower()]}"
                yield ValidationError(told, path=path)
            elif found.is_time and found.column in times:
                yield ValidationError(
                    f"{found.text} beside {times[found.column]}: of a column, one of year, month, day "
                    "and hour",
                    path=path,
                )
            names[found.name.lower()] = found.text
            if found.is_time:
                times[found.column] = found.text

    def _source_errors(self, partition: PartitionTransform) -> Iterator[ValidationError]:
        found = self._by_name.get(partition.column)
        # By journal is how a table of many of them is best compared with what they hold.
        kind = "string" if partition.column == "_journal" else found.kind.name if found else ""
        if not kind:
            yield from self._no_column_errors(partition.column)
        elif kind not in TRANSFORMS[partition.transform]:
            fitting = ", ".join(name for name, kinds in TRANSFORMS.items() if kind in kinds)
            told = f"there are {fitting}" if fitting else "no table is partitioned by that"
            yield ValidationError(f"{partition.column} is a {kind}: {told}")
        elif self._items["key"] and (partition.transform, kind) == ("bucket", "uuid"):
            # Spark has them as texts, whose buckets are others, and so writes rows in an order that Iceberg refuses.
            yield ValidationError(
                f"{partition.column} is a uuid, by whose buckets Spark cannot write, which merges rows of tables with a key: "
                "let it be a string, or have no buckets of it"
            )
        if partition.transform == "identity":
            return
        clash = next((n for n in self._by_name if n.lower() == partition.name.lower()), None)
        if clash is not None:
            yield ValidationError(
                f"Iceberg calls that {partition.name}, and there is a column {clash}: give it another name"
            )

    def _times_errors(self) -> Iterator[ValidationError]:
        every, cron = self._values.get("every"), self._values.get("cron")
        if every:
            try:
                seconds = parse_duration(every) / SECOND_NS
            except ValidationError as err:
                yield ValidationError(f"{err}: not a duration such as `30s`", path="every")
            else:
                if seconds < _EVERY_MIN_S:
                    yield ValidationError(
                        f"{every} is less than {_EVERY_MIN_S}s, and each commit leaves a snapshot",
                        path="every",
                    )
        if cron:
            yield from cron_errors(cron)
        if every and cron:
            yield ValidationError("is either this or `every`", path="cron")

    def _retired_errors(self) -> Iterator[ValidationError]:
        taken = {column.name.lower() for column in SYSTEM_COLUMNS}
        taken |= {name.lower() for name in self._by_name}
        for index, name in self._items["retired"].items():
            path = f"retired[{index}]"
            if not _COLUMN_PATH.match(name):
                yield ValidationError(f"{shown(name)} is not a column, or a path to one", path=path)
            elif name.lower() in taken:
                yield ValidationError(
                    f"{name} is a column; it cannot be retired as well", path=path
                )
