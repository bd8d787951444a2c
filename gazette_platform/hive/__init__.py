"""A typed client of the Hive Metastore's Thrift API.

Nouns: a *database* holds *tables*; a table has *columns*, *partition columns* and *parameters*; a
*Hive partition* is a list of values with a location of its own and parameters. Everything here is
external: dropping a table or a Hive partition never deletes a file.

Guarantee: `MetastoreClient.add_partitions` is idempotent; every failure is a `LakeError` that names
the server and the object. Cost: one connection per `MetastoreClient.connect` scope, a round trip of
about a millisecond a call, and about 20 ms a new Hive partition on the server.
"""

from gazette_platform.hive.client import (
    Metastore,
    MetastoreClient,
    MetastoreSession,
    SharedMetastore,
)
from gazette_platform.hive.locks import HeldLock
from gazette_platform.hive.model import (
    CSV_ESCAPE,
    CSV_STORAGE,
    JSON_STORAGE,
    HiveColumn,
    HivePartition,
    HiveTable,
    StorageFormat,
    partition_name,
)

__all__ = [
    "CSV_ESCAPE",
    "CSV_STORAGE",
    "JSON_STORAGE",
    "HeldLock",
    "HiveColumn",
    "HivePartition",
    "HiveTable",
    "Metastore",
    "MetastoreClient",
    "MetastoreSession",
    "SharedMetastore",
    "StorageFormat",
    "partition_name",
]
