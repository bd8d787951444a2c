"""Values of typed tables as Spark takes them: with texts for UUIDs."""

import uuid

import pyarrow as pa
import pytest

from gazette_platform.spark.typed_frames import as_spark_has_it

ONE, TWO = uuid.UUID(int=1 << 127 | 0xABC), uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def array_of(kind, *values):
    """An array of a type with UUIDs, which Arrow makes of no values of Python."""

    def storage(kind):
        match kind:
            case pa.UuidType():
                return kind.storage_type
            case pa.StructType():
                return pa.struct([(field.name, storage(field.type)) for field in kind])
            case pa.ListType():
                return pa.list_(storage(kind.value_type))
            case pa.MapType():
                return pa.map_(kind.key_type, storage(kind.item_type))
            case _:
                return kind

    def dressed(array, kind):
        match kind:
            case pa.UuidType():
                return pa.ExtensionArray.from_storage(kind, array)
            case pa.StructType():
                fields = [dressed(array.field(f.name), f.type) for f in kind]
                return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
            case pa.ListType():
                values = dressed(array.values, kind.value_type)
                return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
            case pa.MapType():
                items = dressed(array.items, kind.item_type)
                return pa.MapArray.from_arrays(
                    array.offsets, array.keys, items, mask=array.is_null()
                )
            case _:
                return array

    return dressed(pa.array(values, storage(kind)), kind)


UUID = pa.uuid()
PLACE = pa.struct([("id", UUID), ("lines", pa.list_(pa.int32()))])


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (UUID, [ONE.bytes, None, TWO.bytes], [str(ONE), None, str(TWO)]),
        (pa.list_(UUID), [[ONE.bytes], None, [], [None, TWO.bytes]], [[str(ONE)], None, [], [None, str(TWO)]]),
        (PLACE, [None, {"id": TWO.bytes, "lines": [1]}], [None, {"id": str(TWO), "lines": [1]}]),
        (
            pa.map_(pa.string(), PLACE),
            [[("a", {"id": ONE.bytes, "lines": None})], None, [("b", None)]],
            [[("a", {"id": str(ONE), "lines": None})], None, [("b", None)]],
        ),
        (pa.list_(pa.list_(UUID)), [[[ONE.bytes], None]], [[[str(ONE)], None]]),
        (pa.string(), ["a"], ["a"]),
    ],
)  # fmt: skip
def test_uuids_are_texts_at_any_depth(kind, values, expected, first):
    found = as_spark_has_it(array_of(kind, *values).slice(first))
    assert found.to_pylist() == expected[first:]
    found.validate(full=True)
