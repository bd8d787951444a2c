"""Records in journals: framings, UUIDs, transactions, and the mapping of records to journals."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.client.read.records import split_lines
    from gazette_platform.message.arrow import ArrowBatch, ArrowReader, SyncArrowReader, read_arrow
    from gazette_platform.message.avro_files import (
        AVRO_CONTENT_TYPE,
        AvroBlock,
        AvroContainers,
        avro_records,
        check_avro_spec,
        encode_avro_file,
    )
    from gazette_platform.message.avro_framing import AvroFraming
    from gazette_platform.message.csv_framing import CsvFraming
    from gazette_platform.message.envelope import Envelope
    from gazette_platform.message.framing import (
        FIXED_MAGIC,
        FRAME_BYTES_MAX,
        Decoder,
        Framing,
        frame_fixed,
        split_fixed,
    )
    from gazette_platform.message.json_framing import JsonFraming, go_json
    from gazette_platform.message.many import MergedReader, read_journals, read_merged
    from gazette_platform.message.mapping import (
        Mapped,
        fnv1a32,
        modulo,
        modulo_mapping,
        random_mapping,
        rendezvous,
        rendezvous_mapping,
    )
    from gazette_platform.message.proto_framing import ProtoFraming
    from gazette_platform.message.publisher import AckIntent, Publisher
    from gazette_platform.message.readers import (
        CommittedReader,
        MessageDecoder,
        UncommittedReader,
    )
    from gazette_platform.message.reading import MessageIterator, read_committed, read_uncommitted
    from gazette_platform.message.registry import framing_of, framing_of_labels, register_framing
    from gazette_platform.message.selection import JournalSpan, select_spans
    from gazette_platform.message.sequencer import (
        PRUNE_HORIZON,
        RING_SIZE,
        Outcome,
        ProducerState,
        ReplayRange,
        Sequencer,
        SequencerCheckpoint,
    )
    from gazette_platform.message.sequencer_counts import SequencerCounts
    from gazette_platform.message.uuid import (
        CLOCK_TICK,
        NO_UUID,
        Flags,
        MessageClock,
        UuidParts,
        build_uuid,
        clock_of,
        new_producer_id,
        parse_uuid,
        parse_uuids,
        unix_ns_of,
        uuid_bytes,
    )

__all__ = [
    "AVRO_CONTENT_TYPE",
    "CLOCK_TICK",
    "FIXED_MAGIC",
    "FRAME_BYTES_MAX",
    "NO_UUID",
    "PRUNE_HORIZON",
    "RING_SIZE",
    "AckIntent",
    "ArrowBatch",
    "ArrowReader",
    "AvroBlock",
    "AvroContainers",
    "AvroFraming",
    "CommittedReader",
    "CsvFraming",
    "Decoder",
    "Envelope",
    "Flags",
    "Framing",
    "JournalSpan",
    "JsonFraming",
    "Mapped",
    "MergedReader",
    "MessageClock",
    "MessageDecoder",
    "MessageIterator",
    "Outcome",
    "ProducerState",
    "ProtoFraming",
    "Publisher",
    "ReplayRange",
    "Sequencer",
    "SequencerCheckpoint",
    "SequencerCounts",
    "SyncArrowReader",
    "UncommittedReader",
    "UuidParts",
    "avro_records",
    "build_uuid",
    "check_avro_spec",
    "clock_of",
    "encode_avro_file",
    "fnv1a32",
    "frame_fixed",
    "framing_of",
    "framing_of_labels",
    "go_json",
    "modulo",
    "modulo_mapping",
    "new_producer_id",
    "parse_uuid",
    "parse_uuids",
    "random_mapping",
    "read_arrow",
    "read_committed",
    "read_journals",
    "read_merged",
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

_HOMES = {
    "gazette_platform.client.read.records": ("split_lines",),
    "gazette_platform.message.arrow": (
        "ArrowBatch",
        "ArrowReader",
        "SyncArrowReader",
        "read_arrow",
    ),
    "gazette_platform.message.avro_files": (
        "AVRO_CONTENT_TYPE",
        "AvroBlock",
        "AvroContainers",
        "avro_records",
        "check_avro_spec",
        "encode_avro_file",
    ),
    "gazette_platform.message.avro_framing": ("AvroFraming",),
    "gazette_platform.message.csv_framing": ("CsvFraming",),
    "gazette_platform.message.envelope": ("Envelope",),
    "gazette_platform.message.framing": (
        "FIXED_MAGIC",
        "FRAME_BYTES_MAX",
        "Decoder",
        "Framing",
        "frame_fixed",
        "split_fixed",
    ),
    "gazette_platform.message.json_framing": ("JsonFraming", "go_json"),
    "gazette_platform.message.many": ("MergedReader", "read_journals", "read_merged"),
    "gazette_platform.message.mapping": (
        "Mapped",
        "fnv1a32",
        "modulo",
        "modulo_mapping",
        "random_mapping",
        "rendezvous",
        "rendezvous_mapping",
    ),
    "gazette_platform.message.proto_framing": ("ProtoFraming",),
    "gazette_platform.message.publisher": ("AckIntent", "Publisher"),
    "gazette_platform.message.readers": ("CommittedReader", "MessageDecoder", "UncommittedReader"),
    "gazette_platform.message.reading": ("MessageIterator", "read_committed", "read_uncommitted"),
    "gazette_platform.message.registry": ("framing_of", "framing_of_labels", "register_framing"),
    "gazette_platform.message.selection": ("JournalSpan", "select_spans"),
    "gazette_platform.message.sequencer": (
        "PRUNE_HORIZON",
        "RING_SIZE",
        "Outcome",
        "ProducerState",
        "ReplayRange",
        "Sequencer",
        "SequencerCheckpoint",
    ),
    "gazette_platform.message.sequencer_counts": ("SequencerCounts",),
    "gazette_platform.message.uuid": (
        "CLOCK_TICK",
        "NO_UUID",
        "Flags",
        "MessageClock",
        "UuidParts",
        "build_uuid",
        "clock_of",
        "new_producer_id",
        "parse_uuid",
        "parse_uuids",
        "unix_ns_of",
        "uuid_bytes",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # to which any name would be there

    def __getattr__(name: str) -> Any:
        # Imported when first used: who parses lines needs no transactions.
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found
