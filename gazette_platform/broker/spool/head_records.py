"""How a broker notes beside its spools what is committed to them. Pure: bytes in, bytes out.

A *block* belongs to one tenure, which is one broker's holding of one journal. It begins with a header
that says whose it is. Two *slots* follow, which are written in turn. Each slot holds a whole record, so
that if one is torn, the one before it is still there. Header and records end with a CRC.

    0      header: length, CRC-32, JSON
    2,048  slot of records with an even number
    3,072  slot of records with an odd number
    4,096  the next block

Registers that are too long for a slot are in a file of their own. The record then has their CRC in
their place.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from gazette_platform.protocol import CompressionCodec, LabelSet

BLOCK_BYTES: Final = 4096
_HEADER_BYTES: Final = 2048
SLOT_BYTES: Final = 1024

# Two slots, and not a log of records: a log grows with each append, has to be compacted, and looks merely short if
# its end is torn.
_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HAS_OVERFLOW: Final = 1
_IS_DURABLE: Final = 2

_HEADER = struct.Struct("<II")
_RECORD = struct.Struct("<HHQQqqqqqB20s8sI")
_CRC = struct.Struct("<I")
_CODECS = frozenset(codec.value for codec in CompressionCodec)
_pack, _crc32 = _RECORD.pack, zlib.crc32
_REGISTERS_BYTES_MAX: Final = SLOT_BYTES - _RECORD.size - _CRC.size


@dataclass(frozen=True, slots=True)
class TenureHeader:
    """Says whose a block is."""

    tenure: str
    """Random, and different for each tenure."""
    journal: str
    create_revision: int
    """Of the journal's spec in etcd."""
    history: str = ""
    """Id of etcd's data, as of when the tenure began; empty: not known."""


class FragmentState(NamedTuple):
    """What is committed of a fragment: content up to `end`, and the registers as of there."""

    begin: int
    end: int
    registers: LabelSet
    codec: CompressionCodec
    first_append_us: int
    """Microseconds since 1970 of the first append; 0: none yet."""
    synced_to: int
    """Offset below which the content is on disk, and survives a power failure."""
    digested_to: int
    digest: bytes
    """SHA-1 of the content below `digested_to`."""
    is_durable: bool
    """Whether each commit is on disk before it is acknowledged, and so survives a power failure."""
    boot: bytes = bytes(8)
    """Of a state that was found: a mark of the boot in which it was recorded; zeros: unknown."""

    @property
    def first_append_at(self) -> datetime:
        """When its first append came."""
        return _EPOCH + timedelta(microseconds=self.first_append_us)


class Record(NamedTuple):
    """A record as it was found. If both are whole, the one with the greater number counts."""

    number: int
    ordinal: int
    """Number of the content's file; 0: there is none, since the fragment is empty."""
    state: FragmentState
    """With empty registers; the real ones are in `registers`."""
    registers: bytes
    """As of `encode_registers`; with `has_overflow`, their `stand_in`."""
    has_overflow: bool
    raw: bytes
    """The whole record."""


def slot_at(number: int) -> int:
    """Where the record of this number begins in its block."""
    return _HEADER_BYTES + (SLOT_BYTES if number & 1 else 0)


def fits(registers: bytes) -> bool:
    """Whether registers have room in a slot."""
    # Nearly all registers fit, so nearly every append makes one write of one disk block.
    return len(registers) <= _REGISTERS_BYTES_MAX


def stand_in(registers: bytes) -> bytes:
    """What a record has in place of registers that do not fit: their CRC."""
    return _crc32(registers).to_bytes(_CRC.size, "little")


def encode_registers(registers: LabelSet) -> bytes:
    """The registers of a journal, as bytes."""
    # Sorted by name and value in the set itself: equal registers give equal bytes, and their CRC stands for them.
    pairs = registers.pairs()
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":")).encode() if pairs else b""


