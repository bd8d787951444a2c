"""Sums of stream-sum, and its specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.stream_sum import chunker, messages
from examples.stream_sum.messages import Chunk, Sum, add, crc64, id_of
from gazette_platform.consumer.protocol import parse_shard_changes
from gazette_platform.errors import ApplicationFailed
from gazette_platform.message import JsonFraming, build_uuid
from gazette_platform.message.uuid import Flags
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

FOLDER = Path(messages.__file__).parent
STREAM = list(range(16))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"battery", 0x2BE55FC66A381C84),
        (b"battery horse", 0xAE763109C1192ED6),
        (b"123456789", 0x995DC9BBDF1939FA),
    ],
)
def test_sums_are_crc_64_of_xz(data, value):
    assert crc64(data) == value
    for cut in range(len(data)):
        assert crc64(data[cut:], crc64(data[:cut])) == value


def test_chunks_are_added_up_to_the_last():
    total = Sum(ID=STREAM)
    assert not add(total, Chunk(ID=STREAM, SeqNo=1, Data=b"battery"))
    assert not add(total, Chunk(ID=STREAM, SeqNo=2, Data=b" horse"))
    assert add(total, Chunk(ID=STREAM, SeqNo=3))
    assert total == Sum(ID=STREAM, SeqNo=3, Value=0xAE763109C1192ED6)


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_chunk_that_came_twice_or_never_is_fatal(number):
    total = Sum(ID=STREAM, SeqNo=2, Value=7)
    with pytest.raises(ApplicationFailed, match=f"chunk {number} came behind chunk 2"):
        add(total, Chunk(ID=STREAM, SeqNo=number, Data=b"x"))
    assert total == Sum(ID=STREAM, SeqNo=2, Value=7)


def test_a_chunk_of_another_stream_is_fatal():
    with pytest.raises(ApplicationFailed, match="was to be added"):
        add(Sum(ID=STREAM), Chunk(SeqNo=1))


def test_messages_have_the_form_that_others_read():
    uuid = build_uuid(b"\x01\x02\x03\x04\x05\x07", 1 << 10, Flags.OUTSIDE_TXN)
    framing = JsonFraming(message_type=Chunk)
    chunk = framing.stamp(Chunk(ID=STREAM, SeqNo=1, Data=b"\x00\xff"), uuid)
    numbers = ",".join(map(str, STREAM))
    assert framing.encode(chunk).decode() == (
        f'{{"UUID":"{uuid}","ID":[{numbers}],"SeqNo":1,"Data":"AP8="}}\n'
    )
    last = framing.decoder().decode(
        b'{"UUID":"","ID":[%s],"SeqNo":2,"Data":null}' % numbers.encode()
    )
    assert last == Chunk(ID=STREAM, SeqNo=2)
    total = Sum(ID=STREAM, SeqNo=2, Value=(1 << 64) - 1)
    assert JsonFraming(message_type=Sum).encode(total).decode() == (
        f'{{"UUID":"","ID":[{numbers}],"SeqNo":2,"Value":18446744073709551615}}\n'
    )
    assert id_of(total) == bytes(range(16))


def test_a_wrong_sum_is_reported():
    expected = Sum(ID=STREAM, SeqNo=3, Value=5)
    chunker.check(expected, Sum(UUID="any", ID=STREAM, SeqNo=3, Value=5))
    for found in (Sum(ID=STREAM, SeqNo=4, Value=5), Sum(ID=STREAM, SeqNo=3, Value=6)):
        with pytest.raises(chunker.SumWrong, match="does not count exactly once"):
            chunker.check(expected, found)


def test_specs_are_those_of_eight_partitions():
    journals = [each.spec for each in parse_journal_tree((FOLDER / "journals.yaml").read_text())]
    names = {spec.name for spec in journals}
    shards = [each.spec for each in parse_shard_changes((FOLDER / "shards.yaml").read_text())]
    assert len(journals) == 17
    assert messages.SUMS in names
    for number, spec in enumerate(shards):
        assert spec.id == f"chunks-part-{number:03}"
        assert [source.journal for source in spec.sources] == [f"{messages.CHUNKS}part-{number:03}"]
        assert {spec.sources[0].journal, spec.recovery_log} <= names
        assert spec.labels.value_of("store") == ("rocksdb", "sqlite")[number % 2]
        assert (spec.hint_backups, spec.hot_standbys, spec.max_txn_duration_ns) == (2, 1, 10**9)
    assert len(shards) == 8
