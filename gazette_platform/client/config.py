"""Configuration of a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import endpoint_grpc_address
from gazette_platform.protocol.auth import KeyRing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VARIABLES = {
    "address": "BROKER_ADDRESS",
    "zone": "ZONE",
    "cert_file": "BROKER_CERT_FILE",
    "cert_key_file": "BROKER_CERT_KEY_FILE",
    "trusted_ca_file": "BROKER_TRUSTED_CA_FILE",
    "auth_token": "BROKER_AUTH_TOKEN",
    "auth_keys": "BROKER_AUTH_KEYS",
}
"""Environment variables of fields, as Gazette's programs name them."""

_SCHEMES = ("http://", "https://", "unix://")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig:
    """How to reach brokers, and how long to keep trying."""

    address: str = "http://localhost:8080"
    """Endpoint URL of any broker, or of a balancer before them: ``http``, ``https`` or ``unix``.

    Or several, with commas between them: when one fails, the next one is asked.
    """

    zone: str = "local"
    """Zone of this process; reads prefer a replica in the same zone."""

    route_cache_size: int = 1024
    """Journals whose brokers are remembered and dialed directly; 0 lets brokers proxy each call."""

    route_cache_ttl_s: float = 60.0
    """Seconds after which a remembered route is resolved again."""

    connect_timeout_s: float = 4.0
    """Seconds to keep trying when no broker was ever reached, before an error says so."""

    retry_timeout_s: float | None = 60.0
    """Seconds to keep retrying a call that fails retriably without progress; None for ever."""

    call_timeout_s: float = 30.0
    """Deadline in seconds of one attempt of a unary call (list, apply, fragments, store health)."""

    append_timeout_s: float = 30.0
    """Seconds within which a broker must take the next message of an append, or answer it."""

    keepalive_s: float = 10.0
    """Seconds between HTTP/2 pings while calls are open; a dead peer is noticed within twice that.

    One that objects to such frequent pings, as Gazette's brokers do by default, ends a
    connection once, and is pinged every 310 s from then on.
    """

    message_bytes_max: int = 16 << 20
    """Largest message to accept from a broker."""

    read_ahead_bytes_max: int = 64 << 20
    """Bytes of content that direct reads, all together, hold fetched ahead of who reads them."""

    file_root: Path | None = None
    """Local directory that ``file://`` fragment stores are rooted at, for direct reads."""

    cert_file: str = ""
    """Path of a PEM client certificate, for ``https`` brokers that ask for one."""

    cert_key_file: str = ""
    """Path of the PEM key of `cert_file`."""

    trusted_ca_file: str = ""
    """Path of PEM roots to trust instead of the system's."""

    auth_token: str = field(default="", repr=False)
    """Fixed bearer token to send with every call."""

    auth_keys: str = field(default="", repr=False)
    """Base64 keys, separated by commas or blanks; the first one signs a token for each call."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The endpoint URLs in `address`."""
        return tuple(url for url in (part.strip() for part in self.address.split(",")) if url)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **settings: Any) -> Self:
        """A config out of the variables that `gazctl` reads, such as ``BROKER_AUTH_TOKEN``.

        Args:
            environment: as `os.environ`; empty variables count as not set.
            settings: fields that are given, and win.

        Raises: ValidationError: a value that cannot work, naming the field.
        """
        found = {name: environment.get(variable, "") for name, variable in VARIABLES.items()}
        return cls(**({name: value for name, value in found.items() if value} | settings))

    def __post_init__(self) -> None:
        """Raises: ValidationError: a value that cannot work, naming the field."""
        for address in self.addresses or (self.address,):
            _check_address(address)
        if not self.zone:
            raise ValidationError("must not be empty", path="zone")
        if self.route_cache_size < 0:
            raise ValidationError(
                f"must not be negative ({self.route_cache_size})", path="route_cache_size"
            )
        for name in (
            "read_ahead_bytes_max",
            "route_cache_ttl_s",
            "connect_timeout_s",
            "call_timeout_s",
            "append_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValidationError(f"must be positive ({getattr(self, name)})", path=name)
        if self.keepalive_s < 1:
            raise ValidationError(f"must be at least 1 s ({self.keepalive_s})", path="keepalive_s")
        if bool(self.cert_file) != bool(self.cert_key_file):
            raise ValidationError("cert_file and cert_key_file go together", path="cert_file")
        if self.auth_keys.strip():
            try:
                KeyRing(self.auth_keys)
            except ValidationError as err:
                raise err.within("auth_keys") from err


def _check_address(address: str) -> None:
    if not address.startswith(_SCHEMES):
        raise ValidationError(
            f"must begin with one of {' '.join(_SCHEMES)} ({address})", path="address"
        )
    try:
        endpoint_grpc_address(address)
    except ValidationError as err:
        if address.startswith("unix:///"):  # as gRPC's tools write it
            text = f"{err} (write unix://localhost{address.removeprefix('unix://')})"
            raise ValidationError(text, path="address") from err
        raise err.within("address") from err
