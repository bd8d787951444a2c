"""Transactions of a shard: each row of the table of decisions, barriers, times and progress."""

import pytest

from gazette_platform.consumer.protocol import ShardSource, ShardSpec
from gazette_platform.consumer.transaction import (
    Action,
    CompletedTransaction,
    Progress,
    TransactionLimits,
    Transactions,
)
from gazette_platform.errors import ApplicationFailed
from gazette_platform.message.sequencer import Outcome

LIMITS = TransactionLimits(min_s=1.0, max_s=5.0)


class Driver:
    """A machine and what its caller would know, with a clock that is set by hand."""

    def __init__(self, acks=(), limits=LIMITS, read_through=None):
        self.now = 100.0
        self.limits = limits
        self.machine = Transactions(self.now, read_through or {}, acks)
        self.knows = {
            "has_message": False,
            "has_entry": False,
            "has_pending": False,
            "is_closed": False,
        }

    def decide(self, **changes):
        return self.machine.decide(self.now, **(self.knows | changes))

    def consume(self, count=1):
        """Begin, if need be, and consume."""
        for _ in range(count):
            if self.decide(has_message=True) is Action.BEGIN:
                self.machine.begin(self.now, self.limits)
            while self.decide(has_message=True) is Action.TICK:
                self.machine.tick(self.now)
            assert self.decide(has_message=True) is Action.CONSUME
            self.machine.consumed()

    def pass_s(self, seconds):
        self.now += seconds
        while self.decide() is Action.TICK:
            self.machine.tick(self.now)

    def commit(self, read_through=None, acks=()):
        assert self.decide() is Action.COMMIT
        self.machine.preparing(self.now)
        self.machine.prepared(self.now, read_through or {"a/one": 10}, acks)


def test_ct2_waits_for_a_first_message_and_begins_with_it():
    driver = Driver()
    assert driver.decide() is Action.WAIT
    assert driver.machine.wakes_at is None
    assert driver.decide(has_entry=True) is Action.TAKE
    # What is pending opens nothing.
    assert driver.machine.took(Outcome.CONTINUE_BEGIN_SPAN, "a/one", 9) is None
    assert driver.decide(has_pending=True) is Action.WAIT
    assert driver.decide(has_message=True, has_entry=True) is Action.BEGIN
    driver.machine.begin(driver.now, LIMITS)
    assert driver.decide(has_message=True, has_entry=True) is Action.CONSUME
    driver.machine.consumed()
    assert driver.machine.wakes_at == 101.0


def test_commits_after_the_shortest_time_once_nothing_is_ready():
    driver = Driver()
    driver.consume()
    assert driver.decide() is Action.WAIT
    driver.now += 1
    # A due timer comes before a message.
    assert driver.decide(has_message=True) is Action.TICK
    driver.machine.tick(driver.now)
    assert driver.machine.wakes_at == 105.0
    assert driver.decide(has_entry=True) is Action.TAKE
    assert driver.decide(has_message=True) is Action.CONSUME
    assert driver.decide() is Action.COMMIT


def test_reading_stops_after_the_longest_time():
    driver = Driver()
    driver.consume()
    driver.pass_s(5)
    assert driver.machine.wakes_at is None
    assert not driver.machine.may_take(is_closed=False)
    assert driver.decide(has_message=True, has_entry=True, has_pending=True) is Action.COMMIT
    # Nothing exists that it would have had to wait for.
    driver.now += 2
    driver.commit()
    phases_s = driver.machine.committed(driver.now).times.phases_s()
    assert (phases_s["sync", "20-consuming"], phases_s["sync", "30-stalled"]) == (7.0, 0.0)


def test_shortest_time_beyond_the_longest_holds_all_the_same():
    driver = Driver(limits=TransactionLimits(min_s=3.0, max_s=1.0))
    driver.consume()
    driver.now += 1
    assert driver.decide() is Action.WAIT
    driver.pass_s(2)
    assert driver.decide(has_message=True) is Action.COMMIT


def test_first_message_is_consumed_however_late():
    driver = Driver(limits=TransactionLimits(min_s=0.0, max_s=5.0))
    assert driver.decide(has_message=True) is Action.BEGIN
    driver.machine.begin(driver.now, driver.limits)
    driver.now += 60
    assert driver.decide(has_message=True) is Action.CONSUME
    driver.machine.consumed()
    assert driver.decide(has_message=True) is Action.TICK
    driver.pass_s(0)
    assert driver.decide(has_message=True) is Action.COMMIT


