"""Routes and headers: who serves a journal, and what a broker knew when it answered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.field_context import check_field
from gazette_platform.protocol.pb import protocol_pb2 as pb
from gazette_platform.protocol.processes import ProcessId, validate_endpoint

__all__ = ["EtcdHeader", "Header", "Route", "validate_header"]

_NO_PRIMARY = -1


@dataclass(frozen=True, slots=True)
class Route:
    """The processes that serve an item."""

    members: tuple[ProcessId, ...] = ()
    """Ascending by (zone, suffix)."""
    primary: int = _NO_PRIMARY
    """Index in `members`; -1 if there is none."""
    endpoints: tuple[str, ...] = ()
    """Empty, or one per member, "" where it is unknown."""

    @property
    def primary_id(self) -> ProcessId | None:
        """The primary, if there is one."""
        return self.members[self.primary] if self.primary >= 0 else None

    def endpoint_of(self, member: ProcessId) -> str:
        """Endpoint of a member, or "" if it is unknown."""
        for index, candidate in enumerate(self.members):
            if candidate == member and index < len(self.endpoints):
                return self.endpoints[index]
        return ""

    def equivalent(self, other: Route) -> bool:
        """Whether members and primary are the same; endpoints do not count."""
        return self.members == other.members and self.primary == other.primary

    def without_endpoints(self) -> Route:
        """The route as the value of an assignment in etcd holds it."""
        return Route(self.members, self.primary)

    def to_pb(self) -> pb.Route:
        """The route as a message, with the bytes that Gazette gives it."""
        message = pb.Route()
        self.into_pb(message)
        return message

    def into_pb(self, message: pb.Route) -> None:
        """Fill an empty message."""
        add = message.members.add
        for zone, suffix in self.members:
            add(zone=zone, suffix=suffix)
        message.primary = self.primary
        if self.endpoints:
            message.endpoints.extend(self.endpoints)

    @classmethod
    def from_pb(cls, message: pb.Route) -> Self:
        """The route of a message, not validated."""
        return cls(
            tuple([ProcessId(m.zone, m.suffix) for m in message.members]),
            message.primary,
            tuple(message.endpoints),
        )

    def validate(self) -> None:
        """Check members, their order, the primary and endpoints.

        Raises: ValidationError.
        """
        for index, member in enumerate(self.members):
            check_field(f"Members[{index}]", member.validate)
            if index and member <= self.members[index - 1]:
                raise ValidationError(
                    "Members not in unique, sorted order "
                    f"(index {index}; {{{member}}} <= {{{self.members[index - 1]}}})"
                )
        if not _NO_PRIMARY <= self.primary < len(self.members):
            raise ValidationError(
                f"invalid Primary ({self.primary}; expected -1 <= Primary < {len(self.members)})"
            )
        if self.endpoints and len(self.endpoints) != len(self.members):
            raise ValidationError(
                "len(Endpoints) != 0, and != len(Members) "
                f"({len(self.endpoints)} vs {len(self.members)})"
            )
        for index, endpoint in enumerate(self.endpoints):
            if endpoint:
                check_field(f"Endpoints[{index}]", validate_endpoint, endpoint)


@dataclass(frozen=True, slots=True)
class EtcdHeader:
    """What a process knew of etcd."""

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int

    @classmethod
    def from_pb(cls, message: pb.Header.Etcd) -> Self:
        """The state of a message, not validated."""
        return cls(message.cluster_id, message.member_id, message.revision, message.raft_term)

    def to_pb(self) -> pb.Header.Etcd:
        """The state as a message."""
        return pb.Header.Etcd(
            cluster_id=self.cluster_id,
            member_id=self.member_id,
            revision=self.revision,
            raft_term=self.raft_term,
        )

    def validate(self) -> None:
        """Check that all fields are set.

        Raises: ValidationError.
        """
        if not self.cluster_id:
            raise ValidationError("invalid ClusterId (expected != 0)")
        if not self.member_id:
            raise ValidationError("invalid MemberId (expected != 0)")
        if self.revision <= 0:
            raise ValidationError(f"invalid Revision ({self.revision}; expected > 0)")
        if not self.raft_term:
            raise ValidationError("invalid RaftTerm (expected != 0)")


@dataclass(frozen=True, slots=True)
class Header:
    """Which process serves a request, with its route and the state of etcd."""

    process_id: ProcessId | None
    """None only in requests that are proxied to any member of the route."""
    route: Route
    etcd: EtcdHeader

    def to_pb(self) -> pb.Header:
        """The header as a message."""
        message = pb.Header()
        self.into_pb(message)
        return message

    def into_pb(self, message: pb.Header) -> None:
        """Fill an empty message."""
        process_id = message.process_id
        process_id.SetInParent()
        if self.process_id is not None:
            process_id.zone, process_id.suffix = self.process_id
        message.route.SetInParent()
        self.route.into_pb(message.route)
        own, etcd = self.etcd, message.etcd
        etcd.SetInParent()
        etcd.cluster_id = own.cluster_id
        etcd.member_id = own.member_id
        etcd.revision = own.revision
        etcd.raft_term = own.raft_term

    @staticmethod
    def from_pb(message: pb.Header) -> Header:
        """The header of a message, not validated."""
        raw = message.SerializeToString()
        return _header_of(raw) if len(raw) <= _REMEMBERED_BYTES_MAX else _parse_header(raw)

    def validate(self) -> None:
        """Check identity (if set), route and etcd state.

        Raises: ValidationError.
        """
        if self.process_id is not None:
            check_field("ProcessId", self.process_id.validate)
        check_field("Route", self.route.validate)
        check_field("Etcd", self.etcd.validate)


# Every response has a header, but it changes only with the broker's route and with etcd's revision.
# Decoding the same bytes again and again would cost more than the rest of a small append.
_HEADER_CACHE_SIZE = 256

# Longer ones are not remembered: a hostile header is forty times as large once it is decoded, while
# routes of journals have some ten members.
_REMEMBERED_BYTES_MAX = 2 * 1024

HEADER_BYTES_MAX: Final = 64 * 1024
"""Of a header in a request."""


@lru_cache(_HEADER_CACHE_SIZE)
def _header_of(raw: bytes) -> Header:
    return _parse_header(raw)


def _parse_header(raw: bytes) -> Header:
    message = pb.Header.FromString(raw)
    sender = message.process_id
    zone, suffix = sender.zone, sender.suffix
    return Header(
        ProcessId(zone, suffix) if zone or suffix else None,
        Route.from_pb(message.route),
        EtcdHeader.from_pb(message.etcd),
    )


@lru_cache(_HEADER_CACHE_SIZE)
def _check_header(raw: bytes) -> None:
    _parse_header(raw).validate()  # one that is malformed is not remembered


def validate_header(message: pb.Header) -> None:
    """Check a header.

    Raises: ValidationError.
    """
    raw = message.SerializeToString()
    if len(raw) > HEADER_BYTES_MAX:
        raise ValidationError(f"invalid size ({len(raw)} bytes; expected <= {HEADER_BYTES_MAX})")
    if len(raw) <= _REMEMBERED_BYTES_MAX:
        _check_header(raw)
    else:
        _parse_header(raw).validate()
