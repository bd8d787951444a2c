"""Kafka's clients in five languages, unchanged, at a real gateway; and the table of docs that says so."""

from __future__ import annotations

import ast
from pathlib import Path

import kafka_docs
import kafka_programs
import pytest
from kafka_servers import LEASE_S, Gateways

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", kafka_programs.PROGRAMS)
async def test_client_passes_all_checks_and_is_in_the_docs(start_servers, tmp_path, name, request):
    gateways = Gateways(start_servers, "a", lease_s=LEASE_S)
    # Topics that clients make take their store from another journal of the prefix.
    await gateways.make_topic("like-this", partitions=1)
    program = kafka_programs.PROGRAMS[name]
    version, outcomes, cells, errors = kafka_programs.outcomes(
        program, tmp_path, gateways.servers, "t"
    )
    assert outcomes == dict.fromkeys(kafka_programs.CHECKS, ""), errors[-4000:]
    found = kafka_docs.shown("clients")
    columns = kafka_programs.columns_of(found)
    if request.config.getoption("--rewrite"):
        columns[name] = (version, *cells)
        kafka_docs.rewrite("clients", kafka_programs.table(columns))
    else:
        assert columns.get(name) == (version, *cells)
        assert found == kafka_programs.table(columns)


def test_each_row_of_programs_is_of_a_test():
    files = Path(__file__).parent.glob("test_kafka_*.py")
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert [does for _, does in kafka_docs.rows_of_programs() if does not in texts] == []
