"""Odd entries in etcd, which no program meant to write: each is logged once, and costs only itself."""

from __future__ import annotations

import itertools
import logging

import pytest

from gazette_platform.etcd import EtcdClient, KeyValue, RangeResult, ResponseHeader
from gazette_platform.etcd.wire import Event, WatchBatch
from gazette_platform.keyspace import (
    BrokerState,
    KeySpace,
    assignment_key,
    encode_broker_spec,
    encode_journal_spec,
    item_key,
)
from gazette_platform.ops.faults import Faults
from gazette_platform.protocol import (
    BrokerSpec,
    CompressionCodec,
    FragmentSpec,
    JournalSpec,
    ProcessId,
)

A, B = ProcessId("zone-a", "suffix-1"), ProcessId("zone-b", "suffix-2")
SPEC = JournalSpec(
    "a/journal",
    1,
    fragment=FragmentSpec(length=1 << 20, codec=CompressionCodec.NONE, refresh_interval_ns=10**9),
)

POISON = {
    "a slot of many digits": ("/p/assign/a/journal#zone-a#suffix-1#" + "9" * 5000, b""),
    "a slot in other digits": ("/p/assign/a/journal#zone-a#suffix-1#\u0661", b""),
    "a negative slot": ("/p/assign/a/journal#zone-a#suffix-1#-1", b""),
    "a part too many": ("/p/assign/a/journal#zone-a#suffix-1#1#1", b""),
    "bytes that are no text": ("/p/assign/a/journal#zone-\udcff#suffix-1#1", b""),
    "a member of control characters": ("/p/assign/a/journal#zone\n#suffix-1#1", b""),
    "a journal that no key can be of": ("/p/assign/no journal#zone-a#suffix-1#0", b""),
    "an empty part": ("/p/assign/##suffix-1#1", b""),
    "no kind": ("/p/else/where", b""),
    "a route that is none": ("/p/assign/a/journal#zone-c#suffix-3#1", b"\xff\xff"),
    "a journal that is none": ("/p/items/another/journal", b"\x00" * 100),
    "a journal of another name": ("/p/items/another/journal", encode_journal_spec(SPEC)),
    "a journal without a name": ("/p/items/", encode_journal_spec(SPEC)),
    "a member that is none": ("/p/members/zone-a#suffix-9", b"\xff"),
    "a member of another name": (
        "/p/members/zone-a#suffix-9",
        encode_broker_spec(BrokerSpec(A, "http://host:1")),
    ),
}


class Mirror:
    """A mirror that a test feeds."""

    def __init__(self):
        self.faults = Faults()
        client = EtcdClient(["http://127.0.0.1:1"])  # never connected
        self.state = BrokerState("/p")
        self.space = KeySpace(client, "/p", self.state, faults=self.faults)
        self.revisions = itertools.count(1)

    def load(self, *entries):
        revision = next(self.revisions)
        kvs = [KeyValue(key, value, revision, revision, 1, 0) for key, value in entries]
        header = ResponseHeader(1, 1, revision, 1)
        self.space.apply_snapshot(RangeResult(header, tuple(kvs), len(kvs)))

    def change(self, *changes):
        """One revision.

        Args:
            changes: pairs of key and value; None removes the key.
        """
        revision = next(self.revisions)
        events = [
            Event(KeyValue(key, value or b"", revision, revision, 1, 0), is_delete=value is None)
            for key, value in changes
        ]
        header = ResponseHeader(1, 1, revision, 1)
        self.space.apply_batches([WatchBatch(header, tuple(events))])


@pytest.fixture
def mirror():
    return Mirror()


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
@pytest.mark.parametrize("way", ["load", "change"])
def test_a_bad_entry_is_reported_once_and_left_out(mirror, caplog, poison, way):
    good = (item_key("/p", SPEC.name), encode_journal_spec(SPEC))
    assigned = (assignment_key("/p", SPEC.name, A, 0), b"")
    getattr(mirror, way)(poison, good, assigned)
    mirror.change((assignment_key("/p", SPEC.name, B, 1), b""))
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in told] == [None]
    assert len(told[0].getMessage()) < 1000
    told[0].getMessage().encode()  # can be printed
    assert mirror.faults.reported == 0
    assert list(mirror.state.items) == [SPEC.name]
    assert mirror.state.route_of(SPEC.name).members == (A, B)
    mirror.change((poison[0], None))
    assert mirror.state.route_of(SPEC.name).members == (A, B)


def test_unforeseen_error_is_left_out_too(mirror, monkeypatch):
    key = item_key("/p", SPEC.name)
    mirror.load((key, encode_journal_spec(SPEC)))
    monkeypatch.setattr(
        "gazette_platform.keyspace.state.decode_journal_spec", lambda *_, **__: 1 / 0
    )
    mirror.change((key, b"poison"), (item_key("/p", "another/journal"), b"poison"))
    assert mirror.faults.reported == 2
    assert list(mirror.state.items) == [SPEC.name]
    assert mirror.state.items[SPEC.name].spec == SPEC
    assert mirror.state.items[SPEC.name].mod_revision == mirror.space.revision


@pytest.mark.parametrize("slots", [(0, 1), (1, 0)])
def test_of_two_assignments_of_one_member_one_counts(mirror, caplog, slots):
    mirror.load((item_key("/p", SPEC.name), encode_journal_spec(SPEC)))
    first, second = (assignment_key("/p", SPEC.name, A, slot) for slot in slots)
    mirror.change((first, b""))
    mirror.change((second, b""))
    (held,) = mirror.state.assignments_of(SPEC.name)
    assert held.slot == 0
    assert mirror.state.route_of(SPEC.name).members == (A,)
    assert list(mirror.state.assignments_to(A)) == [assignment_key("/p", SPEC.name, A, 0)]
    assert mirror.state.primaries_of(A) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "#1 is ignored: member" in caplog.text
    mirror.change((assignment_key("/p", SPEC.name, B, 1), b""))
    assert len(caplog.records) == 1
    # The other one counts once it is the only one.
    mirror.change((assignment_key("/p", SPEC.name, A, 0), None))
    assert [a.slot for a in mirror.state.assignments_of(SPEC.name)] == [1, 1]
    assert mirror.state.primaries_of(A) == 0
    mirror.change((assignment_key("/p", SPEC.name, A, 1), None))
    assert mirror.state.assignments_to(A) == {}
    assert mirror.state.route_of(SPEC.name).members == (B,)


def test_assignment_that_moves_is_not_a_conflict(mirror, caplog):
    mirror.load((item_key("/p", SPEC.name), encode_journal_spec(SPEC)))
    for old, new in ((2, 1), (1, 0), (0, 1)):
        mirror.change((assignment_key("/p", SPEC.name, A, old), b""))
        mirror.change(
            (assignment_key("/p", SPEC.name, A, old), None),
            (assignment_key("/p", SPEC.name, A, new), b""),
        )
        assert [a.slot for a in mirror.state.assignments_of(SPEC.name)] == [new]
        mirror.change((assignment_key("/p", SPEC.name, A, new), None))
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
