"""The consumer groups that this node coordinates: the state machines of `groups`, driven by requests, time and etcd.

Requests of any version, through which members join, stay and leave, become calls of `groups`, and its answers become responses.

The coordinator of a group is the node that all nodes compute from its name. When nodes come or go, the former coordinator ends
the group with NOT_COORDINATOR, and its members join again at the next one, which claims the group in etcd. Nodes may disagree
for a moment: the claim decides, as every write compares it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from gazette_platform.errors import Fenced, GazetteError
from gazette_platform.kafka.coordinator.group_bounds import GroupBounds
from gazette_platform.kafka.coordinator.group_store import Claim, GroupRecord, GroupStore
from gazette_platform.kafka.coordinator.group_types import (
    ID_CHARS_MAX,
    GroupLimits,
    GroupState,
    Join,
    Joined,
    Protocol,
    Sync,
    Synced,
)
from gazette_platform.kafka.coordinator.groups import Group
from gazette_platform.kafka.failures import KafkaError, coordinator_code_of
from gazette_platform.kafka.wire import Api, Later
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.wire import Call

_log = logging.getLogger(__name__)

_GROUPS_MAX: Final = 10_000
_TICK_S: Final = 0.1
_IDLE_S: Final = 60.0
_SWEEP_S: Final = 3600.0


@final
@dataclass(slots=True, eq=False)
class LiveGroup:
    """A group in this node's memory.

    Attributes:
        lock: of whoever moves the group on; what it does is stored before another goes on.
    """

    group: Group
    claim: Claim
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    used_at: float = 0.0
    ended_by: ErrorCode = ErrorCode.none

    def check(self) -> None:
        """Raises: KafkaError: this node does not coordinate the group any more."""
        if self.ended_by is not ErrorCode.none:
            raise KafkaError(self.ended_by)


@final
class LiveGroups:
    """See the module."""

    def __init__(
        self, gateway: Gateway, store: GroupStore, limits: GroupLimits | None = None
    ) -> None:
        self._gateway = gateway
        self.store = store
        self._limits = limits or GroupLimits()
        self._groups: dict[str, LiveGroup] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._numbers = 0
        self.bounds = GroupBounds(gateway, store, self._groups, self.is_ours)
        self._nodes: frozenset[int] = frozenset()
        self._swept_at = -math.inf
        gauges = gateway.metrics.gauges
        gauges["groups"] = self._groups.__len__
        gauges["group_bytes"] = lambda: self.bounds.kept.size
        gauges["group_members"] = lambda: sum(
            len(live.group.members) for live in self._groups.values()
        )

    def start(self) -> None:
        """Begin to watch the time."""
        self.store.start()
        self._gateway.tasks.keep(self._watch, name="kafka group time")

    def stop(self) -> None:
        """Send all members to other nodes."""
        for live in [*self._groups.values()]:
            self.end(live, ErrorCode.not_coordinator)

    @property
    def now(self) -> float:
        """Seconds, of the clock of all groups."""
        return self._gateway.clock.monotonic()

    @property
    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(self._gateway.clock.unix_s() * 1000)

    def is_ours(self, group_id: str) -> bool:
        """Whether this node coordinates the group."""
        nodes = self._gateway.nodes
        return nodes.coordinator("group", group_id).id == nodes.own.id

    def check(self, group_id: str) -> None:
        """Raises: KafkaError: a group cannot have this name, or another node coordinates it."""
        if not group_id or len(group_id) > ID_CHARS_MAX:
            raise KafkaError(ErrorCode.invalid_group_id)
        if not self.is_ours(group_id):
            raise KafkaError(ErrorCode.not_coordinator)

    def known(self, group_id: str) -> LiveGroup | None:
        """A group that is in memory."""
        return self._groups.get(group_id)

    def of_member(self, group_id: str) -> LiveGroup:
        """The group of one who says that it is a member. Raises: KafkaError: it is none."""
        self.check(group_id)
        live = self._groups.get(group_id)
        if live is None:
            raise KafkaError(ErrorCode.unknown_member_id)
        live.used_at = self.now
        return live

    async def get(self, group_id: str, owner: str) -> LiveGroup:
        """A group, which this node claims if it is not in memory.

        Args:
            owner: who makes it, if it does not exist.

        Raises: KafkaError; EtcdError. Cancellation: safe.
        """
        self.check(group_id)
        live = self._groups.get(group_id)
        if live is None:
            lock = self._loading.setdefault(group_id, asyncio.Lock())
            try:
                async with lock:
                    live = self._groups.get(group_id) or await self._load(group_id, owner)
            finally:
                if not lock.locked():
                    self._loading.pop(group_id, None)
        live.used_at = self.now
        return live

    async def _load(self, group_id: str, owner: str) -> LiveGroup:
        if len(self._groups) >= _GROUPS_MAX:
            self._drop_idle(0.0)
        if len(self._groups) >= _GROUPS_MAX:
            raise KafkaError(
                ErrorCode.group_max_size_reached, f"this node coordinates {_GROUPS_MAX} groups"
            )
        own = self._gateway.nodes.own.id
        claim = await self.store.claim(group_id, own, now_ms=self.now_ms, owner=owner)
        self.check(group_id)
        self.bounds.admit_group(claim)
        group = Group(group_id, self._limits, claim.record.generation)
        live = self._groups[group_id] = LiveGroup(group, claim)
        return live

    async def keep(self, live: LiveGroup) -> None:
        """Have a record of a group in etcd. Raises: KafkaError: another node coordinates it; EtcdError."""
        if not live.claim.revision:
            try:
                await self.store.save(live.claim, live.claim.record)
            except Fenced as err:
                self.end(live, ErrorCode.not_coordinator)
                raise KafkaError(ErrorCode.not_coordinator) from err

    # ------------------------------------------------------------ moving on

    def wait(self, live: LiveGroup) -> tuple[int, asyncio.Future[Any]]:
        """A number for a request, and the future of its answer."""
        self._numbers += 1
        future: asyncio.Future[Joined | Synced] = asyncio.get_running_loop().create_future()
        live.waiting[self._numbers] = future
        return self._numbers, future

    async def settle(self, live: LiveGroup) -> None:
        """Store a new generation, then send the answers that are due. The caller holds the lock.

        If it cannot be stored, the group ends here: its members ask for the coordinator again.
        """
        group = live.group
        if group.generation != live.claim.record.generation:
            record = GroupRecord(
                group.generation,
                self._gateway.nodes.own.id,
                group.protocol_type or "",
                group.protocol or "",
                self.now_ms,
                live.claim.record.owner,
            )
            try:
                await self.store.save(live.claim, record)
            except GazetteError as err:
                _log.warning("group %s ends on this node: %s", group.group_id, err)
                is_fenced = isinstance(err, Fenced)
                self.end(live, ErrorCode.not_coordinator if is_fenced else coordinator_code_of(err))
                return
        self._send(live)

    def _send(self, live: LiveGroup) -> None:
        for number, answer in live.group.take_answers():
            future = live.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(answer)

    def end(self, live: LiveGroup, error: ErrorCode) -> None:
        """Forget a group; all that wait get the error."""
        if self._groups.get(live.group.group_id) is live:
            del self._groups[live.group.group_id]
        live.ended_by = error
        # What was decided and not stored never was.
        live.group.answers = [(n, one._replace(error=error)) for n, one in live.group.answers]
        live.group.end(error)
        self._send(live)

    # ------------------------------------------------------------ time

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = self.now
            nodes = frozenset(self._gateway.nodes.live)
            if nodes != self._nodes:
                self._nodes = nodes
                self._swept_at = -math.inf
                self._end_moved()
            self.bounds.count()
            for live in [*self._groups.values()]:
                # Answers are left if whoever moved the group on was cancelled before it sent them.
                is_due = live.group.wakes_at <= now or live.group.answers
                if is_due and not live.lock.locked():
                    self._gateway.tasks.spawn(self._tick(live), name="kafka group tick")
            self._drop_idle(_IDLE_S)
            if now - self._swept_at > _SWEEP_S:
                self._swept_at = now
                self._gateway.tasks.spawn(self.bounds.sweep(), name="kafka group sweep")
            self.bounds.forget_unused()

    def _end_moved(self) -> None:
        for live in [*self._groups.values()]:
            if not self.is_ours(live.group.group_id):
                _log.info("group %s moves to another node", live.group.group_id)
                self.end(live, ErrorCode.not_coordinator)

    async def _tick(self, live: LiveGroup) -> None:
        async with live.lock:
            if live.ended_by is ErrorCode.none:
                live.group.tick(self.now)
                await self.settle(live)

    def _drop_idle(self, idle_s: float) -> None:
        """Forget groups without members: etcd has all of them."""
        limit = self.now - idle_s
        for live in [*self._groups.values()]:
            is_empty = live.group.state is GroupState.EMPTY and live.group.wakes_at == math.inf
            if is_empty and live.used_at <= limit and not live.lock.locked() and not live.waiting:
                del self._groups[live.group.group_id]
                self.bounds.dropped(live.claim)


_CLIENT_ID_CHARS_MAX: Final = 200
_NO_OPERATIONS: Final = -(1 << 31)


@final
class GroupCoordinator:
    """Answers the calls of members and of those who look at groups."""

    def __init__(self, gateway: Gateway, groups: LiveGroups) -> None:
        self._gateway = gateway
        self._groups = groups

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(11, "join_group", 0, 9, self._join)
        yield Api(12, "heartbeat", 0, 4, self._heartbeat)
        yield Api(13, "leave_group", 0, 5, self._leave)
        yield Api(14, "sync_group", 0, 5, self._sync)
        yield Api(15, "describe_groups", 0, 6, self._describe)
        yield Api(16, "list_groups", 0, 5, self._list)
        yield Api(42, "delete_groups", 0, 2, self._delete)

    async def start(self) -> None:
        """Begin to watch the time."""
        self._groups.start()

    async def stop(self) -> None:
        """Send all members to other nodes."""
        self._groups.stop()

    # ------------------------------------------------------------ members

    async def _join(self, call: Call) -> Any:
        request = call.request
        # Version 0 has one time for both.
        rebalance = call.get("rebalance_timeout", request.session_timeout)
        instance = call.get("group_instance_id")
        name = (instance or call.client_id)[:_CLIENT_ID_CHARS_MAX]
        join = Join(
            member_id=request.member_id,
            new_id=f"{name}-{uuid4()}",
            instance_id=instance,
            client_id=call.client_id[:_CLIENT_ID_CHARS_MAX],
            client_host=f"/{call.peer.host}",
            session_s=request.session_timeout.total_seconds(),
            rebalance_s=rebalance.total_seconds(),
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
            takes_id=call.version >= 4,
            skips_assignment=call.version >= 9,
        )
        try:
            call.peer.access.check_group()
            live = await self._groups.get(request.group_id, call.peer.access.principal)
            async with live.lock:
                live.check()
                if request.member_id not in live.group.members:
                    self._groups.bounds.check_memory(live.claim.record.owner)
                number, future = self._groups.wait(live)
                live.group.join(self._groups.now, number, join)
                await self._groups.settle(live)
        except GazetteError as err:
            return _joined(call, Joined(coordinator_code_of(err), request.member_id))
        return Later((future,), lambda: _joined(call, future.result()))

    async def _sync(self, call: Call) -> Any:
        request = call.request
        sync = Sync(
            member_id=request.member_id,
            instance_id=call.get("group_instance_id"),
            generation=request.generation_id,
            protocol_type=call.get("protocol_type"),
            protocol=call.get("protocol_name"),
            assignments=tuple((one.member_id, one.assignment) for one in request.assignments),
        )
        try:
            call.peer.access.check_group()
            live = self._groups.of_member(request.group_id)
            async with live.lock:
                live.check()
                number, future = self._groups.wait(live)
                live.group.sync(self._groups.now, number, sync)
                await self._groups.settle(live)
        except GazetteError as err:
            return _synced(call, Synced(coordinator_code_of(err)))
        return Later((future,), lambda: _synced(call, future.result()))

    async def _heartbeat(self, call: Call) -> Any:
        request = call.request
        try:
            call.peer.access.check_group()
            live = self._groups.of_member(request.group_id)
            error = live.group.heartbeat(
                self._groups.now,
                request.member_id,
                call.get("group_instance_id"),
                request.generation_id,
            )
        except GazetteError as err:
            error = coordinator_code_of(err)
        return call.new("HeartbeatResponse", error_code=error)

    async def _leave(self, call: Call) -> Any:
        request = call.request
        leaving: tuple[Any, ...] = call.get("members") or (request,)
        names = [(one.member_id, getattr(one, "group_instance_id", None)) for one in leaving]
        try:
            call.peer.access.check_group()
            live = self._groups.of_member(request.group_id)
            async with live.lock:
                live.check()
                errors = [live.group.leave(self._groups.now, *name) for name in names]
                await self._groups.settle(live)
        except GazetteError as err:
            return call.new("LeaveGroupResponse", error_code=coordinator_code_of(err), members=())
        if call.version < 3:
            return call.new("LeaveGroupResponse", error_code=errors[0])
        members = tuple(
            call.new(
                "MemberResponse", member_id=member_id, group_instance_id=instance, error_code=error
            )
            for (member_id, instance), error in zip(names, errors, strict=True)
        )
        return call.new("LeaveGroupResponse", error_code=ErrorCode.none, members=members)

    # ------------------------------------------------------------ looking at groups

    async def _describe(self, call: Call) -> Any:
        groups = [await self._described(call, group_id) for group_id in call.request.groups]
        return call.new("DescribeGroupsResponse", groups=tuple(groups))

    async def _described(self, call: Call, group_id: str) -> Any:
        error, text, state = ErrorCode.none, None, str(GroupState.EMPTY)
        kind, protocol = "", ""
        members: tuple[Any, ...] = ()
        try:
            call.peer.access.check_group(Capability.LIST, of_all=True)
            self._groups.check(group_id)
            live = self._groups.known(group_id)
            if live is not None:
                group = live.group
                state, kind = str(group.state), group.protocol_type or ""
                protocol = group.protocol or ""
                members = _members(call, live)
            else:
                stored = await self._groups.store.record(group_id)
                if stored is None:
                    state = "Dead"
                    if call.version >= 6:
                        error, text = ErrorCode.group_id_not_found, f"there is no group {group_id}"
                else:
                    kind = stored.protocol_type
        except GazetteError as err:
            error, text, state = coordinator_code_of(err), str(err), ""
        return call.new(
            "DescribedGroup",
            error_code=error,
            error_message=text,
            group_id=group_id,
            group_state=state,
            protocol_type=kind,
            protocol_data=protocol,
            members=members,
            authorized_operations=_NO_OPERATIONS,
        )

    async def _list(self, call: Call) -> Any:
        states = {state.lower() for state in call.get("states_filter", ())}
        kinds = {kind.lower() for kind in call.get("types_filter", ())}
        try:
            is_seen = call.peer.access.may_all(Capability.LIST)
            stored = await self._groups.store.all_groups() if is_seen else {}
        except GazetteError as err:
            return call.new("ListGroupsResponse", error_code=coordinator_code_of(err), groups=())
        groups = []
        for group_id, (record, _) in stored.items():
            if not self._groups.is_ours(group_id) or (kinds and "classic" not in kinds):
                continue
            kind, state = self._summary(group_id, record)
            if states and state.lower() not in states:
                continue
            listed = {"group_state": state, "group_type": "classic"}
            listed |= {"group_id": group_id, "protocol_type": kind}
            groups.append(call.new("ListedGroup", **listed))
        return call.new("ListGroupsResponse", error_code=ErrorCode.none, groups=tuple(groups))

    def _summary(self, group_id: str, record: GroupRecord) -> tuple[str, str]:
        live = self._groups.known(group_id)
        if live is None:
            return record.protocol_type, str(GroupState.EMPTY)
        return live.group.protocol_type or record.protocol_type, str(live.group.state)

    async def _delete(self, call: Call) -> Any:
        results = tuple(
            [
                call.new(
                    "DeletableGroupResult",
                    group_id=group_id,
                    error_code=await self._deleted(call, group_id),
                )
                for group_id in call.request.groups_names
            ]
        )
        return call.new("DeleteGroupsResponse", results=results)

    async def _deleted(self, call: Call, group_id: str) -> ErrorCode:
        try:
            call.peer.access.check_group(Capability.APPLY, of_all=True)
            self._groups.check(group_id)
            if await self._groups.store.record(group_id) is None:
                raise KafkaError(ErrorCode.group_id_not_found)
            live = await self._groups.get(group_id, call.peer.access.principal)
            async with live.lock:
                live.check()
                if live.group.state is not GroupState.EMPTY:
                    raise KafkaError(ErrorCode.non_empty_group)
                if not await self._groups.store.delete(group_id, live.claim.revision):
                    raise KafkaError(ErrorCode.not_coordinator)
                self._groups.end(live, ErrorCode.coordinator_load_in_progress)
                self._groups.bounds.kept.drop(group_id)
        except GazetteError as err:
            return coordinator_code_of(err)
        return ErrorCode.none


def _members(call: Call, live: LiveGroup) -> tuple[Any, ...]:
    return tuple(
        call.new(
            "DescribedGroupMember",
            member_id=one.member_id,
            group_instance_id=one.instance_id,
            client_id=one.client_id,
            client_host=one.client_host,
            member_metadata=one.metadata(live.group.protocol),
            member_assignment=one.assignment,
        )
        for one in live.group.members.values()
    )


def _joined(call: Call, answer: Joined) -> Any:
    protocol = answer.protocol
    if protocol is None and call.version < 7:
        protocol = ""
    members = tuple(
        call.new(
            "JoinGroupResponseMember",
            member_id=one.member_id,
            group_instance_id=one.instance_id,
            metadata=one.metadata,
        )
        for one in answer.members
    )
    return call.new(
        "JoinGroupResponse",
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=members,
    )


def _synced(call: Call, answer: Synced) -> Any:
    return call.new(
        "SyncGroupResponse",
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )
