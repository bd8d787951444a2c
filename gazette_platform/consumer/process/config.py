"""Settings of one consumer process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from gazette_platform.client import ClientConfig
from gazette_platform.consumer.runtime.host import HINTS_INTERVAL_S
from gazette_platform.errors import ValidationError
from gazette_platform.serving.config import ServerConfig, expect_setting


def _never_gives_up() -> ClientConfig:
    return ClientConfig(retry_timeout_s=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerConfig(ServerConfig):
    """What `serve` of an application was asked for, beside what every server is. Validated when built.

    Its `etcd_prefix` is that of one deployment of one application, as ``/gazette/consumers/APP-RELEASE``.

    Raises: ValidationError: a value is out of range, or names something that does not exist.
    """

    flags: ClassVar[str] = "consumer"

    limit: int = 32
    """Most shards that the allocator may assign to this process."""

    max_hot_standbys: int = 3
    """Cap on the hot standbys of shards."""

    restart_failed_s: float | None = None
    """Seconds after which a shard that failed here is started again, longer each time; None: it never is,
    until you unassign it. One that was fenced, or whose database failed for a reason that passes, is in any
    case, after a second.
    """

    directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Where the process has a folder, in which replicas keep files while they run."""

    hints_interval_s: float = HINTS_INTERVAL_S
    """Seconds after which a primary keeps hints again: a recovery plays what was recorded since."""

    broker: ClientConfig = field(default_factory=_never_gives_up)
    """How to reach brokers; a `retry_timeout_s` of None has shards wait for brokers that are away."""

    @override
    def _check_own(self) -> None:
        expect_setting(0 <= self.limit <= 1 << 17, "consumer.limit", "0 to 131072", self.limit)
        expect_setting(
            0 <= self.max_hot_standbys < 100,
            "consumer.max-hot-standbys",
            "0 to 99",
            self.max_hot_standbys,
        )
        expect_setting(
            self.hints_interval_s > 0,
            "consumer.hints-interval",
            "more than 0s",
            self.hints_interval_s,
        )
        expect_setting(
            self.restart_failed_s is None or self.restart_failed_s > 0,
            "consumer.restart-failed",
            "more than 0s",
            self.restart_failed_s,
        )
        if not self.directory.is_dir():
            raise ValidationError(
                f"{self.directory} is not a directory; create it first", path="consumer.directory"
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
