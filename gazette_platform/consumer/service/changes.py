"""Transactions of etcd that calls ask for: shards applied, assignments removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, final

from gazette_platform.consumer.cluster import encode_shard_spec, primary_hint_key
from gazette_platform.consumer.protocol import ReplicaCode, ShardSpec, ShardStatus
from gazette_platform.consumer.recoverylog import FsmHints
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Delete, Operation, Put
from gazette_platform.keyspace import item_key, items_prefix
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.auth import Forbidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_platform.consumer.cluster import ConsumerState
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.keyspace import KeySpace
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.protocol.pb import consumer_pb2 as pb

__all__ = ["Changed", "ShardChanges"]

# A transaction may fail by a comparison that we added. It is built again after a moment, in which
# the watch brings the change that it failed by.
_RETRIES_MAX: Final = 3
_RETRY_S: Final = 0.05
# For our own write to come back by the watch.
_VIEW_TIMEOUT_S: Final = 60.0


class Changed(NamedTuple):
    """What became of a transaction."""

    status: ShardStatus
    revision: int
    """Of etcd, behind it; 0: none was made."""


@final
class ShardChanges:
    """Makes changes of one group."""

    def __init__(self, etcd: EtcdClient, space: KeySpace[ConsumerState]) -> None:
        self._etcd = etcd
        self._space = space

    async def apply(self, request: pb.ApplyRequest, claims: Claims) -> Changed:
        """Make all changes of a valid request at once, and wait for our view of them.

        Raises: Forbidden: a change is beyond the claims. ValidationError: hints for a shard without a
            log, or two shards would have one log, or one key of hints. EtcdError. Cancellation: leaves open whether it was applied.
        """
        compares, operations, is_implied = await self._transaction(request, claims)
        result = await self._etcd.txn(compares, operations)
        for _ in range(_RETRIES_MAX if is_implied else 0):
            if result.succeeded:
                break
            await asyncio.sleep(_RETRY_S)
            compares, operations, _ = await self._transaction(request, claims)
            result = await self._etcd.txn(compares, operations)
        if not result.succeeded:
            return Changed(ShardStatus.ETCD_TRANSACTION_FAILED, result.header.revision)
        if self._changes_anything(request):
            await self._seen(result.header.revision)
        return Changed(ShardStatus.OK, result.header.revision)

    async def unassign(
        self, shards: Sequence[str], claims: Claims, *, only_failed: bool, dry_run: bool
    ) -> tuple[Changed, list[str]]:
        """Remove assignments that have failed, and those of primaries; hot standbys stay.

        Args:
            shards: IDs; one that does not exist has no assignments.
            claims: of the caller.
            only_failed: whether primaries that have not failed stay, too.
            dry_run: whether to remove nothing.

        Returns: what became of it, and the shards that lost an assignment, or would.
        Raises: Forbidden: a shard is beyond the claims. EtcdError.
        Cancellation: leaves open whether they were removed.
        """
        turns = Turns()
        for shard in shards:
            await turns.take()
            _require(shard, (LabelSet.of(id=shard),), claims)
        compares: list[Compare] = []
        removals: list[Operation] = []
        affected: list[str] = []
        for shard in dict.fromkeys(shards):
            gone = [
                each
                for each in self._space.state.assignments_of(shard)
                if each.status.code is ReplicaCode.FAILED or (each.slot == 0 and not only_failed)
            ]
            compares += (Compare.mod(each.key, each.mod_revision) for each in gone)
            removals += (Delete(each.key) for each in gone)
            if gone:
                affected.append(shard)
        if dry_run or not removals:
            return Changed(ShardStatus.OK, 0), affected
        result = await self._etcd.txn(compares, removals)
        if not result.succeeded:
            return Changed(ShardStatus.ETCD_TRANSACTION_FAILED, result.header.revision), []
        await self._seen(result.header.revision)
        return Changed(ShardStatus.OK, result.header.revision), affected

    async def _seen(self, revision: int) -> None:
        await self._space.wait_for_revision(revision, timeout_s=_VIEW_TIMEOUT_S)

    async def _transaction(
        self, request: pb.ApplyRequest, claims: Claims
    ) -> tuple[list[Compare], list[Operation], bool]:
        """The transaction that a request asks for, after checking that its caller may make it.

        Returns: comparisons; operations; and whether some comparisons are ours rather than the
            caller's. These make sure that a shard still is what the claims were held against, and that no other
            shard has taken its log or hints.
        """
        compares = self._check_apart(request, claims)
        operations: list[Operation] = []
        is_limited = bool(claims.selector.include or claims.selector.exclude)
        is_implied = bool(compares)
        turns = Turns()
        for change in request.changes:
            await turns.take()
            spec = ShardSpec.from_pb(change.upsert) if change.HasField("upsert") else None
            shard = spec.id if spec is not None else change.delete
            item = self._space.state.items.get(shard)
            labels = spec.label_set_with_id() if spec is not None else LabelSet.of(id=shard)
            present = (item.spec.label_set_with_id(),) if item is not None else ()
            _require(shard, (labels, *present), claims)
            key = item_key(self._space.prefix, shard)
            expected, judged = change.expect_mod_revision, item.mod_revision if item else 0
            if expected != -1:
                compares.append(Compare.mod(key, expected))
            if is_limited and judged != expected:
                # The claims were held against the spec in our view, which may be out of date.
                compares.append(Compare.mod(key, judged))
                is_implied = True
            if spec is None:
                operations.append(Delete(key))
                continue
            operations.append(Put(key, encode_shard_spec(spec)))
            if change.HasField("primary_hints"):
                operations.append(_hints_put(spec, FsmHints.from_pb(change.primary_hints)))
        return compares, operations, is_implied

    def _check_apart(self, request: pb.ApplyRequest, claims: Claims) -> list[Compare]:
        """Check that no shard would share its log or its hints: two would fence each other, and mix their state.

        Returns: the condition that our view, which was checked, has all shards; none if no shard gets other names.
        Raises: ValidationError.
        """
        upserts = [
            (ShardSpec.from_pb(each.upsert), each.expect_mod_revision)
            for each in request.changes
            if each.HasField("upsert")
        ]
        if not any(spec.recovery_log_prefix for spec, _ in upserts):
            return []
        changed = {spec.id for spec, _ in upserts} | {each.delete for each in request.changes}
        owners = {
            name: item.spec
            for shard, item in self._space.state.items.items()
            if shard not in changed
            for name in _names_of(item.spec)
        }
        for spec, _ in upserts:
            for name in _names_of(spec):
                other = owners.setdefault(name, spec)
                if other.id == spec.id:
                    continue
                whose = other.id if claims.match(other.label_set_with_id()) else "another shard"
                raise ValidationError(
                    f"Shard[{spec.id}]: its {' '.join(name)} is that of {whose} too (choose another ID, "
                    "recovery_log_prefix or hint_prefix)"
                )
        if all(self._keeps_names(*each) for each in upserts):
            return []
        return [Compare.none_since(items_prefix(self._space.prefix), self._space.revision)]

    def _keeps_names(self, spec: ShardSpec, expected: int) -> bool:
        """Whether a shard has no log, or replaces the spec of our view with one of the same log and hints."""
        names, item = _names_of(spec), self._space.state.items.get(spec.id)
        if not names or item is None:
            return not names
        return item.mod_revision == expected and _names_of(item.spec) == names

    def _changes_anything(self, request: pb.ApplyRequest) -> bool:
        """Whether a transaction that succeeded has a revision of its own to wait for.

        It has none if there are no changes, or if all of them delete shards that do not exist, without
        expecting a revision.
        """
        if any(c.HasField("upsert") or c.expect_mod_revision > 0 for c in request.changes):
            return True
        return any(c.delete in self._space.state.items for c in request.changes)


def _names_of(spec: ShardSpec) -> list[tuple[str, str]]:
    """What no two shards may share: what it is, and its name."""
    if not spec.recovery_log_prefix:
        return []
    return [("recovery log", spec.recovery_log), ("key of hints", primary_hint_key(spec))]


def _hints_put(spec: ShardSpec, hints: FsmHints) -> Put:
    key = primary_hint_key(spec)
    if not key:
        raise ValidationError(f"shard {spec.id} has no recovery log, and so no PrimaryHints")
    return Put(key, hints.to_json())


def _require(shard: str, labels: Sequence[LabelSet], claims: Claims) -> None:
    """Raises: Forbidden: some of the labels that a shard has or gets are beyond the claims."""
    if not all(claims.match(each) for each in labels):
        raise Forbidden(f"not authorized to {shard}")
