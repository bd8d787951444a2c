"""A plugin of pytest: one etcd and three brokers for a whole run, with all processes of pytest-xdist.

They start when the first test asks for them. With pytest-xdist the controller starts them, and its workers ask
it over a socket. Tests get names of their own (`Names`), and `Leftovers` finds what a test left under others.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import re
import secrets
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest

from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["Leftovers", "Names", "SharedBrokers", "SharedEtcd", "shared_servers"]

PREFIX: Final = "/shared"
ZONES: Final = ("a", "b", "c")
# A machine that keeps a broker from running for this long ends its lease.
_LEASE_S: Final = 60.0
_START_S: Final = 60.0
_WORKER: Final = os.environ.get("PYTEST_XDIST_WORKER", "main")
# Begins the names of a test's journals, and after `/test-` those of its keys.
_TAG: Final = re.compile(r"[/#](?:test-)?((?:main|gw\d+)-\d{4,})[-/#]")
_NUMBERS: Final = itertools.count(1)
_SERVERS: Final = pytest.StashKey["_Servers"]()


@dataclass(frozen=True)
class SharedEtcd:
    """The etcd of the run. Tests may neither stop nor pause it."""

    endpoint: str


@dataclass(frozen=True)
class SharedBrokers:
    """Brokers of the run: `broker-a`, `broker-b` and `broker-c`, each in the zone of its letter.

    Tests may neither stop nor pause them, and create journals only under their own `Names`.
    """

    etcd: SharedEtcd
    addresses: tuple[str, ...]
    """Endpoints of gRPC."""
    http_addresses: tuple[str, ...]
    """URLs of the gateways, of readiness and of metrics."""
    fragments: Path
    """Folder of the store that all share."""
    prefix: str = PREFIX
    """Of the keys of the cluster."""

    @property
    def address(self) -> str:
        """The endpoint of the first."""
        return self.addresses[0]

    @property
    def http_address(self) -> str:
        """The gateway of the first."""
        return self.http_addresses[0]


class _Servers:
    """Starts the servers of a run when they are asked for, and stops them at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._started: SharedBrokers | None = None

    def get(self, etcd_binary: Path, folder: Path) -> SharedBrokers:
        """Return the brokers; the first call starts them, with files in `folder`."""
        with self._lock:
            if self._started is None:
                self._started = self._start(etcd_binary, folder)
            return self._started

    def stop(self) -> None:
        """Stop what was started."""
        with self._lock:
            self._stack.close()

    def _start(self, etcd_binary: Path, folder: Path) -> SharedBrokers:
        etcd = self._stack.enter_context(EtcdServer(etcd_binary)).endpoint
        fragments = folder / "fragments"
        brokers = [
            BrokerServer(
                folder / zone,
                etcd=etcd,
                prefix=PREFIX,
                broker_id=f"broker-{zone}",
                zone=zone,
                fragments=fragments,
                lease_s=_LEASE_S,
            )
            for zone in ZONES
        ]
        with ThreadPoolExecutor(len(brokers)) as threads:
            for broker in brokers:
                self._stack.callback(broker.kill)
            for _ in threads.map(lambda broker: broker.start(timeout_s=patient(_START_S)), brokers):
                pass
        return SharedBrokers(
            etcd=SharedEtcd(etcd),
            addresses=tuple(broker.address for broker in brokers),
            http_addresses=tuple(broker.http_address for broker in brokers),
            fragments=fragments,
        )


class _Desk:
    """Where workers of pytest-xdist ask the controller for the servers."""

    def __init__(self, servers: _Servers) -> None:
        self.key = secrets.token_hex(16)
        self._servers = servers
        self._listener = Listener(None, "AF_UNIX", authkey=self.key.encode())
        self.address = str(self._listener.address)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._listener.accept() as connection:
                try:
                    answer: object = self._servers.get(*connection.recv())
                except Exception as err:  # noqa: BLE001 - it is the worker's
                    answer = err
                connection.send(answer)


