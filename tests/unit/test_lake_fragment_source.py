"""The broker as the lake's source, content of fragments that are not local files, and Trino's errors."""

import io
import socket
import time
import tracemalloc
from types import SimpleNamespace

import pytest

from gazette_platform.codecs import compressor
from gazette_platform.errors import DataError, LakeError, Suspended
from gazette_platform.lake import BrokerSource
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.lake.reading.fragment_content import FragmentContent
from gazette_platform.protocol import CompressionCodec, Fragment, LabelSelector


class StubClient:
    """Answers as the client does, and notes what it was asked."""

    def __init__(self):
        self.asked = []

    def list(self, selector):
        self.asked.append(str(selector))
        return [SimpleNamespace(spec="a-spec")]

    def fragment_page(self, journal, *, next_page_token, page_limit):
        self.asked.append((journal, next_page_token, page_limit))
        return SimpleNamespace(
            fragments=[SimpleNamespace(fragment=Fragment(journal, 5, 9))], next_page_token=0
        )

    def read(self, journal, offset, *, end_offset):
        self.asked.append((journal, offset, end_offset))
        return io.BytesIO(b"a\nb\nc")


def test_source_asks_the_broker_for_one_page():
    client = StubClient()
    source = BrokerSource(client)
    assert source.journals(LabelSelector.parse("name:prefix=a/")) == ["a-spec"]
    assert source.fragments("a/b", 5, 100) == [Fragment("a/b", 5, 9)]
    assert client.asked == ["name:prefix=a/", ("a/b", 5, 100)]


class PagingClient:
    """A journal of fragments of 10 bytes each; an answer has room for `room` of them."""

    def __init__(self, count, room):
        self.count, self.room = count, room

    def fragment_page(self, journal, *, next_page_token, page_limit):
        begins = [n * 10 for n in range(self.count) if n * 10 >= next_page_token]
        shown = begins[: min(page_limit, self.room)]
        rest = begins[len(shown) :]
        return SimpleNamespace(
            fragments=[SimpleNamespace(fragment=Fragment(journal, b, b + 10)) for b in shown],
            next_page_token=rest[0] if rest else 0,
        )


@pytest.mark.parametrize(("limit", "found"), [(100, 7), (7, 7), (5, 5), (1, 1)])
def test_source_goes_on_where_an_answer_had_no_room(limit, found):
    """Who asks takes fewer than asked for as the end of the journal."""
    source = BrokerSource(PagingClient(10, room=3))
    assert [f.begin for f in source.fragments("a/b", 30, limit)] == [
        30 + n * 10 for n in range(found)
    ]


def test_a_suspended_journal_has_no_fragments():
    """Brokers refuse to list it. One such journal must not keep its table from being registered."""

    def refuse(journal, **_):
        raise Suspended(journal=journal)

    assert BrokerSource(SimpleNamespace(fragment_page=refuse)).fragments("a/b", 0, 9) == []


def test_fragments_in_object_stores_are_counted_through_the_broker():
    client = StubClient()
    content = FragmentContent(BrokerSource(client))
    fragment = Fragment("a/b", 10, 15, backing_store="s3://bucket/")
    counted = content.count(fragment, "s3://bucket/a/b")
    assert (counted.rows, counted.stored_bytes) == (3, None)
    assert client.asked == [("a/b", 10, 15)]


def test_unreachable_trino_names_address_and_next_step():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(LakeError, match=f"cannot reach Trino at {uri}.*GAZETTE_TRINO_URI"):
            TrinoSession(uri).query("SELECT 1")
        assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "codec", [CompressionCodec.GZIP, CompressionCodec.ZSTANDARD, CompressionCodec.SNAPPY]
)
@pytest.mark.parametrize("is_named_so", [True, False], ids=["honest", "lying"])
def test_a_bomb_is_counted_in_bounded_memory(tmp_path, codec, is_named_so):
    packer = compressor(codec)
    stored = packer.compress(b"\n" * (16 << 20)) + packer.finish()
    members = 8
    length = members * (16 << 20) if is_named_so else 1000
    fragment = Fragment("a/b", 0, length, bytes(20), codec, "file:///")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / fragment.content_name).write_bytes(stored * members)
    content = FragmentContent(BrokerSource(StubClient()))
    tracemalloc.start()
    try:
        if is_named_so:
            assert content.count(fragment, f"file://{folder}").rows == length
        else:
            with pytest.raises(DataError, match="holds more bytes where its name says 1000"):
                content.count(fragment, f"file://{folder}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
