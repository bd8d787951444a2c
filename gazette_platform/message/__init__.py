"""Messages in journals: framings, UUIDs, transactions, and the mapping of messages to journals.

Nouns: message, framing (how a journal delimits messages), UUID (its producer, clock and flags),
sequencer (which messages are committed), publisher, mapping (which journal a message goes to).
Promise: a reader of committed messages returns each message once, although appends are at least once. UUIDs, framings
and the choice of journals are Gazette's, byte for byte.
Cost: a reader keeps the messages of open transactions in memory, up to a ring of 8,192 by default; it reads older ones again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gazette_platform.client.read.records import split_lines
    from gazette_platform.message.arrow import ArrowBatch, ArrowReader, SyncArrowReader, read_arrow
    from gazette_platform.message.avro import (
        AVRO_CONTENT_TYPE,
        AvroBlock,
        AvroContainers,
        AvroFraming,
        avro_records,
        check_avro_spec,
        encode_avro_file,
    )
    from gazette_platform.message.content_types import (
        CsvFraming,
        JsonFraming,
        ProtoFraming,
        framing_of,
        framing_of_labels,
        go_json,
        register_framing,
    )
    from gazette_platform.message.framing import (
        FIXED_MAGIC,
        FRAME_BYTES_MAX,
        Decoder,
        Framing,
        frame_fixed,
        split_fixed,
    )
    from gazette_platform.message.many_journals import (
        JournalSpan,
        MergedReader,
        read_journals,
        read_merged,
        select_spans,
    )
    from gazette_platform.message.publisher import (
        AckIntent,
        Mapped,
        Publisher,
        fnv1a32,
        modulo,
        modulo_mapping,
        random_mapping,
        rendezvous,
        rendezvous_mapping,
    )
    from gazette_platform.message.reading import (
        CommittedReader,
        MessageDecoder,
        MessageIterator,
        UncommittedReader,
        read_committed,
        read_uncommitted,
    )
    from gazette_platform.message.sequencer import (
        PRUNE_HORIZON,
        RING_SIZE,
        Envelope,
        Outcome,
        ProducerState,
        ReplayRange,
        Sequencer,
        SequencerCheckpoint,
        SequencerCounts,
    )
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

# Module of each name, as in the imports above, which only type checkers see.
_HOMES = {
    "gazette_platform.client.read.records": "split_lines",
    "gazette_platform.message.arrow": "ArrowBatch ArrowReader SyncArrowReader read_arrow",
    "gazette_platform.message.avro": (
        "AVRO_CONTENT_TYPE AvroBlock AvroContainers AvroFraming avro_records "
        "check_avro_spec encode_avro_file"
    ),
    "gazette_platform.message.content_types": (
        "CsvFraming JsonFraming ProtoFraming framing_of framing_of_labels go_json register_framing"
    ),
    "gazette_platform.message.framing": (
        "FIXED_MAGIC FRAME_BYTES_MAX Decoder Framing frame_fixed split_fixed"
    ),
    "gazette_platform.message.many_journals": (
        "JournalSpan MergedReader read_journals read_merged select_spans"
    ),
    "gazette_platform.message.publisher": (
        "AckIntent Mapped Publisher fnv1a32 modulo modulo_mapping random_mapping "
        "rendezvous rendezvous_mapping"
    ),
    "gazette_platform.message.reading": (
        "CommittedReader MessageDecoder MessageIterator UncommittedReader read_committed "
        "read_uncommitted"
    ),
    "gazette_platform.message.sequencer": (
        "PRUNE_HORIZON RING_SIZE Envelope Outcome ProducerState ReplayRange Sequencer "
        "SequencerCheckpoint SequencerCounts"
    ),
    "gazette_platform.message.uuid": (
        "CLOCK_TICK NO_UUID Flags MessageClock UuidParts build_uuid clock_of "
        "new_producer_id parse_uuid parse_uuids unix_ns_of uuid_bytes"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # else any name would exist

    def __getattr__(name: str) -> Any:
        # Imported when first used: who parses lines needs no transactions.
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found
