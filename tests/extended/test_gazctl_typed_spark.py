"""`gazctl lake run` by Spark, in a process of its own: a JVM of this one would stay."""

import json
import os
import subprocess
import sys

import pytest
from gazctl_runner import gazctl_runner

from gazette_platform.platform import tools
from gazette_platform.testing.servers import BrokerServer

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.spark,
    pytest.mark.timeout(400),
]

JOURNAL = b"""
name: events
replication: 1
fragment: {length: 1048576, compression_codec: GZIP, stores: [file:///], refresh_interval: 1s}
"""
SPEC = """name: shop.events
selector: name=events
format: json
columns: [{name: n, type: bigint}]
typed: {uuid: none}
"""


def test_spark_is_asked_if_it_is_configured(etcd_server, monkeypatch, tmp_path, capfdbinary):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "events.yaml").write_text(SPEC)
    (tmp_path / "input").write_bytes(b'{"n": 1}\n{"n": 2}\n{"n": "three"}\n')
    environment = {
        "GAZETTE_TABLES": str(tmp_path / "tables"),
        "GAZETTE_WAREHOUSE": f"file://{tmp_path}/warehouse",
        "GAZETTE_ICEBERG_CATALOG": f"sqlite:///{tmp_path}/catalog.db",
        "GAZETTE_ICEBERG_JAR": str(tools.iceberg_spark_runtime()),
        # No one asks it: typed tables are in another catalog, and workers read no table.
        "GAZETTE_METASTORE_URI": "thrift://127.0.0.1:1",
        "GAZETTE_SPARK_MASTER": "local[1]",
        "JAVA_HOME": str(tools.java(21)),
    }
    folder = tmp_path / "broker"
    with BrokerServer(folder, etcd=etcd_server.endpoint, prefix="/gazctl-typed-spark") as broker:
        gazctl = gazctl_runner(broker.address, monkeypatch, tmp_path, capfdbinary)
        assert gazctl("apply", stdin=JOURNAL).code == 0
        assert gazctl("append", "-l", "name=events", "-i", "input").code == 0
        done = subprocess.run(
            [sys.executable, "-m", "gazette_platform.cli.gazctl", "lake", "run", "-o", "json"],
            env=os.environ | environment | {"LOG_LEVEL": "info"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "starting Spark" in done.stderr
    (told,) = json.loads(done.stdout)
    assert (told["rows"], told["quarantined"], told["read_bytes"]) == (2, 1, 33)
