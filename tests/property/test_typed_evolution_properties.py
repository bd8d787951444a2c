"""Evolutions of typed tables: whatever table and spec meet, the plan leads there or says why not."""

from itertools import count

from hypothesis import given, settings, strategies as st
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from gazette_platform.lake.spec.typed import TypedSpec
from gazette_platform.lake.spec.typed.columns import SYSTEM_COLUMNS, TypedColumn
from gazette_platform.lake.spec.types import (
    KEY_TYPES,
    SCALARS,
    TRANSFORMS,
    ColumnType,
    parse_partition,
    text_of,
)
from gazette_platform.lake.typed.evolution import plan_evolution
from gazette_platform.lake.typed.iceberg_types import (
    new_partition_spec,
    new_schema,
    spec_type,
)

# Few names, so that tables and specs have some in common, and those that paths are made of.
NAMES = st.sampled_from(["a", "b", "c", "d", "element", "value", "key", "a_day"])
# What widens occurs more often than what does not.
SCALAR = st.sampled_from(
    [*(ColumnType(name) for name in (*SCALARS, "int", "bigint", "float", "double"))]
    + [ColumnType("decimal", precision=p, scale=s) for p, s in ((5, 2), (9, 2), (9, 3))]
)


def _nested(inner):
    fields = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return st.one_of(
        inner.map(lambda kind: ColumnType("array", (kind,))),
        inner.map(lambda kind: ColumnType("map", (ColumnType("string"), kind))),
        fields.map(lambda found: ColumnType("struct", tuple(found.values()), tuple(found))),
    )


# Most columns are simple ones, which the recursion alone would hardly make.
KINDS = SCALAR | SCALAR | st.recursive(SCALAR, _nested, max_leaves=6)


@st.composite
def partitions_of(draw, kinds, *, taken=()):
    """Partitions that a spec of these columns may have; none of a name that is `taken`."""
    texts = [
        f"{transform}(8, {name})" if transform in ("bucket", "truncate") else f"{transform}({name})"
        for name, kind in kinds.items()
        for transform, fit in TRANSFORMS.items()
        if kind.name in fit
    ]
    chosen = draw(st.lists(st.sampled_from(texts), max_size=2, unique=True)) if texts else []
    partitions = {p.name: p for p in map(parse_partition, chosen)}
    times = {p.column: p.name for p in partitions.values() if p.is_time}
    return tuple(
        p
        for p in partitions.values()
        if (p.transform == "identity" or p.name not in {*kinds, *taken})
        and (not p.is_time or times[p.column] == p.name)
    )


@st.composite
def specs(draw, key=None):
    """Typed tables of a few columns."""
    kinds = draw(st.dictionaries(NAMES, KINDS, min_size=1, max_size=5))
    fitting = [name for name, kind in kinds.items() if kind.name in KEY_TYPES]
    if key is None:
        key = tuple(
            draw(st.lists(st.sampled_from(fitting), max_size=2, unique=True)) if fitting else ()
        )
    comments = st.sampled_from(["", "one", "two"])
    return TypedSpec(
        name="typed.t",
        source="raw.t",
        uuid=(),
        columns=tuple(
            TypedColumn(name=n, type=text_of(k), key=n, comment=draw(comments), required=n in key)
            for n, k in kinds.items()
        ),
        key=key,
        partitions=draw(partitions_of(kinds)),
    )


def table_of(spec):
    """The table that would be made of a spec, in memory."""
    schema = new_schema(spec)
    metadata = new_table_metadata(
        schema, new_partition_spec(spec, schema), UNSORTED_SORT_ORDER, "file:///nowhere"
    )
    return Table(("typed", "t"), metadata, "", PyArrowFileIO(), NoopCatalog("none"))


def plan(spec, metadata):
    former = [one for one in metadata.specs().values() if one.spec_id != metadata.default_spec_id]
    return plan_evolution(spec, metadata.schema(), metadata.spec(), former)


def evolved(spec, table, found):
    transaction = table.transaction()
    found.apply(transaction)
    return transaction.table_metadata


def ids_of(schema: Schema) -> dict[str, int]:
    return {schema.find_column_name(i): i for i in schema.field_ids}


