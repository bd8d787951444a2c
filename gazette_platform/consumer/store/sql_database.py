"""Databases of SQL stores: engines whose calls have deadlines, and the table of checkpoints.

Engines are SQLAlchemy's. Any other than `sql_engine` makes will do, if its calls end by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
    event,
    inspect,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)
from sqlalchemy.schema import CreateTable

from gazette_platform.errors import StoreError, StoreUnavailable, ValidationError
from gazette_platform.ops.extras import bounded_connection

if TYPE_CHECKING:
    from sqlalchemy.engine import URL, Dialect, Engine

__all__ = [
    "ANSWER_S",
    "CHECKPOINTS",
    "checkpoints_ddl",
    "create_tables",
    "let_idle_limit_follow",
    "sql_engine",
    "sql_error",
    "sql_may_pass",
]

ANSWER_S: Final = 30.0
"""Seconds within which a database answers, unless told otherwise: as long as a busy one needs for a commit."""

IDLE_LEASES: Final = 3
"""Leases after which PostgreSQL ends a transaction in which nothing is asked, unless `sql_engine` got another limit.

A process that hangs, or whose machine is cut off, holds its locks until then, and the next owner of its shard waits
for them. So the limit follows the lease (`ConsumerConfig.etcd_lease_s`), after which a shard gets its next owner. It
is longer than the lease, because a transaction waits between messages, and for appends while brokers are away. One
that is ended meanwhile fails its shard, which starts again; so keep the limit well above `max_txn_duration`.
"""

IDLE_S_MIN: Final = 10.0
"""The shortest limit that follows a lease, in seconds."""

# The limit of an engine that follows the lease: one of its execution options. Until the lease is known, that of the
# default lease.
_IDLE_OPTION: Final = "gazette_idle_s"
_IDLE_S: Final = 60.0

CONNECT_S: Final = 10

# SQLSTATE: a connection failed; serialization, deadlock; too few resources; a lock was not free; an operator, a shutdown or
# a deadline ended it; errors of the system; a transaction was idle for too long.
_PASSING_STATES: Final = ("08", "40", "53", "55P03", "57", "58", "25P03")
# Too many connections, shutdown, time-out of a lock, deadlock, a query was ended or timed out, no connection.
_PASSING_OF_MYSQL: Final = frozenset(
    {1040, 1053, 1205, 1213, 1317, 1927, 1969, 2002, 2003, 2006, 2013, 2055, 3024, 4031}
)
_PASSING_OF_SQLITE: Final = frozenset({5, 6})  # busy, locked

# A key of MySQL has a length; and names are compared byte by byte, not as words of a language.
_NAME: Final = Text().with_variant(mysql.VARCHAR(700, collation="utf8mb4_bin"), "mysql", "mariadb")

CHECKPOINTS: Final = Table(
    "gazette_checkpoints",
    MetaData(),
    Column("shard_fqn", _NAME, primary_key=True, nullable=False),
    Column("fence", Integer, nullable=False),
    Column(
        "checkpoint",
        LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"),
        nullable=False,
    ),
)
"""What all shards of a database have committed, as Gazette's `SQLStore` has it."""


def sql_engine(
    url: str | URL,
    *,
    answer_s: float = ANSWER_S,
    idle_s: float | None = None,
    connections_max: int = 64,
) -> Engine:
    """An engine that the stores of a process share. Whoever makes it disposes of it.

    Args:
        url: of SQLAlchemy; ``postgresql://`` and ``mysql://``, ``mariadb://`` are by psycopg and PyMySQL, if it
            names no other driver. Of others calls have no deadline.
        answer_s: seconds to wait for an answer. The connection is closed then, and the call fails. Includes
            that for locks that others hold.
        idle_s: seconds after which PostgreSQL ends a transaction in which nothing is asked; None: as the lease of the
            process says (`IDLE_LEASES`). Set it for long transactions.
        connections_max: at least one for each shard, and two if their transactions overlap; more wait.

    Raises: ValidationError: not a URL of a database.
    """
    pool: dict[str, Any] = {
        "pool_pre_ping": True,  # a database that was started again has dropped what was connected
        "pool_size": connections_max,
        "max_overflow": 0,
        "pool_timeout": answer_s,
    }
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgresql+psycopg"):
            return _postgres(parsed.set(drivername="postgresql+psycopg"), answer_s, idle_s, pool)
        if parsed.drivername in ("mysql", "mariadb"):
            parsed = parsed.set(drivername=f"{parsed.drivername}+pymysql")
        return create_engine(parsed, connect_args=_arguments(parsed, answer_s), **pool)
    except SQLAlchemyError as err:
        raise ValidationError(f"not a URL of a database ({err})", path="url") from err


