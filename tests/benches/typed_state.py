"""What a typed table has come to, as a file beside it that its snapshot names: offsets, and states of producers."""

from __future__ import annotations

import io
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from gazette_platform.message.sequencer import ProducerState, SequencerCheckpoint

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

__all__ = ["dump_state", "parse_state", "read_state", "write_state"]

_SCHEMA = pa.schema(
    [
        ("journal", pa.string()),
        # Null: the row says to which offset its journal was read.
        ("producer", pa.binary(6)),
        ("last_ack", pa.uint64()),
        ("begin", pa.int64()),
    ]
)


def dump_state(state: SequencerCheckpoint) -> bytes:
    """The state as a Parquet file, which any engine can be asked about."""
    rows = sorted(state.producers)
    offsets = sorted(state.offsets.items())
    columns = [
        [j for j, _ in offsets] + [one.journal for one in rows],
        [None] * len(offsets) + [one.producer for one in rows],
        [None] * len(offsets) + [one.last_ack for one in rows],
        [offset for _, offset in offsets] + [one.begin for one in rows],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
    out = io.BytesIO()
    parquet.write_table(
        pa.Table.from_arrays(arrays, schema=_SCHEMA),
        out,
        compression="zstd",
        use_dictionary=["journal", "producer"],
        column_encoding={"last_ack": "DELTA_BINARY_PACKED"},
        store_schema=False,
    )
    return out.getvalue()


def parse_state(content: bytes) -> SequencerCheckpoint:
    """The state that was dumped."""
    table = parquet.read_table(io.BytesIO(content))
    rows = list(zip(*(table.column(name).to_pylist() for name in _SCHEMA.names), strict=True))
    return SequencerCheckpoint(
        offsets={journal: begin for journal, producer, _, begin in rows if producer is None},
        producers=tuple(ProducerState(*row) for row in rows if row[1] is not None),
    )


def write_state(files: FileIO, location: str, state: SequencerCheckpoint) -> str:
    """Write it beside the table, where no engine looks for orphans. Returns: the path."""
    path = f"{location}.gazette/{uuid.uuid4()}.state"
    with files.new_output(path).create() as stream:
        stream.write(dump_state(state))
    return path


def read_state(files: FileIO, path: str) -> SequencerCheckpoint:
    """Read it."""
    with files.new_input(path).open() as stream:
        return parse_state(stream.read())
