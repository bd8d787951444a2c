import asyncio
import hashlib
import itertools

import grpc
import pytest

from gazette_platform import errors
from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.client.write import append
from gazette_platform.client.write.append import Content, encoded_messages, joined_messages
from gazette_platform.errors import (
    CallFailed,
    CallUnanswered,
    DataError,
    FragmentStoreUnhealthy,
    JournalNotFound,
    OutcomeUnknown,
    TransportError,
    ValidationError,
    WrongAppendOffset,
)
from gazette_platform.protocol import LabelSelector, LabelSet, ProcessId, Route
from gazette_platform.protocol.content import CONTENT_CHUNK_BYTES
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.testing.waiting import pass_time, turns
from tests.benches.fake_broker import FakeBroker, Fault, connected

_COMMIT = {"journal": "a/journal", "end": 1, "compression_codec": pb.NONE}


@pytest.fixture(autouse=True, params=["streams", "whole"])
def way(request, monkeypatch):
    """Each of these by both ways: what has been sent is not known in the same way."""
    monkeypatch.setattr(FakeBroker, "takes_whole", request.param == "whole")
    return request.param


# ------------------------------------------------------------------------------------ what comes of it


async def test_ap1_append_returns_the_span_and_digest():
    async with connected() as (broker, client):
        broker.journals["a/journal"].content += b"before"
        result = await client.append("a/journal", b"hello")
        assert (result.begin, result.end) == (6, 11)
        assert result.sha1 == hashlib.sha1(b"hello").digest()
        assert result.header.etcd.revision == 1
        assert broker.journals["a/journal"].content == b"beforehello"
        assert client._transport.routes.get("a/journal").endpoints == (broker.address,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [b"a" * 400_000, b"", b"b" * 900_000],
        lambda: (piece for piece in (b"a" * 400_000, b"b" * 900_000)),
        lambda: memoryview(b"a" * 400_000 + b"b" * 900_000),
    ],
    ids=["list", "generator", "memoryview"],
)
async def test_append_takes_content_in_any_shape(make):
    async with connected() as (broker, client):
        await client.append("a/journal", make())
        assert bytes(broker.journals["a/journal"].content) == b"a" * 400_000 + b"b" * 900_000
        assert broker.append_sizes == [1_300_000]


async def test_append_takes_async_content():
    async def pieces():
        yield b"one "
        yield b"two"

    async with connected() as (broker, client):
        await client.append("a/journal", pieces())
        assert broker.journals["a/journal"].content == b"one two"


async def test_content_that_comes_slowly_is_sent_as_it_comes():
    """All of it waited here for the end, and brokers end an append that sends nothing."""
    may_go_on, sent = asyncio.Event(), []

    async def slow():
        await pass_time(0.2)
        yield b"one, "
        await may_go_on.wait()
        yield b"two, "
        yield b"three"

    async def gather():
        async for message in Content(slow()).messages():
            sent.append(pb.AppendRequest.FromString(message).content)
            may_go_on.set()

    await asyncio.wait_for(gather(), timeout=20)
    assert sent == [b"one, ", b"two, three"]


async def test_ap4_append_retries_what_may_pass():
    async with connected() as (broker, client):
        broker.fail(
            "Append",
            Fault(code=grpc.StatusCode.UNAVAILABLE),
            Fault(status=pb.NOT_JOURNAL_PRIMARY_BROKER),
            Fault(status=pb.NO_JOURNAL_PRIMARY_BROKER),
        )
        await client.append("a/journal", [b"x", b"y"])
        assert broker.calls["Append"] == 4
        assert broker.journals["a/journal"].content == b"xy"


async def test_append_of_one_shot_iterator_is_not_repeated():
    async with connected() as (broker, client):
        broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True))
        with pytest.raises(TransportError):
            await client.append("a/journal", iter([b"x"]))
        assert broker.calls["Append"] == 1


async def test_append_after_a_lost_answer_is_made_again():
    async with connected() as (broker, client):
        broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True))
        result = await client.append("a/journal", b"x")
        assert (result.begin, result.end) == (1, 2)
        assert broker.journals["a/journal"].content == b"xx"


