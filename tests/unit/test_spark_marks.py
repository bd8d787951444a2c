"""What journals note of writers."""

import pytest

from gazette_platform.errors import DataError, WriterFenced
from gazette_platform.protocol import LabelSet
from gazette_platform.spark.progress import Mark, Writer, advance, mark_of, reached

WRITER = Writer("c32213a4-3082-4dd2-8e6f-72df60240436")
MARK = Mark(epoch=17, place=(2, 5), clock=7, at=1_795_000_000)


def test_mark_is_a_value_that_registers_can_hold():
    registers = LabelSet.of((WRITER.label, MARK.text))
    registers.validate()
    assert mark_of(registers, WRITER) == MARK
    assert mark_of(registers, Writer("another")) is None
    LabelSet.of((Writer("a-b+c/d.e_F9").label, MARK.text)).validate()
    LabelSet.of((Writer("x" * 48).label, MARK.text)).validate()
    LabelSet.of((Writer("f" * 32, is_lasting=False).label, MARK.text)).validate()


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3.4",
        "1.2.3.4.5.6",
        "1.2.3.4.x",
        "-1.2.3.4.5",
        "1.2.3.4.5\n",
        "¹.2.3.4.5",
        f"1.2.3.{2**64}.5",
        "1" * 5000 + ".2.3.4.5",
        "1.2.3.4." + "5" * 5000,
    ],
)
def test_invalid_mark_is_an_error(text):
    with pytest.raises(DataError, match="which is none of ours"):
        mark_of(LabelSet.of((WRITER.label, text)), WRITER)


def test_epoch_is_compared_with_the_mark():
    assert reached(None, 3, "a/b", WRITER) is None
    assert reached(MARK, 18, "a/b", WRITER) is None
    assert reached(MARK, 17, "a/b", WRITER) == MARK
    with pytest.raises(WriterFenced, match=r"a/b: writer c32213a4\S+ is at epoch 17, and epoch 16"):
        reached(MARK, 16, "a/b", WRITER)


def test_mark_moves_from_what_was_seen_only():
    other = ("author", "me")
    seen = LabelSet.of((WRITER.label, MARK.text), other)
    moved = LabelSet.of((WRITER.label, "18.1.0.0.1795000001"), other)
    none = LabelSet.of(other)
    first = advance(none, WRITER, MARK)
    assert first.check.matches(none)
    assert not first.check.matches(seen)
    then = advance(seen, WRITER, Mark(epoch=18, place=(1, 0), at=1_795_000_001))
    assert then.check.matches(seen)
    assert not then.check.matches(moved)
    assert not then.check.matches(none)
    assert seen.subtract(then.subtract).union(then.union) == moved
    # Its own is never one that was silent for long, however long it was.
    back = advance(seen, WRITER, Mark(epoch=18, place=(1, 0), at=MARK.at + 10**8))
    assert back.subtract == LabelSet()


@pytest.mark.parametrize(("is_lasting", "kept_s"), [(True, 90 * 24 * 3600), (False, 3600)])
def test_marks_are_kept_for_as_long_as_their_writers_may_be_silent(is_lasting, kept_s):
    silent = LabelSet.of((Writer("another", is_lasting=is_lasting).label, MARK.text))

    def dropped(after_s):
        return advance(silent, WRITER, Mark(epoch=1, place=(1, 0), at=MARK.at + after_s)).subtract

    assert (dropped(kept_s), dropped(kept_s + 1)) == (LabelSet(), silent)


def test_producer_belongs_to_one_writer():
    assert WRITER.producer == Writer(WRITER.name).producer
    assert WRITER.producer != Writer("another").producer
    assert len(WRITER.producer) == 6
    assert WRITER.producer[0] & 1
