"""Breaks brokers and the clients of their Kafka gateways on purpose, and checks what became of each record.

Idempotent and transactional producers fill the topic `source`. A *group* reads it and commits each record, and
*transforms* make the topic `target` of it, exactly once. Brokers suffer the faults of `tests.chaos`, on its plan, and
meanwhile programs are killed, paused and asked to leave. At the end all is mended, everyone comes to its end, and a Kafka
client and ours read both topics.

Kafka's own programs may run as well. Its copier makes the topic `copy` of the source; its verifiable producer fills the
topic `verified`, which a group of its verifiable consumers reads.

    make chaos KAFKA=1 SEED=41 MINUTES=10
    make chaos KAFKA=java SEED=41 MINUTES=10
"""

from __future__ import annotations
