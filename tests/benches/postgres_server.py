"""A PostgreSQL for tests, and how servers of databases are started."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from gazette_platform.errors import SetupError
from gazette_platform.platform.component import HOST, choose_ports
from gazette_platform.testing.waiting import TooLate, patient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

__all__ = [
    "Postgres",
    "end",
    "find_postgres",
    "log_tail",
    "other_user",
    "spawn",
    "wait_until_ready",
]

_START_S = 60.0
_END_S = 20.0
_LOG_LINES = 40


def find_postgres() -> Path | None:
    """The folder of PostgreSQL's programs, which Debian has outside of PATH; None if there is none."""
    named = os.environ.get("GAZETTE_POSTGRES", "")
    if named:
        return Path(named)
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@final
class Postgres:
    """A PostgreSQL on loopback, empty at first, that asks for a password; a context manager that starts and removes it.

    What it has committed outlives `kill` and a second `start`. As it does not run as root, another user does then.

    Attributes:
        user: who may do all.
        password: of that user.
        port: stays the same.
    """

    def __init__(self, binaries: Path) -> None:
        """Make it; nothing is started yet.

        Args:
            binaries: folder of its programs, see `find_postgres`.
        """
        self.user = "iceberg"
        self.port = choose_ports(["postgres"])["postgres"]
        self.password = secrets.token_urlsafe(16)
        self._binaries = binaries
        self._who = other_user() if os.geteuid() == 0 else None
        # Not below pytest's folder, which is its user's alone.
        self._folder = Path(tempfile.mkdtemp(prefix="gazette-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises: SetupError: it did not start; with the end of its log."""
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            end(self._process, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def uri(self, database: str, port: int = 0) -> str:
        """As GAZETTE_ICEBERG_CATALOG has it, without a name."""
        return f"postgresql://{self.user}@{HOST}:{port or self.port}/{database}"

    def url(self, database: str) -> str:
        """Of SQLAlchemy, with the password."""
        return self.uri(database).replace("@", f":{self.password}@")

    def connected(self, database: str) -> psycopg.Connection[Any]:
        """A connection of your own."""
        import psycopg

        return psycopg.connect(
            host=HOST, port=self.port, user=self.user, password=self.password, dbname=database,
            connect_timeout=10,
        )  # fmt: skip

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement. Returns: its rows."""
        with self.connected(database) as connection:
            connection.autocommit = True
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Start it, and wait until it serves.

        Raises: SetupError: it ended, or (`TooLate`) does not serve in time; with the end of its log.
        """
        settings = {"listen_addresses": HOST, "port": self.port, "unix_socket_directories": "", "fsync": "off"}  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = self._folder / "postgres.log"
        command = [str(self._binaries / "postgres"), "-D", f"{self._folder}/data", *options]
        self._process = spawn(command, self._folder, self._who, log)
        wait_until_ready(self._answers, self._process, log)

    def kill(self) -> None:
        """End it at once, as a crash does: clients lose their connections, and what they had not committed."""
        process, self._process = self._process, None
        if process is not None:
            end(process, signal.SIGQUIT)

    def _make(self) -> None:
        folder, who = self._folder, self._who
        (folder / "password").write_text(self.password)
        if who is not None:
            os.chown(folder, who.pw_uid, who.pw_gid)
            os.chown(folder / "password", who.pw_uid, who.pw_gid)
        made = spawn(
            [str(self._binaries / "initdb"), "-D", f"{folder}/data", "-U", self.user, "--auth=scram-sha-256", "-E", "UTF8",
             f"--pwfile={folder}/password", "--locale=C", "--no-sync"], folder, who, folder / "initdb.log",
        )  # fmt: skip
        if made.wait(patient(_START_S)) != 0:
            raise SetupError("initdb failed:\n" + log_tail(folder / "initdb.log"))

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            return bool(self.sql("SELECT 1"))
        return False


def other_user() -> pwd.struct_passwd:
    """Who runs servers that refuse to be root."""
    # Debian's package has one of its own.
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def spawn(
    command: Sequence[str],
    folder: Path,
    who: pwd.struct_passwd | None,
    log: Path,
    said: str = "",
) -> subprocess.Popen[bytes]:
    """Start a program, as `who`, and write `said` to its input; its output is added to a log."""
    as_other: dict[str, Any] = {}
    if who is not None:
        as_other = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            start_new_session=True, **as_other,
        )  # fmt: skip
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(f"{said}\n".encode())
    return process


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal that ends a program, and wait; SIGKILL if it does not."""
    process.send_signal(number)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_ready(
    is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path
) -> None:
    """Raises: SetupError: it ended, or (`TooLate`) is not ready in time; with the end of its log."""
    deadline = time.monotonic() + patient(_START_S)
    while not is_ready():
        if process.poll() is not None:
            raise SetupError(f"{process.args!r} has ended:\n" + log_tail(log))
        if time.monotonic() > deadline:
            raise TooLate(f"{process.args!r} does not serve:\n" + log_tail(log))
        time.sleep(0.05)


def log_tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])
