"""The container images: a broker in `core` serves, drains and takes its spools up again; `all` serves Dagster and Kafka's clients, and asks Spark."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import urllib.request
from pathlib import Path

import grpc
import pytest
from aiokafka import AIOKafkaProducer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from spark_servers import connect_server

from gazette_platform.client import AsyncClient, ClientConfig
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalChange, JournalSpec
from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.waiting import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
CORE, ALL = "localhost/gazette:core", "localhost/gazette:all"
BYTES_MAX = {CORE: 250_000_000, ALL: 1_000_000_000}
USER = 65532
ENV = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
JOURNAL = "image/events"
SPEC = JournalSpec(
    JOURNAL,
    1,
    fragment=FragmentSpec(
        length=1 << 20,
        codec=CompressionCodec.NONE,
        stores=("file:///",),
        refresh_interval_ns=60 * 10**9,
    ),
)

pytestmark = pytest.mark.timeout(1800)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run(*command):
    """Run a command, and return what it prints."""
    done = subprocess.run(
        command, env=ENV, capture_output=True, text=True, check=False, timeout=patient(1700)
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def made(target):
    """Build an image. Returns: what buildah says of it."""
    for program in ("buildah", "debootstrap", "strip"):
        assert shutil.which(program), (
            f"{program} is missing; tools/check_needs.py says what to install"
        )
    run(str(ROOT / "tools" / "make_image"), target)
    return json.loads(run("buildah", "inspect", "--type", "image", f"localhost/gazette:{target}"))


@contextlib.contextmanager
def mounted(tag):
    """The file system of a container of the image."""
    container = run("buildah", "from", tag)
    try:
        yield Path(run("buildah", "mount", container))
    finally:
        run("buildah", "rm", container)


@pytest.fixture(scope="module")
def image():
    return made("core")


@pytest.fixture(scope="module")
def root_folder(image):
    with mounted(CORE) as folder:
        yield folder


@pytest.fixture(scope="module")
def image_of_all():
    return made("all")


@pytest.fixture(scope="module")
def root_folder_of_all(image_of_all):
    with mounted(ALL) as folder:
        yield folder


# What a runtime of containers does, by programs that each Debian has: the root folder, the spool, fragments, a user, and
# the command to run.
CONTAIN = """
root=$1 spool=$2 fragments=$3 user=$4; shift 4
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$spool" "$root/var/spool/gazette"
mount --bind "$fragments" "$root/mnt"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
exec setpriv --no-new-privs chroot --userspec="$user" "$root" "$@"
"""


class Contained:
    """A process in a container whose file system is read-only, as a user without rights."""

    def __init__(self, folder, root_folder, image, *command, **env):
        self.folder, self.spool, self.fragments = folder, folder / "spool", folder / "fragments"
        for owned in (self.spool, self.fragments):
            owned.mkdir(parents=True, exist_ok=True)
            os.chown(owned, USER, USER)
        config = image["Docker"]["config"]
        self.env = dict(pair.split("=", 1) for pair in config["Env"]) | env
        self.command = [*config["Entrypoint"], *(command or config["Cmd"])]
        self.root_folder = root_folder

    def start(self, stdout=None):
        """Run the command as PID 1 of namespaces of its own, on the network of this machine."""
        unshared = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
        folders = map(str, (self.root_folder, self.spool, self.fragments))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*unshared, "sh", "-ec", CONTAIN, "sh", *folders, f"{USER}:{USER}", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=log,
                env=self.env,
            )

    def printed(self):
        """Run to the end. Returns: what it printed."""
        self.start(subprocess.PIPE)
        text, _ = self.process.communicate(timeout=patient(120))
        assert self.process.returncode == 0, self.text()
        return text.decode().strip()

    def kill(self, number):
        """Send a signal to PID 1 of the container."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), number)

    def text(self):
        return (self.folder / "log").read_text()

    def stop(self):
        if self.process.poll() is None:
            self.kill(signal.SIGKILL)
            self.process.wait(20)


class ContainedBroker(Contained):
    """The command of the image."""

    def __init__(self, folder, root_folder, image, etcd, **more):
        self.port, self.http_port = free_port(), free_port()
        env = {
            "ETCD_ADDRESS": etcd,
            "ETCD_PREFIX": "/image-test",
            "ETCD_LEASE_TTL": "2s",
            "BROKER_HOST": "127.0.0.1",
            "BROKER_HTTP_HOST": "127.0.0.1",
            "BROKER_PORT": str(self.port),
            "BROKER_HTTP_PORT": str(self.http_port),
            "BROKER_ID": "image-broker",
            "BROKER_FILE_ROOT": "/mnt",
            "LOG_LEVEL": "info",
        }
        super().__init__(folder, root_folder, image, **env, **more)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self):
        """Whether the broker says that it serves."""
        url = f"http://127.0.0.1:{self.http_port}/debug/ready"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except OSError:
            return False


