"""Epochs against a model of a cluster: brokers that crash, come back, lose their disks, and leave.

A journal has brokers, whose spools are tenures; etcd has a record, which is compared and swapped; the
store has what was persisted. The rules are those of the shell, decisions are made by the real functions.

Long because all rules act on the same state: brokers, etcd, and the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gazette_platform.broker import epochs
from gazette_platform.broker.epochs import (
    Await,
    Claim,
    EpochRecord,
    GoOn,
    Holder,
    Unchanged,
    announce,
    claim,
    ending,
    noted,
    release,
    settled,
    tenure_status,
)
from gazette_platform.broker.spool.verdicts import Evidence, Todo, Verdict, decide, heir
from gazette_platform.protocol import LabelSet, ProcessId

REVISION = 7
NOTHING = LabelSet()
picks = st.integers(0, 59)  # one of any few things, by its remainder
PAST_MAX, PAST_FEW = epochs._PAST_MAX, epochs._PAST_FEW


@dataclass(eq=False, repr=False)
class Tenure:
    """What a broker's disk has of the journal: spans of content; the last one is open."""

    holder: Holder
    broker: int
    spans: list[tuple[int, list[int]]]
    registers: LabelSet = NOTHING  # as of its end
    is_lost: bool = False
    is_torn: bool = False
    is_storing: bool = False
    is_stored: bool = False  # all of it, before it is released
    is_confirmed: bool = False  # in step since its process began
    is_claimed: bool = False  # named as a holder since it was opened
    closed_to: int = 0  # what the latest sync closed
    shared_to: int = 0  # what all holders have, as its primary knows

    @property
    def end(self) -> int:
        begin, values = self.spans[-1]
        return begin + len(values)

    def roll(self, to: int, registers: LabelSet) -> None:
        self.spans.append((to, []))
        self.registers = registers

    def has(self, offset: int, value: int) -> bool:
        return any(
            begin <= offset < begin + len(values) and values[offset - begin] == value
            for begin, values in self.spans
        )


@dataclass(eq=False, repr=False)
class Broker:
    number: int
    is_up: bool = True
    replica: Tenure | None = None
    left: list[Tenure] = field(default_factory=list)
    storing: tuple[Tenure, int] | None = None  # of a process that has failed, and up to where

    def __repr__(self) -> str:
        return f"b{self.number}"

    @property
    def process(self) -> ProcessId:
        return ProcessId("zone", f"b{self.number}")


