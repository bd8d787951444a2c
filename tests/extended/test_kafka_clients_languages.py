"""Kafka's clients in Java, Go and JavaScript, unchanged, at a real gateway; and the table of docs that says so."""

from __future__ import annotations

import ast
from pathlib import Path

import kafka_docs
import kafka_programs
import pytest
from kafka_servers import Gateways

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", kafka_programs.PROGRAMS)
async def test_client_passes_all_checks_and_is_in_the_docs(start_servers, tmp_path, name, request):
    gateways = Gateways(start_servers, "a")
    # Topics that clients make take their store from another journal of the prefix.
    await gateways.make_topic("like-this", partitions=1)
    program = kafka_programs.PROGRAMS[name]
    version, outcomes, errors = kafka_programs.outcomes(program, tmp_path, gateways.servers, "t")
    assert outcomes == dict.fromkeys(kafka_programs.CHECKS, ""), errors[-4000:]
    found = kafka_docs.shown("clients")
    shown = dict(cell.strip().rsplit(" ", 1) for cell in found.splitlines()[0].split("|")[2:-1])
    if request.config.getoption("--rewrite"):
        versions = {**shown, name: version}
        kafka_docs.rewrite("clients", kafka_programs.table(versions))
    else:
        assert shown.get(name) == version
        assert found == kafka_programs.table(shown)


def test_each_row_of_programs_is_of_a_test():
    files = Path(__file__).parent.glob("test_kafka_*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert [does for _, does in kafka_docs.rows_of_programs() if does not in texts] == []
