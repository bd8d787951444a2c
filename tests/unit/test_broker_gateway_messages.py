"""HTTP's queries, headers and statuses: Gazette's cases H1 to H4; and server-sent events."""

from __future__ import annotations

import pytest

from gazette_platform.broker.api.gateway import EventStream
from gazette_platform.broker.api.gateway_messages import (
    ReadQuery,
    append_headers,
    content_range,
    journal_of,
    read_headers,
)
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import CompressionCodec, Fragment, Status
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.serving.http_server import error_of, outcome_status
from gazette_platform.serving.interface import Code, Denied, NotNow, RpcFailed

FRAGMENT = Fragment(
    "a/journal", 1024, 2048, bytes(range(20)), CompressionCodec.GZIP, mod_time=1_500_000_000
)
NAME = "0000000000000400-0000000000000800-000102030405060708090a0b0c0d0e0f10111213.gz"


def header():
    made = pb.Header()
    made.route.members.add(zone="a", suffix="broker")
    made.route.endpoints.append("http://b/")
    return made


# ------------------------------------------------------------------------------------- queries
@pytest.mark.parametrize(
    ("pairs", "query"),
    [
        ([], ReadQuery(0, block=False)),
        ([("offset", "123"), ("block", "true")], ReadQuery(123, block=True)),
        ([("offset", "-1"), ("block", "1")], ReadQuery(-1, block=True)),
        ([("offset", "1"), ("offset", "2")], ReadQuery(2)),
        ([("offset", ""), ("block", "")], ReadQuery()),
        ([("block", "F")], ReadQuery()),
        ([("offset", str((1 << 63) - 1))], ReadQuery((1 << 63) - 1)),
    ],
)
def test_h1_queries(pairs, query):
    assert ReadQuery.parse(pairs) == query


_BAD_OFFSET = (
    'schema: error converting value for "offset" '
    "(expected a number of bytes, or -1 for the write head)"
)
_BAD_BLOCK = 'schema: error converting value for "block" (expected true or false)'


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([("offset", "x")], _BAD_OFFSET),
        ([("offset", "1.5")], _BAD_OFFSET),
        ([("offset", "-")], _BAD_OFFSET),
        ([("offset", "\u0661")], _BAD_OFFSET),
        ([("offset", str(1 << 63))], _BAD_OFFSET),
        ([("block", "perhaps")], _BAD_BLOCK),
        ([("extra", "1")], 'schema: invalid path "extra" (known: offset, block)'),
    ],
)
def test_h1_bad_queries_are_reported_in_the_words_of_gazette_and_what_to_do(pairs, text):
    with pytest.raises(ValidationError) as caught:
        ReadQuery.parse(pairs)
    assert str(caught.value) == text


def test_h1_paths_name_journals():
    assert journal_of("/a/journal") == "a/journal"
    assert journal_of("/a/day=2026%2D01/part%3D0;meta") == "a/day=2026-01/part=0;meta"
    assert journal_of("//a") == "/a"
    with pytest.raises(ValidationError, match="not UTF-8"):
        journal_of("/a/%ff")


# ------------------------------------------------------------------------------------- headers
def test_h3_headers_of_a_read():
    response = pb.ReadResponse(
        header=header(),
        offset=1024,
        write_head=4096,
        fragment=FRAGMENT.to_pb(),
        fragment_url="http://store/fragment",
    )
    assert read_headers(response) == {
        "X-Write-Head": "4096",
        "X-Route-Token": 'members:<zone:"a" suffix:"broker" > endpoints:"http://b/" ',
        "X-Fragment-Name": NAME,
        "X-Fragment-Last-Modified": "Fri, 14 Jul 2017 02:40:00 GMT",
        "X-Fragment-Location": "http://store/fragment",
    }
    assert content_range(1024) == "bytes 1024-9223372036854775807/9223372036854775807"