def shape_of(metadata):
    """Names, types, comments and order of columns, the key, and the partitions, without ids."""
    schema = metadata.schema()
    return (
        [
            (f.name, text_of(spec_type(f.field_type)), f.required, f.doc or "")
            for f in schema.fields
        ],
        schema.identifier_field_names(),
        {(schema.find_column_name(f.source_id), str(f.transform)) for f in metadata.spec().fields},
    )


@given(spec=specs())
def test_table_made_of_a_spec_is_what_the_spec_says(spec):
    found = plan(spec, table_of(spec).metadata)
    assert found.is_empty
    assert found.text == ""


@settings(max_examples=300)
@given(before=specs(key=()), after=specs(key=()))
def test_plan_leads_to_the_spec_or_says_why_not(before, after):
    table = table_of(before)
    found = plan(after, table.metadata)
    if found.is_refused:
        assert not found.schema_steps
        assert not found.partition_steps
        assert "refused: " in found.text
        return
    metadata = evolved(after, table, found)
    assert shape_of(metadata) == shape_of(table_of(after).metadata)
    kept = ids_of(table.metadata.schema())
    assert kept.items() <= ids_of(metadata.schema()).items()
    assert plan(after, metadata).is_empty


@st.composite
def grown(draw):
    """A spec, and one that it may become: columns and fields retired, added, widened, moved."""
    before = draw(specs(key=()))
    retired: list[str] = []
    numbers = count()

    def grow(kind, path):
        match kind.name:
            case "int" | "float" if path not in held:
                wider = {"int": "bigint", "float": "double"}[kind.name]
                return ColumnType(draw(st.sampled_from([kind.name, wider])))
            case "decimal":
                more = draw(st.integers(0, 3))
                return ColumnType("decimal", precision=kind.precision + more, scale=kind.scale)
            case "array":
                return ColumnType("array", (grow(kind.arguments[0], f"{path}.element"),))
            case "map":
                key, value = kind.arguments
                return ColumnType("map", (key, grow(value, f"{path}.value")))
            case "struct":
                fields = grow_all(dict(zip(kind.field_names, kind.arguments, strict=True)), path)
                return ColumnType("struct", tuple(fields.values()), tuple(fields))
            case _:
                return kind

    def grow_all(kinds, path):
        kept = {}
        for name, kind in kinds.items():
            full = f"{path}.{name}" if path else name
            if draw(st.integers(0, 5)) == 0:
                retired.append(full)
            else:
                kept[name] = grow(kind, full)
        for _ in range(draw(st.integers(0, 1 if kept else 2)) or (0 if kept else 1)):
            kept[f"new_{next(numbers)}"] = draw(KINDS)
        return dict(draw(st.permutations(list(kept.items()))))

    held = {p.column for p in before.partitions if p.transform in ("identity", "truncate")}
    former = {column.name: column.parsed for column in before.columns}
    kinds = grow_all(former, "")
    after = TypedSpec(
        name="typed.t",
        source="raw.t",
        uuid=(),
        columns=tuple(TypedColumn(name=n, type=text_of(k), key=n) for n, k in kinds.items()),
        retired=tuple(retired),
        partitions=draw(partitions_of(kinds, taken=former)),
    )
    return before, after


@settings(max_examples=200)
@given(specs=grown())
def test_additions_widenings_moves_and_retirements_are_taken(specs):
    before, after = specs
    table = table_of(before)
    found = plan(after, table.metadata)
    if found.is_refused:
        # Only where two fields have one path, as PyIceberg finds them.
        assert "path is" in found.text
        assert all("path is" in change.verdict for change in found.changes if change.is_refused)
        return
    metadata = evolved(after, table, found)
    ids, before_ids = ids_of(metadata.schema()), ids_of(table.metadata.schema())
    assert before_ids.items() <= ids.items()
    wanted = [column.name for column in after.columns]
    gone = [column.name for column in before.columns if column.name not in wanted]
    system = [column.name for column in SYSTEM_COLUMNS]
    assert [f.name for f in metadata.schema().fields] == [*wanted, *gone, *system]
    assert {p.name for p in after.partitions} == {f.name for f in metadata.spec().fields}
    for column in after.columns:
        if not any(path.startswith(f"{column.name}.") for path in after.retired):
            kind = spec_type(metadata.schema().find_field(column.name).field_type)
            assert text_of(kind) == column.type.replace("json", "string")
    assert plan(after, metadata).is_empty
