"""Answer the calls of `consumer.Shard`, over gRPC and as JSON over HTTP: who serves a shard, how far it is, changes of shards.

An answer is true of one revision of etcd, which its header names. A change has reached our own view before it is
answered. Any process of the group answers any call: it may have another process answer (`peers`). A resolution costs no
call of etcd, a change one transaction.

`ShardApi` decides. An application may replace it with its own subclass, and use `extension` of requests and responses.
`ShardService` adds tokens, codes and bytes. `ShardGateway` serves List and Stat as JSON, for scripts and pages;
each response is what the same call over gRPC returns.

Source: Gazette's consumer.ShardAPI. Departs: as for journals, the claims of an Apply must also include the labels
that a shard has now, and not only those that it gets.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

from google.protobuf.message import Message

from gazette_platform.consumer.assignments import encode_shard_spec, primary_hint_key
from gazette_platform.consumer.etcd_hints import StoredHints, fetch_hints
from gazette_platform.consumer.protocol import (
    ReplicaCode,
    ShardSpec,
    ShardStatus,
    validate_shard_change,
    validate_shard_list_request,
    validate_shard_unassign_request,
)
from gazette_platform.consumer.recoverylog import FsmHints
from gazette_platform.consumer.resolver import WAIT_S_MAX
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import Compare, Delete, Operation, Put
from gazette_platform.keyspace import item_key, items_prefix
from gazette_platform.ops.tasks import Turns
from gazette_platform.protocol import Header, LabelSelector, LabelSet, Route
from gazette_platform.protocol.auth import Capability, Forbidden
from gazette_platform.protocol.names import check_field
from gazette_platform.protocol.pb import admin_pb2 as admin_pb, consumer_pb2 as pb
from gazette_platform.serving.calls import before_expiry, failure_of
from gazette_platform.serving.http_server import (
    INVALID_ARGUMENT,
    RestRoutes,
    caller_metadata,
    error_of,
    message_line,
    parse_request,
)
from gazette_platform.serving.interface import Kind, Rpc, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp import web

    from gazette_platform.consumer.assignments import ConsumerState
    from gazette_platform.consumer.peers import ConsumerPeers
    from gazette_platform.consumer.resolver import ShardResolver
    from gazette_platform.etcd import EtcdClient
    from gazette_platform.keyspace import KeySpace
    from gazette_platform.ops.faults import Faults
    from gazette_platform.protocol.auth import Claims
    from gazette_platform.serving.auth import Authenticator
    from gazette_platform.serving.http_server import Origins
    from gazette_platform.serving.interface import Metadata, Unary

# ------------------------------------------------------------------ calls

# Changes, or shards to unassign: far beyond the 128 operations that etcd takes in a transaction, unless it
# is set otherwise.
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
        """Remove assignments, so that their shards are assigned again, and wait until our view has it.

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


# ------------------------------------------------------------------ transactions of etcd

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
    """Of etcd, after it; 0: none was made."""


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


Q = TypeVar("Q", bound=Message)

_SERVICE: Final = "consumer.Shard"
_OWN_SERVICE: Final = "gazette_platform.ConsumerAdmin"


@final
class ShardService:
    """All calls. Each is authorized, and ends when its caller's token expires.

    Args:
        http_endpoint: URL of this process's HTTP port, once it is known.

    Attributes:
        rpcs: for a `GrpcServer`.
        list_shards: serves List, over HTTP as well as gRPC.
        stat: serves Stat, over HTTP as well as gRPC.
    """

    def __init__(
        self,
        api: ShardApi,
        auth: Authenticator,
        faults: Faults,
        *,
        http_endpoint: Callable[[], str] = str,
    ) -> None:
        self._auth = auth
        self._faults = faults
        self._http_endpoint = http_endpoint
        can = Capability
        self.stat = self._unary("Stat", can.READ, pb.StatRequest, api.stat)
        self.list_shards = self._unary("List", can.LIST, pb.ListRequest, api.list_shards)
        hints = self._unary("GetHints", can.READ, pb.GetHintsRequest, api.get_hints)
        unassign = self._unary("Unassign", can.APPLY, pb.UnassignRequest, api.unassign)
        self.rpcs = (
            Rpc(_SERVICE, "Stat", Kind.UNARY, self.stat),
            Rpc(_SERVICE, "List", Kind.UNARY, self.list_shards),
            Rpc(
                _SERVICE,
                "Apply",
                Kind.UNARY,
                self._unary("Apply", can.APPLY, pb.ApplyRequest, api.apply),
            ),
            Rpc(_SERVICE, "GetHints", Kind.UNARY, hints),
            Rpc(_SERVICE, "Unassign", Kind.UNARY, unassign),
            Rpc(
                _OWN_SERVICE,
                "HttpEndpoint",
                Kind.UNARY,
                self._unary(
                    "HttpEndpoint", can.READ, admin_pb.HttpEndpointRequest, self._tell_http_endpoint
                ),
            ),
        )

    async def _tell_http_endpoint(
        self, _request: admin_pb.HttpEndpointRequest, _claims: Claims
    ) -> admin_pb.HttpEndpointResponse:
        return admin_pb.HttpEndpointResponse(endpoint=self._http_endpoint())

    def _unary(
        self,
        name: str,
        capability: Capability,
        kind: type[Q],
        method: Callable[[Q, Claims], Awaitable[Any]],
    ) -> Unary:
        async def serve(raw: bytes, metadata: Metadata) -> bytes:
            try:
                claims = self._auth.authorize(metadata, capability)
                request = kind.FromString(raw)
                work = method(request, claims)
                response: Message = await before_expiry(self._auth.limit(claims), work)
                return response.SerializeToString()
            except RpcFailed:
                raise  # and not `from` itself: that cycle would keep what its frames hold
            except Exception as err:
                raise failure_of(name, err, self._faults) from err

        return serve


@dataclass(frozen=True, slots=True)
class _Method:
    """A call, and how requests come to it."""

    serve: Unary
    request: type[pb.ListRequest | pb.StatRequest]
    response: type[pb.ListResponse | pb.StatResponse]


@final
class ShardGateway(RestRoutes):
    """Serves ``POST /v1/shards/list`` and ``POST /v1/shards/stat``."""

    def __init__(self, service: ShardService, *, origins: Origins) -> None:
        super().__init__(origins)
        self._methods = {
            "list": _Method(service.list_shards, pb.ListRequest, pb.ListResponse),
            "stat": _Method(service.stat, pb.StatRequest, pb.StatResponse),
        }

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        for name, method in self._methods.items():
            router.add_post(f"/v1/shards/{name}", partial(self._answer, method))
            router.add_options(f"/v1/shards/{name}", self.preflight)

    async def _answer(self, method: _Method, request: web.Request) -> web.StreamResponse:
        """Answer a request. Cancellation: the client has gone; ends the call."""
        try:
            message = parse_request(method.request, await self.read_body(request))
        except ValidationError as err:
            return self.refusal(request, str(err), INVALID_ARGUMENT)
        try:
            raw = await method.serve(message.SerializeToString(), caller_metadata(request))
        except RpcFailed as err:
            return self.refusal(request, err.text, error_of(err))
        return self.answer(request, message_line(method.response.FromString(raw)))
