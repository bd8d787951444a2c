"""Replicas of shards at a real broker that fail, or are stopped whatever hangs.

Long because each way to fail is played at the same bench.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from shard_bench import (
    IN,
    IN2,
    Host,
    Numbered,
    Remote,
    RemoteStore,
    bench_at,
    journal,
    spec_of,
    through,
)

from gazette_platform.client import Change
from gazette_platform.consumer.application import Application, DeferToNextTransaction
from gazette_platform.consumer.assignments import encode_replica_status
from gazette_platform.consumer.protocol import ReplicaCode
from gazette_platform.consumer.recoverylog import FsmHints
from gazette_platform.consumer.store import (
    JSONFileStore,
    MemoryStore,
    RocksDBStore,
    SQLiteStore,
    SQLStore,
    create_tables,
    sql_engine,
)
from gazette_platform.errors import (
    AssignmentGone,
    EtcdError,
    GazetteError,
    ShardStopped,
    StoreUnavailable,
    ValidationError,
)
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.testing.waiting import eventually, patient, turns

pytestmark = [pytest.mark.etcd, pytest.mark.own_brokers]


@pytest.fixture
async def bench(local_brokers, tmp_path):
    async with bench_at(await local_brokers.start(), tmp_path / "replicas") as bench:
        yield bench


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [(StoreUnavailable("the database is away"), True), (KeyError("word"), False)],
)
async def test_failure_of_store_may_pass(bench, caplog, error, may_pass):
    class Failing(Numbered):
        def consume(self, txn, envelope):
            raise error

    replica = bench.replica(Failing(), spec_of(log=False))
    assert not replica.may_pass
    await bench.publish(1)
    await replica.host.reached("FAILED")
    assert replica.may_pass is may_pass
    # What may pass has a line, and no traceback: its cause is not in this process.
    (told,) = [each for each in caplog.records if "its primary failed" in each.getMessage()]
    assert (told.exc_info is None) is may_pass


@pytest.mark.parametrize("kind", ["memory", "sql"])
async def test_store_without_a_log_is_refused_where_the_log_has_state(bench, tmp_path, kind):
    """It began with empty state, and everything was published again."""
    engine = sql_engine(f"sqlite:///{tmp_path / 'state.db'}")
    create_tables(engine)

    class Elsewhere(Numbered):
        def new_store(self, shard, recorder):
            return MemoryStore({}) if kind == "memory" else SQLStore(engine, shard.fqn)

        async def consume(self, txn, envelope):
            await txn.publisher.publish(self.to, {"id": envelope.message["id"], "number": 0})

    for _ in range(2):  # a log without files does no harm
        replica = bench.replica(Elsewhere(), spec_of())
        await replica.host.reached("PRIMARY")
        await replica.stop()
    replica = bench.replica(Numbered(), spec_of())
    await through(replica, await bench.publish(1))
    await replica.stop()
    replica = bench.replica(Elsewhere(), spec_of())
    status = await replica.host.reached("FAILED")
    assert "has files" in status.errors[0]
    assert len(await bench.output()) == 1
    engine.dispose()


async def test_database_that_is_away_as_a_store_is_opened_may_pass(bench):
    """Such a shard stayed FAILED, whose application makes its tables as it opens its store."""

    class Making(Numbered):
        def new_store(self, shard, recorder):
            with sql_engine("postgresql://127.0.0.1:1/none").begin():
                raise AssertionError("no server listens there")

    replica = bench.replica(Making(), spec_of(log=False))
    status = await replica.host.reached("FAILED")
    assert "app.NewStore: OperationalError" in status.errors[0]
    assert replica.may_pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DeferToNextTransaction(), "the application deferred the first message"),
        (DeferToNextTransaction(7), "says that it consumed 7 before"),
        (
            KeyError("word"),
            f"runTransactions: app.ConsumeMessage: {IN}: the message from offset 0 to ",
        ),
        (KeyError("word"), ": KeyError: 'word'"),
    ],
)
async def test_ct9_a_batch_that_fails_fails_the_shard(bench, error, text):
    finished = []

    class Failing(Numbered):
        async def consume_batch(self, txn, envelopes):
            raise error

        def finished(self, txn, commit):
            finished.append(commit)

    replica = bench.replica(Failing(), spec_of(log=False))
    await bench.publish(1)
    status = await replica.host.reached("FAILED")
    assert text in status.errors[0]
    [commit] = finished
    assert isinstance(commit.exception(), GazetteError)
    assert replica.is_ready
    assert (await replica.wait_through()).state == {}
    with pytest.raises(ShardStopped):
        await replica.wait_through({IN: 10**9})


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncio.CancelledError(), "something was cancelled that it waited for"),
        (Panic("index out of bounds"), "Panic: index out of bounds"),
        (ValueError("odd \ud800"), "ValueError: odd "),
    ],
)
@pytest.mark.parametrize("at", ["consume", "read", "message", "store"])
async def test_a_shard_fails_whatever_is_raised(bench, at, error, text):
    class Raising(Numbered):
        def new_store(self, shard, recorder):
            if at == "store":
                raise error
            return super().new_store(shard, recorder)

        def framing(self, journal):
            if at == "message":
                raise error
            return super().framing(journal)

        def read(self, shard, store, checkpoint):
            return self.batches() if at == "read" else None

        async def batches(self):
            raise error
            yield []

        async def consume_batch(self, txn, envelopes):
            if at == "consume":
                raise error

    replica = bench.replica(Raising(), spec_of(log=False))
    await bench.publish(1)
    status = await replica.host.reached("FAILED")
    assert text in status.errors[0]
    assert encode_replica_status(status)
    assert replica.has_ended


async def test_a_message_that_cannot_be_consumed_is_named(bench):
    """It was the error alone before, without the message to look at."""

    class Picky(Silent):
        def consume(self, txn, envelope):
            return self.check(envelope.begin)

        async def check(self, begin):
            if begin:
                raise ValueError("not this one")

    await bench.client.append(IN2, b'{"n":1}\n{"n":2}\n{"n":3}\n')
    replica = bench.replica(Picky(), spec_of(IN2, log=False))
    [error] = (await replica.host.reached("FAILED")).errors
    assert error == (
        f"runTransactions: app.ConsumeMessage: {IN2}: the message from offset 8 to 16: ValueError: not this one"
    )
    assert isinstance(replica.error, ValueError)


async def test_a_stray_cancellation_fails_the_shard(bench):
    """It ended the primary in silence before: PRIMARY for ever, and nothing was consumed."""

    class Stray(Numbered):
        async def finalize(self, txn):
            await cancelled()

    async def cancelled():
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    await bench.publish(1)
    replica = bench.replica(Stray(), spec_of(log=False))
    [error] = (await replica.host.reached("FAILED")).errors
    assert error.endswith("app.FinalizeTxn: something was cancelled that it waited for")
    assert replica.has_ended
    await replica.stop()


@pytest.mark.parametrize(
    ("new_store", "error"),
    [
        (lambda recorder: None, "new_store returned None, and no store: return a SQLiteStore"),
        (lambda recorder: {}, "new_store returned {}, and no store"),
        (
            lambda recorder: JSONFileStore(recorder, {}),
            "a JSONFileStore keeps its files in a recovery log",
        ),
        (
            SQLiteStore,
            "a SQLiteStore keeps its files in a recovery log, and this shard has none: give its",
        ),
        (RocksDBStore, "a RocksDBStore keeps its files in a recovery log"),
    ],
)
async def test_store_that_cannot_be_one_is_reported_with_what_to_do(bench, new_store, error):
    """These were AttributeErrors of code that is not the application's."""

    class Wrong(Numbered):
        def new_store(self, shard, recorder):
            return new_store(recorder)

    [text] = await failed(bench, Wrong(), spec_of(log=False))
    assert text.startswith(f"completeRecovery: app.NewStore: {error}")


