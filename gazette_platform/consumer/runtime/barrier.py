"""The commit and the ACKs of the prior transaction, which the next one waits for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

from gazette_platform.client import AppendTicket
from gazette_platform.consumer.runtime.steps import step
from gazette_platform.errors import ApplicationFailed, JournalNotFound, ShardStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_platform.client import AppendService, AsyncClient
    from gazette_platform.consumer.shard import CompletedTransaction, Transactions
    from gazette_platform.message import AckIntent
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup

__all__ = ["Barrier", "check_commit"]

_log = logging.getLogger(__name__)


@final
class Barrier:
    """Waits for them, and notifies `Transactions`: first of the commit, then of each ACK.

    Args:
        machine: is notified.
        clock: gives the time.
        wake: called when `settled` has something to report.
    """

    def __init__(self, machine: Transactions, clock: Clock, wake: Callable[[], None]) -> None:
        self._machine = machine
        self._clock = clock
        self._wake = wake
        self._commit: asyncio.Future[None] | None = None
        self._acks: dict[str, AppendTicket | asyncio.Task[int | None]] = {}
        # What ACKs wait for: the commit as appends see it, which can be given up.
        self._released: asyncio.Future[None] | None = None
        self._has_news = True

    def append_again(
        self, tasks: TaskGroup, client: AsyncClient, intents: Sequence[AckIntent]
    ) -> None:
        """Append the ACKs of a restored checkpoint. Done twice it does no harm: readers drop the second.

        Not by the shard's appends: no order is to be kept, for their producer publishes no more.
        """
        for intent in intents:
            task = tasks.spawn(_append_again(client, intent), name=f"ack {intent.journal}")
            self._acks[intent.journal] = task
            task.add_done_callback(self._tell)

    def raise_up(
        self, commit: asyncio.Future[None], appends: AppendService, intents: Sequence[AckIntent]
    ) -> None:
        """A commit was started: queue its ACKs to be appended once it has succeeded. Never waits."""
        self._commit = commit
        commit.add_done_callback(self._ended)
        if not intents:
            return
        released = self._released = asyncio.get_running_loop().create_future()
        commit.add_done_callback(lambda ended: _release(released, ended))
        for intent in intents:
            ticket = appends.submit_nowait(intent.journal, intent.content, after=(released,))
            self._acks[intent.journal] = ticket
            ticket.add_done_callback(self._tell)

    def settled(self) -> Iterator[CompletedTransaction | None]:
        """Notify the machine of what has ended since. Returns: its answer.

        Raises: StepFailed: the commit or an ACK failed.
        """
        if not self._has_news:
            return
        self._has_news = False
        commit, now_s = self._commit, self._clock.monotonic()
        if commit is not None:
            if not commit.done():
                return
            self.check()
            self._commit = None
            yield self._machine.committed(now_s)
        for journal, ack in list(self._acks.items()):
            end: int | None
            if isinstance(ack, AppendTicket):
                if not ack.is_done:
                    continue
                with step("appending ACK"):
                    _, end = ack.span()
            else:
                if not ack.done():
                    continue
                with step("appending ACK of the restored checkpoint"):
                    end = ack.result()
            del self._acks[journal]
            yield self._machine.acknowledged(now_s, journal, end)

    def check(self) -> None:
        """Raises: StepFailed: the commit has failed."""
        if self._commit is not None:
            check_commit(self._commit)

    def abandon(self) -> None:
        """Fail ACKs that still wait for a commit, and what was published after them."""
        if self._released is not None and not self._released.done():
            self._released.set_exception(ShardStopped("its commit was not waited for"))
            self._released.exception()  # looked at: appends may have been given up

    def _ended(self, commit: asyncio.Future[None]) -> None:
        if not commit.cancelled():
            commit.exception()  # looked at: the run may have ended before, for another reason
        self._tell()

    def _tell(self, _: object = None) -> None:
        self._has_news = True
        self._wake()


def check_commit(commit: asyncio.Future[None]) -> None:
    """Raises: StepFailed: it has failed."""
    with step("store.StartCommit"):
        if commit.cancelled():
            raise ApplicationFailed(
                "the store cancelled its commit: one that was started has to succeed or to fail"
            )
        if commit.done():
            commit.result()


async def _append_again(client: AsyncClient, intent: AckIntent) -> int | None:
    """Returns: the end of the ACK; None: there is no such journal any more."""
    try:
        return (await client.append(intent.journal, intent.content)).end
    except JournalNotFound as err:
        _log.warning("an acknowledgement of a former transaction is not appended: %s", err)
        return None


def _release(released: asyncio.Future[None], commit: asyncio.Future[None]) -> None:
    if released.done():
        return
    if commit.cancelled():
        released.cancel()
    elif (error := commit.exception()) is not None:
        released.set_exception(error)
        released.exception()
    else:
        released.set_result(None)
