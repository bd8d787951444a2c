"""How an existing typed table becomes what its spec says, or why it cannot. Pure.

Iceberg reads data files by ids of fields, so a column keeps its id for ever, and a change is only ever one of the
table's metadata: no file is rewritten. What is accepted, and what is refused:

| change | |
|---|---|
| a column, or a field of a struct at any depth, is new | added; null in existing rows |
| `int` to `bigint`, `float` to `double`, a decimal of more digits, at any depth | widened |
| another order; another comment | made so |
| a column or field is gone | refused, unless it is `retired`: then it stays, and is null in new rows |
| a retired one is back | goes on under its id |
| any other type; a name that differs in case | refused |
| the key | refused: what is one row was decided when rows were written |
| partitions | changed for new files; existing files stay as they are |
| a type that widens is that of an identity or truncate partition | refused: writers of Iceberg 1.11 fail where both types meet |

A rename looks like a column that is gone beside a new one, and would leave each half empty: hence the refusal.
All or nothing: if one change is refused there are no steps, and the text lists all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pyiceberg.transforms import IdentityTransform, TruncateTransform, VoidTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StructType,
)

from gazette_platform.errors import SchemaMismatch
from gazette_platform.lake.spec.typed.columns import CHANGE_COLUMNS, SYSTEM_COLUMNS
from gazette_platform.lake.spec.types import text_of
from gazette_platform.lake.typed.iceberg_types import spec_type, wanted_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Transaction
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.table.update.spec import UpdateSpec
    from pyiceberg.types import NestedField

    from gazette_platform.lake.spec.typed import TypedSpec
    from gazette_platform.lake.spec.types import PartitionTransform

_Path = tuple[str, ...]
_SYSTEM: Final = frozenset(column.name for column in (*CHANGE_COLUMNS, *SYSTEM_COLUMNS))
_WAYS_OUT: Final = (
    "give the new one another name, with the key by `from`, and list this one under `retired`; or rebuild "
    "the table"
)


@final
@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column or field that is new; its ids are chosen when it is added."""

    path: _Path
    kind: IcebergType
    comment: str

    def apply(self, update: UpdateSchema) -> None:
        """Stage it."""
        update.add_column(self.path, self.kind, doc=self.comment or None)


@final
@dataclass(frozen=True, slots=True)
class Widen:
    """A type that holds more."""

    path: _Path
    kind: IcebergType

    def apply(self, update: UpdateSchema) -> None:
        """Stage it."""
        update.update_column(self.path, field_type=self.kind)


@final
@dataclass(frozen=True, slots=True)
class Relax:
    """What may be null from now on."""

    path: _Path

    def apply(self, update: UpdateSchema) -> None:
        """Stage it."""
        update.make_column_optional(self.path)


@final
@dataclass(frozen=True, slots=True)
class Comment:
    """What a column is said to be."""

    path: _Path
    comment: str

    def apply(self, update: UpdateSchema) -> None:
        """Stage it."""
        update.update_column(self.path, doc=self.comment)


@final
@dataclass(frozen=True, slots=True)
class Move:
    """Another place among the columns, or among the fields of one struct."""

    path: _Path
    after: str
    """Name of the one before it; empty: it is the first."""

    def apply(self, update: UpdateSchema) -> None:
        """Stage it."""
        if self.after:
            update.move_after(self.path, (*self.path[:-1], self.after))
        else:
            update.move_first(self.path)


@final
@dataclass(frozen=True, slots=True)
class AddPartition:
    """One more value that rows of a file have in common."""

    partition: PartitionTransform

    def apply(self, update: UpdateSpec) -> None:
        """Stage it."""
        one = self.partition
        update.add_field(one.column, one.iceberg, one.name)


@final
@dataclass(frozen=True, slots=True)
class RemovePartition:
    """One that new files have in common no more."""

    name: str
    """Of the partition field."""

    def apply(self, update: UpdateSpec) -> None:
        """Stage it."""
        update.remove_field(self.name)


