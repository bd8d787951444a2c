"""The memory of a worker that writes to a thousand partitions, in a process of its own."""

import os
import subprocess
import sys

_PROGRAM = """
import sys
from resource import RUSAGE_SELF, getrusage
import pyarrow as pa
from pyiceberg.io import load_file_io
from typed_world import spec
from gazette_platform.lake.typed.iceberg_types import new_partition_spec, new_schema
from gazette_platform.lake.spec.types import parse_partition
from gazette_platform.lake.typed.tables.writing import RowWriter

location, rows = sys.argv[1], 10_000
wanted = spec(partitions=(parse_partition("n"),))
schema = new_schema(wanted)
held = 32 << 20
writer = RowWriter(load_file_io({}, location), location, schema, new_partition_spec(wanted, schema), held_bytes=held)
peaks, size, block = [], 0, 0
while len(peaks) < 2:
    ns = pa.array([(block + n) % 1000 for n in range(rows)], pa.int64())
    begins = pa.array(range(block * rows, block * rows + rows), pa.int64())
    ks = pa.array([f"{block} {n} " + "x" * 300 for n in range(rows)])
    columns = [ns, ks, pa.repeat("a/journal", rows), begins, begins, pa.nulls(rows, pa.uuid())]
    writer.add(pa.Table.from_arrays(columns, schema=writer.schema))
    block += 1
    size += ks.nbytes
    if not writer._held:
        peaks.append(getrusage(RUSAGE_SELF).ru_maxrss << 10)
files = writer.close()
assert sum(one.rows for one in files) == block * rows
assert len(writer._open) == 0
print(size, peaks[-1] - peaks[0], len(files))
"""


def test_memory_does_not_grow_with_a_thousand_partitions(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", _PROGRAM, tmp_path.as_uri()]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    size, grown, files = map(int, done.stdout.split())
    assert size > 56 << 20
    # What comes after the first 32 MiB takes no more than these did.
    assert grown < 16 << 20
    assert 1000 <= files <= 2000
