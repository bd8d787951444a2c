"""Transactions of Kafka's producers under any order of calls, crashes and time-outs.

Several programs have the same transactional id, and each believes that it is the producer. Coordinators crash between their
steps: what is not stored is lost. Whatever happens, a transaction ends in one way, and only as its own producer asked, or by abort.
"""

from __future__ import annotations

import pytest

pytest.importorskip("kio")

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kio.schema.errors import ErrorCode

from gazette_platform.kafka.coordinator.transactions import (
    TxnState,
    add_to,
    begin_producer,
    complete,
    end_transaction,
    expire,
    init_producer,
)
from gazette_platform.kafka.failures import KafkaError

TIMEOUT_MS = 1000
PROGRAMS = st.integers(0, 2)


class Transactions(RuleBasedStateMachine):
    """One transactional id."""

    def __init__(self):
        super().__init__()
        self.stored = begin_producer(7, TIMEOUT_MS, now_ms=0)
        self.now_ms = 0
        self.claims = {0: (7, 0)}  # what each program believes
        self.newest = 0  # the program that was the last to become the producer
        self.ends: dict[int, set[TxnState]] = {}  # by number of the transaction
        self.asked: dict[int, bool] = {}

    def call(self, work, *, is_lost):
        """Store what a call decides. Returns: whether it went through."""
        try:
            following = work()
        except KafkaError as err:
            return err.code
        if is_lost:
            return None  # the coordinator crashed before it was stored
        self.stored = following
        if following.state not in (TxnState.ONGOING, TxnState.EMPTY):
            self.ends.setdefault(following.number, set()).add(following.state)
        return ErrorCode.none

    @rule(program=PROGRAMS, goes_on=st.booleans(), is_lost=st.booleans())
    def init(self, program, goes_on, is_lost):
        claimed = self.claims.get(program, (-1, -1)) if goes_on else (-1, -1)
        code = self.call(
            lambda: init_producer(self.stored, claimed, timeout_ms=TIMEOUT_MS, now_ms=self.now_ms),
            is_lost=is_lost,
        )
        if code is ErrorCode.none and not self.stored.is_decided:
            self.claims[program] = (self.stored.producer_id, self.stored.epoch)
            self.newest = program

    @rule(program=PROGRAMS, journal=st.sampled_from("abc"), is_lost=st.booleans())
    def add(self, program, journal, is_lost):
        claimed = self.claims.get(program, (7, 99))
        code = self.call(
            lambda: add_to(self.stored, claimed, journals=(journal,), now_ms=self.now_ms),
            is_lost=is_lost,
        )
        if code is ErrorCode.none:
            assert claimed == (self.stored.producer_id, self.stored.epoch)
            assert self.claims[self.newest] == claimed, "a former producer added to a transaction"

    @rule(program=PROGRAMS, commit=st.booleans(), is_lost=st.booleans())
    def end(self, program, commit, is_lost):
        claimed = self.claims.get(program, (7, 99))
        was_open = self.stored.state is TxnState.ONGOING
        code = self.call(
            lambda: end_transaction(self.stored, claimed, commit=commit), is_lost=is_lost
        )
        if code is ErrorCode.none:
            assert self.claims[self.newest] == claimed, "a former producer ended a transaction"
            if was_open:
                self.asked[self.stored.number] = commit

    @rule(is_lost=st.booleans())
    def finish(self, is_lost):
        if self.stored.is_decided:
            self.call(lambda: complete(self.stored), is_lost=is_lost)

    @rule(ms=st.sampled_from([1, 500, 2000]))
    def wait(self, ms):
        self.now_ms += ms

    @rule(is_lost=st.booleans())
    def watch(self, is_lost):
        expired = expire(self.stored, now_ms=self.now_ms)
        if expired is not None:
            assert self.now_ms - self.stored.began_ms >= TIMEOUT_MS
            self.call(lambda: expired, is_lost=is_lost)

    @invariant()
    def a_transaction_ends_once(self):
        commit = {TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT}
        for number, states in self.ends.items():
            assert states <= commit or not states & commit
            if states & commit:
                assert self.asked.get(number) is True, "it committed, and no producer asked for it"

    @invariant()
    def records_have_an_owner(self):
        if self.stored.state is TxnState.ONGOING:
            assert self.stored.written_epoch == self.stored.epoch
            assert self.stored.journals
        assert self.stored.written_epoch <= self.stored.epoch


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(deadline=None, stateful_step_count=40)
