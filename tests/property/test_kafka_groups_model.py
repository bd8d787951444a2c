"""Consumer groups of Kafka under any order of requests and times.

Clients follow the protocol, or die, leave, or are slow. Whatever happens: a generation has one leader and one
assignment, only members of the present generation may commit, and no request waits for ever.
"""

from __future__ import annotations

import pytest

pytest.importorskip("kio")

from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.coordinator.group_types import (
    GroupLimits,
    GroupState,
    Join,
    Joined,
    Protocol,
    Sync,
    size_of,
)
from gazette_platform.kafka.coordinator.groups import Group

SESSION_S = 10.0
REBALANCE_S = 30.0
LIMITS = GroupLimits(members_max=6, bytes_max=900)


class Groups(RuleBasedStateMachine):
    """One group, and what its clients know."""

    clients = Bundle("clients")

    def __init__(self):
        super().__init__()
        self.group = Group("orders", LIMITS)
        self.now = 50.0
        self.numbers = 0
        self.asked: dict[int, tuple[float, str]] = {}  # when, and by whom
        self.joined: dict[str, Joined] = {}  # by client
        self.leaders: dict[int, str] = {}
        self.assigned: dict[tuple[int, str], bytes] = {}  # by generation and member
        self.instances = 0
        self.generation = 0

    @rule(target=clients, is_static=st.booleans())
    def start(self, is_static):
        self.instances += 1
        name = f"c{self.instances}"
        return name, f"i-{name}" if is_static else None

    @rule(client=clients, is_known=st.booleans(), data=st.data())
    def join(self, client, is_known, data):
        name, instance = client
        former = self.joined.get(name)
        known = former.member_id if former and is_known else ""
        names = data.draw(st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")]))
        metadata = data.draw(st.sampled_from([b"", b"topics", bytes(100)]))
        request = Join(
            known,
            f"{name}-{self.numbers}",
            instance,
            name,
            "",
            SESSION_S,
            REBALANCE_S,
            "consumer",
            tuple(Protocol(one, metadata) for one in names),
            takes_id=data.draw(st.booleans()),
            skips_assignment=data.draw(st.booleans()),
        )
        self.ask(name)
        self.group.join(self.now, self.numbers, request)
        self.take()

    @rule(client=clients, is_late=st.booleans())
    def sync(self, client, is_late):
        name, instance = client
        joined = self.joined.get(name)
        if joined is None:
            return
        generation = joined.generation - is_late
        assignments = tuple(
            (one.member_id, f"{self.numbers} {one.member_id}".encode()) for one in joined.members
        )
        self.ask(name)
        request = Sync(joined.member_id, instance, generation, "consumer", None, assignments)
        self.group.sync(self.now, self.numbers, request)
        self.take()

    @rule(client=clients)
    def heartbeat(self, client):
        name, instance = client
        joined = self.joined.get(name)
        if joined is None:
            return
        error = self.group.heartbeat(self.now, joined.member_id, instance, joined.generation)
        if error is ErrorCode.none:
            assert joined.generation == self.group.generation
            assert joined.member_id in self.group.members

    @rule(client=consumes(clients))
    def leave(self, client):
        name, instance = client
        joined = self.joined.get(name)
        if joined is not None:
            self.group.leave(self.now, joined.member_id, instance)
            self.take()
            assert joined.member_id not in self.group.members

    @rule(client=clients, is_late=st.booleans())
    def commit(self, client, is_late):
        name, instance = client
        joined = self.joined.get(name)
        if joined is None:
            return
        generation = joined.generation - is_late
        error = self.group.commit_error(self.now, joined.member_id, instance, generation)
        if error is ErrorCode.none:
            assert generation == self.group.generation
            assert joined.member_id in self.group.members

    @rule(seconds=st.sampled_from([0.1, 0.6, 3.0, 9.0, 11.0, 31.0]))
    def wait(self, seconds):
        until = self.now + seconds
        for _ in range(1000):
            if self.group.wakes_at > until:
                break
            self.now = max(self.now, self.group.wakes_at)
            self.group.tick(self.now)
            self.take()
        else:
            raise AssertionError("the group asks to be woken without end")
        self.now = until

    def ask(self, name):
        self.numbers += 1
        self.asked[self.numbers] = (self.now, name)

    def take(self):
        for number, answer in self.group.take_answers():
            _, name = self.asked.pop(number)  # no second answer
            if answer.error is not ErrorCode.none:
                if answer.error is ErrorCode.member_id_required:
                    self.joined[name] = answer
                continue
            if isinstance(answer, Joined):
                self.joined[name] = answer
                if answer.members:
                    leader = self.leaders.setdefault(answer.generation, name)
                    assert leader == name, "a generation has two leaders"
            else:
                key = (self.group.generation, self.joined[name].member_id)
                former = self.assigned.setdefault(key, answer.assignment)
                assert former == answer.assignment, "a generation has two assignments"

    @invariant()
    def one_assignment_per_generation(self):
        assignments = {
            one.assignment.split()[0] for one in self.group.members.values() if one.assignment
        }
        assert len(assignments) <= 1
        if self.group.state is not GroupState.STABLE:
            assert not assignments

    @invariant()
    def generations_grow(self):
        assert self.group.generation >= self.generation
        self.generation = self.group.generation

    @invariant()
    def no_request_waits_for_ever(self):
        # One rebalance, the wait for its leader, and a rebalance after that leader was removed.
        limit = 3 * REBALANCE_S + SESSION_S
        assert all(self.now - at <= limit for at, _ in self.asked.values())

    @invariant()
    def bounds_hold(self):
        group = self.group
        assert len(group.members) + len(group._pending) <= LIMITS.members_max
        sizes = [size_of(member.protocols) for member in group.members.values()]
        assert group._bytes == sum(sizes) <= LIMITS.bytes_max
        static = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
        assert static == group._static
        assert (group.state is GroupState.EMPTY) == (not group.members) or group._pending
        assert not group.members or group.leader in group.members


TestGroups = Groups.TestCase
TestGroups.settings = settings(deadline=None, stateful_step_count=40)
