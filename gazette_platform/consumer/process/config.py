"""Settings of one consumer process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from urllib.parse import urlsplit

from gazette_platform.client import ClientConfig
from gazette_platform.consumer.runtime.host import HINTS_INTERVAL_S
from gazette_platform.errors import ValidationError
from gazette_platform.etcd import EtcdTls
from gazette_platform.keyspace import validate_prefix
from gazette_platform.protocol import endpoint_grpc_address, validate_token
from gazette_platform.protocol.auth import KeyRing
from gazette_platform.serving.tls import TlsFiles

__all__ = ["ConsumerConfig"]

_ETCD_SCHEMES = ("http", "https", "unix")


def _never_gives_up() -> ClientConfig:
    return ClientConfig(retry_timeout_s=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerConfig:
    """What `serve` of an application was asked for. Validated when built.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

    zone: str = "local"
    """Availability zone: 1 to 32 bytes of the token alphabet."""

    id: str = ""
    """Suffix of the member id, at least 4 bytes; empty: two random words."""

    host: str = "127.0.0.1"
    """Host that is bound, and advertised unless `advertise` is given."""

    advertise: str = ""
    """URL under which clients and other processes reach it, if it is not the bound address."""

    port: int = 0
    """TCP port of the gRPC service; 0: any free one."""

    http_host: str = "127.0.0.1"
    """Address that the HTTP port binds to."""

    http_port: int = 0
    """TCP port of the application's pages, readiness and metrics; 0: any free one."""

    server_cert_file: Path | None = None
    """PEM certificate of both ports; None: they are plain."""

    server_cert_key_file: Path | None = None
    """PEM key of `server_cert_file`."""

    server_ca_file: Path | None = None
    """PEM roots of clients; when given, clients must show a certificate."""

    peer_cert_file: Path | None = None
    """PEM certificate shown to other processes of the group."""

    peer_cert_key_file: Path | None = None
    """PEM key of `peer_cert_file`."""

    peer_ca_file: Path | None = None
    """PEM roots to trust of other processes; None: the system's."""

    auth_keys: str = field(default="", repr=False)
    """Base64 keys: the first signs, any verifies; empty: every call is allowed."""

    allow_origin: tuple[str, ...] = ()
    """Origins whose pages may use the HTTP port; ``*`` for all."""

    allow_host: tuple[str, ...] = ()
    """More names under which the HTTP port may be asked for; ``*`` for any name."""

    limit: int = 32
    """Most shards that the allocator may assign to this process."""

    max_hot_standbys: int = 3
    """Cap on the hot standbys of shards."""

    watch_delay_s: float = 0.03
    """Seconds over which etcd events are gathered before they are applied."""

    max_grpc_recv_size: int = 4 << 20
    """Largest message received, in bytes."""

    restart_failed_s: float | None = None
    """Seconds after which a shard that failed here is started again, longer each time; None: it never is,
    until somebody unassigns it. One that was fenced is in any case, after a second.
    """

    drain_timeout_s: float | None = None
    """Seconds after SIGTERM until it leaves though others have not taken over its shards; None: for ever.

    The last process of a group never waits, and neither do those of a group that leaves as a whole.
    """

    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Where the process has a folder, in which replicas keep files while they run."""

    hints_interval_s: float = HINTS_INTERVAL_S
    """Seconds after which a primary keeps hints anew: whoever recovers plays what was recorded since."""

    broker: ClientConfig = field(default_factory=_never_gives_up)
    """How to reach brokers; a `retry_timeout_s` of None has shards wait for brokers that are away."""

    etcd_address: str = "http://localhost:2379"
    """One or several comma-separated etcd endpoints."""

    etcd_cert_file: Path | None = None
    """PEM certificate shown to etcd."""

    etcd_cert_key_file: Path | None = None
    """PEM key of `etcd_cert_file`."""

    etcd_trusted_ca_file: Path | None = None
    """PEM roots to trust of https etcd endpoints; None: the system's."""

    etcd_prefix: str = ""
    """Clean path under which the group keeps its keys, as ``/gazette/consumers/APP-RELEASE``."""

    etcd_lease_s: float = 20.0
    """Seconds after which etcd forgets a process that died, and others take over its shards."""

    def __post_init__(self) -> None:
        _validate("consumer.zone", validate_token, self.zone, 1, 32)
        if self.id:
            _validate("consumer.id", validate_token, self.id, 4, 128)
        if self.advertise:
            _validate("consumer.advertise", endpoint_grpc_address, self.advertise)
        _validate("etcd.prefix", validate_prefix, self.etcd_prefix)
        for value, flag in ((self.port, "port"), (self.http_port, "http-port")):
            _expect(0 <= value < 65536, f"consumer.{flag}", "0 to 65535", value)
        _expect(0 <= self.limit <= 1 << 17, "consumer.limit", "0 to 131072", self.limit)
        _expect(
            0 <= self.max_hot_standbys < 100,
            "consumer.max-hot-standbys",
            "0 to 99",
            self.max_hot_standbys,
        )
        _expect(
            self.hints_interval_s > 0,
            "consumer.hints-interval",
            "more than 0s",
            self.hints_interval_s,
        )
        _expect(
            self.restart_failed_s is None or self.restart_failed_s > 0,
            "consumer.restart-failed",
            "more than 0s",
            self.restart_failed_s,
        )
        _expect(self.watch_delay_s >= 0, "consumer.watch-delay", "at least 0s", self.watch_delay_s)
        _expect(
            self.max_grpc_recv_size > 0,
            "consumer.max-grpc-recv-size",
            "more than 0",
            self.max_grpc_recv_size,
        )
        if self.drain_timeout_s is not None:
            _expect(
                self.drain_timeout_s >= 0,
                "consumer.drain-timeout",
                "at least 0s",
                self.drain_timeout_s,
            )
        _expect(self.etcd_lease_s >= 1, "etcd.lease", "at least 1s", self.etcd_lease_s)
        _expect(
            bool(self.etcd_endpoints)
            and all(urlsplit(each).scheme in _ETCD_SCHEMES for each in self.etcd_endpoints),
            "etcd.address",
            "http://host:port, https://host:port or unix:///path, one or several",
            self.etcd_address,
        )
        if not self.directory.is_dir():
            raise ValidationError(
                f"{self.directory} is not a directory; create it first", path="consumer.directory"
            )
        self._check_security()

    def _check_security(self) -> None:
        _ = self.server_tls, self.peer_tls, self.etcd_tls  # checked when built
        if self.server_ca_file is not None and self.server_cert_file is None:
            raise ValidationError(
                "needs --consumer.server-cert-file: without one the ports speak no TLS, and ask for no "
                "certificates",
                path="consumer.server-ca-file",
            )
        if self.auth_keys.strip():
            try:
                KeyRing(self.auth_keys)
            except ValidationError as err:
                raise err.within("consumer.auth-keys") from None

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names by which the HTTP port may be asked for; ``*``: any.

        With TLS or tokens any name may be used: foreign pages have neither.
        """
        has_tokens = bool(self.auth_keys.strip()) and not KeyRing(self.auth_keys).admits_all
        if self.server_cert_file is not None or has_tokens:
            return ("*",)
        advertised = urlsplit(self.advertise).hostname or ""
        own = (self.host, self.http_host, advertised, gethostname())
        return (*(name for name in own if name), *self.allow_host)

    @property
    def server_tls(self) -> TlsFiles:
        """Files of the ports."""
        return TlsFiles(
            flags="consumer.server",
            cert_file=self.server_cert_file,
            cert_key_file=self.server_cert_key_file,
            ca_file=self.server_ca_file,
        )

    @property
    def peer_tls(self) -> TlsFiles:
        """Files for connections to other processes of the group."""
        return TlsFiles(
            flags="consumer.peer",
            cert_file=self.peer_cert_file,
            cert_key_file=self.peer_cert_key_file,
            ca_file=self.peer_ca_file,
        )

    @property
    def peers(self) -> ClientConfig:
        """How to reach other processes of the group."""
        files = self.peer_tls
        return ClientConfig(
            zone=self.zone,
            cert_file=str(files.cert_file or ""),
            cert_key_file=str(files.cert_key_file or ""),
            trusted_ca_file=str(files.ca_file or ""),
            auth_keys=self.auth_keys,
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


def _validate(flag: str, check: object, *arguments: object) -> None:
    """Name the flag in what `check` raises."""
    assert callable(check)
    try:
        check(*arguments)
    except ValidationError as err:
        raise ValidationError(str(err), path=flag) from None


def _expect(holds: bool, flag: str, wanted: str, got: object) -> None:  # noqa: FBT001
    if not holds:
        raise ValidationError(f"expected {wanted}, got {got!r}", path=flag)
