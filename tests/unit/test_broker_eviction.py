"""What one broker thinks of a peer that refuses connections: the table of `eviction`, row by row."""

from __future__ import annotations

import dataclasses

import pytest

from gazette_platform.broker.crash.eviction import (
    LOOKS_MAX,
    Accuse,
    Accused,
    Connect,
    Connected,
    CrashWatch,
    Evict,
    Evicted,
    Hinted,
    MembersChanged,
    Peer,
    Refuted,
    Seen,
    Ticked,
    Unheard,
    Withdraw,
)
from gazette_platform.protocol import ProcessId

AFTER_S = 0.3


def peer(name, *, created=10, is_exiting=False, mod=None, endpoint=None, lease=7):
    zone, _, suffix = name.partition("/")
    return Peer(
        ProcessId(zone, suffix),
        created,
        mod or created,
        lease,
        endpoint or f"http://{suffix}:1",
        is_exiting,
    )


OWN, OTHER, SUSPECT, NEAR = peer("a/own"), peer("b/other"), peer("c/suspect"), peer("a/near")


class World:
    """A watch and its time."""

    def __init__(self, *members, own=OWN, after_s=AFTER_S):
        self.watch = CrashWatch(own.id, after_s=after_s)
        self.now = 100.0
        self.effects = []
        if members:
            self.members(*members)

    def members(self, *members):
        return self.step(MembersChanged(tuple(members)))

    def step(self, event, *, wait=0.0):
        self.now += wait
        effects = self.watch.step(event, self.now)
        self.effects += effects
        return effects

    def see(self, subject, seen):
        """Wait for the next look at `subject`, and answer it; others are fine meanwhile."""
        for _ in range(400):
            for effect in self.step(Ticked(), wait=0.05):
                if effect == Connect(subject):
                    return self.step(Connected(subject, seen))
                if isinstance(effect, Connect):
                    self.step(Connected(effect.peer, Seen.ACCEPTED))
        raise AssertionError(f"{subject} is not looked at")

    def accuse(self, subject=SUSPECT):
        """Bring the watch to testify. Returns: the effects of the refusal that did."""
        self.see(subject, Seen.ACCEPTED)
        for _ in range(10):
            effects = self.see(subject, Seen.REFUSED)
            if effects:
                return effects
        raise AssertionError("it does not testify")


def test_refusals_in_a_row_are_testified():
    world = World(OWN, OTHER, SUSPECT)
    world.see(SUSPECT, Seen.ACCEPTED)
    began = world.now
    effects = []
    count = 0
    while not effects:
        effects = world.see(SUSPECT, Seen.REFUSED)
        count += 1
    assert effects == [Accuse(SUSPECT)]
    assert count >= 3
    assert AFTER_S <= world.now - began < AFTER_S + 0.6


@pytest.mark.parametrize("seen", [Seen.REFUSED, Seen.UNCLEAR])
def test_a_peer_that_never_accepted_is_not_accused(seen):
    """It may be starting, or its address may be wrong or closed to us."""
    world = World(OWN, OTHER, SUSPECT)
    for _ in range(12):
        assert world.see(SUSPECT, seen) == []


@pytest.mark.parametrize("seen", [Seen.UNCLEAR, Seen.ACCEPTED])
def test_anything_but_a_refusal_starts_over(seen):
    world = World(OWN, OTHER, SUSPECT)
    world.see(SUSPECT, Seen.ACCEPTED)
    for _ in range(20):
        assert world.see(SUSPECT, Seen.REFUSED) == []
        assert world.see(SUSPECT, Seen.REFUSED) == []
        assert world.see(SUSPECT, seen) == []


@pytest.mark.parametrize("seen", [Seen.UNCLEAR, Seen.ACCEPTED])
def test_an_accusation_is_withdrawn(seen):
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    world.step(Accused(SUSPECT, 50, {OWN.id: 50}))
    assert world.see(SUSPECT, seen) == [Withdraw(SUSPECT)]


def test_two_witnesses_of_different_zones_evict():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    # The other testified before us: it has to look again.
    assert world.step(Accused(SUSPECT, 50, {OWN.id: 50, OTHER.id: 40})) == []
    assert world.see(SUSPECT, Seen.REFUSED) == [Accuse(SUSPECT)]
    verdict = world.step(Accused(SUSPECT, 52, {OWN.id: 52, OTHER.id: 51}))
    assert verdict == [Evict(SUSPECT, 52, OTHER, 51)]
    assert Connect(SUSPECT) not in world.step(Ticked(), wait=0.3)  # one verdict is enough


