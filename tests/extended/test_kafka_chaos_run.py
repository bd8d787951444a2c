"""A minute of chaos with Kafka's clients, also its own in Java: each record once, and committed offsets never go back."""

from __future__ import annotations

import pytest
from kafka_docs import program_does
from kafka_jars import version_of

from tests.chaos.plan import FaultKind
from tests.kafka_chaos.runner import KafkaChaosConfig, run_kafka_chaos

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(900)]


async def test_a_minute_of_kafka_chaos_shows_nothing_wrong(sturdy_etcd_binary, tmp_path, request):
    said = []
    config = KafkaChaosConfig(
        etcd_binary=sturdy_etcd_binary,
        seed=41,
        duration_s=60,
        lease_s=4.0,
        # Those that cost least time to mend: there is room for each twice.
        kinds=(
            FaultKind.KILL,
            FaultKind.KILL_COORDINATOR,
            FaultKind.PAUSE,
            FaultKind.RESET,
            FaultKind.DRAIN,
        ),
        has_java=True,
        folder=tmp_path / "chaos",
    )
    result = await run_kafka_chaos(config, say=said.append)
    told = "\n".join([*said, *result.reasons])
    assert result.is_ok, told
    assert result.faults >= 4, told
    assert result.records > 1000, told
    for name, does in (
        ("producer", "writes each record once while brokers and clients are killed"),
        ("consumer", "reads in a group, and commits, while brokers and clients are killed"),
    ):
        program_does(request.config, f"`kafka-verifiable-{name}` {version_of('apache')}", does)
