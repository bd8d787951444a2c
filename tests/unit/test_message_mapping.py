"""Mappings choose the journals that Gazette's do."""

import random
from collections import Counter

import pytest

from gazette_platform.client import JournalListing, ListSnapshot
from gazette_platform.errors import ValidationError
from gazette_platform.message import (
    Mapped,
    fnv1a32,
    modulo,
    modulo_mapping,
    random_mapping,
    rendezvous,
    rendezvous_mapping,
)
from gazette_platform.protocol import EtcdHeader, Header, JournalSpec, LabelSet, Route

JOURNALS = [b"a/topic/part-%03d" % n for n in range(500)]


@pytest.mark.parametrize(
    ("key", "by_modulo", "by_rendezvous"),
    [(b"", 2, 4), (b"a", 5, 5), (b"hello", 2, 3), (b"user-42", 6, 4)],
)
def test_mm1_mapping_among_seven_journals_is_gazettes(key, by_modulo, by_rendezvous):
    assert modulo(key, 7) == by_modulo
    assert rendezvous(key, [fnv1a32(name) for name in JOURNALS[:7]]) == by_rendezvous


@pytest.mark.parametrize(
    ("key", "by_modulo", "by_rendezvous"),
    [
        ("It always", 119, 21),
        ("seems", 54, 179),
        ("impossible", 308, 50),
        ("until", 97, 13),
        ("it is done.", 179, 337),
        ("- Nelson Mandela", 437, 29),
        ("Shall I compare", 84, 110),
        ("thee to", 300, 395),
    ],
)
@pytest.mark.parametrize("count", [400, 500])
def test_mm1_mm2_mapping_among_many_journals_is_gazettes(key, by_modulo, by_rendezvous, count):
    assert modulo(key.encode(), 443) == by_modulo
    hashes = [fnv1a32(name) for name in JOURNALS[:count]]
    assert rendezvous(key.encode(), hashes) == by_rendezvous


def test_mapping_needs_a_journal():
    for call in (lambda: modulo(b"a", 0), lambda: rendezvous(b"a", [])):
        with pytest.raises(ValidationError, match="empty ListResponse"):
            call()


def snapshot(count, content_type="text/csv"):
    labels = LabelSet.of(("content-type", content_type)) if content_type else LabelSet()
    specs = [JournalSpec(name.decode(), labels=labels) for name in JOURNALS[:count]]
    listed = tuple(JournalListing(spec, 1, 1, Route()) for spec in specs)
    return ListSnapshot(listed, Header(None, Route(), EtcdHeader(1, 1, 1, 1)))


def test_mappings_name_the_journal_and_its_content_type():
    seven = snapshot(7)
    by_modulo = modulo_mapping(str.encode, lambda: seven)
    by_rendezvous = rendezvous_mapping(str.encode, lambda: seven)
    assert by_modulo("user-42") == Mapped("a/topic/part-006", "text/csv")
    assert by_rendezvous("user-42") == Mapped("a/topic/part-004", "text/csv")
    bare = snapshot(1, content_type="")
    assert modulo_mapping(str.encode, lambda: bare)("x") == Mapped("a/topic/part-000", "")


def test_mm2_mappings_follow_the_listing_of_now():
    now = [snapshot(400)]
    asked = []

    def partitions():
        asked.append(now[0])
        return now[0]

    by_rendezvous = rendezvous_mapping(str.encode, partitions)
    by_modulo = modulo_mapping(str.encode, partitions)
    names = "It always", "seems", "thee to"
    before = [by_rendezvous(name) for name in names]
    assert [one.journal[-3:] for one in before] == ["021", "179", "395"]
    moved = by_modulo("seems")
    now[0] = snapshot(500)
    assert [by_rendezvous(name) for name in names] == before
    assert by_modulo("seems") != moved
    now[0] = snapshot(100)
    assert by_rendezvous("thee to") != before[2]
    assert len(asked) == 9


def test_mm3_random_mapping_hits_all():
    three = snapshot(3)
    mapping = random_mapping(lambda: three, random.Random(7))
    hits = Counter(mapping(None).journal for _ in range(300))
    assert len(hits) == 3
    assert min(hits.values()) > 50


def test_mappings_need_a_journal():
    none = snapshot(0)
    for mapping in (
        modulo_mapping(str.encode, lambda: none),
        rendezvous_mapping(str.encode, lambda: none),
        random_mapping(lambda: none, random.Random(7)),
    ):
        with pytest.raises(ValidationError, match="empty ListResponse"):
            mapping("a")


@pytest.mark.parametrize("mapping_of", [modulo_mapping, rendezvous_mapping])
@pytest.mark.parametrize("key", [None, "text", 7])
def test_a_key_that_is_not_bytes_is_told_with_what_to_do(mapping_of, key):
    """It was a TypeError about operands of ^ before."""
    mapping = mapping_of(lambda message: message["key"], lambda: snapshot(2))
    with pytest.raises(ValidationError, match=rf"must be bytes, .* gave {key!r} \(encode it"):
        mapping({"key": key})
    assert mapping({"key": bytearray(b"a")}) == mapping({"key": b"a"})
