"""What a run does to the spools of a broker that is down: pure functions of a folder."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest

from gazette_platform.broker.spool.head_records import (
    BLOCK_BYTES,
    SLOT_BYTES,
    FragmentState,
    TenureHeader,
    decode_record,
    encode_header,
    encode_record,
    slot_at,
)
from gazette_platform.protocol import CompressionCodec, LabelSet
from tests.chaos.inflict import copy_spools, lose_files, tear_spools

CONTENT = b"what was appended, and acknowledged"
BEGIN = 100
END = BEGIN + len(CONTENT)
# The second record counts: it comes last. The first had an end before it.
NEWEST = 1


def record(number, end):
    state = FragmentState(
        begin=BEGIN,
        end=end,
        registers=LabelSet(),
        codec=CompressionCodec.GZIP,
        first_append_us=7,
        synced_to=0,
        digested_to=0,
        digest=bytes(20),
        is_durable=False,
    )
    return encode_record(number, 3, state, b"", has_overflow=False)


@dataclass
class Tenure:
    """One of those in the folder, as it is found."""

    heads: object
    at: int
    content: object

    @property
    def records(self):
        raw = self.heads.read_bytes()
        begins = (self.at + slot_at(number) for number in (0, 1))
        return [decode_record(raw[begin : begin + SLOT_BYTES]) for begin in begins]

    @property
    def kept(self):
        return self.content.read_bytes()


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "spools" / "home"
    folder.mkdir(parents=True)
    (folder / "home.json").write_text("{}")
    return folder


@pytest.fixture
def tenures(home):
    blocks, found = b"", []
    for number in range(40):
        block = bytearray(encode_header(TenureHeader(f"t{number}", f"a/{number}", 5)))
        block += bytes(BLOCK_BYTES - len(block))
        for count, end in ((8, END - 5), (9, END)):
            raw = record(count, end)
            block[slot_at(count) : slot_at(count) + len(raw)] = raw
        content = home / f"t{number}.3.content"
        content.write_bytes(CONTENT)
        found.append(Tenure(home / "heads", len(blocks), content))
        blocks += block
    # One that is given back.
    (home / "heads").write_bytes(blocks + bytes(BLOCK_BYTES))
    return found


def test_garbage_comes_after_what_is_recorded_and_nothing_else(tmp_path, home, tenures):
    heads = (home / "heads").read_bytes()
    assert tear_spools(tmp_path, random.Random(7), is_deep=False) == []
    assert (home / "heads").read_bytes() == heads
    for tenure in tenures:
        assert tenure.kept.startswith(CONTENT)
        assert len(tenure.kept) > len(CONTENT)


def test_what_is_recorded_is_torn_of_most_journals(tmp_path, tenures):
    told = tear_spools(tmp_path, random.Random(7), is_deep=True)
    cut = [tenure for tenure in tenures if not tenure.kept.startswith(CONTENT)]
    newer = [tenure for tenure in tenures if tenure.records[NEWEST] is None]
    older = [tenure for tenure in tenures if tenure.records[1 - NEWEST] is None]
    assert len(told) == len(cut) + len(newer) + len(older)
    assert min(map(len, (cut, newer, older))) >= 3
    assert 20 < len(told) < 40
    assert all(CONTENT.startswith(tenure.kept) for tenure in cut)
    # All else can be read still.
    assert all(tenure.records[1 - NEWEST].state.end == END - 5 for tenure in newer)
    assert all(tenure.records[NEWEST].state.end == END for tenure in older)
    assert any(line.endswith(f"the record of its end {END} is torn") for line in told)


def test_home_in_use_is_copied_beside_it_or_elsewhere(tmp_path, home, tenures):
    unused = home.with_name("unused")
    unused.mkdir()
    (unused / "heads").touch()
    os.utime(unused / "heads", ns=(0, 0))
    names = [copy_spools(tmp_path, tmp_path, random.Random(seed)) for seed in range(5)]
    names.append(copy_spools(tmp_path, tmp_path / "other", random.Random(7)))
    assert {name[:2] for name in names} == {"00", "zz"}
    files = {path.name: path.read_bytes() for path in home.iterdir()}
    assert len(files) == len(tenures) + 2
    for folder in [
        *(tmp_path / "spools" / n for n in names[:-1]),
        tmp_path / "other/spools" / names[-1],
    ]:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_broker_without_a_home_has_nothing_to_copy(tmp_path):
    assert copy_spools(tmp_path, tmp_path, random.Random(7)) == ""
    assert not [*tmp_path.iterdir()]


def test_most_tenures_lose_one_file(tmp_path, home, tenures):
    for number in range(40):
        (home / f"t{number}.2.content").write_bytes(b"closed")
        (home / f"t{number}.2.sealed").write_bytes(b"its record")
    before = {path.name for path in home.iterdir()}
    lost = lose_files(tmp_path, random.Random(7))
    assert {path.name for path in home.iterdir()} == before - set(lost)
    owners = [name.partition(".")[0] for name in lost]
    assert len(owners) == len(set(owners))
    assert 20 < len(owners) < len(tenures)
    kinds = [
        sum(name.endswith(end) for name in lost) for end in (".2.sealed", "2.content", "3.content")
    ]
    assert min(kinds) >= 2
    assert max(kinds) == kinds[0]
