"""What users install: a wheel with its core dependencies alone, in an environment of its own.

The other tests run from the repository, where every file and every extra is at hand.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer
from gazette_platform.testing.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
# Of the extras: none of them may be needed to run a broker.
HEAVY = ["dagster", "pyspark", "pyiceberg", "pyarrow", "trino", "botocore", "obstore", "pytest"]

SPEC = """\
name: wheel/journal
replication: 1
fragment:
  length: 65536
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1m
"""


def run(*command: str | Path, cwd: Path, **fields) -> str:
    """Run to the end. Returns: what it printed; fails with all of it."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **fields)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The `bin` folder of an environment that holds the wheel and what it names."""
    folder = tmp_path_factory.mktemp("wheel")
    uv = find_uv_bin()
    environment = os.environ | {"UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never"}
    run(uv, "build", "--wheel", "--out-dir", folder, ROOT, cwd=folder, env=environment)
    (wheel,) = folder.glob("*.whl")
    locked = folder / "requirements.txt"
    run(
        uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--output-file", locked,
        cwd=ROOT, env=environment,
    )  # fmt: skip
    run(uv, "venv", "--python", sys.executable, folder / "venv", cwd=folder, env=environment)
    python = folder / "venv" / "bin" / "python"
    install = (uv, "pip", "install", "--python", python)
    run(*install, "--require-hashes", "--requirement", locked, cwd=folder, env=environment)
    run(*install, "--no-deps", wheel, cwd=folder, env=environment)
    return python.parent


def test_core_has_its_data_and_needs_no_extras(installed, tmp_path):
    program = (
        "import importlib.util as u, json, pathlib, gazette_platform as g\n"
        "home = pathlib.Path(g.__file__).parent\n"
        f"heavy = [name for name in {HEAVY!r} if u.find_spec(name)]\n"
        "data = sorted(str(p.relative_to(home)) for p in home.glob('[_c]*/**/*.*'))\n"
        "print(json.dumps([str(home), heavy, data]))"
    )
    home, heavy, data = json.loads(run(installed / "python", "-c", program, cwd=tmp_path))
    assert Path(home).is_relative_to(installed.parent)
    assert heavy == []
    assert "_hive_metastore/hive-site.xml" in data
    assert "console/static/index.html" in data
    assert "_sql/demo/spark/delays_by_arrival.sql" in data
    assert [name for name in data if name.startswith("_sql/trino/") and name.endswith(".sql")]


def test_the_wheel_serves_and_reads_a_journal(installed, etcd_binary, tmp_path):
    (tmp_path / "spec.yaml").write_text(SPEC)
    etcd = EtcdServer(etcd_binary)
    etcd.start()
    broker = BrokerServer(
        tmp_path, etcd=etcd.endpoint, prefix="/gazette/wheel", program=(str(installed / "gazette"),)
    )
    try:
        with broker:
            at = f"--broker.address={broker.address}"

            def gazctl(*arguments: str, **fields) -> str:
                command = (installed / "gazctl", "journals", *arguments, at)
                return run(*command, cwd=tmp_path, timeout=120, **fields)

            gazctl("apply", "--specs", "spec.yaml")
            gazctl("append", "-l", "name=wheel/journal", input="from a wheel\n")
            assert gazctl("read", "-l", "name=wheel/journal") == "from a wheel\n"
            assert broker.stop() == 0
        # It ended in order: all that was acknowledged is in the store.
        assert [path.suffix for path in broker.fragments.rglob("*-*-*")] == [".gz"]
    finally:
        etcd.stop()


# ------------------------------------------------------------------ traces

# What takes spans in, as OpenTelemetry's collector does: prints each with its service, name, ID and parent.
COLLECTOR = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb, trace_service_pb2_grpc as service

class Collector(service.TraceServiceServicer):
    def Export(self, request, context):
        for sent in request.resource_spans:
            (name,) = [a.value.string_value for a in sent.resource.attributes if a.key == "service.name"]
            for span in (span for scope in sent.scope_spans for span in scope.spans):
                print(name, span.name, span.span_id.hex(), span.parent_span_id.hex(), sep=",", flush=True)
        return pb.ExportTraceServiceResponse()

server = grpc.server(ThreadPoolExecutor(2))
service.add_TraceServiceServicer_to_server(Collector(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""
WRITER = """
import sys
from gazette_platform import Client, ClientConfig
with Client(ClientConfig(address=sys.argv[1])) as client:
    for _ in range(3):
        client.append("wheel/journal", b"traced\\n")
"""


@pytest.fixture(scope="module")
def traced(installed, tmp_path_factory):
    """The same environment with what the guide installs for traces, as uv.lock has it."""
    locked = tmp_path_factory.mktemp("traces") / "requirements.txt"
    export = (find_uv_bin(), "export", "--frozen", "--only-group", "traces", "--no-emit-project")
    run(*export, "--output-file", locked, cwd=ROOT)
    install = (find_uv_bin(), "pip", "install", "--python", installed / "python")
    environment = os.environ | {"UV_SYSTEM_CERTS": "1"}
    run(*install, "--require-hashes", "--requirement", locked, cwd=locked.parent, env=environment)
    return installed


@pytest.fixture
def collector(traced, tmp_path):
    """Where it listens, and the file to which it writes."""
    log = tmp_path / "spans"
    with log.open("wb") as out:
        process = subprocess.Popen([traced / "python", "-c", COLLECTOR], stdout=out)
    try:
        wait_until(lambda: log.read_text().endswith("\n"), timeout_s=30)
        yield f"http://127.0.0.1:{log.read_text().strip()}", log
    finally:
        process.kill()
        process.wait()


def test_commands_of_the_guide_trace_an_append(
    traced, collector, etcd_binary, tmp_path, monkeypatch
):
    guide = (ROOT / "docs/guides/watching.md").read_text()
    commands = dict(
        re.findall(r"^OTEL_SERVICE_NAME=(\S+) opentelemetry-instrument (\S+)", guide, re.MULTILINE)
    )
    assert commands == {"gazette-broker": "gazette", "my-writer": "python"}
    address, log = collector
    monkeypatch.setenv("PATH", str(traced), prepend=os.pathsep)
    for name, value in re.findall(r"\b(OTEL_(?!SERVICE)\w+)=(\S+)", guide):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gazette-broker")
    (tmp_path / "spec.yaml").write_text(SPEC)
    with EtcdServer(etcd_binary) as etcd:
        program = ("opentelemetry-instrument", "gazette")
        broker = BrokerServer(
            tmp_path, etcd=etcd.endpoint, prefix="/gazette/traced", program=program
        )
        with broker:
            apply = ("gazctl", "journals", "apply", "--specs", "spec.yaml")
            run(*apply, f"--broker.address={broker.address}", cwd=tmp_path)
            monkeypatch.setenv("OTEL_SERVICE_NAME", "my-writer")
            writer = ("opentelemetry-instrument", "python", "-c", WRITER, broker.address)
            run(*writer, cwd=tmp_path)
            assert broker.stop() == 0
    spans = [line.split(",") for line in log.read_text().splitlines()[1:]]
    made = {
        span
        for service, name, span, _ in spans
        if (service, name) == ("my-writer", "gazette append")
    }
    served = {
        parent
        for service, name, _, parent in spans
        if (service, name) == ("gazette-broker", "gazette broker append")
    }
    assert len(made) == 3
    assert served == made
    assert ["gazette-broker", "gazette persist"] in [span[:2] for span in spans]
