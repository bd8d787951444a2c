"""A shard that adds up orders by customer: its specs, and those of its journals."""

from gazette_platform.consumer.protocol import parse_shard_changes

__all__ = ["totals_journals", "totals_shards"]

_JOURNALS = """
replication: 1
fragment: {{length: 1048576, compression_codec: SNAPPY, stores: ["file:///"], refresh_interval: 1m}}
children:
  - {{name: orders, labels: [{{name: content-type, value: application/x-ndjson}}]}}
  - {{name: recovery/totals, labels: [{{name: content-type, value: application/x-gazette-recoverylog}}]}}
  - {{name: {output}, labels: [{{name: content-type, value: application/x-ndjson}}]}}
"""
_SHARDS = """
shards:
  - id: totals
    sources: [{{journal: orders}}]
    recovery_log_prefix: recovery
    hint_prefix: {prefix}-hints
    max_txn_duration: 1s
"""


def totals_journals(output):
    """Return the specs of journals as YAML; `output` is the one that the shard writes to."""
    return _JOURNALS.format(output=output)


def totals_shards(prefix):
    """Return the specs of shards; their hints are below `prefix`."""
    return [each.spec for each in parse_shard_changes(_SHARDS.format(prefix=prefix))]
