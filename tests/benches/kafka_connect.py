"""Kafka Connect, which a test starts with connectors, stops, and starts again: standalone and distributed workers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request

from kafka_jars import jars_of

from gazette_platform.platform import tools
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.waiting import patient

_END_S = 60.0
TOPICS = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
"""Those of distributed workers, which make them."""


def plugin_folder(folder, name):
    """A folder for Connect that has one set of jars as a plugin."""
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / name).symlink_to(jars_of(name))
    return plugins


def _properties(file, settings):
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


class _Worker:
    """One worker.

    Args:
        folder: of its files.
        servers: of Kafka.
        program: its class.
        settings: its own.
        connectors: the settings of each that it begins with.
    """

    def __init__(self, folder, servers, program, settings, *connectors):
        self._url = f"http://127.0.0.1:{choose_ports(['connect'])['connect']}"
        worker = {
            "bootstrap.servers": servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.flush.interval.ms": "500",
            "listeners": self._url,
            **settings,
        }
        files = [("worker", worker), *((each["name"], each) for each in connectors)]
        self._command = [
            tools.java(21) / "bin" / "java",
            *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{jars_of('apache')}/*"),
            f"org.apache.kafka.connect.cli.{program}",
            *(_properties(folder / f"{name}.properties", settings) for name, settings in files),
        ]
        self.log = folder / "connect.log"

    @contextlib.contextmanager
    def running(self):
        """It runs, and is stopped in good order at the end."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, "CLASSPATH": ""}
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(patient(_END_S))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


class Standalone(_Worker):
    """A worker with its connectors and its file of offsets.

    Args:
        folder: of its files.
        servers: of Kafka.
        connectors: the settings of each.
        plugins: a folder with connectors that Connect has not itself.
    """

    def __init__(self, folder, servers, *connectors, plugins=None):
        settings = {"offset.storage.file.filename": folder / "offsets"}
        if plugins is not None:
            settings["plugin.path"] = plugins
        super().__init__(folder, servers, "ConnectStandalone", settings, *connectors)


class Distributed(_Worker):
    """A worker that keeps everything in `TOPICS`.

    Args:
        folder: of its properties and log.
        servers: of Kafka.
    """

    def __init__(self, folder, servers):
        folder.mkdir()
        settings = {"group.id": "connect", "offset.storage.partitions": 2}
        settings["status.storage.partitions"] = 1
        # Else the next worker may wait for the former.
        settings["scheduled.rebalance.max.delay.ms"] = 0
        for kind, topic in TOPICS.items():
            settings[f"{kind}.storage.topic"] = topic
            settings[f"{kind}.storage.replication.factor"] = 1
        super().__init__(folder, servers, "ConnectDistributed", settings)

    def configure(self, connector):
        """Make a connector, or change it. Raises: OSError: the worker is not ready."""
        path, body = f"connectors/{connector['name']}/config", json.dumps(connector, default=str)
        self._ask(path, method="PUT", data=body.encode())

    def states(self):
        """The state of each connector and of its tasks. Raises: OSError: the worker is not ready."""
        found = self._ask("connectors?expand=status")
        return {
            name: [one["status"]["connector"]["state"]]
            + [task["state"] for task in one["status"]["tasks"]]
            for name, one in found.items()
        }

    def _ask(self, path, **options):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", headers=headers, **options)
        with urllib.request.urlopen(request, timeout=patient(_END_S)) as answer:
            return json.load(answer)
