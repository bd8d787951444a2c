"""Settings that every server has, whether it serves journals or shards: its ports, its certificates, etcd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from socket import gethostname
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from gazette_platform.errors import ValidationError
from gazette_platform.etcd import EtcdTls
from gazette_platform.keyspace import validate_prefix
from gazette_platform.ops.network import host_name
from gazette_platform.protocol import endpoint_grpc_address, validate_token
from gazette_platform.protocol.auth import KeyRing
from gazette_platform.serving.auth import TlsFiles

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

_ETCD_SCHEMES: Final = ("http", "https", "unix")


class Wire(Enum):
    """Who serves the gRPC port; the values are those of --broker.wire and --consumer.wire. Callers see no difference."""

    H2 = "h2"
    """Our own HTTP/2, which takes a tenth of the CPU for a small call."""
    GRPC = "grpc"
    """The gRPC library."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig(ABC):
    """What a server was asked for, of any kind. Validated when built.

    Its *peers* are the other members: brokers of its cluster, or processes of its group.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

    flags: ClassVar[str]
    """What its flags begin with, such as ``broker``; those of etcd begin with ``etcd`` for all."""

    zone: str = "local"
    """Availability zone: 1 to 32 bytes of the token alphabet."""

    id: str = ""
    """Suffix of the member id, at least 4 bytes; empty: two random words."""

    host: str = "127.0.0.1"
    """Host that is bound, and advertised to clients and peers unless `advertise` is given."""

    advertise: str = ""
    """URL under which clients and peers reach it, if it is not the bound address."""

    port: int = 0
    """TCP port of the gRPC service; 0: any free one."""

    http_host: str = "127.0.0.1"
    """Address that the HTTP port binds to."""

    http_port: int = 0
    """TCP port of pages, readiness and metrics; 0: any free one."""

    server_cert_file: Path | None = None
    """PEM certificate of both ports; None: they are plain."""

    server_cert_key_file: Path | None = None
    """PEM key of `server_cert_file`."""

    server_ca_file: Path | None = None
    """PEM roots of clients; when given, clients must show a certificate."""

    peer_cert_file: Path | None = None
    """PEM certificate shown to peers."""

    peer_cert_key_file: Path | None = None
    """PEM key of `peer_cert_file`."""

    peer_ca_file: Path | None = None
    """PEM roots to trust of peers; None: the system's."""

    auth_keys: str = field(default="", repr=False)
    """Base64 keys: the first signs, any verifies; empty: every call is allowed."""

    allow_origin: tuple[str, ...] = ()
    """Origins whose pages may use the HTTP port; ``*`` for all."""

    allow_host: tuple[str, ...] = ()
    """More names under which the HTTP port may be asked for; ``*`` for any name."""

    wire: Wire = Wire.H2
    """Who serves the gRPC port. A broker calls its peers with the same."""

    max_grpc_recv_size: int = 4 << 20
    """Largest message received, in bytes."""

    watch_delay_s: float = 0.03
    """Seconds over which etcd events are gathered before they are applied."""

    drain_timeout_s: float | None = None
    """Seconds after SIGTERM until it leaves though peers have not taken over what it holds.

    None: it waits for ever, unless it is the last member: that one never waits.
    """

    etcd_address: str = "http://localhost:2379"
    """One or several comma-separated etcd endpoints."""

    etcd_cert_file: Path | None = None
    """PEM certificate shown to etcd."""

    etcd_cert_key_file: Path | None = None
    """PEM key of `etcd_cert_file`."""

    etcd_trusted_ca_file: Path | None = None
    """PEM roots to trust of https etcd endpoints; None: the system's."""

    etcd_prefix: str = ""
    """Clean path under which all members keep their keys."""

    etcd_lease_s: float = 20.0
    """Seconds after which etcd forgets a member that died."""

    def __post_init__(self) -> None:
        own = self.flags
        check_setting(f"{own}.zone", validate_token, self.zone, 1, 32)
        if self.id:
            check_setting(f"{own}.id", validate_token, self.id, 4, 128)
        if self.advertise:
            check_setting(f"{own}.advertise", endpoint_grpc_address, self.advertise)
        expect_setting(0 <= self.port < 65536, f"{own}.port", "0 to 65535", self.port)
        expect_setting(
            0 <= self.http_port < 65536, f"{own}.http-port", "0 to 65535", self.http_port
        )
        expect_setting(
            self.watch_delay_s >= 0, f"{own}.watch-delay", "at least 0s", self.watch_delay_s
        )
        expect_setting(
            self.max_grpc_recv_size > 0,
            f"{own}.max-grpc-recv-size",
            "more than 0",
            self.max_grpc_recv_size,
        )
        expect_setting(
            self.drain_timeout_s is None or self.drain_timeout_s >= 0,
            f"{own}.drain-timeout",
            "at least 0s",
            self.drain_timeout_s,
        )
        check_setting("etcd.prefix", validate_prefix, self.etcd_prefix)
        expect_setting(self.etcd_lease_s >= 1, "etcd.lease", "at least 1s", self.etcd_lease_s)
        self._check_etcd()
        self._check_pages()
        self._check_certificates()
        self._check_own()

    @abstractmethod
    def _check_own(self) -> None:
        """Check what only this kind of server has. Raises: ValidationError."""

    def _check_etcd(self) -> None:
        expect_setting(
            self.etcd_endpoints != (),
            "etcd.address",
            "one or more endpoints, such as http://localhost:2379",
            self.etcd_address,
        )
        for endpoint in self.etcd_endpoints:
            expect_setting(
                urlsplit(endpoint).scheme in _ETCD_SCHEMES,
                "etcd.address",
                "http://host:port, https://host:port or unix:///path",
                endpoint,
            )

    def _check_pages(self) -> None:
        for origin in self.allow_origin:
            parts = urlsplit(origin)
            expect_setting(
                origin == "*" or bool(parts.scheme and parts.netloc and not parts.path),
                f"{self.flags}.allow-origin",
                "an origin such as https://console.example:8443, or *",
                origin,
            )
        for name in self.allow_host:
            expect_setting(
                name == "*" or host_name(name) == name.lower().rstrip(".") != "",
                f"{self.flags}.allow-host",
                "a host name such as broker.example, or *",
                name,
            )

    def _check_certificates(self) -> None:
        _ = self.server_tls, self.peer_tls, self.etcd_tls  # checked when built
        if self.server_ca_file is not None and self.server_cert_file is None:
            raise ValidationError(
                f"needs --{self.flags}.server-cert-file: without one the ports speak no TLS, and ask "
                "for no certificates",
                path=f"{self.flags}.server-ca-file",
            )
        if self.auth_keys.strip():
            try:
                KeyRing(self.auth_keys)
            except ValidationError as err:
                raise err.within(f"{self.flags}.auth-keys") from None

    @property
    def scheme(self) -> str:
        """Of its ports."""
        return "https" if self.server_cert_file is not None else "http"

    def endpoint(self, port: int) -> str:
        """Where clients and peers reach it.

        Args:
            port: that is bound, for the gRPC service.
        """
        return self.advertise or f"{self.scheme}://{self.host}:{port}"

    @property
    def host_names(self) -> tuple[str, ...]:
        """Host names that requests to the HTTP port may carry; ``*``: any.

        Any name may be used if no foreign web page can get in. That is so if calls need tokens, which
        such a page does not have, or if the port has TLS: a browser ends the connection unless the
        certificate is for the name that the page asked for.
        """
        needs_token = bool(self.auth_keys.strip()) and not KeyRing(self.auth_keys).admits_all
        if self.server_cert_file is not None or needs_token:
            return ("*",)
        advertised = urlsplit(self.advertise).hostname or ""
        own = (self.host, self.http_host, advertised, gethostname())
        return (*(name for name in own if name), *self.allow_host)

    @property
    def server_tls(self) -> TlsFiles:
        """Files of its own ports."""
        return TlsFiles(
            flags=f"{self.flags}.server",
            cert_file=self.server_cert_file,
            cert_key_file=self.server_cert_key_file,
            ca_file=self.server_ca_file,
        )

    @property
    def peer_tls(self) -> TlsFiles:
        """Files for connections to peers."""
        return TlsFiles(
            flags=f"{self.flags}.peer",
            cert_file=self.peer_cert_file,
            cert_key_file=self.peer_cert_key_file,
            ca_file=self.peer_ca_file,
        )

    @property
    def etcd_tls(self) -> EtcdTls:
        """Files for https endpoints of etcd."""
        return EtcdTls(
            trusted_ca_file=self.etcd_trusted_ca_file,
            cert_file=self.etcd_cert_file,
            cert_key_file=self.etcd_cert_key_file,
        )

    @property
    def etcd_endpoints(self) -> tuple[str, ...]:
        """The endpoints of `etcd_address`, in the order given."""
        return tuple(e.strip() for e in self.etcd_address.split(",") if e.strip())


