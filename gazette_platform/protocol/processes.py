"""Processes: who they are, and where they are reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.field_context import check_field
from gazette_platform.protocol.names import validate_token
from gazette_platform.protocol.pb import protocol_pb2 as pb

__all__ = ["BrokerSpec", "ProcessId", "endpoint_grpc_address", "endpoint_host", "validate_endpoint"]

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
