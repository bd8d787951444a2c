"""Consumer groups of Kafka: one rule a test, by instants that the test chooses."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.coordinator.group_types import (
    GroupLimits,
    GroupState,
    Join,
    Joined,
    Protocol,
    Sync,
    Synced,
)
from gazette_platform.kafka.coordinator.groups import Group

RANGE = (Protocol("range", b"topics"),)
BOTH = (Protocol("range", b"topics"), Protocol("sticky", b"topics"))
STICKY_FIRST = (Protocol("sticky", b"topics"), Protocol("range", b"topics"))


class Talk:
    """A group with the requests that were made, and the answers that came."""

    def __init__(self, **limits):
        self.group = Group("orders", GroupLimits(**limits))
        self.now = 100.0
        self.numbers = 0
        self.answers = {}

    def join(self, member_id="", new_id="", instance=None, protocols=RANGE, takes_id=False, **more):
        self.numbers += 1
        request = Join(
            member_id=member_id,
            new_id=new_id or f"new-{self.numbers}",
            instance_id=instance,
            client_id="client",
            client_host="/127.0.0.1",
            session_s=more.get("session_s", 10.0),
            rebalance_s=more.get("rebalance_s", 30.0),
            protocol_type=more.get("protocol_type", "consumer"),
            protocols=protocols,
            takes_id=takes_id,
            skips_assignment=more.get("skips_assignment", True),
        )
        self.group.join(self.now, self.numbers, request)
        self.take()
        return self.numbers

    def sync(self, member_id, assignments=(), *, instance=None, generation=None, protocol="range"):
        self.numbers += 1
        generation = self.group.generation if generation is None else generation
        request = Sync(member_id, instance, generation, "consumer", protocol, tuple(assignments))
        self.group.sync(self.now, self.numbers, request)
        self.take()
        return self.numbers

    def beat(self, member_id, instance=None, generation=None):
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(self.now, member_id, instance, generation)

    def leave(self, member_id, instance=None):
        error = self.group.leave(self.now, member_id, instance)
        self.take()
        return error

    def take(self):
        for number, answer in self.group.take_answers():
            assert number not in self.answers, "a request was answered twice"
            self.answers[number] = answer

    def after(self, seconds):
        """Let time pass as a caller does: tick whenever the group asks for it."""
        until = self.now + seconds
        while self.group.wakes_at <= until:
            self.now = max(self.now, self.group.wakes_at)
            self.group.tick(self.now)
            self.take()
        self.now = until

    def stable(self, *names, protocols=RANGE, static=False):
        """A stable group of these members; the first one leads."""
        joins = [
            self.join(new_id=one, instance=f"i-{one}" if static else None, protocols=protocols)
            for one in names
        ]
        self.after(1.0)
        assert [self.answers[one].error for one in joins] == [ErrorCode.none] * len(names)
        for one in names[1:]:
            self.sync(one, instance=f"i-{one}" if static else None, protocol=self.group.protocol)
        self.sync(
            names[0],
            [(one, f"part of {one}".encode()) for one in names],
            instance=f"i-{names[0]}" if static else None,
            protocol=self.group.protocol,
        )
        assert self.group.state is GroupState.STABLE
        return self


def test_first_members_wait_for_one_generation():
    talk = Talk()
    first, second = talk.join(new_id="a"), talk.join(new_id="b")
    assert talk.answers == {}
    talk.after(1.0)
    joined = talk.answers[first]
    assert joined.generation == 1
    assert (joined.leader, joined.member_id, joined.protocol) == ("a", "a", "range")
    assert [one.member_id for one in joined.members] == ["a", "b"]
    assert talk.answers[second] == joined._replace(member_id="b", members=())


def test_initial_wait_ends_though_members_keep_coming():
    talk = Talk(initial_delay_s=3.0)
    first = talk.join(new_id="a", rebalance_s=10.0)
    for at in range(20):
        talk.join(new_id=f"m{at}")
        talk.after(1.0)
    assert talk.answers[first].generation == 1


def test_client_joins_again_with_its_new_name():
    talk = Talk()
    refused = talk.join(new_id="a", takes_id=True)
    assert talk.answers[refused] == Joined(ErrorCode.member_id_required, "a")
    joined = talk.join("a", takes_id=True)
    talk.after(1.0)
    assert talk.answers[joined].member_id == "a"


def test_name_that_was_not_used_in_time_is_unknown():
    talk = Talk()
    talk.join(new_id="a", takes_id=True)
    talk.after(10.5)
    assert talk.answers[talk.join("a")].error is ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        ({"session_s": 0.5}, ErrorCode.invalid_session_timeout),
        ({"session_s": 9999.0}, ErrorCode.invalid_session_timeout),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": (Protocol("other", b""),)}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": (Protocol("range", bytes(2000)),)}, ErrorCode.invalid_request),
        ({"instance": "x" * 1001}, ErrorCode.invalid_request),
        ({"member_id": "stranger"}, ErrorCode.unknown_member_id),
    ],
)
def test_join_is_refused_and_others_stay(request_of, error):
    talk = Talk(bytes_max=1000).stable("a")
    assert talk.answers[talk.join(**request_of)].error is error
    assert (talk.beat("a"), talk.group.state) == (ErrorCode.none, GroupState.STABLE)


def test_full_group_refuses_members_and_names():
    talk = Talk(members_max=2).stable("a", "b")
    for takes_id in (False, True):
        refused = talk.join(takes_id=takes_id)
        assert talk.answers[refused].error is ErrorCode.group_max_size_reached


def test_protocol_is_what_most_members_prefer():
    talk = Talk()
    for name, protocols in (("a", BOTH), ("b", STICKY_FIRST), ("c", STICKY_FIRST)):
        talk.join(new_id=name, protocols=protocols)
    talk.after(1.0)
    assert talk.group.protocol == "sticky"


def test_syncs_wait_for_leader():
    talk = Talk()
    talk.join(new_id="a")
    talk.join(new_id="b")
    talk.after(1.0)
    waiting = talk.sync("b")
    assert waiting not in talk.answers
    talk.sync("a", [("a", b"1"), ("b", b"2")])
    assert talk.answers[waiting] == Synced(ErrorCode.none, "consumer", "range", b"2")


def test_second_assignment_of_a_generation_is_ignored():
    talk = Talk().stable("a", "b")
    again = talk.sync("a", [("a", b"all"), ("b", b"")])
    assert talk.answers[again].assignment == b"part of a"
    assert talk.answers[talk.sync("b")].assignment == b"part of b"


def test_follower_cannot_assign():
    talk = Talk()
    talk.join(new_id="a")
    talk.join(new_id="b")
    talk.after(1.0)
    waiting = talk.sync("b", [("b", b"all")])
    assert waiting not in talk.answers
    assert talk.group.state is GroupState.COMPLETING


def test_new_member_makes_others_rejoin():
    talk = Talk().stable("a", "b")
    new = talk.join(new_id="c")
    assert talk.beat("a") is ErrorCode.rebalance_in_progress
    assert talk.answers[talk.sync("a")].error is ErrorCode.rebalance_in_progress
    talk.join("a")
    assert new not in talk.answers
    talk.join("b")
    assert talk.answers[new].generation == 2
    assert talk.beat("a", generation=1) is ErrorCode.illegal_generation


def test_waiting_sync_ends_when_rebalance_begins():
    talk = Talk()
    talk.join(new_id="a")
    talk.join(new_id="b")
    talk.after(1.0)
    waiting = talk.sync("b")
    talk.join(new_id="c")
    assert talk.answers[waiting].error is ErrorCode.rebalance_in_progress


def test_member_that_misses_the_rebalance_is_removed():
    talk = Talk().stable("a", "b")
    new = talk.join(new_id="c")
    talk.join("b")
    for _ in range(31):  # it lives, and does not join
        talk.beat("a")
        talk.after(1.0)
    assert talk.answers[new].leader == "b"
    assert set(talk.group.members) == {"b", "c"}


def test_session_that_ends_starts_a_rebalance():
    talk = Talk().stable("a", "b")
    for _ in range(11):
        assert talk.beat("a") in (ErrorCode.none, ErrorCode.rebalance_in_progress)
        talk.after(1.0)
    assert set(talk.group.members) == {"a"}
    assert talk.beat("b") is ErrorCode.unknown_member_id
    assert talk.answers[talk.join("a")].generation == 2


def test_leader_without_assignments_is_removed():
    talk = Talk()
    talk.join(new_id="a", session_s=100.0)
    talk.join(new_id="b", session_s=100.0)
    talk.after(1.0)
    waiting = talk.sync("b")
    talk.after(31.0)
    assert talk.answers[waiting].error is ErrorCode.rebalance_in_progress
    assert set(talk.group.members) == {"b"}


def test_last_leave_empties_the_group_and_its_generation_ends():
    talk = Talk().stable("a")
    assert talk.leave("a") is ErrorCode.none
    assert (talk.group.state, talk.group.generation) == (GroupState.EMPTY, 2)
    assert talk.leave("a") is ErrorCode.unknown_member_id
    assert talk.group.wakes_at == math.inf or talk.after(100) is None


def test_leader_that_joins_again_starts_a_rebalance():
    talk = Talk().stable("a", "b")
    follower = talk.join("b")
    assert talk.answers[follower].generation == 1
    talk.join("a")
    assert talk.group.state is GroupState.PREPARING


def test_lost_answer_of_a_join_is_given_again():
    talk = Talk()
    talk.join(new_id="a")
    talk.join(new_id="b")
    talk.after(1.0)
    again = talk.answers[talk.join("a")]
    assert (again.generation, len(again.members)) == (1, 2)
    assert talk.group.state is GroupState.COMPLETING


def test_static_member_restarts_without_rebalance():
    talk = Talk().stable("a", "b", static=True)
    again = talk.answers[talk.join(new_id="b2", instance="i-b")]
    assert (again.generation, again.member_id, again.skip_assignment) == (1, "b2", False)
    assert talk.answers[talk.sync("b2", instance="i-b")].assignment == b"part of b"
    assert talk.beat("b", "i-b") is ErrorCode.fenced_instance_id
    assert talk.beat("a", "i-a") is ErrorCode.none


@pytest.mark.parametrize(("skips", "leader"), [(True, "a2"), (False, "a")])
def test_static_leader_restarts_without_rebalance(skips, leader):
    talk = Talk().stable("a", "b", static=True)
    again = talk.answers[talk.join(new_id="a2", instance="i-a", skips_assignment=skips)]
    assert (again.leader, again.skip_assignment, len(again.members)) == (leader, skips, 2 * skips)
    assert talk.answers[talk.sync("a2", instance="i-a")].assignment == b"part of a"
    assert talk.group.generation == 1


def test_static_member_with_other_topics_starts_a_rebalance():
    talk = Talk().stable("a", "b", static=True)
    new = talk.join(new_id="b2", instance="i-b", protocols=(Protocol("range", b"more"),))
    assert talk.beat("a", "i-a") is ErrorCode.rebalance_in_progress
    talk.join("a", instance="i-a")
    assert talk.answers[new].generation == 2


def test_static_member_that_waits_is_fenced_by_its_next_self():
    talk = Talk().stable("a", "b", static=True)
    talk.join(new_id="c")
    waiting = talk.join("b", instance="i-b")
    talk.join(new_id="b2", instance="i-b")
    assert talk.answers[waiting].error is ErrorCode.fenced_instance_id


def test_static_member_keeps_its_place_until_its_session_ends():
    talk = Talk().stable("a", "b", static=True)
    new = talk.join(new_id="c", rebalance_s=5.0, session_s=100.0)
    talk.join("a", instance="i-a", rebalance_s=5.0, session_s=100.0)
    talk.beat("b", "i-b")
    talk.after(9.0)
    assert talk.group.state is GroupState.PREPARING or new in talk.answers
    talk.after(40.0)
    assert "b" not in talk.group.members


def test_operator_removes_a_member_by_its_instance():
    talk = Talk().stable("a", "b", static=True)
    assert talk.leave("", "i-b") is ErrorCode.none
    assert talk.leave("", "i-b") is ErrorCode.unknown_member_id
    assert talk.beat("a", "i-a") is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    ("member", "instance", "generation", "error"),
    [
        ("a", None, 1, ErrorCode.none),
        ("a", None, 0, ErrorCode.illegal_generation),
        ("x", None, 1, ErrorCode.unknown_member_id),
        ("", None, -1, ErrorCode.unknown_member_id),
        ("a", "i-x", 1, ErrorCode.unknown_member_id),
    ],
)
def test_commit_needs_a_member_of_the_generation(member, instance, generation, error):
    talk = Talk().stable("a")
    assert talk.group.commit_error(talk.now, member, instance, generation) is error


def test_commit_waits_for_assignments():
    talk = Talk()
    talk.join(new_id="a")
    assert talk.group.commit_error(talk.now, "a", None, 0) is ErrorCode.none
    talk.after(1.0)
    error = talk.group.commit_error(talk.now, "a", None, 1)
    assert error is ErrorCode.rebalance_in_progress


def test_commit_without_members_is_free():
    assert Talk().group.commit_error(0.0, "", None, -1) is ErrorCode.none


def test_end_answers_all_that_wait():
    talk = Talk()
    waiting = [talk.join(new_id="a"), talk.join(new_id="b")]
    talk.group.end(ErrorCode.not_coordinator)
    talk.take()
    assert {talk.answers[one].error for one in waiting} == {ErrorCode.not_coordinator}
    assert talk.beat("a") is ErrorCode.unknown_member_id
