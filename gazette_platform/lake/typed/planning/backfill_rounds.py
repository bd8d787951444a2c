"""Orders of a backfill for a range of a journal: rounds as of a run, one piece after the other. Pure.

A state may lie far before the range, and what follows it may be long, so it is read in pieces, each with the state behind the
one before: what the driver holds goes by the size of a piece. Rows are made of the range alone; all else is screened. What
follows is read only as far as it takes until each transaction that began before the end of the range has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.typed.planning.ranges import JournalRange
from gazette_platform.lake.typed.planning.rounds import JournalRounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_platform.lake.typed.planning.ranges import BackfillRange, Task
    from gazette_platform.lake.typed.planning.rounds import Done, Order

__all__ = ["BackfillRounds"]

# As much as a run reads at a time; what follows is seldom needed for more than an ACK.
_PIECE_BYTES: Final = 4 << 30
_FOLLOW_BYTES: Final = 256 << 20


@final
class BackfillRounds:
    """A backfill of one range.

    Args:
        wanted: the range.
        reached: up to where the table has read the journal.
        tasks_of, look, options: as of `JournalRounds`.
        piece_bytes, follow_bytes: of a piece; a task is not split.
    """

    def __init__(
        self,
        wanted: BackfillRange,
        reached: int,
        *,
        tasks_of: Callable[[int, int], Sequence[Task]],
        look: Callable[[Sequence[Order]], Sequence[Done]],
        piece_bytes: int = _PIECE_BYTES,
        follow_bytes: int = _FOLLOW_BYTES,
        **options: Any,
    ) -> None:
        self.wanted = wanted
        self.outputs: list[Any] = []
        """What was written, and is to be published."""
        self.discarded: list[Any] = []
        """What was written in vain."""
        self.reached = reached
        """Up to where it knows what became of transactions, once all is done."""
        self._follow_bytes = follow_bytes
        self._state = wanted.start
        self._options = {"tasks_of": tasks_of, "look": look, **options}
        self._pieces = _pieces([*wanted.before, *wanted.tasks], piece_bytes)
        self._follow = _pieces(wanted.follow, follow_bytes)
        self.rounds: JournalRounds | None = None
        """To be worked through now, and then `go_on`; None: all is done."""
        self._begin(next(self._pieces, None))

    @property
    def journal(self) -> str:
        """Its name."""
        return self.wanted.journal

    @property
    def typed(self) -> int:
        """Rows that were written."""
        return self._state.counts.typed

    @property
    def quarantined(self) -> int:
        """Records that were set aside."""
        return self._state.counts.quarantined

    @property
    def is_open(self) -> bool:
        """Whether a transaction that began before the end of the range has not ended: a run that reads on may commit it."""
        return any(0 <= one.begin < self.wanted.end for one in self._state.producers.values())

    def go_on(self) -> None:
        """Take what came of `rounds`, and begin with the next piece.

        Raises: LakeError: what has to be read to the end of a transaction is gone.
        """
        done = self.rounds
        assert done is not None  # else all is done
        self._state = done.state
        self.outputs += done.outputs
        self.discarded += done.discarded
        piece = next(self._pieces, None)
        if piece is None and self.is_open:
            piece = next(self._follow, None)
            if piece is None and self._state.offset < self.reached:
                raise LakeError(
                    f"{self.wanted.journal}: a transaction began before offset {self.wanted.end}, and whether it was "
                    f"committed cannot be read, as no broker or store holds what follows offset {self._state.offset}: nothing was "
                    "changed; choose a range that ends where the transaction began"
                )
        self._begin(piece)

    def drop(self) -> None:
        """Give it up: all that was written was in vain."""
        if self.rounds is not None:
            self.rounds.drop()
            self.discarded += self.rounds.discarded
        self.discarded += self.outputs
        self.outputs, self.rounds = [], None

    def follow_to(self, reached: int, tasks: Sequence[Task]) -> None:
        """Follow transactions that are still open, once the table has read on.

        Args:
            reached: up to there.
            tasks: from where it had come before.
        """
        self.reached = reached
        self._follow = _pieces(tasks, self._follow_bytes)
        self._begin(next(self._follow, None))

    def _begin(self, piece: Sequence[Task] | None) -> None:
        self.rounds = None
        if piece is not None:
            wanted = JournalRange(self.wanted.journal, tuple(piece))
            only = self.wanted.begin, self.wanted.end
            self.rounds = JournalRounds(self._state, wanted, only=only, **self._options)


def _pieces(tasks: Sequence[Task], size: int) -> Iterator[list[Task]]:
    piece: list[Task] = []
    for task in tasks:
        if piece and task.end - piece[0].begin > size:
            yield piece
            piece = []
        piece.append(task)
    if piece:
        yield piece