SchemaStep = AddColumn | Widen | Relax | Comment | Move
PartitionStep = AddPartition | RemovePartition


@final
@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a table and its spec, for people."""

    before: str
    """As the table has it; empty: it has none."""
    after: str
    """As the spec has it; empty: it has none."""
    verdict: str
    is_refused: bool = False

    @property
    def lines(self) -> list[str]:
        """As a diff, with the verdict after the last line."""
        lines = [f"{sign} {text}" for sign, text in (("-", self.before), ("+", self.after)) if text]
        lines[-1] += f"   {'refused: ' if self.is_refused else ''}{self.verdict}"
        return lines


@final
@dataclass(frozen=True, slots=True)
class Evolution:
    """What differs, and what is to be done; nothing of it, if a change is refused."""

    changes: tuple[Change, ...]
    schema_steps: tuple[SchemaStep, ...] = ()
    partition_steps: tuple[PartitionStep, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the table cannot become what the spec says."""
        return any(change.is_refused for change in self.changes)

    @property
    def is_empty(self) -> bool:
        """Whether the table is what the spec says."""
        return not (self.is_refused or self.schema_steps or self.partition_steps)

    @property
    def text(self) -> str:
        """All differences, as lines of a diff."""
        return "\n".join(line for change in self.changes for line in change.lines)

    def require_possible(self) -> None:
        """Go on only if nothing is refused.

        Raises: SchemaMismatch: the table cannot become what the spec says; with the text.
        """
        if self.is_refused:
            raise SchemaMismatch(f"the table cannot become what its spec says:\n{self.text}")

    def apply(self, transaction: Transaction) -> None:
        """Stage all steps in a transaction of the table that it was planned for.

        Raises: as `require_possible`.
        """
        self.require_possible()
        if self.schema_steps:
            with transaction.update_schema() as schema:
                for step in self.schema_steps:
                    step.apply(schema)
        # A partition may be of a column that is new.
        if self.partition_steps:
            with transaction.update_spec() as partitions:
                for each in self.partition_steps:
                    each.apply(partitions)


def plan_evolution(
    spec: TypedSpec,
    schema: Schema,
    partitions: PartitionSpec,
    former: Sequence[PartitionSpec] = (),
) -> Evolution:
    """What has to be done with a table of `schema` and `partitions` to have it as `spec` says.

    Args:
        former: other partition specs that files of the table may have.
    """
    planner = _Planner(spec, schema, partitions, former)
    planner.plan()
    if any(change.is_refused for change in planner.changes):
        return Evolution(tuple(planner.changes))
    return Evolution(
        tuple(planner.changes), tuple(planner.schema_steps), tuple(planner.partition_steps)
    )


