"""What a journal's registers say of Kafka's producers: which batches follow, and which are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError
from gazette_platform.kafka.sequences import (
    FORGOTTEN,
    PRODUCERS_MAX,
    REGISTER,
    Claim,
    Duplicate,
    Sequence,
    Sequences,
)
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


def test_batch_that_is_new_in_part_is_refused():
    registers = appended(LabelSet(), Claim(7, 0, 0, 2), Claim(7, 0, 2, 2))
    for first, count in ((0, 2), (1, 1), (0, 4), (3, 1)):
        with pytest.raises(Duplicate):
            Sequences(registers).edit().add(Claim(7, 0, first, count), 0)
    for first, count in ((0, 5), (2, 3), (3, 2), (5, 1)):
        code = code_of(registers, Claim(7, 0, first, count))
        assert code is ErrorCode.out_of_order_sequence_number


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
            Sequences(registers).edit().add(claim, 20, (101, 200), 1)
    Sequences(registers).edit().add(Claim(7, 0, 100, 14), 20, (101, 200), 2)
