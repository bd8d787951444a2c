"""What applications are asked for: how messages are decoded, and what they publish with."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest
from shard_bench import NDJSON, journal

from gazette_platform.consumer.application import Application, TransactionPublisher
from gazette_platform.errors import ApplicationFailed, ValidationError
from gazette_platform.message import (
    AckIntent,
    Flags,
    JsonFraming,
    Mapped,
    MessageDecoder,
    ProtoFraming,
    Publisher,
    frame_fixed,
    parse_uuid,
)
from gazette_platform.ops.clock import ManualClock
from gazette_platform.protocol import JournalSpec, LabelSet
from gazette_platform.protocol.pb import protocol_pb2 as pb

UUID = "83fc2f95-cc5f-11e9-8000-070203040506"


class _Base(Application[Any, Any]):
    def new_store(self, shard, recorder):
        raise AssertionError("the tests never open it")


def decoded(application, content_type, content):
    spec = journal("a/b", content_type)
    decoder = MessageDecoder(spec.name, application.framing(spec))
    decoder.feed(0, content)
    [envelope] = decoder.take()
    return envelope


def test_messages_are_dictionaries_by_default():
    found = decoded(_Base(), NDJSON, b'{"UUID":"%s","a":1}\n' % UUID.encode())
    assert found.message == {"UUID": UUID, "a": 1}
    assert found.uuid.producer.hex() == "070203040506"
    assert decoded(_Base(), "text/csv", b"%s,x\n" % UUID.encode()).message == [UUID, "x"]


def test_messages_have_the_type_that_is_reported():
    @dataclasses.dataclass
    class Click:
        UUID: str = ""
        a: int = 0

    class Typed(_Base):
        message_type = Click

    assert decoded(Typed(), NDJSON, b'{"UUID":"%s","a":1}\n' % UUID.encode()).message == Click(
        UUID, 1
    )

    class OwnField(_Base):
        uuid_field = "meta.id"

    found = decoded(OwnField(), NDJSON, b'{"meta":{"id":"%s"}}\n' % UUID.encode())
    assert found.uuid.clock

    class Proto(_Base):
        message_type = pb.Label
        uuid_field = "value"

    with pytest.raises(Exception, match="UUID"):
        decoded(
            Proto(),
            "application/x-protobuf-fixed",
            frame_fixed(pb.Label(name="n", value="v").SerializeToString()),
        )
    framing = Proto().framing(journal("a/b", "application/x-protobuf-fixed"))
    assert isinstance(framing, ProtoFraming)
    assert isinstance(Typed().framing(journal("a/b", NDJSON)), JsonFraming)


class NoUuid(msgspec.Struct):
    a: int = 0


@dataclasses.dataclass
class NoUuidEither:
    uuid: str = ""


@pytest.mark.parametrize("kind", [NoUuid, NoUuidEither, NoUuid | None, int])
def test_type_without_uuid_field_is_refused(kind):
    """It read acknowledgements, repeated and uncommitted messages as messages, with a warning about these."""

    class Typed(_Base):
        message_type = kind

    with pytest.raises(ValidationError, match="has no field UUID for the UUID"):
        Typed().framing(journal("a/b", NDJSON))


def test_protobuf_source_without_message_type_is_refused():
    with pytest.raises(ValidationError, match="set `message_type` to their generated class"):
        _Base().framing(journal("a/b", "application/x-protobuf-fixed"))


def test_a_journal_without_framing_is_refused():
    with pytest.raises(ValidationError, match="must have one label content-type"):
        _Base().framing(JournalSpec("a/b", labels=LabelSet()))


class _Appends:
    """Takes what is appended."""

    def __init__(self):
        self.appended = []

    async def room(self):
        pass

    def submit_nowait(self, journal, content):
        self.appended.append(AckIntent(journal, content))


class _Brokers:
    """Returns the journals of the test."""

    def __init__(self):
        self.asked = []

    async def get(self, name):
        self.asked.append(name)

        class Listing:
            spec = journal(name)

        return Listing


def numbers(content):
    """Of each line its number, or 0 of an ACK, and its flags; their clocks rise."""
    documents = [json.loads(line) for line in content.splitlines()]
    parts = [parse_uuid(each["UUID"]) for each in documents]
    assert [each.clock for each in parts] == sorted({each.clock for each in parts})
    return [(each.get("n", 0), part.flags) for each, part in zip(documents, parts, strict=True)]


async def test_messages_go_to_a_journal_or_where_a_mapping_says():
    brokers, appends = _Brokers(), _Appends()
    publisher = TransactionPublisher(brokers, appends, ManualClock())
    publisher.begin()
    await publisher.publish("out/one", {"n": 1})
    await publisher.publish(lambda message: Mapped(f"out/{message['n']}", NDJSON), {"n": 3})
    await publisher.publish("out/one", {"n": 2})
    assert brokers.asked == ["out/one"]
    assert [each.journal for each in appends.appended] == ["out/one", "out/3", "out/one"]
    acks = publisher.build_acks()
    assert [each.journal for each in acks] == ["out/one", "out/3"]
    for ack in acks:
        assert numbers(ack.content) == [(0, Flags.ACK_TXN)]
    of_one = b"".join(each.content for each in appends.appended if each.journal == "out/one")
    # The clocks rise in the journal.
    assert numbers(of_one + acks[0].content) == [
        (1, Flags.CONTINUE_TXN),
        (2, Flags.CONTINUE_TXN),
        (0, Flags.ACK_TXN),
    ]
    assert publisher.build_acks() == []
    assert len(publisher.producer) == 6


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_forgotten_await_of_publish_fails_the_transaction():
    """The message was lost, and the shard went on."""
    publisher = TransactionPublisher(_Brokers(), _Appends(), ManualClock())
    publisher.begin()
    await publisher.publish("out/one", {"n": 1})
    forgotten = publisher.publish("out/one", {"n": 2})
    with pytest.raises(ApplicationFailed, match=r"1 call of `publish` did not end .* write `await"):
        publisher.build_acks()
    with pytest.raises(ValidationError, match="takes no UUID"):
        await publisher.publish("out/one", {"a set"})  # which the application may catch
    await forgotten
    assert [each.journal for each in publisher.build_acks()] == ["out/one"]


@pytest.mark.parametrize("message", ["text", {"a", "set"}, b"bytes", 5, [1], None])
async def test_message_without_fields_says_what_to_publish(message):
    publisher = TransactionPublisher(_Brokers(), _Appends(), ManualClock())
    with pytest.raises(ValidationError, match=r"publish a dict, as {'value': …}, or an object"):
        await publisher.publish("out/one", message)


async def test_publisher_without_mapping_learns_where_messages_go():
    publisher = Publisher(_Appends(), None, None)
    with pytest.raises(ValidationError, match="say where the message goes"):
        await publisher.publish_uncommitted({})
    await publisher.publish_uncommitted({}, to=Mapped("out/one", NDJSON))
    assert [each.journal for each in publisher.build_acks()] == ["out/one"]
