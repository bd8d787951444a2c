"""Orders of typed runs, carried out by Spark: locally, on a cluster, and behind Spark Connect."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lake_servers import plain_spark_session, spark_session
from spark_journals import create, json_lines
from spark_servers import connect_server, spark_cluster
from typed_world import World, spec

from gazette_platform import Client, ClientConfig
from gazette_platform.errors import LakeError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.engines.spark import start_session
from gazette_platform.lake.iceberg.catalog import CatalogTables
from gazette_platform.lake.spec.table_spec import TableSpec
from gazette_platform.lake.typed.planning.ranges import Limits
from gazette_platform.lake.typed.runs import jobs
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.lake.typed.runs.working import LocalWorkers
from gazette_platform.message import Flags, MessageClock, build_uuid, new_producer_id
from gazette_platform.spark.typed_workers import SparkWorkers, source_of
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import wait_until

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # Sockets over which Spark gives rows are left to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
OUT, CONT, ACK = Flags
TOKEN = "a-secret-of-these-tests"


@pytest.fixture(scope="module")
def shared(etcd_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    prefix = "/test-typed-spark"
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix=prefix, lease_s=30.0) as server:
        yield server


@pytest.fixture(scope="module")
def client(shared):
    config = ClientConfig(address=shared.address, file_root=shared.fragments, auth_token=TOKEN)
    with Client(config) as client:
        yield client


class Typed:
    """A typed table, and the journals that it is made of."""

    def __init__(self, client, name, folder):
        self.client = client
        self.prefix = f"typed-spark/{name}"
        self.world = World(folder)
        self.handle = self.world.handle()
        self.tables = CatalogTables(self.handle._catalog, folder.as_uri())
        selector = f"name:prefix={self.prefix}/"
        self.raw = TableSpec(name="raw.flights", selector=selector, format="json", columns=())
        self.producer, self.clock = new_producer_id(), MessageClock()

    def journals(self, *parts):
        return create(self.client, self.prefix, *parts)

    def append(self, name, *ns, flags=OUT, stored=True):
        uuids = [build_uuid(self.producer, self.clock.tick(), flags) for _ in ns]
        rows = [{"_meta": {"uuid": str(uuid)}, "n": n} for n, uuid in zip(ns, uuids, strict=True)]
        self.client.append(name, json_lines(*rows))
        if stored:
            self.client.flush(f"name={name}")

    def run(self, workers, **limits):
        runner = TypedRunner(self.tables, workers, self.client)
        return runner.run(spec(), self.raw, limits=Limits(**limits))

    def ordered(self):
        """The job and orders of the first round of a run."""
        taken = []

        class Taking:
            def carry_out(self, job, orders):
                taken.extend([job, orders])
                raise LakeError("taken")

        with pytest.raises(LakeError, match="taken"):
            self.run(Taking())
        return taken

    def numbers(self):
        return sorted(self.handle.load().token.scan().to_arrow()["n"].to_pylist())

    def files(self):
        """Of rows, published or not."""
        return sorted(path.name for path in self.world.folder.rglob("*.parquet"))


@pytest.fixture
def typed(client, request, tmp_path):
    made = Typed(client, request.node.name, tmp_path)
    yield made
    for catalog in made.world.catalogs:
        catalog.close()


class HeldFragments:
    """The store of fragments over HTTP, whose answers wait until they are let go.

    Attributes:
        asked: process ids of those who asked, in order.
    """

    def __init__(self, folder):
        self.asked = []
        self.is_open = threading.Event()
        held = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                held.asked.append(pid_behind(self.client_address[1]))
                held.is_open.wait(150)
                content = folder.joinpath(self.path.lstrip("/")).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # whoever asked was killed
        self.thread = threading.Thread(target=self.server.serve_forever)

    def holding(self, order):
        """The order, whose fragments are fetched from here."""
        at = f"http://127.0.0.1:{self.server.server_port}"
        extents = tuple(
            replace(
                each,
                listing=replace(
                    each.listing, signed_url=each.listing.signed_url.replace("file://", at)
                ),
            )
            for each in order.task.extents
        )
        return replace(order, task=replace(order.task, extents=extents))

    def wait_for(self, count):
        wait_until(lambda: len(self.asked) >= count, timeout_s=120)
        return self.asked[count - 1]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_open.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def pid_behind(port):
    """The process that has a connection from a local port. Others end meanwhile."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inode = next(p[9] for p in map(str.split, lines) if int(p[1].rpartition(":")[2], 16) == port)
    for process in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):
            for link in Path("/proc", process, "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if str(link.readlink()) == f"socket:[{inode}]":
                        return int(process)
    raise AssertionError(port)


def rows_are_right(typed, workers):
    """Transactions over several runs and tasks, with a message that is duplicated, and one that is none."""
    a, b = typed.journals("a", "b")
    for first in (0, 10, 20):
        typed.append(a, *range(first, first + 10))
    typed.append(b, 100, 101)
    typed.append(b, 102, 103, flags=CONT)
    typed.client.append(b, b"no json\n")
    typed.client.flush(f"name={b}")
    report = typed.run(workers, task_bytes=1)
    assert typed.numbers() == [*range(30), 100, 101]
    assert (report.counts.typed, report.counts.quarantined) == (32, 1)
    typed.append(b, 104, flags=CONT)
    typed.append(b, 0, flags=ACK, stored=False)
    assert typed.run(workers).is_whole
    assert typed.numbers() == [*range(30), *range(100, 105)]


def damage_is_told(typed, workers, root):
    """By all workers in the same words."""
    (name,) = typed.journals("a")
    typed.append(name, 1)
    typed.append(name, 2)
    first = next(root.joinpath(name).glob(f"{0:016x}-*"))
    second = next(path for path in root.joinpath(name).iterdir() if path != first)
    second.write_bytes(first.read_bytes())
    expected = typed.run(LocalWorkers(), task_bytes=1).unreadable
    assert list(expected) == [name]
    assert typed.run(workers, task_bytes=1).unreadable == expected
    assert typed.files() == []


def interrupt_ends_the_job(typed, workers, root):
    (name,) = typed.journals("a")
    typed.append(name, 1)
    job, orders = typed.ordered()
    with HeldFragments(root) as held:

        def interrupt():
            held.wait_for(1)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            workers.carry_out(job, [held.holding(order) for order in orders])
        thread.join()
        # The store has not answered, and whoever asked it is gone.
        ended(held.asked[0])
    typed.run(workers)
    assert typed.numbers() == [1]


def ended(pid):
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=30)


