"""The settings of a broker, and of several broker processes on one host. Pure.

Each process is a broker of its own: a member of the cluster with its own port, which clients and peers reach
directly. They share the zone, so the cluster takes them for one zone; they share the host of their endpoints,
so the allocator takes them for one failure domain.

| setting | in process k |
|---|---|
| `id` | with ``-k`` added; without one, all have the same two random words before it |
| `port`, `http_port`, port of `advertise` | larger by k; any free one if it is 0 |
| `socket` | process 0 has it; others have ``-k`` added to its path |
| `spool_dir` | the same: each process keeps a folder of its own in it, and takes over those of processes that ended, so their number may change |
| `debug_port` | the supervisor's; the processes serve no diagnostics of their own |
| `journal_limit` and all others | the same in each process |
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import endpoint_grpc_address, validate_store_url
from gazette_platform.serving.config import ServerConfig, check_setting, expect_setting


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


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig(ServerConfig):
    """What `gazette serve` was asked for, beside what every server is. Validated when built.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

    flags: ClassVar[str] = "broker"

    socket: Path | None = None
    """Unix socket of the gRPC service, in place of `host` and `port`."""

    debug_port: int | None = None
    """TCP port of one more plain listener, with diagnostics only; None: no such listener."""

    debug_private: bool = False
    """Whether the HTTP port leaves the diagnostics to `debug_port`."""

    no_console: bool = False
    """Whether the HTTP port leaves out the console."""

    console_consumer: tuple[str, ...] = ()
    """Endpoint URLs of consumers whose shards the console shows."""

    etcd_prefix: str = "/gazette/cluster"
    """Clean path under which the cluster keeps its keys."""

    journal_limit: int = 1024
    """Most journals that the allocator may assign to this broker, 0 to 131072."""

    file_root: Path | None = None
    """Directory that roots ``file://`` stores; None: such stores are refused."""

    file_only: bool = False
    """Map every store to ``file:///``; needs `file_root`."""

    stores_allowed: tuple[str, ...] = ()
    """Allowed stores of journals: these URLs, or any below one; empty: any store."""

    max_append_rate: int = 0
    """Cap on the rates that specs set for appends, in bytes per second; 0: no cap.

    A journal whose spec sets no rate is not capped.
    """

    min_append_rate: int = 65536
    """Bytes per second that an appending client must sustain."""

    max_replication: int = 9
    """Cap on the effective replication of journals."""

    max_http_tails: int = 64
    """Live tails that one token may hold open over HTTP, or one address if there are no keys."""

    append_wait_s: float = 5.0
    """Seconds that an append waits for its journal to become writable; 0: fail at once.

    A read at or up to the write head waits as long for the first listing of the stores.
    """

    auto_suspend: bool = False
    """Whether journals that had no appends for a while, and are all in the store, are suspended."""

    evict_after_s: float = 0.3
    """Seconds for which a broker's address refuses connections until it counts as crashed.

    Then two brokers of different zones that see it have etcd revoke its lease. 0: none is evicted;
    the journals of one that crashed are taken over when its lease ends.
    """

    spool_dir: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Directory of the spools, on a local disk that outlives the process."""

    fsync: FsyncMode = FsyncMode.NEVER
    """When content that is appended is brought to the disk itself."""

    @override
    def _check_own(self) -> None:
        if self.socket is not None and self.server_cert_file is not None:
            raise ValidationError(
                f"unix://{self.socket} speaks no TLS; leave out --broker.server-cert-file, or "
                "give a TCP port",
                path="broker.port",
            )
        if self.debug_port is not None:
            expect_setting(
                0 <= self.debug_port < 65536, "debug.port", "0 to 65535", self.debug_port
            )
        for url in self.console_consumer:
            check_setting("broker.console-consumer", endpoint_grpc_address, url)
        for url in self.stores_allowed:
            check_setting("broker.stores-allowed", validate_store_url, url)
        expect_setting(
            0 <= self.journal_limit <= 1 << 17, "broker.limit", "0 to 131072", self.journal_limit
        )
        for number, least, flag in (
            (self.max_append_rate, 0, "max-append-rate"),
            (self.min_append_rate, 0, "min-append-rate"),
            (self.max_replication, 1, "max-replication"),
            (self.max_http_tails, 1, "max-http-tails"),
        ):
            expect_setting(number >= least, f"broker.{flag}", f"at least {least}", number)
        for seconds, flag in (
            (self.append_wait_s, "append-wait"),
            (self.evict_after_s, "evict-after"),
        ):
            expect_setting(seconds >= 0, f"broker.{flag}", "at least 0s", seconds)
        self._check_folders()

    def _check_folders(self) -> None:
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


AUTO: Final = "auto"
_FLAG: Final = "broker.processes"
# More would not fit a host of today, and may be a port that was given by mistake.
_PROCESSES_MAX: Final = 512
_PORT_MAX: Final = 65535


def process_count(text: str, *, cores: int) -> int:
    """Return the number of processes that ``--broker.processes`` asks for.

    Args:
        text: a number, or ``auto``.
        cores: that this process may use.

    Raises: ValidationError: it is neither.

    >>> process_count("3", cores=8), process_count("auto", cores=8)
    (3, 8)
    """
    if text == AUTO:
        return max(1, min(cores, _PROCESSES_MAX))
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _PROCESSES_MAX:
        return int(text)
    raise ValidationError(f"expected 1 to {_PROCESSES_MAX}, or auto, got {text!r}", path=_FLAG)


def configs_of(config: BrokerConfig, count: int, *, fallback_id: str) -> list[BrokerConfig]:
    """Return the settings of each process.

    Args:
        config: of all.
        count: how many, at least 2.
        fallback_id: for ids, if `config` has none.

    Raises: ValidationError: there are not enough ports, or an id becomes too long.
    """
    _check_ports(config, count)
    return [_config_of(config, number, config.id or fallback_id) for number in range(count)]


def _config_of(config: BrokerConfig, number: int, name: str) -> BrokerConfig:
    socket = config.socket
    if socket is not None and number:
        socket = socket.with_name(f"{socket.name}-{number}")
    return replace(
        config,
        id=f"{name}-{number}",
        port=config.port and config.port + number,
        http_port=config.http_port and config.http_port + number,
        advertise=_advertised(config.advertise, number),
        socket=socket,
        debug_port=None,
        debug_private=True,
    )


def _advertised(url: str, number: int) -> str:
    """Return the URL that process `number` advertises. Raises: ValidationError: it has no port."""
    if not url:
        return ""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"{url}-{number}" if number else url
    if parts.port is None:
        raise ValidationError(
            f"{url} has no port; name that of the first process, the others advertise those after it",
            path="broker.advertise",
        )
    host = parts.netloc.rpartition(":")[0]
    return parts._replace(netloc=f"{host}:{parts.port + number}").geturl()


def _check_ports(config: BrokerConfig, count: int) -> None:
    """Raises: ValidationError: ports are beyond the last one, or two ranges of them meet."""
    advertised = urlsplit(config.advertise).port if config.advertise else None
    for first, flag in (
        (config.port, "broker.port"),
        (config.http_port, "broker.http-port"),
        (advertised, "broker.advertise"),
    ):
        if first and first + count - 1 > _PORT_MAX:
            raise ValidationError(
                f"{count} processes take the ports from {first} to {first + count - 1}, and {_PORT_MAX} is "
                "the last; choose a lower one",
                path=flag,
            )
    taken = [(config.port, count, "broker.port"), (config.http_port, count, "broker.http-port")]
    taken.append((config.debug_port or 0, 1, "debug.port"))
    ranges = sorted((first, first + size - 1, flag) for first, size, flag in taken if first)
    for (_, last, flag), (first, _, other) in itertools.pairwise(ranges):
        if first <= last:
            raise ValidationError(
                f"{count} processes take the ports up to {last} for --{flag}; choose one after these",
                path=other,
            )
