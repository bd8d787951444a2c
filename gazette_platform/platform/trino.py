"""Trino as two components: one node that is coordinator and worker, and the guard before it.

It serves whoever reaches it, and every page that a browser shows could. So it hides on loopback, and
the guard is where it is known to be; see `programs.guard`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, final

from gazette_platform.errors import SetupError
from gazette_platform.platform import tools
from gazette_platform.platform.component import HOST, Component, answers_tcp, hidden_address
from gazette_platform.platform.programs.guard import GUARDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gazette_platform.lake.catalogs import CatalogLogin, IcebergCatalog
    from gazette_platform.lake.s3 import S3Access

NAME = "trino"
GUARD = "trino-guard"

_QUERY_TIMEOUT_S = 10.0
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
        name=NAME,
        command=command,
        uses=(GUARD, *uses),
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
        name=GUARD,
        command=(
            sys.executable,
            "-m",
            "gazette_platform.platform.programs.guard",
            f"--name={NAME}",
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
        host=HOST, port=port, user="gazette", max_attempts=1, request_timeout=_QUERY_TIMEOUT_S
    )
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        return bool(cursor.fetchall())
    except (exceptions.Error, exceptions.HttpError, OSError):
        return False
    finally:
        connection.close()