async def test_messages_without_a_uuid_are_reported_once(bench, caplog):
    """They are not told apart, and nothing said so."""
    await bench.client.append(IN2, b'{"n":1}\n')
    replica = bench.replica(Silent(), spec_of(IN2, log=False))
    await through(replica, {IN2: 8})
    await bench.client.append(IN2, b'{"n":2}\n')
    await through(replica, {IN2: 16})
    [text] = [each for each in caplog.messages if "no UUID" in each]
    assert text.startswith(
        f"shard {replica.id}: messages of {IN2} have no UUID, as the one at offset 0: "
    )
    assert "`uuid_field`" in text
    caplog.clear()
    other = bench.replica(Numbered(), spec_of(log=False))
    await through(other, await bench.publish(1))
    assert "no UUID" not in caplog.text


class Silent(Application):
    def new_store(self, shard, recorder):
        return RemoteStore(Remote())

    def consume(self, txn, envelope):
        pass


async def failed(bench, application, spec=None, **options):
    replica = bench.replica(application, spec, **options)
    return (await replica.host.reached("FAILED")).errors


async def test_cs3_cs4_ct9_failures_are_reported_in_chained_texts(bench):
    class Broken(Numbered):
        at = ""

        def fail(self, at):
            if self.at == at:
                raise ValueError(f"no {at}" + "!" * 3000)

        def new_store(self, shard, recorder):
            self.fail("store")
            store, outer = RemoteStore(self.remote), self
            if recorder is not None:
                store = super().new_store(shard, recorder)

            class Store(type(store)):
                async def restore_checkpoint(self):
                    outer.fail("restore")
                    return await super().restore_checkpoint()

                def start_commit(self, checkpoint, after):
                    outer.fail("start")
                    return super().start_commit(checkpoint, after)

                async def commit(self, state, checkpoint, after):
                    outer.fail("commit")
                    await super().commit(state, checkpoint, after)

            store.__class__ = Store
            return store

        def framing(self, journal):
            self.fail("message")
            return super().framing(journal)

        def begin(self, txn):
            self.fail("begin")

        async def finalize(self, txn):
            self.fail("finalize")

    await bench.publish(1)
    spec = spec_of(log=False)
    for at, text in {
        "store": "completeRecovery: app.NewStore: ValueError: no store!",
        "restore": "completeRecovery: store.RestoreCheckpoint: ValueError: no restore!",
        "message": "runTransactions: readMessage: app.NewMessage: ValueError: no message!",
        "begin": "runTransactions: app.BeginTxn: ValueError: no begin!",
        "finalize": "runTransactions: txnStartCommit: app.FinalizeTxn: ValueError: no finalize!",
        "start": "runTransactions: txnStartCommit: store.StartCommit: ValueError: no start!",
        "commit": "runTransactions: store.StartCommit: ValueError: no commit!",
    }.items():
        application = Broken()
        application.at = at
        [error] = await failed(bench, application, spec)
        assert error.startswith(text)
        assert len(error) == 2048 + len(" ...[truncated]")
        assert error.endswith("! ...[truncated]")

    broken = Broken()
    broken.at = "store"
    await failed(bench, broken)
    assert [*bench.directory.iterdir()] == []  # files that no store will delete
    assert bench.desk.backups == [None, None]


