"""A MariaDB for tests."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from postgres_server import end, log_tail, other_user, spawn, wait_until_ready

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import HOST, choose_ports
from gazette_platform.testing.waiting import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MariaDB", "mariadb"]

_USER = "shards"
_DATABASE = "shards"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class MariaDB:
    """A running MariaDB, with an empty database."""

    port: int
    password: str = field(repr=False)
    pid: int

    @property
    def url(self) -> str:
        """Of SQLAlchemy."""
        return f"mariadb://{_USER}:{self.password}@{HOST}:{self.port}/{_DATABASE}"


def _installed() -> Path:
    """The folder of ``sbin/mariadbd`` and ``share/mysql``."""
    named = os.environ.get("GAZETTE_MARIADB", "")
    if named:
        return Path(named)
    found = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("needs MariaDB (apt-get install mariadb-server-core, or GAZETTE_MARIADB)")
    return Path(found).resolve().parent.parent


@contextmanager
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB on loopback, that asks for a password. As root, another user runs it.

    Raises: SetupError: it did not start; with the end of its log.
    """
    installed = _installed()
    share = installed / "share/mysql"
    folder = Path(tempfile.mkdtemp(prefix="gazette-mariadb-"))
    who = other_user() if os.geteuid() == 0 else None
    password = secrets.token_hex(16)
    port = choose_ports(["mariadb"])["mariadb"]
    if who is not None:
        os.chown(folder, who.pw_uid, who.pw_gid)
    common = [
        *(str(installed / "sbin/mariadbd"), "--no-defaults", f"--datadir={folder}/data"),
        *(f"--lc-messages-dir={share}/english", "--innodb-flush-log-at-trx-commit=0"),
        "--innodb-buffer-pool-size=32M",
    ]
    tables = [share / f"mysql_{each}_tables.sql" for each in ("system", "performance")]
    users = [
        "FLUSH PRIVILEGES;",
        f"CREATE DATABASE {_DATABASE} CHARACTER SET utf8mb4;",
        f"CREATE USER {_USER}@'%' IDENTIFIED BY '{password}';",
        f"GRANT ALL ON *.* TO {_USER}@'%';",
    ]
    first = [
        "CREATE DATABASE mysql;",
        "USE mysql;",
        *(each.read_text() for each in tables),
        *users,
    ]
    try:
        (folder / "data").mkdir()
        if who is not None:
            os.chown(folder / "data", who.pw_uid, who.pw_gid)
        made = spawn(
            [*common, "--bootstrap"], folder, who, folder / "bootstrap.log", "\n".join(first)
        )
        if made.wait(patient(_TIMEOUT_S)) != 0:
            raise SetupError("mariadbd --bootstrap failed:\n" + log_tail(folder / "bootstrap.log"))
        where = [f"--port={port}", f"--bind-address={HOST}", f"--socket={folder}/socket"]
        log = folder / "mariadb.log"
        server = spawn([*common, *where], folder, who, log)
        running = MariaDB(port, password, server.pid)
        try:
            wait_until_ready(lambda: _answers(running), server, log)
            yield running
        finally:
            end(server, signal.SIGTERM)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(server: MariaDB) -> bool:
    import pymysql

    with suppress(pymysql.OperationalError):
        pymysql.connect(
            host=HOST, port=server.port, user=_USER, password=server.password, connect_timeout=5
        ).close()
        return True
    return False