async def test_ap4_append_surfaces_what_will_not_pass():
    async with connected() as (broker, client):
        with pytest.raises(WrongAppendOffset, match="a/journal: WRONG_APPEND_OFFSET"):
            await client.append("a/journal", b"x", offset=99)
        with pytest.raises(JournalNotFound, match="gazctl journals list"):
            await client.append("no/such/journal", b"x")
        broker.fail("Append", Fault(code=grpc.StatusCode.UNKNOWN, details="recv from peer"))
        with pytest.raises(CallFailed, match=r"append to a/journal: .*recv from peer"):
            await client.append("a/journal", b"x")
        broker.fail("Append", Fault(status=pb.FRAGMENT_STORE_UNHEALTHY))
        with pytest.raises(FragmentStoreUnhealthy):
            await client.append("a/journal", b"x" * 3_000_000)
        assert broker.calls["Append"] == 4


async def test_ap4_append_of_a_failing_iterator_rolls_back():
    def pieces():
        yield b"x" * 600_000
        raise ValueError("no more")

    async with connected() as (broker, client):
        with pytest.raises(ValueError, match="no more"):
            await client.append("a/journal", pieces())
        assert broker.journals["a/journal"].content == b""
        await client.append("a/journal", b"next")
        assert broker.journals["a/journal"].content == b"next"


async def test_ap6_append_to_a_silent_broker_times_out():
    async with connected(append_timeout_s=0.1) as (broker, client):
        broker.fail("Append", Fault(stall=True))
        with pytest.raises(CallUnanswered, match=r"nothing for 0\.1 s.*unknown"):
            await client.append("a/journal", b"x")


async def test_a_broker_that_does_not_answer_is_not_asked_again_by_its_route():
    """A stopped process keeps its port open; others have taken its journals over by then."""
    async with FakeBroker() as stopped, connected(append_timeout_s=1.0) as (broker, client):
        stopped.journal("a/journal")
        stopped.fail("Append", Fault(stall=True), Fault(stall=True))
        broker.route = Route((ProcessId("local", "stopped"),), 0, (stopped.address,))
        await client.append("a/journal", b"a")
        with pytest.raises(CallUnanswered):
            await client.append("a/journal", b"never")
        assert stopped.calls["Append"] == 1
        broker.route = None
        await client.append("a/journal", b"b")
        assert broker.journals["a/journal"].content == b"ab"


async def test_writers_go_round_a_broker_that_does_not_answer():
    async with FakeBroker() as stopped, connected(append_timeout_s=1.0) as (broker, client):
        stopped.fail("Append", *[Fault(stall=True)] * 9)
        broker.route = Route((ProcessId("local", "stopped"),), 0, (stopped.address,))
        await client.append("a/journal", b"a")
        broker.route = None
        async with client.append_writer("a/journal") as writer:
            await writer.write(b"b")
        assert stopped.calls["Append"] == 1
        assert broker.journals["a/journal"].content == b"ab"


async def test_append_sends_conditions():
    async with connected() as (broker, client):
        await client.append(
            "a/journal",
            b"x",
            check_registers=LabelSelector.parse("author=me"),
            union_registers=LabelSet.of(author="me"),
            subtract_registers=LabelSet.of(author="you"),
        )
        request = broker.requests[-1]
        assert LabelSelector.from_pb(request.check_registers) == LabelSelector.parse("author=me")
        assert LabelSet.from_pb(request.union_registers) == LabelSet.of(author="me")
        assert LabelSet.from_pb(request.subtract_registers) == LabelSet.of(author="you")


async def test_bad_names_are_refused_before_any_call():
    async with connected() as (broker, client):
        with pytest.raises(ValidationError, match="Journal: cannot begin with '/'"):
            await client.append("/a/journal", b"x")
        with pytest.raises(ValidationError, match="offset: must not be negative"):
            await client.append("a/journal", b"x", offset=-1)
        assert not broker.calls


async def test_refused_connection_names_the_address_in_time():
    config = ClientConfig(address="http://127.0.0.1:1", connect_timeout_s=0.2)
    async with AsyncClient(config) as client:
        with pytest.raises(TransportError, match=r"http://127.0.0.1:1 is not reachable.*refused"):
            await client.append("a/journal", b"x")
        with pytest.raises(TransportError, match=r"http://127.0.0.1:1 is not reachable"):
            await client.list()
        with pytest.raises(TransportError, match=r"http://127.0.0.1:1 is not reachable"):
            await anext(client.read("a/journal"))


