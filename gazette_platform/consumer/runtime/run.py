"""A primary's run: transactions from a checkpoint on, until there is nothing more to read.

`shard.transaction` decides each step; here it is done. The *barrier* is the commit and the
acknowledgements of the prior transaction. The next one consumes meanwhile, and commits after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from gazette_platform.client import AppendTicket
from gazette_platform.consumer.application import (
    Application,
    DeferToNextTransaction,
    Shard,
    Transaction,
    takes_batches,
)
from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.runtime.sources import SHARD_BYTES_MAX, Inlet, Sources
from gazette_platform.consumer.runtime.status import StepFailed, done, place_of, step
from gazette_platform.consumer.store import ShardStore
from gazette_platform.consumer.transaction import (
    Action,
    Backlog,
    TransactionLimits,
    Transactions,
)
from gazette_platform.errors import ApplicationFailed, DataError, JournalNotFound, ShardStopped
from gazette_platform.message import Envelope, Sequencer, clock_of
from gazette_platform.ops.faults import SparingLog
from gazette_platform.ops.tasks import TaskGroup, Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

    from gazette_platform.client import AppendService, AsyncClient
    from gazette_platform.consumer.application import MessageBatches, TransactionPublisher
    from gazette_platform.consumer.runtime.sources import ReadBudget
    from gazette_platform.consumer.runtime.status import Readiness
    from gazette_platform.consumer.transaction import CompletedTransaction
    from gazette_platform.message import AckIntent, ReplayRange, SequencerCounts
    from gazette_platform.ops.clock import Clock

_log = logging.getLogger(__name__)


# ------------------------------------------------------------------ the run

StoreT = TypeVar("StoreT", bound=ShardStore)
M = TypeVar("M")
# Entries that are sequenced before anything else is looked at.
_TAKE_MAX: Final = 1024
# Seconds for which messages are consumed one by one before others of the event loop have a turn.
_SLICE_S: Final = 0.01
# Turns of the event loop in which an append that was just accepted begins, and is written.
_SEND_TURNS: Final = 2


@final
class Run(Generic[StoreT, M]):
    """Does what `Transactions` decides. To be run once; `abandon` it when it is not to go on.

    Args:
        shard: which one.
        application: consumes.
        store: of the shard; it has just given `checkpoint`.
        publisher: of the primary.
        checkpoint: where to go on.
        readiness: is notified of finished transactions.
        between: awaited between two transactions.
        clock: gives the time.
        batch_size: about how many messages to consume at a time.
        counts: is to count what becomes of messages.
        acknowledged: ACKs that this primary has appended already. They are not to come again: this time
            they would be behind messages of the same producer, and take them back.
        budget: of what shards of the process have read.

    Attributes:
        acks: of the last checkpoint; appended, once `run` has returned.
    """

    def __init__(
        self,
        shard: Shard,
        application: Application[StoreT, M],
        store: StoreT,
        *,
        publisher: TransactionPublisher,
        checkpoint: Checkpoint,
        readiness: Readiness,
        between: Callable[[], Awaitable[None]],
        clock: Clock,
        batch_size: int,
        counts: SequencerCounts | None = None,
        acknowledged: Collection[AckIntent] = (),
        budget: ReadBudget | None = None,
    ) -> None:
        spec = shard.spec
        self.acks = checkpoint.ack_intents
        # The process may have died between its commit and its ACKs. Then readers wait for them: the
        # checkpoint has them, and whoever restores it appends them first.
        self._again = tuple(each for each in self.acks if each not in acknowledged)
        self._shard = shard
        self._application = application
        self._store = store
        self._publisher = publisher
        self._checkpoint = checkpoint
        self._readiness = readiness
        self._between = between
        self._clock = clock
        self._takes_batches = takes_batches(application)
        self._wake = asyncio.Event()
        self._inlet: Inlet[M] = Inlet(spec.queue_size, self._wake.set, budget=budget)
        self._sources = Sources(shard, application, store, self._inlet)
        self._sequencer: Sequencer[M] = Sequencer(
            ring_size=spec.ring_size,
            ring_bytes=SHARD_BYTES_MAX,
            checkpoint=checkpoint.read,
            warn=SparingLog(lambda text: _log.warning("shard %s: %s", shard.id, text), clock),
            counts=counts,
        )
        self._backlog = Backlog(self._sequencer, size=batch_size)
        self._machine = Transactions(
            clock.monotonic(),
            checkpoint.read_through,
            [intent.journal for intent in self._again],
        )
        self._barrier = Barrier(self._machine, clock, self._wake.set)
        self._txn: Transaction[StoreT] | None = None
        self._replay: MessageBatches[M] | None = None
        self._replayed_to = 0

    async def run(self) -> None:
        """Make transactions until nothing more is to be read, which is seldom.

        Raises: StepFailed: anything went wrong; the open transaction is given up.
        Cancellation: gives the open transaction up; a commit that was started goes on.
        """
        tasks = TaskGroup(f"shard {self._shard.id}")
        turns = Turns()
        try:
            self._barrier.append_again(tasks, self._shard.client, self._again)
            self._sources.start(tasks, self._checkpoint)
            while await self._act():
                await turns.take()
        except BaseException as err:
            self._give_up(err)
            if isinstance(err, Exception):
                # If the commit failed first, appends after it failed for that reason.
                self._barrier.check()
            raise
        finally:
            try:
                if self._replay is not None:
                    await self._replay.aclose()
                await tasks.close()
            finally:
                self._inlet.drop()

    def abandon(self) -> None:
        """Let no append wait any longer for a commit whose end is unknown."""
        self._barrier.abandon()

    # ------------------------------------------------------------------ one step

    async def _act(self) -> bool:
        """Do what is next. Returns: whether there may be more to do."""
        # Cleared before anything is looked at: what happens meanwhile sets it again, so no news is missed.
        self._wake.clear()
        self._note(self._barrier.settled())
        while self._sequencer.replay is not None and not self._backlog.has_message:
            await self._read_again(self._sequencer.replay)
        action = self._machine.decide(
            self._clock.monotonic(),
            has_message=self._backlog.has_message,
            has_entry=self._inlet.has_entry,
            has_pending=self._sequencer.has_pending,
            is_closed=self._inlet.is_closed,
        )
        match action:
            case Action.BEGIN:
                await self._begin()
            case Action.CONSUME:
                await self._consume()
            case Action.TICK:
                self._machine.tick(self._clock.monotonic())
            case Action.TAKE:
                self._take()
            case Action.WAIT:
                await self._wait()
            case Action.COMMIT:
                await self._commit()
                await self._between()
            case Action.FINISH:
                with step("readMessage"):
                    self._inlet.check()
                return False
        return True

    def _note(self, completed: Iterator[Any]) -> None:
        for each in completed:
            self._readiness.completed(each)

    def _take(self) -> None:
        """Sequence what was read, up to what commits something."""
        entries, sequencer = self._inlet.entries, self._sequencer
        for _ in range(min(_TAKE_MAX, len(entries))):
            envelope = entries.popleft()
            outcome = sequencer.queue(envelope)
            self._readiness.completed(self._machine.took(outcome, envelope.journal, envelope.end))
            if sequencer.dequeued is not None or sequencer.replay is not None:
                break
        self._inlet.made_room()

    async def _read_again(self, wanted: ReplayRange) -> None:
        """Offer the next batch of a replay to the sequencer, or end it."""
        with step("replay"):
            if self._replay is None:
                self._replay = await self._sources.replay(wanted)
                self._replayed_to = wanted.begin
            batch: list[Envelope[M]] | None = await anext(aiter(self._replay), None)
            if batch is not None:
                self._backlog.offer(batch)
                self._replayed_to = batch[-1].end
                return
            if self._replayed_to != wanted.end:
                raise DataError(
                    f"{wanted.journal}: reading a transaction again, from offset {wanted.begin} to "
                    f"{wanted.end}, ended at {self._replayed_to}"
                )
            replay, self._replay = self._replay, None
            await replay.aclose()
            self._sequencer.end_replay()

    async def _wait(self) -> None:
        """Until something is new, or a timer is due."""
        wakes_at, timer = self._machine.wakes_at, None
        if wakes_at is not None:
            delay_s = max(0.0, wakes_at - self._clock.monotonic())
            timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    # ------------------------------------------------------------------ a transaction

    async def _begin(self) -> None:
        txn = Transaction(self._shard, self._store, self._publisher)
        with step("app.BeginTxn"):
            await done(self._application.begin(txn))
        self._txn = txn
        self._publisher.begin()
        self._machine.begin(self._clock.monotonic(), TransactionLimits.of(self._shard.spec))

    async def _consume(self) -> None:
        # As if each was taken when it is its turn, for no time passes meanwhile.
        self._backlog.gather(self._inlet.entries)
        assert self._txn is not None
        with step("app.ConsumeMessage"):
            if self._takes_batches:
                used = await self._consume_batch(self._txn)
            else:
                used = await self._consume_each(self._txn)
        messages = self._backlog.messages
        self._readiness.counts.read_bytes += sum(each.end - each.begin for each in messages[:used])
        self._backlog.used(used)
        self._inlet.made_room()

    async def _consume_batch(self, txn: Transaction[StoreT]) -> int:
        messages = self._backlog.messages
        count = len(messages)
        try:
            await done(self._application.consume_batch(txn, messages))
        except DeferToNextTransaction as deferral:
            if not 0 <= deferral.consumed < count:
                raise ApplicationFailed(
                    f"the application deferred a message of a batch of {count}, and says that it "
                    f"consumed {deferral.consumed} before"
                ) from deferral
            self._machine.consumed(deferral.consumed, deferred=True)
            return deferral.consumed
        except Exception as err:
            raise StepFailed(place_of(messages), err) from err
        self._machine.consumed(count)
        return count

    async def _consume_each(self, txn: Transaction[StoreT]) -> int:
        machine, consume, now = self._machine, self._application.consume, self._clock.monotonic
        ends_at, used = now() + _SLICE_S, 0
        for envelope in self._backlog.messages:
            try:
                result = consume(txn, envelope)
                if result is not None:
                    await result
            except DeferToNextTransaction:
                machine.consumed(0, deferred=True)
                break
            except Exception as err:
                raise StepFailed(place_of([envelope]), err) from err
            machine.consumed()
            used += 1
            now_s, wakes_at = now(), machine.wakes_at
            if now_s >= ends_at or (wakes_at is not None and now_s >= wakes_at):
                break
        return used

    async def _commit(self) -> None:
        txn, machine = self._txn, self._machine
        assert txn is not None
        machine.preparing(self._clock.monotonic())
        with step("txnStartCommit"):
            with step("app.FinalizeTxn"):
                await done(self._application.finalize(txn))
            # What was published is on its way to the broker while the commit, which comes after it, is prepared.
            for _ in range(_SEND_TURNS):
                await asyncio.sleep(0)
            # From here on nothing waits: whatever is published later comes behind these ACKs.
            intents = tuple(self._publisher.build_acks())
            now = clock_of(int(self._clock.unix_s() * 1e9))
            # Sources that were not read yet keep the identity that the restored checkpoint has of them.
            created = {**self._checkpoint.created, **self._sources.created}
            checkpoint = Checkpoint(self._backlog.checkpoint(now=now), intents, created)
            with step("store.StartCommit"):
                commit = self._store.start_commit(checkpoint, self._shard.appends.pending())
            # If it failed at once, queued ACKs would fail as its dependants, and hide its own error.
            check_commit(commit)
            self._barrier.raise_up(commit, self._shard.appends, intents)
            self.acks = intents
        machine.prepared(
            self._clock.monotonic(),
            checkpoint.read_through,
            [intent.journal for intent in intents],
        )
        self._txn = None
        with step("app.FinishedTxn"):
            self._application.finished(txn, commit)

    def _give_up(self, error: BaseException) -> None:
        """Notify the application that the open transaction is not committed."""
        txn, self._txn = self._txn, None
        if txn is None:
            return
        commit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if isinstance(error, Exception):
            commit.set_exception(error)
            commit.exception()  # looked at: no other caller has to
        else:
            commit.cancel()
        with contextlib.suppress(Exception):  # the error that counts is on its way
            self._application.finished(txn, commit)


# ------------------------------------------------------------------ the barrier


@final
class Barrier:
    """Waits for the commit and the ACKs of the prior transaction, and notifies `Transactions` in this order.

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
        # ACKs are queued now, before the commit is done, so that each has its place before any message of
        # the next transaction. They wait for `released` and not for the commit itself, because a commit
        # that hangs in a database cannot be cancelled, and appends could then never be given up.
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
            # ACKs are looked at only behind their commit: `Transactions` asserts that order.
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
        # It was deleted since. A shard that insisted on it could never start again.
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
