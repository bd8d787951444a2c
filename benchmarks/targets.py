"""What the figures must reach, and what a machine allows them to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BOUNDS",
    "CLUSTER_TARGETS",
    "FAILOVER_TARGETS",
    "KAFKA_TARGETS",
    "LAKE_TARGETS",
    "TARGETS",
    "WIRE_TARGETS",
    "Target",
    "Verdict",
    "judge",
]

# For each figure the machine's own that no broker and client in Python over gRPC can beat by
# much: the same messages between a server and a client that do nothing with them. On a slow or a
# busy machine the ratio to it says more than the figure.
BOUNDS: Mapping[str, str] = {
    "append_100b_c1_per_s": "machine_grpc_small_c1_per_s",
    "append_100b_c16_per_s": "machine_grpc_small_c16_per_s",
    "append_16kib_c8_raw_mb_per_s": "machine_grpc_16kib_c8_mb_per_s",
    "append_1mib_c1_raw_mb_per_s": "machine_grpc_send_c1_mb_per_s",
    "append_1mib_c8_raw_mb_per_s": "machine_grpc_send_c8_mb_per_s",
    "append_1mib_c8_gzip_mb_per_s": "machine_grpc_send_c8_mb_per_s",
    "append_1mib_c8_zstd_mb_per_s": "machine_grpc_send_c8_mb_per_s",
    "read_broker_raw_mb_per_s": "machine_grpc_receive_mb_per_s",
    "read_broker_gzip_mb_per_s": "machine_grpc_receive_mb_per_s",
    "read_broker_spool_raw_mb_per_s": "machine_grpc_receive_mb_per_s",
    "read_broker_spool_gzip_mb_per_s": "machine_grpc_receive_mb_per_s",
    "read_direct_raw_mb_per_s": "machine_sha1_mb_per_s",
    "read_direct_gzip_mb_per_s": "machine_sha1_mb_per_s",
    "read_direct_s3_gzip_mb_per_s": "machine_sha1_mb_per_s",
    "tail_p50_ms": "machine_grpc_small_p50_ms",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that is promised for 2 cores with the client on them."""

    name: str
    limit: float
    is_upper: bool = False
    """Whether less is better: a latency, a size."""
    is_of_reference: bool = False
    """Whether the limit is of the reference machine: it is times the speed of this one."""

    @property
    def sign(self) -> str:
        """How the figure should compare with the limit."""
        return "≤" if self.is_upper else "≥"


TARGETS = (
    Target("tail_p50_ms", 2, is_upper=True),
    Target("tail_p99_ms", 8, is_upper=True),
    Target("append_during_persist_p99_ms", 50, is_upper=True),
    Target("append_core_us_per_append_c1", 45, is_upper=True),
    Target("append_core_us_per_append_c16", 45, is_upper=True),
    Target("append_1mib_c8_gzip_mb_per_s", 200),
    Target("append_1mib_c8_raw_mb_per_s", 250),
    Target("append_service_writer_msgs_per_s", 1_480_000, is_of_reference=True),
    Target("append_service_await_msgs_per_s", 60_000, is_of_reference=True),
    Target("read_broker_raw_mb_per_s", 400),
    Target("read_broker_gzip_mb_per_s", 250),
    Target("read_direct_raw_mb_per_s", 1500, is_of_reference=True),
    Target("read_direct_gzip_mb_per_s", 600, is_of_reference=True),
    Target("read_direct_s3_gzip_mb_per_s", 400, is_of_reference=True),
    Target("read_direct_raw_rss_mb", 268, is_upper=True),
    Target("read_direct_gzip_rss_mb", 268, is_upper=True),
    Target("read_direct_s3_gzip_rss_mb", 268, is_upper=True),
    Target("tail_behind_writer_gzip_mb_per_s", 150),
    Target("broker_rss_mb_100_journals_10_active", 250, is_upper=True),
    Target("gazctl_list_cpu_s", 0.35, is_upper=True),
)

# Of three brokers that share the 2 cores with the client and etcd.
CLUSTER_TARGETS = (
    Target("append_r3_1mib_c8_raw_mb_per_s", 100),
    Target("append_r3_1mib_c8_gzip_mb_per_s", 100),
    Target("append_r3_100b_c16_per_s", 500),
    Target("idle_10k_rss_mb_max", 600, is_upper=True),
    Target("idle_10k_cpu_percent_max", 5, is_upper=True),
    Target("idle_10k_list_s", 3, is_upper=True),
    Target("idle_10k_first_append_ms", 100, is_upper=True),
)

# The first without detection of crashes: the lease of 5 s and one more.
FAILOVER_TARGETS = (
    Target("failover_kill_lease5_s", 6, is_upper=True),
    Target("failover_kill_detected_s", 2, is_upper=True),
    Target("drain_stall_ms_max", 300, is_upper=True),
)

