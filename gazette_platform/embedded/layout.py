"""Where things lie: the folders of one platform, and data that ships with this package."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from gazette_platform.errors import SetupError

__all__ = ["PlatformDir", "package_data", "pyspark_jars"]

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
