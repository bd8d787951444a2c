"""Answers to the appends of a batch, once it is known what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.broker.append import events
from gazette_platform.broker.append.pending import Outcome
from gazette_platform.protocol import ZERO_SUM, Fragment, Status

if TYPE_CHECKING:
    from gazette_platform.broker.append.pending import Pending
    from gazette_platform.broker.wire.interface import RpcFailed
    from gazette_platform.protocol import CompressionCodec

__all__ = ["Answers", "not_ours", "refuse"]


@final
class Answers:
    """Answers a batch when it is called.

    Args: journal: its name. sums: SHA-1 of each append. codec: of the fragment that they are in.
    """

    __slots__ = ("_batch", "_codec", "_journal", "_sums")

    def __init__(
        self, journal: str, batch: list[Pending], sums: list[bytes], codec: CompressionCodec
    ) -> None:
        self._journal = journal
        self._batch = batch
        self._sums = sums
        self._codec = codec

    def __call__(self, failure: RpcFailed | None) -> None:
        """All replicas have the batch; or nobody knows, and `failure` says why."""
        if failure is not None:
            refuse(self._batch, failure)
            return
        for pending, total in zip(self._batch, self._sums, strict=True):
            self._acknowledge(pending, total)

    def _acknowledge(self, pending: Pending, total: bytes) -> None:
        finish = pending.machine.step(events.Acknowledged())
        assert isinstance(finish, events.Finish)
        commit = Fragment(
            self._journal,
            pending.begin,
            pending.begin + pending.length,
            total if pending.length else ZERO_SUM,
            self._codec,
        )
        pending.finish(Outcome(finish.status, commit, pending.registers))


def refuse(batch: list[Pending], failure: RpcFailed) -> None:
    """End every append of a batch without an answer."""
    for pending in batch:
        pending.fail(failure)


def not_ours() -> Outcome:
    """Of an append to a journal that this broker is not, or not any more, the primary of."""
    return Outcome(Status.NOT_JOURNAL_PRIMARY_BROKER, is_remote=True)
