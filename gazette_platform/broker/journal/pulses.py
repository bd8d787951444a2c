"""Pulses: barriers that a journal appends by itself, to publish its route, close fragments or suspend.

Nothing else would notify the allocator that the replicas of an idle journal are in step, or close its
fragment when the flush interval is over. Gazette's primaries append such a barrier once a minute; ours
do when there is a reason to.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.broker.append import events, fsm
from gazette_platform.broker.append.batch import Outcome, Pending
from gazette_platform.broker.port import JournalPort
from gazette_platform.errors import GazetteError
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol import AppendSuspend, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.broker.append.appender import Appender
    from gazette_platform.broker.context import BrokerContext
    from gazette_platform.broker.replicate.replicator import Replicator

__all__ = ["PulsedJournal", "Pulses", "barrier"]

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

    def look(self) -> None:
        """Publish the journal's route without waiting for an append, unless it is published."""
        self._timer = None
        replica = self._replica
        if replica.is_primary and not replica.is_consistent and not replica.is_closed:
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
        if replica.is_consistent:
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
