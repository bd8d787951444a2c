"""Histories: what is recorded is what is loaded, also after a crash, and through a real client."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import ManualClock, SystemClock
from gazette_platform.protocol import LabelSelector, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb
from tests.benches.fake_broker import FakeBroker, Fault
from tests.checker import check_history
from tests.checker.history import (
    FinalContent,
    Outcome,
    Payload,
    Piece,
    Recorder,
    load_history,
    payload_bytes,
)
from tests.checker.recording import RecordingClient, RecordingWriter


@pytest.fixture
def recorder(tmp_path):
    clock = ManualClock()
    with Recorder(tmp_path / "history.jsonl", clock, seed=7) as recorder:
        recorder.clock = clock
        yield recorder


def test_append_is_loaded_as_recorded(recorder):
    clock = recorder.clock
    op = recorder.invoke_append(
        "w1",
        "a/journal",
        Payload("w1-0", 40),
        offset=9,
        check=LabelSelector.parse("owner=me,!old"),
        union=LabelSet.of(owner="me"),
        subtract=LabelSet.of(("aa", "1"), ("aa", "2")),
    )
    clock.advance(1.5)
    recorder.ok_append(
        op, begin=9, end=49, sha1=b"s" * 20, registers=LabelSet.of(owner="me"), attempts=2
    )
    (append,) = load_history(recorder.path).appends
    assert (append.begin, append.end, append.sha1, append.attempts) == (9, 49, b"s" * 20, 2)
    assert (append.invoked_at, append.completed_at) == (0.0, 1.5)
    assert append.outcome is Outcome.OK
    assert append.content == payload_bytes(7, Payload("w1-0", 40))
    assert append.offset == 9
    assert append.check == LabelSelector.parse("owner=me,!old")
    assert append.union == append.registers == LabelSet.of(owner="me")
    assert append.subtract == LabelSet.of(("aa", "1"), ("aa", "2"))


def test_polls_finals_and_notes_are_loaded(recorder):
    stream = recorder.stream()
    op = recorder.invoke_poll("r1", "a/journal", stream=stream, offset=3)
    recorder.ok_poll(op, (3, b"abc"), (6, b"d"), write_head=7)
    recorder.final("a/journal", b"0123456", begin=1, registers=LabelSet.of(aa="1"))
    recorder.note("kill b-1")
    history = load_history(recorder.path)
    (poll,) = history.polls
    assert poll.pieces == (Piece.of(3, b"abc"), Piece.of(6, b"d"))
    assert (poll.offset, poll.write_head, poll.stream) == (3, 7, stream)
    assert history.finals["a/journal"].content == b"0123456"
    assert history.finals["a/journal"].end == 8
    assert history.finals["a/journal"].registers == LabelSet.of(aa="1")
    assert [note.text for note in history.notes] == ["kill b-1"]


# ------------------------------------------------------------------ through a client


@pytest.fixture
async def broker():
    async with FakeBroker() as broker:
        yield broker


async def recorded(tmp_path, broker, use, **settings):
    config = ClientConfig(address=broker.address, **settings)
    with Recorder(tmp_path / "history.jsonl", SystemClock(), seed=7) as recorder:
        async with AsyncClient(config) as client:
            await use(RecordingClient(client, recorder, "w1"))
    return load_history(tmp_path / "history.jsonl")


async def test_refused_append_is_a_failure(tmp_path, broker):
    broker.journal("a/journal")

    async def use(client):
        with pytest.raises(GazetteError):
            await client.append("a/journal", b"x", offset=5)

    (append,) = (await recorded(tmp_path, broker, use)).appends
    assert append.outcome is Outcome.FAIL
    assert append.error.startswith("WrongAppendOffset: ")


@pytest.mark.parametrize("after_commit", [False, True])
async def test_lost_answer_is_unknown(tmp_path, broker, after_commit):
    broker.journal("a/journal")
    broker.fail("Append", Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=after_commit))

    async def use(client):
        with pytest.raises(GazetteError):
            await client.append("a/journal", b"x")

    (append,) = (await recorded(tmp_path, broker, use, retry_timeout_s=0)).appends
    assert append.outcome is Outcome.UNKNOWN
    assert append.attempts == 1


async def test_attempts_of_a_client_that_retries_are_counted(tmp_path, broker):
    journal = broker.journal("a/journal")
    lost = Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True)
    broker.fail("Append", lost, lost)

    async def use(client):
        await client.append("a/journal", b"content")

    history = await recorded(tmp_path, broker, use)
    (append,) = history.appends
    assert (append.outcome, append.attempts) == (Outcome.OK, 3)
    with_final(history, journal)
    assert check_history(history).is_valid


async def test_refusal_after_a_lost_answer_is_unknown(tmp_path, broker):
    broker.journal("a/journal", b"_")
    broker.fail(
        "Append",
        Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True),
        Fault(status=pb.REGISTER_MISMATCH),
    )

    async def use(client):
        with pytest.raises(GazetteError):
            await client.append("a/journal", b"content")

    history = await recorded(tmp_path, broker, use)
    (append,) = history.appends
    assert (append.outcome, append.attempts) == (Outcome.UNKNOWN, 1)


async def written(tmp_path, broker, *tags, **settings):
    """The history of an append writer, which may fail."""
    config = ClientConfig(address=broker.address, **settings)
    with Recorder(tmp_path / "history.jsonl", SystemClock(), seed=7) as recorder:
        async with AsyncClient(config) as client:
            writer = RecordingWriter(client.append_writer("a/journal"), recorder, "w1")
            for tag in tags:
                await writer.write(Payload(tag, 40))
            with contextlib.suppress(GazetteError):
                await writer.close()
            assert writer.unresolved == 0
    return load_history(tmp_path / "history.jsonl")


async def test_writes_of_an_append_writer_may_exist_as_often_as_they_were_sent(tmp_path, broker):
    journal = broker.journal("a/journal")
    history = await written(tmp_path, broker, "w1-0", "w1-1")
    assert [(op.outcome, op.attempts) for op in history.appends] == [(Outcome.OK, 1)] * 2
    with_final(history, journal)
    assert check_history(history).is_valid
    journal.content += journal.content[:40]
    with_final(history, journal)
    assert [anomaly.name for anomaly in check_history(history).anomalies] == ["duplicate"]


async def test_attempts_of_an_append_writer_are_counted(tmp_path, broker):
    journal = broker.journal("a/journal")
    lost = Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True)
    broker.fail("Append", lost, Fault(status=pb.NO_JOURNAL_PRIMARY_BROKER), lost)
    history = await written(tmp_path, broker, "w1-0")
    (append,) = history.appends
    assert (append.outcome, append.attempts) == (Outcome.OK, 3)
    assert len(journal.content) == 3 * 40
    with_final(history, journal)
    assert check_history(history).is_valid


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault(code=grpc.StatusCode.UNAVAILABLE, after_commit=True), Outcome.UNKNOWN),
        (Fault(status=pb.NOT_ALLOWED), Outcome.FAIL),
    ],
)
async def test_writes_that_failed_are_refused_or_unknown(tmp_path, broker, fault, outcome):
    broker.journal("a/journal")
    broker.fail("Append", fault)
    history = await written(tmp_path, broker, "w1-0", retry_timeout_s=0)
    (append,) = history.appends
    assert (append.outcome, append.attempts) == (outcome, 1)


def with_final(history, journal, begin=0):
    content = bytes(journal.content[begin:])
    history.finals[journal.name] = FinalContent(journal.name, begin, content)