# ------------------------------------------------------------------------ local


@pytest.fixture(scope="class")
def local():
    with plain_spark_session(**{"spark.master": "local[2,4]"}) as session:
        yield session


class TestLocal:
    """A Spark of this process."""

    def test_local_spark_makes_the_rows_of_transactions_that_span_runs(self, typed, local):
        rows_are_right(typed, SparkWorkers(local))

    def test_local_spark_reports_the_error_of_a_worker_and_leaves_no_files(
        self, typed, local, shared
    ):
        damage_is_told(typed, SparkWorkers(local), shared.fragments)

    def test_nothing_of_a_job_is_in_a_plan_or_left_in_a_session(self, typed, local):
        (name,) = typed.journals("a")
        typed.append(name, 1)
        job, orders = typed.ordered()
        sent = jobs.dump_job(job)
        assert TOKEN.encode() in sent
        local.dataSource.register(source_of(sent, list(map(jobs.dump_order, orders))))
        plan = local.read.format("gazette_typed_orders").load()._jdf.queryExecution().toString()
        assert "gazette_typed_orders" in plan
        assert "content" in plan
        assert TOKEN not in plan
        assert name not in plan
        typed.run(SparkWorkers(local))
        assert local.read.format("gazette_typed_orders").load().count() == 0

    def test_interrupt_ends_the_job_and_leaves_the_session_in_order(self, typed, local, shared):
        interrupt_ends_the_job(typed, SparkWorkers(local), shared.fragments)
        assert local.sparkContext.statusTracker().getActiveJobsIds() == []


