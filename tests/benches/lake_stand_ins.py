"""Stand-ins for the servers of `tests.lake_crash`, for tests of that itself.

A folder plays the brokers, a metastore in memory listens for Thrift, and an engine reads the files of
Hive partitions. All outlive the processes that ask them, so that registrars are killed for real.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import re
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.server.TServer import TThreadedServer
from thrift.transport.TSocket import TServerSocket
from thrift.transport.TTransport import TBufferedTransportFactory

from gazette_platform.errors import ValidationError
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.reading.storage import HIDDEN
from gazette_platform.lake.spec.rules import EXACT_SUFFIX
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.extras import required
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.platform.component import choose_ports
from gazette_platform.protocol import Fragment, parse_fragment_path
from tests.benches.lake_bench import MemoryMetastore
from tests.lake_crash import registrar
from tests.lake_crash.oracle import FIRST_ID, numbers
from tests.lake_crash.world import World, make_home

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_platform.protocol import JournalSpec, LabelSelector
    from tests.lake_crash.oracle import Numbers

__all__ = ["FolderBrokers", "ask_files", "install", "metastore_in_memory", "stand_in_world"]

_SPECS = "specs.pickle"
_START_S = 20.0
_CONDITION = re.compile(
    r"NOT \(`part` = '(\d+)' AND `hour` = '(\d+)' AND _metadata.file_name IN \(([^)]*)\)\)"
)


@final
class FolderBrokers:
    """Lists what files there are, in place of brokers; a client for players, a source for registrars.

    Args:
        folder: of stores ``file:///``; specs lie beside it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._specs = folder.parent / _SPECS
        self._lock = threading.Lock()

    def _load(self) -> dict[str, JournalSpec]:
        found: dict[str, JournalSpec] = (
            pickle.loads(self._specs.read_bytes()) if self._specs.exists() else {}
        )
        return found

    def _listed(self, journal: str) -> list[Fragment]:
        cover: CoverSet[Fragment] = CoverSet()
        for store in reversed(self._load()[journal].fragment.stores):
            root = self._folder / store.removeprefix("file:///") / journal
            for path in sorted(root.rglob("*")):
                if path.is_dir() or path.name.startswith(HIDDEN):
                    continue
                try:
                    fragment = parse_fragment_path(journal, str(path.relative_to(root)))
                except ValidationError:
                    continue
                modified = int(path.stat().st_mtime)
                cover.add(replace(fragment, backing_store=store, mod_time=modified))
        return list(cover)

    # -------------------------------------------------- what a player asks of a client

    def apply(self, changes: Sequence[Any]) -> None:
        """Keep specs."""
        with self._lock:
            specs = self._load() | {change.spec.name: change.spec for change in changes}
            made = self._specs.with_suffix(".new")
            made.write_bytes(pickle.dumps(specs))
            made.rename(self._specs)

    def created(self, selector: LabelSelector) -> dict[str, int]:
        """Create revisions of the journals that match, by name."""
        return {spec.name: 0 for spec in self.journals(selector)}

    def fragments(self, journal: str, offset: int = 0, limit: int = 0) -> Any:
        """All of a journal; or, as the lake asks for them, some."""
        found = self._listed(journal)
        if not limit:
            return [SimpleNamespace(fragment=fragment) for fragment in found]
        return [fragment for fragment in found if fragment.begin >= offset][:limit]

    def append(self, journal: str, raw: bytes, *, offset: int) -> Any:
        """Store it at once, as brokers do within their flush interval."""
        spec = self._load()[journal].fragment
        digest = hashlib.sha1(raw, usedforsecurity=False).digest()
        stored = Fragment(
            journal,
            offset,
            offset + len(raw),
            digest,
            spec.codec,
            path_postfix=spec.path_postfix_template,
        )
        path = self._folder / spec.stores[0].removeprefix("file:///") / stored.content_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(raw))
        return SimpleNamespace(begin=offset)

    def flush(self, selector: str) -> None:
        """All is stored."""

    def prune(self, journal: str, begin: int, end: int) -> list[str]:
        """As `gazctl journals prune` does; see `World`."""
        listed = self._listed(journal)
        retention_s = self._load()[journal].fragment.retention_ns / SECOND_NS
        old_s = SystemClock().unix_s() - retention_s
        found = [
            f
            for f in listed[:-1]
            if (begin <= f.begin and f.end <= end if end else f.mod_time < old_s)
        ]
        for fragment in found:
            store = self._folder / fragment.backing_store.removeprefix("file:///")
            (store / fragment.content_path).unlink()
        return [fragment.content_path for fragment in found]

    # ---------------------------------------------------- what registrars ask of brokers

    def journals(self, selector: LabelSelector) -> list[JournalSpec]:
        """Specs of the journals that match, ordered by name."""
        specs = sorted(self._load().items())
        return [spec for _, spec in specs if selector.matches(spec.label_set_with_name())]