_DESK: Final = pytest.StashKey[_Desk]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SERVERS] = _Servers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Name the desk to a worker that is about to start."""
    stash = node.config.stash
    if _DESK not in stash:
        stash[_DESK] = _Desk(stash[_SERVERS])
    node.workerinput["shared_servers"] = (stash[_DESK].address, stash[_DESK].key)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in what a test has logged: no worker can send them to the controller."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_SERVERS].stop()


def shared_servers(config: pytest.Config, etcd_binary: Path, folder: Path) -> SharedBrokers:
    """Return the brokers of the run, started if they are not; the first caller's folder holds their files."""
    desk = getattr(config, "workerinput", {}).get("shared_servers")
    if desk is None:
        return config.stash[_SERVERS].get(etcd_binary, folder)
    address, key = desk
    with Client(address, "AF_UNIX", authkey=key.encode()) as connection:
        connection.send((etcd_binary, folder))
        answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, SharedBrokers)
    return answer


class Names:
    """Names that no other test of the run uses."""

    def __init__(self, test: str) -> None:
        self.tag = f"{_WORKER}-{next(_NUMBERS):04d}"
        words = re.sub(r"[^A-Za-z0-9]+", "-", test).strip("-")[:60]
        self.prefix = f"{self.tag}-{words}"
        """Of journals, without a slash at its end. It may serve as the name of a folder."""
        self.etcd = f"/test-{self.tag}"
        """Of keys in etcd, without a slash at its end."""
        self.group = f"{self.etcd}-consumers"
        """Of the keys of a consumer group."""

    def journal(self, name: str = "journal") -> str:
        """Return the full name of a journal of this test."""
        return f"{self.prefix}/{name}"


class Leftovers:
    """Removes what tests leave under names of their own in the shared etcd, and finds what is under others."""

    def __init__(self, brokers: SharedBrokers) -> None:
        self._brokers = brokers
        self._in_use: set[str] = set()
        url = urlsplit(brokers.etcd.endpoint)
        self._etcd = http.client.HTTPConnection(str(url.hostname), url.port, timeout=20)
        members = {f"/members/{zone}#broker-{zone}" for zone in ZONES}
        own = {f"/.gazette-platform/members{PREFIX}/{zone}#broker-{zone}" for zone in ZONES}
        own.add(f"/.gazette-platform/history{PREFIX}#")
        self._members = own | {f"{PREFIX}{member}" for member in members}

    def close(self) -> None:
        """Close the connection to etcd."""
        self._etcd.close()

    def claim(self, names: Names) -> None:
        """Note that names are in use, until `clear`."""
        self._in_use.add(names.tag)

    def clear(self, names: Names) -> list[str]:
        """Remove the journals and keys of a test.

        Returns: what is wrong with the rest: keys under names that belong to no test, which are removed, too,
            and brokers that are gone.
        """
        self._in_use.discard(names.tag)
        self._delete(names.etcd, f"{names.etcd}0")  # 0 is the character after the slash
        keys = self._keys()
        wrong = [f"{member} is gone" for member in sorted(self._members.difference(keys))]
        for key in set(keys).difference(self._members):
            found = _TAG.search(key)
            if found is not None and found[1] == names.tag:
                self._delete(key)
            elif found is None or not self._is_expected(key, found[1]):
                wrong.append(f"{key} is left")
                self._delete(key)
        shutil.rmtree(self._brokers.fragments / names.prefix, ignore_errors=True)
        return wrong

    def _is_expected(self, key: str, tag: str) -> bool:
        if tag in self._in_use or not tag.startswith(f"{_WORKER}-"):
            return True
        # Brokers remove assignments after the journal, and may write its epoch while they do.
        return key.startswith((f"{PREFIX}/assign/", "/.gazette-platform/epochs"))

    def _keys(self) -> list[str]:
        found = self._call("range", b"\0", b"\0", keys_only=True)
        # Tests beside this one put keys there that are not UTF-8.
        return [
            base64.b64decode(each["key"]).decode("utf-8", "backslashreplace")
            for each in found.get("kvs", [])
        ]

    def _delete(self, key: str, end: str = "") -> None:
        self._call("deleterange", key.encode(), end.encode())

    def _call(self, method: str, key: bytes, end: bytes, **fields: object) -> dict[str, Any]:
        """Ask the JSON gateway of etcd, which needs no event loop."""
        fields["key"] = base64.b64encode(key).decode()
        if end:
            fields["range_end"] = base64.b64encode(end).decode()
        self._etcd.request("POST", f"/v3/kv/{method}", json.dumps(fields))
        answer: dict[str, Any] = json.loads(self._etcd.getresponse().read())
        assert "error" not in answer, answer
        return answer
