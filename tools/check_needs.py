"""Say, before `make test-all` starts, which programs it needs that this machine lacks.

Exit code 0 when all are present, else 1 with one message: what is missing, which tests need it, and one
`apt-get` line. `make test` and `make test-fast` need none of them.
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
    """Names on PATH; any of them will do."""
    variables: tuple[str, ...] = ()
    """Environment variables that may hold paths to use instead; all of them have to be set."""
    why: str
    """Which tests use it."""
    package: str
    """Debian package that has it."""
    place: str = ""
    """Where else it may be: a pattern below the root folder."""

    @property
    def is_found(self) -> bool:
        """Whether the variables, PATH or place lead to it."""
        named = [os.environ.get(variable, "") for variable in self.variables]
        if named and all(named):
            return all(os.access(path, os.X_OK) for path in named)
        if self.place and any(Path("/").glob(self.place)):
            return True
        return any(shutil.which(name) for name in self.names)


NEEDS = (
    Need(
        names=("chromium", "chromium-browser", "google-chrome"),
        variables=("GAZETTE_CHROMIUM",),
        why="tests that open the Dagster UI",
        package="chromium",
    ),
    Need(
        names=("etcd",),
        variables=("GAZETTE_ETCD",),
        why="tests that kill etcd (chaos, soak)",
        package="etcd-server",
    ),
    Need(
        names=("go",),
        why="tests of s3:// and gs:// stores, of HTTP/2, Kafka and charts, whose programs it builds once",
        package="golang-go",
    ),
    Need(
        names=("javac",),
        why="tests of HTTP/2 and Kafka with clients in Java, which it compiles",
        package="default-jdk-headless",
    ),
    Need(
        names=("npm",),
        variables=("GAZETTE_AZURITE",),
        why="tests of azure:// stores and of Kafka with kafkajs, which it installs once",
        package="npm",
    ),
    Need(
        names=("openssl",),
        variables=("GAZETTE_OPENSSL",),
        why="tests of TLS",
        package="openssl",
    ),
    Need(
        names=("initdb",),
        variables=("GAZETTE_POSTGRES",),
        why="tests of SQL and REST catalogs, and of consumer state in PostgreSQL (soak)",
        package="postgresql",
        place="usr/lib/postgresql/*/bin/initdb",
    ),
    Need(
        names=("mariadbd",),
        variables=("GAZETTE_MARIADB",),
        why="tests of consumer state in MariaDB",
        package="mariadb-server-core",
        place="usr/sbin/mariadbd",
    ),
    Need(names=("kcat",), why="a test of Kafka's clients", package="kcat"),
    Need(names=("promtool",), why="tests of alert rules", package="prometheus"),
    Need(names=("buildah",), why="the test of the container image", package="buildah"),
    Need(names=("debootstrap",), why="the container image's base", package="debootstrap"),
    Need(names=("strip",), why="the container image", package="binutils"),
    Need(names=("ps",), why="tests that look for left-over processes", package="procps"),
    Need(names=("strace",), why="tests of slow and failing disks", package="strace"),
)


def main() -> int:
    """Check each need once."""
    missing = [need for need in NEEDS if not need.is_found]
    if not missing:
        return 0
    lines = [f"make test-all needs {len(missing)} programs that this machine lacks:"]
    for need in missing:
        instead = f" (or set {' and '.join(need.variables)})" if need.variables else ""
        lines.append(f"  {need.names[0]}: {need.why}{instead}")
    packages = " ".join(need.package for need in missing)
    lines.append("Install them, as root, with")
    lines.append(f"  apt-get install --no-install-recommends {packages}")
    lines.append("`make test` runs without them.")
    print("\n".join(lines), file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
