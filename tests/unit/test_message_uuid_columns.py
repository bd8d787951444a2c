"""Columns of UUIDs give what each gives alone."""

import random
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

from gazette_platform.errors import DataError
from gazette_platform.message import NO_UUID, parse_uuid
from gazette_platform.message.uuid import parse_uuid_column

DRAWN = random.Random(7)
UUIDS = [
    uuid.UUID(int=(1 << 128) - 1),
    uuid.UUID("83fc2f95-cc5f-11e9-82aa-070203040506"),
    None,
    *(uuid.UUID(int=DRAWN.getrandbits(128)) for _ in range(500)),
]
TEXT = [one and str(one) for one in UUIDS]
RAW = [one and one.bytes for one in UUIDS]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXT),
        pa.array(TEXT, pa.large_string()),
        pa.chunked_array([pa.array(TEXT[:2]), pa.array(TEXT[2:])]),
        pa.array([TEXT[0], *TEXT])[1:],
        pa.array(RAW, pa.binary()),
        pa.array(RAW, pa.binary(16)),
        pa.array([RAW[1], *RAW], pa.binary(16))[1:],
        pa.array(RAW, pa.uuid()),
    ],
    ids=lambda column: f"{column.type} from {getattr(column, 'offset', 'chunks')}",
)
def test_columns_are_parsed_as_each_uuid_alone(column):
    parsed = parse_uuid_column(column)
    rows = [(row["producer"], row["clock"], row["flags"]) for row in parsed.to_pylist()]
    assert rows == [NO_UUID if one is None else parse_uuid(one) for one in UUIDS]
    assert [str(field.type) for field in parsed.type] == [
        "fixed_size_binary[6]",
        "uint64",
        "uint16",
    ]


def test_an_empty_column_gives_no_rows():
    assert len(parse_uuid_column(pa.array([], pa.string()))) == 0
    assert len(parse_uuid_column(pa.array([None], pa.string()))) == 1


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array(["x"]), "'x' is not a UUID"),
        (pa.array([b"x"]), "holds no UUIDs of 16 bytes"),
        (pa.array([1]), "int64 holds no UUIDs"),
    ],
)
def test_value_that_is_not_a_uuid_is_refused(column, why):
    with pytest.raises(DataError, match=why):
        parse_uuid_column(column)


def test_without_pyarrow_it_says_what_to_install():
    program = """
import sys
sys.modules["pyarrow"] = None
from gazette_platform.errors import SetupError
from gazette_platform.message.uuid import parse_uuid_column
try:
    parse_uuid_column(None)
except SetupError as err:
    assert "gazette-platform[arrow]" in str(err), err
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