async def test_cs1_cs3_ch3_journals_that_are_missing_or_wrong_fail_the_shard(bench):
    [error] = await failed(bench, Numbered(), spec_of("in/none", log=False))
    assert error == (
        "runTransactions: readMessage: fetching journal spec: named journal does not exist (in/none)"
    )
    await bench.client.apply([Change(journal("in/unframed", ""))])
    [error] = await failed(bench, Numbered(), spec_of("in/unframed", log=False))
    assert error.startswith("runTransactions: readMessage: app.NewMessage: must have one label")
    await bench.client.append(IN2, b"no JSON\n")
    [error] = await failed(bench, Numbered(), spec_of(IN2, log=False))
    assert error.startswith(f"runTransactions: readMessage: {IN2}: the message at offset 0: ")
    assert error.endswith("; the next one begins at 8")  # where to go on without it

    bench.desk.primary = FsmHints("recovery/none")
    errors = await failed(bench, Numbered(), slot=1)
    text = "beginRecovery: fetching log spec: named journal does not exist (recovery/none)"
    assert errors == (text,)
    replica = bench.replica(Numbered())
    await eventually(lambda: len(replica.host.status.errors) == 2)
    assert sorted(replica.host.status.errors) == [text, f"completeRecovery: {text}"]
    assert replica.has_ended
    bench.desk.primary = FsmHints(IN)
    [error] = await failed(bench, Numbered(), slot=1)
    assert error.startswith(
        "beginRecovery: expected label content-type value application/x-gazette-recoverylog "
        "(got application/x-ndjson"
    )