# The first is the flush interval of its journals, 60 s, and 8 more.
LAKE_TARGETS = (
    Target("lake_freshness_s", 68, is_upper=True),
    Target("lake_flush_s", 5, is_upper=True),
    Target("lake_sql_first_answer_s", 1, is_upper=True),
    Target("lake_sql_append_seen_s", 1, is_upper=True),
    Target("lake_definitions_100_tables_s", 5, is_upper=True),
    Target("lake_tick_idle_100_tables_s", 2, is_upper=True),
    Target("lake_backlog_tick_s_max", 30, is_upper=True),
    Target("lake_backlog_pruned_count_s", 3, is_upper=True),
    Target("typed_mb_per_s_per_core", 25),
    Target("typed_rss_gb", 3.2, is_upper=True),
    Target("typed_linearity", 1.2, is_upper=True),
    Target("typed_freshness_s", 60, is_upper=True),
)

# The lease is 5 s, and another process may take 3 more. All share the 2 cores with the broker and etcd.
CONSUMER_TARGETS = (
    Target("consumer_hop_p50_ms", 15, is_upper=True),
    Target("consumer_hop_p99_ms", 60, is_upper=True),
    Target("consumer_msgs_per_s_per_core", 30_000),
    Target("consumer_failover_s", 8, is_upper=True),
    Target("consumer_recovery_mb_per_s", 80),
    Target("consumer_handoff_stall_s", 1, is_upper=True),
)


# Of `h2` divided by `grpc`, in one sitting. What must not become larger may do so by chance a little.
WIRE_TARGETS = (
    Target("wire_ratio_append_100b_c1_per_s", 2.5),
    Target("wire_ratio_append_100b_c16_per_s", 6),
    Target("wire_ratio_append_100b_c64_per_s", 7),
    Target("wire_ratio_append_16kib_c8_raw_mb_per_s", 3),
    Target("wire_ratio_append_1mib_c8_raw_mb_per_s", 1.3),
    Target("wire_ratio_append_r3_100b_c16_per_s", 4),
    Target("wire_ratio_tail_p50_ms", 0.4, is_upper=True),
    Target("wire_ratio_broker_cpu_us_per_append_100b_c16", 0.12, is_upper=True),
    Target("wire_ratio_append_service_await_msgs_per_s", 1.2),
    Target("wire_ratio_consumer_hop_p50_ms", 0.6, is_upper=True),
    Target("wire_ratio_broker_start_s", 1.1, is_upper=True),
    Target("wire_ratio_broker_idle_cpu_percent", 1.1, is_upper=True),
    Target("wire_ratio_broker_rss_mb_start", 1.05, is_upper=True),
    Target("wire_ratio_broker_rss_mb_loaded", 1.05, is_upper=True),
    Target("wire_ratio_idle_10k_cpu_percent_max", 1.1, is_upper=True),
    Target("wire_ratio_idle_10k_rss_mb_max", 1.05, is_upper=True),
)

# Of our gateway divided by a real Kafka, under the same client in one run.
KAFKA_TARGETS = (
    *(
        Target(f"ratio_{what}_{size}_mb_per_s", 0.5)
        for what in ("produce", "fetch")
        for size in ("100b", "1kib", "1mib")
    ),
    *(
        Target(f"ratio_{what}_{share}_ms", 2, is_upper=True)
        for what in ("produce_one", "end_to_end")
        for share in ("p50", "p99")
    ),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target beside what was measured."""

    target: Target
    value: float | None
    """None: the run did not measure it."""
    speed: float = 1.0
    """Of the machine, in terms of the reference machine."""

    @property
    def limit(self) -> float:
        """What the figure has to reach on this machine."""
        return self.target.limit * (self.speed if self.target.is_of_reference else 1.0)

    @property
    def is_met(self) -> bool:
        """Whether the figure was measured and reaches the limit."""
        if self.value is None:
            return False
        return self.value <= self.limit if self.target.is_upper else self.value >= self.limit

    def line(self) -> str:
        """One line for people: verdict, figure, value and target."""
        target = self.target
        word = "met" if self.is_met else "not measured" if self.value is None else "missed"
        value = "" if self.value is None else f"{self.value:g} "
        scaled = f", times {self.speed:g}: {self.limit:.4g}" if target.is_of_reference else ""
        return (
            f"target {word}: {target.name} {value}(target {target.sign} {target.limit:g}{scaled})"
        )


def judge(
    figures: Mapping[str, float], targets: tuple[Target, ...] = TARGETS
) -> tuple[Verdict, ...]:
    """Each target beside its figure, in the order of the targets."""
    speed = figures.get("machine_speed_ratio", 1.0)
    return tuple(Verdict(target, figures.get(target.name), speed) for target in targets)
