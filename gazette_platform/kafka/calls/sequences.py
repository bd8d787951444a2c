"""What a journal's registers remember of Kafka's producers. Pure.

The register `kafka.seq.<producer id>` has ``<epoch>.<next>.<first>.<offset>``: the sequence number that follows, and of the last
batch its first sequence number and the offset of its first record, negative if it is estimated. Behind these, of a producer with transactions,
``.<clock>.<acknowledged>.<open>.<transaction>``: the clock of its last message, and that up to which all has ended; where the
transaction begins that is open, or -1; and the number of that one, or of the last one that ended. At the end ``/<first>.<offset>``
of each of up to four batches before the last, the latest first: a client has up to five on their way. An append checks and sets them,
so that a batch that is sent again is not appended again, and a transaction ends once, whichever gateway takes it, and after any crash.

A producer without a register begins with sequence number 0: a batch before it may have failed, and comes again. The register
`kafka.forgotten` has the largest id of a producer that was forgotten; one up to that id may go on with any number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode
from typing_extensions import override

from gazette_platform.kafka.failures import KafkaError
from gazette_platform.protocol import Label, LabelSelector, LabelSet

if TYPE_CHECKING:
    from collections.abc import Iterable

REGISTER: Final = "kafka.seq."
FORGOTTEN: Final = "kafka.forgotten"
PRODUCERS_MAX: Final = 64
"""A journal forgets the producer that was longest silent, as Kafka forgets them after a time."""

_MASK: Final = (1 << 31) - 1
_PRODUCER_MASK: Final = (1 << 40) - 1
_PARTS: Final = (4, 8)
_BEFORE_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Sequence:
    """What is known of a producer."""

    epoch: int
    next: int
    first: int
    offset: int
    clock: int = 0
    acknowledged: int = 0
    open: int = -1
    transaction: int = 0
    before: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)
    """First sequence number and offset of the batches before the last, the latest first; of the same transaction, if there are any."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The sequence of a register's value; None: it is malformed."""
        text, *others = text.split("/")
        parts = text.split(".")
        if len(parts) not in _PARTS:
            return None
        try:
            found = cls(*map(int, parts))
            if not others:
                return found
            pairs = (other.split(".") for other in others)
            return replace(found, before=tuple((int(first), int(at)) for first, at in pairs))
        except ValueError:
            return None

    @override
    def __str__(self) -> str:
        parts = [self.epoch, self.next, self.first, self.offset]
        if self.clock:
            parts += [self.clock, self.acknowledged, self.open, self.transaction]
        return ".".join(map(str, parts)) + "".join(f"/{first}.{at}" for first, at in self.before)

    def batches(self) -> tuple[tuple[int, int], ...]:
        """First sequence number and offset of the last batches, the latest first."""
        return () if self.first < 0 else ((self.first, self.offset), *self.before)

    def offset_of(self, claim: Claim) -> int | None:
        """Where one of the last batches was appended; -1: that is not known any more; None: it is none of them."""
        end = self.next
        for first, offset in self.batches():
            if (first, end) == (claim.first, claim.next):
                return max(offset, -1)
            end = first
        return None


class Claim(NamedTuple):
    """What a batch says of its producer and place."""

    producer_id: int
    epoch: int
    first: int
    records: int

    @property
    def next(self) -> int:
        """The sequence number of the record after the batch."""
        return (self.first + self.records) & _MASK


def txn_producer(producer_id: int, epoch: int) -> bytes:
    """The producer of the messages of transactions: another one for each epoch.

    Its multicast bit is set, as that of every producer, and its lower bits are those that no other of ours has.
    """
    return bytes((0x4B,)) + (producer_id << 8 & _PRODUCER_MASK | epoch & 0xFF).to_bytes(5)


