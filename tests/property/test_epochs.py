"""Epochs against a model of a cluster: brokers that crash, come back, lose their disks, and leave.

A journal has brokers, whose spools are tenures; etcd has a record, which is compared and swapped; the
store has what was persisted. The rules are those of the shell, decisions are made by the real functions.

Long because the tables stand beside the model whose moves they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gazette_platform.broker import epochs
from gazette_platform.broker.epochs import (
    Await,
    Claim,
    EpochRecord,
    GoOn,
    Held,
    Holder,
    Past,
    Released,
    Standing,
    announce,
    claim,
    noted,
    release,
    settled,
    standing,
)
from gazette_platform.broker.verdicts import Evidence, Todo, Verdict, decide, heir
from gazette_platform.protocol import LabelSet, ProcessId

REVISION = 7
NOTHING = LabelSet()
picks = st.integers(0, 59)  # one of any few things, by its remainder
PAST_MAX, PAST_FEW = epochs._PAST_MAX, epochs._PAST_FEW


@dataclass(eq=False, repr=False)
class Tenure:
    """What a broker's disk has of the journal: spans of content, the last of which is open."""

    holder: Holder
    broker: int
    spans: list[tuple[int, list[int]]]
    registers: LabelSet = NOTHING  # as of its end
    is_lost: bool = False
    is_torn: bool = False
    is_storing: bool = False
    is_stored: bool = False  # all of it, before it is released

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

    def standing(self, tenure: Tenure):
        return standing(
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
            found.is_storing = found.is_stored = False
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
        """Have all begin where the furthest ends, with its registers, or where they are told to."""
        furthest = max(self.members, key=lambda one: one.end)
        if to >= furthest.end and registers is not None:
            furthest = replace(furthest, registers=registers)
        end = max(furthest.end, max(self.store, default=-1) + 1, to)
        for one in self.members:
            one.roll(end, furthest.registers)
        self.is_synced, self.is_claimed = True, False

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
        if isinstance(decision, Held):
            self.is_claimed = True
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
        if assigned == self.assigned and self.swap(record, mod) and self.is_synced:
            # Nothing was appended since it was made.
            self.is_claimed = frozenset(record.holders) == self.in_step

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
            assert offset not in self.store, "acknowledged behind what is stored"
            self.acked[offset] = value
            self.copies[offset] = list(self.members)
        for one in self.members:
            one.spans[-1][1].extend(values)
            one.registers = self.registers

    @precondition(lambda self: self.can_append())
    @rule(n=st.integers(1, 3), taken=st.sets(st.integers(0, 2)), takes_back=st.booleans())
    def append_in_vain(self, n, taken, takes_back):
        """Some have recorded it when the pipeline breaks; nobody was answered."""
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

    # ------------------------------------------------------------------- processes and disks
    def drawn(self, pick, *, is_up: bool) -> Broker | None:
        some = [broker for broker in self.brokers if broker.is_up == is_up]
        return some[pick % len(some)] if some else None

    @rule(pick=picks)
    def crash(self, pick):
        broker = self.drawn(pick, is_up=True)
        if broker is None:
            return
        broker.is_up = False
        self.close_replica(broker)
        if broker in self.route:
            self.is_synced = self.is_claimed = False

    @rule(pick=picks)
    def come_back(self, pick):
        broker = self.drawn(pick, is_up=False)
        if broker is not None:
            broker.is_up = True
            self.find_copies(broker)
            self.assigned += broker in self.route  # the lease of its former process ends

    @rule(pick=picks, notes_head=st.booleans())
    def leave(self, pick, notes_head):
        """Orderly: what it has is stored, and it lets go of the journal in one transaction."""
        broker = self.drawn(pick, is_up=True)
        if broker is None or broker not in self.route or not self.can_append():
            return
        tenure = broker.replica
        assert self.standing(tenure).is_holder
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
            broker.left = []
            self.is_spared = False

    @rule(pick=picks, place=picks)
    def copy_folder(self, pick, place):
        """Somebody copies a spool folder, and leaves the copy beside the original."""
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
            one.is_torn = True
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
        self.sync(self.noted)
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
        assert isinstance(decision, Claim | Held)
        self.is_claimed = True

    # ----------------------------------------------------------------------------- invariants
    def is_kept(self, offset: int, value: int) -> bool:
        if offset in self.store:
            assert self.store[offset] == value
            return True
        for one in self.tenures:
            if one.is_lost or one.is_torn or not self.is_there(one):
                continue
            stands = self.standing(one)
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
        """Whether it was no holder for more epochs than the record remembers."""
        latest = self.latest.get(one.holder.tenure)
        return self.record is None or latest is None or self.record.epoch - latest > PAST_MAX

    @invariant()
    def what_is_valid_contradicts_nothing(self):
        for one in self.tenures:
            if one.is_lost or not self.is_there(one):
                continue
            stands = self.standing(one)
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
            broker.is_up = True
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


# ------------------------------------------------------------------------------------- tables
A, B, C, D = (Holder(f"t{n}", ProcessId("zone", f"b{n}")) for n in range(4))
REGISTERS = LabelSet.of(("author", "me"))


def record_of(*holders, epoch=3, **options):
    return EpochRecord(REVISION, epoch, holders, **options)


def claimed(record, *holders, end=100, **options):
    return claim(record, create_revision=REVISION, holders=frozenset(holders), end=end, **options)


def standing_of(record, holder):
    return standing(record, holder.tenure, create_revision=REVISION, journal_revision=REVISION)


def released(record, holder, head):
    return release(record, holder.tenure, create_revision=REVISION, head=head, registers=REGISTERS)


def test_holders_go_on_as_they_are():
    assert claimed(record_of(A, B), A, B) == Held()
    assert claimed(record_of(A, B), B, A) == Held()
    wanted = record_of(A, B, is_wanted=True)
    assert claimed(wanted, A, B) == Claim(record_of(A, B))


def test_one_holder_suffices():
    decision = claimed(record_of(A, B, past=(Past((D,), 10),)), B, C)
    assert decision == Claim(record_of(B, C, epoch=4, past=(Past((D,), 10), Past((A, B), 100))))


@pytest.mark.parametrize(
    "options",
    [{}, {"end": 0}, {"end": 10**9}, {"noted_head": 0}, {"noted_head": 10**9}, {"is_reset": False}],
)
def test_without_a_holder_nobody_goes_on(options):
    record = record_of(A, B, past=(Past((C, D), 50),))
    decision = claimed(record, C, D, **options)
    assert decision == Await((A, B), replace(record, is_wanted=True))
    assert claimed(decision.record, C, D, **options) == Await((A, B), None)


def test_operator_lets_anybody_go_on():
    decision = claimed(record_of(A, B), C, is_reset=True)
    assert decision == Claim(record_of(C, epoch=4, past=(Past((A, B), 100),)))


def test_noted_head_needs_no_holder_while_record_covers_it():
    noted_at = Released(100, REGISTERS)
    record = record_of(A, B, released=noted_at)
    for head in (70, 100):
        assert claimed(record, C, end=0, noted_head=head) == GoOn(100, REGISTERS)
        decision = claimed(record, C, end=100, registers=REGISTERS, noted_head=head)
        after = record_of(C, epoch=4, past=(Past((A, B), 100),), released=noted_at)
        assert decision == Claim(after), "until content follows, the next one needs it, too"
    for options in ({"end": 101, "noted_head": 101}, {"end": 101, "noted_head": 100}, {}):
        assert isinstance(claimed(record, C, **options), Await)


def test_what_was_let_go_of_stays_in_the_record_until_content_follows():
    record = claimed(released(record_of(A), A, 70), B, end=70).record
    assert record.released == Released(70, REGISTERS)
    assert claimed(record, B, end=70) == Held()

    def note(tenure, head):
        return noted(record, tenure, create_revision=REVISION, head=head, registers=NOTHING)

    assert note(B.tenure, None) == replace(record, released=None)
    assert note(B.tenure, 90) == replace(record, released=Released(90, NOTHING))
    assert note(A.tenure, None) == record, "whoever is not a holder takes nothing back"
    assert noted(None, B.tenure, create_revision=REVISION, head=None, registers=NOTHING) is None
    other = replace(record, create_revision=REVISION + 1)
    assert noted(other, B.tenure, create_revision=REVISION, head=None, registers=NOTHING) == other


def test_head_of_spec_is_gone_to_with_the_registers_of_the_record():
    record = released(record_of(A), A, 70)
    assert claimed(record, C, end=0, noted_head=90) == GoOn(90, REGISTERS)
    assert claimed(record_of(A), A, end=70, noted_head=90) == GoOn(90, None)
    assert claimed(None, A, end=70, noted_head=90) == GoOn(90, None)


def test_new_journal_has_no_former_holders():
    assert claimed(None, A) == Claim(EpochRecord(REVISION, 1, (A,)))
    former = EpochRecord(REVISION - 1, 5, (B,), past=(Past((C,), 9),))
    assert claimed(former, A) == Claim(EpochRecord(REVISION, 6, (A,)))
    assert standing_of(former, B) == Standing(is_holder=False)


def test_what_was_let_go_of_goes_on_at_its_head():
    record = released(record_of(A, B), A, 70)
    assert record == EpochRecord(REVISION, 4, (), (Past((A, B), 70),), Released(70, REGISTERS))
    assert claimed(record, C, end=50) == GoOn(70, REGISTERS)
    after = record_of(C, epoch=5, past=(Past((A, B), 70),), released=Released(70, REGISTERS))
    assert claimed(record, C, end=70) == Claim(after)
    assert claimed(record, C, end=50, is_reset=True) == GoOn(70, REGISTERS)  # nothing is given up
    # Whoever is there by another way, as by the spec, may lack the registers.
    assert claimed(record, C, end=70, registers=NOTHING) == GoOn(70, REGISTERS)
    for end, registers in ((70, REGISTERS), (71, NOTHING)):
        assert isinstance(claimed(record, C, end=end, registers=registers), Claim)


def test_of_those_who_let_go_the_one_with_most_counts():
    record = released(record_of(A, B), A, 70)
    assert released(record, B, 60) is None
    assert released(record, B, 70) is None
    assert released(record, C, 90) is None
    more = released(record, B, 90)
    assert (more.released.head, more.past) == (90, (Past((A, B), 90),))
    gone_on = claimed(record, C, end=70).record
    assert released(gone_on, B, 90) is None
    assert standing_of(gone_on, B) == Standing(is_holder=False, valid_to=70)


def test_latest_epoch_of_a_tenure_says_what_is_valid():
    record = record_of(C, past=(Past((A, B), 10), Past((A,), 20), Past((B, D), 30)))
    assert [standing_of(record, one).valid_to for one in (A, B, C, D)] == [20, 30, 0, 30]
    assert [standing_of(record, one).is_holder for one in (A, B, C, D)] == [False] * 2 + [
        True,
        False,
    ]


def test_past_holder_is_known_however_many_epochs_go_by():
    """Its broker was away, and what it has may be the only copy."""
    record = claimed(None, A, end=0).record
    for end in range(1, 100):
        record = claimed(record, *record.holders, Holder(f"x{end}", B.process), end=end).record
        record = claimed(record, Holder(f"x{end}", B.process), end=end).record
    assert standing_of(record, A) == Standing(is_holder=False, valid_to=1)


def test_tenure_that_goes_on_is_in_one_past_epoch():
    record = None
    for end in range(40):
        record = claimed(record, A, *([B] if end % 2 else []), end=end).record
    assert record.past == (Past((B,), 38), Past((A,), 39))


def test_settled_tenures_are_taken_out_of_a_long_record():
    def settle(record, holder):
        return settled(record, holder.tenure, create_revision=REVISION)

    past = tuple(Past((Holder(f"x{end}", B.process), A), end) for end in range(PAST_FEW))
    record = record_of(C, past=(*past, Past((B, D), 90)))
    after = settle(record, past[0].holders[0])
    assert after.past[0] == Past((A,), 0)
    assert [one.holders for one in settle(record, A).past] == [
        *((one.holders[0],) for one in past),
        (B, D),
    ]
    assert settle(record, C) is None, "it is a holder"
    assert settle(record_of(C, past=past), A) is None, "that record is short"
    assert settle(None, A) is None
    assert settle(replace(record, create_revision=REVISION + 1), A) is None


def test_settled_last_holder_lets_no_earlier_one_move_the_head():
    past = tuple(Past((Holder(f"x{end}", B.process),), end) for end in range(PAST_FEW))
    record = released(record_of(A, past=(*past, Past((B,), 50))), A, 70)
    record = settled(record, A.tenure, create_revision=REVISION)
    assert record.past[-1] == Past((), 70)
    assert released(record, B, 90) is None
    assert claimed(record, C, end=70).record.past[-1] == Past((), 70)


def test_only_so_many_lost_disks_are_remembered():
    record = None
    for end in range(PAST_MAX + 24):
        record = claimed(record, Holder(f"x{end}", B.process), end=end, is_reset=True).record
    assert len(record.past) == PAST_MAX
    assert len(record.encode()) < 200_000


def test_reset_gives_up_what_was_behind_it():
    """Also of those whose last epoch was over before: others have these offsets from now on."""
    record = record_of(B, past=(Past((A, B), 100),))
    decision = claimed(record, C, end=40, is_reset=True)
    assert [standing_of(decision.record, one).valid_to for one in (A, B)] == [40, 40]


def test_brokers_that_keep_nothing_leave_no_holder():
    def shared(record):
        return claim(record, create_revision=REVISION, holders=None, end=100)

    assert shared(None) == Held()
    for record in (record_of(A), released(record_of(A), A, 100)):
        after = shared(record).record
        assert (after.holders, after.released, after.past[-1].end) == ((), None, 100)
        assert standing_of(after, A) == Standing(is_holder=False, valid_to=100)
        assert shared(after) == Held()
        assert claimed(after, B, end=0).record.holders == (B,)
    # What was let go of is stored: they go on behind it, as everybody does.
    assert shared(released(record_of(A), A, 101)) == GoOn(101, REGISTERS)


def test_standing_needs_the_same_journal():
    record = record_of(A, past=(Past((B,), 10),))
    for create_revision, journal_revision in (
        (REVISION, None),
        (REVISION, 8),
        (8, REVISION),
        (8, 8),
    ):
        for one in (A, B):
            assert standing(
                record,
                one.tenure,
                create_revision=create_revision,
                journal_revision=journal_revision,
            ) == Standing(is_holder=False)
    assert standing_of(None, A) == Standing(is_holder=False)


names = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=6)
holders_of = st.lists(st.builds(Holder, names, st.builds(ProcessId, names, names)), max_size=3).map(
    tuple
)
heads = st.integers(0, 2**63 - 1)
records = st.builds(
    EpochRecord,
    heads,
    heads,
    holders_of,
    st.lists(st.builds(Past, holders_of, heads), max_size=3).map(tuple),
    st.none() | st.builds(Released, heads, st.sampled_from([NOTHING, REGISTERS])),
    st.booleans(),
)