@pytest.mark.parametrize(
    "witnesses",
    [
        {},
        {NEAR.id: 99},  # of our zone
        {ProcessId("b", "gone"): 99},  # no member
        {OTHER.id: 50},  # not younger than our first
    ],
)
def test_other_testimonies_do_not_count(witnesses):
    world = World(OWN, OTHER, SUSPECT, NEAR)
    world.accuse()
    assert world.step(Accused(SUSPECT, 50, {OWN.id: 50})) == []
    world.see(SUSPECT, Seen.REFUSED)
    assert world.step(Accused(SUSPECT, 60, {OWN.id: 60, **witnesses})) == []


def test_a_witness_of_the_zone_of_the_suspect_counts():
    fellow = peer("c/fellow")
    world = World(OWN, SUSPECT, fellow)
    world.accuse()
    world.step(Accused(SUSPECT, 50, {OWN.id: 50}))
    world.see(SUSPECT, Seen.REFUSED)
    verdict = world.step(Accused(SUSPECT, 52, {OWN.id: 52, fellow.id: 51}))
    assert verdict == [Evict(SUSPECT, 52, fellow, 51)]


@pytest.mark.parametrize(
    "members",
    [
        (OWN, NEAR, peer("a/third")),
        (OWN, NEAR, OTHER),  # without the only one of zone b there is one zone left
        (OWN, OTHER),
        (OWN,),
    ],
)
def test_survivors_of_one_zone_never_look(members):
    world = World(*members)
    suspects = {m for m in members if m.id.zone == "b"}
    for _ in range(50):
        looked = {e.peer for e in world.step(Ticked(), wait=0.2)}
        assert not looked & suspects
        for subject in looked:
            world.step(Connected(subject, Seen.ACCEPTED))
    if len({m.id.zone for m in members}) == 1:
        assert world.watch.next_due() is None


@pytest.mark.parametrize(
    "change",
    [
        {"is_exiting": True, "mod_revision": 11},
        {"lease": 0},
        {"endpoint": "unix:///run/broker.sock"},
    ],
)
def test_who_exits_or_cannot_be_looked_at_is_let_alone(change):
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    changed = dataclasses.replace(SUSPECT, **change)
    assert world.members(OWN, OTHER, changed) == [Withdraw(SUSPECT)]
    # What was under way does not matter any more.
    assert world.step(Accused(SUSPECT, 50, {OWN.id: 50, OTHER.id: 51})) == []
    for _ in range(50):
        assert Connect(changed) not in world.step(Ticked(), wait=0.2)


def test_another_instance_is_not_blamed_for_the_former():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    fresh = dataclasses.replace(SUSPECT, create_revision=30, mod_revision=30)
    assert world.members(OWN, OTHER, fresh) == [Withdraw(SUSPECT)]
    for _ in range(12):  # it has not accepted yet: it is starting
        assert world.see(fresh, Seen.REFUSED) == []


def test_an_instance_at_another_address_has_to_accept_there_first():
    world = World(OWN, OTHER, SUSPECT)
    world.see(SUSPECT, Seen.ACCEPTED)
    moved = dataclasses.replace(SUSPECT, mod_revision=30, endpoint="http://elsewhere:1")
    world.members(OWN, OTHER, moved)
    for _ in range(12):
        assert world.see(moved, Seen.REFUSED) == []


def test_answers_about_a_former_instance_do_not_count():
    world = World(OWN, OTHER, SUSPECT)
    fresh = dataclasses.replace(SUSPECT, create_revision=30, mod_revision=30)
    world.members(OWN, OTHER, fresh)
    world.see(fresh, Seen.ACCEPTED)
    for _ in range(12):
        assert world.step(Connected(SUSPECT, Seen.REFUSED), wait=0.1) == []
    assert world.step(Connected(peer("c/stranger"), Seen.REFUSED)) == []


def test_a_new_accusation_needs_new_testimonies():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    world.step(Accused(SUSPECT, 50, {OWN.id: 50}))
    assert world.see(SUSPECT, Seen.ACCEPTED) == [Withdraw(SUSPECT)]
    world.accuse()
    # The other's is of the time of our former accusation, after its first testimony.
    assert world.step(Accused(SUSPECT, 100, {OWN.id: 100, OTHER.id: 60})) == []


def test_many_refusals_in_a_short_time_are_not_enough():
    world = World(OWN, OTHER, SUSPECT, after_s=60.0)
    world.see(SUSPECT, Seen.ACCEPTED)
    for _ in range(50):
        assert world.see(SUSPECT, Seen.REFUSED) == []


