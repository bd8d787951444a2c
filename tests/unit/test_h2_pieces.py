"""The small parts of our HTTP/2: deadlines, the budget of unread bytes, answers, and what blocks mean."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import grpc
import pytest
from hpack import Decoder
from http2_bench import REQUEST, START, Lazy, block, frames_of, headers, message

from gazette_platform.serving.h2 import responses
from gazette_platform.serving.h2.carrier import Deadlines
from gazette_platform.serving.h2.client_machine import code_of, code_of_reset, read_answer
from gazette_platform.serving.h2.frames import DATA, UnreadBudget, frame
from gazette_platform.serving.h2.responses import Status
from gazette_platform.serving.h2.server_machine import (
    Blocks,
    Malformed,
    Refusal,
    Requests,
    read_request,
)
from gazette_platform.serving.h2.stream import MessageRefused, inflate
from gazette_platform.serving.interface import Code
from gazette_platform.testing.waiting import eventually


class Held:
    """A connection that counts."""

    def __init__(self):
        self.is_held = False

    def hold(self, *, is_held):
        self.is_held = is_held


def test_connections_beyond_the_budget_are_held_until_there_is_room():
    budget = UnreadBudget(100)
    small, large = Held(), Held()
    budget.report(small, 60)
    budget.report(large, 60)
    assert (small.is_held, large.is_held) == (False, True)
    budget.report(small, -40)
    assert large.is_held, "there is room for a quarter of the budget, not for more"
    budget.report(small, -20)
    assert not large.is_held
    budget.report(large, 60)
    budget.forget(large, 120)
    assert budget.total == 0


class Expired:
    def __init__(self, deadlines, timeout_s):
        self.count = 0
        self.step = deadlines.add(self, timeout_s)

    def expire(self):
        self.count += 1


async def test_calls_expire_once_in_their_order():
    deadlines = Deadlines()
    deadlines.start(asyncio.get_running_loop())
    late, soon, gone = (Expired(deadlines, s) for s in (0.15, 0.01, 0.02))
    deadlines.discard(gone, gone.step)
    await eventually(lambda: soon.count)
    assert (soon.count, late.count) == (1, 0)
    await eventually(lambda: late.count)
    assert (soon.count, late.count, gone.count) == (1, 1, 0)
    assert not deadlines._steps
    assert deadlines._timer is None


async def test_deadlines_that_are_not_reached_leave_nothing():
    deadlines = Deadlines()
    deadlines.start(asyncio.get_running_loop())
    for call in [Expired(deadlines, 60 + number / 1000) for number in range(1000)]:
        deadlines.discard(call, call.step)
    assert not deadlines._steps
    deadlines.stop()


def test_code_of_each_failure_has_a_number_and_the_name_of_go():
    assert {responses.STATUS_OF[code].name for code in Code} == {code.value for code in Code}
    assert Status.CANCELLED.go_name == "Canceled"
    assert Status.DEADLINE_EXCEEDED.go_name == "DeadlineExceeded"
    assert Status.OK.go_name == "OK"


def test_failure_says_code_and_text_percent_encoded():
    raw = responses.failure(7, Status.NOT_FOUND, "100 % nö\n", is_greeted=False)
    (only,) = frames_of(raw)
    assert (only.kind, only.flags, only.stream) == (1, 5, 7)
    fields = dict(Decoder().decode(only.payload, raw=True))
    assert fields[b":status"] == b"200"
    assert fields[b"grpc-status"] == b"5"
    assert fields[b"grpc-message"] == b"100 %25 n%C3%B6%0A"


def test_answer_in_one_piece_is_headers_a_message_and_trailers():
    raw = responses.greeted_message(1, 3) + b"abc" + responses.trailers(1)
    first, data, last = frames_of(raw)
    assert Decoder().decode(first.payload, raw=True) == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
    ]
    assert data.payload == b"\0\0\0\0\3abc"
    assert Decoder().decode(last.payload, raw=True) == [(b"grpc-status", b"0")]
    assert (first.flags, data.flags, last.flags) == (4, 0, 5)


def test_equal_blocks_are_read_once():
    blocks = Blocks(16_384, Requests())
    first = blocks.read(block())
    assert blocks.read(block()) is first
    # Another connection shares the request.
    assert Blocks(16_384, blocks._requests).read(block()).request is first.request


def test_deadlines_do_not_keep_requests_apart():
    blocks = Blocks(16_384, Requests())
    read = [blocks.read(block((b"grpc-timeout", b"%dm" % n))) for n in range(50)]
    assert [wanted.timeout_s for wanted in read] == pytest.approx([n / 1000 for n in range(50)])
    assert len({id(wanted.request) for wanted in read}) == 1


def test_what_is_remembered_is_bounded():
    requests = Requests()
    blocks = Blocks(16_384, requests)
    for number in range(3000):
        blocks.read(block((b"key", b"%d" % number)))
    assert len(blocks._known) <= 256
    assert len(requests._known) <= 1024
    known = len(requests._known)
    blocks.read(block((b"key", bytes(b"v" * 5000))))
    assert len(requests._known) == known


def test_block_that_is_too_large_is_refused():
    refused = Blocks(100, Requests()).read(block())
    assert refused == Refusal(8, "the metadata is larger than 100 bytes")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (b"application/grpc", 200),
        (b"application/grpc+proto", 200),
        (b"application/grpc;x=y", 200),
        (b"application/grpc-web", 415),
        (b"text/html", 415),
        (b"", 415),
    ],
)
def test_content_type_of_calls(content_type, status):
    fields = [*(f for f in REQUEST if f[0] != b"content-type"), (b"content-type", content_type)]
    assert read_request(fields).http_status == status


@pytest.mark.parametrize("name", [b"", b"A", b"a b", b"a:", b"\xff", b"transfer-encoding"])
def test_names_that_no_request_may_have(name):
    with pytest.raises(Malformed):
        read_request([*REQUEST, (name, b"x")])


# --------------------------------------------------------------------------------- compressed messages
COMPRESSORS = {b"gzip": gzip.compress, b"deflate": zlib.compress}


@pytest.mark.parametrize("encoding", COMPRESSORS)
def test_compressed_message_is_inflated(encoding):
    content = b"content" * 1000
    assert inflate(COMPRESSORS[encoding](content), encoding, len(content)) == content


@pytest.mark.parametrize("encoding", COMPRESSORS)
@pytest.mark.parametrize(
    "spoil",
    [lambda raw: raw[:-1], lambda raw: raw + b"x", lambda _: b"x"],
    ids=["cut", "longer", "other"],
)
def test_compressed_message_that_is_malformed_is_refused(encoding, spoil):
    with pytest.raises(MessageRefused) as caught:
        inflate(spoil(COMPRESSORS[encoding](b"content")), encoding, 100)
    assert caught.value.number == Status.INTERNAL


def test_compressed_message_is_inflated_no_further_than_the_limit():
    with pytest.raises(MessageRefused) as caught:
        inflate(gzip.compress(bytes(1 << 20)), b"gzip", 1000)
    assert caught.value.number == Status.RESOURCE_EXHAUSTED
    assert "(1001 vs. 1000)" in caught.value.text


def test_compressed_messages_wait_as_they_came():
    machine = Lazy(message_bytes_max=1 << 20)
    raw = gzip.compress(bytes(1 << 20))
    call = headers(1, (b"grpc-encoding", b"gzip"))
    machine.receive(START + call + frame(DATA, 1, 1, message(raw, compressed=1) + message(b"x")))
    assert machine.unread < 2000
    assert machine.take(machine.opened[1]) == bytes(1 << 20)
    assert machine.take(machine.opened[1]) == b"x"
    assert machine.unread == 0


# ------------------------------------------------------------------- what answers of servers mean
@pytest.mark.parametrize(
    ("error_code", "code"),
    [
        (0, Code.INTERNAL),
        (2, Code.INTERNAL),
        (7, Code.UNAVAILABLE),
        (8, Code.CANCELLED),
        (11, Code.RESOURCE_EXHAUSTED),
        (12, Code.PERMISSION_DENIED),
    ],
)
def test_reset_has_the_code_of_grpcs_rules(error_code, code):
    assert code_of_reset(error_code) is code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (b"401", Code.UNAUTHENTICATED),
        (b"403", Code.PERMISSION_DENIED),
        (b"404", Code.UNIMPLEMENTED),
        (b"502", Code.UNAVAILABLE),
        (b"200", Code.UNKNOWN),
    ],
)
def test_answer_that_is_none_of_grpc_has_the_code_of_its_status(status, code):
    fields = [(b":status", status), (b"content-type", b"text/html")]
    answer = read_answer(fields, is_first=True, is_last=False)
    text = f"the answer is none of gRPC: HTTP status {status.decode()}"
    assert answer.status == (code, text)


def test_every_code_has_its_number():
    for number in range(1, 17):
        assert grpc.StatusCode[code_of(number).value].value[0] == number
    assert code_of(17) is Code.UNKNOWN
