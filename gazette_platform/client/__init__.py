"""Client of Gazette-compatible brokers.

`AsyncClient` and the synchronous `Client` list, watch, apply, append to and read journals. An
append is one atomic span, at least once; an append writer makes few appends of many small writes;
a reader is one seamless stream over brokers, fragments and broken connections. Content is bytes:
`lines` and `json_lines` give batches of records at no Python step per byte or line.
"""

from __future__ import annotations

from gazette_platform.client.async_client import AsyncClient, JournalWatch
from gazette_platform.client.config import ClientConfig
from gazette_platform.client.read.reader import Reader
from gazette_platform.client.read.records import (
    JsonReader,
    LineReader,
    json_lines,
    lines,
    split_lines,
)
from gazette_platform.client.read.store_reader import StoreReader, read_fragment, read_store
from gazette_platform.client.results import (
    AppendResult,
    AwaitedBroker,
    FragmentListing,
    FragmentPage,
    FragmentQuery,
    HeadState,
    JournalListing,
    ListSnapshot,
    Savepoint,
    StoreHealth,
)
from gazette_platform.client.sync_client import Client, SyncReader
from gazette_platform.client.transport import ClientCounts
from gazette_platform.client.write.append import AppendOptions
from gazette_platform.client.write.append_queue import AppendTicket
from gazette_platform.client.write.sync_writers import (
    SyncAppendService,
    SyncAppendTicket,
    SyncAppendWriter,
    SyncServiceTicket,
)
from gazette_platform.client.write.writers import (
    AppendService,
    AppendWriter,
    Dependency,
    RecordWriter,
)
from gazette_platform.protocol import JournalChange as Change

__all__ = [
    "AppendOptions",
    "AppendResult",
    "AppendService",
    "AppendTicket",
    "AppendWriter",
    "AsyncClient",
    "AwaitedBroker",
    "Change",
    "Client",
    "ClientConfig",
    "ClientCounts",
    "Dependency",
    "FragmentListing",
    "FragmentPage",
    "FragmentQuery",
    "HeadState",
    "JournalListing",
    "JournalWatch",
    "JsonReader",
    "LineReader",
    "ListSnapshot",
    "Reader",
    "RecordWriter",
    "Savepoint",
    "StoreHealth",
    "StoreReader",
    "SyncAppendService",
    "SyncAppendTicket",
    "SyncAppendWriter",
    "SyncReader",
    "SyncServiceTicket",
    "json_lines",
    "lines",
    "read_fragment",
    "read_store",
    "split_lines",
]
