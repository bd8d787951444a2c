"""Servers of the embedded platform, one at a time, for tests: real metastore, Trino and Spark."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gazette_platform import lake
from gazette_platform.errors import SetupError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.engines.spark import keeping_interrupt, open_session, start_session
from gazette_platform.lake.settings import S3Access
from gazette_platform.platform import tools
from gazette_platform.platform.component import choose_ports
from gazette_platform.platform.servers import metastore_component, trino_components
from gazette_platform.testing.waiting import TooLate, patient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from gazette_platform.platform.component import Component

__all__ = [
    "configured_spark_session",
    "ending",
    "lake_servers",
    "plain_spark_session",
    "running",
    "spark_session",
]

_LOG_LINES = 40


@contextmanager
def running(component: Component, log: Path) -> Iterator[None]:
    """Start a component and wait until it is ready; stop it, and its children, at the end.

    Raises: SetupError: it ended early, or (`TooLate`) was not ready in time; with the end of its log.
    """
    if component.folder is not None:
        component.folder.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            component.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=component.folder,
            env={**os.environ, **component.environment},
            start_new_session=True,
        )
    try:
        limit_s = patient(component.start_timeout_s)
        deadline = time.monotonic() + limit_s
        while not component.ready():
            is_late = time.monotonic() > deadline
            if process.poll() is not None or is_late:
                tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:])
                if process.poll() is not None:
                    raise SetupError(f"{component.name} ended with {process.returncode}:\n{tail}")
                raise TooLate(f"{component.name} not ready in {limit_s:g} s:\n{tail}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(patient(component.stop_timeout_s))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def lake_servers(
    folder: Path,
    *,
    trino: bool = True,
    store: str = "",
    keys: Mapping[str, str] | None = None,
) -> Iterator[LakeSettings]:
    """A Hive Metastore and, unless left out, a Trino over it, with empty state in `folder`.

    Args:
        store: an ``s3://`` store that locations may be in, besides folders.
        keys: variables with its credentials.

    Returns: their settings; store ``file:///`` is ``folder/fragments``.
    """
    access = S3Access.of(store, {}) if store else None
    folder.mkdir(parents=True, exist_ok=True)
    ports = choose_ports(["metastore", "trino"])
    warehouse = folder / "warehouse"
    warehouse.mkdir(exist_ok=True)
    metastore = metastore_component(
        folder / "metastore",
        port=ports["metastore"],
        warehouse=warehouse.as_uri(),
        s3=access,
        environment=keys,
    )
    settings = LakeSettings(
        metastore=f"thrift://127.0.0.1:{ports['metastore']}",
        trino=f"http://127.0.0.1:{ports['trino']}" if trino else "",
        tables=str(folder / "tables"),
        warehouse=warehouse.as_uri(),
        iceberg_jar=str(tools.iceberg_spark_runtime()),
        store_roots={"file:///": f"file://{folder}/fragments/"},
        store=store,
        s3_jars=str(tools.s3_jars()) if store else "",
    )
    with running(metastore, folder / "metastore.log"):
        if not trino:
            yield settings
            return
        guard, server = trino_components(
            folder / "trino",
            port=ports["trino"],
            metastore=f"127.0.0.1:{ports['metastore']}",
            uses=(),
            s3=access,
            jvm_options=os.environ.get("GAZETTE_TRINO_JVM_OPTIONS", "").split(),
            environment=keys,
        )
        # So that tests can have it look at catalogs of theirs: it takes long to start.
        config = folder / "trino" / "etc" / "config.properties"
        told = config.read_text("utf-8").replace("management=static", "management=dynamic")
        config.write_text(told, "utf-8")
        with running(guard, folder / "guard.log"), running(server, folder / "trino.log"):
            yield settings


class RestartableMetastore:
    """A Hive Metastore over folders, that a test may restart at its address; what it holds stays.

    Args:
        folder: for its state, and the warehouse.
        properties: of Hive, over its own.
    """

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        warehouse = folder / "warehouse"
        warehouse.mkdir(exist_ok=True)
        port = choose_ports(["metastore"])["metastore"]
        component = metastore_component(
            folder / "metastore", port=port, warehouse=warehouse.as_uri()
        )
        told = (f"--set={name}={value}" for name, value in (properties or {}).items())
        self._component = replace(component, command=(*component.command, *told))
        self._log = folder / "metastore.log"
        self._stack = ExitStack()
        self.settings = LakeSettings(
            metastore=f"thrift://127.0.0.1:{port}",
            warehouse=warehouse.as_uri(),
            iceberg_jar=str(tools.iceberg_spark_runtime()),
        )

    def __enter__(self) -> Self:
        self._stack.enter_context(running(self._component, self._log))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart(self) -> None:
        """Stop it, and start it again. Raises: SetupError: it does not come back."""
        self._stack.close()
        self._stack.enter_context(running(self._component, self._log))


@contextmanager
def spark_session(settings: LakeSettings) -> Iterator[SparkSession]:
    """A Spark session on the lake; its JVM ends with the scope."""
    os.environ["JAVA_HOME"] = str(tools.java(21))
    with keeping_interrupt(), ending(start_session(settings)) as session:
        yield session


@contextmanager
def configured_spark_session(configuration: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark session of just this configuration; its JVM ends with the scope."""
    os.environ["JAVA_HOME"] = str(tools.java(21))
    with keeping_interrupt(), ending(open_session(configuration)) as session:
        yield session


@contextmanager
def plain_spark_session(**properties: str) -> Iterator[SparkSession]:
    """A Spark session of two threads that knows of no lake; its JVM ends with the scope."""
    logging = Path(lake.__file__).parent / "engines" / "log4j2.properties"
    configuration = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # As of servers of the platform: what runs for a minute is not worth a better compiler.
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile=file:{logging} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
    }
    with configured_spark_session(configuration | properties) as session:
        yield session


def _end_callbacks(gateway: Any) -> None:
    """Shut down the sockets over which the JVM calls back, as it does for `foreachBatch`.

    Py4J closes their streams first, which waits for ever while a thread of its own reads from them.
    """
    server = gateway.get_callback_server()
    for connection in [] if server is None else list(server.connections):
        with suppress(OSError, AttributeError):  # it is closed already
            connection.socket.shutdown(socket.SHUT_RDWR)


@contextmanager
def ending(session: SparkSession) -> Iterator[SparkSession]:
    """Stop the session, and its JVM."""
    from pyspark import SparkContext

    try:
        yield session
    finally:
        session.stop()
        gateway = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        if gateway is not None:
            _end_callbacks(gateway)
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(20)
        # Sockets over which rows were collected are left to the garbage collector; its warnings
        # would else hit whatever runs later.
        del gateway, session
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()
