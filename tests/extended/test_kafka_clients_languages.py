"""Kafka's clients in Java, Go and JavaScript, unchanged, at a real gateway; and the table of docs that says so."""

from __future__ import annotations

from pathlib import Path

import kafka_programs
import pytest
from kafka_servers import Gateways

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "kafka.md"
BEGIN, END = "<!-- clients: begin -->\n", "<!-- clients: end -->"


@pytest.mark.parametrize("name", kafka_programs.PROGRAMS)
async def test_client_passes_all_checks_and_is_in_the_docs(start_servers, tmp_path, name, request):
    gateways = Gateways(start_servers, "a")
    # Topics that clients make take their store from another journal of the prefix.
    await gateways.make_topic("like-this", partitions=1)
    program = kafka_programs.PROGRAMS[name]
    version, outcomes, errors = kafka_programs.outcomes(program, tmp_path, gateways.servers, "t")
    assert outcomes == dict.fromkeys(kafka_programs.CHECKS, ""), errors[-4000:]
    before, rest = PAGE.read_text().split(BEGIN)
    found, after = rest.split(END)
    shown = dict(cell.strip().rsplit(" ", 1) for cell in found.splitlines()[0].split("|")[2:-1])
    if request.config.getoption("--rewrite"):
        versions = {**shown, name: version}
        PAGE.write_text(f"{before}{BEGIN}{kafka_programs.table(versions)}{END}{after}")
    else:
        assert shown.get(name) == version
        assert found == kafka_programs.table(shown)
