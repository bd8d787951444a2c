"""One session of the real platform, which all tests of this folder share; README.md says which test proves what.

Each test has names of its own: journals below ``<test>/``, a schema, a folder of table specs. What several tests
look at was appended once, at the beginning, so that Dagster's sensors work while other tests run: see `sales`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from lake_servers import ending, keeping_interrupt
from live_platform import LivePlatform, SparkStart, running_platform
from readme_text import ROOT, Readme
from sales import Sales

from gazette_platform import Change, Client, ClientConfig
from gazette_platform.cli.gazctl import main as gazctl_main
from gazette_platform.hive import MetastoreClient
from gazette_platform.lake import parse_table_spec
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.runs.running import TypedRunner
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.platform.layout import PlatformDir
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.spark.typed_workers import SparkWorkers
from gazette_platform.testing.waiting import patient

# Those that only need brokers come first: Spark starts meanwhile, and sensors, checks and the rollup's
# automation have their time.
ORDER = (
    "streams",
    "readme",
    "losses",
    "consumers",
    "wrong_input",
    "raw_tables",
    "realistic_sets",
    "typed_tables",
    "rollups",
    "unfit_records",
    "dagster",
)
SHARED_SCHEMAS = {"default", "sales", "shop", "typed", "rollups", "gazette_staging"}
SHARED_JOURNALS = ("sales/", "events/")
# A table that nothing but sensors fills.
VIEWS = """gazctl journals create events/views
gazctl journals append events/views examples/clicks.jsonl
gazctl lake create shop.views events/views --yes --raw-only"""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    mine = [item for item in items if item.path.parent == here]
    for item in mine:
        item.add_marker("platform")
        # Without fixtures: the first test starts the platform, which on a new machine downloads what it needs.
        item.add_marker(pytest.mark.timeout(patient(240), func_only=True))
        # PySpark leaves the sockets over which it collects rows to the garbage collector.
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))

    def place(item):
        return ORDER.index(item.path.stem.removeprefix("test_")) if item in mine else -1

    items.sort(key=place)


@pytest.fixture(scope="session")
def platform(tmp_path_factory):
    """The platform. Specs of the shared data exist before it starts, so Dagster loads them once."""
    root = tmp_path_factory.mktemp("platform") / "root"
    Sales.write_specs(PlatformDir.at(root))
    with running_platform(root) as found:
        yield found


@pytest.fixture(scope="session")
def spark_start(platform):
    with keeping_interrupt():
        start = SparkStart(platform.settings)
        yield start
        with ending(start.session()):
            pass


@pytest.fixture(scope="session")
def client(platform):
    config = ClientConfig(address=platform.endpoints.broker, file_root=platform.layout.fragments)
    with Client(config) as client:
        yield client


@pytest.fixture(scope="session")
def shared_sales(client):
    sales = Sales(client)
    sales.publish()
    return sales


@pytest.fixture(scope="session")
def readme_commands(platform, tmp_path_factory):
    """What the commands of the quick start gave, at this platform instead of one that they start."""
    quick = Readme().shell("gazette up --light").splitlines()
    more = Readme().shell("gazctl lake create").splitlines()
    assert quick[1] == "gazette up --light"
    assert more[0] == "gazette up"
    folder = tmp_path_factory.mktemp("readme")
    (folder / ".gazette").symlink_to(platform.layout.root)
    (folder / "examples").symlink_to(ROOT / "examples")
    script = "\n".join(["set -e", *quick[2:], *more[1:], VIEWS])
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="session")
def typed_payments(platform, client, shared_sales, spark_start):
    """What the first run of the typed table reported: by Spark, as runs in Dagster are."""
    raw = parse_table_spec((platform.layout.tables / "sales.payments.yaml").read_text())
    workers = SparkWorkers(spark_start.session())
    return TypedRunner(typed_catalog(platform.settings), workers, client).run(raw.typed, raw)


@pytest.fixture(scope="session", autouse=True)
def work_of_the_session(shared_sales, spark_start):
    """Have data appended and Spark started before the first test, whichever that is."""


@pytest.fixture
def readme():
    """README.md, and the code in it."""
    return Readme()


@pytest.fixture
def sales(shared_sales):
    """What was appended to the journals that tests share."""
    return shared_sales


@pytest.fixture
def spark(spark_start):
    """Rows of a query in Spark, as tuples."""
    session = spark_start.session()
    return lambda sql: [tuple(row) for row in session.sql(sql).collect()]


@pytest.fixture
def spark_session(spark_start):
    return spark_start.session()


@pytest.fixture
def trino(platform):
    """Rows of a query in Trino."""
    return platform.trino.query


@pytest.fixture
def metastore(platform):
    return MetastoreClient(platform.endpoints.metastore)


@pytest.fixture
def duckdb(gazctl):
    """Rows of a query by `gazctl sql`, each a tuple of texts."""

    def run(sql):
        done = gazctl("sql", sql, "-o", "csv")
        assert done.code == 0, done.err
        return [tuple(line.split(",")) for line in done.out.splitlines()[1:]]

    return run


@pytest.fixture
def environment(platform, monkeypatch):
    """What `gazette env` prints is set, as in a user's shell."""
    for name, value in platform.environment.items():
        monkeypatch.setenv(name, value)
    return platform.environment


