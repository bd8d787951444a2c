"""Answers the calls of `consumer.Shard`.

Applications may replace what a call does by a class of their own, over this one; `extension` of requests
and responses is for them.

Source: Gazette's consumer.ShardAPI. Departs: as for journals, Apply asks that the labels which a shard
has now are within the claims, too, and not only those that it gets.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gazette_platform.consumer.protocol import (
    ShardStatus,
    validate_shard_change,
    validate_shard_list_request,
    validate_shard_unassign_request,
)
from gazette_platform.consumer.service.changes import ShardChanges
from gazette_platform.consumer.service.hints import StoredHints, fetch_hints
from gazette_platform.consumer.service.resolver import WAIT_S_MAX
from gazette_platform.errors import ValidationError
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import Header, LabelSelector, Route
from gazette_platform.protocol.names import check_field
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from gazette_platform.consumer.recoverylog import FsmHints
    from gazette_platform.consumer.service.peers import ConsumerPeers
    from gazette_platform.consumer.service.resolver import ShardResolver
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.protocol.auth import Claims

__all__ = ["ShardApi"]

# Changes, or shards to unassign: far beyond the 128 operations that etcd takes in a transaction, unless it
# is told otherwise.
_CHANGES_MAX: Final = 8192


class ShardApi:
    """The calls of one process. Each takes the claims of its caller, who may make such a call.

    All raise `ValidationError` for a request that breaks a rule, `Forbidden` for what is beyond the
    claims, `EtcdError` if etcd does not answer, and `RpcFailed`.
    """

    def __init__(self, etcd: EtcdClient, resolver: ShardResolver, peers: ConsumerPeers) -> None:
        self.etcd = etcd
        self.resolver = resolver
        self._peers = peers
        self._changes = ShardChanges(etcd, resolver.space)

    def header(self, *, revision: int = 0) -> Header:
        """Our header, without a route.

        Args:
            revision: of etcd, in place of that of the last change of the group.
        """
        etcd = self.resolver.space.header
        if revision:
            etcd = type(etcd)(etcd.cluster_id, etcd.member_id, revision, etcd.raft_term)
        return Header(self.resolver.process_id, Route(), etcd)

    # ---------------------------------------------------------------------------------- Stat
    async def stat(self, request: pb.StatRequest, claims: Claims) -> pb.StatResponse:
        """How far a shard is, as its primary says, once it has read through what is asked for.

        Cancellation: safe; reaches the primary.
        """
        is_forwarded = request.HasField("header")
        found = await self.resolver.resolve(
            request.shard,
            may_proxy=not is_forwarded,
            read_through=dict(request.read_through),
            proxy_header=Header.from_pb(request.header) if is_forwarded else None,
            claims=claims,
        )
        if found.is_remote:
            forwarded = pb.StatRequest()
            forwarded.CopyFrom(request)
            found.header.into_pb(forwarded.header)
            raw = await self._peers.stat(
                found.header,
                request.shard,
                forwarded.SerializeToString(),
                timeout_s=WAIT_S_MAX,
            )
            return pb.StatResponse.FromString(raw)
        with found:
            response = pb.StatResponse()
            response.status = found.status.value  # type: ignore[assignment]
            found.header.into_pb(response.header)
            if found.replica is not None:
                response.read_through.update(found.replica.progress.read_through)
                response.publish_at.update(found.replica.progress.publish_at)
            return response

    # ---------------------------------------------------------------------------------- List
    async def list_shards(self, request: pb.ListRequest, claims: Claims) -> pb.ListResponse:
        """The shards that both the request and its caller's claims select, in order of IDs.

        Route and statuses of a shard are of one revision, which may be later than the header's.

        Cancellation: safe.
        """
        validate_shard_list_request(request)
        state = self.resolver.space.state
        response = pb.ListResponse()
        self.header().into_pb(response.header)
        selectors = dict.fromkeys((LabelSelector.from_pb(request.selector), claims.selector))
        matchers = [each.compiled() for each in selectors if each.include or each.exclude]
        shards, items, turns = list(state.shards), dict(state.items), Turns()
        for shard in shards:
            await turns.take()
            item = items[shard]
            labels = item.spec.label_set_with_id()
            if not all(matcher.matches(labels) for matcher in matchers):
                continue
            listed = response.shards.add(
                mod_revision=item.mod_revision, create_revision=item.create_revision
            )
            listed.spec.CopyFrom(item.spec.to_pb())
            state.route_of(shard).into_pb(listed.route)
            listed.status.extend(status.to_pb() for status in state.statuses_of(shard))
        return response

    # ------------------------------------------------------------------------------ GetHints
    async def get_hints(self, request: pb.GetHintsRequest, claims: Claims) -> pb.GetHintsResponse:
        """The hints that etcd holds of a shard, each checked.

        Raises: DataError: one cannot be played, or is of another log. Cancellation: safe.
        """
        response = pb.GetHintsResponse()
        response.primary_hints.SetInParent()
        self.header().into_pb(response.header)
        item = self.resolver.space.state.items.get(request.shard)
        if item is None or not claims.match(item.spec.label_set_with_id()):
            response.status = ShardStatus.SHARD_NOT_FOUND.value  # type: ignore[assignment]
            return response
        stored = await fetch_hints(self.etcd, item.spec)
        await asyncio.to_thread(_put_stored, response, stored)
        return response

    # ------------------------------------------------------------------------------- changes
    async def apply(self, request: pb.ApplyRequest, claims: Claims) -> pb.ApplyResponse:
        """Make all changes in one transaction, and wait until our own view has it.

        Cancellation: leaves open whether it was applied.
        """
        if len(request.changes) > _CHANGES_MAX:
            raise ValidationError(
                f"invalid number of Changes ({len(request.changes)}; expected <= {_CHANGES_MAX})"
            )
        turns = Turns()
        for index, change in enumerate(request.changes):
            await turns.take()
            check_field(f"Changes[{index}]", validate_shard_change, change)
        done = await self._changes.apply(request, claims)
        response = pb.ApplyResponse()
        response.status = done.status.value  # type: ignore[assignment]
        self.header(revision=done.revision).into_pb(response.header)
        return response

    async def unassign(self, request: pb.UnassignRequest, claims: Claims) -> pb.UnassignResponse:
        """Remove assignments, so that their shards are assigned anew, and wait until our view has it.

        Cancellation: leaves open whether they were removed.
        """
        if len(request.shards) > _CHANGES_MAX:
            raise ValidationError(
                f"invalid number of Shards ({len(request.shards)}; expected <= {_CHANGES_MAX})"
            )
        validate_shard_unassign_request(request)
        done, shards = await self._changes.unassign(
            list(request.shards), claims, only_failed=request.only_failed, dry_run=request.dry_run
        )
        response = pb.UnassignResponse(shards=shards if done.status is ShardStatus.OK else ())
        response.status = done.status.value  # type: ignore[assignment]
        return response


def _put_stored(response: pb.GetHintsResponse, stored: StoredHints) -> None:
    _put_hints(response.primary_hints, stored.primary)
    for hints in stored.backups:
        _put_hints(response.backup_hints.add(), hints)


def _put_hints(message: pb.GetHintsResponse.ResponseHints, hints: FsmHints | None) -> None:
    if hints is not None:
        message.hints.CopyFrom(hints.to_pb())
