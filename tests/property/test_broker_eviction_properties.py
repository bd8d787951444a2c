"""No order of events evicts a broker that lives, exits or is another instance by now."""

from __future__ import annotations

import dataclasses
import itertools
from random import Random

from hypothesis import HealthCheck, given, settings, strategies as st

from gazette_platform.broker.crash import eviction as fsm
from gazette_platform.protocol import ProcessId

AFTER_S = 0.3
BROKERS = [ProcessId("abca"[n], f"broker-{n}") for n in range(4)]
OWN = BROKERS[0]


class Etcd:
    """Members, leases and testimonies, with one revision for each change."""

    def __init__(self):
        self.revision = 10
        self.members = {}
        self.testimonies = {}
        for who in BROKERS:
            self.join(who)

    def join(self, who):
        self.revision += 1
        lease = self.revision * 1000
        self.members[who] = fsm.Peer(
            who, self.revision, self.revision, lease, f"http://{who.suffix}:1"
        )

    def exit(self, who):
        self.revision += 1
        self.members[who] = dataclasses.replace(
            self.members[who], mod_revision=self.revision, is_exiting=True
        )

    def leave(self, who):
        self.revision += 1
        self.members.pop(who, None)
        self.testimonies = {k: v for k, v in self.testimonies.items() if k[1] != who}

    def testify(self, peer, witness):
        if self.members.get(peer.id) != peer or witness not in self.members:
            return None
        self.revision += 1
        self.testimonies[peer.id, witness, peer.create_revision] = self.revision
        of_peer = {
            k[1]: revision
            for k, revision in self.testimonies.items()
            if (k[0], k[2]) == (peer.id, peer.create_revision)
        }
        return fsm.Accused(peer, self.revision, of_peer)


class Cluster:
    """Watches of all brokers, whose effects are performed when the test says so."""

    def __init__(self):
        self.etcd = Etcd()
        self.now = 0.0
        self.listens = set(BROKERS)
        self.crashed = set()
        self.watches = {who: fsm.CrashWatch(who, after_s=AFTER_S) for who in BROKERS}
        self.pending = {who: [] for who in BROKERS}
        self.evicted = []
        for who in BROKERS:
            self.tell(who)

    def step(self, who, event):
        self.pending[who] += self.watches[who].step(event, self.now)

    def tell(self, who):
        self.step(who, fsm.MembersChanged(tuple(self.etcd.members.values())))

    def perform(self, who, network):
        """Perform the oldest effect of a broker. `network` may lose what is not a refusal."""
        if not self.pending[who]:
            self.step(who, fsm.Ticked())
        if not self.pending[who] or who in self.crashed:
            return
        effect = self.pending[who].pop(0)
        match effect:
            case fsm.Connect(peer):
                self.step(who, fsm.Connected(peer, self.look(peer, network)))
            case fsm.Accuse(peer):
                answer = self.etcd.testify(peer, who)
                self.step(who, answer or fsm.Refuted(peer))
            case fsm.Withdraw(peer):
                self.etcd.testimonies.pop((peer.id, who, peer.create_revision), None)
            case fsm.Evict(peer):
                self.step(who, self.evict(who, effect))

    def look(self, peer, network):
        if peer.id not in self.listens:
            return fsm.Seen.REFUSED
        return fsm.Seen.ACCEPTED if network else fsm.Seen.UNCLEAR

    def evict(self, who, verdict):
        """As the shell does: the looks first, then the comparisons."""
        peer, witness = verdict.peer, verdict.witness
        refused = self.look(peer, network=True) is fsm.Seen.REFUSED
        accepted = self.look(witness, network=True) is fsm.Seen.ACCEPTED
        agreed = (
            self.etcd.members.get(peer.id) == peer
            and who in self.etcd.members
            and (peer.id, witness.id, peer.create_revision) in self.etcd.testimonies
        )
        if not (refused and accepted and agreed):
            return fsm.Refuted(peer)
        assert witness.id.zone != who.zone
        assert peer.id in self.crashed, "a broker that lives is evicted"
        assert not peer.is_exiting
        self.evicted.append(peer)
        self.etcd.leave(peer.id)
        return fsm.Evicted(peer)


@st.composite
def scripts(draw):
    which = st.sampled_from(BROKERS)
    action = st.one_of(
        st.tuples(st.just("perform"), which, st.booleans()),
        st.tuples(st.just("perform"), which, st.just(True)),
        st.tuples(st.just("perform"), which, st.just(True)),
        st.tuples(st.just("tell"), which),
        st.tuples(st.just("wait"), st.floats(0.01, 0.4)),
        st.tuples(st.just("crash"), which),
        st.tuples(st.just("exit"), which),
        st.tuples(st.just("return"), which),
    )
    return draw(st.lists(action, max_size=300))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(scripts())
def test_only_who_crashed_is_evicted(script):
    cluster = Cluster()
    for kind, *arguments in script:
        match kind, arguments:
            case "perform", (who, network):
                cluster.perform(who, network)
            case "tell", (who,):
                cluster.tell(who)
            case "wait", (seconds,):
                cluster.now += seconds
            case "crash", (who,) if who != OWN:
                cluster.listens.discard(who)
                cluster.crashed.add(who)
            case "exit", (who,) if who in cluster.etcd.members and who not in cluster.crashed:
                cluster.etcd.exit(who)  # and only then it closes its port
                cluster.listens.discard(who)
            case "return", (who,) if who not in cluster.listens:
                cluster.etcd.leave(who)
                cluster.listens.add(who)
                cluster.crashed.discard(who)
                cluster.etcd.join(who)
            case _:
                pass


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(BROKERS[1:]), st.integers(0, 1 << 32))
def test_who_crashed_is_evicted_within_two_seconds(victim, seed):
    cluster, random = Cluster(), Random(seed)
    run(cluster, random, until=3.0)
    assert not cluster.evicted
    cluster.listens.discard(victim)
    cluster.crashed.add(victim)
    run(cluster, random, until=5.0)
    assert [peer.id for peer in cluster.evicted] == [victim]
    assert not cluster.etcd.testimonies


def run(cluster, random, *, until):
    for number in itertools.count():
        if cluster.now >= until:
            return
        cluster.now += 0.004
        who = random.choice(BROKERS)
        cluster.perform(who, network=True)
        if number % 20 == 0:
            cluster.tell(who)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 32))
def test_brokers_that_crash_exit_and_return_at_random(seed):
    """Longer than a script, with time for verdicts; `Cluster.evict` checks each of them."""
    cluster, random = Cluster(), Random(seed)
    gone = set()
    for _ in range(8):
        run(cluster, random, until=cluster.now + random.choice([0.2, 0.5, 1.5]))
        who = random.choice(BROKERS)
        if who in cluster.listens:
            if random.random() < 0.5:
                cluster.etcd.exit(who)
            else:
                cluster.crashed.add(who)
                gone.add(who)
            cluster.listens.discard(who)
        else:
            cluster.etcd.leave(who)
            cluster.crashed.discard(who)
            cluster.listens.add(who)
            cluster.etcd.join(who)
    assert {peer.id for peer in cluster.evicted} <= gone
