"""`format("gazette")`: journals as a data source and a sink of PySpark 4.1, in batches and as a stream.

Nouns: an *extent* is a part of a journal that one persisted fragment holds, or brokers; a *split* is the extents
that one task reads. Guarantee: each byte of the range that is read is in one extent, and a batch of a stream is a function of
its offsets, so a repeated batch has the same rows. Cost: the driver asks for journals, heads and fragments; tasks read stored
fragments past the brokers, in blocks of 1 MiB.

Of writes: tasks make *blocks* of records, and the driver appends them, by registers that say how far a writer has come.
Guarantee: each epoch of a query is in its journals once, whoever does it again.

Beside it, Spark as the workers of typed runs (`typed_workers`): an *order* of a run is a task.

And typed tables as data frames, with the tail that no run has published yet (`typed_view`).

Needs the extras ``spark`` and ``arrow``, on the driver and on executors; for typed runs and views ``lake``.
"""

from gazette_platform.spark.source import GazetteDataSource, register
from gazette_platform.spark.typed_frames import typed_view

__all__ = ["GazetteDataSource", "register", "typed_view"]
