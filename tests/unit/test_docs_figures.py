"""Pages that help to decide show the figures of the kept run, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEPT = {
    name: value
    for file in ("latest.json", "kafka.json")
    for name, value in json.loads((ROOT / "benchmarks" / "results" / file).read_text())[
        "figures"
    ].items()
}
MIB = 1 << 20


def about(value: float) -> str:
    """Three digits of `value`."""
    return f"{round(value, min(0, 3 - len(str(int(value))))):,.0f}"


ABOUT = {f"about_{name}": about(value) for name, value in KEPT.items()}
TOLD = {
    "README.md": """
        {append_1mib_c8_raw_mb_per_s:.0f} MB/s of large appends on two cores, but {about_append_100b_c16_per_s} small ones
        cost a broker {broker_cpu_s_per_gb_append_gzip:.1f} s of CPU a GB
        sees an append after {tail_p50_ms:.1f} ms (median). `gazctl sql` answers a first query in {lake_sql_first_answer_s:.1f} s
    """,
    "docs/concepts/choosing.md": """
        {broker_cpu_s_per_gb_append_gzip:.1f} s of CPU a GB
        took {about_append_100b_c16_per_s} appends of 100 B a second
    """,
    "docs/concepts/kafka.md": """
        {ratio_produce_100b_mb_per_s:.2f} times as many bytes a second of records of 100 B as a Kafka on the same machine
        {ratio_produce_1kib_mb_per_s:.2f} times of 1 KiB, and {ratio_produce_1mib_mb_per_s:.2f} times of 1 MiB
        fetches {ratio_fetch_100b_mb_per_s:.2f}, {ratio_fetch_1kib_mb_per_s:.2f} and {ratio_fetch_1mib_mb_per_s:.2f} times as many
        {ratio_produce_100b_cpu_s_per_gb:.1f}, {ratio_produce_1kib_cpu_s_per_gb:.1f} and {ratio_produce_1mib_cpu_s_per_gb:.1f} times Kafka's CPU
    """,
    "docs/internals/performance.md": """
        | produce 100 B | {ours_produce_100b_mb_per_s:.1f} | {kafka_produce_100b_mb_per_s:.1f} | {ratio_produce_100b_mb_per_s:.2f} | {ours_produce_100b_cpu_s_per_gb:.1f} | {kafka_produce_100b_cpu_s_per_gb:.1f} |
        | produce 1 KiB | {ours_produce_1kib_mb_per_s:.1f} | {kafka_produce_1kib_mb_per_s:.1f} | {ratio_produce_1kib_mb_per_s:.2f} | {ours_produce_1kib_cpu_s_per_gb:.1f} | {kafka_produce_1kib_cpu_s_per_gb:.1f} |
        | produce 1 MiB | {ours_produce_1mib_mb_per_s:.1f} | {kafka_produce_1mib_mb_per_s:.1f} | {ratio_produce_1mib_mb_per_s:.2f} | {ours_produce_1mib_cpu_s_per_gb:.1f} | {kafka_produce_1mib_cpu_s_per_gb:.1f} |
        | fetch 100 B | {ours_fetch_100b_mb_per_s:.1f} | {kafka_fetch_100b_mb_per_s:.1f} | {ratio_fetch_100b_mb_per_s:.2f} | {ours_fetch_100b_cpu_s_per_gb:.1f} | {kafka_fetch_100b_cpu_s_per_gb:.1f} |
        | fetch 1 KiB | {ours_fetch_1kib_mb_per_s:.1f} | {kafka_fetch_1kib_mb_per_s:.1f} | {ratio_fetch_1kib_mb_per_s:.2f} | {ours_fetch_1kib_cpu_s_per_gb:.1f} | {kafka_fetch_1kib_cpu_s_per_gb:.1f} |
        | fetch 1 MiB | {ours_fetch_1mib_mb_per_s:.1f} | {kafka_fetch_1mib_mb_per_s:.1f} | {ratio_fetch_1mib_mb_per_s:.2f} | {ours_fetch_1mib_cpu_s_per_gb:.1f} | {kafka_fetch_1mib_cpu_s_per_gb:.1f} |
        | a record of 1 KiB, produced alone | {ours_produce_one_p50_ms:.2f} | {kafka_produce_one_p50_ms:.2f} | {ratio_produce_one_p50_ms:.2f} | {ours_produce_one_p99_ms:.1f} | {kafka_produce_one_p99_ms:.1f} | {ratio_produce_one_p99_ms:.2f} |
        | from producer to consumer, 200 records of 1 KiB a second | {ours_end_to_end_p50_ms:.2f} | {kafka_end_to_end_p50_ms:.2f} | {ratio_end_to_end_p50_ms:.2f} | {ours_end_to_end_p99_ms:.1f} | {kafka_end_to_end_p99_ms:.1f} | {ratio_end_to_end_p99_ms:.2f} |
    """,
    "docs/guides/sizing.md": """
        | {append_1mib_c8_raw_mb_per_s:.0f} MB/s plain, {append_1mib_c8_gzip_mb_per_s:.0f} MB/s gzip;
        ; {broker_cpu_s_per_gb_append_raw:.1f} and {broker_cpu_s_per_gb_append_gzip:.1f} s of CPU a GB |
        | {append_r3_1mib_c8_raw_mb_per_s:.0f} and {append_r3_1mib_c8_gzip_mb_per_s:.0f} MB/s;
        ; {brokers_cpu_s_per_gb_append_r3_raw:.1f} and {brokers_cpu_s_per_gb_append_r3_gzip:.1f} s of CPU a GB, all
        | {about_append_100b_c16_per_s} a second |
        | {about_append_service_100b_c64_per_s} a second, p99 {append_service_100b_c64_p99_ms:.1f} ms |
        | {about_append_service_writer_msgs_per_s} a second |
        | {read_broker_raw_mb_per_s:,.0f} MB/s plain, {read_broker_gzip_mb_per_s:.0f} MB/s gzip |
        | {read_direct_raw_mb_per_s:,.0f} and {read_direct_gzip_mb_per_s:.0f} MB/s |
        | {tail_p50_ms:.1f} ms median, {tail_p99_ms:.1f} ms p99, at {tail_appends_per_s:.0f} a second |
        | {broker_rss_mb_empty:.0f} MB empty, {broker_rss_mb_100_journals_10_active:.0f} MB with 100 journals
        | {idle_10k_rss_mb_max:.0f} MB and {idle_10k_cpu_percent_max:.2f} % of a core each;
        ; assigned after {idle_10k_assigned_s:.0f} s |
        took {fsync_commit_100b_c1_per_s:.0f} appends of 100 B a second one at a time
        ({fsync_never_100b_c1_per_s:.0f} with `never` in the same run)
        {fsync_commit_1mib_c8_mb_per_s:.0f} MB/s of 1 MiB appends ({fsync_never_1mib_c8_mb_per_s:.0f})
        {codec_gzip_stored_ratio:.2f} with gzip, {codec_zstd_stored_ratio:.2f} with zstd
    """,
}
PHRASES = [
    (page, line.strip().format(**KEPT, **ABOUT))
    for page, lines in TOLD.items()
    for line in lines.strip().splitlines()
]


@pytest.mark.parametrize(("page", "phrase"), PHRASES)
def test_page_shows_what_was_measured(page, phrase):
    assert phrase in " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize(
    ("row", "bytes_a_day", "interval_s", "length"),
    [
        ("| 1 GB a day | 1m | 64 MiB | {} | {} MB |", 1e9, 60, 64 * MIB),
        ("| 1 GB a day | 10m | 64 MiB | {} | {} MB |", 1e9, 600, 64 * MIB),
        ("| 1 GB a day | 1h | 64 MiB | {} | {} MB |", 1e9, 3600, 64 * MIB),
        ("| 100 GB a day | 10m | 256 MiB | {} | {} MB |", 1e11, 600, 256 * MIB),
    ],
)
def test_the_table_of_fragments_follows_its_formula(row, bytes_a_day, interval_s, length):
    fragments = max(86_400 / interval_s, bytes_a_day / length)
    content = bytes_a_day / 1e6 / fragments
    told = row.format(f"{fragments:,.0f}", f"{content:.1f}" if content < 1 else f"{content:.0f}")
    assert told in (ROOT / "docs/guides/sizing.md").read_text()
