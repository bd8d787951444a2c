"""FindCoordinator, and the calls through which members of consumer groups join, stay and leave.

The rules are those of `groups`; here requests of any version become its calls, and its answers become responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from gazette_platform.errors import GazetteError
from gazette_platform.kafka.failures import KafkaError, code_of
from gazette_platform.kafka.group_types import GroupState, Join, Joined, Protocol, Sync, Synced
from gazette_platform.kafka.live_groups import Later, group_place
from gazette_platform.kafka.live_transactions import transaction_place
from gazette_platform.kafka.wire import Api, check_group
from gazette_platform.protocol.auth import Capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.kafka.gateway import Gateway
    from gazette_platform.kafka.group_store import GroupRecord
    from gazette_platform.kafka.live_groups import LiveGroup, LiveGroups
    from gazette_platform.kafka.wire import Call

_CLIENT_ID_CHARS_MAX: Final = 200
_NO_OPERATIONS: Final = -(1 << 31)
_KEY_GROUP, _KEY_TRANSACTION = 0, 1


@final
class GroupCoordinator:
    """Answers the calls of members and of those who look at groups."""

    def __init__(self, gateway: Gateway, groups: LiveGroups) -> None:
        self._gateway = gateway
        self._groups = groups

    @property
    def apis(self) -> Iterable[Api]:
        """The calls that it answers."""
        yield Api(10, "find_coordinator", 0, 5, self._find)
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

    # ------------------------------------------------------------ coordinators

    async def _find(self, call: Call) -> Any:
        kind = call.get("key_type", _KEY_GROUP)
        keys = call.get("coordinator_keys")
        one = keys is None
        found = [self._coordinator(kind, key) for key in ((call.request.key,) if one else keys)]
        if one:
            return call.new("FindCoordinatorResponse", **found[0])
        coordinators = tuple(call.new("Coordinator", **fields) for fields in found)
        return call.new("FindCoordinatorResponse", coordinators=coordinators)

    def _coordinator(self, kind: int, key: str) -> dict[str, Any]:
        places = {_KEY_GROUP: group_place, _KEY_TRANSACTION: transaction_place}
        if kind not in places or not key:
            text = f"a name of kind {kind} has no coordinator"
            return {
                "key": key,
                "node_id": -1,
                "host": "",
                "port": -1,
                "error_code": ErrorCode.invalid_request,
                "error_message": text,
            }
        node = self._gateway.nodes.keeper(places[kind](key))
        return {
            "key": key,
            "node_id": node.id,
            "host": node.host,
            "port": node.port,
            "error_code": ErrorCode.none,
            "error_message": None,
        }

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
            client_id=call.client_id,
            client_host=f"/{call.peer.host}",
            session_s=request.session_timeout.total_seconds(),
            rebalance_s=rebalance.total_seconds(),
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
            takes_id=call.version >= 4,
            skips_assignment=call.version >= 9,
        )
        try:
            check_group(call)
            live = await self._groups.get(request.group_id)
            async with live.lock:
                live.check()
                number, future = self._groups.wait(live)
                live.group.join(self._groups.now, number, join)
                await self._groups.settle(live)
        except GazetteError as err:
            return _joined(call, Joined(code_of(err), request.member_id))
        return Later(future, lambda answer: _joined(call, answer))

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
            check_group(call)
            live = self._groups.of_member(request.group_id)
            async with live.lock:
                live.check()
                number, future = self._groups.wait(live)
                live.group.sync(self._groups.now, number, sync)
                await self._groups.settle(live)
        except GazetteError as err:
            return _synced(call, Synced(code_of(err)))
        return Later(future, lambda answer: _synced(call, answer))

    async def _heartbeat(self, call: Call) -> Any:
        request = call.request
        try:
            check_group(call)
            live = self._groups.of_member(request.group_id)
            error = live.group.heartbeat(
                self._groups.now,
                request.member_id,
                call.get("group_instance_id"),
                request.generation_id,
            )
        except GazetteError as err:
            error = code_of(err)
        return call.new("HeartbeatResponse", error_code=error)

    async def _leave(self, call: Call) -> Any:
        request = call.request
        leaving: tuple[Any, ...] = call.get("members") or (request,)
        names = [(one.member_id, getattr(one, "group_instance_id", None)) for one in leaving]
        try:
            check_group(call)
            live = self._groups.of_member(request.group_id)
            async with live.lock:
                live.check()
                errors = [live.group.leave(self._groups.now, *name) for name in names]
                await self._groups.settle(live)
        except GazetteError as err:
            return call.new("LeaveGroupResponse", error_code=code_of(err), members=())
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
            check_group(call, Capability.LIST, of_all=True)
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
            error, text, state = code_of(err), str(err), ""
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
            return call.new("ListGroupsResponse", error_code=code_of(err), groups=())
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
            check_group(call, Capability.APPLY, of_all=True)
            self._groups.check(group_id)
            if await self._groups.store.record(group_id) is None:
                raise KafkaError(ErrorCode.group_id_not_found)
            live = await self._groups.get(group_id)
            async with live.lock:
                live.check()
                if live.group.state is not GroupState.EMPTY:
                    raise KafkaError(ErrorCode.non_empty_group)
                if not await self._groups.store.delete(group_id, live.claim.revision):
                    raise KafkaError(ErrorCode.not_coordinator)
                self._groups.end(live, ErrorCode.coordinator_load_in_progress)
        except GazetteError as err:
            return code_of(err)
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
