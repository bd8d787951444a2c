"""Pulses: barriers that a journal appends by itself, to publish its route, close fragments or suspend.

Nothing else would notify the allocator that the replicas of an idle journal are in step, or close its
fragment when the flush interval is over. Gazette's primaries append such a barrier once a minute; ours
do when there is a reason to.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.batch import Outcome, Pending
from gazette_platform.broker.spool.port import JournalPort
from gazette_platform.errors import GazetteError
from gazette_platform.ops.faults import backoff_s
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import AppendSuspend, Status

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from gazette_platform.broker.append.appender import Appender
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.replicate.replicator import Replicator
    from gazette_platform.broker.spool.journal_spool import JournalSpool
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup

_log = logging.getLogger(__name__)

# A pulse may have to wait for a replica. It must not hold up the pulses of other journals for long.
_TIMEOUT_S = 10.0

# Pauses between pulses that fail. Until the route is published, the allocator cannot go on with the
# journal.
_RETRIES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

# If a journal had no append for longer, it closes its streams to replicas when a pulse is over.
_REST_S = 5.0


class PulsedJournal(JournalPort, Protocol):
    """What pulses need of a replica."""

    is_primary: bool
    is_closed: bool
    appender: Appender
    replicator: Replicator
    spool: JournalSpool
    watchers: set[Callable[[], None]]
    last_append_at: float
    """Monotonic seconds."""


@final
class Pulses:
    """Zero-byte appends of one journal, one at a time."""

    def __init__(self, replica: PulsedJournal, context: BrokerContext) -> None:
        self._replica = replica
        self._context = context
        self._failed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_pulsing = False

    @property
    def _is_due(self) -> bool:
        """Whether etcd lacks the route, or closed fragments wait until it has our claim."""
        return not self._replica.is_consistent or self._replica.spool.is_held

    def look(self) -> None:
        """Publish the journal's route without waiting for an append, unless it is published."""
        self._timer = None
        replica = self._replica
        if replica.is_primary and self._is_due and not replica.is_closed:
            if replica.appender.is_idle:
                self.start()
            else:
                self._look_later()  # the append under way does it, unless it fails

    def start(self, suspend: AppendSuspend = AppendSuspend.SUSPEND_NO_RESUME) -> None:
        """Append a barrier, unless one is under way, for the sake of what each append does."""
        if not self._is_pulsing:
            self._is_pulsing = True
            name = f"pulse {self._replica.name}"
            self._context.tasks.spawn(self._append(suspend), name=name)

    def stop(self) -> None:
        """Start no more pulses by itself."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        if self._timer is None and not self._replica.is_closed:
            delay_s = backoff_s(self._failed, _RETRIES_S)
            self._failed += 1
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.look)

    async def _append(self, suspend: AppendSuspend) -> None:
        replica, loop = self._replica, asyncio.get_running_loop()
        request = events.AppendRequest(replica.name, suspend=suspend)
        done: asyncio.Future[Outcome] = loop.create_future()
        try:
            async with asyncio.timeout(None) as limit:
                async with self._context.pulse_slots:
                    limit.reschedule(loop.time() + _TIMEOUT_S)
                    replica.appender.submit(Pending(machine=fsm.AppendFSM(request), done=done))
                    await self._until_held_up(done)
                outcome = await done
            if outcome.status not in (Status.OK, Status.SUSPENDED):
                _log.debug("%s: pulse: %s", replica.name, outcome.status.name)
        except (GazetteError, TimeoutError) as err:
            _log.debug("%s: pulse: %s", replica.name, err)
        except Exception as err:  # noqa: BLE001  reported
            self._context.faults.report("journal", f"{replica.name}: pulse", err)
        finally:
            done.cancel()
            self._is_pulsing = False
        if not self._is_due:
            self._failed = 0
        elif replica.is_primary:
            self._look_later()
        # Thousands of journals may be synced at once without anybody appending to them.
        quiet_s = self._context.clock.monotonic() - replica.last_append_at
        if quiet_s > _REST_S and replica.appender.is_idle:
            replica.replicator.rest()

    async def _until_held_up(self, done: asyncio.Future[Outcome]) -> None:
        """Wait for `done`, or until only a store holds the pulse up, which may take long."""
        replica = self._replica
        held_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if replica.is_consistent and not replica.is_ready and not held_up.done():
                held_up.set_result(None)

        replica.watchers.add(look)
        try:
            look()
            await asyncio.wait((done, held_up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            replica.watchers.discard(look)


async def barrier(appender: Appender, request: events.AppendRequest) -> Outcome:
    """Append nothing, for the sake of what that does, or finds.

    Raises: RpcFailed. Cancellation: it may be done all the same.
    """
    done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    appender.submit(Pending(machine=fsm.AppendFSM(request), done=done))
    return await done


# Flush windows end at multiples of the interval, so at the same time for all journals, as in Gazette.
# Spreading the ends keeps thousands of fragments from being persisted at the same instant.
_FLUSH_JITTER_S = 2.0

FLUSH_RETRY_S: Final = 0.25

_MISSED_PAUSE_S: Final = 5.0
"""Seconds until we look again at a window that ended while appends were under way. They may close its
fragment by themselves."""


@final
class FlushTimer:
    """Fires at the end of the flush window of one journal's open fragment.

    Args:
        flush: closes that fragment. Returns whether that is settled; if not, it is called again
            shortly.

    Attributes:
        interval_ns: length of the window; 0: there is none.
        is_set: whether it is going to fire.
    """

    def __init__(
        self, flush: Callable[[], bool], *, interval_ns: int, clock: Clock, rng: random.Random
    ) -> None:
        self._flush = flush
        self._clock = clock
        self._rng = rng
        self._handle: asyncio.TimerHandle | None = None
        self.interval_ns = interval_ns
        self.is_set = False

    @property
    def due_in_s(self) -> float | None:
        """Seconds until it fires; None: it does not."""
        return _due_in_s(self._handle)

    def set(self, first_append_at: datetime | None) -> None:
        """Fire once the window ends in which the open fragment was begun.

        Args:
            first_append_at: when it was begun; None: it is empty.
        """
        self.stop()
        if self.interval_ns <= 0 or first_append_at is None:
            return
        interval_s = self.interval_ns / SECOND_NS
        ends_at_s = (first_append_at.timestamp() // interval_s + 1) * interval_s
        left_s = max(0.0, ends_at_s - self._clock.now().timestamp())
        self._set(left_s + self._rng.uniform(0, _FLUSH_JITTER_S))

    def stop(self) -> None:
        """Do not fire any more."""
        self.is_set = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self, delay_s: float) -> None:
        self.is_set = True
        self._handle = asyncio.get_running_loop().call_later(delay_s, self.fire)

    def fire(self) -> None:
        """Close the fragment now, or try again shortly."""
        self.stop()
        if not self._flush():
            self._set(FLUSH_RETRY_S)


@final
class RefreshTimer:
    """Has the stores of one journal listed, one listing after the other.

    Args:
        refresh: lists them. Returns the seconds until the next listing; None: there is none.
    """

    def __init__(
        self, journal: str, refresh: Callable[[], Awaitable[float | None]], *, tasks: TaskGroup
    ) -> None:
        self._journal = journal
        self._refresh = refresh
        self._tasks = tasks
        self._handle: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._missed_at = -math.inf

    @property
    def due_in_s(self) -> float | None:
        """Seconds until it fires; None: it does not."""
        return _due_in_s(self._handle)

    def soon(self, delay_s: float = 0.0) -> None:
        """List them in `delay_s` seconds instead of when the next listing was due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if not self._is_stopped:
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def missed(self) -> None:
        """List them now, unless that was asked for just now.

        A listing that names what is gone must not make each read of it a request that costs money.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._missed_at + _MISSED_PAUSE_S:
            self._missed_at = now_s
            self.soon()

    def stop(self) -> None:
        """Start no more listings. One that is under way ends by itself."""
        self._is_stopped = True
        self.soon()

    def _fire(self) -> None:
        self._handle = None
        if not self._is_stopped:
            self._tasks.spawn(self.run(), name=f"refresh {self._journal}")

    async def run(self) -> None:
        """List them now. Cancellation: safe."""
        delay_s = await self._refresh()
        if delay_s is not None:
            self.soon(delay_s)


def _due_in_s(handle: asyncio.TimerHandle | None) -> float | None:
    return None if handle is None else handle.when() - asyncio.get_running_loop().time()
