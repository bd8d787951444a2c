"""The servers of a run: etcd, a broker, S3, metastore and Trino; and the home of Dagster that lives copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster import DagsterInstance

from gazette_platform.client import Client, ClientConfig
from gazette_platform.embedded import tools
from gazette_platform.errors import LakeError
from gazette_platform.testing.broker import BrokerServer
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.waiting import patient
from tests.benches.lake_servers import lake_servers
from tests.benches.object_servers import s3_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from gazette_platform.lake import LakeSettings

__all__ = ["World", "has_s3", "make_home", "open_world"]

_BUCKET = "lake"
_DAGSTER = "telemetry: {enabled: false}\n"
_PRUNE_TIMEOUT_S = 120.0
_REMOVED = "removed "


@dataclass(frozen=True)
class World:
    """Servers that run, and where they are."""

    folder: Path
    settings: LakeSettings
    client: Client
    home: Path
    """An empty home of Dagster, to be copied."""
    prune: Callable[[str, int, int], list[str]]
    """Prunes a journal of what is within [begin, end) bytes; if the end is 0, of what is older than its
    retention. Returns: paths of the fragments that were removed, within their stores."""

    def store(self, kind: str, number: int) -> str:
        """URL of a store, of which each kind has two."""
        if kind == "file":
            return "file:///second/" if number else "file:///"
        path, _, query = self.settings.store.partition("?")
        return f"{path}second/?{query}" if number else f"{path}?{query}"


def has_s3() -> bool:
    """Return whether this machine can run the S3 server, which Go builds."""
    return bool(os.environ.get("GAZETTE_VERSITYGW") or shutil.which("go"))


@contextmanager
def open_world(folder: Path, say: Callable[[str], None]) -> Iterator[World]:
    """Start all servers; they are stopped with the scope.

    Args:
        folder: for what they keep.
        say: is told what is under way.

    Raises: SetupError: one of them cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store, keys = "", {}
        if has_s3():
            say("starting an S3 server")
            server = stack.enter_context(s3_server(folder / "s3"))
            server.make_bucket(_BUCKET)
            keys = {
                "AWS_ACCESS_KEY_ID": server.access_key,
                "AWS_SECRET_ACCESS_KEY": server.secret_key,
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            store = f"s3://{_BUCKET}/raw/?endpoint={server.endpoint}&region=us-east-1"
        stack.enter_context(_environment(keys))
        say("starting metastore and Trino")
        settings = stack.enter_context(lake_servers(folder / "lake", store=store, keys=keys))
        say("starting etcd and a broker")
        etcd = stack.enter_context(EtcdServer(find_etcd() or tools.etcd()))
        broker = stack.enter_context(
            BrokerServer(
                folder / "broker",
                etcd=etcd.endpoint,
                prefix="/lake-crash",
                fragments=folder / "lake" / "fragments",
                lease_s=20.0,  # no broker is to fail here, however busy the machine is
            )
        )
        client = stack.enter_context(Client(ClientConfig(address=broker.address)))
        gazctl = _Gazctl(broker.address, broker.fragments, folder)
        yield World(
            folder,
            replace(settings, broker=broker.address),
            client,
            make_home(folder / "home"),
            gazctl.prune,
        )


@dataclass(frozen=True)
class _Gazctl:
    """Runs `gazctl`, as an operator does."""

    broker: str
    file_root: Path
    home: Path

    def prune(self, journal: str, begin: int, end: int) -> list[str]:
        """See `World.prune`. Raises: LakeError: it failed."""
        command = [
            sys.executable,
            "-m",
            "gazette_platform.cli.gazctl",
            "journals",
            "prune",
            journal,
        ]
        command += ["--file-root", str(self.file_root), "--broker.address", self.broker]
        command += ["--from-offset", str(begin), "--before-offset", str(end)] if end else []
        ran = subprocess.run(
            command,
            env={**os.environ, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=patient(_PRUNE_TIMEOUT_S),
            check=False,
        )
        if ran.returncode:
            raise LakeError(f"{' '.join(command[2:])} ended with {ran.returncode}: {ran.stderr}")
        lines = ran.stdout.splitlines()
        return [line.removeprefix(_REMOVED) for line in lines if line.startswith(_REMOVED)]


@contextmanager
def _environment(keys: Mapping[str, str]) -> Iterator[None]:
    """Credentials of the S3 server for all processes of the run, and none of this machine's user."""
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in before:
        del os.environ[name]
    os.environ.update(keys)
    try:
        yield
    finally:
        for name in keys:
            os.environ.pop(name, None)
        os.environ.update(before)


def make_home(folder: Path) -> Path:
    """A home of Dagster with all its tables, which take a second to make."""
    folder.mkdir()
    (folder / "dagster.yaml").write_text(_DAGSTER)
    with DagsterInstance.from_config(str(folder)) as instance:
        instance.get_dynamic_partitions("none")
        instance.daemon_cursor_storage.get_cursor_values({"none"})
    return folder
