"""Servers of Spark for tests, each a process of its own: a standalone cluster, and Spark Connect."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lake_servers import running

from gazette_platform.platform import tools
from gazette_platform.platform.component import Component, choose_ports
from gazette_platform.platform.layout import pyspark_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["connect_server", "spark_cluster"]

_HOST = "127.0.0.1"


def _server(
    name: str,
    folder: Path,
    program: str,
    *arguments: str,
    ready: Callable[[], bool],
    memory: str = "256m",
) -> Component:
    home = pyspark_jars().parent
    return Component(
        name=name,
        command=(str(home / "bin" / program), *arguments),
        environment={
            "JAVA_HOME": str(tools.java(21)),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": memory,
            "SPARK_LOCAL_IP": _HOST,
            "PYSPARK_PYTHON": sys.executable,
        },
        folder=folder,
        ready=ready,
        # They heed SIGTERM late, and hold nothing that is to be kept.
        stop_timeout_s=1.0,
    )


@contextmanager
def spark_cluster(folder: Path, *, cores: int = 1) -> Iterator[str]:
    """A master with one worker of 1 GB. Returns: its URL."""
    ports = choose_ports(["master", "master-ui", "worker", "worker-ui"])
    url = f"spark://{_HOST}:{ports['master']}"

    def state() -> dict[str, object]:
        try:
            at = f"http://{_HOST}:{ports['master-ui']}/json/"
            with urllib.request.urlopen(at, timeout=5) as response:
                found: dict[str, object] = json.load(response)
                return found
        except (OSError, ValueError, http.client.HTTPException):
            return {}

    def server(name: str, *arguments: str, ready: Callable[[], bool]) -> Component:
        main = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
        at = ("--host", _HOST, "--port", str(ports[name]))
        ui = ("--webui-port", str(ports[f"{name}-ui"]))
        return _server(name, folder, "spark-class", main, *at, *ui, *arguments, ready=ready)

    master = server("master", ready=lambda: state().get("status") == "ALIVE")
    size = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(folder / "work"))
    worker = server("worker", *size, url, ready=lambda: state().get("aliveworkers") == 1)
    with running(master, folder / "master.log"), running(worker, folder / "worker.log"):
        yield url


@contextmanager
def connect_server(folder: Path, properties: Mapping[str, str]) -> Iterator[str]:
    """Spark Connect over a local Spark. Returns: its URL. Its log is ``connect.log`` in the folder.

    Args:
        properties: more of Spark's.
    """
    port = choose_ports(["connect"])["connect"]

    def is_ready() -> bool:
        try:
            socket.create_connection((_HOST, port), 1.0).close()
        except OSError:
            return False
        return True

    given = {
        "spark.connect.grpc.binding.address": _HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": _HOST,
        "spark.driver.bindAddress": _HOST,
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        **properties,
    }
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    server = _server(
        "connect",
        folder,
        "spark-submit",
        *("--class", main, "--master", "local[2,4]"),
        *(part for key, value in given.items() for part in ("--conf", f"{key}={value}")),
        "spark-internal",
        ready=is_ready,
        memory="1g",
    )
    with running(server, folder / "connect.log"):
        yield f"sc://{_HOST}:{port}"
