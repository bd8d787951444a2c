"""Who may take appends after etcd was restored from a backup: none, before an operator says so."""

from __future__ import annotations

import pytest

from gazette_platform.broker.epochs import (
    Await,
    Claim,
    Doubled,
    EpochRecord,
    GoOn,
    Holder,
    Released,
    claim,
    is_unknown,
)
from gazette_platform.protocol import LabelSet, ProcessId

OURS = frozenset({Holder("t1", ProcessId("a", "one"))})
FENCE = LabelSet.of({"gazette-restored": "5c"})
RECORD = EpochRecord(7, 1, (), saved=Released(0, FENCE), is_restored=True)


def decided(end, *, registers=None, noted_head=None, is_reset=False, holders=OURS):
    return claim(
        RECORD,
        create_revision=7,
        holders=holders,
        end=end,
        registers=registers,
        noted_head=noted_head,
        is_reset=is_reset,
    )


def test_record_survives_its_encoding():
    assert EpochRecord.decode(RECORD.encode()) == RECORD
    assert is_unknown(RECORD, 7)
    assert not is_unknown(EpochRecord(7, 1, ()), 7)


@pytest.mark.parametrize(
    ("end", "noted_head"), [(0, None), (0, 50), (50, 50), (60, 50), (60, None)]
)
@pytest.mark.parametrize("holders", [OURS, None])
def test_every_spool_waits(end, noted_head, holders):
    assert decided(end, noted_head=noted_head, holders=holders) == Await((), None)


def test_copies_of_one_spool_do_not_both_go_on():
    both = OURS | {Holder("t1", ProcessId("a", "two"))}
    assert decided(60, registers=FENCE, holders=both, is_reset=True) == Doubled(tuple(sorted(both)))


def test_reset_sets_a_register_that_no_writer_knows():
    assert decided(60, registers=LabelSet(), is_reset=True) == GoOn(60, FENCE)
    # The registers stay noted until content follows.
    done = EpochRecord(7, 1, tuple(OURS), released=Released(60, FENCE))
    assert decided(60, registers=FENCE, is_reset=True) == Claim(done)


def test_reset_of_a_journal_without_content_begins_at_zero():
    assert decided(0, registers=LabelSet(), is_reset=True) == Claim(EpochRecord(7, 1, tuple(OURS)))


def test_journal_made_again_has_nothing_of_the_backup():
    found = claim(RECORD, create_revision=9, holders=OURS, end=0)
    assert isinstance(found, Claim)
    assert found.record is not None
    assert (found.record.create_revision, found.record.is_restored) == (9, False)