def test_ct2_acks_of_pending_sequences_are_awaited_until_the_longest_time():
    driver = Driver()
    driver.consume()
    driver.pass_s(1)
    assert driver.decide(has_pending=True) is Action.WAIT
    assert driver.machine.wakes_at == 105.0
    assert driver.decide(has_pending=True, is_closed=True) is Action.COMMIT  # no ACK can come
    driver.pass_s(4)
    assert driver.decide(has_pending=True) is Action.COMMIT


def test_acks_are_not_awaited_if_the_spec_says_so():
    spec = ShardSpec("shard-000", max_txn_duration_ns=10**9, disable_wait_for_ack=True)
    limits = TransactionLimits.of(spec)
    assert limits == TransactionLimits(min_s=0.0, max_s=1.0, waits_for_acks=False)
    driver = Driver(limits=limits)
    driver.consume()
    driver.pass_s(0)
    assert driver.decide(has_pending=True) is Action.COMMIT


def test_ct1_next_transaction_consumes_while_the_prior_one_commits():
    driver = Driver()
    driver.consume()
    driver.pass_s(1)
    driver.commit(acks=["out/one", "out/two"])
    assert driver.decide() is Action.WAIT
    driver.consume(3)
    driver.pass_s(1)
    # It could commit now, and waits for the barrier: first the commit, then each ACK.
    assert driver.decide() is Action.WAIT
    assert driver.decide(has_entry=True) is Action.TAKE
    assert driver.machine.committed(driver.now) is None
    assert driver.decide() is Action.WAIT
    assert driver.machine.acknowledged(driver.now, "out/two", 20) is None
    assert driver.decide() is Action.WAIT
    done = driver.machine.acknowledged(driver.now, "out/one", 30)
    assert done.publish_at == {"out/one": 30, "out/two": 20}
    assert (done.read_through, done.consumed) == ({"a/one": 10}, 1)
    assert driver.decide() is Action.COMMIT


def test_transaction_without_acks_is_done_with_its_commit():
    driver = Driver()
    driver.consume()
    driver.pass_s(1)
    driver.commit()
    assert driver.machine.is_barrier_up
    assert driver.machine.committed(driver.now).consumed == 1
    assert not driver.machine.is_barrier_up


def test_ct1_the_prior_commit_may_end_before_the_shortest_time():
    driver = Driver()
    driver.consume()
    driver.pass_s(1)
    driver.commit()
    driver.consume()
    driver.now += 0.25
    assert driver.machine.committed(driver.now) is not None
    # That hurries no one.
    assert driver.decide() is Action.WAIT
    assert driver.machine.wakes_at == 102.0
    assert driver.decide(has_message=True) is Action.CONSUME
    driver.now += 0.75
    assert driver.decide(has_message=True) is Action.TICK
    driver.pass_s(0)
    assert driver.decide() is Action.COMMIT
    driver.machine.preparing(driver.now)
    driver.machine.prepared(driver.now, {"a/one": 20}, ())
    second = driver.machine.committed(driver.now)
    assert second.times.phases_s()["sync", "20-consuming"] == 1.0
    assert second.times.phases_s()["sync", "30-stalled"] == 0.0


def test_ct1_transaction_stalls_behind_a_slow_commit():
    driver = Driver()
    driver.consume()
    driver.pass_s(1)
    driver.commit(acks=["out/one"])
    driver.now += 0.5
    driver.consume()
    driver.pass_s(5)
    assert driver.decide(has_message=True, has_entry=True) is Action.WAIT
    driver.now += 2
    assert driver.machine.committed(driver.now) is None
    driver.now += 1
    first = driver.machine.acknowledged(driver.now, "out/one", 1)
    assert first.times.phases_s() == {
        ("sync", "10-not-running"): 0.0,
        ("sync", "20-consuming"): 1.0,
        ("sync", "30-stalled"): 0.0,
        ("sync", "40-preparing"): 0.0,
        ("async", "50-committing"): 7.5,
        ("async", "60-acknowledging"): 1.0,
    }
    driver.machine.preparing(driver.now)
    driver.now += 0.25
    driver.machine.prepared(driver.now, {}, [])
    second = driver.machine.committed(driver.now + 1)
    assert second.times.phases_s() == {
        ("sync", "10-not-running"): 0.5,
        ("sync", "20-consuming"): 5.0,
        ("sync", "30-stalled"): 3.0,
        ("sync", "40-preparing"): 0.25,
        ("async", "50-committing"): 1.0,
        ("async", "60-acknowledging"): 0.0,
    }


