"""What a replica keeps in etcd: its status, and hints of its shard."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.consumer.cluster import STATUS_RETRY_S, write_status
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus, ShardStatus
from gazette_platform.consumer.recoverylog import FsmHints
from gazette_platform.consumer.service.hints import put_primary_hints, require_log, rotate_hints
from gazette_platform.errors import AssignmentGone, EtcdError, status_error
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.consumer.cluster import ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.service.shard_api import ShardApi
    from gazette_platform.etcd import Lease

_log = logging.getLogger(__name__)

# For our own write to come back by the watch, after which it is looked at again.
_VIEW_TIMEOUT_S: Final = 10.0


@final
class EtcdShardHost:
    """Keeps what is in etcd about one replica of this process, while its assignment exists.

    A write that fails because etcd does not answer, or because another process wrote, is retried, after the pauses of
    Gazette's consumers.

    Args:
        api: of this process; hints are fetched by it, as an application may have its own.
        assignment: of the replica.
        lease: of this process, under which its assignments are; None: they end otherwise.
    """

    def __init__(
        self, api: ShardApi, assignment: ShardAssignment, *, lease: Lease | None = None
    ) -> None:
        self._api = api
        self._etcd = api.etcd
        self._space = api.resolver.space
        self._held = assignment
        self._lease = lease
        self._has_told_failed = False

    def promoted(self, assignment: ShardAssignment) -> None:
        """The replica goes on under another assignment, of a lower slot."""
        self._held = assignment

    async def set_status(self, status: ReplicaStatus) -> None:
        """Fold a status into that of the assignment, and wait until our own view has it.

        A status that the assignment has already, or that is behind it, is not written. A failure that is
        not of this replica is replaced: the value went along when the slot was changed, of a replica
        that has failed in the former one.

        Raises: AssignmentGone. EtcdError: not retriable.
        Cancellation: leaves open whether it was written.
        """
        self._has_told_failed |= status.code is ReplicaCode.FAILED

        async def attempt() -> bool:
            assignment, _ = self._present()
            if assignment.status.code is ReplicaCode.FAILED and not self._has_told_failed:
                assignment = replace(assignment, told=ReplicaStatus())
            known = assignment.status
            if known.code >= status.code and set(status.errors) <= set(known.errors):
                return True  # an attempt whose outcome was not known may have done it
            write = write_status(assignment, status)
            result = await self._etcd.txn(write.compares, write.operations)
            if result.succeeded:
                revision = result.header.revision
                await self._space.wait_for_revision(revision, timeout_s=_VIEW_TIMEOUT_S)
            return result.succeeded

        await self._insist(attempt)

    async def confirm(self) -> None:
        """Wait until etcd itself says that the assignment exists: our view of it may be old.

        A process that was stopped, or cut off from etcd, finds out so. If our lease has ended by our own
        clock when etcd has answered, the answer is old as well; then there is nothing to wait for but the
        end of this process.

        Raises: AssignmentGone. EtcdError: not retriable.
        Cancellation: safe.
        """

        async def attempt() -> bool:
            held, _ = self._present()
            found = await self._etcd.get(held.key)
            if found is None or found.create_revision != held.create_revision:
                if held.create_revision != self._held.create_revision:
                    return False  # promoted meanwhile
                raise AssignmentGone("its assignment is gone", journal=held.shard)
            return self._lease is None or self._lease.remaining_s > 0

        await self._insist(attempt)

    async def fetch_hints(self) -> tuple[FsmHints | None, ...]:
        """Hints of the shard: the primary's, then backups, newest first; None where there are none.

        Raises: AssignmentGone. DataError: a value cannot be played, or is of
            another log. EtcdError: not retriable.
        Cancellation: safe.
        """
        found: list[FsmHints | None] = []

        async def attempt() -> bool:
            self._present()
            request = pb.GetHintsRequest(shard=self._held.shard)
            response = await self._api.get_hints(request, ALL_CLAIMS)
            status = ShardStatus.from_wire(response.status)
            if status is not ShardStatus.OK:
                raise status_error(status.name, journal=self._held.shard)
            found[:] = map(_hints_of, (response.primary_hints, *response.backup_hints))
            return True

        await self._insist(attempt)
        return tuple(found)

    async def require_log(self, log: str, created: int) -> None:
        """Refuse a recovery log that was deleted and made again since the shard had it first.

        Raises: AssignmentGone. JournalReplaced. DataError: what is kept cannot be read. EtcdError: not retriable.
        Cancellation: leaves open whether it was noted.
        """

        async def attempt() -> bool:
            assignment, spec = self._present()
            if spec.recovery_log != log:
                return True  # it is assigned again with the log of its spec
            return await require_log(self._etcd, spec, assignment, created)

        await self._insist(attempt)

    async def put_hints(self, hints: FsmHints) -> None:
        """Keep hints of the recorder that is at work, by one attempt: others follow.

        None are kept, and a warning is logged, once the spec names another log; so too of backups.

        Raises: AssignmentGone. EtcdError: retriable if etcd does not answer now.
        Cancellation: leaves open whether they were written.
        """
        assignment, spec = self._present()
        if not _is_log_of(spec, hints):
            return
        if not await put_primary_hints(self._etcd, spec, assignment, hints):
            raise AssignmentGone("its assignment is gone", journal=spec.id)

    async def put_backup_hints(self, hints: FsmHints) -> None:
        """Keep hints of a recovery that succeeded, before older ones.

        Those that are the newest already are not kept twice.

        Raises: AssignmentGone. EtcdError: not retriable.
        Cancellation: leaves open whether they were written.
        """

        async def attempt() -> bool:
            assignment, spec = self._present()
            if not _is_log_of(spec, hints):
                return True
            return await rotate_hints(self._etcd, spec, assignment, hints)

        await self._insist(attempt)

    def _present(self) -> tuple[ShardAssignment, ShardSpec]:
        """The assignment and the shard, as of now. Raises: AssignmentGone: one of them is gone."""
        state, held = self._space.state, self._held
        item, found = (
            state.items.get(held.shard),
            state.assignment_of(held.shard, held.process_id),
        )
        if item is None or found is None or found.create_revision != held.create_revision:
            raise AssignmentGone("its assignment is gone", journal=held.shard)
        return found, item.spec

    async def _insist(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Do it until it is done. What it raises, but that etcd did not answer, ends it."""
        failures = 0
        while True:
            try:
                if await attempt():
                    return
            except EtcdError as err:
                if not err.retriable:
                    raise
            await asyncio.sleep(backoff_s(failures, STATUS_RETRY_S))
            failures += 1


def _is_log_of(spec: ShardSpec, hints: FsmHints) -> bool:
    """Whether hints are of the log that a shard has, by its spec of now.

    A replica stays with the log that it began with. Hints that are kept are for whoever begins next, with
    the log of the spec: there may be some already that the replica must not take away.
    """
    if hints.log == spec.recovery_log:
        return True
    _log.warning(
        "shard %s: it runs on recovery log %s, and its spec names %s: no hints are kept until it is assigned "
        "again (unassign it, once there are hints of that log)",
        spec.id,
        hints.log,
        spec.recovery_log or "none",
    )
    return False


def _hints_of(message: pb.GetHintsResponse.ResponseHints) -> FsmHints | None:
    return FsmHints.from_pb(message.hints) if message.HasField("hints") else None
