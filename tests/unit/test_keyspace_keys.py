"""Names of keys, and their values."""

from __future__ import annotations

import pytest

from gazette_platform.errors import ValidationError
from gazette_platform.keyspace import (
    AssignmentKey,
    ItemKey,
    MemberKey,
    assignment_key,
    assignments_prefix,
    decode_broker_spec,
    decode_journal_spec,
    decode_route,
    encode_broker_spec,
    encode_journal_spec,
    encode_route,
    item_key,
    member_key,
    parse_key,
    validate_prefix,
)
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
    Route,
)

A = ProcessId("zone-a", "suffix-1")
B = ProcessId("zone-b", "suffix-2")


def spec_of(name: str) -> JournalSpec:
    second = 10**9
    return JournalSpec(
        name,
        1,
        fragment=FragmentSpec(length=1024, codec=CompressionCodec.NONE, refresh_interval_ns=second),
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (ItemKey("foo/bar"), "/p/items/foo/bar"),
        (MemberKey(A), "/p/members/zone-a#suffix-1"),
        (AssignmentKey("foo/bar", A, 12), "/p/assign/foo/bar#zone-a#suffix-1#12"),
    ],
)
def test_keys_are_built_and_parsed(key, text):
    match key:
        case ItemKey(item):
            assert item_key("/p", item) == text
        case MemberKey(process_id):
            assert member_key("/p", process_id) == text
        case AssignmentKey(item, process_id, slot):
            assert assignment_key("/p", item, process_id, slot) == text
    assert parse_key("/p", text) == key


def test_k1_order_of_keys_is_order_of_parts():
    parts = [
        (item, ProcessId(zone, suffix), slot)
        for item in ("1", "11", "111", "1/1", "12", "Y", "YY")
        for zone in ("a", "aa", "a-a")
        for suffix in ("x1", "x11")
        for slot in (0, 1, 2)
    ]
    by_parts = sorted(parts)
    by_key = sorted(parts, key=lambda p: assignment_key("/p", *p))
    # A character that sorts below '/' in an item would break the order, were '#' not lower still.
    assert by_key == by_parts


@pytest.mark.parametrize("bad", ["", "a#b", "a b", 'a"b', "a\0"])
def test_k2_characters_up_to_the_separator_are_refused(bad):
    with pytest.raises(ValidationError, match="cannot be part of an etcd key"):
        item_key("/p", bad)
    with pytest.raises(ValidationError, match="cannot be part of an etcd key"):
        member_key("/p", ProcessId("zone", bad))


@pytest.mark.parametrize(
    "key",
    [
        "/q/items/a",
        "/pp/items/a",
        "/p/other/a",
        "/p/items/",
        "/p/items/a#b",
        "/p/members/a",
        "/p/members/a#b#c",
        "/p/assign/a#b#c",
        "/p/assign/a#b#c#0#1",
        "/p/assign/a#b#c#x",
        "/p/assign/a#b##0",
        "/p/assign/a#b#c#-1",
        "/p/assign/a#b#c#٣",
    ],
)
def test_k3_invalid_keys_are_refused(key):
    with pytest.raises(ValidationError):
        parse_key("/p", key)


def test_k4_prefix_of_another_item_does_not_leak():
    other = assignment_key("/p", "foo/bar", A, 0)
    assert not other.startswith(assignments_prefix("/p", "foo"))
    assert other.startswith(assignments_prefix("/p", "foo/bar"))


@pytest.mark.parametrize("prefix", ["", "/", "no/slash", "/end/", "/a//b", "/a/../b", "/a/."])
def test_prefix_must_be_clean(prefix):
    with pytest.raises(ValidationError, match="etcd prefix"):
        validate_prefix(prefix)
    validate_prefix("/gazette/cluster")


def test_values_round_trip():
    assert decode_journal_spec(encode_journal_spec(spec_of("item/b")), name="item/b") == spec_of(
        "item/b"
    )
    broker = BrokerSpec(A, "http://host:1", journal_limit=7, exiting=True)
    assert decode_broker_spec(encode_broker_spec(broker), process_id=A) == broker
    route = Route((A, B), 1)
    assert decode_route(encode_route(route)) == route


def test_value_of_an_assignment_has_no_endpoints_and_may_be_empty():
    assert decode_route(encode_route(Route((A,), 0, ("http://host:1",)))) == Route((A,), 0)
    assert decode_route(b"") == Route((), -1)


def test_k3_invalid_values_are_refused():
    with pytest.raises(ValidationError, match="no JournalSpec"):
        decode_journal_spec(b"\xff\xff", name="a")
    with pytest.raises(ValidationError, match="key says 'item/b'"):
        decode_journal_spec(encode_journal_spec(spec_of("item/a")), name="item/b")
    with pytest.raises(ValidationError, match="invalid Replication"):
        decode_journal_spec(encode_journal_spec(JournalSpec("item/a")), name="item/a")
    with pytest.raises(ValidationError, match="the key says"):
        decode_broker_spec(encode_broker_spec(BrokerSpec(A, "http://h")), process_id=B)
    with pytest.raises(ValidationError, match="Endpoint"):
        decode_broker_spec(encode_broker_spec(BrokerSpec(A, "host")), process_id=A)
    with pytest.raises(ValidationError, match="sorted order"):
        decode_route(encode_route(Route((B, A), 0)))
