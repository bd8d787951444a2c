"""What a journal's registers say of Kafka's producers: which batches follow, and which are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("kio")

from hypothesis import given, settings, strategies as st
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.calls.sequences import (
    FORGOTTEN,
    PRODUCERS_MAX,
    REGISTER,
    Claim,
    Duplicate,
    Sequence,
    Sequences,
)
from gazette_platform.kafka.failures import KafkaError
from gazette_platform.protocol import LabelSet


def appended(registers, *claims, offset=0):
    """The registers after an append."""
    edit = Sequences(registers).edit()
    for claim in claims:
        edit.add(claim, offset)
    left = {label.name: label.value for label in registers}
    if edit.check is not None:
        assert all(left.get(one.name) == one.value for one in edit.check.include)
        assert all(one.name not in left for one in edit.check.exclude)
    for label in edit.subtract or ():
        assert left.pop(label.name) == label.value
    left.update((label.name, label.value) for label in edit.union or ())
    return LabelSet.of(left)


def code_of(registers, claim):
    with pytest.raises(KafkaError) as caught:
        Sequences(registers).edit().add(claim, 0)
    return caught.value.code


def test_new_producer_begins_with_its_first_record():
    """Else the batch before, which failed and comes again, would be taken for a duplicate."""
    assert code_of(LabelSet(), Claim(7, 0, 2, 1)) is ErrorCode.out_of_order_sequence_number
    both = appended(LabelSet(), Claim(7, 0, 0, 2), Claim(7, 0, 2, 1))
    with pytest.raises(Duplicate):
        Sequences(both).edit().add(Claim(7, 0, 2, 1), 0)


def test_forgotten_producer_goes_on():
    registers = LabelSet()
    for number in range(10, 10 + PRODUCERS_MAX + 3):
        registers = appended(registers, Claim(number, 0, 0, 5), offset=number)
    known = {label.name for label in registers}
    assert known == {FORGOTTEN} | {f"{REGISTER}{n}" for n in range(13, 13 + PRODUCERS_MAX)}
    assert registers.value_of(FORGOTTEN) == "12"
    registers = appended(registers, Claim(11, 0, 5, 1), offset=1000)
    assert registers.value_of(FORGOTTEN) == "13"
    # One that can not have been forgotten still has to begin.
    assert code_of(registers, Claim(1000, 0, 5, 1)) is ErrorCode.out_of_order_sequence_number


def expect_duplicate(registers, claim, offset, transaction=0):
    with pytest.raises(Duplicate) as found:
        Sequences(registers).edit().add(claim, 0, transaction=transaction)
    assert found.value.offset == offset


def test_batch_that_is_new_in_part_is_refused():
    registers = appended(LabelSet(), Claim(7, 0, 0, 2), Claim(7, 0, 2, 2))
    for first, count in ((0, 2), (2, 2)):
        expect_duplicate(registers, Claim(7, 0, first, count), 0)
    for first, count in ((0, 5), (2, 3), (3, 2), (5, 1), (1, 1), (0, 4), (3, 1), (0, 1), (0, 3)):
        code = code_of(registers, Claim(7, 0, first, count))
        assert code is ErrorCode.out_of_order_sequence_number


@given(st.data())
@settings(deadline=None)
def test_last_five_batches_of_producer_are_answered_with_their_offsets(data):
    """Whether appends have one batch or several; and no other batch is, not even one of their numbers."""
    last = (1 << 31) - 1
    at = data.draw(st.sampled_from([0, last - 3, last]))
    sequence = Sequence(0, at, -1, -1)
    registers = LabelSet.of({f"{REGISTER}7": str(sequence)})
    appended_at = []
    for counts in data.draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=7))):
        edit = Sequences(registers).edit()
        for count in counts:
            claim = Claim(7, 0, at, count)
            offset = 100 * len(appended_at)
            edit.add(claim, offset)
            appended_at.append((claim, offset))
            at = claim.next
        registers = edit.union
    known = dict(appended_at[-5:])
    for claim, offset in known.items():
        expect_duplicate(registers, claim, offset)
    firsts = {(at + step) & last for step in range(-25, 3)} - {at}
    for claim in [Claim(7, 0, first, count) for first in firsts for count in range(1, 9)]:
        if claim not in known:
            assert code_of(registers, claim) is ErrorCode.out_of_order_sequence_number


def test_offset_that_is_estimated_is_not_answered():
    registers = appended(LabelSet(), Claim(7, 0, 0, 2), offset=-40)
    expect_duplicate(registers, Claim(7, 0, 0, 2), -1)
    expect_duplicate(appended(registers, Claim(7, 0, 2, 2), offset=60), Claim(7, 0, 0, 2), -1)


def test_register_without_batches_before_the_last_is_read():
    registers = LabelSet.of({f"{REGISTER}7": "0.4.2.50"})
    expect_duplicate(registers, Claim(7, 0, 2, 2), 50)
    assert code_of(registers, Claim(7, 0, 0, 2)) is ErrorCode.out_of_order_sequence_number
    registers = appended(registers, Claim(7, 0, 4, 1), offset=70)
    assert registers.value_of(f"{REGISTER}7") == "0.5.4.70/2.50"


def test_numbers_of_ended_transaction_mean_another_batch_in_next():
    """A client that gave up a batch, and aborted, may number another one like it: to call that appended would lose it."""
    edit = Sequences().edit()
    edit.add(Claim(7, 0, 0, 100), 10, (1, 100), 1)
    (_, register), *_ = ((label.name, label.value) for label in edit.union)
    ended = replace(Sequence.parse(register), open=-1)
    registers = LabelSet.of({f"{REGISTER}7": str(ended)})
    for claim in (Claim(7, 0, 0, 14), Claim(7, 0, 0, 100)):
        with pytest.raises(KafkaError) as caught:
            Sequences(registers).edit().add(claim, 20, (101, 200), 2)
        assert caught.value.code is ErrorCode.out_of_order_sequence_number
    with pytest.raises(Duplicate):  # of its own transaction it is one that comes again
        Sequences(registers).edit().add(Claim(7, 0, 0, 100), 20, (101, 200), 1)
    Sequences(registers).edit().add(Claim(7, 0, 100, 14), 20, (101, 200), 2)


def test_batches_of_an_earlier_transaction_are_out_of_order():
    def in_transaction(before, first, number, offset):
        edit = Sequences(before).edit()
        edit.add(Claim(7, 0, first, 10), offset, (offset, offset + 10), number)
        return edit.union

    registers = in_transaction(LabelSet(), 0, 1, 100)
    registers = in_transaction(registers, 10, 1, 200)
    expect_duplicate(registers, Claim(7, 0, 0, 10), 100, transaction=1)
    former = Sequences(registers).get(7)
    registers = LabelSet.of({f"{REGISTER}7": str(replace(former, open=-1))})
    registers = in_transaction(registers, 20, 2, 300)
    expect_duplicate(registers, Claim(7, 0, 20, 10), 300, transaction=2)
    for first in (0, 10):
        with pytest.raises(KafkaError) as caught:
            Sequences(registers).edit().add(Claim(7, 0, first, 10), 0, (400, 410), 2)
        assert caught.value.code is ErrorCode.out_of_order_sequence_number