def _arguments(url: URL, answer_s: float) -> dict[str, Any]:
    """What a driver is told of deadlines. Raises: ValidationError: SQLite without a file."""
    if url.drivername.endswith("+pymysql"):
        return {
            "connect_timeout": min(CONNECT_S, max(1, round(answer_s))),
            "read_timeout": answer_s,
            "write_timeout": answer_s,
            "charset": "utf8mb4",
        }
    if url.get_backend_name() != "sqlite":
        return {}
    if url.database in (None, "", ":memory:"):
        raise ValidationError(
            "expected a file of SQLite: what is in memory no other owner of the shard sees (or take a "
            "MemoryStore)",
            path="url",
        )
    return {"timeout": answer_s}


def let_idle_limit_follow(engine: Engine, lease_s: float) -> None:
    """Have PostgreSQL end transactions in which nothing is asked, some time after a lease of that length.

    Connections are opened again if the limit of the engine changes. Engines with a limit of their own, and those of
    other databases, stay as they are.
    """
    idle_s = max(IDLE_S_MIN, IDLE_LEASES * lease_s)
    if engine.get_execution_options().get(_IDLE_OPTION, idle_s) != idle_s:
        engine.update_execution_options(**{_IDLE_OPTION: idle_s})
        engine.dispose()


def _postgres(url: URL, answer_s: float, idle_s: float | None, pool: dict[str, Any]) -> Engine:
    given = url.query.get("options", ())
    named = [given] if isinstance(given, str) else list(given)
    more = {
        "connect_timeout": str(min(CONNECT_S, max(1, round(answer_s)))),
        "application_name": "gazette-platform",
        # The server is to give up as well what we have given up: a statement must not go on with its locks.
        "options": " ".join([f"-c statement_timeout={round(answer_s * 1000)}", *named]),
    }
    engine = create_engine(url.update_query_dict(more), **pool)
    if idle_s is None:
        engine.update_execution_options(**{_IDLE_OPTION: _IDLE_S})
    connection = bounded_connection(answer_s)

    def connect(_dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
        limit_s = engine.get_execution_options()[_IDLE_OPTION] if idle_s is None else idle_s
        idle = f"-c idle_in_transaction_session_timeout={round(limit_s * 1000)}"
        return connection.connect(*arguments, **(named | {"options": f"{idle} {named['options']}"}))

    event.listen(engine, "do_connect", connect)
    return engine


def checkpoints_ddl(dialect: Dialect) -> str:
    """The statement that makes the table of checkpoints, for those who make tables by themselves."""
    return str(CreateTable(CHECKPOINTS, if_not_exists=True).compile(dialect=dialect)).strip()


def create_tables(engine: Engine) -> None:
    """Make the table of checkpoints, if there is none. Blocks: call it before the event loop runs, or in a thread.

    Raises: StoreError: it cannot be made.
    """
    try:
        with engine.begin() as connection:
            connection.execute(CreateTable(CHECKPOINTS, if_not_exists=True))
    except SQLAlchemyError as err:
        try:
            if inspect(engine).has_table(CHECKPOINTS.name):
                return  # somebody else has made it at the same time
        except SQLAlchemyError:
            pass  # the first error says more
        raise sql_error(f"the table {CHECKPOINTS.name} cannot be made", err) from err


def sql_error(what: str, error: SQLAlchemyError) -> StoreError:
    """What a database said, without the statement and its values."""
    said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    kind = StoreUnavailable if sql_may_pass(error) else StoreError
    return kind(f"{what}: {type(error).__name__}: {said}")


def sql_may_pass(error: BaseException | None) -> bool:
    """Whether the same transaction may succeed soon, by what the database says of an error or of a cause of it.

    It is away or starts again, has too many connections, broke a deadlock, cannot serialize, or has waited too
    long for a lock.
    """
    while error is not None:
        if isinstance(error, InterfaceError | PoolTimeoutError):
            return True
        if isinstance(error, DBAPIError):
            return error.connection_invalidated or _cause_may_pass(error)
        error = error.__cause__
    return False


def _cause_may_pass(error: DBAPIError) -> bool:
    said: Any = error.orig
    sqlstate, sqlite = getattr(said, "sqlstate", None), getattr(said, "sqlite_errorcode", None)
    if type(said).__module__.startswith("pymysql"):  # whose states are too general
        return bool(said.args) and said.args[0] in _PASSING_OF_MYSQL
    if sqlstate is not None:
        return str(sqlstate).startswith(_PASSING_STATES)
    if sqlite is not None:
        return sqlite & 0xFF in _PASSING_OF_SQLITE  # the rest says more of the kind
    return isinstance(error, OperationalError)  # of a connection, or of a driver that has no codes
