"""No broker goes on below the end of a holder that is about to store what it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gazette_platform.broker.epochs import (
    Await,
    Claim,
    EpochRecord,
    GoOn,
    Holder,
    Past,
    Released,
    announce,
    claim,
    ending,
    release,
    save,
    tenure_status,
)
from gazette_platform.broker.etcd_records import epoch_key, epochs_prefix
from gazette_platform.protocol import LabelSet, ProcessId

A, B, OTHER = (Holder(f"tenure-{name}", ProcessId("zone", name)) for name in ("a", "b", "other"))
REGISTERS = LabelSet.of(author="a")


def announced(*holders, head=70, released=None):
    record = EpochRecord(7, 3, holders, released=released, is_wanted=True)
    said = announce(record, A.tenure, create_revision=7, head=head, registers=REGISTERS)
    return EpochRecord.decode(said.encode())


def claimed(record, *holders, end, **options):
    return claim(record, create_revision=7, holders=frozenset(holders), end=end, **options)


def test_broker_released_by_an_operator_goes_on_after_it():
    record = announced(A)
    for is_reset in (False, True):
        decision = claimed(record, OTHER, end=50, is_reset=is_reset)
        assert decision == GoOn(70, REGISTERS)
    assert isinstance(claimed(record, OTHER, end=70), Await)
    decision = claimed(record, OTHER, end=70, is_reset=True)
    assert isinstance(decision, Claim)
    assert (decision.record.holders, decision.record.released) == ((OTHER,), record.released)
    stands = tenure_status(decision.record, A.tenure, create_revision=7, journal_revision=7)
    assert stands.valid_to == 70


def test_another_holder_goes_on_after_it():
    record = announced(A, B)
    assert claimed(record, B, end=60) == GoOn(70, REGISTERS)
    decision = claimed(record, B, end=70)
    assert isinstance(decision, Claim)
    assert decision.record.holders == (B,)
    assert decision.record.past == (Past((A, B), 70),)
    assert claimed(record, B, end=80).record.past == (Past((A, B), 80),)


def test_it_goes_on_itself_if_it_is_adopted_after_all():
    record = announced(A)
    decision = claimed(record, A, end=70)
    assert decision == Claim(replace(record, is_wanted=False))


def test_of_several_the_end_of_the_furthest_counts():
    record = announced(A, B)
    later = announce(record, B.tenure, create_revision=7, head=60, registers=LabelSet())
    assert later == record
    freed = release(record, B.tenure, create_revision=7, head=60, registers=LabelSet())
    assert (freed.holders, freed.released) == ((), Released(70, REGISTERS))
    assert freed.past == (Past((A, B), 70),)
    assert announced(A, released=Released(60, LabelSet())).released == Released(70, REGISTERS)


@pytest.mark.parametrize(
    "record", [None, EpochRecord(8, 3, (A,)), EpochRecord(7, 3, (B,)), EpochRecord(7, 3, ())]
)
def test_only_a_holder_announces(record):
    assert announce(record, A.tenure, create_revision=7, head=70, registers=REGISTERS) is None


# ------------------------------------------------------------------------ of a broker that has failed
def ends(record, *, head=70):
    return ending(record, A.tenure, create_revision=7, head=head, registers=REGISTERS)


def test_one_of_several_holders_says_where_it_ends_before_it_stores():
    record = EpochRecord(7, 3, (A, B))
    said = ends(record)
    assert said == replace(record, released=Released(70, REGISTERS))
    assert ends(said) == 70, "it is said"
    assert ends(said, head=80) == replace(record, released=Released(80, REGISTERS))


@pytest.mark.parametrize("record", [None, EpochRecord(7, 3, ()), EpochRecord(7, 3, (A,))])
def test_all_is_stored_that_no_other_broker_goes_on_without(record):
    assert ends(record) == 70


@pytest.mark.parametrize(
    ("record", "valid_to"),
    [
        (EpochRecord(7, 4, (B,), (Past((A, B), 60),)), 60),
        (EpochRecord(7, 4, (), (Past((A, B), 80),), Released(80, REGISTERS)), 80),
        (EpochRecord(7, 3, (B,)), 0),
        (EpochRecord(8, 3, (A, B)), 0),
    ],
)
def test_what_others_went_on_without_is_not_stored(record, valid_to):
    assert ends(record) == valid_to


def test_clusters_whose_prefixes_begin_alike_share_no_key():
    outer, inner = "/gazette", "/gazette/inner"
    key = epoch_key(inner, "a/journal")
    assert key != epoch_key(outer, "inner/a/journal")
    assert not key.startswith(epochs_prefix(outer))


# --------------------------------------------------------------- what is left of holders that are not whole
def saved(*holders, head=70, registers=REGISTERS):
    record = EpochRecord(7, 3, holders, is_wanted=True)
    said = save(record, A.tenure, create_revision=7, head=head, registers=registers)
    return EpochRecord.decode(said.encode())


def test_reset_goes_on_with_the_registers_that_are_known():
    """At the end of the store, which may lack what the registers are of."""
    record = saved(A)
    assert claimed(record, OTHER, end=40) == Await((A,), None), "they let no broker go on"
    known = claimed(record, OTHER, end=40, registers=LabelSet(), is_reset=True)
    assert known == GoOn(40, REGISTERS)
    decision = claimed(record, OTHER, end=40, registers=REGISTERS, is_reset=True)
    assert decision == Claim(
        EpochRecord(7, 4, (OTHER,), (Past((A,), 40),), Released(40, REGISTERS))
    ), "they stay until content follows"


def test_furthest_of_several_says_the_registers():
    record = saved(A, B)
    for head, expected in ((60, REGISTERS), (80, LabelSet())):
        said = save(record, B.tenure, create_revision=7, head=head, registers=LabelSet())
        assert said.saved.registers == expected
        assert said.released is None
    assert save(record, OTHER.tenure, create_revision=7, head=90, registers=REGISTERS) is None
    assert save(record, A.tenure, create_revision=8, head=90, registers=REGISTERS) is None
    assert save(None, A.tenure, create_revision=7, head=90, registers=REGISTERS) is None


def test_holder_that_comes_back_knows_better_than_what_was_saved():
    record = saved(A, B)
    decision = claimed(record, B, OTHER, end=90, registers=LabelSet(), is_reset=True)
    assert decision == Claim(EpochRecord(7, 4, (B, OTHER), (Past((A, B), 90),)))
    assert claimed(record, A, B, end=90) == Claim(EpochRecord(7, 3, (A, B)))