# ------------------------------------------------------------------------ a cluster


@pytest.fixture(scope="class")
def cluster(tmp_path_factory):
    """A session of a standalone cluster, by configuration only."""
    folder = tmp_path_factory.mktemp("typed-cluster")
    with spark_cluster(folder) as url, session_of(folder, url) as session:
        yield session


@contextlib.contextmanager
def session_of(folder, master):
    properties = folder / "spark.conf"
    properties.write_text(
        "spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
        "spark.executor.memory 512m\nspark.sql.catalogImplementation in-memory\n"
    )
    environment = {
        "GAZETTE_METASTORE_URI": "thrift://127.0.0.1:9",
        "GAZETTE_SPARK_MASTER": master,
        "GAZETTE_SPARK_PROPERTIES": str(properties),
    }
    with spark_session(LakeSettings.from_environment(environment)) as session:
        yield session


class TestCluster:
    """A master and a worker."""

    def test_task_whose_worker_is_killed_is_tried_again(self, typed, cluster, shared):
        (name,) = typed.journals("a")
        for n in range(3):
            typed.append(name, n)
        job, orders = typed.ordered()
        with HeldFragments(shared.fragments) as held:

            def kill():
                os.kill(held.wait_for(1), signal.SIGKILL)
                held.is_open.set()

            thread = threading.Thread(target=kill)
            thread.start()
            done = SparkWorkers(cluster).carry_out(job, [held.holding(order) for order in orders])
            thread.join()
            assert len(set(held.asked)) == 2
        assert sum(one.typed for one in done) == 3
        assert cluster.sparkContext.master.startswith("spark://")

    def test_cluster_makes_the_rows_of_transactions_that_span_runs(self, typed, cluster):
        rows_are_right(typed, SparkWorkers(cluster))


# ------------------------------------------------------------------------ Spark Connect


@pytest.fixture(scope="class")
def connect_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("typed-connect")


@pytest.fixture(scope="class")
def connect(connect_folder):
    """A session of a server that keeps a log of all that it does, by configuration only."""
    properties = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": connect_folder.as_uri(),
    }
    with connect_server(connect_folder, properties) as url:
        environment = {"GAZETTE_METASTORE_URI": "thrift://127.0.0.1:9", "GAZETTE_SPARK_MASTER": url}
        session = start_session(LakeSettings.from_environment(environment))
        try:
            yield session
        finally:
            session.stop()
            # Else all sessions of this process would be such ones.
            del os.environ["SPARK_CONNECT_MODE_ENABLED"]


class TestConnect:
    """A server; this process has its client alone."""

    def test_spark_connect_makes_the_rows_of_transactions_that_span_runs(self, typed, connect):
        rows_are_right(typed, SparkWorkers(connect))

    def test_spark_connect_reports_the_error_of_a_worker_and_leaves_no_files(
        self, typed, connect, shared
    ):
        damage_is_told(typed, SparkWorkers(connect), shared.fragments)

    def test_spark_connect_logs_nothing_of_a_job(self, typed, connect, connect_folder):
        (name,) = typed.journals("a")
        typed.append(name, 1)
        typed.run(SparkWorkers(connect))
        logged = b"".join(path.read_bytes() for path in connect_folder.rglob("*") if path.is_file())
        assert b"SparkListenerJobEnd" in logged
        assert b"gazette_typed_orders" in logged
        assert TOKEN.encode() not in logged

    def test_interrupt_ends_the_job_of_spark_connect(self, typed, connect, shared):
        interrupt_ends_the_job(typed, SparkWorkers(connect), shared.fragments)