def test_h3_a_fragment_that_is_not_persisted_has_no_time():
    response = pb.ReadResponse(fragment=FRAGMENT.to_pb(), write_head=1)
    response.fragment.mod_time = 0
    assert set(read_headers(response)) == {"X-Write-Head", "X-Fragment-Name"}


def test_h4_headers_of_an_append():
    response = pb.AppendResponse(header=header(), commit=FRAGMENT.to_pb())
    assert append_headers(response) == {
        "X-Route-Token": 'members:<zone:"a" suffix:"broker" > endpoints:"http://b/" ',
        "X-Commit-Begin": "1024",
        "X-Commit-End": "2048",
        "X-Write-Head": "2048",
        "X-Commit-SHA1-Sum": "000102030405060708090a0b0c0d0e0f10111213",
    }


# ------------------------------------------------------------------------------------ statuses
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.JOURNAL_NOT_FOUND, 404),
        (Status.INSUFFICIENT_JOURNAL_BROKERS, 503),
        (Status.NO_JOURNAL_PRIMARY_BROKER, 503),
        (Status.NOT_JOURNAL_BROKER, 503),
        (Status.OFFSET_NOT_YET_AVAILABLE, 416),
        (Status.NOT_ALLOWED, 403),
        (Status.SUSPENDED, 409),
        (Status.INDEX_HAS_GREATER_OFFSET, 409),
        (Status.FRAGMENT_STORE_UNHEALTHY, 503),
        (Status.PROPOSAL_MISMATCH, 500),
    ],
)
def test_statuses(status, code):
    assert outcome_status(status.name) == code


def test_failures():
    assert error_of(RpcFailed(Code.UNAUTHENTICATED, "no token"))[1] == 401
    assert error_of(Denied("no capability"))[1] == 403
    assert error_of(NotNow("not listed yet"))[1] == 503
    assert error_of(RpcFailed(Code.UNKNOWN, "text"))[1] == 500


# --------------------------------------------------------------------------- server-sent events
def test_events_are_lines_whatever_the_pieces():
    content = b"one\ntwo\r\n\nth\xc3\xa9\n"
    expected = [
        b"id: 4\ndata: one",
        b"id: 9\ndata: two",
        b"id: 10\ndata: ",
        b"id: 15\ndata: th\xc3\xa9",
    ]
    for size in (1, 2, 3, 100):
        stream = EventStream(0)
        pieces = [content[i : i + size] for i in range(0, len(content), size)]
        events = b"".join(event for piece in pieces for event in stream.feed(memoryview(piece)))
        assert events.split(b"\n\n")[:-1] == expected


def test_what_would_break_an_event_is_mended():
    stream = EventStream(10)
    assert [*stream.feed(b"a\rb\n")] == [b"id: 14\ndata: a\ndata: b\n\n"]
    assert [*stream.feed(b"\xff\n")] == [b"id: 16\ndata: \xef\xbf\xbd\n\n"]


def test_the_end_of_a_stream_gives_what_is_left_only_if_no_more_will_come():
    stream = EventStream(0)
    assert [*stream.feed(b"one\ntw")] == [b"id: 4\ndata: one\n\n"]
    closing = b"event: close\ndata: why\n\n"
    assert stream.close("why", is_at_end=False) == closing
    assert stream.close("why", is_at_end=True) == b"id: 6\ndata: tw\n\n" + closing


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("gazette_platform.broker.api.gateway._LINE_BYTES_MAX", 10)
    stream = EventStream(5)
    assert [*stream.feed(b"ab\n12345")] == [b"id: 8\ndata: ab\n\n"]
    with pytest.raises(DataError, match="a line at offset 8 is over 10 bytes"):
        list(stream.feed(b"678901"))


def test_a_piece_of_many_lines_is_made_into_events_in_steps():
    stream = EventStream(0)
    steps = list(stream.feed(b"\n" * 200_000))
    assert len(steps) == 7
    assert b"".join(steps).count(b"data: \n\n") == 200_000
