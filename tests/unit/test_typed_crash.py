"""The judge of `make typed-crash`: whatever is wrong with a table, its quarantine or what it says of itself is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from gazette_platform.lake.typed.progress import TypedProgress
from gazette_platform.lake.typed.state import Counts, JournalState, Producer, TypedState
from gazette_platform.message import Flags
from tests.typed_crash.messages import JournalLog, Message, Writer
from tests.typed_crash.verdict import Found, Verdict, judge

JOURNAL, OTHER = "a/part=0", "a/part=1"
CLOCK = 0x1F0 << 52
OUT, CONTINUE, ACK = map(int, Flags)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def history():
    """What is committed of two journals: one of each kind of message in the first one, a draw in the second one."""
    kinds = (
        ("good", OUT),
        ("wrong", OUT),
        ("cut", OUT),
        ("plain", OUT),
        ("good", CONTINUE),
        ("ack", ACK),
    )
    first, second = JournalLog(), JournalLog()
    batch = [Message(kind, 0, CLOCK + n, flags, n) for n, (kind, flags) in enumerate(kinds, 1)]
    first.add(batch[:3], has_late=False)
    first.add(batch[3:], has_late=True)
    writer = Writer(Random(7))
    for _ in range(30):
        second.add(
            writer.batch(("out", "continue", "ack", "rollback", "again", "odd")), has_late=True
        )
    return {JOURNAL: first.expected(), OTHER: second.expected()}


def state_of(one):
    """That of a run which has read all. How many messages wait, and which were dropped, the judge cannot know."""
    typed, aside = len(one.rows), len(one.quarantined)
    counts = Counts(messages=one.messages, committed=typed + aside, typed=typed, quarantined=aside)
    # Whatever is no row was an ACK.
    counts = replace(counts, acks=counts.waiting)
    producers = {p.producer: Producer(p.last_ack, p.begin) for p in one.producers}
    return JournalState(offset=one.head, producers=producers, counts=counts)


@pytest.fixture
def wanted():
    return history()


@pytest.fixture
def found(wanted):
    """All of it, as it should be."""
    rows = [(j, begin, row) for j, one in wanted.items() for begin, row in one.rows.items()]
    aside = [(j, begin, row) for j, one in wanted.items() for begin, row in one.quarantined.items()]
    progress = TypedProgress(
        name="a.b", metadata=None, state=TypedState({j: state_of(one) for j, one in wanted.items()}), snapshot_id=1,
        published_at=AT, run="r", is_replacing=False, rows=len(rows), files=1, stored_bytes=1,
        complete_at=AT, read_bytes=1, seconds=0.0,
    )  # fmt: skip
    counted = tuple(
        {j: len(getattr(one, kind)) for j, one in wanted.items()}
        for kind in ("rows", "quarantined")
    )
    return Found(rows, aside, progress, counted)


def judged(wanted, found):
    verdict = Verdict()
    judge(verdict, "case", wanted, found)
    return verdict


def test_what_is_as_it_should_be_is_ok(wanted, found):
    verdict = judged(wanted, found)
    assert verdict.is_ok, verdict.problems
    assert verdict.committed == len(found.rows) + len(found.quarantined)
    assert {row.late for _, _, row in found.rows[:3]} == {None, 4, 5}
    assert [(one.reason, one.raw[-1:]) for _, _, one in found.quarantined[:2]] == [
        ('n: "a text" is no bigint', b"\n"),
        ("ends within a record", b"\n"),
    ]


def test_of_nothing_nothing_is_ok(found):
    empty = Found([], [], replace(found.progress, state=TypedState(), rows=0), ({}, {}))
    assert not judged({}, empty).is_ok


UUID = "00000000-0000-11f0-8400-010101010101"


@pytest.mark.parametrize("kind", ["rows", "quarantined"])
@pytest.mark.parametrize("at", [0, 1])
def test_any_value_that_is_another_one_is_found(wanted, found, kind, at):
    told = getattr(found, kind)
    journal, begin, one = told[at]
    others = {int: 77, str: UUID[:-1] + "2", bytes: b"x", type(None): 5}
    for field, value in one._asdict().items():
        other = [(journal, begin, one._replace(**{field: others[type(value)]}))]
        verdict = judged(wanted, found._replace(**{kind: told[:at] + other + told[at + 1 :]}))
        assert [f"at {journal} {begin} is" in problem for problem in verdict.problems] == [True], (
            field
        )


def raw_of_the_next_one(found):
    (journal, begin, one), (_, _, other), *_ = found.quarantined
    return found._replace(
        quarantined=[(journal, begin, one._replace(raw=other.raw)), *found.quarantined[1:]]
    )


def told_of(**changed):
    """Some of what the table says of itself is another value."""
    return lambda found: found._replace(progress=replace(found.progress, **changed))


def in_state(**changed):
    """Some of what the state says of a journal is another value."""

    def change(found):
        state = found.progress.state
        one = replace(state.journals[JOURNAL], **changed)
        return told_of(state=state.with_journals({JOURNAL: one}))(found)

    return change


def in_counts(**more):
    def change(found):
        counts = found.progress.state.journals[JOURNAL].counts
        return in_state(counts=counts + Counts(**more))(found)

    return change


def claims(journal):
    """The state knows a journal that nobody has."""
    return lambda found: told_of(
        state=found.progress.state.with_journals({journal: JournalState(offset=5)})
    )(found)


PLANTS = {
    "a row is lost": (lambda found: found._replace(rows=found.rows[1:]), "1 lost"),
    "a row is doubled": (lambda found: found._replace(rows=[*found.rows, found.rows[0]]), "1 doubled"),
    "a row is of another journal": (
        lambda found: found._replace(rows=[*found.rows, ("b", 0, found.rows[0][2])]), "not committed",
    ),
    "a record is lost": (lambda found: found._replace(quarantined=found.quarantined[1:]), "1 lost"),
    "a record is doubled": (
        lambda found: found._replace(quarantined=[*found.quarantined, found.quarantined[0]]), "1 doubled",
    ),
    "a record has the bytes of the next one": (raw_of_the_next_one, "raw="),
    "the state claims more than was read": (in_state(offset=999), "is at 999"),
    "the state forgot producers": (in_state(producers={}), "producers are {}"),
    "a message was read twice": (in_counts(messages=1, acks=1), "messages and lost bytes"),
    "bytes were passed over": (in_counts(lost_bytes=1), "messages and lost bytes"),
    "a row was counted twice": (in_counts(typed=1, committed=1, messages=1), "counts are"),
    "a message waits for ever": (in_counts(messages=1), "wait in open transactions"),
    "the state knows a journal too many": (claims("a/part=2"), "none of the table"),
    "there is no state": (told_of(state=TypedState()), "knows nothing of"),
    "the table does not say that it is complete": (told_of(complete_at=None), "tell complete_at"),
    "the table tells nothing of its run": (
        told_of(run="", read_bytes=None, seconds=None), "tell run, read_bytes, seconds",
    ),
    "the table has other rows than it says": (told_of(rows=1), "says that it has 1 rows"),
    "the check of completeness sees nothing": (
        lambda found: found._replace(counted=({}, found.counted[1])), "check of completeness",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("plant", "told"), PLANTS.values(), ids=PLANTS)
def test_what_is_planted_is_found(wanted, found, plant, told):
    verdict = judged(wanted, plant(found))
    assert not verdict.is_ok
    assert any(told in problem for problem in verdict.problems), verdict.problems


def test_a_message_that_was_appended_again_is_doubled(wanted, found):
    journal, begin, row = found.rows[0]
    again = (journal, begin + 10_000, row)
    verdict = judged(wanted, found._replace(rows=[*found.rows, again]))
    assert (verdict.lost, verdict.doubled) == (0, 1)
