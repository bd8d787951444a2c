"""Apache Kafka's own command line tools."""

from __future__ import annotations

import asyncio

from kafka_jars import jars_of

from gazette_platform.platform import tools
from gazette_platform.testing.waiting import patient

_WAIT_S = 90.0
_CLASSES = {
    "kafka-broker-api-versions": "BrokerApiVersionsCommand",
    "kafka-cluster": "ClusterTool",
    "kafka-console-consumer": "consumer.ConsoleConsumer",
    "kafka-console-producer": "ConsoleProducer",
    "kafka-consumer-groups": "consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "ConsumerPerformance",
    "kafka-get-offsets": "GetOffsetShell",
    "kafka-producer-perf-test": "ProducerPerformance",
    "kafka-topics": "TopicCommand",
    "kafka-transactions": "TransactionsCommand",
}
# Those that have come with the server, not in `org.apache.kafka.tools`.
_OF_SERVER = {"kafka-configs": "kafka.admin.ConfigCommand"}


async def run(servers, name, *arguments, given=b""):
    """Run a tool to its end. Returns: its exit code, what it wrote, and its stderr."""
    servers = ["--bootstrap-server", servers]
    jars, program = jars_of("apache"), f"org.apache.kafka.tools.{_CLASSES.get(name)}"
    if name in _OF_SERVER:
        jars, program = tools.kafka_server_jars(), _OF_SERVER[name]
    process = await asyncio.create_subprocess_exec(
        tools.java(21) / "bin" / "java",
        *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-cp", f"{jars}/*", program),
        # The one that wants them after its own command.
        *(servers if name != "kafka-cluster" else []),
        *map(str, arguments),
        *(servers if name == "kafka-cluster" else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(patient(_WAIT_S)):
        out, err = await process.communicate(given)
    return process.returncode, out.decode(), err.decode()
