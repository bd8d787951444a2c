"""Kafka's own TransactionalMessageCopier (Java), as a program that tests kill: it copies a topic in transactions.

    kafka_copier.py SERVERS GROUP SOURCE TARGET ID FILE

It aborts one transaction in three, and reads its records again. What it says goes to the file, one JSON line each.
"""

from __future__ import annotations

import os
import sys

from kafka_jars import jars_of

from gazette_platform.platform import tools


def main(servers, group, source, target, transactional_id, file):
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, sys.stdout.fileno())
    java = tools.java(21) / "bin" / "java"
    os.execv(
        java,
        [
            *(java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{jars_of('apache')}/*", "org.apache.kafka.tools.TransactionalMessageCopier"),
            *("--broker-list", servers, "--consumer-group", group, "--transactional-id"),
            *(transactional_id, "--input-topic", source, "--output-topic", target),
            *("--input-partition", "-1", "--group-mode", "--use-group-metadata"),
            *("--transaction-size", "50", "--transaction-timeout", "15000"),
            "--enable-random-aborts",
        ],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
