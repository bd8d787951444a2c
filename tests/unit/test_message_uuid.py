"""UUIDs of messages: the vectors of Gazette, and what another library makes of them."""

import uuid

import pytest

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message import (
    NO_UUID,
    Flags,
    MessageClock,
    UuidParts,
    build_uuid,
    clock_of,
    new_producer_id,
    parse_uuid,
    parse_uuids,
    unix_ns_of,
    uuid_bytes,
)

PRODUCER = bytes.fromhex("070203040506")
INSTANT_NS = 1567304621_981273734
CLOCK = 2205855587517003792
VECTORS = [
    (CLOCK + 320, 0, "83fc2f95-cc5f-11e9-8000-070203040506"),
    (CLOCK + 320, 1, "83fc2f95-cc5f-11e9-8001-070203040506"),
    (CLOCK + 320, 2, "83fc2f95-cc5f-11e9-8002-070203040506"),
    (CLOCK + 320, 682, "83fc2f95-cc5f-11e9-82aa-070203040506"),
    (CLOCK + 325, 1, "83fc2f95-cc5f-11e9-9401-070203040506"),
    (160, 0, "0000000a-0000-1000-8000-070203040506"),
    ((1 << 64) - 1, 0x3FF, "ffffffff-ffff-1fff-bfff-070203040506"),
]


def test_mu1_producer_ids_all_differ():
    drawn = {new_producer_id() for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(len(one) == 6 and one[0] & 1 for one in drawn)


def test_mu2_a_tick_is_a_microsecond():
    clock = MessageClock()
    clock.update(INSTANT_NS)
    assert clock.value == CLOCK
    assert [clock.tick(), clock.tick()] == [CLOCK + 160, CLOCK + 320]
    assert clock.value == CLOCK + 320
    assert unix_ns_of(CLOCK + 160) - unix_ns_of(CLOCK) == 1000


def test_mu3_clocks_distinguish_100_ns():
    assert clock_of(0) == 1955086848000000000
    assert clock_of(INSTANT_NS) == CLOCK == 0x1E9CC5F83FC2F810
    assert clock_of(INSTANT_NS + 65) == CLOCK
    assert clock_of(INSTANT_NS + 66) == CLOCK + 16
    assert unix_ns_of(CLOCK) == 1567304621_981273700
    assert unix_ns_of(0) == -12219292800 * 10**9
    assert clock_of(unix_ns_of(0)) == 0
    with pytest.raises(ValidationError, match="before 1582"):
        clock_of(unix_ns_of(0) - 1)
    with pytest.raises(ValidationError, match="after 5236"):
        clock_of(unix_ns_of(1 << 64))


def test_mu4_an_update_never_lowers_a_clock():
    clock = MessageClock(CLOCK + 5)
    clock.update(INSTANT_NS - 1000)
    assert clock.value == CLOCK + 5
    clock.update(INSTANT_NS)
    assert clock.value == CLOCK + 5


def test_mu5_an_update_resets_the_sequence():
    clock = MessageClock(CLOCK + 5)
    clock.update(INSTANT_NS + 100)
    assert clock.value == CLOCK + 16


def test_a_clock_ends():
    clock = MessageClock((1 << 64) - 161)
    assert clock.tick() == (1 << 64) - 1
    with pytest.raises(ValidationError, match="cannot tick"):
        clock.tick()


@pytest.mark.parametrize(("clock", "flags", "text"), VECTORS)
def test_mu6_uuids_are_gazettes(clock, flags, text):
    built = build_uuid(PRODUCER, clock, flags)
    assert str(built) == text
    parts = UuidParts(PRODUCER, clock, flags)
    for value in (built, built.bytes, text, text.upper(), text.replace("-", ""), f"{{{text}}}"):
        assert parse_uuid(value) == parts
    # What a library that knows nothing of Gazette sees.
    assert built.version == 1
    assert built.variant == uuid.RFC_4122
    assert built.node == int.from_bytes(PRODUCER)
    assert built.time == clock >> 4
    assert built.clock_seq == (clock & 0xF) << 10 | flags


def test_uuids_are_in_the_order_of_their_clocks():
    clock = MessageClock(CLOCK)
    parsed = [parse_uuid(build_uuid(PRODUCER, clock.tick(), Flags.CONTINUE_TXN)) for _ in range(9)]
    assert parsed == sorted(parsed)


def test_many_at_once_are_as_one_by_one():
    texts = [text for _, _, text in VECTORS] + [str(uuid.UUID(int=0))]
    parts = [parse_uuid(text) for text in texts]
    assert parts[-1] == NO_UUID
    raw = uuid_bytes(texts)
    assert raw == b"".join(uuid.UUID(text).bytes for text in texts)
    assert parse_uuids(raw) == parts
    odd = [*texts, texts[0].replace("-", ""), f"urn:uuid:{texts[1]}"]
    assert parse_uuids(uuid_bytes(iter(odd))) == [*parts, parts[0], parts[1]]
    assert parse_uuids(uuid_bytes([])) == []


GOOD = VECTORS[0][2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        GOOD[:-1],
        GOOD + "0",
        GOOD.replace("f", "g"),
        # Of the right length, with white space that the fast way must not pass over.
        GOOD[:-2] + " 0",
        GOOD[:-2] + "  ",
        "1_" + GOOD[2:],
        GOOD.replace("-", "_"),
        GOOD[:-1] + "\u0661",
    ],
)
def test_invalid_uuid_is_named(text):
    for call in (
        lambda: parse_uuid(text),
        lambda: uuid_bytes([text]),
        lambda: uuid_bytes([GOOD, text, GOOD]),
    ):
        with pytest.raises(DataError, match="not a UUID"):
            call()


def test_lengths_that_make_up_for_each_other_are_seen():
    # Hyphens where they would be if each had 36 characters.
    with pytest.raises(DataError, match="is not a UUID"):
        uuid_bytes([GOOD[:-1], GOOD[-1] + GOOD])


def test_bytes_that_are_not_a_uuid_are_refused():
    with pytest.raises(DataError, match="16 bytes, and not 15"):
        parse_uuid(bytes(15))
    with pytest.raises(DataError, match="17 bytes are not a whole number"):
        parse_uuids(bytes(17))


@pytest.mark.parametrize(
    ("producer", "clock", "flags", "path"),
    [
        (bytes(5), 0, 0, "producer"),
        (PRODUCER, -1, 0, "clock"),
        (PRODUCER, 1 << 64, 0, "clock"),
        (PRODUCER, 0, 0x400, "flags"),
        (PRODUCER, 0, -1, "flags"),
    ],
)
def test_parts_that_do_not_fit_are_refused(producer, clock, flags, path):
    with pytest.raises(ValidationError, match=f"^{path}: must"):
        build_uuid(producer, clock, flags)
