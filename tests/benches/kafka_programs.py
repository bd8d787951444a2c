"""Programs of `tests/interop/kafka`, which check a gateway with clients of Kafka in other languages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from gazette_platform.platform import tools
from gazette_platform.testing.waiting import patient

SOURCES = Path(__file__).parents[1] / "interop" / "kafka"
CHECKS = {
    "create_topic": "create, list and describe topics and their configs",
    "produce": "produce 1,000 records with keys and headers",
    "consume": "consume them in a group from the beginning",
    "go_on": "commit; the next consumer of the group goes on there",
    "seek": "seek to the offset of a record, and get it again",
    "list_offsets": "find the first and last offset, and one by time",
    "idempotent": "idempotent producer, in order",
    "transactions": "transactions: commit, abort, `read_committed`",
    "offsets_in_transaction": "commit a group's offsets in a transaction",
    "describe_group": "list, describe and delete groups",
    "create_partitions": "add partitions",
    "delete_topic": "delete a topic",
}
_BUILD_S = 600.0
_RUN_S = 280.0


def _need(program, package):
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}, to run a client of Kafka (Debian: {package})")


def _run(command, folder, *, timeout_s, **environment):
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=patient(timeout_s),
        check=False,
        env={**os.environ, **environment},
    )


def _build(command, folder):
    done = _run(command, folder, timeout_s=_BUILD_S)
    assert done.returncode == 0, done.stderr[-4000:]


def java(folder):
    """Apache Kafka's own client. Returns: its version, command and environment."""
    _need("javac", "default-jdk-headless")
    jars = tools.kafka_java_jars()
    _build(
        ["javac", "-cp", f"{jars}/*", "-d", folder, SOURCES / "java" / "KafkaChecks.java"], folder
    )
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{folder}:{jars}/*"]
    (jar,) = jars.glob("kafka-clients-*.jar")
    version = jar.stem.removeprefix("kafka-clients-")
    return version, ["java", *options, "KafkaChecks"], {}


def _go(client, module, folder):
    _need("go", "golang-go")
    _build(["go", "build", "-o", folder / "checks", "."], SOURCES / "go")
    pinned = re.search(rf"{module} v(\S+)", (SOURCES / "go" / "go.mod").read_text())
    return pinned[1], [folder / "checks"], {"KAFKA_CLIENT": client}


def kafkajs(folder):
    """As `java`, of kafkajs."""
    _need("npm", "npm")
    modules = tools.kafkajs()
    version = json.loads((modules / "kafkajs" / "package.json").read_text())["version"]
    return version, ["node", SOURCES / "node" / "checks.js"], {"NODE_PATH": str(modules)}


def _python(package, script, folder):
    command = [sys.executable, SOURCES / "python" / script]
    return importlib.metadata.version(package), command, {}


PROGRAMS = {
    "Java": java,
    "confluent-kafka": partial(_python, "confluent-kafka", "librdkafka.py"),
    "aiokafka": partial(_python, "aiokafka", "asyncio_client.py"),
    "franz-go": partial(_go, "franz-go", "twmb/franz-go"),
    "sarama": partial(_go, "sarama", "IBM/sarama"),
    "kafkajs": kafkajs,
}


def outcomes(program, folder, server, topic):
    """Run a client's checks. Returns: its version, the error of each check ("" if it passed), cells of its column, and its stderr."""
    version, command, environment = program(folder)
    done = _run([*command, server, topic], folder, timeout_s=_RUN_S, **environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    errors = {line["check"]: line["error"] for line in lines}
    return version, errors, [line.get("note") or "yes" for line in lines], done.stderr


def columns_of(table):
    """The columns of the table of docs/concepts/kafka.md, by client: its version, and a cell for each call."""
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    names, _, *rows = rows
    columns = zip(*(row[1:] for row in rows), strict=True)
    heads = [name.rsplit(" ", 1) for name in names[1:]]
    return {head[0]: (head[1], *cells) for head, cells in zip(heads, columns, strict=True)}


def table(columns):
    """That table, of `columns_of`."""
    columns = {name: columns[name] for name in PROGRAMS if name in columns}
    head = ["call", *(f"{name} {version}" for name, (version, *_) in columns.items())]
    rows = [head, ["---"] * len(head)]
    cells = zip(*(cells for _, *cells in columns.values()), strict=True)
    rows += [[text, *row] for text, row in zip(CHECKS.values(), cells, strict=True)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