async def test_appends_go_to_the_primary_that_headers_name():
    async with FakeBroker() as other, connected() as (broker, client):
        from gazette_platform.protocol import ProcessId, Route

        other.journal("a/journal")
        members = (ProcessId("local", "fake-broker"), ProcessId("local", "other"))
        broker.route = other.route = Route(members, 1, (broker.address, other.address))
        await client.append("a/journal", b"first, proxied")
        await client.append("a/journal", b"then direct")
        assert other.journals["a/journal"].content == b"then direct"


async def test_a_dead_route_is_forgotten():
    async with connected() as (broker, client):
        broker.route = Route((ProcessId("local", "gone"),), 0, ("http://127.0.0.1:1",))
        await client.append("a/journal", b"a")
        broker.route = None
        await client.append("a/journal", b"b")
        assert broker.journals["a/journal"].content == b"ab"


async def endless():
    while True:
        yield b"x" * 100_000
        await turns()


async def slow():
    while True:
        yield b"x" * 100_000
        await pass_time(0.05)


async def waiting():
    yield b"x" * 100_000
    await asyncio.Event().wait()


REFUSALS = [
    (Fault(code=grpc.StatusCode.UNKNOWN, details="foobar", early=True), CallFailed, "foobar"),
    (Fault(status=pb.FRAGMENT_STORE_UNHEALTHY), FragmentStoreUnhealthy, "a/journal"),
    (Fault(status=pb.WRONG_APPEND_OFFSET), WrongAppendOffset, "a/journal"),
]


@pytest.mark.parametrize("content", [slow, waiting])
@pytest.mark.parametrize(("fault", "error", "text"), REFUSALS)
async def test_ap2_ap5_an_early_refusal_reaches_who_is_between_writes(fault, error, text, content):
    """The content has no end: only the broker's answer ends the append."""
    async with connected() as (broker, client):
        broker.fail("Append", fault)
        async with asyncio.timeout(20):
            with pytest.raises(error, match=text):
                await client.append("a/journal", content())
        assert broker.journals["a/journal"].content == b""


@pytest.mark.parametrize(("fault", "error", "text"), REFUSALS)
async def test_ap2_ap5_an_early_refusal_ends_the_append_of_who_is_writing(fault, error, text):
    """A write under way makes gRPC lose the text of a call's failure now and then, but no status."""
    lost = "for a reason that was not received"
    async with connected(retry_timeout_s=0.0) as (broker, client):
        broker.fail("Append", fault)
        async with asyncio.timeout(20):
            with pytest.raises((error, TransportError), match=f"{text}|{lost}") as caught:
                await client.append("a/journal", endless())
        if fault.code is None:
            assert isinstance(caught.value, error)
        assert broker.journals["a/journal"].content == b""


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (pb.JOURNAL_NOT_FOUND, errors.JournalNotFound),
        (pb.NO_JOURNAL_PRIMARY_BROKER, errors.NoJournalPrimaryBroker),
        (pb.NOT_JOURNAL_PRIMARY_BROKER, errors.NotJournalPrimaryBroker),
        (pb.INSUFFICIENT_JOURNAL_BROKERS, errors.InsufficientJournalBrokers),
        (pb.NOT_ALLOWED, errors.NotAllowed),
        (pb.WRONG_APPEND_OFFSET, errors.WrongAppendOffset),
        (pb.INDEX_HAS_GREATER_OFFSET, errors.IndexHasGreaterOffset),
        (pb.REGISTER_MISMATCH, errors.RegisterMismatch),
        (pb.SUSPENDED, errors.Suspended),
        (pb.FRAGMENT_STORE_UNHEALTHY, errors.FragmentStoreUnhealthy),
        (1000, errors.StatusError),
    ],
)
async def test_ap3_each_status_is_its_error_and_carries_the_route(status, error):
    async with connected(retry_timeout_s=0.0) as (broker, client):
        broker.fail("Append", *[Fault(status=status)] * 3)
        with pytest.raises(error) as caught:
            await client.append("a/journal", b"x")
        assert type(caught.value) is error
        assert client._transport.routes.get("a/journal").endpoints == (broker.address,)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN])
async def test_ap3_failed_call_carries_no_route(code):
    async with connected(retry_timeout_s=0.0) as (broker, client):
        broker.fail("Append", *[Fault(code=code)] * 3)
        with pytest.raises(TransportError):
            await client.append("a/journal", b"x")
        assert client._transport.routes.get("a/journal") is None