def install() -> None:
    """Have the registrar of this process ask a folder for fragments: a plant of `Life`."""
    planted: Any = registrar
    planted.ClientConfig = lambda *, address, **_: address
    planted.Client = _NoClient
    planted.BrokerSource = lambda client: FolderBrokers(client.folder)


class _NoClient:
    def __init__(self, address: str) -> None:
        self.folder = Path(address)

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def stand_in_world(folder: Path) -> Iterator[World]:
    """Servers of a run, without any."""
    fragments = folder / "fragments"
    fragments.mkdir(parents=True)
    with metastore_in_memory() as uri:
        settings = LakeSettings(
            metastore=uri,
            broker=str(fragments),
            store_roots={"file:///": f"file://{fragments}/"},
        )
        brokers: Any = FolderBrokers(fragments)
        yield World(folder, settings, brokers, make_home(folder / "home"), brokers.prune)


@contextmanager
def metastore_in_memory() -> Iterator[str]:
    """Thrift over a metastore in memory; one call at a time."""
    service = required("hive_metastore.ThriftHiveMetastore", extra="lake", by="this test")
    (port,) = choose_ports(["metastore"]).values()
    listening = _Listening("127.0.0.1", port)
    server = TThreadedServer(
        service.Processor(_OneAtATime(MemoryMetastore().thrift)),
        listening,
        TBufferedTransportFactory(),
        TBinaryProtocolFactory(),
        daemon=True,
    )

    def serve() -> None:
        with suppress(SystemExit):
            server.serve()

    thread = threading.Thread(target=serve, name="metastore", daemon=True)
    thread.start()
    listening.is_open.wait(_START_S)
    try:
        yield f"thrift://127.0.0.1:{port}"
    finally:
        listening.close()
        thread.join(_START_S)


class _Listening(TServerSocket):
    """Ends the thread that serves when it is closed; Thrift's own would try for ever."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.is_open = threading.Event()

    def listen(self) -> None:
        super().listen()
        self.is_open.set()

    def close(self) -> None:
        # One that is only closed goes on waiting for whoever connects.
        if self.handle is not None:
            with suppress(OSError):
                self.handle.shutdown(socket.SHUT_RDWR)
        super().close()

    def accept(self) -> Any:
        try:
            return super().accept()
        except (OSError, AttributeError) as err:
            raise SystemExit from err


class _OneAtATime:
    def __init__(self, inner: Any) -> None:
        self._inner, self._lock = inner, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any) -> Any:
            with self._lock:
                return method(*args)

        return call


def ask_files(
    world: World, database: str, tables: Sequence[str]
) -> dict[tuple[str, str, int, str], Numbers]:
    """As an engine that reads all visible files of registered Hive partitions, and what views say."""
    found: dict[tuple[str, str, int, str], Numbers] = {}
    with MetastoreClient(world.settings.metastore).connect() as session:
        for name in tables:
            table, view = (session.table(database, n) for n in (name, f"{name}{EXACT_SUFFIX}"))
            assert table is not None
            left_out = _left_out(view.view_expanded) if view is not None else {}
            for partition in session.partitions(table):
                part, hour = partition.values
                hidden = left_out.get((part, hour), frozenset())
                place = _folder_of(world, partition.location)
                paths = [path for path in sorted(place.iterdir()) if path.name[0] not in HIDDEN]
                for kind in ("raw", "exact"):
                    shown = [path for path in paths if kind == "raw" or path.name not in hidden]
                    found[name, kind, int(part), hour] = numbers(_records(shown))
    return found


def _folder_of(world: World, location: str) -> Path:
    """Where the files of a location lie; the S3 server keeps objects as files."""
    _, _, path = location.partition("://")
    if location.startswith("file:") or world.objects is None:
        return Path(location.removeprefix("file://"))
    return world.objects.folder / path.partition("/")[2]


def _records(paths: Iterable[Path]) -> list[int]:
    lines = [line for path in paths for line in gzip.decompress(path.read_bytes()).splitlines()]
    return [json.loads(line)["id"] - FIRST_ID for line in lines]


def _left_out(sql: str) -> dict[tuple[str, ...], frozenset[str]]:
    """Names of files that an exact view leaves out, by part and hour."""
    return {
        (part, hour): frozenset(re.findall(r"'([^']+)'", names))
        for part, hour, names in _CONDITION.findall(sql)
    }
