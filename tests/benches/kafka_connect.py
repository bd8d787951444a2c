"""Kafka Connect, which a test starts with connectors, stops, and starts again."""

from __future__ import annotations

import contextlib
import os
import subprocess

from kafka_jars import jars_of

from gazette_platform.platform import tools
from gazette_platform.platform.component import choose_ports
from gazette_platform.testing.waiting import patient

_END_S = 60.0


def plugin_folder(folder, name):
    """A folder for Connect that has one set of jars as a plugin."""
    plugins = folder / "plugins"
    plugins.mkdir()
    (plugins / name).symlink_to(jars_of(name))
    return plugins


def _properties(file, settings):
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


class Standalone:
    """One worker of Kafka Connect, with its connectors and its file of offsets.

    Args:
        folder: of its files.
        servers: of Kafka.
        connectors: the settings of each.
        plugins: a folder with connectors that Connect has not itself.
    """

    def __init__(self, folder, servers, *connectors, plugins=None):
        worker = {
            "bootstrap.servers": servers,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": folder / "offsets",
            "offset.flush.interval.ms": "500",
            "listeners": f"http://127.0.0.1:{choose_ports(['connect'])['connect']}",
        }
        if plugins is not None:
            worker["plugin.path"] = plugins
        files = [("worker", worker), *((each["name"], each) for each in connectors)]
        self._command = [
            tools.java(21) / "bin" / "java",
            *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{jars_of('apache')}/*"),
            "org.apache.kafka.connect.cli.ConnectStandalone",
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
