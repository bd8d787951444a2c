"""What a consumer group is made of: its members, its requests and its answers. Pure; see `groups`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kio.schema.errors import ErrorCode

_PART_BYTES = 100
"""What a name and its bytes take in memory beside their content, about."""
ID_CHARS_MAX = 1000
"""Characters of a group's, a member's or an instance's name."""


class GroupState(StrEnum):
    """The names are those that DescribeGroups shows."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLimits:
    """Bounds of one group. Times are in seconds."""

    members_max: int = 1000
    bytes_max: int = 1 << 20
    """Of all members' metadata, and of all assignments."""
    session_s_min: float = 1.0
    session_s_max: float = 1800.0
    rebalance_s_max: float = 3600.0
    initial_delay_s: float = 0.5
    """How long a group without members waits for more of them after the last one came."""


class Protocol(NamedTuple):
    """A way of assigning partitions that a member supports, and what it has to say for it."""

    name: str
    metadata: bytes


class Join(NamedTuple):
    """A request to join. Times are in seconds."""

    member_id: str
    new_id: str
    """What to call the member if it has no name yet."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: tuple[Protocol, ...]
    takes_id: bool
    """Whether the client joins again with the name that it is given (version 4)."""
    skips_assignment: bool
    """Whether a leader can be asked to keep the assignments as they are (version 9)."""


class Sync(NamedTuple):
    """A request for the assignment of a member."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]
    """Of all members, from the leader."""


class JoinedMember(NamedTuple):
    """What a leader learns of a member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The answer to a join."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class Synced(NamedTuple):
    """The answer to a sync."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class Member:
    """A member, with the number of the request that waits for an answer, if there is one."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocols: tuple[Protocol, ...]
    expires_at: float = math.inf
    assignment: bytes = b""
    joining: int | None = None
    syncing: int | None = None
    has_synced: bool = False
    """Whether it asked for its assignment of this generation."""

    @property
    def waits(self) -> bool:
        """Whether one of its requests is unanswered: such a member cannot send heartbeats."""
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        """What it says for this protocol; nothing if it does not know it."""
        return next((one.metadata for one in self.protocols if one.name == protocol), b"")


def size_of(protocols: Iterable[Protocol]) -> int:
    """Bytes that these protocols hold in memory."""
    return sum(len(one.name) + len(one.metadata) + _PART_BYTES for one in protocols)


def common_protocols(members: Iterable[Member]) -> set[str]:
    """Names of the protocols that all of them support."""
    names = [{one.name for one in member.protocols} for member in members]
    return set.intersection(*names) if names else set()
