"""A real broker for tests: one `gazette serve` process, with its store and spool in a folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.testing.chosen_wire import wire_flags
from gazette_platform.testing.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["BrokerServer"]


@final
class BrokerServer(ServerProcess):
    """One broker process, from `start` to `stop`; its store outlives `kill` and a second `start`.

    Args:
        folder: for its store (``fragments``), spool and log; created if it is not there.
        etcd: endpoint of a running etcd.
        prefix: key prefix of the cluster.
        flags: more flags of `gazette serve`; the last of a flag counts.
        broker_id: of the member; unique in its zone.
        zone: of the member.
        fragments: folder of the store, where it is not ``fragments`` in `folder`: brokers of one
            cluster share it.
        lease_s: seconds after which etcd forgets it.
        program: what to run as `gazette`; empty: the one of this interpreter.

    Attributes:
        fragments: folder of the store.
        spool: folder of its spools and temporary files.
        flags: may be changed before `start`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        etcd: str,
        prefix: str,
        flags: Sequence[str] = (),
        broker_id: str = "test-broker",
        zone: str = "local",
        fragments: Path | None = None,
        lease_s: float = 2.0,
        program: Sequence[str] = (),
    ) -> None:
        self.fragments = fragments or folder / "fragments"
        self.spool = folder / "spool"
        super().__init__(f"broker {broker_id}", log=folder / "broker.log", temporary=self.spool)
        self._etcd = etcd
        self._prefix = prefix
        self.flags = tuple(flags)
        self.id = broker_id
        self.zone = zone
        self._lease_s = lease_s
        self._program = program or (sys.executable, "-m", "gazette_platform.cli.gazette")

    @override
    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start, and wait until it is ready.

        Raises: SetupError: it ended or was not ready in time; with the end of its log.
        """
        self.fragments.mkdir(parents=True, exist_ok=True)
        self.spool.mkdir(parents=True, exist_ok=True)
        command = [
            *self._program,
            "serve",
            f"--broker.id={self.id}",
            f"--broker.zone={self.zone}",
            "--broker.host=127.0.0.1",
            f"--broker.port={self.port}",
            "--broker.http-host=127.0.0.1",
            f"--broker.http-port={self.http_port}",
            f"--broker.file-root={self.fragments}",
            f"--broker.spool-dir={self.spool}",
            "--broker.drain-timeout=10s",
            f"--etcd.address={self._etcd}",
            f"--etcd.prefix={self._prefix}",
            f"--etcd.lease={self._lease_s:g}s",
            "--log.level=info",
            *wire_flags("broker"),
            *self.flags,
        ]
        self.run(command, timeout_s=timeout_s)
