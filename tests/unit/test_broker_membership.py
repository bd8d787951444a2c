"""When a broker may not speak for its journals any more."""

from __future__ import annotations

import pytest

from gazette_platform.broker.context import Membership
from gazette_platform.etcd import KeyValue
from gazette_platform.keyspace import BrokerState, encode_broker_spec, member_key
from gazette_platform.protocol import BrokerSpec, ProcessId

OWN = ProcessId("a", "broker-1")
KEY = member_key("/p", OWN)


class FakeLease:
    id = 77
    remaining_s = 10.0


@pytest.fixture
def state():
    state = BrokerState("/p")
    put(state, lease=77)
    return state


def put(state, *, lease):
    value = encode_broker_spec(BrokerSpec(OWN, "http://host:1"))
    state.put(KeyValue(KEY, value, 5, 5, 1, lease))


@pytest.fixture
def membership(state):
    membership = Membership(state, OWN)
    membership.hold(FakeLease())
    return membership


def test_a_member_with_a_lease_may_speak(membership):
    assert membership.problem == ""


def test_broker_does_not_speak_before_its_lease(state):
    assert "run out" in Membership(state, OWN).problem


def test_a_process_that_slept_past_its_lease_knows_by_its_own_clock(membership, monkeypatch):
    monkeypatch.setattr(FakeLease, "remaining_s", 0.01)
    assert membership.problem == ""
    monkeypatch.setattr(FakeLease, "remaining_s", 0.0)
    assert "run out" in membership.problem


def test_an_evicted_broker_knows_by_its_mirror(membership, state):
    state.remove(KEY)
    assert "no longer a member" in membership.problem


def test_a_successor_of_the_same_name_is_not_us(membership, state):
    state.remove(KEY)
    put(state, lease=78)
    assert "no longer a member" in membership.problem


def test_the_first_reason_to_give_up_stays(membership):
    membership.give_up("this broker leaves")
    membership.give_up("another")
    assert membership.problem == "this broker leaves"