@final
class _Planner:
    """Compares a table with a spec, from the columns down."""

    def __init__(
        self,
        spec: TypedSpec,
        schema: Schema,
        partitions: PartitionSpec,
        former: Sequence[PartitionSpec],
    ) -> None:
        self._spec = spec
        self._schema = schema
        self._partitions = partitions
        self._all_partitions = [f for one in (partitions, *former) for f in one.fields]
        self._retired = frozenset(spec.retired)
        self.changes: list[Change] = []
        self.schema_steps: list[SchemaStep] = []
        self.partition_steps: list[PartitionStep] = []

    def plan(self) -> None:
        self._key()
        self._struct((), self._schema.fields, wanted_fields(self._spec))
        self._partition_fields()

    def _refuse(self, before: str, after: str, why: str) -> None:
        self.changes.append(Change(before, after, why, is_refused=True))

    def _key(self) -> None:
        current, wanted = self._schema.identifier_field_names(), set(self._spec.key)
        if current != wanted:
            before = f"key: {', '.join(sorted(current))}" if current else "no key"
            after = f"key: {', '.join(self._spec.key)}" if wanted else "no key"
            why = "which messages are one row was decided as rows were written; rebuild the table"
            self._refuse(before, after, why)

    def _struct(
        self, path: _Path, current: Sequence[NestedField], wanted: Sequence[NestedField]
    ) -> None:
        """Columns, or fields of one struct."""
        here = {field.name: field for field in current}
        names = {field.name for field in wanted}
        gone = [field for field in current if field.name not in names]
        added = [field for field in wanted if field.name not in here]
        for field in gone:
            self._gone((*path, field.name), field, added)
        for field in wanted:
            if field.name in here:
                self._field((*path, field.name), here[field.name], field)
            else:
                self._added((*path, field.name), field, gone)
        self._order(path, current, wanted, [f.name for f in added])

    def _gone(self, path: _Path, field: NestedField, added: Sequence[NestedField]) -> None:
        if ".".join(path) in self._retired:
            if field.required:
                self._relax(path, field)
            return
        text = text_of(spec_type(field.field_type))
        alike = [other.name for other in added if text_of(spec_type(other.field_type)) == text]
        hint = (
            f" (if {alike[0]} is the same, keep its name, and give its key by `from`)"
            if alike
            else ""
        )
        self._refuse(
            f"{'.'.join(path)}: {text}",
            "",
            "new rows would lack it: say so by listing it under `retired`, where it stays, or keep it"
            + hint,
        )

    def _added(self, path: _Path, field: NestedField, gone: Sequence[NestedField]) -> None:
        told = f"{'.'.join(path)}: {text_of(spec_type(field.field_type))}"
        twin = next((f.name for f in gone if f.name.lower() == field.name.lower()), "")
        if twin:
            self._refuse(
                "", told, f"engines take it for {twin}, as they ignore case; keep that spelling"
            )
        elif field.required:
            why = "existing rows have no value of it; the table was made as something else: rebuild it"
            self._refuse("", told, why)
        elif not path[:-1] and field.name in {f.name for f in self._all_partitions}:
            self._refuse("", told, "the table is, or was, partitioned under that name; use another")
        elif self._found(path) is not None:
            self._refuse(
                "", told, "its path is that of another field of the table; use another name"
            )
        else:
            self.changes.append(Change("", told, "added; null in existing rows"))
            self.schema_steps.append(AddColumn(path, field.field_type, field.doc or ""))

    def _found(self, path: _Path) -> int | None:
        """The id of the field that PyIceberg finds by a path, in which elements of lists may be left out.

        A field's own path always leads to it; one that is new may lead to another.
        """
        try:
            return self._schema.find_field(".".join(path)).field_id
        except ValueError:
            return None

    def _relax(self, path: _Path, field: NestedField) -> None:
        told = f"{'.'.join(path)}: {text_of(spec_type(field.field_type))}"
        self.changes.append(Change(f"{told} not null", told, "may be null from now on"))
        self.schema_steps.append(Relax(path))

    def _field(self, path: _Path, current: NestedField, wanted: NestedField) -> None:
        if wanted.required and current.optional:
            told = f"{'.'.join(path)}: {text_of(spec_type(wanted.field_type))}"
            why = "existing rows may have no value of it; rebuild the table"
            self._refuse(told, f"{told} not null", why)
        elif current.required and wanted.optional:
            self._relax(path, current)
        if len(path) == 1 and (current.doc or "") != (wanted.doc or ""):
            self.changes.append(Change("", f"{path[0]}: “{wanted.doc or ''}”", "comment"))
            self.schema_steps.append(Comment(path, wanted.doc or ""))
        self._kind(path, current, wanted.field_type)

    def _kind(self, path: _Path, field: NestedField, wanted: IcebergType) -> None:
        """The type of what has the same name in both, or is the element or value of it."""
        current = field.field_type
        match (current, wanted):
            case (StructType(), StructType()):
                self._struct(path, current.fields, wanted.fields)
            case (ListType(), ListType()):
                self._field((*path, "element"), current.element_field, wanted.element_field)
            case (MapType(), MapType()) if current.key_type == wanted.key_type:
                self._field((*path, "value"), current.value_field, wanted.value_field)
            case _ if current != wanted:
                self._other_kind(path, field, wanted)

    def _other_kind(self, path: _Path, field: NestedField, wanted: IcebergType) -> None:
        current = field.field_type
        name = ".".join(path)
        before, after = (f"{name}: {text_of(spec_type(kind))}" for kind in (current, wanted))
        if _widens(current, wanted):
            parted = [p.name for p in self._all_partitions if _is_held_by(p, field, wanted)]
            if parted:
                why = f"the table is, or was, partitioned by its values ({parted[0]}); {_WAYS_OUT}"
                self._refuse(before, after, why)
            else:
                self.changes.append(Change(before, after, "widened"))
                self.schema_steps.append(Widen(path, wanted))
        elif _widens(wanted, current):
            self._refuse(before, after, f"narrows what existing rows hold; {_WAYS_OUT}")
        else:
            self._refuse(before, after, f"existing rows cannot be read as that; {_WAYS_OUT}")

    def _order(
        self,
        path: _Path,
        current: Sequence[NestedField],
        wanted: Sequence[NestedField],
        added: Sequence[str],
    ) -> None:
        """Moves that lead from the order in which the table is, additions last, to that of the spec."""
        names = [field.name for field in wanted]
        before = [field.name for field in current]
        # Those of the system come last, and before them what is retired (or gone, which is refused).
        tail = [name for name in names if name in _SYSTEM] if not path else []
        kept = [name for name in before if name not in names]
        target = [*(name for name in names if name not in tail), *kept, *tail]
        moves: list[Move] = []
        order = [*before, *added]
        for index, name in enumerate(target):
            if order[index] != name:
                order.remove(name)
                order.insert(index, name)
                moves.append(Move((*path, name), target[index - 1] if index else ""))
        told = f"order{' of ' + '.'.join(path) if path else ''}: {', '.join(target)}"
        if [name for name in target if name not in added] != before:
            self.changes.append(Change("", told, "reordered"))
        self.schema_steps += moves

    def _partition_fields(self) -> None:
        # By names: a column that is new has no id yet.
        current = {
            (self._schema.find_column_name(field.source_id), str(field.transform)): field
            for field in self._partitions.fields
            if not isinstance(field.transform, VoidTransform)
        }
        wanted = {(p.column, p.iceberg): p for p in self._spec.partitions}
        for place, field in current.items():
            if place not in wanted:
                told = f"partition: {field.transform} of {place[0]}"
                self.changes.append(Change(told, "", "existing files keep it"))
                self.partition_steps.append(RemovePartition(field.name))
        names = {field.name.lower() for field in self._partitions.fields}
        columns = {field.name.lower() for field in self._schema.fields}
        for place, one in wanted.items():
            if place in current:
                continue
            told = f"partition: {one.text}"
            is_column = one.transform != "identity" and one.name.lower() in columns
            if one.name.lower() in names or is_column:
                why = f"{one.name}, as it is called, is the name of another partition or column"
                self._refuse("", told, why)
            else:
                self.changes.append(Change("", told, "of new files"))
                self.partition_steps.append(AddPartition(one))


def _widens(current: IcebergType, wanted: IcebergType) -> bool:
    """Whether Iceberg reads each value of `current` as one of `wanted`."""
    match (current, wanted):
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case (DecimalType(), DecimalType()):
            # PyIceberg would let the scale change, too.
            return current.scale == wanted.scale and current.precision < wanted.precision
        case _:
            return False


def _is_held_by(partition: PartitionField, field: NestedField, wanted: IcebergType) -> bool:
    """Whether files of the partition hold values of the field as they are, as another type than they would."""
    is_value = isinstance(partition.transform, IdentityTransform | TruncateTransform)
    return (
        is_value and partition.source_id == field.field_id and not isinstance(wanted, DecimalType)
    )