class Duplicate(Exception):
    """The batch was appended before. `offset`: of its first record; -1: not known any more."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"appended before at {offset}")
        self.offset = offset


class Sequences:
    """The producers that a journal's registers name.

    Args:
        registers: of the journal.
    """

    def __init__(self, registers: Iterable[Label] = ()) -> None:
        self._known: dict[int, tuple[str, Sequence]] = {}
        self.forgotten = -1
        """The largest id of a producer that was forgotten; -1: none was."""
        for label in registers:
            if label.name == FORGOTTEN and label.value.isdecimal():
                self.forgotten = int(label.value)
            number = label.name.removeprefix(REGISTER)
            if number != label.name and number.isdigit():
                found = Sequence.parse(label.value)
                if found is not None:
                    self._known[int(number)] = label.value, found

    @property
    def clock(self) -> int:
        """The latest of producers with transactions; 0: there is none."""
        return max((sequence.clock for _, sequence in self._known.values()), default=0)

    def stable(self, head: int) -> int:
        """The offset before which no transaction is open, in a journal that ends at `head`."""
        begins = (sequence.open for _, sequence in self._known.values() if sequence.open >= 0)
        return min(begins, default=head)

    def get(self, producer_id: int) -> Sequence | None:
        """What is known of a producer."""
        known = self._known.get(producer_id)
        return None if known is None else known[1]

    def check(self, former: Sequence | None, claim: Claim) -> None:
        """Check that a batch follows what is known.

        Raises: Duplicate: it was appended. KafkaError: records are missing before it, or another producer has its id.
        """
        if former is None or (former.next < 0 and former.epoch == claim.epoch):
            if claim.first and claim.producer_id > self.forgotten:
                raise out_of_order(claim, 0)
            return
        if claim.epoch < former.epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {claim.producer_id} has epoch {former.epoch}, and not {claim.epoch}",
            )
        if claim.epoch > former.epoch:
            if claim.first:
                raise out_of_order(claim, 0)
            return
        if claim.first == former.next:
            return
        offset = former.offset_of(claim)
        if offset is not None:
            raise Duplicate(offset)
        raise out_of_order(claim, former.next)

    def edit(self) -> Edit:
        """Begin a change of several producers, for one append."""
        return Edit(self)

    def known(self) -> dict[int, tuple[str, Sequence]]:
        """Register values and sequences by producer."""
        return self._known


class Edit:
    """A change of registers, and what must hold for it."""

    def __init__(self, before: Sequences) -> None:
        self._before = before
        self._after: dict[int, Sequence] = {}

    def get(self, producer_id: int) -> Sequence | None:
        """What is known of a producer, with what was put here."""
        return self._after.get(producer_id) or self._before.get(producer_id)

    def add(
        self,
        claim: Claim,
        offset: int,
        clocks: tuple[int, int] = (0, 0),
        transaction: int = 0,
    ) -> None:
        """Note a batch.

        Args:
            clocks: of its first message, and after its last, if it belongs to a transaction.
            transaction: the number of that, among those of the producer.

        Raises: as `Sequences.check`.
        """
        former = self.get(claim.producer_id)
        try:
            self._before.check(former, claim)
        except Duplicate:
            if former is None or transaction <= former.transaction:
                raise
            # The batch that had these numbers belongs to a transaction that has ended: this is another one.
            raise out_of_order(claim, former.next) from None
        after = Sequence(claim.epoch, claim.next, claim.first, offset)
        if former is not None and former.next == claim.first and former.epoch == claim.epoch:
            is_same = transaction == former.transaction
            after = replace(after, before=former.batches()[:_BEFORE_MAX] if is_same else ())
        first, last = clocks
        if last:
            begin, acknowledged = abs(offset), first - 1
            if former is not None and former.open >= 0:
                begin, acknowledged = former.open, former.acknowledged
            _check_transaction(claim, former, transaction)
            after = replace(
                after, clock=last, acknowledged=acknowledged, open=begin, transaction=transaction
            )
        elif former is not None and former.clock:
            after = _outside_transaction(after, former)
        self._after[claim.producer_id] = after

    def put(self, producer_id: int, sequence: Sequence) -> None:
        """Note what is known of a producer."""
        self._after[producer_id] = sequence

    @property
    def is_empty(self) -> bool:
        """Whether registers play no part."""
        return not self._after

    @property
    def check(self) -> LabelSelector | None:
        """What the registers must be."""
        if self.is_empty:
            return None
        include, exclude = {}, {}
        for producer_id in self._after:
            known = self._before.known().get(producer_id)
            name = f"{REGISTER}{producer_id}"
            if known is None:
                exclude[name] = ""
            else:
                include[name] = known[0]
        if self._forgotten():
            if self._before.forgotten < 0:
                exclude[FORGOTTEN] = ""
            else:
                include[FORGOTTEN] = str(self._before.forgotten)
        return LabelSelector(include=LabelSet.of(include), exclude=LabelSet.of(exclude))

    @property
    def union(self) -> LabelSet | None:
        """The new registers."""
        if self.is_empty:
            return None
        labels = {f"{REGISTER}{key}": str(value) for key, value in self._after.items()}
        if forgotten := self._forgotten():
            labels[FORGOTTEN] = str(max(self._before.forgotten, *forgotten))
        return LabelSet.of(labels)

    @property
    def subtract(self) -> LabelSet | None:
        """The registers of producers that are forgotten."""
        forgotten = {f"{REGISTER}{key}": value for key, value in self._forgotten().items()}
        return LabelSet.of(forgotten) if forgotten else None

    def _forgotten(self) -> dict[int, str]:
        """Register values of producers that are forgotten."""
        kept = {
            key: known
            for key, known in self._before.known().items()
            if key not in self._after and known[1].open < 0
        }
        surplus = len(kept) + len(self._after) - PRODUCERS_MAX
        if self.is_empty or surplus <= 0:
            return {}
        oldest = sorted(kept, key=lambda key: abs(kept[key][1].offset))[:surplus]
        return {key: kept[key][0] for key in oldest}


def _outside_transaction(after: Sequence, former: Sequence) -> Sequence:
    """What is known after a batch outside of transactions. Raises: KafkaError: one is open, whose begin would be forgotten."""
    if former.open >= 0:
        raise KafkaError(
            ErrorCode.invalid_txn_state,
            f"transaction {former.transaction} is open, and the batch does not belong to it",
        )
    return replace(
        after,
        clock=former.clock,
        acknowledged=former.acknowledged,
        transaction=former.transaction,
    )


def _check_transaction(claim: Claim, former: Sequence | None, transaction: int) -> None:
    """Raises: KafkaError: the transaction has ended in this journal, or another one is open."""
    if former is None:
        return
    is_same = former.transaction == transaction and former.epoch == claim.epoch
    if (former.open >= 0 and not is_same) or (
        former.open < 0 and former.transaction >= transaction
    ):
        raise KafkaError(
            ErrorCode.invalid_txn_state,
            f"producer {claim.producer_id}: transaction {transaction} has ended, or the one before has not",
        )


def out_of_order(claim: Claim, expected: int) -> KafkaError:
    """The answer to a batch that does not follow."""
    return KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {claim.producer_id}: expected sequence {expected}, and not {claim.first}",
    )
