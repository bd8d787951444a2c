"""What users install: a wheel with its core dependencies alone, in an environment of its own.

The other tests run from the repository, where every file and every extra is at hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from gazette_platform.testing.etcd import EtcdServer
from gazette_platform.testing.servers import BrokerServer

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