@pytest.fixture
def contained(tmp_path, root_folder, image, etcd_binary):
    with EtcdServer(etcd_binary) as etcd:
        broker = ContainedBroker(tmp_path / "image", root_folder, image, etcd.endpoint)
        broker.start()
        yield broker
        broker.stop()


def check_image(image, tag):
    config = image["Docker"]["config"]
    assert config["User"] == f"{USER}:{USER}"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"] == ["CMD", "gazette-ready"]
    assert config["Labels"]["org.opencontainers.image.revision"] == run("git", "rev-parse", "HEAD")
    (size,) = {
        each["size"]
        for each in json.loads(run("buildah", "images", "--json", tag))
        if tag in each["names"]
    }
    number, unit = size.split()
    print(f"image: {tag} {size}")
    assert float(number) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[unit] <= BYTES_MAX[tag]


def unloadable(library):
    """Whether the loader refuses a library, because a segment is at another place of its page than in the file."""
    content = library.read_bytes()
    if not content.startswith(b"\x7fELF"):
        return False
    (begin,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for number in range(count):
        kind, offset, address, align = struct.unpack_from(
            "<I4xQQ24xQ", content, begin + number * size
        )
        if kind == 1 and (address - offset) % align:
            return True
    return False


def check_files(root_folder):
    libraries = list((root_folder / "opt/gazette").rglob("*.so*"))
    assert len(libraries) > 20
    assert [each for each in libraries if unloadable(each)] == []
    for program in ("gcc", "cc", "make", "git", "pip", "pip3", "uv"):
        assert not list(root_folder.glob(f"usr/bin/{program}")), program


def test_image_is_small_and_not_root(image, root_folder):
    check_image(image, CORE)
    check_files(root_folder)


def test_commands_explain_themselves(image, root_folder, tmp_path):
    """Help is Markdown, which needs some of the highlighting that the image has not."""
    for number, command in enumerate((("gazctl", "journals", "append"), ("gazette", "serve"))):
        folder = tmp_path / str(number)
        text = Contained(folder, root_folder, image, *command, "--help").printed()
        assert f"Usage: {' '.join(command)}" in text


async def test_broker_serves_drains_and_keeps_its_spool_over_a_kill(contained):
    config = ClientConfig(address=contained.address)
    await ready(contained)
    async with AsyncClient(config) as client:
        await client.apply([JournalChange(SPEC)])
        await client.append(JOURNAL, b"before the kill\n")
        contained.kill(signal.SIGKILL)
        await asyncio.to_thread(contained.process.wait, patient(20))
        assert not list(contained.fragments.rglob("*.raw"))
        contained.start()
        await ready(contained)
        await client.append(JOURNAL, b"after it\n")
        contained.kill(signal.SIGTERM)
        code = await asyncio.to_thread(contained.process.wait, patient(60))
    assert code == 0, contained.text()
    stored = b"".join(path.read_bytes() for path in sorted(contained.fragments.rglob("*.raw")))
    assert stored == b"before the kill\nafter it\n"


async def ready(contained):
    await eventually(
        lambda: asyncio.to_thread(contained.is_ready),
        timeout_s=patient(60),
        what="the broker serves",
    )


# ------------------------------------------------------------------ all


def test_image_of_all_is_small_and_not_root(image_of_all, root_folder_of_all):
    check_image(image_of_all, ALL)
    check_files(root_folder_of_all)


# One of each extra, by what our code imports of it.
EXTRAS = """
import apsw, dagster_graphql, dagster_k8s, dagster_postgres, dagster_pyspark, dagster_webserver, duckdb, fastavro, obstore
import opentelemetry.trace, pandas, psycopg, pyarrow.dataset, pyarrow.parquet, pyiceberg.catalog.hive, pyiceberg.catalog.sql
import pymysql, rocksdict, sqlglot, trino
from azure.storage.blob import BlobServiceClient
from google.cloud import storage
with rocksdict.Rdict("/tmp/rocks") as state:
    state["a"] = pyarrow.table({"n": [1, 2]}).to_pandas()["n"].sum()
    print(state["a"] + duckdb.sql("SELECT 4").fetchone()[0] + len(fastavro.parse_schema("string")))
"""


def test_all_extras_are_at_hand(image_of_all, root_folder_of_all, tmp_path):
    found = Contained(tmp_path / "c", root_folder_of_all, image_of_all, "python3", "-c", EXTRAS)
    assert found.printed() == "13"


async def test_sql_is_answered_in_the_image(contained, image_of_all, root_folder_of_all, tmp_path):
    await ready(contained)
    async with AsyncClient(ClientConfig(address=contained.address)) as client:
        await client.apply([JournalChange(SPEC)])
        await client.append(JOURNAL, b"".join(b'{"n":%d}\n' % n for n in range(10)))
    query = f"SELECT sum(n) AS total FROM journal('{JOURNAL}')"
    command = ("gazctl", "sql", query, "-o", "json")
    env = {"BROKER_ADDRESS": contained.address}
    asked = Contained(tmp_path / "sql", root_folder_of_all, image_of_all, *command, **env)
    assert json.loads(await asyncio.to_thread(asked.printed)) == {"total": 45}


async def test_broker_of_all_serves_clients_of_kafka(
    image_of_all, root_folder_of_all, tmp_path, etcd_binary
):
    """With a registry of schemas: so each package of the extra is at hand."""
    port, registry = free_port(), free_port()
    more = {
        "KAFKA_PORT": str(port),
        "KAFKA_REGISTRY_PORT": str(registry),
        "KAFKA_AUTO_CREATE": "true",
        "KAFKA_REPLICATION": "1",
        "KAFKA_STORE": "file:///",
    }
    with EtcdServer(etcd_binary) as etcd:
        made = (tmp_path / "kafka", root_folder_of_all, image_of_all, etcd.endpoint)
        broker = ContainedBroker(*made, **more)
        broker.start()
        try:
            await ready(broker)
            producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{port}")
            await producer.start()
            try:
                sent = await producer.send_and_wait("orders", b'{"of": "Kafka"}')
            finally:
                await producer.stop()
            assert sent.offset > 0  # it counts bytes
            asked = f"http://127.0.0.1:{registry}/subjects"
            assert await asyncio.to_thread(content_of, asked) == b"[]"
        finally:
            broker.stop()


def content_of(url):
    with urllib.request.urlopen(url, timeout=patient(10)) as answer:
        return answer.read()


async def test_dagster_serves_our_definitions(image_of_all, root_folder_of_all, tmp_path):
    """As a code server of Dagster's chart, with the arguments of deploy/helm/dagster-values.yaml."""
    tables = tmp_path / "dagster" / "fragments"  # at /mnt
    tables.mkdir(parents=True)
    (tables / "orders.yaml").write_text(
        "name: shop.orders\nselector: name:prefix=orders/\nformat: json\ncolumns: [{name: n, type: bigint}]\n"
    )
    port = free_port()
    module = "gazette_platform.definitions"  # if it cannot be loaded, the server ends
    arguments = ("-h", "127.0.0.1", "-p", str(port), "--module-name", module)
    env = {
        "GAZETTE_BROKER_ADDRESS": "http://127.0.0.1:1",
        "GAZETTE_METASTORE_URI": "thrift://127.0.0.1:1",
        "GAZETTE_SPARK_MASTER": "sc://127.0.0.1:1",
        "GAZETTE_ICEBERG_JAR": "provided",
        "GAZETTE_TABLES": "/mnt",
        "GAZETTE_LAKE_STORE": "s3://lake/raw/?region=eu-central-1",
        "GAZETTE_WAREHOUSE": "s3://lake/warehouse",
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
    made = (tmp_path / "dagster", root_folder_of_all, image_of_all)
    server = Contained(*made, "dagster", "api", "grpc", *arguments, **env)
    server.start()
    try:
        await eventually(
            lambda: asyncio.to_thread(serves, port, server),
            timeout_s=patient(90),
            what="the code server answers",
        )
    finally:
        server.stop()


def serves(port, server):
    """Ask as the probe of Dagster's chart does."""
    assert server.process.poll() is None, server.text()
    request = health_pb2.HealthCheckRequest(service="DagsterApi")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
        except grpc.RpcError:
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.spark
def test_spark_connect_is_asked_without_a_jvm(image_of_all, root_folder_of_all, tmp_path):
    program = (
        "import os\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.remote(os.environ['URL']).getOrCreate()\n"
        "print(spark.range(10).selectExpr('sum(id) AS s').toPandas()['s'][0])"
    )
    folder = tmp_path / "server"
    folder.mkdir()
    with connect_server(folder, {}) as url:
        command = ("python3", "-c", program)
        asked = Contained(tmp_path / "asked", root_folder_of_all, image_of_all, *command, URL=url)
        assert asked.printed() == "45"