@pytest.fixture
def gazctl(environment, monkeypatch, tmp_path, capfdbinary):
    """Run `gazctl` in this process, in a folder of the test: starting one takes a second."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        code = gazctl_main([*map(str, args)])
        out, err = capfdbinary.readouterr()
        return SimpleNamespace(code=code, out=out.decode(), err=err.decode())

    return run


class Own:
    """Names of one test, and what it made by them."""

    def __init__(self, name: str, client: Client, tables: Path, platform: LivePlatform) -> None:
        self.name = name
        self.schema = name.replace("-", "_")
        self.tables = tables
        self.client = client
        self.platform = platform

    def journal(self, part: str = "part=0", *, codec=CompressionCodec.GZIP, label="", **fragment):
        """Create a journal below the name of the test. Return its name."""
        name = f"{self.name}/{part}"
        spec = FragmentSpec(
            length=1 << 26,
            codec=codec,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
            **fragment,
        )
        labels = LabelSet.of(("content-type", label or "application/x-ndjson"))
        self.client.apply(
            [Change(JournalSpec(name=name, replication=1, labels=labels, fragment=spec))]
        )
        return name

    def spec(self, table: str, columns: str, more: str = "", *, data_format: str = "json") -> str:
        """Write a table spec over all journals of the test. Return the table's name."""
        (self.tables / f"{table}.yaml").write_text(
            f"name: {self.schema}.{table}\nselector: 'name:prefix={self.name}/'\nformat: {data_format}\n"
            f"columns: {columns}\n{more}"
        )
        return f"{self.schema}.{table}"

    def files(self, journal: str) -> list[Path]:
        """Return the fragments of a journal that are stored, by offset."""
        found = (self.platform.layout.fragments / journal).rglob("*-*-*")
        return sorted((path for path in found if path.is_file()), key=lambda path: path.name)


@pytest.fixture
def own(request, platform, client, tmp_path, metastore):
    """Names that no other test has. What was made by them is removed, and nothing else may be left."""
    name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_").replace("_", "-")).strip("-")
    tables = tmp_path / "own-tables"
    tables.mkdir()
    yield Own(name, client, tables, platform)
    mine = client.list(f"name:prefix={name}/")
    client.apply([Change(None, delete=each.spec.name, revision=-1) for each in mine])
    schema = name.replace("-", "_")
    with metastore.connect() as session:
        if schema in session.databases():
            for table in session.tables(schema):
                session.drop_table(schema, table)
            session.drop_database(schema)


@pytest.fixture(autouse=True)
def nothing_left(client, platform, metastore):
    """Fail a test that leaves a journal, a schema or a spec that is not one of the session."""
    specs = _specs(platform)
    yield
    journals = [each.spec.name for each in client.list("")]
    assert [name for name in journals if not name.startswith(SHARED_JOURNALS)] == []
    with metastore.connect() as session:
        assert set(session.databases()) - SHARED_SCHEMAS == set()
    assert _specs(platform) - specs <= {"shop.clicks.yaml", "shop.views.yaml"}


def _specs(platform):
    folders = (platform.layout.tables, platform.layout.rollups)
    return {path.name for folder in folders for path in folder.rglob("*.*")}
