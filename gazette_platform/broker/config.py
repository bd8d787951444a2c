"""Settings of one broker process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import validate_store_url
from gazette_platform.serving.config import (
    ServerConfig,
    check_setting,
    expect_setting,
)


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
        for url in self.stores_allowed:
            check_setting("broker.stores-allowed", validate_store_url, url)
        expect_setting(
            0 <= self.journal_limit <= 1 << 17, "broker.limit", "0 to 131072", self.journal_limit
        )
        for number, least, flag in (
            (self.max_append_rate, 0, "max-append-rate"),
            (self.min_append_rate, 0, "min-append-rate"),
            (self.max_replication, 1, "max-replication"),
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
