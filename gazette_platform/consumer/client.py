"""A client of the shards of a consumer group, and the check of the journals that their specs name."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, final

from gazette_platform.client.config import ClientConfig
from gazette_platform.client.transport import Repeat, Transport, UnaryCall, UnaryMethod, ask
from gazette_platform.consumer.protocol import (
    ReplicaStatus,
    ShardSpec,
    ShardStatus,
    validate_shard_apply_request,
    validate_shard_apply_response,
    validate_shard_hints_response,
    validate_shard_list_response,
    validate_shard_stat_response,
    validate_shard_unassign_request,
)
from gazette_platform.consumer.recoverylog import CONTENT_TYPE, FsmHints
from gazette_platform.errors import ValidationError, status_error
from gazette_platform.message import framing_of_labels
from gazette_platform.ops.clock import Clock, SystemClock
from gazette_platform.ops.tasks import AsyncClosing, TaskGroup
from gazette_platform.protocol import Header, Label, LabelSelector, LabelSet, Route, strip_meta
from gazette_platform.protocol.auth import Capability
from gazette_platform.protocol.pb import consumer_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.client import AsyncClient
    from gazette_platform.consumer.protocol import ShardChange

UNASSIGN_SHARDS_MAX: Final = 100
"""Shards of one call, which is one transaction of etcd."""

_NO_HINTS: Final[Mapping[str, FsmHints]] = {}

_LIST: Final = UnaryMethod(
    path="/consumer.Shard/List",
    response=pb.ListResponse,
    capability=Capability.LIST,
    validate=validate_shard_list_response,
)
_STAT: Final = UnaryMethod(
    path="/consumer.Shard/Stat",
    response=pb.StatResponse,
    capability=Capability.READ,
    # One that is not answered in time has waited as long as its caller wants.
    repeat=Repeat.IF_RETRIABLE,
    needs_primary=True,
    validate=validate_shard_stat_response,
)
_HINTS: Final = UnaryMethod(
    path="/consumer.Shard/GetHints",
    response=pb.GetHintsResponse,
    capability=Capability.READ,
    validate=validate_shard_hints_response,
)
_APPLY: Final = UnaryMethod(
    path="/consumer.Shard/Apply",
    response=pb.ApplyResponse,
    capability=Capability.APPLY,
    repeat=Repeat.IF_UNSENT,
    validate=validate_shard_apply_response,
)
_UNASSIGN: Final = UnaryMethod(
    path="/consumer.Shard/Unassign",
    response=pb.UnassignResponse,
    capability=Capability.APPLY,
    repeat=Repeat.IF_UNSENT,
)


@dataclass(frozen=True, slots=True)
class ShardListing:
    """A shard as etcd holds it, and who runs it."""

    spec: ShardSpec
    mod_revision: int
    """Revision to expect when the spec is changed."""
    create_revision: int
    route: Route
    statuses: tuple[ReplicaStatus, ...]
    """Of each member of the route."""

    @property
    def id(self) -> str:
        """ID of the shard."""
        return self.spec.id

    @property
    def status(self) -> ReplicaStatus:
        """Of all replicas together."""
        return ReplicaStatus.folded(self.statuses)


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """All shards matching a selector, ordered by ID."""

    shards: tuple[ShardListing, ...]
    header: Header

    def __iter__(self) -> Iterator[ShardListing]:
        return iter(self.shards)

    def __len__(self) -> int:
        return len(self.shards)


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """How far a shard is, as of its last completed transaction."""

    read_through: Mapping[str, int]
    """Offset by source."""
    publish_at: Mapping[str, int]
    """By journal, end of the last ACK, of those written since the shard was assigned."""
    header: Header


@dataclass(frozen=True, slots=True)
class ShardHintsListing:
    """The hints that etcd holds of a shard; None: there is no value."""

    primary: FsmHints | None
    backups: tuple[FsmHints | None, ...] = field(default=())
    """Newest first."""

    @property
    def slots(self) -> tuple[FsmHints | None, ...]:
        """All of them."""
        return (self.primary, *self.backups)


@final
class ShardClient(AsyncClosing):
    """Lists, applies and asks about the shards of one consumer group, through any process of it.

    Opens no connection before the first call, and belongs to the event loop that makes it. Every call
    retries what is likely to pass, for as long as its config says. It raises a `StatusError` for what
    processes refuse, and a `TransportError` if they did not answer.

    Args:
        config: its address is that of any process of the group, or several.
    """

    def __init__(self, config: ClientConfig | None = None, *, clock: Clock | None = None) -> None:
        self.config = config or ClientConfig()
        self._tasks = TaskGroup("shard client")
        self._transport = Transport(
            self.config, clock or SystemClock(), self._tasks, peer="consumer"
        )
        self._is_closed = False

    async def close(self) -> None:
        """End calls and close all connections. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.read_ahead.close()
        await self._tasks.close()
        await self._transport.close()

    async def list(self, selector: LabelSelector | str = "") -> ShardSnapshot:
        """All shards whose labels match.

        Args:
            selector: as ``id=a-shard, region=eu``; empty matches all.

        Raises: ValidationError: the selector does not parse; TransportError.
        Cancellation: safe.
        """
        if isinstance(selector, str):
            selector = LabelSelector.parse(selector)
        call = UnaryCall(
            method=_LIST,
            request=pb.ListRequest(selector=selector.to_pb()),
            what="list of shards",
            claim=selector,
        )
        return await ask(self._transport, call, self._read_list)

    def _read_list(self, response: pb.ListResponse) -> ShardSnapshot:
        _check_status(response.status)
        header = self._transport.learn("", response.header)
        return ShardSnapshot(tuple(map(_listing, response.shards)), header)

    async def stat(
        self,
        shard: str,
        read_through: Mapping[str, int] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> ShardProgress:
        """How far a shard is, once it has read through what is asked for.

        Args:
            shard: its ID.
            read_through: offsets by journal to wait for, such as ends of appends. Journals that the
                shard does not read are not waited for.
            timeout_s: seconds for one attempt; None: as configured.

        Raises: ShardNotFound, NoShardPrimary, ShardStopped: the latter two after trying for a while;
            CallUnanswered: it did not get there in time; TransportError.
        Cancellation: safe.
        """
        call = UnaryCall(
            method=_STAT,
            request=pb.StatRequest(shard=shard, read_through=dict(read_through or {})),
            what=f"stat of {shard}",
            journal=shard,
            claim=_of(shard),
            timeout_s=timeout_s,
        )
        return await ask(self._transport, call, partial(self._read_stat, shard))

    def _read_stat(self, shard: str, response: pb.StatResponse) -> ShardProgress:
        header = self._transport.learn(shard, response.header)
        if response.status:
            self._transport.forget(shard)
        _check_status(response.status, shard)
        return ShardProgress(dict(response.read_through), dict(response.publish_at), header)

    async def get_hints(self, shard: str) -> ShardHintsListing:
        """The hints of a shard's recovery log.

        Raises: ShardNotFound; CallFailed: a value in etcd cannot be played; TransportError.
        Cancellation: safe.
        """
        call = UnaryCall(
            method=_HINTS,
            request=pb.GetHintsRequest(shard=shard),
            what=f"hints of {shard}",
            claim=_of(shard),
        )
        return await ask(self._transport, call, partial(_read_hints, shard))

    async def apply(
        self,
        changes: Sequence[ShardChange],
        *,
        batch_size: int = 0,
        primary_hints: Mapping[str, FsmHints] = _NO_HINTS,
    ) -> int:
        """Create, update and delete shards in one transaction, or in batches.

        Args:
            changes: each with the revision it expects: 0 to create, -1 not to check.
            batch_size: changes per transaction; 0: all. Batches before a failed one stay applied.
            primary_hints: by ID of shards that are created or updated, to be kept with them.

        Returns: revision of etcd after the last transaction.

        Raises:
            EtcdTransactionFailed: another caller has changed a shard since.
            ValidationError: a change is invalid.
            TransportError: whether it was applied is unknown.

        Cancellation: whether it was applied is unknown.
        """
        if batch_size < 0:
            raise ValidationError(f"must not be negative ({batch_size})", path="batch_size")
        validate_shard_apply_request(shard_apply_request(changes, primary_hints))
        size = batch_size or max(1, len(changes))
        revision = 0
        # An empty list of changes is sent too: it shows that the group exists.
        for begin in range(0, max(1, len(changes)), size):
            part = changes[begin : begin + size]
            call = UnaryCall(
                method=_APPLY,
                request=shard_apply_request(part, primary_hints),
                what="apply of shards",
            )
            revision = await ask(self._transport, call, partial(self._read_apply, part))
        return revision

    def _read_apply(self, part: Sequence[ShardChange], response: pb.ApplyResponse) -> int:
        header = self._transport.learn("", response.header)
        names = [change.spec.id if change.spec is not None else change.delete for change in part]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        _check_status(response.status, ", ".join(names[:3]) + more)
        return header.etcd.revision

    async def unassign(
        self, shards: Sequence[str], *, only_failed: bool = False, dry_run: bool = False
    ) -> Sequence[str]:
        """Remove the assignments of primaries, and those that have failed, so that they are assigned again.

        So a shard that failed is tried again. Hot standbys stay.

        Args:
            shards: IDs; up to `UNASSIGN_SHARDS_MAX` are changed in one transaction.
            only_failed: whether primaries that have not failed keep their assignments.
            dry_run: whether to remove nothing.

        Returns: the shards that lost an assignment, or would.
        Raises: ValidationError: an ID is malformed. EtcdTransactionFailed: a replica reported another status
            at that moment; shards before stay unassigned. TransportError: it is unknown.
        Cancellation: leaves open how many were unassigned.
        """
        validate_shard_unassign_request(pb.UnassignRequest(shards=shards))
        affected: list[str] = []
        for begin in range(0, len(shards), UNASSIGN_SHARDS_MAX):
            part = shards[begin : begin + UNASSIGN_SHARDS_MAX]
            call = UnaryCall(
                method=_UNASSIGN,
                request=pb.UnassignRequest(shards=part, only_failed=only_failed, dry_run=dry_run),
                what=f"unassign of {len(part)} shards",
                claim=_of(*part),
            )
            affected += await ask(self._transport, call, _read_unassign)
        return affected


def shard_apply_request(
    changes: Sequence[ShardChange], primary_hints: Mapping[str, FsmHints] = _NO_HINTS
) -> pb.ApplyRequest:
    """The request of one transaction; not validated."""
    request = pb.ApplyRequest()
    for change in changes:
        entry = request.changes.add(expect_mod_revision=change.revision)
        if change.spec is None:
            entry.delete = change.delete
            continue
        entry.upsert.CopyFrom(change.spec.to_pb())
        hints = primary_hints.get(change.spec.id)
        if hints is not None:
            entry.primary_hints.CopyFrom(hints.to_pb())
    return request


def check_shard_changes(changes: Sequence[ShardChange]) -> None:
    """Check changes as consumers do. Raises: ValidationError."""
    validate_shard_apply_request(shard_apply_request(changes))


def shard_list_response(snapshot: ShardSnapshot) -> pb.ListResponse:
    """The response that `snapshot` came in."""
    response = pb.ListResponse(header=snapshot.header.to_pb())
    for each in snapshot:
        listed = response.shards.add(
            mod_revision=each.mod_revision, create_revision=each.create_revision
        )
        listed.spec.CopyFrom(each.spec.to_pb())
        listed.route.CopyFrom(each.route.to_pb())
        listed.status.extend(status.to_pb() for status in each.statuses)
    return response


def _of(*shards: str) -> LabelSelector:
    """What selects these shards."""
    return LabelSelector(
        include=LabelSet(tuple(Label("id", shard) for shard in sorted(set(shards))))
    )


def _listing(shard: pb.ListResponse.Shard) -> ShardListing:
    return ShardListing(
        ShardSpec.from_pb(shard.spec),
        shard.mod_revision,
        shard.create_revision,
        Route.from_pb(shard.route),
        tuple(map(ReplicaStatus.from_pb, shard.status)),
    )


def _read_hints(shard: str, response: pb.GetHintsResponse) -> ShardHintsListing:
    _check_status(response.status, shard)
    return ShardHintsListing(
        _hints_of(response.primary_hints), tuple(map(_hints_of, response.backup_hints))
    )


def _hints_of(message: pb.GetHintsResponse.ResponseHints) -> FsmHints | None:
    return FsmHints.from_pb(message.hints) if message.HasField("hints") else None


def _read_unassign(response: pb.UnassignResponse) -> list[str]:
    _check_status(response.status)
    return list(response.shards)


def _check_status(number: int, shard: str = "") -> None:
    """Raises: StatusError: it is not OK."""
    status = ShardStatus.from_wire(number)
    if status is not ShardStatus.OK:
        raise status_error(status.name, journal=shard)


# ------------------------------------------------------------------ journals that specs name

_LABEL: Final = "content-type"
# Journals that are asked for in one listing.
_NAMES_AT_A_TIME: Final = 100


async def check_references(client: AsyncClient, specs: Iterable[ShardSpec]) -> None:
    """Check that sources are journals of messages, and that recovery logs are journals of their type.

    Args:
        client: of the brokers.
        specs: which are valid by themselves.

    Raises: ValidationError: names the first shard and journal that are wrong. TransportError.
    Cancellation: safe.
    """
    wanted = list(specs)
    names = {strip_meta(source.journal) for spec in wanted for source in spec.sources}
    names |= {spec.recovery_log for spec in wanted if spec.recovery_log}
    labels = await _labels_of(client, sorted(names))
    for spec in wanted:
        path = f"Shard[{spec.id}]"
        for source in spec.sources:
            at = f"{path}.Sources[{source.journal}]"
            _check(labels, strip_meta(source.journal), framing_of_labels, at)
        if spec.recovery_log:
            _check(labels, spec.recovery_log, _check_is_log, f"{path}.RecoveryLog")


async def _labels_of(client: AsyncClient, names: list[str]) -> dict[str, LabelSet]:
    """Labels of the existing journals."""
    found: dict[str, LabelSet] = {}
    for begin in range(0, len(names), _NAMES_AT_A_TIME):
        labels = LabelSet()
        for name in names[begin : begin + _NAMES_AT_A_TIME]:
            labels = labels.with_added("name", name)
        for journal in await client.list(LabelSelector(include=labels)):
            found[journal.name] = journal.spec.labels
    return found


def _check(
    labels: Mapping[str, LabelSet], name: str, rule: Callable[[LabelSet], object], path: str
) -> None:
    found = labels.get(name)
    if found is None:
        raise ValidationError(
            f"named journal does not exist ({name}; make it by `gazctl journals apply`)", path=path
        )
    try:
        rule(found)
    except ValidationError as err:
        raise err.within(path) from err


def _check_is_log(labels: LabelSet) -> None:
    values = labels.values_of(_LABEL)
    if values != (CONTENT_TYPE,):
        raise ValidationError(
            f"expected label {_LABEL} to be {CONTENT_TYPE} (has {', '.join(values) or 'none'})"
        )
