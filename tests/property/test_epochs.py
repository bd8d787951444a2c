"""Epochs, rule by rule: who may take appends of a journal, and what its record says then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from gazette_platform.broker import epochs
from gazette_platform.broker.epochs import (
    Await,
    Claim,
    Doubled,
    EpochRecord,
    GoOn,
    Holder,
    Past,
    Released,
    TenureStatus,
    Unchanged,
    claim,
    noted,
    release,
    settled,
    tenure_status,
)
from gazette_platform.protocol import LabelSet, ProcessId

REVISION = 7
NOTHING = LabelSet()
PAST_MAX, PAST_FEW = epochs._PAST_MAX, epochs._PAST_FEW

A, B, C, D = (Holder(f"t{n}", ProcessId("zone", f"b{n}")) for n in range(4))
REGISTERS = LabelSet.of(("author", "me"))


def record_of(*holders, epoch=3, **options):
    return EpochRecord(REVISION, epoch, holders, **options)


def claimed(record, *holders, end=100, **options):
    return claim(record, create_revision=REVISION, holders=frozenset(holders), end=end, **options)


def standing_of(record, holder):
    return tenure_status(record, holder.tenure, create_revision=REVISION, journal_revision=REVISION)


def released(record, holder, head):
    return release(record, holder.tenure, create_revision=REVISION, head=head, registers=REGISTERS)


def test_holders_go_on_as_they_are():
    assert claimed(record_of(A, B), A, B) == Unchanged()
    assert claimed(record_of(A, B), B, A) == Unchanged()
    wanted = record_of(A, B, is_wanted=True)
    assert claimed(wanted, A, B) == Claim(record_of(A, B))


def test_one_holder_suffices():
    decision = claimed(record_of(A, B, past=(Past((D,), 10),)), B, C)
    assert decision == Claim(record_of(B, C, epoch=4, past=(Past((D,), 10), Past((A, B), 100))))


@pytest.mark.parametrize(
    "options",
    [{}, {"end": 0}, {"end": 10**9}, {"noted_head": 0}, {"noted_head": 10**9}, {"is_reset": False}],
)
def test_no_broker_goes_on_without_a_holder(options):
    record = record_of(A, B, past=(Past((C, D), 50),))
    decision = claimed(record, C, D, **options)
    assert decision == Await((A, B), replace(record, is_wanted=True))
    assert claimed(decision.record, C, D, **options) == Await((A, B), None)


@pytest.mark.parametrize("record", [None, record_of(A), record_of(B), record_of()])
@pytest.mark.parametrize("options", [{}, {"is_reset": True}, {"noted_head": 200}])
def test_no_broker_goes_on_with_two_copies_of_one_spool(record, options):
    """Once one of them is left out, it would seem to have what the other acknowledges."""
    copy = A._replace(process=ProcessId("zone", "on-a-copy"))
    assert claimed(record, A, copy, **options) == Doubled((A, copy))


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
    assert claimed(record, B, end=70) == Unchanged()

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
    assert standing_of(former, B) == TenureStatus(is_holder=False)


def test_what_was_let_go_of_goes_on_at_its_head():
    record = released(record_of(A, B), A, 70)
    assert record == EpochRecord(REVISION, 4, (), (Past((A, B), 70),), Released(70, REGISTERS))
    assert claimed(record, C, end=50) == GoOn(70, REGISTERS)
    after = record_of(C, epoch=5, past=(Past((A, B), 70),), released=Released(70, REGISTERS))
    assert claimed(record, C, end=70) == Claim(after)
    assert claimed(record, C, end=50, is_reset=True) == GoOn(70, REGISTERS)  # nothing is given up
    # Whoever joined in another way, as by the spec, may lack the registers.
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
    assert standing_of(gone_on, B) == TenureStatus(is_holder=False, valid_to=70)


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
    assert standing_of(record, A) == TenureStatus(is_holder=False, valid_to=1)


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

    assert shared(None) == Unchanged()
    for record in (record_of(A), released(record_of(A), A, 100)):
        after = shared(record).record
        assert (after.holders, after.released, after.past[-1].end) == ((), None, 100)
        assert standing_of(after, A) == TenureStatus(is_holder=False, valid_to=100)
        assert shared(after) == Unchanged()
        assert claimed(after, B, end=0).record.holders == (B,)
    # What was let go of is stored: they go on after it, as everybody does.
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
            assert tenure_status(
                record,
                one.tenure,
                create_revision=create_revision,
                journal_revision=journal_revision,
            ) == TenureStatus(is_holder=False)
    assert standing_of(None, A) == TenureStatus(is_holder=False)


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
def test_value_that_is_not_a_record_is_refused(value):
    with pytest.raises(ValueError, match=r"\S"):
        EpochRecord.decode(value)
