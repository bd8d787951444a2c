"""Where shards keep their state: stores, which commit it together with a checkpoint.

`JSONFileStore` and `MemoryStore` hold one Python object, for little state. `SQLiteStore` and `RocksDBStore` have their own
database, whose files a recovery log records. `SQLStore` has tables in an existing database. `base` says what every
store has to do; `testing.shard_store_conformance` checks it.
Promise: state and checkpoint are committed both or not at all, before any message that follows from them is
acknowledged. Of two processes that have one shard, the one that restored first is fenced.
Cost: see each store; a recorded one appends what changed to its log, and a standby needs the disk for a copy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.consumer.store.base import JSONFileStore, Memories, MemoryStore, ShardStore
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from gazette_platform.consumer.store.rocksdb import RocksDBStore
    from gazette_platform.consumer.store.sql import (
        SQLStore,
        checkpoints_ddl,
        create_tables,
        sql_engine,
    )
    from gazette_platform.consumer.store.sqlite import SQLiteStore

__all__ = [
    "JSONFileStore",
    "Memories",
    "MemoryStore",
    "RocksDBStore",
    "SQLStore",
    "SQLiteStore",
    "ShardStore",
    "checkpoints_ddl",
    "create_tables",
    "opening_may_pass",
    "sql_engine",
]

# What needs a package of an extra: its module, the package, the extra.
_SQL: Final = ("sqlalchemy", "sql-store")
_OF_EXTRAS: Final = {
    "RocksDBStore": ("rocksdb", "rocksdict", "rocksdb"),
    "SQLStore": ("sql", *_SQL),
    "SQLiteStore": ("sqlite", "apsw", "sqlite"),
    "checkpoints_ddl": ("sql", *_SQL),
    "create_tables": ("sql", *_SQL),
    "sql_engine": ("sql", *_SQL),
}


def opening_may_pass(error: Exception) -> bool:
    """As `ShardStore.may_pass`, for a failure before there was a store.

    An application may use its database while it opens its store.
    """
    if "sqlalchemy" in sys.modules:  # else the error cannot come from a database
        from gazette_platform.consumer.store.sql import sql_may_pass  # noqa: PLC0415  an extra

        if sql_may_pass(error):
            return True
    return ShardStore.may_pass(error)


if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        if name not in _OF_EXTRAS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, package, extra = _OF_EXTRAS[name]
        required(package, extra=extra, by="such stores of shards")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
