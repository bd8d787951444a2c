"""A consumer group of Kafka's classic protocol. Pure: no clock, no I/O, no randomness.

    EMPTY -- a join --> PREPARING -- all members joined, or the deadline --> COMPLETING
      ^                     ^                                                    |
      |                     +-- a join, a leave, an expired session --+          | the leader's assignments
      +-- the last member left                                        +-- STABLE <

Members in PREPARING wait for the others. Then the group has its next generation, and the leader computes who
reads what, which the others wait for in COMPLETING. One generation has one assignment: assignments are
taken from its leader once, and every other state forgets them.

The caller passes each request with a number of its own, and drains `answers` after every call; requests that
wait are answered by a later call. If `generation` changed, it must store that before it sends the answers:
what is stored decides which coordinator, and which generation, may commit offsets. It calls `tick` when
`wakes_at` has come.

Source: GroupCoordinator.scala of Apache Kafka 3.9 gives the errors, and what static members see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

from kio.schema.errors import ErrorCode

from gazette_platform.kafka.coordinator.group_types import (
    ID_CHARS_MAX,
    GroupLimits,
    GroupState,
    Join,
    Joined,
    JoinedMember,
    Member,
    Sync,
    Synced,
    common_protocols,
    size_of,
)


@final
@dataclass(slots=True)
class Group:
    """See the module. All instants are in seconds of one clock that never goes back."""

    group_id: str
    limits: GroupLimits = field(default_factory=GroupLimits)
    generation: int = 0
    """Of the last rebalance that completed."""
    protocol_type: str | None = None
    protocol: str | None = None
    state: GroupState = GroupState.EMPTY
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    answers: list[tuple[int, Joined | Synced]] = field(default_factory=list)
    """Answers to requests, by number, for the caller to take."""
    wakes_at: float = math.inf
    """When `tick` is due, or earlier."""
    _static: dict[str, str] = field(default_factory=dict)
    _pending: dict[str, float] = field(default_factory=dict)
    """Names that were given out and not yet joined with, and when they expire."""
    _bytes: int = 0
    _assigned_bytes: int = 0
    _join_by: float = math.inf
    _initial_until: float | None = None
    """When the initial wait ends at the latest; None if this is not an initial one."""
    _grew: bool = False
    _sync_by: float = math.inf

    @property
    def size(self) -> int:
        """Bytes of its members' metadata and assignments."""
        return self._bytes + self._assigned_bytes

    def take_answers(self) -> list[tuple[int, Joined | Synced]]:
        """Return the answers that are due, each once."""
        taken, self.answers = self.answers, []
        return taken

    # ------------------------------------------------------------ join

    def join(self, now: float, number: int, request: Join) -> None:
        """Let a member in, or begin its part in the next generation."""
        if (error := self._join_error(request)) is not ErrorCode.none:
            self._refuse_join(number, error, request.member_id)
        elif not request.member_id:
            self._join_without_id(now, number, request)
        elif request.member_id in self._pending and request.instance_id is None:
            del self._pending[request.member_id]
            self._add(now, number, request, request.member_id)
        else:
            self._join_again(now, number, request)

    def _join_error(self, request: Join) -> ErrorCode:
        limits = self.limits
        if not limits.session_s_min <= request.session_s <= limits.session_s_max:
            return ErrorCode.invalid_session_timeout
        former = self.members.get(request.member_id)
        if former is None and request.instance_id is not None:
            former = self.members.get(self._static.get(request.instance_id, ""))
        others = [one for one in self.members.values() if one is not former]
        names = {one.name for one in request.protocols}
        differs = others and (
            request.protocol_type != self.protocol_type or not common_protocols(others) & names
        )
        if not request.protocol_type or not request.protocols or differs:
            return ErrorCode.inconsistent_group_protocol
        size = self._bytes + size_of(request.protocols)
        size -= size_of(former.protocols) if former else 0
        if size > limits.bytes_max or len(request.instance_id or "") > ID_CHARS_MAX:
            return ErrorCode.invalid_request
        is_new = former is None and request.member_id not in self._pending
        if is_new and len(self.members) + len(self._pending) >= limits.members_max:
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _join_without_id(self, now: float, number: int, request: Join) -> None:
        if request.instance_id is not None:
            former = self._static.get(request.instance_id)
            if former is None:
                self._add(now, number, request, request.new_id)
            else:
                self._replace(now, number, request, self.members[former])
        elif request.takes_id:
            self._pending[request.new_id] = now + request.session_s
            self._wake(now + request.session_s)
            self._refuse_join(number, ErrorCode.member_id_required, request.new_id)
        else:
            self._add(now, number, request, request.new_id)

    def _join_again(self, now: float, number: int, request: Join) -> None:
        error = self._identity_error(request.member_id, request.instance_id)
        if error is not ErrorCode.none:
            self._refuse_join(number, error, request.member_id)
            return
        member = self.members[request.member_id]
        is_same = member.protocols == request.protocols
        rejoins = self.state is GroupState.PREPARING or not is_same
        if self.state is GroupState.STABLE and member.member_id == self.leader:
            rejoins = True  # a leader that joins asks for new assignments
        if rejoins:
            self._update(member, request)
            self._wait_for_join(now, number, member)
            self._rebalance(now)
        else:
            # It has not seen the answer, or its client restarts the exchange: nothing changes for others.
            self._beat(now, member)
            self._end_join(member)
            self.answers.append((number, self._joined(member)))

    def _add(self, now: float, number: int, request: Join, member_id: str) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_s,
            min(request.rebalance_s, self.limits.rebalance_s_max),
            request.protocols,
        )
        self.members[member_id] = member
        self._bytes += size_of(request.protocols)
        if request.instance_id is not None:
            self._static[request.instance_id] = member_id
        self.protocol_type = request.protocol_type
        if not self.leader:
            self.leader = member_id
        self._grew = True
        self._wait_for_join(now, number, member)
        self._rebalance(now)

    def _replace(self, now: float, number: int, request: Join, former: Member) -> None:
        """A static member restarted: it gets a new name, and its former self is fenced."""
        self._end_waits(former, ErrorCode.fenced_instance_id)
        was_leader = self.leader == former.member_id
        metadata = former.metadata(self.protocol)
        del self.members[former.member_id]
        former_id, former.member_id = former.member_id, request.new_id
        self.members[request.new_id] = former
        self._static[request.instance_id or ""] = request.new_id
        if was_leader:
            self.leader = request.new_id
        self._update(former, request)
        former.client_id, former.client_host = request.client_id, request.client_host
        is_same = self.state is GroupState.STABLE and metadata == former.metadata(self.protocol)
        if not is_same or self._choose_protocol() != self.protocol:
            self._wait_for_join(now, number, former)
            self._rebalance(now)
            return
        former.has_synced = False
        self._beat(now, former)
        joined = self._joined(former)
        if was_leader and request.skips_assignment:
            joined = joined._replace(skip_assignment=True)
        elif was_leader:
            # An older client takes itself for a follower, so that it leaves the assignments alone.
            joined = joined._replace(leader=former_id, members=())
        self.answers.append((number, joined))

    def _end_waits(self, member: Member, error: ErrorCode) -> None:
        if member.joining is not None:
            self._refuse_join(member.joining, error, member.member_id)
        if member.syncing is not None:
            self.answers.append((member.syncing, Synced(error)))
        member.joining = member.syncing = None

    def _update(self, member: Member, request: Join) -> None:
        self._bytes += size_of(request.protocols) - size_of(member.protocols)
        member.protocols = request.protocols
        member.session_s = request.session_s
        member.rebalance_s = min(request.rebalance_s, self.limits.rebalance_s_max)
        if len(self.members) == 1:
            self.protocol_type = request.protocol_type

    def _wait_for_join(self, now: float, number: int, member: Member) -> None:
        self._beat(now, member)
        self._end_join(member)
        if member.syncing is not None:
            self.answers.append((member.syncing, Synced(ErrorCode.rebalance_in_progress)))
            member.syncing = None
        member.joining = number

    def _end_join(self, member: Member) -> None:
        """A second request of a member ends the wait of its first, which its client has given up."""
        if member.joining is not None:
            self._refuse_join(member.joining, ErrorCode.rebalance_in_progress, member.member_id)
            member.joining = None

    def _refuse_join(self, number: int, error: ErrorCode, member_id: str) -> None:
        self.answers.append((number, Joined(error, member_id)))

    def _joined(self, member: Member) -> Joined:
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(one.member_id, one.instance_id, one.metadata(self.protocol))
                for one in self.members.values()
            )
        return Joined(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            members=members,
        )

    # ------------------------------------------------------------ rebalances

    def _rebalance(self, now: float) -> None:
        """Begin the next generation, or go on with what was begun."""
        if self.state is not GroupState.PREPARING:
            is_initial = self.state is GroupState.EMPTY
            self._forget_assignments()
            self.state = GroupState.PREPARING
            longest = max((one.rebalance_s for one in self.members.values()), default=0.0)
            self._initial_until = now + longest if is_initial else None
            self._grew = False
            self._join_by = now + (
                min(self.limits.initial_delay_s, longest) if is_initial else longest
            )
            self._wake(self._join_by)
        self._complete_if_joined(now)

    def _forget_assignments(self) -> None:
        self._sync_by = math.inf
        self._assigned_bytes = 0
        for one in self.members.values():
            one.assignment = b""
            one.has_synced = False
            if one.syncing is not None:
                self.answers.append((one.syncing, Synced(ErrorCode.rebalance_in_progress)))
                one.syncing = None

    def _complete_if_joined(self, now: float) -> None:
        if self._initial_until is not None or self._pending:
            return
        if all(one.joining is not None for one in self.members.values()):
            self._complete(now)

    def _join_timed_out(self, now: float) -> None:
        until = self._initial_until
        if until is not None and self._grew and now < until:
            self._grew = False
            self._join_by = min(now + self.limits.initial_delay_s, until)
            return
        for one in list(self.members.values()):
            # A static member keeps its place until its session ends.
            if one.joining is None and one.instance_id is None:
                self._remove(one)
        if self.members and all(one.joining is None for one in self.members.values()):
            # Only static members that are away: their sessions decide.
            self._join_by = min(one.expires_at for one in self.members.values())
            return
        self._complete(now)

    def _complete(self, now: float) -> None:
        """The next generation begins: its members know each other."""
        self.generation += 1
        self._join_by = math.inf
        self._initial_until = None
        if not self.members:
            self._become_empty()
            return
        self.protocol = self._choose_protocol()
        leader = self.members.get(self.leader)
        if leader is None or leader.joining is None:
            self.leader = next(i for i, one in self.members.items() if one.joining is not None)
        self.state = GroupState.COMPLETING
        self._sync_by = now + max(one.rebalance_s for one in self.members.values())
        self._wake(self._sync_by)
        for one in self.members.values():
            if one.joining is not None:
                self.answers.append((one.joining, self._joined(one)))
                one.joining = None
                self._beat(now, one)
            else:
                one.has_synced = True  # static and away: it gets its assignment when it comes

    def _choose_protocol(self) -> str:
        """The protocol most members prefer, among those that all support."""
        common = common_protocols(self.members.values())
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((one.name for one in member.protocols if one.name in common), "")
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: (votes[name], name))

    def _become_empty(self) -> None:
        self.state = GroupState.EMPTY
        self.leader = ""
        self.protocol = None
        self._join_by = self._sync_by = math.inf
        self._initial_until = None

    # ------------------------------------------------------------ sync, heartbeat, leave

    def sync(self, now: float, number: int, request: Sync) -> None:
        """Give a member its assignment, as soon as the leader has sent it."""
        error = self.member_error(request.member_id, request.instance_id, request.generation)
        if error is ErrorCode.none and (
            request.protocol_type not in (None, self.protocol_type)
            or request.protocol not in (None, self.protocol)
        ):
            error = ErrorCode.inconsistent_group_protocol
        if error is ErrorCode.none and self.state is GroupState.PREPARING:
            error = ErrorCode.rebalance_in_progress
        if (
            error is ErrorCode.none
            and self.state is GroupState.COMPLETING
            and request.member_id == self.leader
            and sum(len(one) for _, one in request.assignments) > self.limits.bytes_max
        ):
            error = ErrorCode.invalid_request
        if error is not ErrorCode.none:
            self.answers.append((number, Synced(error)))
            return
        member = self.members[request.member_id]
        self._beat(now, member)
        member.has_synced = True
        if member.syncing is not None:
            self.answers.append((member.syncing, Synced(ErrorCode.rebalance_in_progress)))
        member.syncing = number
        if self.state is GroupState.COMPLETING and member.member_id == self.leader:
            assignments = dict(request.assignments)
            for one in self.members.values():
                one.assignment = assignments.get(one.member_id, b"")
                self._assigned_bytes += len(one.assignment)
            self.state = GroupState.STABLE
        if self.state is GroupState.STABLE:
            self._answer_syncs(now)

    def _answer_syncs(self, now: float) -> None:
        for one in self.members.values():
            if one.syncing is not None:
                synced = Synced(ErrorCode.none, self.protocol_type, self.protocol, one.assignment)
                self.answers.append((one.syncing, synced))
                one.syncing = None
                self._beat(now, one)

    def heartbeat(
        self, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Keep a member's session. Returns: whether it should join again."""
        error = self.member_error(member_id, instance_id, generation)
        if error is ErrorCode.none:
            self._beat(now, self.members[member_id])
            if self.state is GroupState.PREPARING:
                return ErrorCode.rebalance_in_progress
        return error

    def leave(self, now: float, member_id: str, instance_id: str | None) -> ErrorCode:
        """Remove a member, named by itself, or by its instance alone if an operator removes it."""
        if not member_id and instance_id is not None:
            member_id = self._static.get(instance_id, "")
        if self._pending.pop(member_id, None) is not None:
            if self.state is GroupState.PREPARING:
                self._complete_if_joined(now)
            return ErrorCode.none
        error = self._identity_error(member_id, instance_id)
        if error is ErrorCode.none:
            self._remove(self.members[member_id])
            self._rebalance(now)
        return error

    def commit_error(
        self, now: float, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Whether offsets may be committed in this member's name; a commit counts as a heartbeat."""
        if generation < 0 and not member_id:
            # By a client that assigns its partitions itself.
            is_free = self.state is GroupState.EMPTY
            return ErrorCode.none if is_free else ErrorCode.unknown_member_id
        error = self.member_error(member_id, instance_id, generation)
        if error is ErrorCode.none:
            self._beat(now, self.members[member_id])
            if self.state is GroupState.COMPLETING:
                return ErrorCode.rebalance_in_progress
        return error

    def member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether this is a member of this generation."""
        error = self._identity_error(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def _remove(self, member: Member) -> None:
        self._end_waits(member, ErrorCode.unknown_member_id)
        del self.members[member.member_id]
        self._bytes -= size_of(member.protocols)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")

    # ------------------------------------------------------------ time

    def _beat(self, now: float, member: Member) -> None:
        member.expires_at = now + member.session_s
        self._wake(member.expires_at)

    def _wake(self, at: float) -> None:
        self.wakes_at = min(self.wakes_at, at)

    def tick(self, now: float) -> None:
        """End what is overdue: names, sessions, joins and syncs."""
        if now < self.wakes_at:
            return
        late_names = [name for name, at in self._pending.items() if at <= now]
        for name in late_names:
            del self._pending[name]
        gone = [
            one
            for one in self.members.values()
            if (one.expires_at <= now and not one.waits)
            or (self._sync_by <= now and not one.has_synced)
        ]
        if self._sync_by <= now:
            self._sync_by = math.inf
        for one in gone:
            self._remove(one)
        if gone or (late_names and self.state is GroupState.PREPARING):
            self._rebalance(now)
        if self.state is GroupState.PREPARING and self._join_by <= now:
            self._join_timed_out(now)
        self._plan()

    def _plan(self) -> None:
        """Set `wakes_at` to the first instant at which something is due."""
        sessions = (one.expires_at for one in self.members.values() if not one.waits)
        self.wakes_at = min(
            self._join_by,
            self._sync_by,
            min(self._pending.values(), default=math.inf),
            min(sessions, default=math.inf),
        )

    def end(self, error: ErrorCode) -> None:
        """Answer all that wait with an error: another node coordinates this group now."""
        for one in self.members.values():
            self._end_waits(one, error)
        self.members.clear()
        self._static.clear()
        self._pending.clear()
        self._bytes = self._assigned_bytes = 0
        self._become_empty()
        self.wakes_at = math.inf
