"""Transactions of Kafka's producers: what may follow what. Pure: no clock, no I/O.

    EMPTY --------- add ---------> ONGOING -- end(commit) --> PREPARE_COMMIT --> COMPLETE_COMMIT
      ^  COMPLETE_* --- add ------>   |                                             |
      |                               +-- end(abort), time-out,                     |
      |                                   or its next self --> PREPARE_ABORT --> COMPLETE_ABORT
      +-- init: the epoch grows, and fences whoever had the former one -------------+

A record is the state of one transactional id. The coordinator stores a record before it acts on it. In a PREPARE state the
decision is made: ACKs are written to journals, offsets to groups, and then the record is complete; whoever finds a record in
such a state, after a crash, goes on with that. An abort that the producer did not ask for raises the epoch at once, so that a
zombie's next call fails.

Source: TransactionCoordinator.scala of Apache Kafka 3.9 gives the errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.failures import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable


EPOCH_MAX: Final = 32_766
"""After this one a producer gets another id."""

JOURNALS_MAX: Final = 10_000
GROUPS_MAX: Final = 100


class TxnState(StrEnum):
    """The names are those that DescribeTransactions shows."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_DECIDED: Final = (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    """What is known of a transactional id."""

    producer_id: int
    epoch: int
    """Of the producer that may call."""
    written_epoch: int
    """Of the producer that wrote the records of the last transaction."""
    former_epoch: int = -1
    """Whose holder asked for the present one; it may ask again, if the answer was lost."""
    number: int = 0
    """Counts the transactions of this id."""
    state: TxnState = TxnState.EMPTY
    timeout_ms: int = 60_000
    began_ms: int = 0
    """When the last transaction, or the producer, began; unix milliseconds."""
    journals: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    owner: str = ""
    """`Access.principal` of who made the id."""

    @property
    def is_decided(self) -> bool:
        """Whether its ACKs and offsets are still to be written."""
        return self.state in _DECIDED

    @property
    def commits(self) -> bool:
        """Whether it is decided to commit."""
        return self.state is TxnState.PREPARE_COMMIT

    @property
    def ends_at_ms(self) -> int | None:
        """When an ongoing transaction is aborted."""
        return self.began_ms + self.timeout_ms if self.state is TxnState.ONGOING else None


def begin_producer(
    producer_id: int,
    timeout_ms: int,
    *,
    now_ms: int,
    former: Transaction | None = None,
    owner: str = "",
) -> Transaction:
    """The record of a transactional id that was never seen, or whose epochs are used up."""
    return Transaction(
        producer_id=producer_id,
        epoch=0,
        written_epoch=0,
        number=0 if former is None else former.number,
        timeout_ms=timeout_ms,
        began_ms=now_ms,
        owner=owner if former is None else former.owner,
    )


def init_producer(
    former: Transaction, claimed: tuple[int, int], *, timeout_ms: int, now_ms: int
) -> Transaction | None:
    """The next record for one who says that it is the producer of a transactional id.

    Args:
        claimed: the producer id and epoch that it has, to go on after an error; -1 if it starts.

    Returns: the record, which may be that of an abort: finish that, and ask again. None: it needs a new producer id.
    Raises: KafkaError: another one is the producer by now, or a decision must be carried out first.
    """
    producer_id, epoch = claimed
    if producer_id >= 0 and producer_id != former.producer_id:
        raise KafkaError(ErrorCode.producer_fenced)
    if producer_id >= 0 and epoch != former.epoch:
        if epoch == former.former_epoch and former.state is TxnState.EMPTY:
            return replace(former, timeout_ms=timeout_ms)
        raise KafkaError(ErrorCode.producer_fenced)
    if former.is_decided:
        raise KafkaError(ErrorCode.concurrent_transactions)
    if former.state is TxnState.ONGOING:
        return _fenced(former)
    if former.epoch >= EPOCH_MAX:
        return None
    next_epoch = former.epoch + 1
    return replace(
        former,
        epoch=next_epoch,
        written_epoch=next_epoch,
        former_epoch=epoch if producer_id >= 0 else -1,
        state=TxnState.EMPTY,
        timeout_ms=timeout_ms,
        began_ms=now_ms,
        journals=(),
        groups=(),
    )


def add_to(
    former: Transaction,
    claimed: tuple[int, int],
    *,
    journals: Iterable[str] = (),
    groups: Iterable[str] = (),
    now_ms: int,
) -> Transaction:
    """The record with more journals and groups; it begins a transaction if none is ongoing.

    Raises: KafkaError: by another producer, or while the last transaction ends.
    """
    check_producer(former, claimed)
    if former.is_decided:
        raise KafkaError(ErrorCode.concurrent_transactions)
    if former.state is not TxnState.ONGOING:
        former = replace(
            former,
            state=TxnState.ONGOING,
            number=former.number + 1,
            began_ms=now_ms,
            written_epoch=former.epoch,
            journals=(),
            groups=(),
        )
    all_journals = tuple(sorted({*former.journals, *journals}))
    all_groups = tuple(sorted({*former.groups, *groups}))
    if len(all_journals) > JOURNALS_MAX or len(all_groups) > GROUPS_MAX:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"a transaction has up to {JOURNALS_MAX} partitions and {GROUPS_MAX} groups",
        )
    return replace(former, journals=all_journals, groups=all_groups)


def end_transaction(former: Transaction, claimed: tuple[int, int], *, commit: bool) -> Transaction:
    """The record with the decision; unchanged if the same was decided before.

    Raises: KafkaError: by another producer, or there is no transaction that could end so.
    """
    check_producer(former, claimed)
    if former.state is TxnState.ONGOING:
        decided = TxnState.PREPARE_COMMIT if commit else TxnState.PREPARE_ABORT
        return replace(former, state=decided)
    same = {
        True: (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT),
        False: (TxnState.EMPTY, TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT),
    }
    if former.state in same[commit]:
        return former
    raise KafkaError(
        ErrorCode.invalid_txn_state,
        f"a transaction in the state {former.state} cannot {'commit' if commit else 'abort'}",
    )


def complete(former: Transaction) -> Transaction:
    """The record after all that was decided is written."""
    state = TxnState.COMPLETE_COMMIT if former.commits else TxnState.COMPLETE_ABORT
    return replace(former, state=state, journals=(), groups=())


def expire(former: Transaction, *, now_ms: int) -> Transaction | None:
    """The record of the abort of a transaction that took too long; None: it did not."""
    ends_at = former.ends_at_ms
    return _fenced(former) if ends_at is not None and ends_at <= now_ms else None


def check_producer(former: Transaction, claimed: tuple[int, int]) -> None:
    """Raises: KafkaError: a call is not by the present producer of a transactional id."""
    producer_id, epoch = claimed
    if producer_id != former.producer_id:
        raise KafkaError(ErrorCode.invalid_producer_id_mapping)
    if epoch != former.epoch:
        raise KafkaError(ErrorCode.producer_fenced)


def _fenced(former: Transaction) -> Transaction:
    """Abort, and let the producer that had begun do nothing more."""
    return replace(former, epoch=former.epoch + 1, former_epoch=-1, state=TxnState.PREPARE_ABORT)
