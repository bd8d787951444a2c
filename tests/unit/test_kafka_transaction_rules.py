"""Transactions of Kafka's producers: what may follow what, by tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.coordinator.transactions import (
    EPOCH_MAX,
    GROUPS_MAX,
    JOURNALS_MAX,
    TxnState,
    add_to,
    begin_producer,
    complete,
    end_transaction,
    expire,
    init_producer,
)
from gazette_platform.kafka.failures import KafkaError

ME = (7, 0)
NEW = begin_producer(7, 1000, now_ms=50)
ONGOING = add_to(NEW, ME, journals=("b", "a"), groups=("g",), now_ms=100)
COMMITTING = end_transaction(ONGOING, ME, commit=True)
ABORTING = end_transaction(ONGOING, ME, commit=False)
COMMITTED = complete(COMMITTING)
ABORTED = complete(ABORTING)
TIMED_OUT = expire(ONGOING, now_ms=1100)


def code_of(call, *args, **more):
    with pytest.raises(KafkaError) as caught:
        call(*args, **more)
    return caught.value.code


def init(former, claimed=(-1, -1)):
    return init_producer(former, claimed, timeout_ms=2000, now_ms=500)


def test_transaction_goes_from_begin_to_end():
    assert (ONGOING.state, ONGOING.number, ONGOING.began_ms) == (TxnState.ONGOING, 1, 100)
    assert (ONGOING.journals, ONGOING.groups) == (("a", "b"), ("g",))
    assert replace(ONGOING, state=TxnState.PREPARE_COMMIT) == COMMITTING
    assert replace(NEW, state=TxnState.COMPLETE_COMMIT, number=1, began_ms=100) == COMMITTED
    again = add_to(COMMITTED, ME, journals=("c",), now_ms=200)
    assert (again.number, again.journals, again.groups) == (2, ("c",), ())


def test_more_of_the_same_changes_nothing():
    assert add_to(ONGOING, ME, journals=("a",), groups=("g",), now_ms=300) == ONGOING


@pytest.mark.parametrize(
    ("former", "commit", "expected"),
    [
        (COMMITTING, True, COMMITTING),
        (COMMITTED, True, COMMITTED),
        (ABORTING, False, ABORTING),
        (ABORTED, False, ABORTED),
        (COMMITTED, False, ErrorCode.invalid_txn_state),
        (COMMITTING, False, ErrorCode.invalid_txn_state),
        (ABORTED, True, ErrorCode.invalid_txn_state),
        (ABORTING, True, ErrorCode.invalid_txn_state),
        (NEW, True, ErrorCode.invalid_txn_state),
        (NEW, False, NEW),
    ],
)
def test_end_is_repeated_or_refused(former, commit, expected):
    if isinstance(expected, ErrorCode):
        assert code_of(end_transaction, former, ME, commit=commit) is expected
    else:
        assert end_transaction(former, ME, commit=commit) == expected


@pytest.mark.parametrize(
    ("claimed", "error"),
    [
        ((8, 0), ErrorCode.invalid_producer_id_mapping),
        ((7, 1), ErrorCode.producer_fenced),
        ((7, -1), ErrorCode.producer_fenced),
    ],
)
@pytest.mark.parametrize("former", [NEW, ONGOING, COMMITTED])
def test_other_producer_is_refused(former, claimed, error):
    assert code_of(add_to, former, claimed, now_ms=0) is error
    assert code_of(end_transaction, former, claimed, commit=True) is error


@pytest.mark.parametrize("former", [COMMITTING, ABORTING, TIMED_OUT])
def test_decided_transaction_takes_nothing_more(former):
    claimed = (7, former.epoch)
    assert code_of(add_to, former, claimed, journals=("c",), now_ms=0) is (
        ErrorCode.concurrent_transactions
    )
    assert code_of(init, former) is ErrorCode.concurrent_transactions


def test_next_self_fences_the_former():
    assert init(NEW).epoch == 1
    fenced = init(ONGOING)
    assert (fenced.state, fenced.epoch, fenced.written_epoch) == (TxnState.PREPARE_ABORT, 1, 0)
    for late in (
        lambda: add_to(fenced, ME, now_ms=0),
        lambda: end_transaction(fenced, ME, commit=True),
    ):
        assert code_of(late) is ErrorCode.producer_fenced
    following = init(complete(fenced))
    assert (following.state, following.epoch, following.written_epoch) == (TxnState.EMPTY, 2, 2)
    assert (following.timeout_ms, following.began_ms) == (2000, 500)


def test_open_transaction_times_out_and_fences():
    assert expire(ONGOING, now_ms=1099) is None
    assert (TIMED_OUT.state, TIMED_OUT.epoch, TIMED_OUT.journals) == (
        TxnState.PREPARE_ABORT,
        1,
        ("a", "b"),
    )
    assert code_of(end_transaction, TIMED_OUT, ME, commit=True) is ErrorCode.producer_fenced


@pytest.mark.parametrize("former", [NEW, COMMITTING, COMMITTED, ABORTED])
def test_only_open_transactions_time_out(former):
    assert expire(former, now_ms=10**9) is None


def test_producer_goes_on_after_its_error():
    following = init(ABORTED, ME)
    assert (following.epoch, following.former_epoch) == (1, 0)
    # The answer was lost: it gets the same again.
    assert init(following, ME).epoch == 1
    # The next one does not fall for it.
    assert code_of(init, init(following), ME) is ErrorCode.producer_fenced
    assert code_of(init, ABORTED, (8, 0)) is ErrorCode.producer_fenced
    begun = add_to(following, (7, 1), journals=("a",), now_ms=0)
    assert code_of(init, begun, ME) is ErrorCode.producer_fenced


def test_last_epoch_asks_for_another_id():
    last = replace(COMMITTED, epoch=EPOCH_MAX)
    assert init(last) is None
    following = begin_producer(9, 1000, now_ms=1, former=last)
    assert (following.producer_id, following.epoch, following.number) == (9, 0, 1)


@pytest.mark.parametrize(
    "parts",
    [
        {"journals": [str(n) for n in range(JOURNALS_MAX + 1)]},
        {"groups": [str(n) for n in range(GROUPS_MAX + 1)]},
    ],
)
def test_transaction_is_bounded(parts):
    assert code_of(add_to, NEW, ME, now_ms=0, **parts) is ErrorCode.invalid_request
