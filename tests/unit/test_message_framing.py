import pytest

from gazette_platform.errors import Desynchronized, ValidationError
from gazette_platform.message import (
    FIXED_MAGIC,
    fnv1a32,
    frame_fixed,
    modulo,
    rendezvous,
    split_fixed,
)


def test_fixed_frames_are_those_of_gazette():
    assert frame_fixed(b"foo") == bytes.fromhex("66339336 03000000 666f6f")
    assert frame_fixed(b"") == FIXED_MAGIC + bytes(4)


@pytest.mark.parametrize("cut", range(1, 30))
def test_fixed_frames_come_back_from_any_cut(cut):
    content = frame_fixed(b"foo") + frame_fixed(b"") + frame_fixed(b"barbaz")
    first, rest = split_fixed(content[:cut])
    second, rest = split_fixed(rest + content[cut:])
    assert first + second == [b"foo", b"", b"barbaz"]
    assert rest == b""
    assert split_fixed(content, has_headers=True)[0][0] == frame_fixed(b"foo")


def test_lost_place_is_told_with_the_next_magic():
    with pytest.raises(Desynchronized, match=r"byte 11: found 67617262.*next magic is at byte 18"):
        split_fixed(frame_fixed(b"foo") + b"garbage" + frame_fixed(b"bar"))
    with pytest.raises(Desynchronized, match="no magic follows"):
        split_fixed(b"\n")
    with pytest.raises(Desynchronized, match="length up to"):
        split_fixed(FIXED_MAGIC + b"\xff\xff\xff\xff")


JOURNALS = [b"a/topic/part-%03d" % n for n in range(500)]


@pytest.mark.parametrize(
    ("key", "by_modulo", "by_rendezvous"),
    [(b"", 2, 4), (b"a", 5, 5), (b"hello", 2, 3), (b"user-42", 6, 4)],
)
def test_mapping_among_seven_journals_is_gazettes(key, by_modulo, by_rendezvous):
    assert modulo(key, 7) == by_modulo
    assert rendezvous(key, [fnv1a32(name) for name in JOURNALS[:7]]) == by_rendezvous


@pytest.mark.parametrize(
    ("key", "by_modulo", "by_rendezvous"),
    [
        ("It always", 119, 21),
        ("seems", 54, 179),
        ("impossible", 308, 50),
        ("until", 97, 13),
        ("- Nelson Mandela", 437, 29),
        ("Shall I compare", 84, 110),
        ("thee to", 300, 395),
    ],
)
@pytest.mark.parametrize("count", [400, 500])
def test_mapping_among_many_journals_is_gazettes(key, by_modulo, by_rendezvous, count):
    assert modulo(key.encode(), 443) == by_modulo
    hashes = [fnv1a32(name) for name in JOURNALS[:count]]
    assert rendezvous(key.encode(), hashes) == by_rendezvous


def test_mapping_needs_a_journal():
    for call in (lambda: modulo(b"a", 0), lambda: rendezvous(b"a", [])):
        with pytest.raises(ValidationError, match="empty ListResponse"):
            call()
