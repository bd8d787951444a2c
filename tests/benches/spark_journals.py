"""Journals for tests of Spark's data source."""

from __future__ import annotations

import json

from gazette_platform import Change
from gazette_platform.ops.durations import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet

__all__ = ["bulk", "create", "json_lines"]

JSON = "application/x-ndjson"


def create(client, prefix, *parts, content_type=JSON):
    names = [f"{prefix}/{part}" for part in parts]
    changes = [
        Change(
            JournalSpec(
                name=name,
                replication=1,
                labels=LabelSet.of(("content-type", content_type)),
                fragment=FragmentSpec(
                    length=1 << 20,
                    codec=CompressionCodec.GZIP,
                    stores=("file:///",),
                    refresh_interval_ns=SECOND_NS,
                ),
            )
        )
        for name in names
    ]
    client.apply(changes)
    return names


def json_lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def bulk(first, count):
    return json_lines(*({"n": n, "text": "é" * 20} for n in range(first, first + count)))
