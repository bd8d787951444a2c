"""Histories that a correct log would give show no anomaly; each corruption of one is found."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings, strategies as st

from gazette_platform.protocol import LabelSelector, LabelSet
from tests.checker import check_history
from tests.checker.history import (
    Append,
    FinalContent,
    History,
    Outcome,
    Payload,
    Piece,
    Poll,
    payload_bytes,
)

JOURNAL = "a/journal"
EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
NAMES = st.sampled_from(["aa", "bb"])
VALUES = st.sampled_from(["1", "2"])


class Log:
    """A correct log: applies appends one after another, at an instant within each."""

    def __init__(self, draw):
        self.draw = draw
        self.content = b""
        self.registers = LabelSet()
        self.history = History()
        self.instant = 0.0
        self.free_at: dict[str, float] = {}

    def between(self, begin, end):
        """An instant, in quarters."""
        return self.draw(st.integers(math.ceil(begin * 4), math.floor(end * 4))) / 4

    def conditions(self):
        draw = self.draw
        labels = st.one_of(st.none(), st.builds(lambda n, v: LabelSet.of((n, v)), NAMES, VALUES))
        check = draw(st.one_of(st.none(), st.builds(lambda n, v: f"{n}={v}", NAMES, VALUES)))
        return {
            "check": LabelSelector.parse(check) if check else None,
            "union": draw(labels),
            "subtract": draw(labels),
        }

    def step(self, number):
        """One append that takes effect at the next instant."""
        draw = self.draw
        self.instant += 1
        free = [name for name, at in self.free_at.items() if at <= self.instant]
        process = draw(st.sampled_from([*free, f"w{number}"]))
        invoked_at = self.between(self.free_at.get(process, 0.0), self.instant)
        completed_at = self.between(self.instant, self.instant + 3)
        is_barrier = draw(st.integers(0, 5)) == 0
        payload = Payload(f"{process}-{number}", draw(st.integers(20, 60)))
        data = b"" if is_barrier else payload_bytes(0, payload)
        conditions = self.conditions()
        if is_barrier:
            conditions |= {"union": None, "subtract": None}
        op = Append(
            id=number,
            process=process,
            journal=JOURNAL,
            content=data,
            payload=None if is_barrier else payload,
            invoked_at=invoked_at,
            completed_at=completed_at,
            **conditions,
        )
        op, ended_at = self.apply(op)
        # A process whose append was applied late goes on before that happened.
        self.free_at[process] = ended_at
        self.history.appends.append(op)

    def apply(self, op):
        if op.check is not None and self.registers and not op.check.matches(self.registers):
            op = replace(op, outcome=Outcome.FAIL, error="RegisterMismatch: differs")
            return op, op.completed_at
        fate = self.draw(st.sampled_from(["ok", "ok", "ok", "lost answer", "late", "lost"]))
        if fate == "lost":
            # Without a change of registers: it would be unknown whether others saw it.
            return replace(op, union=None, subtract=None), op.completed_at
        begin = len(self.content)
        self.content += op.content
        if op.content:
            if op.subtract:
                self.registers = self.registers.subtract(op.subtract)
            if op.union:
                self.registers = self.registers.union(op.union)
        if fate == "ok":
            op = replace(
                op,
                outcome=Outcome.OK,
                begin=begin,
                end=len(self.content),
                registers=self.registers,
            )
            return op, op.completed_at
        if fate == "late":
            # The client gave up before it was applied.
            at = self.between(op.invoked_at, self.instant)
            return replace(op, completed_at=at), at
        return op, op.completed_at

    def read(self, number):
        """A stream that begins somewhere and reads on as content comes."""
        draw = self.draw
        at = draw(st.integers(0, len(self.content)))
        is_at_head = at == len(self.content) and draw(st.booleans())
        ends = draw(st.lists(st.integers(at, len(self.content)), max_size=4).map(sorted))
        when = self.instant + 10
        for end in ends:
            middle = draw(st.integers(at, end))
            pieces = [(at, middle), (middle, end)]
            poll = Poll(
                id=10_000 + len(self.history.polls),
                process=f"r{number}",
                journal=JOURNAL,
                stream=number,
                offset=-1 if is_at_head else at,
                invoked_at=when,
                completed_at=when + 0.5,
                outcome=Outcome.OK,
                write_head=len(self.content),
                pieces=tuple(Piece.of(b, self.content[b:e]) for b, e in pieces if b < e),
            )
            self.history.polls.append(poll)
            at, when = end, when + 1

    def done(self):
        self.history.finals[JOURNAL] = FinalContent(JOURNAL, 0, self.content)
        return self.history


@st.composite
def histories(draw):
    log = Log(draw)
    for number in range(draw(st.integers(1, 12))):
        log.step(number)
    for number in range(draw(st.integers(0, 2))):
        log.read(number)
    return log.done()


def names(history):
    report = check_history(history)
    return {anomaly.name for anomaly in report.anomalies}


@EXAMPLES
@given(histories())
def test_correct_log_shows_no_anomaly(history):
    report = check_history(history)
    assert report.is_valid, str(report)


def acknowledged(history):
    return [op for op in history.appends if op.outcome is Outcome.OK and op.content]


def with_final(history, content):
    history.finals[JOURNAL] = FinalContent(JOURNAL, 0, content)


@EXAMPLES
@given(histories(), st.data())
def test_acknowledged_append_that_is_cut_out_is_found(history, data):
    ops = acknowledged(history)
    assume(ops)
    op = data.draw(st.sampled_from(ops))
    content = history.finals[JOURNAL].content
    history.polls.clear()
    with_final(history, content[: op.begin] + content[op.end :])
    assert "lost-write" in names(history)


@EXAMPLES
@given(histories(), st.data())
def test_changed_byte_is_found(history, data):
    content = history.finals[JOURNAL].content
    assume(content)
    at = data.draw(st.integers(0, len(content) - 1))
    with_final(history, content[:at] + b"#" + content[at + 1 :])
    assert names(history) & {"G0", "lost-write", "unexpected"}
