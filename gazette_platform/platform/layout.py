"""The folder of a platform: where its files are, the addresses of its servers, and what its supervisor knows.

Addresses and state are two JSON files. Each is replaced whole, so that readers see the old one or the new one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gazette_platform.errors import SetupError
from gazette_platform.ops.process import ProcessId

# Etcd alone sets 128 MiB aside for its log, and panics where it cannot.
_FREE_BYTES_MIN = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformDir:
    """The folder given to ``gazette up --root``; every path of a platform is under it."""

    root: Path
    """Absolute."""

    @classmethod
    def at(cls, root: Path) -> PlatformDir:
        """The layout below `root`, made absolute; nothing is created."""
        return cls(root=root.expanduser().resolve())

    @property
    def endpoints(self) -> Path:
        """Addresses of what runs, for programs."""
        return self.root / "endpoints.json"

    @property
    def state(self) -> Path:
        """What the supervisor knows of its children."""
        return self.root / "supervisor.json"

    @property
    def request(self) -> Path:
        """What a later `gazette up` asks the supervisor to add."""
        return self.root / "request.json"

    @property
    def lock(self) -> Path:
        """Held by the one supervisor of this folder."""
        return self.root / "supervisor.lock"

    @property
    def logs(self) -> Path:
        """One file a component."""
        return self.root / "logs"

    @property
    def etcd(self) -> Path:
        """Etcd's data."""
        return self.root / "etcd"

    @property
    def fragments(self) -> Path:
        """The brokers' file root: fragment stores ``file:///…`` lie below it."""
        return self.root / "fragments"

    @property
    def spool(self) -> Path:
        """The brokers' spools, from which they go on when they are started again."""
        return self.root / "spool"

    @property
    def metastore(self) -> Path:
        """Derby's database."""
        return self.root / "metastore"

    @property
    def trino(self) -> Path:
        """Trino's configuration, logs and scratch space."""
        return self.root / "trino"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME."""
        return self.root / "dagster"

    @property
    def warehouse(self) -> Path:
        """Iceberg tables."""
        return self.root / "warehouse"

    @property
    def s3(self) -> Path:
        """Objects and keys of an S3 server of the platform's own, if it has one."""
        return self.root / "s3"

    @property
    def tables(self) -> Path:
        """Table specs, as YAML."""
        return self.root / "tables"

    @property
    def rollups(self) -> Path:
        """Rollups, as SQL, below the name of their engine."""
        return self.root / "rollups"

    def make(self) -> None:
        """Create every folder that is missing.

        Raises: SetupError: the root is a file, cannot be written, or is on a full disk.
        """
        folders = (
            self.root,
            self.logs,
            self.etcd,
            self.fragments,
            self.spool,
            self.metastore,
            self.trino,
            self.dagster,
            self.warehouse,
            self.tables,
            self.rollups,
        )
        if self.root.exists() and not self.root.is_dir():
            raise SetupError(f"{self.root} is not a folder (choose another with --root)")
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.root / ".write-probe"
            probe.write_bytes(b"")
            probe.unlink()
            free = shutil.disk_usage(self.root).free
        except OSError as error:
            raise SetupError(
                f"cannot write to {self.root}: {error.strerror or error} "
                "(choose another folder with --root)"
            ) from error
        if free < _FREE_BYTES_MIN:
            raise SetupError(
                f"the disk of {self.root} has {free >> 20} MiB left, and a platform needs "
                f"{_FREE_BYTES_MIN >> 20} to begin with (make room, or choose another folder "
                "with --root)"
            )


