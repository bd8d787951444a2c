"""Journals for tests of Spark's data source."""

from __future__ import annotations

import json

from gazette_platform import Change
from gazette_platform.ops.text import SECOND_NS
from gazette_platform.protocol import CompressionCodec, FragmentSpec, JournalSpec, LabelSet
from gazette_platform.testing.waiting import wait_until

__all__ = ["CSV", "JSON", "bulk", "create", "journal_spec", "json_lines", "make_again"]

CSV = "text/csv"
JSON = "application/x-ndjson"


def journal_spec(name, content_type=JSON):
    labels = LabelSet.of(("content-type", content_type)) if content_type else LabelSet()
    return JournalSpec(
        name=name,
        replication=1,
        labels=labels,
        fragment=FragmentSpec(
            length=1 << 20,
            codec=CompressionCodec.GZIP,
            stores=("file:///",),
            refresh_interval_ns=SECOND_NS,
        ),
    )


def create(client, prefix, *parts, content_type=JSON):
    names = [f"{prefix}/{part}" for part in parts]
    client.apply([Change(journal_spec(name, content_type)) for name in names])
    return names


def make_again(client, shared, name):
    """Delete a journal with its files, and make it again with the same spec."""
    spec = client.get(name).spec
    client.flush(f"name={name}")  # else its broker stores the end of it after the files are gone
    client.apply([Change(None, delete=name, revision=-1)])
    for file in (shared.fragments / name).glob("*"):
        file.unlink()
    client.apply([Change(spec)])
    wait_until(lambda: client.write_head(name) == 0)


def json_lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def bulk(first, count):
    return json_lines(*({"n": n, "text": "é" * 20} for n in range(first, first + count)))
