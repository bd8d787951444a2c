"""Stores of shards in real databases: PostgreSQL, MariaDB, and files of SQLite.

Long because all databases are asked the same, over the fixtures of each.
"""

import asyncio
import re
import threading
import uuid

import pytest
from sqlalchemy import Column, MetaData, String, Table, Text, insert, select, text, update
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.exc import IntegrityError

from gazette_platform.consumer.protocol import Checkpoint
from gazette_platform.consumer.store import (
    SQLStore,
    checkpoints_ddl,
    create_tables,
    sql,
    sql_engine,
)
from gazette_platform.consumer.store.sql import CHECKPOINTS
from gazette_platform.errors import (
    ApplicationFailed,
    DataError,
    DependencyFailed,
    Fenced,
    StoreError,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.testing.shard_store_conformance import (
    ShardStoreConformance,
    StoreKind,
    checkpoint_of,
)
from gazette_platform.testing.waiting import eventually, patient

pytestmark = pytest.mark.etcd

TEXTS = Table(
    "texts",
    MetaData(),
    Column("shard", String(100), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("text", Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")),
)


def put(connection, shard, key, value):
    of_key = (TEXTS.c.shard == shard) & (TEXTS.c.name == key)
    if connection.execute(update(TEXTS).where(of_key).values(text=value)).rowcount == 0:
        connection.execute(insert(TEXTS).values(shard=shard, name=key, text=value))


def get(connection, shard, key):
    of_key = (TEXTS.c.shard == shard) & (TEXTS.c.name == key)
    return connection.execute(select(TEXTS.c.text).where(of_key)).scalar_one_or_none()


class InDatabase(StoreKind):
    has_log = False

    def __init__(self, engine, *, overlaps=False):
        self.engine = engine
        self.overlaps = overlaps

    async def open(self, shard, recorder):
        store = SQLStore(self.engine, shard, overlaps=self.overlaps)
        store.cache = shard
        return store

    async def put(self, store, key, value):
        await store.run(put, store.cache, key, value)

    async def get(self, store, key):
        return await store.run(get, store.cache, key)


class Overlapping(InDatabase):
    """Whose statements are right whatever the former transaction has written."""

    async def put(self, store, key, value):
        row = {"shard": store.cache, "name": key, "text": value}
        if self.engine.dialect.name == "postgresql":
            statement = postgresql.insert(TEXTS).values(row)
            statement = statement.on_conflict_do_update(
                index_elements=["shard", "name"], set_={"text": value}
            )
        else:
            statement = mysql.insert(TEXTS).values(row).on_duplicate_key_update(text=value)
        await store.run(lambda connection: connection.execute(statement) and None)


def engine_of(url):
    engine = sql_engine(url, answer_s=10.0)
    create_tables(engine)
    create_tables(engine)  # which exist
    TEXTS.create(engine)
    return engine


@pytest.fixture(scope="module")
def postgres_url(postgres):
    name = f"shards_{uuid.uuid4().hex[:8]}"
    postgres.sql(f"CREATE DATABASE {name}")
    url = postgres.url(name)
    engine_of(url).dispose()
    return url


@pytest.fixture(scope="module")
def postgres_engine(postgres_url):
    engine = sql_engine(postgres_url, answer_s=10.0)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def mariadb_engine(mariadb):
    engine = engine_of(mariadb.url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def sqlite_engine(tmp_path_factory):
    engine = engine_of(f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/state.db")
    yield engine
    engine.dispose()


class InDatabaseConformance(ShardStoreConformance):
    @pytest.fixture
    def broker(self, module_broker):
        return module_broker


class TestPostgreSQL(InDatabaseConformance):
    served_by = "SQLStore: PostgreSQL"

    @pytest.fixture
    def kind(self, postgres_engine):
        return InDatabase(postgres_engine)


class TestPostgreSQLOverlapping(InDatabaseConformance):
    served_by = "SQLStore: PostgreSQL, transactions overlap"

    @pytest.fixture
    def kind(self, postgres_engine):
        return Overlapping(postgres_engine, overlaps=True)


class TestMariaDB(InDatabaseConformance):
    served_by = "SQLStore: MariaDB"

    @pytest.fixture
    def kind(self, mariadb_engine):
        return InDatabase(mariadb_engine)


class TestMariaDBOverlapping(InDatabaseConformance):
    served_by = "SQLStore: MariaDB, transactions overlap"

    @pytest.fixture
    def kind(self, mariadb_engine):
        return Overlapping(mariadb_engine, overlaps=True)


class TestSQLite(InDatabaseConformance):
    served_by = "SQLStore: SQLite"

    @pytest.fixture
    def kind(self, sqlite_engine):
        return InDatabase(sqlite_engine)


# ---------------------------------------------------------------------- of databases alone


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
def engine(request):
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture
def shard():
    return f"/consumers/items/{uuid.uuid4().hex}"


@pytest.fixture
def own_engine():
    """Makes engines, which are disposed of after the stores."""
    engines = []

    def make(url, **options):
        engines.append(sql_engine(url, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
async def opened(own_engine):
    """Opens stores, which are destroyed."""
    stores = []

    def open_store(engine, shard, **options):
        stores.append(SQLStore(engine, shard, **options))
        return stores[-1]

    yield open_store
    for store in stores:
        await store.destroy()


def row_of(engine, shard):
    found = select(CHECKPOINTS.c.fence, CHECKPOINTS.c.checkpoint)
    with engine.connect() as connection:
        row = connection.execute(found.where(CHECKPOINTS.c.shard_fqn == shard)).one()
    return row.fence, bytes(row.checkpoint)


def in_flight(store, number):
    """A commit, and what it waits for."""
    need = asyncio.get_running_loop().create_future()
    return store.start_commit(checkpoint_of(number), [need]), need


async def test_cq1_each_restore_raises_the_fence(engine, shard, opened):
    store = opened(engine, shard)
    assert await store.restore_checkpoint() == Checkpoint()
    assert row_of(engine, shard) == (1, b"")
    await store.start_commit(checkpoint_of(1), [])
    assert row_of(engine, shard) == (1, checkpoint_of(1).encode())
    for fence in (2, 3):
        assert await store.restore_checkpoint() == checkpoint_of(1)
        assert row_of(engine, shard) == (fence, checkpoint_of(1).encode())
    await store.start_commit(checkpoint_of(1), [])  # a row that stays as it was, and matches
    assert row_of(engine, shard) == (3, checkpoint_of(1).encode())


async def test_cq1_a_fence_that_another_raised_fails_the_commit(engine, shard, opened):
    store = opened(engine, shard)
    await store.restore_checkpoint()
    with engine.begin() as connection:
        connection.execute(
            update(CHECKPOINTS).where(CHECKPOINTS.c.shard_fqn == shard).values(fence=2)
        )
    await store.run(put, shard, "a", "lost")
    with pytest.raises(Fenced, match="its fence is 1 no more"):
        await store.start_commit(checkpoint_of(1), [])
    with engine.connect() as connection:
        assert get(connection, shard, "a") is None
    with pytest.raises(StoreError, match="a commit has failed"):
        await store.run(get, shard, "a")
    assert row_of(engine, shard) == (2, b"")
    assert engine.pool.checkedout() == 0


async def test_cq2_who_loses_the_race_for_the_first_restore_is_fenced(
    postgres, postgres_engine, shard, opened
):
    store = opened(postgres_engine, shard)
    row = {"shard_fqn": shard, "fence": 1, "checkpoint": b""}
    with postgres_engine.begin() as connection:
        connection.execute(insert(CHECKPOINTS).values(row))
        async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as tasks:
            restoring = tasks.create_task(refused(store.restore_checkpoint(), Fenced))
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await eventually(lambda: postgres.sql(waiting) == [(1,)])
            connection.commit()
            assert "at the same moment" in await restoring
    assert row_of(postgres_engine, shard) == (1, b"")


async def refused(awaitable, kind):
    with pytest.raises(kind) as caught:
        await awaitable
    return str(caught.value)


async def test_cq2_of_first_restores_at_once_one_succeeds(engine, shard, opened):
    stores = [opened(engine, shard) for _ in range(4)]
    results = await asyncio.gather(
        *(store.restore_checkpoint() for store in stores), return_exceptions=True
    )
    assert Checkpoint() in results
    others = [each for each in results if each != Checkpoint()]
    assert all(isinstance(each, Fenced | StoreError) for each in others), others
    commits = await asyncio.gather(
        *(
            store.start_commit(checkpoint_of(1), [])
            for store, result in zip(stores, results, strict=True)
            if result == Checkpoint()
        ),
        return_exceptions=True,
    )
    assert len([each for each in commits if each is None]) == 1
    assert all(isinstance(each, Fenced) for each in commits if each is not None)


async def test_names_of_shards_are_compared_byte_by_byte(engine, opened):
    name = uuid.uuid4().hex
    for each in (f"/{name}/shard", f"/{name}/Shard", f"/{name}/sh\u00e4rd"):
        assert await opened(engine, each).restore_checkpoint() == Checkpoint()
        assert row_of(engine, each) == (1, b"")


async def test_a_transaction_sees_what_the_former_one_has_written(engine, shard, opened):
    store = opened(engine, shard)
    await store.restore_checkpoint()
    await store.run(put, shard, "a", "one")
    commit, need = in_flight(store, 1)
    async with asyncio.timeout(patient(30)), asyncio.TaskGroup() as tasks:
        found = tasks.create_task(store.run(get, shard, "a"))
        in_thread = tasks.create_task(asyncio.to_thread(store.transaction))
        await asyncio.wait([found, in_thread], timeout=0.3)
        assert not found.done()
        assert not in_thread.done()
        need.set_result(None)
        await commit
        assert await found == "one"
        connection = await in_thread
        assert await asyncio.to_thread(get, connection, shard, "a") == "one"


async def test_an_overlapping_transaction_does_not(postgres_engine, shard, opened):
    store = opened(postgres_engine, shard, overlaps=True)
    await store.restore_checkpoint()
    await store.run(put, shard, "a", "one")
    commit, need = in_flight(store, 1)
    assert await store.run(get, shard, "a") is None
    assert await asyncio.to_thread(lambda: get(store.transaction(), shard, "a")) is None
    need.set_result(None)
    await commit
    await store.start_commit(checkpoint_of(2), [])
    assert await store.run(get, shard, "a") == "one"


async def test_a_call_that_waits_for_the_former_commit_can_be_cancelled(
    postgres_engine, shard, opened
):
    store = opened(postgres_engine, shard)
    await store.restore_checkpoint()
    commit, need = in_flight(store, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await store.run(get, shard, "a")
    need.set_result(None)
    await commit
    assert postgres_engine.pool.checkedout() == 0


async def test_calls_are_in_a_thread_and_one_after_the_other(engine, shard, opened):
    store = opened(engine, shard)
    await store.restore_checkpoint()
    with pytest.raises(ApplicationFailed, match=re.escape("await store.run(call)")):
        store.transaction()

    def add(connection, *, more):
        at = int(get(connection, shard, "sum") or 0)
        put(connection, shard, "sum", str(at + more))
        return threading.current_thread()

    threads = await asyncio.gather(*(store.run(add, more=each) for each in range(20)))
    assert threading.current_thread() not in threads
    assert await store.run(get, shard, "sum") == "190"
    await store.start_commit(checkpoint_of(1), [])
    with engine.connect() as connection:
        assert get(connection, shard, "sum") == "190"
    assert engine.pool.checkedout() == 0


async def test_the_application_must_not_end_a_transaction(engine, shard, opened):
    for end in ("commit", "rollback"):
        store = opened(engine, shard)
        await store.restore_checkpoint()
        await store.run(put, shard, "a", "one")
        await store.run(lambda connection, end=end: getattr(connection, end)())
        with pytest.raises(ApplicationFailed, match="the application has ended it"):
            await store.start_commit(checkpoint_of(1), [])
    assert row_of(engine, shard) == (2, b"")


async def test_a_statement_that_failed_fails_the_commit(postgres_engine, shard, opened):
    store = opened(postgres_engine, shard)
    await store.restore_checkpoint()
    twice = insert(TEXTS).values(shard=shard, name="a", text="one")
    await store.run(lambda connection: connection.execute(twice).rowcount)
    with pytest.raises(IntegrityError):
        await store.run(lambda connection: connection.execute(twice).rowcount)
    with pytest.raises(
        StoreError, match="the transaction is not committed: InternalError"
    ) as caught:
        await store.start_commit(checkpoint_of(1), [])
    assert "[SQL:" not in str(caught.value)
    assert row_of(postgres_engine, shard) == (1, b"")


async def test_destroy_rolls_back_and_leaves_the_engine(engine, shard):
    store = SQLStore(engine, shard)
    await store.restore_checkpoint()
    await store.run(put, shard, "a", "lost")
    commit = store.start_commit(checkpoint_of(1), [])
    await store.destroy()  # before the commit's task has begun
    with pytest.raises(StoreError, match="destroyed before its commit was done"):
        await commit
    other = SQLStore(engine, shard)
    await other.restore_checkpoint()
    await other.run(put, shard, "a", "lost, too")
    await other.destroy()
    assert engine.pool.checkedout() == 0
    with engine.connect() as connection:
        assert get(connection, shard, "a") is None


async def test_a_commit_that_follows_what_has_failed_keeps_no_connection(
    sqlite_engine, shard, opened
):
    store = opened(sqlite_engine, shard)
    await store.restore_checkpoint()
    await store.run(put, shard, "a", "lost")
    need = asyncio.get_running_loop().create_future()
    need.set_exception(StoreError("of the test"))
    with pytest.raises(DependencyFailed, match="of the test"):
        await store.start_commit(checkpoint_of(1), [need])
    # Others may write at once: what it has locked is free.
    assert sqlite_engine.pool.checkedout() == 0
    assert row_of(sqlite_engine, shard) == (1, b"")


async def test_a_lock_that_another_holds_is_not_waited_for_for_ever(
    postgres_url, shard, opened, own_engine
):
    engine = own_engine(postgres_url, answer_s=2.0)
    store = opened(engine, shard)
    await store.restore_checkpoint()
    is_ours = CHECKPOINTS.c.shard_fqn == shard
    with engine.begin() as connection:
        connection.execute(select(CHECKPOINTS).where(is_ours).with_for_update())
        async with asyncio.timeout(patient(10)):
            with pytest.raises(StoreError, match="the transaction is not committed"):
                await store.start_commit(checkpoint_of(1), [])
            with pytest.raises(StoreError, match="no checkpoint can be restored"):
                await store.restore_checkpoint()
    assert await store.restore_checkpoint() == Checkpoint()
    await store.start_commit(checkpoint_of(2), [])


async def failure_of(awaitable):
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever a shard would fail with
        await awaitable
    return caught.value


async def test_deadlock_of_two_shards_may_pass(postgres_engine, shard, opened):
    """The application's statement fails with the driver's error, which ended the shard for good."""
    stores = [opened(postgres_engine, f"{shard}-{each}") for each in "ab"]
    for store in stores:
        await store.restore_checkpoint()
    first, second = stores
    await first.run(put, shard, "a", "common")
    await first.run(put, shard, "b", "common")
    await first.start_commit(checkpoint_of(1), [])
    await first.run(put, shard, "a", "one")
    await second.run(put, shard, "b", "two")
    results = await asyncio.gather(
        first.run(put, shard, "b", "one"),
        second.run(put, shard, "a", "two"),
        return_exceptions=True,
    )
    [error] = [each for each in results if each is not None]
    assert first.may_pass(error)


async def test_locks_of_an_owner_that_hangs_may_pass(postgres_url, shard, opened, own_engine):
    engine = own_engine(postgres_url, answer_s=1.0)
    store = opened(engine, shard)
    await store.restore_checkpoint()
    with engine.begin() as connection:
        is_ours = CHECKPOINTS.c.shard_fqn == shard
        connection.execute(select(CHECKPOINTS).where(is_ours).with_for_update())
        error = await failure_of(store.restore_checkpoint())
    assert store.may_pass(error)


@pytest.mark.parametrize("why", ["terminated", "idle"])
@pytest.mark.parametrize("step", ["run", "commit"])
async def test_database_that_ends_a_transaction_may_pass(
    postgres, postgres_url, shard, opened, own_engine, why, step
):
    store = opened(own_engine(postgres_url, idle_s=1.0), shard)
    await store.restore_checkpoint()
    await store.run(put, shard, "a", "one")
    pid = await store.run(lambda connection: connection.scalar(text("SELECT pg_backend_pid()")))
    if why == "terminated":
        postgres.sql(f"SELECT pg_terminate_backend({pid})")
    there = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
    await eventually(lambda: postgres.sql(there) == [(0,)])
    next_ = {
        "run": lambda: store.run(put, shard, "a", "two"),
        "commit": lambda: store.start_commit(checkpoint_of(1), []),
    }
    assert store.may_pass(await failure_of(next_[step]()))


async def test_lock_time_out_may_pass(engine, shard, opened, own_engine):
    short = {"mariadb": "SET innodb_lock_wait_timeout = 1", "postgresql": "SET lock_timeout = 500"}
    holder, store = opened(engine, f"{shard}-1"), opened(engine, f"{shard}-2")
    for each in (holder, store):
        await each.restore_checkpoint()
    if engine.dialect.name == "sqlite":
        store = opened(own_engine(engine.url, answer_s=0.2), f"{shard}-3")
        await holder.run(put, shard, "a", "one")
        assert store.may_pass(await failure_of(store.restore_checkpoint()))
        return
    await holder.run(put, shard, "a", "one")
    await holder.start_commit(checkpoint_of(1), [])
    await holder.run(put, shard, "a", "two")
    limit = text(short[engine.dialect.name])
    await store.run(lambda connection: connection.execute(limit) and None)
    assert store.may_pass(await failure_of(store.run(put, shard, "a", "three")))


async def test_wrong_statement_does_not_pass(engine, shard, opened):
    store = opened(engine, shard)
    await store.restore_checkpoint()
    wrong = text("SELECT nothing FROM gazette_checkpoints")
    error = await failure_of(store.run(lambda connection: connection.execute(wrong) and None))
    assert not store.may_pass(error)


async def test_a_transaction_in_which_nothing_is_asked_is_ended(
    postgres, postgres_url, shard, opened, own_engine
):
    engine = own_engine(postgres_url, idle_s=1.0)
    store = opened(engine, shard)
    await store.restore_checkpoint()
    await store.run(put, shard, "a", "one")
    idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    await eventually(lambda: postgres.sql(idle) == [(0,)])
    with pytest.raises(StoreError, match="the transaction is not committed"):
        await store.start_commit(checkpoint_of(1), [])
    assert await store.restore_checkpoint() == Checkpoint()
    assert await store.run(get, shard, "a") is None


@pytest.mark.parametrize(
    ("options", "lease_s", "limit"),
    [({}, 8.0, "24s"), ({}, 1.0, "10s"), ({"idle_s": 7.0}, 8.0, "7s")],
)
async def test_idle_limit_follows_the_lease_unless_given(
    postgres_url, shard, opened, own_engine, options, lease_s, limit
):
    engine = own_engine(postgres_url, **options)
    create_tables(engine)  # on a connection made before the lease is known
    store = opened(engine, shard)
    store.follow_lease(lease_s)
    await store.restore_checkpoint()
    show = text("SHOW idle_in_transaction_session_timeout")
    assert await store.run(lambda connection: connection.scalar(show)) == limit


async def test_a_database_that_is_away_is_reported(opened, own_engine):
    engine = own_engine("postgresql://nobody@127.0.0.1:1/none", answer_s=2.0)
    store = opened(engine, "shard")
    with pytest.raises(StoreUnavailable, match=r"no checkpoint can be .*: OperationalError"):
        await store.restore_checkpoint()
    with pytest.raises(StoreError, match="gazette_checkpoints cannot be made"):
        create_tables(engine)
    with pytest.raises(ValidationError, match="before it was restored"):
        store.start_commit(Checkpoint(), [])
    with pytest.raises(ValidationError, match="before it was restored"):
        await store.run(get, "shard", "a")


async def test_a_connection_that_was_lost_fails_the_commit_alone(postgres, postgres_engine, shard):
    store = SQLStore(postgres_engine, shard)
    await store.restore_checkpoint()
    ended = "SELECT pg_terminate_backend({})"
    for is_committed in (True, False):
        pid = await store.run(lambda connection: connection.scalar(text("SELECT pg_backend_pid()")))
        await store.run(put, shard, "a", "lost")
        assert postgres.sql(ended.format(pid)) == [(True,)]
        if is_committed:
            with pytest.raises(StoreUnavailable, match="the transaction is not committed"):
                await store.start_commit(checkpoint_of(1), [])
            assert await store.restore_checkpoint() == Checkpoint()
            assert await store.run(get, shard, "a") is None
    await store.destroy()
    assert postgres_engine.pool.checkedout() == 0


async def test_a_thread_does_not_wait_for_the_former_commit_for_ever(
    sqlite_engine, shard, opened, monkeypatch
):
    monkeypatch.setattr(sql, "FORMER_S", 0.05)
    store = opened(sqlite_engine, shard)
    await store.restore_checkpoint()
    commit, need = in_flight(store, 1)
    with pytest.raises(StoreError, match="the former commit is not done after"):
        await asyncio.to_thread(store.transaction)
    need.set_result(None)
    await commit
    assert not (await asyncio.to_thread(store.transaction)).closed


async def test_tables_are_made_by_many_at_once(postgres, own_engine):
    name = f"shards_{uuid.uuid4().hex[:8]}"
    postgres.sql(f"CREATE DATABASE {name}")
    url = postgres.url(name)
    engines = [own_engine(url) for _ in range(6)]
    await asyncio.gather(*(asyncio.to_thread(create_tables, each) for each in engines))
    with engines[0].connect() as connection:
        assert connection.execute(select(CHECKPOINTS)).all() == []


async def test_a_table_that_is_missing_is_reported(tmp_path, opened, own_engine):
    store = opened(own_engine(f"sqlite:///{tmp_path}/empty.db"), "shard")
    with pytest.raises(StoreError, match=r"see create_tables\): OperationalError: no such table"):
        await store.restore_checkpoint()


async def test_a_shard_without_a_connection_waits_for_one(postgres_url, shard, opened, own_engine):
    engine = own_engine(postgres_url, answer_s=2.0, connections_max=1)
    store = opened(engine, shard)
    await store.restore_checkpoint()
    refusal = "no transaction can be begun: TimeoutError"
    with engine.connect(), pytest.raises(StoreUnavailable, match=refusal):
        await store.run(get, shard, "a")
    assert await store.run(get, shard, "a") is None


async def test_a_commit_is_not_started_while_another_one_goes_on(sqlite_engine, shard, opened):
    store = opened(sqlite_engine, shard)
    await store.restore_checkpoint()
    commit, need = in_flight(store, 1)
    with pytest.raises(ValidationError, match="the former commit is not done yet"):
        store.start_commit(checkpoint_of(2), [])
    need.set_result(None)
    await commit


async def test_invalid_checkpoint_bytes_are_reported(sqlite_engine, shard, opened):
    with sqlite_engine.begin() as connection:
        row = {"shard_fqn": shard, "fence": 7, "checkpoint": b"\xff"}
        connection.execute(insert(CHECKPOINTS).values(row))
    with pytest.raises(DataError, match="gazette_checkpoints is none"):
        await opened(sqlite_engine, shard).restore_checkpoint()


async def test_what_cannot_work_is_refused(sqlite_engine, tmp_path):
    with pytest.raises(ValidationError, match="expected the name of a shard"):
        SQLStore(sqlite_engine, "")
    with pytest.raises(ValidationError, match="which has one writer"):
        SQLStore(sqlite_engine, "shard", overlaps=True)
    for url in ("sqlite://", "sqlite:///:memory:"):
        with pytest.raises(ValidationError, match="expected a file of SQLite"):
            sql_engine(url)
    for url in ("nonsense", "none://host/database"):
        with pytest.raises(ValidationError, match="not a URL of a database"):
            sql_engine(url)


def test_table_is_that_of_gazette(postgres_engine, mariadb_engine, sqlite_engine):
    engines = {"postgres": postgres_engine, "mariadb": mariadb_engine, "sqlite": sqlite_engine}
    statements = {
        name: " ".join(checkpoints_ddl(engine.dialect).split()) for name, engine in engines.items()
    }
    columns = "( shard_fqn {} NOT NULL, fence INTEGER NOT NULL, checkpoint {} NOT NULL, PRIMARY KEY (shard_fqn) )"
    kinds = {
        "postgres": ("TEXT", "BYTEA"),
        "mariadb": ("VARCHAR(700) COLLATE utf8mb4_bin", "LONGBLOB"),
        "sqlite": ("TEXT", "BLOB"),
    }
    assert statements == {
        name: "CREATE TABLE IF NOT EXISTS gazette_checkpoints " + columns.format(*kinds[name])
        for name in engines
    }


async def test_a_busy_file_of_sqlite_is_reported(tmp_path, shard, opened, own_engine):
    engine = own_engine(f"sqlite:///{tmp_path}/busy.db", answer_s=0.2)
    create_tables(engine)
    store = opened(engine, shard)
    await store.restore_checkpoint()
    with engine.connect() as connection:
        connection.execute(text("BEGIN IMMEDIATE"))
        with pytest.raises(StoreError, match="database is locked"):
            await store.start_commit(checkpoint_of(1), [])
        connection.rollback()