def decode_registers(raw: bytes) -> LabelSet:
    """Decode what `encode_registers` returned. Raises: ValueError: it is something else."""
    return LabelSet.of(*((name, value) for name, value in json.loads(raw))) if raw else LabelSet()


def encode_header(header: TenureHeader) -> bytes:
    """The bytes that a block begins with."""
    said = {
        "version": _VERSION,
        "tenure": header.tenure,
        "journal": header.journal,
        "create_revision": header.create_revision,
    }
    if header.history:
        said["history"] = header.history
    text = json.dumps(said, ensure_ascii=False).encode()
    raw = _HEADER.pack(len(text), zlib.crc32(text)) + text
    # Names have at most 512 bytes, so this is a fault of ours or of a newer version. Cut short, the
    # header would speak for another journal.
    if len(raw) > _HEADER_BYTES:
        raise ValueError(f"{header.journal}: its name is too long to be noted")
    return raw


def decode_header(block: bytes) -> TenureHeader | None:
    """The header of a block; None: the block is free, or its header is torn."""
    # A block of zeros has the CRC of no text at all: the length has to be positive, or an empty block would be
    # somebody's.
    length, crc = _HEADER.unpack_from(block)
    text = block[_HEADER.size : _HEADER.size + length]
    if not 0 < length <= _HEADER_BYTES - _HEADER.size or zlib.crc32(text) != crc:
        return None
    said = json.loads(text)
    if said["version"] != _VERSION:
        return None
    return TenureHeader(
        said["tenure"], said["journal"], said["create_revision"], said.get("history", "")
    )


def encode_record(
    number: int,
    ordinal: int,
    state: FragmentState,
    registers: bytes,
    *,
    has_overflow: bool,
    boot: bytes = bytes(8),
) -> bytes:
    """Encode a record, as is done for every append; see `Record`.

    Args:
        number: of the record.
        ordinal: of the content's file.
        state: what is committed.
        registers: encoded; with `has_overflow`, their `stand_in`.
        has_overflow: whether the registers are elsewhere.
        boot: as `FragmentState.boot`.
    """
    begin, end, _, codec, first_append_us, synced_to, digested_to, digest, is_durable, _ = state
    flags = (_HAS_OVERFLOW if has_overflow else 0) | (_IS_DURABLE if is_durable else 0)
    raw = (
        _pack(
            _VERSION,
            flags,
            number,
            ordinal,
            begin,
            end,
            synced_to,
            first_append_us,
            digested_to,
            codec,
            digest,
            boot,
            len(registers),
        )
        + registers
    )
    # At the end, over all before it: a write that stopped anywhere leaves a record that does not
    # match.
    return raw + _crc32(raw).to_bytes(_CRC.size, "little")


def decode_record(raw: bytes) -> Record | None:
    """The record at the beginning of some bytes; None: there is none, or it is torn."""
    if len(raw) < _RECORD.size + _CRC.size:
        return None
    (
        version,
        flags,
        number,
        ordinal,
        begin,
        end,
        synced_to,
        at_us,
        digested_to,
        codec,
        digest,
        boot,
        n,
    ) = _RECORD.unpack_from(raw)
    # `n` is not covered by a check yet: of a torn record it may be anything.
    size = _RECORD.size + n
    # A newer version may mean other things by the same bytes: it counts as no record.
    if version != _VERSION or size + _CRC.size > len(raw):
        return None
    if _crc32(raw[:size]) != _CRC.unpack_from(raw, size)[0] or codec not in _CODECS:
        return None
    state = FragmentState(
        begin,
        end,
        LabelSet(),
        CompressionCodec(codec),
        at_us,
        synced_to,
        digested_to,
        digest,
        bool(flags & _IS_DURABLE),
        boot,
    )
    registers = raw[_RECORD.size : size]
    has_overflow = bool(flags & _HAS_OVERFLOW)
    return Record(number, ordinal, state, registers, has_overflow, raw[: size + _CRC.size])
