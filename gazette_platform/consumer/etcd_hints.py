"""What a replica keeps in etcd: hints of its shard's recovery log, and its status.

Hints of a shard are read all at once, and written under guards.
Any consumer may have written them, Gazette's included, so each is checked before it is played.
They hold offsets of the log, and a shard without hints reads it from 0. A key beside them says which journal these
offsets belong to (`protocol.offsets`): the form of hints is Gazette's, and a shard has none for its first minutes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, final

from gazette_platform.consumer.assignments import (
    STATUS_RETRY_S,
    backup_hint_keys,
    log_identity_key,
    primary_hint_key,
    rotate_backup_hints,
    write_log_identity,
    write_primary_hints,
    write_status,
)
from gazette_platform.consumer.protocol import ReplicaCode, ReplicaStatus, ShardStatus
from gazette_platform.consumer.recoverylog import Fsm, FsmHints
from gazette_platform.errors import (
    AssignmentGone,
    DataError,
    EtcdError,
    ValidationError,
    status_error,
)
from gazette_platform.etcd import Get
from gazette_platform.ops.faults import backoff_s
from gazette_platform.protocol import learned, require_same
from gazette_platform.protocol.auth import ALL_CLAIMS
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gazette_platform.consumer.assignments import ShardAssignment
    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.resolver import ShardResolver
    from gazette_platform.etcd import EtcdClient, KeyValue, Lease
    from gazette_platform.protocol.auth import Claims


@dataclass(frozen=True, slots=True)
class StoredHints:
    """What etcd holds of one shard, as of one revision."""

    primary: FsmHints | None = None
    """None: there is no value; likewise below."""
    backups: tuple[FsmHints | None, ...] = ()
    """One for each backup that the spec asks for, newest first."""


async def fetch_hints(etcd: EtcdClient, spec: ShardSpec) -> StoredHints:
    """Read all hints of a shard in one transaction; a shard without a log has none.

    Raises: EtcdError. DataError: a value cannot be decoded, cannot be played, or is of another log; the
        error names its key.
    Cancellation: safe.
    """
    if not spec.recovery_log_prefix:
        return StoredHints()
    primary, *backups = await _read(etcd, (primary_hint_key(spec), *backup_hint_keys(spec)))
    # In a thread: hints of many files take long to be checked, and others have their turn meanwhile.
    return await asyncio.to_thread(_all_checked, primary, backups, spec)


async def put_primary_hints(
    etcd: EtcdClient, spec: ShardSpec, assignment: ShardAssignment, hints: FsmHints
) -> bool:
    """Keep the hints of the recorder that is at work.

    Returns: False: the assignment is not there any more, and nothing was written.
    Raises: EtcdError: `retriable` says whether that passes; the next hints then make up for these.
    Cancellation: leaves open whether it was written.
    """
    write = write_primary_hints(spec, assignment, hints.to_json())
    return (await etcd.txn(write.compares, write.operations)).succeeded


async def rotate_hints(
    etcd: EtcdClient, spec: ShardSpec, assignment: ShardAssignment, hints: FsmHints
) -> bool:
    """Keep the hints of a recovery as the newest backup, and move the older ones on.

    Values are moved as they are. Whoever calls this does so again until it held, after the pauses of
    `STATUS_RETRY_S`, for as long as the shard is assigned.

    Returns: whether it held; False: the assignment no longer exists, or another process wrote.
    Raises: EtcdError. Cancellation: leaves open whether it was written.
    """
    keys = backup_hint_keys(spec)
    if not keys:
        return True
    present = await _read(etcd, keys)
    write = rotate_backup_hints(spec, assignment, hints.to_json(), present)
    return (await etcd.txn(write.compares, write.operations)).succeeded


async def require_log(
    etcd: EtcdClient, spec: ShardSpec, assignment: ShardAssignment, created: int
) -> bool:
    """Refuse a recovery log that was deleted and made again. Note which journal it is, unless that is known.

    Args:
        created: which journal has the name of the log now (`protocol.offsets`); 0: unknown.

    Returns: whether it is known now; False: the assignment is not there any more.
    Raises: JournalReplaced. EtcdError. DataError: the value is none of ours.
    Cancellation: leaves open whether it was written.
    """
    key = log_identity_key(spec)
    if not (key and created):
        return True
    (found,) = await _read(etcd, (key,))
    kept = _created_of(found, spec)
    require_same(
        spec.recovery_log,
        kept,
        created,
        offset=0,
        advice="to restart the shard, give it another recovery_log_prefix and hint_prefix; if this log holds "
        f"what the former one held, delete the key {key} of etcd",
    )
    created = learned(kept, created)
    if kept == created:
        return True
    identity = json.dumps({"log": spec.recovery_log, "created": created}).encode()
    write = write_log_identity(spec, assignment, identity)
    return (await etcd.txn(write.compares, write.operations)).succeeded


def _created_of(found: KeyValue | None, spec: ShardSpec) -> int:
    """Which journal was kept as the log; 0: none was, or it is of another log."""
    if found is None:
        return 0
    try:
        document = json.loads(found.value)
        log, created = document["log"], int(document["created"])
    except (ValueError, TypeError, KeyError) as err:
        raise DataError(
            f"{found.key}: expected JSON with `log` and `created` ({err!r}; delete the key)"
        ) from err
    return created if log == spec.recovery_log else 0


async def _read(etcd: EtcdClient, keys: Sequence[str]) -> list[KeyValue | None]:
    result = await etcd.txn([], [Get(key) for key in keys])
    return [read.kvs[0] if read.kvs else None for read in result.reads]


def _all_checked(
    primary: KeyValue | None, backups: Sequence[KeyValue | None], spec: ShardSpec
) -> StoredHints:
    return StoredHints(_checked(primary, spec), tuple(_checked(each, spec) for each in backups))


def _checked(found: KeyValue | None, spec: ShardSpec) -> FsmHints | None:
    if found is None:
        return None
    try:
        hints = FsmHints.from_bytes(found.value)
        Fsm(hints)
    except (DataError, ValidationError) as err:
        raise DataError(f"{found.key}: {err}") from err
    if hints.log != spec.recovery_log:
        raise DataError(
            f"{found.key}: the hints are of recovery log {hints.log}, and that of shard {spec.id} is "
            f"{spec.recovery_log} (was its prefix changed? Then write hints of the new log, or delete "
            "the key)"
        )
    return hints


_log = logging.getLogger(__name__)

# For our own write to come back by the watch, after which it is looked at again.
_VIEW_TIMEOUT_S: Final = 10.0


class HintsApi(Protocol):
    """What a replica needs of the shard API of its process."""

    @property
    def etcd(self) -> EtcdClient:
        """Where hints and statuses are."""
        ...

    @property
    def resolver(self) -> ShardResolver:
        """Has the mirror of etcd."""
        ...

    async def get_hints(self, request: pb.GetHintsRequest, claims: Claims) -> pb.GetHintsResponse:
        """Hints of a shard."""
        ...


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
        self, api: HintsApi, assignment: ShardAssignment, *, lease: Lease | None = None
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