def check_setting(flag: str, check: Callable[..., object], *arguments: object) -> None:
    """Name the flag in what `check` raises. Raises: ValidationError."""
    try:
        check(*arguments)
    except ValidationError as err:
        raise ValidationError(str(err), path=flag) from None


def expect_setting(holds: bool, flag: str, wanted: str, got: object) -> None:  # noqa: FBT001
    """Raises: ValidationError: it does not hold."""
    if not holds:
        raise ValidationError(f"expected {wanted}, got {got!r}", path=flag)


# ------------------------------------------------------- names of servers that were given none
def _words(text: str) -> list[str]:
    return text.split()


_MOODS = _words(
    "amber brave calm clever daring eager fair gentle golden happy humble jolly keen kind lively "
    "lucky merry mighty modest noble patient proud quick quiet ready sharp silent steady sunny "
    "swift tidy wise"
)
_BEINGS = _words(
    "badger beaver bison crane curlew dolphin eagle falcon ferret finch fox gannet hare heron ibis "
    "jackdaw kestrel lark linnet lynx magpie marten merlin newt osprey otter petrel plover raven "
    "robin stoat swallow tern wren"
)


def random_id(rng: random.Random) -> str:
    """Two words and a number: unique enough for a cluster, and good to talk about."""
    return f"{rng.choice(_MOODS)}-{rng.choice(_BEINGS)}-{rng.randrange(1000):03d}"
