"""SQL without a server: DuckDB in this process over the journals of table specs.

Nouns: a *snapshot* is what a table holds at an instant, journals up to their write heads; an *extent* is
a span of a journal's bytes that one persisted fragment holds, or that brokers are asked for; a *scan*
reads the extents that a query may need. Guarantee: each byte below the heads is read once, whatever
overlaps; nothing is written. Cost of a query: a List call and two calls a journal of each table that it
names, then the content of the Hive partitions that it needs, streamed in blocks of 4 MiB.

``journal('events/')`` in a query is a table whose spec is inferred from samples, once a session.

A *seam* is where the rows of a typed table end and its tail begins. Guarantee: each committed message below the
heads is a row once. Cost: the catalog's answer, the files of the table that are needed, and its whole tail.
"""

from gazette_platform.client.read.extents import JournalSnapshot
from gazette_platform.lake.engines.duckdb.results import QueryResult
from gazette_platform.lake.engines.duckdb.session import LocalSql, connect
from gazette_platform.lake.engines.duckdb.snapshot import TableSnapshot
from gazette_platform.lake.engines.duckdb.typed_view import JournalSeam, TypedSeam

__all__ = [
    "JournalSeam",
    "JournalSnapshot",
    "LocalSql",
    "QueryResult",
    "TableSnapshot",
    "TypedSeam",
    "connect",
]