def package_data(name: str) -> Path:
    """The folder `name` of data that ships beside the code.

    A wheel holds it as ``gazette_platform/_<name>``; a checkout as ``<name>`` at its root.

    Raises: SetupError: neither exists, so the installation is broken.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / f"_{name}", package.parent / name):
        if folder.is_dir():
            return folder
    raise SetupError(f"the data folder {name} is missing beside {package}: reinstall the package")


def pyspark_jars() -> Path:
    """The folder of jars of the installed PySpark.

    Raises: SetupError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError(
            "PySpark is not installed, and the Hive Metastore runs from its jars: "
            "install the extra `gazette-platform[all]`, or leave it out with --without metastore"
        )
    return Path(spec.origin).parent / "jars"


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoints:
    """Where the servers of a platform are, each as ``scheme://host:port``; empty: not started.

    It is the contract with programs: ``DIR/endpoints.json`` has these names as keys.
    """

    broker: str = ""
    """The first of `brokers`."""
    brokers: tuple[str, ...] = ()
    """gRPC services."""
    http: str = ""
    """Readiness and metrics of the first broker."""
    etcd: str = ""
    """Etcd's client port."""
    metastore: str = ""
    """The Hive Metastore, over Thrift."""
    trino: str = ""
    """Trino's HTTP port."""
    dagster: str = ""
    """Dagster's web server."""
    s3: str = ""
    """The platform's own S3 server."""
    store: str = ""
    """URL of the fragment store that engines are configured for; empty: folders only."""
    catalog: str = ""
    """The catalog of typed tables, as GAZETTE_ICEBERG_CATALOG; empty: the metastore."""
    kafka: str = ""
    """The brokers for clients of Kafka, as they want them: ``host:port,host:port``."""
    registry: str = ""
    """The registry of schemas of these clients."""
    pids: dict[str, int] = field(default_factory=dict)
    """Process id by name of component."""

    @classmethod
    def load(cls, path: Path) -> Endpoints:
        """Read a file that `save` wrote.

        Raises: SetupError: it is missing (nothing runs there), or malformed.
        """
        raw = _read_json(path)
        if raw is None:
            raise SetupError(
                f"there is no {path}: no platform is up in {path.parent} "
                f"(start one with `gazette up --root {path.parent}`)"
            )
        known = {name: raw[name] for name in cls.__slots__ if name in raw}
        known["brokers"] = tuple(known.get("brokers", ()))
        return cls(**known)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all; servers that were not started are left out."""
        write_json(path, {key: value for key, value in asdict(self).items() if value})

    def addresses(self) -> dict[str, str]:
        """What a table of addresses shows, by name; those that were not started are left out."""
        found = {
            **{f"broker {n}": address for n, address in enumerate(self.brokers, 1)},
            "http": self.http,
            "console": self.http and f"{self.http}/console/",
            "etcd": self.etcd,
            "metastore": self.metastore,
            "trino": self.trino,
            "dagster": self.dagster,
            "s3": self.s3,
            "kafka": self.kafka,
            "registry": self.registry,
        }
        return {name: address for name, address in found.items() if address}


@dataclass(slots=True)
class ComponentState:
    """What the supervisor knows of one component."""

    state: str = "waiting"
    """waiting, starting, ready, stopped or failed."""
    pid: int = 0
    started: int = 0
    """See `ProcessId`."""
    ready_after_s: float = 0.0
    """Seconds from start to ready."""
    away_since: float = 0.0
    """Unix seconds since which it is being started again; 0: it is not."""
    why: str = ""
    """How it ended the last time, while it is being started again."""

    @property
    def process(self) -> ProcessId:
        """Its process."""
        return ProcessId(self.pid, self.started)


@dataclass(slots=True)
class PlatformState:
    """``DIR/supervisor.json``: which processes make up the platform, for ``down`` and restarts."""

    phase: str = "stopped"
    """installing, starting, ready, stopping, stopped or failed."""
    failure: str = ""
    """Why it failed."""
    failed_component: str = ""
    """Which component died, if one did."""
    pid: int = 0
    """Of the supervisor."""
    started: int = 0
    """See `ProcessId`."""
    ports: dict[str, int] = field(default_factory=dict)
    """Port by name; kept over restarts."""
    components: dict[str, ComponentState] = field(default_factory=dict)
    """In the order of starting."""
    answered: str = ""
    """Id of the last request to add components that was carried out or refused."""
    refusal: str = ""
    """Why that was refused."""
    place: str = field(default="", compare=False)
    """Device and inode of its folder when it was written: a copy of the folder has others."""

    @property
    def process(self) -> ProcessId:
        """The supervisor's process."""
        return ProcessId(self.pid, self.started)

    def away(self) -> list[str]:
        """Say of each component that is being started again since when, and why."""
        return [
            f"{name} is away since {_instant(one.away_since)} ({one.why}), and is being started again"
            for name, one in self.components.items()
            if one.away_since
        ]

    @classmethod
    def load(cls, path: Path) -> PlatformState:
        """Read what was saved; a missing file gives the state of a platform never started.

        So does a copied one, with its ports: the processes are those of the folder that was copied.

        Raises: SetupError: the file is malformed.
        """
        raw = _read_json(path)
        if raw is None:
            return cls()
        try:
            components = {
                str(name): ComponentState(**state) for name, state in raw["components"].items()
            }
            found = cls(**{**raw, "components": components})
        except (KeyError, TypeError, AttributeError) as error:
            raise SetupError(
                f"{path} is not what `gazette up` writes: {error!r} (remove it if no platform "
                f"runs in {path.parent})"
            ) from error
        is_here = found.place in ("", _place(path.parent))
        return found if is_here else cls(ports=found.ports)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        write_json(path, asdict(self) | {"place": _place(path.parent)})


def _instant(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _place(folder: Path) -> str:
    info = folder.stat()
    return f"{info.st_dev}:{info.st_ino}"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot read {path}: {error} (remove it, then start again)") from error
    if not isinstance(raw, dict):
        raise SetupError(f"cannot read {path}: not a JSON object (remove it, then start again)")
    return raw


def write_json(path: Path, value: object) -> None:
    """Write `value` to `path` by a rename, so that readers see the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    temporary.replace(path)
