"""The servers of a run: etcd, a broker, S3, metastore and Trino; and the home of Dagster that lives copy.

Before S3 is a proxy, which answers about every second listing with something else: stores of the kind ``lying`` are asked
through it. Engines read past it.
"""

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
from gazette_platform.errors import LakeError
from gazette_platform.ops.tasks import LoopThread
from gazette_platform.platform import tools
from gazette_platform.testing.etcd import EtcdServer, find_etcd
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import patient
from tests.benches.lake_servers import lake_servers
from tests.benches.object_servers import s3_server
from tests.benches.store_proxy import Fault, StoreProxy, store_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gazette_platform.lake import LakeSettings

__all__ = ["Objects", "World", "has_s3", "make_home", "open_objects", "open_world", "world_over"]

_BUCKET = "lake"
_DAGSTER = "telemetry: {enabled: false}\n"
_PRUNE_TIMEOUT_S = 120.0
_REMOVED = "removed "
# What `gazctl` says of a listing that it refuses; an operator runs it again.
_LIE = "the answer is not a listing"
_PRUNES_MAX = 30


@dataclass(frozen=True)
class Objects:
    """An S3 server, and the proxy before it."""

    store: str
    """URL of the store."""
    lying: str
    """The same, through the proxy."""
    proxy: StoreProxy
    keys: Mapping[str, str]
    """Variables with its credentials."""
    folder: Path
    """Where the server keeps the objects of its bucket."""


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
    objects: Objects | None = None

    def lies(self, journals: str) -> int:
        """How many listings of folders of these journals were answered with something else."""
        lies = self.objects.proxy.lies if self.objects is not None else {}
        return sum(count for folder, count in lies.items() if f"/{journals}/" in folder)

    def store(self, kind: str, number: int) -> str:
        """URL of a store; each kind has two."""
        if kind == "file":
            return "file:///second/" if number else "file:///"
        url = self.objects.lying if kind == "lying" and self.objects else self.settings.store
        path, _, query = url.partition("?")
        return f"{path}second/?{query}" if number else f"{path}?{query}"


def has_s3() -> bool:
    """Return whether this machine can run the S3 server, which Go builds."""
    return bool(os.environ.get("GAZETTE_VERSITYGW") or shutil.which("go"))


@contextmanager
def open_world(folder: Path, say: Callable[[str], None]) -> Iterator[World]:
    """Start all servers; they are stopped with the scope.

    Args:
        folder: for what they keep.
        say: called with what is under way.

    Raises: SetupError: one of them cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        objects = None
        if has_s3():
            say("starting an S3 server")
            objects = stack.enter_context(open_objects(folder / "s3"))
        store, keys = (objects.store, objects.keys) if objects is not None else ("", {})
        stack.enter_context(_environment(keys))
        say("starting metastore and Trino")
        settings = stack.enter_context(lake_servers(folder / "lake", store=store, keys=keys))
        say("starting etcd and a broker")
        yield stack.enter_context(world_over(folder, settings, objects))


@contextmanager
def open_objects(folder: Path) -> Iterator[Objects]:
    """Start an S3 server with a bucket, and the proxy before it. Raises: SetupError: it cannot be started."""
    loop = LoopThread("proxy of S3")
    with ExitStack() as stack:
        stack.callback(loop.close)
        server = stack.enter_context(s3_server(folder))
        server.make_bucket(_BUCKET)
        running = store_proxy(server.endpoint)
        proxy = loop.run(running.__aenter__())
        stack.callback(lambda: loop.run(running.__aexit__(None, None, None)))
        proxy.fault = Fault.LYING_LISTS
        keys = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        store, lying = (
            f"s3://{_BUCKET}/raw/?endpoint={endpoint}&region=us-east-1"
            for endpoint in (server.endpoint, proxy.url)
        )
        yield Objects(store, lying, proxy, keys, server.folder / _BUCKET)


@contextmanager
def world_over(
    folder: Path,
    settings: LakeSettings,
    objects: Objects | None,
    *,
    program: Sequence[str] = (),
) -> Iterator[World]:
    """Start etcd and a broker beside a metastore and stores that run.

    Args:
        program: of the broker, see `BrokerServer`.
    """
    with ExitStack() as stack:
        stack.enter_context(_environment(objects.keys if objects is not None else {}))
        etcd = stack.enter_context(EtcdServer(find_etcd() or tools.etcd()))
        broker = stack.enter_context(
            BrokerServer(
                folder / "broker",
                etcd=etcd.endpoint,
                prefix="/lake-crash",
                fragments=folder / "lake" / "fragments",
                lease_s=20.0,  # no broker is to fail here, however busy the machine is
                program=program,
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
            objects,
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
        removed: list[str] = []
        for _ in range(_PRUNES_MAX):
            ran = self._run(command)
            lines = ran.stdout.splitlines()
            removed += [line.removeprefix(_REMOVED) for line in lines if line.startswith(_REMOVED)]
            if not ran.returncode:
                return removed
            if _LIE not in ran.stderr:
                break
        raise LakeError(f"{' '.join(command[2:])} ended with {ran.returncode}: {ran.stderr}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**os.environ, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=patient(_PRUNE_TIMEOUT_S),
            check=False,
        )


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