def test_deferred_message_is_the_first_of_the_next_transaction():
    driver = Driver()
    driver.consume()
    assert driver.decide(has_message=True) is Action.CONSUME
    driver.machine.consumed(0, deferred=True)
    assert driver.decide(has_message=True, has_entry=True) is Action.WAIT  # the shortest time
    driver.pass_s(1)
    assert driver.decide(has_message=True, has_entry=True, has_pending=True) is Action.COMMIT
    driver.commit()
    assert driver.decide(has_message=True) is Action.BEGIN


def test_first_message_cannot_be_deferred():
    driver = Driver()
    driver.machine.begin(driver.now, LIMITS)
    with pytest.raises(ApplicationFailed, match="deferred the first message"):
        driver.machine.consumed(0, deferred=True)


def test_closed_queue_ends_without_a_commit_if_nothing_was_consumed():
    driver = Driver()
    assert driver.decide(is_closed=True) is Action.FINISH


def test_ct3_closed_queue_commits_what_was_consumed_and_then_ends():
    driver = Driver()
    driver.consume()
    assert driver.decide(is_closed=True, has_message=True) is Action.CONSUME
    assert driver.decide(is_closed=True) is Action.WAIT  # the shortest time
    driver.pass_s(1)
    driver.commit()
    assert driver.decide(is_closed=True) is Action.WAIT  # the barrier
    driver.machine.committed(driver.now)
    assert driver.decide(is_closed=True) is Action.FINISH


def test_ct7_acks_of_a_restored_checkpoint_are_the_first_barrier():
    driver = Driver(acks=["out/one", "out/gone"], read_through={"a/one": 7})
    driver.consume()
    driver.pass_s(1)
    assert driver.decide() is Action.WAIT
    assert driver.machine.acknowledged(driver.now, "out/gone", None) is None
    done = driver.machine.acknowledged(driver.now, "out/one", 5)
    assert done == CompletedTransaction({"a/one": 7}, {"out/one": 5}, 0, None)
    assert driver.decide() is Action.COMMIT


@pytest.mark.parametrize("outcome", Outcome)
def test_ct4_what_leaves_nothing_to_consume_moves_progress(outcome):
    is_no_op = outcome in {
        Outcome.OUTSIDE_ALREADY_ACKED,
        Outcome.CONTINUE_ALREADY_ACKED,
        Outcome.CONTINUE_RING_CLOCK_LARGER,
        Outcome.ACK_ROLLBACK,
    }
    idle = Driver()
    told = idle.machine.took(outcome, "a/one", 9)
    assert told == (CompletedTransaction({"a/one": 9}, {}, 0, None) if is_no_op else None)

    behind = Driver()
    behind.consume()
    behind.pass_s(1)
    behind.commit(read_through={"a/one": 5, "a/two": 90})
    assert behind.machine.took(outcome, "a/one", 9) is None
    assert behind.machine.took(outcome, "a/two", 9) is None
    done = behind.machine.committed(behind.now)
    assert done.read_through == {"a/one": 9 if is_no_op else 5, "a/two": 90}

    # The checkpoint says so of an open transaction.
    open_one = Driver()
    open_one.consume()
    assert open_one.machine.took(outcome, "a/one", 9) is None


SPEC = ShardSpec("shard-000", (ShardSource("a/one"), ShardSource("a/two", 100)))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, True),
        ({"a/one": 7}, True),
        ({"a/one": 8}, False),
        ({"a/one": 7, "a/two": 101}, False),
        ({"a/two": 100}, True),  # nothing before is ever read
        ({"a/none": 1000}, True),
    ],
)
def test_progress_reaches_what_sources_have_read(wanted, expected):
    assert Progress({"a/one": 7}).has_reached(wanted, SPEC) is expected


def test_progress_never_goes_back():
    progress = Progress({"a/one": 7})
    progress.advance(CompletedTransaction({"a/one": 9, "a/two": 1}, {"out": 5}, 1, None))
    progress.advance(CompletedTransaction({"a/one": 8}, {"out": 6}, 1, None))
    assert progress.read_through == {"a/one": 9, "a/two": 1}
    assert progress.publish_at == {"out": 6}
