"""Kafka's own programs in Java, which it tests itself with, as programs that tests kill.

    kafka_java.py copier SERVERS FILE GROUP SOURCE TARGET ID
    kafka_java.py producer SERVERS FILE TOPIC PREFIX
    kafka_java.py consumer SERVERS FILE TOPIC GROUP

`TransactionalMessageCopier` copies a topic in transactions. It aborts one in three, and reads its records again.
`VerifiableProducer` writes `PREFIX.0`, `PREFIX.1` and so on, as an idempotent producer. `VerifiableConsumer` commits
what each poll gave it. What they say goes to the file, one JSON line each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kafka_jars import jars_of
from kafka_member import BEAT_MS, SESSION_MS
from kafka_producer import DELIVERY_MS

from gazette_platform.platform import tools

_RECORDS_PER_S = 20
_CALL_MS = 20_000


def copier(servers, _, group, source, target, transactional_id):
    return "TransactionalMessageCopier", [
        *("--broker-list", servers, "--consumer-group", group, "--transactional-id"),
        *(transactional_id, "--input-topic", source, "--output-topic", target),
        *("--input-partition", "-1", "--group-mode", "--use-group-metadata"),
        *("--transaction-size", "50", "--transaction-timeout", "15000"),
        "--enable-random-aborts",
    ]


def producer(servers, file, topic, prefix):
    settings = {
        "enable.idempotence": "true",
        "retries": 2**31 - 1,  # its own default of none is for producers that are not idempotent
        "delivery.timeout.ms": DELIVERY_MS,
        "max.block.ms": DELIVERY_MS,
        "linger.ms": 5,
    }
    return "VerifiableProducer", [
        *("--bootstrap-server", servers, "--topic", topic, "--value-prefix", prefix),
        *("--throughput", str(_RECORDS_PER_S), "--command-config", _written(file, settings)),
    ]


def consumer(servers, file, topic, group):
    settings = {
        "heartbeat.interval.ms": BEAT_MS,
        "isolation.level": "read_committed",
        "fetch.min.bytes": 4096,  # each poll is a commit
        "default.api.timeout.ms": _CALL_MS,
        "request.timeout.ms": _CALL_MS // 2,
    }
    return "VerifiableConsumer", [
        *("--bootstrap-server", servers, "--topic", topic, "--group-id", group, "--verbose"),
        *("--session-timeout", str(SESSION_MS), "--command-config", _written(file, settings)),
    ]


def _written(file, settings):
    path = Path(file).with_suffix(".properties")
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


PROGRAMS = {"copier": copier, "producer": producer, "consumer": consumer}


def main(program, servers, file, *arguments):
    name, options = PROGRAMS[program](servers, file, *arguments)
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if program == "producer":
        os.write(out, b'{"name": "begun", "prefix": %d}\n' % int(arguments[-1]))
    os.dup2(out, sys.stdout.fileno())
    java = tools.java(21) / "bin" / "java"
    os.execv(
        java,
        [
            *(java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{jars_of('apache')}/*", f"org.apache.kafka.tools.{name}", *options),
        ],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
