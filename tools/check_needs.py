"""Says, before the tests start, what they need that the package indexes do not give.

Exit code 0 when all is there, else 1 with one message that lists every missing program and the
command that installs it. What is only needed by hand or later is in CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Need:
    """A program that tests start."""

    names: tuple[str, ...]
    """Names on PATH, any of which will do."""
    variable: str
    """Environment variable that may hold its path instead; empty: none."""
    why: str
    """Which tests use it."""
    install: str
    """What to run to get it."""
    place: str = ""
    """Where it is beside PATH: a pattern below the root folder."""

    def found(self) -> bool:
        """Whether the variable, PATH or place leads to it."""
        named = os.environ.get(self.variable, "")
        if named:
            return os.access(named, os.X_OK)
        if self.place and any(Path("/").glob(self.place)):
            return True
        return any(shutil.which(name) for name in self.names)


NEEDS = (
    Need(
        names=("chromium", "chromium-browser", "google-chrome"),
        variable="GAZETTE_CHROMIUM",
        why="the test that opens the Dagster UI",
        install="apt-get install --no-install-recommends chromium",
    ),
    Need(
        names=("etcd",),
        variable="GAZETTE_ETCD",
        why="tests that break clusters, etcd among them",
        install="apt-get install --no-install-recommends etcd-server",
    ),
    Need(
        names=("go",),
        variable="GAZETTE_VERSITYGW",
        why="tests of s3:// stores, for which it builds the S3 server versitygw",
        install="get it from https://go.dev/dl/, or apt-get install --no-install-recommends golang-go",
    ),
    Need(
        names=("go",),
        variable="GAZETTE_FAKE_GCS_SERVER",
        why="tests of gs:// stores, for which it builds the emulator fake-gcs-server",
        install="get it from https://go.dev/dl/, or apt-get install --no-install-recommends golang-go",
    ),
    Need(
        names=("npm",),
        variable="GAZETTE_AZURITE",
        why="tests of azure:// stores, for which it installs the emulator azurite",
        install="get Node.js from https://nodejs.org/, or apt-get install --no-install-recommends npm",
    ),
    Need(
        names=("openssl",),
        variable="GAZETTE_OPENSSL",
        why="tests of TLS, which make certificates",
        install="apt-get install --no-install-recommends openssl",
    ),
    Need(
        names=("initdb",),
        variable="GAZETTE_POSTGRES",
        why="tests of typed tables in other catalogs than a metastore, and of consumers whose state is in PostgreSQL",
        install="apt-get install --no-install-recommends postgresql",
        place="usr/lib/postgresql/*/bin/initdb",
    ),
    Need(
        names=("mariadbd",),
        variable="GAZETTE_MARIADB",
        why="tests of consumers whose state is in MariaDB",
        install="apt-get install --no-install-recommends mariadb-server-core",
        place="usr/sbin/mariadbd",
    ),
    Need(
        names=("ps",),
        variable="",
        why="the tests that look which processes a platform has left",
        install="apt-get install --no-install-recommends procps",
    ),
    Need(
        names=("strace",),
        variable="",
        why="tests of brokers with slow disks",
        install="apt-get install --no-install-recommends strace",
    ),
)


def main() -> int:
    """Checks each need once."""
    missing = [need for need in NEEDS if not need.found()]
    if not missing:
        return 0
    print("make test needs programs that this machine lacks:", file=sys.stderr)
    for need in missing:
        print(
            f"  {need.names[0]}: for {need.why}; {need.install}"
            + (f" (or set {need.variable})" if need.variable else ""),
            file=sys.stderr,
        )
    print("`make test-fast` runs without them. See CONTRIBUTING.md.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
