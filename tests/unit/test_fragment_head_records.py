"""Records of what is committed to spools: round trips, and what is torn."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker.spool import head_records
from gazette_platform.broker.spool.head_records import (
    BLOCK_BYTES,
    SLOT_BYTES,
    FragmentState,
    TenureHeader,
    decode_header,
    decode_record,
    decode_registers,
    encode_header,
    encode_record,
    encode_registers,
    fits,
    slot_at,
)
from gazette_platform.protocol import ZERO_SUM, CompressionCodec, LabelSet

HEADER = TenureHeader("0123456789abcdef", "a/journal", 12)
LONG = LabelSet.of(("long", "x" * SLOT_BYTES))
texts = st.text(st.characters(codec="utf-8"), max_size=12)
registers = st.dictionaries(texts.filter(bool), texts, max_size=4).map(
    lambda pairs: LabelSet.of(*sorted(pairs.items()))
)
offsets = st.integers(0, 2**63 - 1)


def state_of(begin=100, end=142, **options):
    values = {
        "registers": LabelSet(),
        "codec": CompressionCodec.SNAPPY,
        "first_append_us": 1_700_000_000_000_000,
        "synced_to": begin,
        "digested_to": begin,
        "digest": ZERO_SUM,
        "is_durable": False,
    }
    return FragmentState(begin, end, **(values | options))


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.tuples(offsets, offsets, offsets, offsets, offsets),
    st.sampled_from(CompressionCodec),
    st.binary(min_size=20, max_size=20),
    st.booleans(),
    st.booleans(),
    registers,
    st.binary(max_size=40),
)
def test_records_say_what_was_said(
    number, ordinal, spans, codec, digest, is_durable, has_overflow, labels, behind
):
    begin, end, at, synced_to, digested_to = spans
    state = FragmentState(begin, end, labels, codec, at, synced_to, digested_to, digest, is_durable)
    encoded = encode_registers(labels)
    raw = encode_record(number, ordinal, state, encoded, has_overflow=has_overflow)
    found = decode_record(raw + behind)
    assert found is not None
    assert (found.number, found.ordinal, found.has_overflow) == (number, ordinal, has_overflow)
    assert found.state == state._replace(registers=LabelSet())
    assert found.raw == raw
    assert decode_registers(found.registers) == labels
    # What is recorded again of what was decoded is the same: its CRC may have been recorded.
    assert encode_registers(decode_registers(found.registers)) == encoded


@pytest.mark.parametrize("before", [b"", b"\0", b"\xff"])
def test_record_that_is_torn_at_any_byte_is_none(before):
    raw = encode_record(7, 3, state_of(), b"[]", has_overflow=False)
    for length in range(len(raw)):
        behind = before * (SLOT_BYTES - length)
        assert decode_record(raw[:length] + behind) is None, length


def test_record_that_was_torn_over_an_older_one_is_none():
    """The older one of the same slot is gone; that of the other slot counts."""
    old = encode_record(5, 3, state_of(end=120), b"[]", has_overflow=False)
    new = encode_record(7, 3, state_of(end=142), b'[["a","b"]]', has_overflow=False)
    whole = {decode_record(new[:n] + old[n:]) for n in range(len(new) + 1)} - {None}
    # What they have in common at their begin may be written or not.
    assert {one.number for one in whole} == {5, 7}


def test_each_byte_of_a_record_matters():
    raw = encode_record(7, 3, state_of(), b'[["a","b"]]', has_overflow=False)
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 0x20
        assert decode_record(bytes(changed)) is None, at


def test_record_of_another_version_is_none():
    raw = bytearray(encode_record(7, 3, state_of(), b"", has_overflow=False))
    raw[0:2] = struct.pack("<H", 2)
    raw[-4:] = struct.pack("<I", zlib.crc32(raw[:-4]))
    assert decode_record(bytes(raw)) is None


def test_slots_go_in_turn_and_lie_in_the_block():
    assert [slot_at(n) for n in range(4)] == [2048, 3072, 2048, 3072]
    assert slot_at(1) + SLOT_BYTES == BLOCK_BYTES


def test_registers_fit_up_to_the_last_byte_of_a_slot():
    lengths = [n for n in range(SLOT_BYTES + 1) if fits(bytes(n))]
    longest = bytes(lengths[-1])
    assert lengths == list(range(len(longest) + 1))
    raw = encode_record(7, 3, state_of(), longest, has_overflow=False)
    assert len(raw) == SLOT_BYTES
    assert decode_record(raw).registers == longest
    assert not fits(encode_registers(LONG))


@pytest.mark.parametrize(
    "labels",
    [
        LabelSet(),
        LabelSet.of(("author", "Ω ☃ \N{GRINNING FACE}")),
        LabelSet.of(("a", ""), ("b", '"quoted"\n')),
        LabelSet.of(("a", "1"), ("a", "2")),
        LONG,
    ],
)
def test_registers_go_and_come(labels):
    assert decode_registers(encode_registers(labels)) == labels


def test_no_registers_take_no_room():
    assert encode_registers(LabelSet()) == b""


@given(texts, st.integers(0, 2**62))
def test_headers_say_whose_block_it_is(journal, create_revision):
    header = TenureHeader("0123456789abcdef", f"a/{journal}", create_revision)
    assert decode_header(encode_header(header).ljust(BLOCK_BYTES, b"\0")) == header


def test_header_that_is_torn_at_any_byte_has_no_owner():
    raw = encode_header(HEADER)
    for length in range(len(raw)):
        assert decode_header(raw[:length].ljust(BLOCK_BYTES, b"\0")) is None, length
    for at in range(len(raw)):
        changed = bytearray(raw.ljust(BLOCK_BYTES, b"\0"))
        changed[at] ^= 0x04
        assert decode_header(bytes(changed)) is None, at


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"{"])
def test_what_never_was_a_header_has_no_owner(filler):
    assert decode_header(filler * BLOCK_BYTES) is None


def test_header_of_another_version_has_no_owner(monkeypatch):
    monkeypatch.setattr(head_records, "_VERSION", 2)
    raw = encode_header(HEADER).ljust(BLOCK_BYTES, b"\0")
    monkeypatch.undo()
    assert decode_header(raw) is None


def test_longest_name_of_a_journal_has_room():
    assert decode_header(
        encode_header(TenureHeader("0" * 16, "n" * 512, 2**62)).ljust(BLOCK_BYTES, b"\0")
    )
    with pytest.raises(ValueError, match="too long to be noted"):
        encode_header(TenureHeader("0" * 16, "n" * 2048, 1))
