"""Journals and shards of a run: those of the example, on more kinds of stores, and a shard after them. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.stream_sum import messages
from examples.stream_sum.messages import SUMS
from gazette_platform.consumer.protocol import ShardSource, parse_shard_changes
from gazette_platform.protocol import JournalChange, LabelSet
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree
from tests.soak.summer import STORE, TALLIES

if TYPE_CHECKING:
    from gazette_platform.consumer.protocol import ShardSpec

_FOLDER = Path(messages.__file__).parent
# With three replicas appends would wait for each broker that is away.
_REPLICATION: Final = 2
_BEHIND: Final = "sums"


def shard_specs(*, has_postgres: bool) -> list[ShardSpec]:
    """The shards of chunks, a kind of store after the other; at last the one that reads what they publish."""
    specs = [c.spec for c in parse_shard_changes((_FOLDER / "shards.yaml").read_text())]
    kinds = ("rocksdb", "sqlite", "json", *(["postgres"] if has_postgres else []))
    behind = replace(specs[0], id=_BEHIND, sources=(ShardSource(SUMS),))
    return [
        *(_on(kinds[at % len(kinds)], spec) for at, spec in enumerate(specs)),
        _on("json", behind),
    ]


def _on(kind: str, spec: ShardSpec) -> ShardSpec:
    spec = replace(spec, labels=LabelSet.of((STORE, kind)))
    if kind != "postgres":
        return spec
    return replace(spec, recovery_log_prefix="", hint_prefix="", hint_backups=0)


def journal_changes() -> list[JournalChange]:
    """The journals of these shards."""
    specs = {c.name: c.spec for c in parse_journal_tree((_FOLDER / "journals.yaml").read_text())}
    first, *_, behind = shard_specs(has_postgres=False)
    names = {
        **{name: name for name in specs},
        TALLIES: SUMS,
        behind.recovery_log: first.recovery_log,
    }
    return [
        JournalChange(replace(specs[like], name=name, replication=_REPLICATION))
        for name, like in names.items()
    ]