@pytest.mark.parametrize("slot", [0, 1])
async def test_ch3_hints_beyond_the_head_fail_the_shard(bench, slot):
    first = bench.replica(Numbered(), settings={"hints_interval_s": 0.0})
    await through(first, await bench.publish(1))
    await through(first, await bench.publish(2))
    await first.stop()
    exact = bench.desk.primary
    *nodes, node = exact.live_nodes
    segments = (*node.segments[:-1], replace(node.segments[-1], last_offset=1 << 40))
    bench.desk.primary = replace(exact, live_nodes=(*nodes, replace(node, segments=segments)))
    errors = await failed(bench, Numbered(), slot=slot)
    assert all("player.Play: " in each for each in errors)
    assert all("possible data loss" in each for each in errors)
    assert [*bench.directory.iterdir()] == []
    # It is the hints alone.
    bench.desk.primary = exact
    again = bench.replica(Numbered())
    assert (await through(again, {})).state == {"all": 2, "k": 2}


async def test_a_commit_that_fails_takes_what_was_published_with_it(bench):
    class Store(RemoteStore):
        async def commit(self, state, checkpoint, after):
            await super().commit(state, checkpoint, after)
            raise OSError("the disk is gone")

    class Publishing(Numbered):
        def new_store(self, shard, recorder):
            return Store(self.remote)

    replica = bench.replica(Publishing(), spec_of(log=False))
    await bench.publish(1)
    status = await replica.host.reached("FAILED")
    assert status.errors == ("runTransactions: store.StartCommit: OSError: the disk is gone",)
    await replica.stop()
    assert await bench.output() == []


async def test_stopping_ends_within_its_deadline_whatever_hangs(bench, caplog):
    class Hanging(RemoteStore):
        async def commit(self, state, checkpoint, after):
            await asyncio.get_running_loop().create_future()

    class Publishing(Numbered):
        def new_store(self, shard, recorder):
            return Hanging(self.remote)

    application = Publishing()
    replica = bench.replica(application, spec_of(log=False))
    await bench.publish(1)
    await eventually(lambda: replica.counts.read_bytes)
    await bench.publish(2)  # which is published behind an ACK that waits
    await eventually(lambda: application.seen == [1, 2])
    assert replica.shard.appends.buffered_bytes
    began = asyncio.get_running_loop().time()
    with replica.use():
        await replica.stop(timeout_s=0.5)
    assert asyncio.get_running_loop().time() - began < 10
    assert "1 still use its store" in caplog.text
    assert replica.shard.appends.buffered_bytes == 0
    assert replica.shard.stopping.is_set()
    await replica.stop()
    assert replica.host.status.code.name == "PRIMARY"


async def test_a_read_that_waits_for_a_commit_does_not_hold_up_the_stop(bench):
    """It waited for a commit that never came, for good; and the store was not given back for ten seconds."""

    class Rows(Application):
        is_changed = False

        def new_store(self, shard, recorder):
            return SQLiteStore(recorder, schema="CREATE TABLE IF NOT EXISTS seen (id INT)")

        def consume(self, txn, envelope):
            txn.store.db.execute("INSERT INTO seen VALUES (1)")
            self.is_changed = True

    application = Rows()
    spec = replace(spec_of(), min_txn_duration_ns=3600 * SECOND_NS)
    replica = bench.replica(application, spec)
    await bench.publish(1)
    await eventually(lambda: application.is_changed)
    store = await through(replica, {})
    tasks = TaskGroup("test")
    with replica.use():
        reading = tasks.spawn(store.read(lambda db: db.execute("SELECT * FROM seen").fetchall()))
        await turns()
        stopping = tasks.spawn(replica.stop(timeout_s=60))
        async with asyncio.timeout(patient(5)):
            assert await reading == []
    await stopping
    with pytest.raises(GazetteError, match="given back"):
        await store.read(lambda db: db)


