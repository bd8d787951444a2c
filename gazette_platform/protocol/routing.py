"""Processes and routes: who they are, where they are reached, who serves a journal, and what a broker knew when it answered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.names import check_field, validate_token
from gazette_platform.protocol.pb import protocol_pb2 as pb

_ZONE_LENGTH_MAX = 32
_SUFFIX_LENGTH_MIN = 4
_SUFFIX_LENGTH_MAX = 128
_JOURNAL_LIMIT_MAX = 1 << 17

_DEFAULT_PORTS = {"http": 80, "https": 443}


class ProcessId(NamedTuple):
    """Identity of a process: failure zone, and a suffix that is unique in it. Sorted by zone first."""

    zone: str
    suffix: str

    def to_pb(self) -> pb.ProcessSpec.ID:
        """The identity as a message."""
        return pb.ProcessSpec.ID(zone=self.zone, suffix=self.suffix)

    @classmethod
    def from_pb(cls, message: pb.ProcessSpec.ID) -> Self:
        """The identity of a message, not validated."""
        return cls(message.zone, message.suffix)

    def validate(self) -> None:
        """Check zone and suffix.

        Raises: ValidationError.
        """
        check_field("Zone", validate_token, self.zone, 1, _ZONE_LENGTH_MAX)
        check_field("Suffix", validate_token, self.suffix, _SUFFIX_LENGTH_MIN, _SUFFIX_LENGTH_MAX)

    @property
    def name(self) -> str:
        """Zone and suffix in one, as keys of etcd, logs and `gazctl` have them.

        >>> ProcessId("a", "left").name
        'a#left'
        """
        return f"{self.zone}#{self.suffix}"

    @override
    def __str__(self) -> str:
        """The compact text that Gazette's errors show, with its trailing blank."""
        return f'zone:"{self.zone}" suffix:"{self.suffix}" '


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """A broker, as it announces itself in etcd."""

    id: ProcessId
    endpoint: str
    journal_limit: int = 1024
    """Most journals that it may be assigned."""
    exiting: bool = False
    """Whether it drains in order to exit."""

    @property
    def item_limit(self) -> int:
        """Most items that the allocator may assign."""
        return self.journal_limit

    def to_pb(self) -> pb.BrokerSpec:
        """The spec as a message, with the bytes that Gazette gives it."""
        message = pb.BrokerSpec(journal_limit=self.journal_limit, exiting=self.exiting)
        message.process_spec.id.zone = self.id.zone
        message.process_spec.id.suffix = self.id.suffix
        message.process_spec.endpoint = self.endpoint
        return message

    @classmethod
    def from_pb(cls, message: pb.BrokerSpec) -> Self:
        """The spec of a message, not validated."""
        process = message.process_spec
        return cls(
            ProcessId.from_pb(process.id), process.endpoint, message.journal_limit, message.exiting
        )

    def validate(self) -> None:
        """Check identity, endpoint and limit.

        Raises: ValidationError.
        """
        check_field("ProcessSpec.Id", self.id.validate)
        check_field("ProcessSpec.Endpoint", validate_endpoint, self.endpoint)
        if not 0 <= self.journal_limit <= _JOURNAL_LIMIT_MAX:
            raise ValidationError(
                f"invalid JournalLimit ({self.journal_limit}; expected <= {_JOURNAL_LIMIT_MAX})"
            )


def validate_endpoint(endpoint: str) -> None:
    """Check that an endpoint is an absolute URL with a host.

    Raises: ValidationError.
    """
    try:
        parts = urlsplit(endpoint)
        _ = parts.port
    except ValueError as err:
        raise ValidationError(f'parse "{endpoint}": {err}') from None
    if not parts.scheme:
        raise ValidationError(f"not absolute ({endpoint})")
    if not parts.netloc:
        raise ValidationError(f"missing host ({endpoint})")


def endpoint_grpc_address(endpoint: str) -> tuple[str, bool]:
    """The gRPC target of an endpoint, and whether it speaks TLS.

    Raises: ValidationError: not an absolute URL with a host.

    >>> endpoint_grpc_address("https://broker.example")
    ('broker.example:443', True)
    >>> endpoint_grpc_address("unix://local/run/broker.sock")
    ('unix:///run/broker.sock', False)
    """
    validate_endpoint(endpoint)
    parts = urlsplit(endpoint)
    if parts.scheme == "unix":
        return f"unix://{parts.path}", False
    address = parts.netloc.rpartition("@")[2]
    if parts.port is None and parts.scheme in _DEFAULT_PORTS:
        address = f"{address.removesuffix(':')}:{_DEFAULT_PORTS[parts.scheme]}"
    return address, parts.scheme == "https"


def endpoint_host(endpoint: str) -> str:
    """Return the host of an endpoint; empty if it names none.

    >>> endpoint_host("http://Broker-0.example:8080"), endpoint_host("unix://local/run/b.sock")
    ('broker-0.example', 'local')
    """
    try:
        return urlsplit(endpoint).hostname or ""
    except ValueError:
        return ""


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