@given(records)
def test_records_go_and_come(record):
    assert EpochRecord.decode(record.encode()) == record


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"null", b"[]", b"3", b"{}", b"\xff", b'{"version": 2}', b'{"version": 1}']
    + [
        record_of(A).encode().replace(old, new)
        for old, new in (
            (b'"released": null', b'"released": {}'),
            (b'"t0", ', b""),
            (b'"past": []', b'"past": [{}]'),
            (b'"version": 1', b'"version": "1"'),
            (b'"create_revision": 7', b'"create_revision": "7"'),
            (b'"epoch": 3', b'"epoch": null'),
            (b'"epoch": 3', b'"epoch": ' + b"1" * 5000),
            (b'"released": null', b'"released": {"head": "1", "registers": []}'),
            (b'"released": null', b'"released": {"head": -1, "registers": []}'),
            (b'"released": null', b'"released": {"head": %d, "registers": []}' % (1 << 63)),
            (b'"released": null', b'"released": {"head": 1, "registers": [["a", 2]]}'),
            (b'"released": null', b'"released": ' + b"[" * 100_000),
            (b'"past": []', b'"past": [{"holders": [], "end": "1"}]'),
            (b'"t0"', b"[]"),
            (b'"t0"', b'"\\ud800"'),
            (b'"b0"', b'"\\u001b[2J"'),
            (b'"zone"', b"3"),
        )
    ],
)
def test_value_that_is_no_record_is_refused(value):
    with pytest.raises(ValueError, match=r"\S"):
        EpochRecord.decode(value)
