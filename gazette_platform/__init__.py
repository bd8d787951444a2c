"""A streaming log whose storage is the data lake itself.

What users of a cluster need is here, of `client` (bytes), of `message` (records, Arrow) and of `lake`
(`connect`: SQL), and is imported when it is first used: brokers and commands import only what they need.
"""

# ruff: noqa: F403, F405  the names are those of the `__all__` of client and message, as a test sees to
import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.client import *
    from gazette_platform.lake.engines.duckdb import connect
    from gazette_platform.message import *

__all__ = [
    "AVRO_CONTENT_TYPE",
    "CLOCK_TICK",
    "FIXED_MAGIC",
    "FRAME_BYTES_MAX",
    "NO_UUID",
    "PRUNE_HORIZON",
    "RING_SIZE",
    "AckIntent",
    "AppendOptions",
    "AppendResult",
    "AppendService",
    "AppendTicket",
    "AppendWriter",
    "ArrowBatch",
    "ArrowReader",
    "AsyncClient",
    "AvroBlock",
    "AvroContainers",
    "AvroFraming",
    "AwaitedBroker",
    "Change",
    "Client",
    "ClientConfig",
    "ClientCounts",
    "CommittedReader",
    "CsvFraming",
    "Decoder",
    "Dependency",
    "Envelope",
    "Flags",
    "FragmentListing",
    "FragmentPage",
    "FragmentQuery",
    "Framing",
    "HeadState",
    "JournalListing",
    "JournalSpan",
    "JournalWatch",
    "JsonFraming",
    "JsonReader",
    "LineReader",
    "ListSnapshot",
    "Mapped",
    "MergedReader",
    "MessageClock",
    "MessageDecoder",
    "MessageIterator",
    "Outcome",
    "ProducerState",
    "ProtoFraming",
    "Publisher",
    "Reader",
    "RecordWriter",
    "ReplayRange",
    "Savepoint",
    "Sequencer",
    "SequencerCheckpoint",
    "SequencerCounts",
    "StoreHealth",
    "StoreReader",
    "SyncAppendService",
    "SyncAppendTicket",
    "SyncAppendWriter",
    "SyncArrowReader",
    "SyncReader",
    "SyncServiceTicket",
    "UncommittedReader",
    "UuidParts",
    "avro_records",
    "build_uuid",
    "check_avro_spec",
    "clock_of",
    "connect",
    "encode_avro_file",
    "fnv1a32",
    "frame_fixed",
    "framing_of",
    "framing_of_labels",
    "go_json",
    "json_lines",
    "lines",
    "modulo",
    "modulo_mapping",
    "new_producer_id",
    "parse_uuid",
    "parse_uuids",
    "random_mapping",
    "read_arrow",
    "read_committed",
    "read_fragment",
    "read_journals",
    "read_merged",
    "read_store",
    "read_uncommitted",
    "register_framing",
    "rendezvous",
    "rendezvous_mapping",
    "select_spans",
    "split_fixed",
    "split_lines",
    "unix_ns_of",
    "uuid_bytes",
]

_HOMES = ("gazette_platform.client", "gazette_platform.message")
_SQL = "gazette_platform.lake.engines.duckdb"

# gRPC's newer event engine hands each read and write to another thread, which costs small messages
# a fifth of their rate. Read once, when grpc is imported: so it stands here, and yields to the user.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")


if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        if name == "connect":
            return importlib.import_module(_SQL).connect
        if name in __all__:
            for home in map(importlib.import_module, _HOMES):
                if name in home.__all__:
                    return getattr(home, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
