"""etcd, brokers, the metastore, the store, Trino and the writer of typed tables: how each is started, and when it is ready.

Trino checks no origin of requests, so it binds a hidden address, and a guard is where it is known to be; see
`web_guard`.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self, final

from gazette_platform.errors import SetupError
from gazette_platform.platform import tools
from gazette_platform.platform.component import (
    HOST,
    Component,
    answers_http,
    answers_tcp,
    hidden_address,
)
from gazette_platform.platform.layout import pyspark_jars
from gazette_platform.platform.web_guard import GUARDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gazette_platform.lake.catalog_settings import CatalogLogin, IcebergCatalog
    from gazette_platform.lake.settings import S3Access
    from gazette_platform.platform.layout import PlatformDir

ETCD = "etcd"


def etcd_component(folder: Path, *, port: int, peer_port: int) -> Component:
    """Etcd with its data in `folder`; the binary is installed if need be."""
    url = f"http://{HOST}:{port}"
    peer = f"http://{HOST}:{peer_port}"
    data_dir = folder / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    data_dir.chmod(0o700)  # else etcd warns at every start
    command = (
        str(tools.etcd()),
        "--name=gazette",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        # An existing data folder keeps the peer URL it was made with; only the name has to match.
        f"--initial-cluster=gazette={peer}",
        "--initial-cluster-token=gazette-embedded",
        # etcd takes JSON over HTTP at its port otherwise, also from web pages, which cannot speak
        # gRPC. What is left to them is /health, /version and /metrics.
        "--enable-grpc-gateway=false",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
    )
    return Component(
        name=ETCD,
        command=command,
        ports=(port, peer_port),
        ready=lambda: answers_http(f"{url}/health"),
        start_timeout_s=30.0,
        stop_timeout_s=10.0,
    )


# Enough for three replicas, each in a zone of its own.
_ZONES = ("zone-a", "zone-b", "zone-c")

# The whole platform stops, so no other broker will take over, and there is no use in waiting for long.
_DRAIN_TIMEOUT_S = 20


def broker_component(
    layout: PlatformDir,
    *,
    name: str,
    number: int,
    of: int,
    port: int,
    http_port: int,
    etcd: str,
    requires: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
    kafka_port: int = 0,
    registry_port: int = 0,
    store: str = "",
) -> Component:
    """One broker.

    A lone one is in the zone that clients are in by default; several are spread over three, and
    relieve each other when one ends.

    Args:
        name: of the component, and id of the broker.
        number: of the broker, from 1, `of` so many.
        etcd: its address, as a URL.
        environment: variables with credentials of stores, if not those of this process.
        kafka_port: for clients of Kafka; 0: none.
        registry_port: for their schemas; 0: none.
        store: of the platform, where topics go; empty: a folder.
    """
    zone = "local" if of == 1 else _ZONES[(number - 1) % len(_ZONES)]
    spool = layout.spool / name
    spool.mkdir(parents=True, exist_ok=True)
    command: tuple[str, ...] = (
        sys.executable,
        "-m",
        "gazette_platform.cli.gazette",
        "serve",
        f"--broker.zone={zone}",
        f"--broker.id={name}",
        f"--broker.host={HOST}",
        f"--broker.port={port}",
        f"--broker.http-host={HOST}",
        f"--broker.http-port={http_port}",
        f"--broker.file-root={layout.fragments}",
        f"--broker.spool-dir={spool}",
        f"--broker.drain-timeout={_DRAIN_TIMEOUT_S}s",
        f"--etcd.address={etcd}",
        "--etcd.prefix=/gazette/cluster",
        "--etcd.lease=20s",
        "--log.level=info",
    )
    ports: tuple[int, ...] = (port, http_port)
    if kafka_port:
        ports += (kafka_port,)
        command += (
            f"--kafka.port={kafka_port}",
            f"--kafka.host={HOST}",
            f"--kafka.store={store or 'file:///'}",
            "--kafka.auto-create",
        )
    if registry_port:
        ports += (registry_port,)
        command += (f"--kafka.registry-port={registry_port}",)
    return Component(
        name=name,
        command=command,
        requires=requires,
        # Its console asks for the tables of the lake.
        environment={"GAZETTE_ENDPOINTS": str(layout.endpoints), **(environment or {})},
        ports=ports,
        ready=lambda: (
            answers_http(f"http://{HOST}:{http_port}/debug/ready")
            and (not kafka_port or answers_tcp(HOST, kafka_port))
        ),
        start_timeout_s=60.0,
        stop_timeout_s=_DRAIN_TIMEOUT_S + 25.0,
    )


METASTORE = "metastore"


def metastore_component(
    folder: Path,
    *,
    port: int,
    warehouse: str,
    s3: S3Access | None = None,
    environment: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
) -> Component:
    """A metastore with its database in `folder`.

    Args:
        warehouse: location of databases that name none, a URL.
        s3: the store that locations may be in, besides folders.
        environment: variables with its credentials, if not those of this process.
        requires: what must be up before.
    """
    pyspark_jars()  # says what to install if they are missing
    command: tuple[str, ...] = (
        sys.executable,
        "-m",
        "gazette_platform.platform.metastore",
        f"--host={HOST}",
        f"--port={port}",
        f"--dir={folder}",
        f"--warehouse={warehouse}",
        f"--java-home={tools.java(21)}",
    )
    if s3 is not None:
        command += (f"--jars={tools.s3_jars()}",)
        command += tuple(f"--set={name}={value}" for name, value in s3.hadoop().items())
    return Component(
        name=METASTORE,
        command=command,
        ports=(port,),
        environment=dict(environment or {}),
        requires=requires,
        # It binds after its schema is made, and answers from then on.
        ready=lambda: answers_tcp(HOST, port),
        stop_timeout_s=20.0,
    )


S3: Final = "s3"
OWN_STORE: Final = "s3"
"""What ``--store`` says for a server of the platform's own."""
_BUCKET: Final = "gazette"
_REGION: Final = "us-east-1"


