"""Trino as a component: one node that is coordinator and worker, on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.embedded import tools
from gazette_platform.embedded.component import Component
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NAME", "trino_component", "write_configuration"]

NAME = "trino"

_HOST = "127.0.0.1"
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
_CONFIG = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
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
node.bind-ip=127.0.0.1
node.internal-address=127.0.0.1
"""
# Nothing of what changes outside Trino is cached: a partition that was just added, and a fragment
# that was just persisted into a known partition, are seen by the next query.
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
hive.iceberg-catalog-name=iceberg
fs.hadoop.enabled=true
"""
_ICEBERG = """\
connector.name=iceberg
iceberg.catalog.type=hive_metastore
iceberg.hive-catalog-name=hive
iceberg.expire-snapshots.min-retention=0s
iceberg.remove-orphan-files.min-retention=0s
hive.metastore.uri=thrift://{metastore}
hive.metastore.thrift.client.read-timeout=60s
fs.hadoop.enabled=true
"""


def write_configuration(etc: Path, *, port: int, data_dir: Path, metastore: str) -> None:
    """Write Trino's configuration folder, over what is there.

    Args: metastore: ``host:port``; empty for no catalogs of the lake.
    """
    catalogs = etc / "catalog"
    catalogs.mkdir(parents=True, exist_ok=True)
    for stale in catalogs.glob("*.properties"):
        stale.unlink()
    files = {
        "jvm.config": _JVM_CONFIG,
        "config.properties": _CONFIG.format(port=port),
        "node.properties": _NODE.format(data_dir=data_dir),
        "log.properties": "io.trino=WARN\nio.airlift=WARN\nBootstrap=WARN\n",
        "catalog/tpch.properties": "connector.name=tpch\n",
    }
    if metastore:
        files["catalog/hive.properties"] = _HIVE.format(metastore=metastore)
        files["catalog/iceberg.properties"] = _ICEBERG.format(metastore=metastore)
    for name, text in files.items():
        (etc / name).write_text(text, "utf-8")


def trino_component(folder: Path, *, port: int, metastore: str, uses: tuple[str, ...]) -> Component:
    """Trino with its state in `folder`; its tools are installed and its configuration written.

    Args: port: of HTTP, on 127.0.0.1. metastore: ``host:port``, or empty. uses: what it calls.
    """
    home = tools.trino()
    etc = folder / "etc"
    data_dir = folder / "data"
    data_dir.mkdir(parents=True, exist_ok=True)
    write_configuration(etc, port=port, data_dir=data_dir, metastore=metastore)
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
    query = "SHOW SCHEMAS FROM hive" if metastore else "SELECT 1"
    return Component(
        name=NAME,
        command=command,
        uses=uses,
        ports=(port,),
        folder=folder,
        ready=lambda: _answers(port, query),
        start_timeout_s=300.0,
        stop_timeout_s=30.0,
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
        host=_HOST, port=port, user="gazette", max_attempts=1, request_timeout=_QUERY_TIMEOUT_S
    )
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        return bool(cursor.fetchall())
    except (exceptions.Error, exceptions.TrinoConnectionError, OSError):
        return False
    finally:
        connection.close()