async def test_ap3_invalid_response_is_an_error_and_carries_no_route(monkeypatch):
    async with connected() as (broker, client):
        monkeypatch.setattr(type(broker), "header", lambda _: pb.Header(route=pb.Route(primary=-1)))
        text = "validating broker response: Header.Etcd: invalid ClusterId"
        with pytest.raises(DataError, match=text):
            await client.append("a/journal", b"x")
        assert client._transport.routes.get("a/journal") is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"registers": {}}, "expected Commit"),
        ({"commit": _COMMIT}, "expected Registers"),
        ({"commit": {**_COMMIT, "end": -1}, "registers": {}}, "Commit: .*End"),
        ({"commit": _COMMIT, "registers": {}, "delayed_chunks": 1}, "invalid DelayedChunks"),
        ({"status": "REGISTER_MISMATCH"}, "expected Registers"),
    ],
)
async def test_ap3_an_append_is_not_believed_that_breaks_a_rule(monkeypatch, fields, text):
    async def answer(broker, messages, _):
        async for _ in messages:
            pass
        return pb.AppendResponse(header=broker.header(), **fields).SerializeToString()

    monkeypatch.setattr(FakeBroker, "_append", answer)
    async with connected() as (_, client):
        with pytest.raises(DataError, match=f"validating broker response: {text}"):
            await client.append("a/journal", b"x")


async def test_ap6_an_append_that_is_cancelled_appends_nothing():
    async with connected() as (broker, client):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.append("a/journal", endless()), 0.05)
        await client.append("a/journal", b"next")
        assert broker.journals["a/journal"].content == b"next"


async def test_as2_as8_aborted_appends_vanish_and_say_why():
    def aborted():
        yield b"never seen"
        raise ValueError("no more")

    async with connected() as (broker, client):
        await client.append("a/journal", [b"write ", b"one "])
        with pytest.raises(ValueError, match="no more"):
            await client.append("a/journal", aborted())
        await client.append("a/journal", b"write two")
        assert broker.journals["a/journal"].content == b"write one write two"
        assert broker.append_sizes == [10, 9]


async def test_error_of_a_broker_has_its_code_and_text():
    async with connected(retry_timeout_s=0) as (broker, client):
        for code, details in (
            (grpc.StatusCode.UNAUTHENTICATED, "no APPEND capability"),
            (grpc.StatusCode.INTERNAL, "malformed message"),
            (grpc.StatusCode.FAILED_PRECONDITION, "not in this state"),
        ):
            broker.fail("Append", Fault(code=code, details=details))
            with pytest.raises(CallFailed, match=details) as caught:
                await client.append("a/journal", b"x")
            assert caught.value.code == code.name


LOST = Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True)
SHUT = Fault(code=grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    "make", [bytes, lambda data: [data[:700_000], data[700_000:]]], ids=["bytes", "list"]
)
async def test_an_append_at_an_offset_whose_answer_was_lost_is_proven_by_its_bytes(make):
    async with connected() as (broker, client):
        journal = broker.journals["a/journal"]
        journal.content += b"before"
        journal.registers = LabelSet.of(author="me")
        broker.fail("Append", LOST)
        data = bytes(range(256)) * 4000
        result = await client.append("a/journal", make(data), offset=6)
        assert (result.begin, result.end) == (6, 6 + len(data))
        assert result.sha1 == hashlib.sha1(data).digest()
        assert result.registers == LabelSet.of(author="me")
        assert journal.content == b"before" + data


@pytest.mark.parametrize("others", [b"others' content", b"minE", b"minE and more"])
async def test_an_append_at_an_offset_that_others_took_is_refused_all_the_same(others):
    """The first attempt broke before it was applied, and another one came before the next."""
    async with connected() as (broker, client):
        taken_by_others(broker, others)
        with pytest.raises(WrongAppendOffset) as refused:
            await client.append("a/journal", b"mine", offset=6)
        assert refused.value.may_be_applied is False


async def test_a_journal_that_ends_within_the_content_leaves_the_outcome_unknown(monkeypatch):
    monkeypatch.setattr(append, "_PIECE_TIMEOUT_S", 0.1)
    async with connected() as (broker, client):
        taken_by_others(broker, b"min")
        with pytest.raises(OutcomeUnknown, match="does not reach to the end of it, from offset 6"):
            await client.append("a/journal", b"mine", offset=6)


