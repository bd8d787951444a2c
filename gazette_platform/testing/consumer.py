"""A real consumer for tests: one process of an application, with its files in a folder."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.serving.http_server import NOT_SERVING
from gazette_platform.testing.chosen_wire import wire_flags
from gazette_platform.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ConsumerServer"]

# It is on this machine, where no proxy is asked.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@final
class ConsumerServer(ServerProcess):
    """One consumer process, from `start` to `stop`.

    Args:
        folder: for its files and log; created if it is not there.
        program: what runs the application, as ``(sys.executable, "counts.py")``.
        etcd: endpoint of a running etcd.
        prefix: key prefix of the group.
        broker: addresses of brokers.
        flags: more flags of its `serve`; the last of a flag counts.
        consumer_id: of the member; unique in its zone.
        zone: of the member.
        lease_s: seconds after which etcd forgets it.

    Attributes:
        files: folder of the files of its shards.
        flags: may be changed before `start`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: Sequence[str],
        etcd: str,
        prefix: str,
        broker: str,
        flags: Sequence[str] = (),
        consumer_id: str = "test-consumer",
        zone: str = "local",
        lease_s: float = 2.0,
    ) -> None:
        self.files = folder / "shards"
        super().__init__(
            f"consumer {consumer_id}", log=folder / "consumer.log", temporary=self.files
        )
        self.flags = tuple(flags)
        self.id = consumer_id
        self.zone = zone
        self._program = tuple(program)
        self._etcd = etcd
        self._prefix = prefix
        self._broker = broker
        self._lease_s = lease_s

    @override
    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start, and wait until it is a member of its group.

        Raises: SetupError: it ended or was not ready in time; with the end of its log.
        """
        self.files.mkdir(parents=True, exist_ok=True)
        command = [
            *self._program,
            "serve",
            f"--consumer.id={self.id}",
            f"--consumer.zone={self.zone}",
            "--consumer.host=127.0.0.1",
            f"--consumer.port={self.port}",
            "--consumer.http-host=127.0.0.1",
            f"--consumer.http-port={self.http_port}",
            f"--consumer.directory={self.files}",
            "--consumer.drain-timeout=20s",
            f"--broker.address={self._broker}",
            f"--etcd.address={self._etcd}",
            f"--etcd.prefix={self._prefix}",
            f"--etcd.lease={self._lease_s:g}s",
            "--log.level=info",
            *wire_flags("consumer"),
            *self.flags,
        ]
        self.run(command, timeout_s=timeout_s)

    @override
    def _is_ready(self) -> bool:
        """Whether it serves, also if shards that it got have failed already."""
        try:
            with _DIRECT.open(f"{self.http_address}/debug/ready", timeout=1.0):
                return True
        except urllib.error.HTTPError as err:
            return err.read().decode().strip() != NOT_SERVING
        except (OSError, http.client.HTTPException):
            return False
