"""Settings of one broker process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gazette_platform.errors import ValidationError
from gazette_platform.etcd import EtcdTls
from gazette_platform.keyspace import validate_prefix
from gazette_platform.ops.host_guard import host_name
from gazette_platform.protocol import endpoint_grpc_address, validate_store_url, validate_token
from gazette_platform.protocol.auth import KeyRing
from gazette_platform.serving.tls import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BrokerConfig", "FsyncMode"]


class FsyncMode(Enum):
    """When spools are brought to the disk itself; the values are those of --broker.fsync.

    In any mode, what was acknowledged survives the end of the process.
    """

    COMMIT = "commit"
    """Before appends are acknowledged, so that they survive a power failure."""
    INTERVAL = "interval"
    """Each second: a power failure takes no more than that."""
    NEVER = "never"
    """When the kernel does it by itself, about thirty seconds later."""


_ETCD_SCHEMES = ("http", "https", "unix")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """What `gazette serve` was asked for. Validated when built.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

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

    socket: Path | None = None
    """Unix socket of the gRPC service, in place of `host` and `port`."""

    server_cert_file: Path | None = None
    """PEM certificate of both ports; None: they are plain."""

    server_cert_key_file: Path | None = None
    """PEM key of `server_cert_file`."""

    server_ca_file: Path | None = None
    """PEM roots of clients; when given, clients must show a certificate."""

    peer_cert_file: Path | None = None
    """PEM certificate shown to other brokers."""

    peer_cert_key_file: Path | None = None
    """PEM key of `peer_cert_file`."""

    peer_ca_file: Path | None = None
    """PEM roots to trust of other brokers; None: the system's."""

    auth_keys: str = field(default="", repr=False)
    """Base64 keys: the first signs, any verifies; empty: every call is allowed."""

    allow_origin: tuple[str, ...] = ()
    """Origins whose pages may use the HTTP gateway; ``*`` for all."""

    allow_host: tuple[str, ...] = ()
    """More names under which the HTTP port may be asked for; ``*`` for any name."""

    debug_port: int | None = None
    """TCP port of one more plain listener, with diagnostics only; None: no such listener."""

    debug_private: bool = False
    """Whether the HTTP port leaves the diagnostics to `debug_port`."""

    http_host: str = "127.0.0.1"
    """Address that the HTTP port binds to."""

    http_port: int = 0
    """TCP port of readiness and metrics; 0: any free one."""

    etcd_address: str = "http://localhost:2379"
    """One or several comma-separated etcd endpoints."""

    etcd_cert_file: Path | None = None
    """PEM certificate shown to etcd."""

    etcd_cert_key_file: Path | None = None
    """PEM key of `etcd_cert_file`."""

    etcd_trusted_ca_file: Path | None = None
    """PEM roots to trust of https etcd endpoints; None: the system's."""

    etcd_prefix: str = "/gazette/cluster"
    """Clean path under which the cluster keeps its keys."""

    etcd_lease_s: float = 20.0
    """Seconds after which etcd forgets a broker that died."""

    journal_limit: int = 1024
    """Most journals that the allocator may assign to this broker, 0 to 131072."""

    file_root: Path | None = None
    """Directory that roots ``file://`` stores; None: such stores are refused."""

    file_only: bool = False
    """Map every store to ``file:///``; needs `file_root`."""

    stores_allowed: tuple[str, ...] = ()
    """URLs of which a journal's stores must be one, or lie below one; empty: any store."""

    max_append_rate: int = 0
    """Cap on the rates that specs set for appends, in bytes per second; 0: no cap.

    A journal whose spec sets no rate is not capped.
    """

    min_append_rate: int = 65536
    """Bytes per second that an appending client must sustain."""

    max_replication: int = 9
    """Cap on the effective replication of journals."""

    max_grpc_recv_size: int = 4 << 20
    """Largest message received, in bytes."""

    watch_delay_s: float = 0.03
    """Seconds over which etcd events are gathered before they are applied."""

    append_wait_s: float = 5.0
    """Seconds that an append waits for its journal to become writable; 0: fail at once.

    A read at or up to the write head waits as long for the first listing of the stores.
    """

    auto_suspend: bool = False
    """Whether journals that had no appends for a while, and are all in the store, are suspended."""

    drain_timeout_s: float | None = None
    """Seconds after SIGTERM until a broker leaves though others have not taken over its journals.

    None: it waits for ever. The last broker of a cluster never waits: it persists, and leaves.
    """

    evict_after_s: float = 0.3
    """Seconds for which a broker's address refuses connections until it counts as crashed.

    Then two brokers of different zones that see it have etcd revoke its lease. 0: none is evicted;
    the journals of one that crashed are taken over when its lease ends.
    """

    spool_dir: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Directory of the spools, on a local disk that outlives the process."""

    fsync: FsyncMode = FsyncMode.NEVER
    """When content that is appended is brought to the disk itself."""

    def __post_init__(self) -> None:
        _check("broker.zone", validate_token, self.zone, 1, 32)
        if self.id:
            _check("broker.id", validate_token, self.id, 4, 128)
        _expect(0 <= self.port < 65536, "broker.port", "0 to 65535", self.port)
        if self.advertise:
            _check("broker.advertise", endpoint_grpc_address, self.advertise)
        _expect(0 <= self.http_port < 65536, "broker.http-port", "0 to 65535", self.http_port)
        self._check_security()
        for url in self.stores_allowed:
            _check("broker.stores-allowed", validate_store_url, url)
        _expect(
            0 <= self.journal_limit <= 1 << 17, "broker.limit", "0 to 131072", self.journal_limit
        )
        _expect(self.etcd_lease_s >= 1, "etcd.lease", "at least 1s", self.etcd_lease_s)
        _expect(
            self.max_append_rate >= 0, "broker.max-append-rate", "at least 0", self.max_append_rate
        )
        _expect(
            self.min_append_rate >= 0, "broker.min-append-rate", "at least 0", self.min_append_rate
        )
        _expect(
            self.max_replication >= 1, "broker.max-replication", "at least 1", self.max_replication
        )
        _expect(self.append_wait_s >= 0, "broker.append-wait", "at least 0s", self.append_wait_s)
        _expect(self.evict_after_s >= 0, "broker.evict-after", "at least 0s", self.evict_after_s)
        _check("etcd.prefix", validate_prefix, self.etcd_prefix)
        _expect(
            self.etcd_endpoints != (),
            "etcd.address",
            "one or more endpoints, such as http://localhost:2379",
            self.etcd_address,
        )
        for endpoint in self.etcd_endpoints:
            _expect(
                urlsplit(endpoint).scheme in _ETCD_SCHEMES,
                "etcd.address",
                "http://host:port, https://host:port or unix:///path",
                endpoint,
            )
        if self.file_root is not None and not self.file_root.is_dir():
            raise ValidationError(
                f"{self.file_root} is not a directory; create it first", path="broker.file-root"
            )
        if self.file_only and self.file_root is None:
            raise ValidationError("needs --broker.file-root", path="broker.file-only")
        if not self.spool_dir.is_dir():
            raise ValidationError(
                f"{self.spool_dir} is not a directory; create it first", path="broker.spool-dir"
            )

    def _check_security(self) -> None:
        _ = self.server_tls, self.peer_tls, self.etcd_tls  # checked when built
        if self.server_ca_file is not None and self.server_cert_file is None:
            raise ValidationError(
                "needs --broker.server-cert-file: without one the ports speak no TLS, and ask "
                "for no certificates",
                path="broker.server-ca-file",
            )
        if self.socket is not None and self.server_cert_file is not None:
            raise ValidationError(
                f"unix://{self.socket} speaks no TLS; leave out --broker.server-cert-file, or "
                "give a TCP port",
                path="broker.port",
            )
        if self.auth_keys.strip():
            try:
                KeyRing(self.auth_keys)
            except ValidationError as err:
                raise err.within("broker.auth-keys") from None
        for origin in self.allow_origin:
            parts = urlsplit(origin)
            _expect(
                origin == "*" or bool(parts.scheme and parts.netloc and not parts.path),
                "broker.allow-origin",
                "an origin such as https://console.example:8443, or *",
                origin,
            )
        for name in self.allow_host:
            _expect(
                name == "*" or host_name(name) == name.lower().rstrip(".") != "",
                "broker.allow-host",
                "a host name such as broker.example, or *",
                name,
            )
        if self.debug_port is not None:
            _expect(0 <= self.debug_port < 65536, "debug.port", "0 to 65535", self.debug_port)

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names by which the HTTP port may be asked for; ``*``: any.

        Any name may be used if no foreign web page can get in. That is so if calls need tokens, which
        such a page does not have, or if the port has TLS: a browser ends the connection unless the
        certificate is for the name that the page asked for.
        """
        if self.server_cert_file is not None or self._needs_token:
            return ("*",)
        advertised = urlsplit(self.advertise).hostname or ""
        own = (self.host, self.http_host, advertised, gethostname())
        return (*(name for name in own if name), *self.allow_host)

    @property
    def _needs_token(self) -> bool:
        return bool(self.auth_keys.strip()) and not KeyRing(self.auth_keys).admits_all

    @property
    def server_tls(self) -> TlsFiles:
        """Files of the broker's own ports."""
        return TlsFiles(
            flags="broker.server",
            cert_file=self.server_cert_file,
            cert_key_file=self.server_cert_key_file,
            ca_file=self.server_ca_file,
        )

    @property
    def peer_tls(self) -> TlsFiles:
        """Files for connections to other brokers."""
        return TlsFiles(
            flags="broker.peer",
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


def _check(flag: str, check: Callable[..., object], *arguments: object) -> None:
    """Name the flag in what `check` raises."""
    try:
        check(*arguments)
    except ValidationError as err:
        raise ValidationError(str(err), path=flag) from None


def _expect(holds: bool, flag: str, wanted: str, got: object) -> None:  # noqa: FBT001
    if not holds:
        raise ValidationError(f"expected {wanted}, got {got!r}", path=flag)