def taken_by_others(broker, others):
    """Lose an append at offset 6 with its answer, and put others' bytes in its place."""
    journal = broker.journals["a/journal"]
    journal.content += b"before"
    broker.fail("Append", LOST)
    original = broker._fault

    async def fault(method, *args):
        if method == "Append" and broker.calls["Append"] == 1:
            journal.content[6:] = others
        return await original(method, *args)

    broker._fault = fault


async def test_an_append_whose_own_registers_refuse_it_is_proven_by_its_bytes():
    async with connected() as (broker, client):
        broker.journals["a/journal"].content += b"before"
        broker.fail("Append", LOST, Fault(status=pb.REGISTER_MISMATCH))
        result = await client.append("a/journal", b"mine", offset=6)
        assert (result.begin, result.end) == (6, 10)
        assert broker.journals["a/journal"].content == b"beforemine"


@pytest.mark.parametrize(
    "status", [pb.REGISTER_MISMATCH, pb.JOURNAL_NOT_FOUND, pb.NOT_ALLOWED], ids=pb.Status.Name
)
async def test_a_refusal_behind_a_lost_answer_proves_nothing(status):
    async with connected() as (broker, client):
        broker.journals["a/journal"].content += b"before"
        broker.fail("Append", LOST, Fault(status=status))
        with pytest.raises(OutcomeUnknown, match="an attempt was not answered") as unknown:
            await client.append("a/journal", b"x")
        assert unknown.value.may_be_applied
        assert not unknown.value.retriable
        assert unknown.value.__cause__.status == pb.Status.Name(status)
        # Nothing is unknown about an append without content, or one that nothing was sent of.
        broker.fail("Append", LOST, Fault(status=status))
        with pytest.raises(errors.StatusError):
            await client.append("a/journal", b"")
        broker.fail("Append", Fault(status=pb.NO_JOURNAL_PRIMARY_BROKER), Fault(status=status))
        with pytest.raises(errors.StatusError):
            await client.append("a/journal", b"x")


async def test_pieces_without_a_byte_prove_nothing():
    """They are at any offset, whoever came first."""
    async with connected() as (broker, client):
        broker.journals["a/journal"].content += b"before"
        broker.fail("Append", LOST, Fault(status=pb.REGISTER_MISMATCH))
        with pytest.raises(errors.RegisterMismatch):
            await client.append("a/journal", [b""], offset=6)


async def test_an_offset_that_cannot_be_read_leaves_the_outcome_unknown():
    async with connected() as (broker, client):
        broker.journals["a/journal"].content += b"before"
        broker.fail("Append", LOST)
        broker.fail("Read", Fault(status=pb.NOT_ALLOWED))
        with pytest.raises(OutcomeUnknown, match=r"offset 6 cannot be read: .*NOT_ALLOWED"):
            await client.append("a/journal", b"x", offset=6)


async def test_error_says_whether_the_content_may_exist():
    async with connected(retry_timeout_s=0, append_timeout_s=0.2) as (broker, client):
        broker.fail("Append", LOST, Fault(stall=True))
        for _ in range(2):
            with pytest.raises(TransportError) as lost:
                await client.append("a/journal", b"x")
            assert lost.value.may_be_applied
        broker.fail("Append", Fault(code=grpc.StatusCode.UNAUTHENTICATED))
        with pytest.raises(CallFailed) as refused:
            await client.append("a/journal", b"x")
        assert not refused.value.may_be_applied
    async with AsyncClient(
        ClientConfig(address="http://127.0.0.1:1", retry_timeout_s=0.1)
    ) as client:
        with pytest.raises(TransportError) as never:
            await client.append("a/journal", b"x")
        assert not never.value.may_be_applied


@pytest.mark.parametrize("cuts", [(), (1,), (CONTENT_CHUNK_BYTES,), (300_000, 900_000, 900_001)])
def test_pieces_are_sent_in_the_messages_of_their_concatenation(cuts):
    """A larger message would be refused by brokers of Gazette."""
    content = bytes(range(251)) * 7_000
    bounds = [0, *cuts, len(content)]
    pieces = [content[begin:end] for begin, end in itertools.pairwise(bounds)]
    parts = [memoryview(piece) for piece in pieces]
    assert list(joined_messages(parts)) == list(encoded_messages(memoryview(content)))