def own_store(port: int) -> str:
    """URL of the fragment store on the platform's own server."""
    return f"s3://{_BUCKET}/?endpoint=http://{HOST}:{port}&region={_REGION}"


def read_keys(folder: Path) -> dict[str, str]:
    """Variables that give AWS tools the keys of the server in `folder`, made if there are none.

    Raises: SetupError: the file with them was changed.
    """
    path = folder / "keys.json"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(file, "w") as stream:
            json.dump(
                {"access": f"gazette-{secrets.token_hex(4)}", "secret": secrets.token_urlsafe(24)},
                stream,
            )
    try:
        keys = json.loads(path.read_text("utf-8"))
        return {
            "AWS_ACCESS_KEY_ID": str(keys["access"]),
            "AWS_SECRET_ACCESS_KEY": str(keys["secret"]),
            "AWS_REGION": _REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{path} does not hold the keys of the S3 server: {error!r} (remove it, and the server "
            "gets new ones)"
        ) from error


def s3_component(folder: Path, *, port: int) -> Component:
    """A server with its objects in `folder`, and one bucket.

    Raises: SetupError: it cannot be built: Go is missing.
    """
    objects, attributes, users = (folder / name for name in ("objects", "attributes", "users"))
    for each in (objects / _BUCKET, attributes, users):
        each.mkdir(parents=True, exist_ok=True)
    keys = read_keys(folder)
    command = (
        str(tools.s3_server()),
        "--quiet",
        "--port",
        f"{HOST}:{port}",
        "--iam-dir",
        str(users),
        "posix",
        # Not every file system keeps extended attributes, so they lie in files of their own.
        "--sidecar",
        str(attributes),
        str(objects),
    )
    return Component(
        name=S3,
        command=command,
        ports=(port,),
        environment={
            "ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
        },
        ready=lambda: answers_tcp(HOST, port),
        start_timeout_s=60.0,
        stop_timeout_s=10.0,
    )


TYPED: Final = "typed"


def typed_component(
    layout: PlatformDir, *, environment: Mapping[str, str], requires: tuple[str, ...]
) -> Component:
    """The component. It is ready at once: until a table spec says `every` it does nothing.

    Args:
        layout: folders of the platform.
        environment: variables that let programs find the platform.
        requires: what runs call.
    """
    return Component(
        name=TYPED,
        command=(
            sys.executable,
            "-m",
            "gazette_platform.platform.typed_writer",
            str(layout.tables),
            str(layout.logs / f"{TYPED}.log"),
        ),
        requires=requires,
        environment=environment,
        ready=lambda: True,
        stop_timeout_s=60.0,
        restartable=True,
    )


TRINO = "trino"
TRINO_GUARD = "trino-guard"

_TRINO_TIMEOUT_S = 10.0
# One gigabyte serves the demo's tables; the query limits leave room for what Trino itself holds.
_JVM_CONFIG = """\
-server
-Xmx1g
-XX:+UseSerialGC
-XX:+ExitOnOutOfMemoryError
-XX:-OmitStackTraceInFastThrow
-XX:ReservedCodeCacheSize=256M
-XX:PerMethodRecompilationCutoff=10000
-XX:PerBytecodeRecompilationCutoff=10000
-XX:+EnableDynamicAgentLoading
-Djdk.attach.allowAttachSelf=true
-Djdk.nio.maxCachedBufferSize=2000000
-Dfile.encoding=UTF-8
"""
# The launcher shows all of node.properties on the command line, so the address is in this file.
_CONFIG = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://{host}:{port}
node.bind-ip={host}
node.internal-address={host}
query.max-memory=256MB
query.max-memory-per-node=256MB
memory.heap-headroom-per-node=200MB
web-ui.preview.enabled=false
catalog.management=static
"""
_NODE = """\
node.environment=gazette
node.id=gazette-embedded
node.data-dir={data_dir}
"""
# Nothing of what changes outside Trino is cached: a partition that was just added, and a fragment
# that was just persisted into a known partition, are seen by the next query; one whose last file was
# just pruned is empty, until the sensor drops it.
_HIVE = """\
connector.name=hive
hive.metastore.uri=thrift://{metastore}
hive.metastore.thrift.client.read-timeout=60s
hive.metastore-cache-ttl=0s
hive.metastore-cache.cache-partitions=false
hive.per-transaction-metastore-cache-maximum-size=10000
hive.security=allow-all
hive.allow-register-partition-procedure=true
hive.non-managed-table-writes-enabled=true
hive.recursive-directories=false
hive.ignore-absent-partitions=true
hive.iceberg-catalog-name=iceberg
fs.hadoop.enabled=true
"""
_ICEBERG = """\
connector.name=iceberg
iceberg.catalog.type=hive_metastore
iceberg.hive-catalog-name=hive
hive.metastore.uri=thrift://{metastore}
hive.metastore.thrift.client.read-timeout=60s
"""
# Of any catalog of Iceberg's: maintenance says itself what may go.
_ICEBERG_FILES = """\
iceberg.expire-snapshots.min-retention=0s
iceberg.remove-orphan-files.min-retention=0s
fs.hadoop.enabled=true
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCatalog:
    """A catalog of typed tables that is not the metastore."""

    name: str
    """As Trino calls it."""
    properties: Mapping[str, str]
    """Besides those of the file system. Secrets are among them by the names of variables only."""
    environment: Mapping[str, str] = field(repr=False)
    """Variables with these secrets."""

    @classmethod
    def of(cls, catalog: IcebergCatalog, login: CatalogLogin, warehouse: str) -> Self:
        """The catalog with whom it is asked by.

        Args:
            warehouse: location of new tables.

        Raises: ValidationError: Trino has no such catalogs.
        """
        properties, variables = login.trino(catalog)
        return cls(
            name=catalog.name.lower(),
            properties=catalog.trino(warehouse) | properties,
            environment=variables,
        )


def write_configuration(
    etc: Path,
    *,
    host: str,
    port: int,
    data_dir: Path,
    metastore: str,
    s3: S3Access | None = None,
    extra: Sequence[ExtraCatalog] = (),
    jvm_options: Sequence[str] = (),
) -> None:
    """Write Trino's configuration folder, over an existing one; other users cannot read it.

    Args:
        host: address to bind.
        port: of HTTP.
        metastore: ``host:port``; empty for no catalogs of the lake.
        s3: the store that locations may be in, besides folders.
        extra: catalogs besides.
        jvm_options: of its JVM; they win over ours.
    """
    catalogs = etc / "catalog"
    catalogs.mkdir(parents=True, exist_ok=True)
    etc.chmod(0o700)
    for stale in catalogs.glob("*.properties"):
        stale.unlink()
    files = {
        "jvm.config": _JVM_CONFIG + "".join(f"{option}\n" for option in jvm_options),
        "config.properties": _CONFIG.format(host=host, port=port),
        "node.properties": _NODE.format(data_dir=data_dir),
        "log.properties": "io.trino=WARN\nio.airlift=WARN\nBootstrap=WARN\n",
        "catalog/tpch.properties": "connector.name=tpch\n",
    }
    more = _lines(s3.trino() if s3 is not None else {})
    if metastore:
        files["catalog/hive.properties"] = _HIVE.format(metastore=metastore) + more
        files["catalog/iceberg.properties"] = (
            _ICEBERG.format(metastore=metastore) + _ICEBERG_FILES + more
        )
    for one in extra:
        files[f"catalog/{one.name}.properties"] = _lines(one.properties) + _ICEBERG_FILES + more
    for name, text in files.items():
        (etc / name).write_text(text, "utf-8")


def _lines(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def trino_components(
    folder: Path,
    *,
    port: int,
    metastore: str,
    uses: tuple[str, ...],
    s3: S3Access | None = None,
    extra: Sequence[ExtraCatalog] = (),
    jvm_options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[Component]:
    """The guard, and Trino with its state in `folder`; its tools are installed, its configuration written.

    Args:
        port: of 127.0.0.1, where the guard is.
        metastore: ``host:port``, or empty.
        uses: what Trino calls.
        s3: the store that locations may be in, besides folders.
        extra: catalogs besides.
        jvm_options: of its JVM; they win over ours.
        environment: variables with its credentials, if not those of this process.
    """
    home = tools.trino()
    etc = folder / "etc"
    data_dir = folder / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    host, hidden_port = hidden_address()
    write_configuration(
        etc,
        host=host,
        port=hidden_port,
        data_dir=data_dir,
        metastore=metastore,
        s3=s3,
        extra=extra,
        jvm_options=jvm_options,
    )
    command = (
        str(home / "bin" / "launcher"),
        "run",
        "--etc-dir",
        str(etc),
        "--data-dir",
        str(data_dir),
        "--jvm-dir",
        str(tools.java(25)),
    )
    # Rows of a table need a worker, which this node finds itself to be seconds after it answers
    # queries that need none.
    query = "SELECT count(*) FROM tpch.tiny.region"
    if metastore:
        query += ", hive.information_schema.schemata"
    variables = dict(environment or {})
    for one in extra:
        variables |= one.environment
    server = Component(
        name=TRINO,
        command=command,
        uses=(TRINO_GUARD, *uses),
        environment=variables,
        folder=folder,
        ready=lambda: _answers(port, query),
        start_timeout_s=300.0,
        stop_timeout_s=30.0,
    )
    return [guard_component(port=port, url=f"http://{host}:{hidden_port}"), server]


def guard_component(*, port: int, url: str) -> Component:
    """The guard on `port` of 127.0.0.1, before the server at `url`."""
    return Component(
        name=TRINO_GUARD,
        command=(
            sys.executable,
            "-m",
            "gazette_platform.platform.web_guard",
            f"--name={TRINO}",
            f"--host={HOST}",
            f"--port={port}",
        ),
        ports=(port,),
        environment={GUARDED: url},
        ready=lambda: answers_tcp(HOST, port),
        start_timeout_s=60.0,
        stop_timeout_s=10.0,
    )


def _answers(port: int, query: str) -> bool:
    # The info page says "started" seconds before queries run, so a real query decides.
    try:
        import trino  # noqa: PLC0415  an extra
        from trino import exceptions  # noqa: PLC0415  an extra
    except ImportError as error:
        raise SetupError(
            "the Trino client is not installed: install the extra `gazette-platform[all]`, "
            "or leave Trino out with --without trino"
        ) from error
    connection = trino.dbapi.connect(  # type: ignore[no-untyped-call]
        host=HOST, port=port, user="gazette", max_attempts=1, request_timeout=_TRINO_TIMEOUT_S
    )
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        return bool(cursor.fetchall())
    except (exceptions.Error, exceptions.HttpError, OSError):
        return False
    finally:
        connection.close()