async def test_a_store_that_is_not_destroyed_in_time_is_given_up(bench, caplog):
    class Sticky(RemoteStore):
        async def destroy(self):
            await asyncio.get_running_loop().create_future()

    class Holding(Numbered):
        def new_store(self, shard, recorder):
            return Sticky(self.remote)

    replica = bench.replica(Holding(), spec_of(log=False))
    await through(replica, {})
    assert (replica.fqn, replica.spec) == ("/items/shard-000", spec_of(log=False))
    async with asyncio.timeout(patient(10)):
        await replica.stop(timeout_s=0.1)
    assert "not all of it ended within 0.1 s" in caplog.text


async def test_an_application_that_consumes_nothing_is_refused(bench):
    class Idle(Application):
        def new_store(self, shard, recorder):
            return None

    with pytest.raises(ValidationError, match="Idle consumes nothing"):
        bench.replica(Idle())


async def test_failure_that_cannot_be_reported_is_logged(bench, caplog):
    class Deaf(Host):
        async def set_status(self, status):
            raise EtcdError("etcd is gone")

    replica = bench.replica(Numbered(), spec_of(log=False), host=Deaf(bench.desk))
    await eventually(lambda: replica.has_ended)
    await eventually(lambda: "its failure cannot be reported: etcd is gone" in caplog.text)
    assert isinstance(replica.error, EtcdError)


@pytest.mark.parametrize("log", [True, False])
async def test_whose_assignment_is_gone_ends_without_a_word_of_failure(bench, caplog, log):
    """As of a process that slept past its lease: it is about to learn so."""

    class Late(Host):
        async def set_status(self, status):
            self.told_codes.append(status.code)
            raise AssignmentGone("its assignment is gone", journal="shard-000")

    host = Late(bench.desk)
    host.told_codes = []
    caplog.set_level(logging.INFO)
    replica = bench.replica(Numbered(), spec_of(log=log), host=host)
    await eventually(lambda: replica.has_ended and "as its assignment is gone" in caplog.text)
    assert isinstance(replica.error, AssignmentGone)
    assert ReplicaCode.FAILED not in host.told_codes
    failed = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert failed == []


async def test_a_store_that_cannot_be_destroyed_leaves_no_appends_open(bench):
    class Clinging(RemoteStore):
        async def destroy(self):
            raise OSError("device busy")

    class Application(Numbered):
        def new_store(self, shard, recorder):
            return Clinging(self.remote)

    replica = bench.replica(Application(), spec_of(log=False))
    await through(replica, await bench.publish(1))
    with pytest.raises(OSError, match="device busy"):
        await replica.stop()
    with pytest.raises(GazetteError, match="closed"):
        await replica.shard.appends.submit(IN, b"{}\n")


@pytest.mark.parametrize("kind", ["json", "sqlite"])
async def test_failed_shard_shows_no_rows_of_its_open_transaction(bench, kind):
    """A page showed rows of a message that was never consumed, for as long as the shard was FAILED."""

    class Ids(Application):
        def new_store(self, shard, recorder):
            if kind == "json":
                return JSONFileStore(recorder, [])
            return SQLiteStore(recorder, schema="CREATE TABLE IF NOT EXISTS ids (id INT)")

        def consume(self, txn, envelope):
            if kind == "json":
                txn.store.state.append(envelope.message["id"])
            else:
                txn.store.db.execute("INSERT INTO ids VALUES (?)", (envelope.message["id"],))
            if envelope.message["id"] == 2:
                raise KeyError("amount")

    replica = bench.replica(Ids(), spec_of())
    store = await through(replica, await bench.publish(1))
    await bench.publish(2)
    await replica.host.reached("FAILED")
    if kind == "json":
        assert store.state == await store.read(list) == [1]
    else:
        found = "SELECT id FROM ids"
        assert store.db.execute(found).fetchall() == [(1,)]
        assert await store.read(lambda db: db.execute(found).fetchall()) == [(1,)]


async def test_exception_of_application_is_logged_as_one_traceback(bench, caplog):
    class Failing(Numbered):
        def consume(self, txn, envelope):
            raise KeyError("amount")

    replica = bench.replica(Failing(), spec_of(log=False))
    await bench.publish(1)
    await replica.host.reached("FAILED")
    assert caplog.text.count("Traceback (most recent call last)") == 1
    assert "runTransactions: app.ConsumeMessage: " in caplog.text
    assert "KeyError: 'amount'" in caplog.text