class Journal(RuleBasedStateMachine):
    """One journal of a cluster."""

    def __init__(self):
        super().__init__()
        self.brokers: list[Broker] = []
        self.replication = 1
        self.route: list[Broker] = []
        self.assigned = 0  # changes with each assignment
        self.is_synced = self.is_claimed = False
        self.record: EpochRecord | None = None
        self.mod = 0
        self.noted = 0  # head, in the journal's spec
        self.listed = {0}  # heads that old listings of specs have
        self.registers = NOTHING  # as they were acknowledged last
        self.plans: list[tuple[int, int, EpochRecord | None, int, bool]] = []
        self.tenures: list[Tenure] = []
        self.beside: list[tuple[Broker, Tenure, int]] = []  # copies that no process has found yet
        self.store: dict[int, int] = {}
        self.acked: dict[int, int] = {}
        self.copies: dict[int, list[Tenure]] = {}
        self.latest: dict[str, int] = {}  # epoch in which a tenure was a holder
        self.values = 0
        self.is_spared = True  # nothing was lost, nor given up

    @initialize(n=st.integers(3, 5), replication=st.integers(1, 3), few=st.sampled_from([0, 2]))
    def begin(self, n, replication, few):
        epochs._PAST_FEW = few  # most lives are too short for a long record
        self.brokers = [Broker(number) for number in range(n)]
        self.replication = replication

    def teardown(self):
        epochs._PAST_FEW = PAST_FEW

    # ------------------------------------------------------------------------------- helpers
    def swap(self, record: EpochRecord | None, mod: int) -> bool:
        if mod != self.mod:
            return False
        if record is not None:
            assert EpochRecord.decode(record.encode()) == record
            for one in record.holders:
                self.latest[one.tenure] = record.epoch
        self.record, self.mod = record, self.mod + 1
        return True

    def tenure_status(self, tenure: Tenure):
        return tenure_status(
            self.record, tenure.holder.tenure, create_revision=REVISION, journal_revision=REVISION
        )

    def persist(self, tenure: Tenure, to: int) -> None:
        """Store the content below `to`."""
        for begin, values in tenure.spans:
            for offset, value in enumerate(values, begin):
                if offset < to:
                    assert self.acked.get(offset, value) == value, (
                        "stores what contradicts an answer"
                    )
                    self.store.setdefault(offset, value)

    def open_replica(self, broker: Broker) -> Tenure:
        """Go on with a tenure that is a holder, or begin one."""
        number = heir(self.record, self.evidence(broker), journal_revision=REVISION)
        found = broker.left[number] if number is not None else None
        if found is not None and (
            found.is_stored or not found.is_storing
        ):  # else it is being settled
            broker.left.remove(found)
            found.roll(found.end, found.registers)
            found.is_storing = found.is_stored = found.is_confirmed = found.is_claimed = False
            found.shared_to = found.closed_to = 0
            return found
        holder = Holder(f"t{len(self.tenures)}", broker.process)
        tenure = Tenure(holder, broker.number, [(0, [])])
        self.tenures.append(tenure)
        return tenure

    def close_replica(self, broker: Broker) -> None:
        for one in broker.left:
            one.is_storing = False
        if broker.replica is not None:
            broker.left.append(broker.replica)
            broker.replica = None

    @property
    def members(self) -> list[Tenure]:
        return [broker.replica for broker in self.route]

    @property
    def in_step(self) -> frozenset[Holder]:
        return frozenset(one.holder for one in self.members)

    def sync(self, to: int = 0, registers: LabelSet | None = None) -> None:
        """Have all begin where the furthest ends, with its registers, or where the reset says."""
        furthest = max(self.members, key=lambda one: one.end)
        if to >= furthest.end and registers is not None:
            furthest = replace(furthest, registers=registers)
        end = max(furthest.end, to)
        for one in self.members:
            one.closed_to = one.end
            one.roll(end, furthest.registers)
            one.is_confirmed = True
        self.is_synced, self.is_claimed = True, False

    @property
    def stored_end(self) -> int:
        return max(self.store, default=-1) + 1

    def has_claimed(self) -> None:
        """Appends may follow: all holders have what the primary has."""
        assert self.stored_end <= self.members[0].end, "the store has more than the journal"
        self.is_claimed = True
        for one in self.members:
            one.is_claimed = True
        self.members[0].shared_to = self.members[0].end

    def decide(self, *, is_reset=False):
        return claim(
            self.record,
            create_revision=REVISION,
            holders=self.in_step,
            end=self.members[0].end,
            registers=self.members[0].registers,
            noted_head=self.noted or None,
            is_reset=is_reset,
        )

    # ----------------------------------------------------------------------------- the route
    @rule(pick=picks)
    def assign(self, pick):
        up = [broker for broker in self.brokers if broker.is_up]
        if len(up) < self.replication:
            return
        route = []
        while len(route) < self.replication:
            pick, n = divmod(pick, len(up))
            route.append(up.pop(n))
        for broker in self.route:
            if broker not in route and broker.is_up:
                self.close_replica(broker)
        self.route = route
        self.assigned += 1
        self.is_synced = self.is_claimed = False
        for broker in route:
            if broker.replica is None:
                broker.replica = self.open_replica(broker)

    def is_routed(self) -> bool:
        return bool(self.route) and all(b.is_up and b.replica is not None for b in self.route)

    @precondition(lambda self: self.is_routed())
    @rule()
    def bring_into_step(self):
        self.sync()

    @precondition(lambda self: self.is_routed() and self.is_synced and not self.is_claimed)
    @rule()
    def plan_claim(self):
        """Read the record, and decide; it is written later, or never."""
        decision = self.decide()
        if isinstance(decision, Unchanged):
            self.has_claimed()
        elif isinstance(decision, GoOn):
            self.sync(decision.head, decision.registers)
        elif isinstance(decision, Await):
            if decision.record is not None:
                assert self.swap(decision.record, self.mod)
        else:
            self.plans = [(self.mod, self.assigned, decision.record)]

    @precondition(lambda self: self.plans)
    @rule()
    def write_claim(self):
        mod, assigned, record = self.plans.pop()
        if assigned != self.assigned or not self.swap(record, mod):
            return
        for broker in self.route:
            if broker.replica is not None and broker.replica.holder in record.holders:
                broker.replica.is_claimed = True
        if not self.is_synced:
            return
        # Nothing was appended since it was made.
        if frozenset(record.holders) == self.in_step:
            self.has_claimed()

    @rule(pick=picks)
    def go_on(self, pick):
        """All that is between an assignment and the next append, since few walks take these steps one after the other."""
        self.assign(pick)
        if self.is_routed():
            self.sync()
            self.plan_claim()
            if self.plans:
                self.write_claim()

    # ------------------------------------------------------------------------------- appends
    def can_append(self) -> bool:
        return self.is_routed() and self.is_synced and self.is_claimed

    def follows(self) -> None:
        """Content follows: neither the spec nor the record says any more where the journal goes on."""
        self.noted = 0
        former = self.record
        self.record = noted(
            former,
            self.members[0].holder.tenure,
            create_revision=REVISION,
            head=None,
            registers=NOTHING,
        )
        self.mod += self.record != former

    @rule(pick=picks)
    def apply_old_listing(self, pick):
        """An operator applies specs that were listed some time ago."""
        self.noted = sorted(self.listed)[pick % len(self.listed)]

    @precondition(lambda self: self.can_append())
    @rule(pick=picks)
    def suspend_and_resume(self, pick):
        head = self.members[0].end
        self.noted = head
        self.listed.add(head)
        self.record = noted(
            self.record,
            self.members[0].holder.tenure,
            create_revision=REVISION,
            head=head,
            registers=self.members[0].registers,
        )
        self.mod += 1

    @precondition(lambda self: self.can_append())
    @rule(n=st.integers(1, 3))
    def append(self, n):
        self.follows()
        assert self.members[0].registers == self.registers, "a stale writer passes the fence"
        self.registers = LabelSet.of(at=str(self.values))
        for one in self.members:
            assert not one.is_lost
        values = range(self.values, self.values + n)
        self.values += n
        for offset, value in enumerate(values, self.members[0].end):
            assert offset not in self.acked, "acknowledged twice"
            assert offset not in self.store, "acknowledged after what is stored"
            self.acked[offset] = value
            self.copies[offset] = list(self.members)
        for one in self.members:
            one.spans[-1][1].extend(values)
            one.registers = self.registers
        self.members[0].shared_to = self.members[0].end

    @precondition(lambda self: self.can_append())
    @rule(n=st.integers(1, 3), taken=st.sets(st.integers(0, 2)), takes_back=st.booleans())
    def append_in_vain(self, n, taken, takes_back):
        """Some have recorded it when the pipeline breaks; no caller was answered."""
        self.follows()
        values = range(self.values, self.values + n)
        self.values += n
        members = self.members
        for number in taken | {0}:
            if number < len(members) and not (number == 0 and takes_back):
                members[number].spans[-1][1].extend(values)
        self.is_synced = self.is_claimed = False

    @precondition(lambda self: self.can_append())
    @rule(pick=picks)
    def persist_closed(self, pick):
        one = self.members[pick % len(self.members)]
        begin, _ = one.spans[-1]
        self.persist(one, begin)

    @precondition(lambda self: self.is_routed() and self.is_synced)
    @rule(pick=picks)
    def store_what_a_sync_closed(self, pick):
        """What a former process left, or what closed as another broker came."""
        one = self.members[pick % len(self.members)]
        if one.is_claimed:
            self.persist(one, one.closed_to)

    @precondition(lambda self: self.can_append() and len(self.route) > 1)
    @rule(pick=picks, n=st.integers(1, 3), stores=st.booleans())
    def fail_before_the_claim(self, pick, n, stores):
        """All crash, one comes back with more than the others, and is in step with new ones when etcd goes away."""
        former, number = self.route, pick % len(self.route)
        self.append_in_vain(n, {number}, takes_back=number > 0)
        for broker in former:
            self.end(broker)
        back = former[number]
        self.start_again(back)
        self.assign(pick)
        if not self.is_routed() or back not in self.route:
            return
        self.sync()
        if stores:
            self.store_what_a_sync_closed(self.route.index(back))
        for broker in self.route:
            self.fail_one(broker, is_etcd_there=False)
        for broker in former:
            if broker is not back:
                self.start_again(broker)

    # ------------------------------------------------------------------- processes and disks
    def drawn(self, pick, *, is_up: bool) -> Broker | None:
        some = [broker for broker in self.brokers if broker.is_up == is_up]
        return some[pick % len(some)] if some else None

    @rule(pick=picks)
    def crash(self, pick):
        broker = self.drawn(pick, is_up=True)
        if broker is not None:
            self.end(broker)

    def end(self, broker: Broker) -> None:
        broker.is_up = False
        self.close_replica(broker)
        if broker in self.route:
            self.is_synced = self.is_claimed = False

    @rule(pick=picks, is_etcd_there=st.booleans())
    def fail(self, pick, is_etcd_there):
        """It says where its spool ends, if it can, and stores what it may: later, or never."""
        broker = self.drawn(pick, is_up=True)
        if broker is not None and broker.replica is not None:
            self.fail_one(broker, is_etcd_there)

    def fail_one(self, broker: Broker, is_etcd_there: bool) -> None:
        tenure = broker.replica
        to = tenure.shared_to
        if not tenure.is_confirmed:
            to = 0
        elif is_etcd_there:
            said = ending(
                self.record,
                tenure.holder.tenure,
                create_revision=REVISION,
                head=tenure.end,
                registers=tenure.registers,
            )
            to = said if isinstance(said, int) else tenure.end
            assert isinstance(said, int) or self.swap(said, self.mod)
        self.end(broker)
        broker.storing = tenure, to

    @precondition(lambda self: self.can_append() and len(self.route) > 1)
    @rule(pick=picks, n=st.integers(1, 3), is_etcd_there=st.booleans(), stores=st.booleans())
    def fail_with_more_than_others(self, pick, n, is_etcd_there, stores):
        """A replica has the end of an append that its primary proposed, and no one acknowledged."""
        number = 1 + pick % (len(self.route) - 1)
        broker = self.route[number]
        self.append_in_vain(n, {number}, takes_back=True)
        self.fail_one(broker, is_etcd_there)
        if stores:
            self.persist(*broker.storing)
            broker.storing = None

    @rule(pick=picks)
    def store_after_failing(self, pick):
        some = [broker for broker in self.brokers if broker.storing is not None]
        if some:
            broker = some[pick % len(some)]
            self.persist(*broker.storing)
            broker.storing = None

    @rule(pick=picks)
    def come_back(self, pick):
        broker = self.drawn(pick, is_up=False)
        if broker is not None:
            self.start_again(broker)

    def start_again(self, broker: Broker) -> None:
        broker.is_up = True
        broker.storing = None
        self.find_copies(broker)
        self.assigned += broker in self.route  # the lease of its former process ends

    @rule(pick=picks, notes_head=st.booleans())
    def leave(self, pick, notes_head):
        """Orderly: what it has is stored, and it lets go of the journal in one transaction."""
        broker = self.drawn(pick, is_up=True)
        if broker is None or broker not in self.route or not self.can_append():
            return
        tenure = broker.replica
        assert self.tenure_status(tenure).is_holder
        self.persist(tenure, tenure.end)
        if notes_head:
            self.noted = tenure.end
            self.listed.add(tenure.end)
        self.let_go(tenure)
        self.is_synced = self.is_claimed = False
        broker.is_up = False
        broker.replica = None

    def let_go(self, tenure: Tenure) -> None:
        released = release(
            self.record,
            tenure.holder.tenure,
            create_revision=REVISION,
            head=tenure.end,
            registers=tenure.registers,
        )
        if released is not None:
            self.swap(released, self.mod)

    @rule(pick=picks)
    def lose_disk(self, pick):
        broker = self.drawn(pick, is_up=False)
        if broker is not None and broker.left:
            for one in broker.left:
                one.is_lost = True
            broker.left, broker.storing = [], None
            self.is_spared = False

    @rule(pick=picks, place=picks)
    def copy_folder(self, pick, place):
        """An operator copies a spool folder, and leaves the copy beside the original."""
        broker = self.brokers[pick % len(self.brokers)]
        some = [*broker.left, *([broker.replica] if broker.replica is not None else [])]
        if not some:
            return
        one = some[pick % len(some)]
        spans = [(begin, list(values)) for begin, values in one.spans]
        copy = Tenure(one.holder, one.broker, spans, one.registers, is_torn=one.is_torn)
        self.tenures.append(copy)
        self.beside.append((broker, copy, place))
        if not broker.is_up:
            self.find_copies(broker)

    @precondition(lambda self: self.can_append())
    @rule(pick=picks, place=picks, n=st.integers(1, 3))
    def die_beside_an_older_copy(self, pick, place, n):
        broker = self.route[pick % len(self.route)]
        one = broker.replica
        spans = [(begin, list(values)) for begin, values in one.spans]
        copy = Tenure(one.holder, one.broker, spans, one.registers)
        self.tenures.append(copy)
        self.beside.append((broker, copy, place))
        self.append(n)
        broker.is_up = False
        self.close_replica(broker)
        self.is_synced = self.is_claimed = False
        self.find_copies(broker)
        broker.is_up = True
        self.assigned += 1

    def find_copies(self, broker: Broker) -> None:
        """A process takes over the folders of all that have ended when it starts."""
        for where, copy, place in self.beside:
            if where is broker:
                broker.left.insert(place % (len(broker.left) + 1), copy)
        self.beside = [one for one in self.beside if one[0] is not broker]

    @rule(pick=picks)
    def tear(self, pick):
        broker = self.drawn(pick, is_up=False)
        if broker is not None and broker.left:
            one = broker.left[pick % len(broker.left)]
            one.is_torn, broker.storing = True, None
            self.is_spared = False

    # ----------------------------------------------------------------------------- leftovers
    def leftovers(self) -> list[tuple[Broker, Tenure]]:
        return [(b, one) for b in self.brokers if b.is_up for one in b.left]

    @precondition(lambda self: self.leftovers())
    @rule(pick=picks)
    def settle(self, pick):
        self.settle_one(*self.leftovers()[pick % len(self.leftovers())])

    def evidence(self, broker: Broker) -> list[Evidence]:
        return [
            Evidence(
                one.holder.tenure,
                REVISION,
                one.end,
                is_whole=not one.is_torn,
                is_end_known=not one.is_torn,
            )
            for one in broker.left
        ]

    def verdict(self, broker: Broker, one: Tenure) -> Verdict:
        verdicts = decide(
            self.record,
            self.evidence(broker),
            journal_revision=REVISION,
            in_use=[] if broker.replica is None else [broker.replica.holder.tenure],
        )
        return verdicts[broker.left.index(one)]

    def settle_one(self, broker: Broker, one: Tenure) -> None:
        if one not in broker.left:
            return
        verdict = self.verdict(broker, one)
        if one.is_storing and not one.is_stored and not one.is_torn:
            self.persist(one, one.end)  # the decision is made
            one.is_stored = True
        elif verdict.todo is Todo.LET_GO:
            if not one.is_storing:
                announced = announce(
                    self.record,
                    one.holder.tenure,
                    create_revision=REVISION,
                    head=one.end,
                    registers=one.registers,
                )
                assert announced is not None
                if announced != self.record:
                    self.swap(announced, self.mod)
                one.is_storing = True
                return
            if not one.is_stored:
                self.persist(one, one.end)
                one.is_stored = True
                return
            self.let_go(one)
        elif verdict.todo is Todo.YIELD:
            if not one.is_torn:
                self.persist(one, verdict.valid_to)
            broker.left.remove(one)  # what is left is set aside
            after = settled(self.record, one.holder.tenure, create_revision=REVISION)
            is_last = all(other.holder.tenure != one.holder.tenure for other in broker.left)
            if after is not None and is_last:
                assert self.swap(after, self.mod)

    # ------------------------------------------------------------------------------ operators
    def can_reset(self) -> bool:
        return self.is_routed() and not self.is_claimed

    @precondition(lambda self: self.can_reset())
    @rule()
    def reset(self):
        """An operator gives up those who do not come back, or thinks so."""
        for broker in self.brokers:
            broker.storing = None  # it is waited for, or has ended
        self.sync(max(self.noted, self.stored_end))
        decision = self.decide(is_reset=True)
        if isinstance(decision, GoOn):
            self.sync(decision.head, decision.registers)
            decision = self.decide(is_reset=True)
        if isinstance(decision, Claim):
            end = self.members[0].end
            if any(offset >= end for offset in self.acked):
                self.is_spared = False
            self.acked = {o: value for o, value in self.acked.items() if o < end}
            self.registers = self.members[0].registers
            assert self.swap(decision.record, self.mod)
        assert isinstance(decision, Claim | Unchanged)
        self.has_claimed()

    # ----------------------------------------------------------------------------- invariants
    def is_kept(self, offset: int, value: int) -> bool:
        if offset in self.store:
            assert self.store[offset] == value
            return True
        for one in self.tenures:
            if one.is_lost or one.is_torn or not self.is_there(one):
                continue
            stands = self.tenure_status(one)
            to = one.end if stands.is_holder else stands.valid_to
            for begin, values in one.spans:
                end = begin + len(values)
                if begin <= offset < min(end, to):
                    assert values[offset - begin] == value, "contradicts an answer"
                    return True
        return False

    def is_there(self, tenure: Tenure) -> bool:
        broker = self.brokers[tenure.broker]
        return broker.replica is tenure or tenure in broker.left

    @invariant()
    def what_was_acknowledged_is_kept(self):
        for offset, value in self.acked.items():
            assert self.is_kept(offset, value) or all(
                one.is_lost or one.is_torn or self.is_forgotten(one) for one in self.copies[offset]
            ), f"lost {offset}"

    def is_forgotten(self, one: Tenure) -> bool:
        """Whether it was not a holder for more epochs than the record remembers."""
        latest = self.latest.get(one.holder.tenure)
        return self.record is None or latest is None or self.record.epoch - latest > PAST_MAX

    @invariant()
    def what_is_valid_contradicts_nothing(self):
        for one in self.tenures:
            if one.is_lost or not self.is_there(one):
                continue
            stands = self.tenure_status(one)
            to = min(stands.valid_to, one.end)
            for begin, values in one.spans:
                for offset, value in enumerate(values, begin):
                    if offset < to:
                        assert self.acked.get(offset, value) == value, "contradicts an answer"

    @precondition(lambda self: self.is_spared)
    @rule(pick=picks)
    def all_come_back(self, pick):
        """Then a primary goes on, after a release at most."""
        if not self.is_spared:
            return
        for broker in self.brokers:
            if not broker.is_up:
                self.find_copies(broker)
            broker.is_up, broker.storing = True, None
        self.assign(pick)
        for _ in range(8):
            self.plans = []
            self.sync()
            self.plan_claim()
            if self.plans:
                self.write_claim()
            if self.is_claimed:
                return
            for found in self.leftovers():
                self.settle_one(*found)
        raise AssertionError("refused for ever")


TestJournal = Journal.TestCase
TestJournal.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