def test_few_refusals_in_a_long_time_are_not_enough():
    world = World(OWN, OTHER, SUSPECT)
    world.see(SUSPECT, Seen.ACCEPTED)
    for _ in range(2):
        world.now += 10.0
        assert world.see(SUSPECT, Seen.REFUSED) == []
    assert world.see(SUSPECT, Seen.REFUSED) == [Accuse(SUSPECT)]


def test_an_unchanged_instance_starts_over_when_its_key_changes():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    changed = dataclasses.replace(SUSPECT, mod_revision=30)
    assert world.members(OWN, OTHER, changed) == [Withdraw(SUSPECT)]
    assert world.see(changed, Seen.REFUSED) == []
    assert world.see(changed, Seen.REFUSED) == []


def test_an_instance_that_never_accepted_is_not_known_by_a_change_of_its_key():
    world = World(OWN, OTHER, SUSPECT)
    changed = dataclasses.replace(SUSPECT, mod_revision=30)
    world.members(OWN, OTHER, changed)
    for _ in range(12):
        assert world.see(changed, Seen.REFUSED) == []


def test_an_instance_that_accepted_is_still_known_when_its_key_changed():
    world = World(OWN, OTHER, SUSPECT)
    world.see(SUSPECT, Seen.ACCEPTED)
    changed = dataclasses.replace(SUSPECT, mod_revision=30)
    world.members(OWN, OTHER, changed)
    assert any(world.see(changed, Seen.REFUSED) == [Accuse(changed)] for _ in range(12))


def test_broker_that_is_not_a_member_accuses_no_other():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    assert world.members(OTHER, SUSPECT) == [Withdraw(SUSPECT)]
    assert world.watch.next_due() is None


def test_a_refuted_verdict_starts_over():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    assert world.step(Refuted(SUSPECT)) == [Withdraw(SUSPECT)]
    assert world.see(SUSPECT, Seen.REFUSED) == []


def test_etcd_that_does_not_answer_is_asked_again():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    world.step(Unheard(SUSPECT))
    assert world.see(SUSPECT, Seen.REFUSED) == [Accuse(SUSPECT)]


def test_an_eviction_that_the_mirror_does_not_show_yet_is_not_repeated_at_once():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    world.step(Accused(SUSPECT, 50, {OWN.id: 50, OTHER.id: 51}))
    world.step(Evicted(SUSPECT))
    assert Connect(SUSPECT) not in world.step(Ticked(), wait=0.5)
    assert world.members(OWN, OTHER) == [Withdraw(SUSPECT)]


def test_a_lonely_witness_slows_down():
    world = World(OWN, OTHER, SUSPECT)
    world.accuse()
    gaps = []
    for revision in range(50, 120):
        before = world.now
        world.step(Accused(SUSPECT, revision, {OWN.id: revision}))
        world.see(SUSPECT, Seen.REFUSED)
        gaps.append(world.now - before)
    assert gaps[0] < 0.2
    assert gaps[-1] >= 1.0


def test_a_hint_brings_a_look_forward():
    world = World(OWN, OTHER, SUSPECT)
    world.see(SUSPECT, Seen.ACCEPTED)
    assert world.step(Ticked(), wait=0.01) == []
    world.step(Hinted(SUSPECT.endpoint))
    assert Connect(SUSPECT) in world.step(Ticked())


def test_neighbours_look_often_and_others_seldom():
    brokers = [peer(f"{zone}/number{n}") for zone in "abc" for n in range(3)]
    often = {}
    for own in brokers:
        world = World(*brokers, own=own)
        counts = {}
        for _ in range(400):  # 20 s
            for effect in world.step(Ticked(), wait=0.05):
                counts[effect.peer.id] = counts.get(effect.peer.id, 0) + 1
                world.step(Connected(effect.peer, Seen.ACCEPTED))
        assert set(counts) == {b.id for b in brokers} - {own.id}
        assert min(counts.values()) >= 5
        often[own.id] = {who for who, count in counts.items() if count > 40}
    for subject in brokers:
        watchers = [who for who, subjects in often.items() if subject.id in subjects]
        assert len(watchers) == 2
        assert len({who.zone for who in watchers} | {subject.id.zone}) == 3


def test_looks_under_way_are_bounded():
    brokers = [peer(f"{'abc'[n % 3]}/number{n:03}") for n in range(100)]
    world = World(*brokers, own=brokers[0])
    assert len(world.step(Ticked())) == LOOKS_MAX
    assert world.step(Ticked(), wait=5.0) == []
