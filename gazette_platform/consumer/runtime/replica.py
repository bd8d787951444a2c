"""A replica of a shard, from its assignment to this process to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from random import SystemRandom
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

from gazette_platform.consumer.application import Application, Shard, takes_batches
from gazette_platform.consumer.assignments import (
    HeldReplica,
    ReplicaStep,
    ReplicaTask,
    changes_that_wait,
    failed_status,
    tasks_to_start,
)
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus
from gazette_platform.consumer.runtime.status import Readiness, cause_of, error_of
from gazette_platform.consumer.runtime.tasks import Primary, Recovery, ReplicaSettings
from gazette_platform.consumer.store import ShardStore, opening_may_pass
from gazette_platform.errors import (
    AssignmentGone,
    Fenced,
    GazetteError,
    ShardStopped,
    ValidationError,
)
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping
    from random import Random

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.assignments import ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.runtime.status import ShardCounts
    from gazette_platform.consumer.runtime.tasks import ShardHost
    from gazette_platform.consumer.transaction import Progress
    from gazette_platform.message import SequencerCounts
    from gazette_platform.ops.clock import Clock

StoreT = TypeVar("StoreT", bound=ShardStore)
M = TypeVar("M")

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 10.0
"""Seconds that a replica has to stop, by default."""


@final
class ShardReplica(Generic[StoreT, M]):
    """Runs a shard that is assigned to this process: `start` it, and in the end `stop` it.

    It fails by itself: it reports FAILED to its host, with the reason, and does nothing more, while its store,
    if it was ready, can still be asked. Only its owner restarts it, by stopping it and making another.

    Attributes:
        error: what it failed with first; `Fenced`, if another process has taken the shard over.

    Args:
        application: of the process.
        client: reads and appends; it should never give up trying (`retry_timeout_s` of None), or the shard
            fails when brokers are away.
        host: keeps what is in etcd about this replica.
        fqn: the shard's key in etcd.
        spec: the shard. Its recovery log is the one of now, whatever `update` says.
        assignment: to this process.
        settings: how to run.
        clock: gives the time.
        dice: draws authors, and names of directories.
        counts: is to count what becomes of messages.

    Raises: ValidationError: the application consumes nothing.
    """

    def __init__(
        self,
        application: Application[StoreT, M],
        client: AsyncClient,
        host: ShardHost,
        *,
        fqn: str,
        spec: ShardSpec,
        assignment: ShardAssignment,
        settings: ReplicaSettings | None = None,
        clock: Clock | None = None,
        dice: Random | None = None,
        counts: SequencerCounts | None = None,
    ) -> None:
        takes_batches(application)
        self.error: Exception | None = None
        self._application = application
        self._host = host
        self._shard = Shard(spec.id, fqn, spec, assignment, client, client.append_service())
        self._log_appends = client.append_service()
        self._readiness = Readiness(self._shard)
        self._tasks = TaskGroup(f"shard {spec.id}")
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._is_stopped = False
        settings = settings or ReplicaSettings()
        log = spec.recovery_log
        self._recovery = (
            Recovery(
                client,
                host,
                spec.id,
                log,
                parent=settings.directory,
                dice=dice or SystemRandom(),
            )
            if log
            else None
        )
        self._primary = Primary(
            self._shard,
            application,
            host,
            self._readiness,
            recovery=self._recovery,
            log=log,
            log_appends=self._log_appends,
            settings=settings,
            clock=clock or SystemClock(),
            counts=counts,
        )

    # ------------------------------------------------------------------ what it is

    @property
    def shard(self) -> Shard:
        """As the application sees it."""
        return self._shard

    @property
    def id(self) -> str:
        """Of the shard."""
        return self._shard.id

    @property
    def fqn(self) -> str:
        """The shard's key in etcd."""
        return self._shard.fqn

    @property
    def spec(self) -> ShardSpec:
        """Of the shard, as of the last `update`."""
        return self._shard.spec

    @property
    def assignment(self) -> ShardAssignment:
        """To this process, as of the last `update` or `promote`."""
        return self._shard.assignment

    @property
    def held(self) -> HeldReplica:
        """As decisions about replicas know it."""
        assignment = self._shard.assignment
        return HeldReplica(
            assignment.slot, assignment.create_revision, has_failed=self.error is not None
        )

    @property
    def may_pass(self) -> bool:
        """Whether it has failed with what may pass if it starts again: of a fence, or of its store."""
        return self.error is not None and self._passes(self.error)

    @property
    def progress(self) -> Progress:
        """Of its transactions that are done."""
        return self._shard.progress

    @property
    def counts(self) -> ShardCounts:
        """What it did as primary."""
        return self._readiness.counts

    @property
    def is_ready(self) -> bool:
        """Whether the store is open, and has given its checkpoint."""
        return self._readiness.is_ready

    @property
    def has_ended(self) -> bool:
        """Whether it consumes no more: it has failed, or was stopped."""
        return self._readiness.has_ended

    async def wait_through(self, offsets: Mapping[str, int] | None = None) -> StoreT:
        """Wait until the store is ready, and reflects all that lies before `offsets` of the sources.

        Args:
            offsets: by journal; those that the shard does not read do not count.

        Returns: the store. Use it in a `use`, or at once.
        Raises: ShardStopped: the primary has ended before. Cancellation: safe.
        """
        await self._readiness.wait({})
        store = self._primary.store
        if store is None or self._is_stopped:
            raise ShardStopped(self.id)
        if offsets:
            await self._readiness.wait(self._application.read_through(self._shard, store, offsets))
        return store

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Hold off that the store is destroyed, as long as `stop` allows."""
        self._users += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    # ------------------------------------------------------------------ what becomes of it

    def start(self) -> None:
        """Begin, as standby, and in slot 0 as primary too. Once."""
        self._spawn(tasks_to_start(ReplicaStep.START, self.assignment.slot))

    def update(self, spec: ShardSpec, assignment: ShardAssignment) -> None:
        """Take note of the spec, and of the assignment: the same one, with another status.

        What a primary does not take up of the spec is logged.
        """
        if self.is_ready and not self.has_ended:
            waiting = changes_that_wait(self.spec, spec)
            if waiting:
                _log.warning(
                    "shard %s: its spec has changed in %s, which counts once the shard is assigned again (as by "
                    "`gazctl shards unassign %s`)",
                    self.id,
                    " and ".join(waiting),
                    self.id,
                )
        self._shard.spec, self._shard.assignment = spec, assignment

    def promote(self, spec: ShardSpec, assignment: ShardAssignment) -> None:
        """Go on in a lower slot; in slot 0 as primary.

        Raises: ValidationError: the slot is not lower.
        """
        if assignment.slot >= self.assignment.slot:
            raise ValidationError(
                f"shard {self.id}: slot {assignment.slot} is not a promotion from slot "
                f"{self.assignment.slot}; stop this replica, and start another"
            )
        self._host.promoted(assignment)
        self.update(spec, assignment)
        self._spawn(tasks_to_start(ReplicaStep.PROMOTE, assignment.slot))

    async def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End all that it does, and destroy its store once it is unused. May be called again.

        The open transaction is given up; a commit that was started may succeed or not.

        Args:
            timeout_s: seconds; what takes longer is given up, and logged.

        Cancellation: its files may stay behind.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        self._shard.stopping.set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._tasks.close(timeout_s=timeout_s)
        self._primary.abandon()
        self._readiness.ended()
        try:
            async with asyncio.timeout_at(deadline):
                if self._users:
                    await self._primary.roll_back()  # they may wait for a commit that will not come
                await self._unused.wait()
        except TimeoutError:
            _log.warning("shard %s: %d still use its store; it is destroyed", self.id, self._users)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + 1.0)):
                try:
                    if (store := self._primary.store) is not None:
                        await store.destroy()
                finally:
                    for appends in (self._shard.appends, self._log_appends):
                        with contextlib.suppress(GazetteError):
                            await appends.close()
        except TimeoutError:
            _log.warning(
                "shard %s: its store, or its appends: not all of it ended within %g s",
                self.id,
                timeout_s,
            )

    def _spawn(self, tasks: tuple[ReplicaTask, ...]) -> None:
        for task in tasks:
            match task:
                case ReplicaTask.STANDBY:
                    self._start_standby(self._recovery)
                case ReplicaTask.PRIMARY:
                    self._guard(task, self._primary.work())

    def _start_standby(self, recovery: Recovery | None) -> None:
        if recovery is None:
            self._guard(ReplicaTask.STANDBY, self._stand_by())
            return
        self._guard(ReplicaTask.STANDBY, recovery.play())
        self._guard(ReplicaTask.STANDBY, recovery.tell_standby())

    async def _stand_by(self) -> None:
        """There is no log, so nothing is to be recovered."""
        await self._host.set_status(ReplicaStatus(ReplicaCode.STANDBY))

    def _guard(self, task: ReplicaTask, work: Coroutine[object, object, None]) -> None:
        self._tasks.spawn(self._guarded(task, work), name=task.name.lower())

    async def _guarded(self, task: ReplicaTask, work: Coroutine[object, object, None]) -> None:
        """Do it, and return its error."""
        try:
            await work
        except BaseException as raised:  # whatever it is, it fails this replica and no other
            err = error_of(raised)
            if err is None:
                raise
            cause = cause_of(err)
            if self.error is None:
                self.error = cause
            if task is ReplicaTask.PRIMARY:
                self._readiness.ended()
                await self._primary.roll_back()
            if isinstance(cause, AssignmentGone):
                # As of a process that slept past its lease: there is nothing to report, and nowhere.
                _log.info(
                    "shard %s: its %s ends, as its assignment is gone", self.id, task.name.lower()
                )
                return
            # Others have the shard, or its database is away: the place says nothing. The steps are in the text.
            shown = None if self._passes(cause) else cause
            _log.error(
                "shard %s: its %s failed: %s", self.id, task.name.lower(), err, exc_info=shown
            )
            await self._tell_failed(failed_status(str(err), task))

    def _passes(self, error: Exception) -> bool:
        store = self._primary.store
        may_pass = opening_may_pass if store is None else store.may_pass
        return isinstance(error, Fenced) or may_pass(error)

    async def _tell_failed(self, status: ReplicaStatus) -> None:
        try:
            await self._host.set_status(status)
        except AssignmentGone:
            _log.info("shard %s: its assignment is gone as well", self.id)
        except Exception as err:  # noqa: BLE001  there is no other receiver
            shown = None if isinstance(err, GazetteError) else err
            _log.error("shard %s: its failure cannot be reported: %s", self.id, err, exc_info=shown)
