"""Documents of shards as the YAML that ``gazctl shards apply`` reads and ``list`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_platform.consumer.protocol.shard_space import (
    ShardChange,
    ShardEntry,
    ShardSpace,
    shard_space_of,
)
from gazette_platform.consumer.protocol.specs import ShardSource, ShardSpec
from gazette_platform.ops.durations import format_duration
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.labels import EMPTY_LABELS
from gazette_platform.yaml_specs.documents import StrictMapping, dump_yaml, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "parse_shard_changes",
    "parse_shard_space",
    "render_shard_space",
    "shards_yaml",
]


def parse_shard_changes(document: str | bytes) -> list[ShardChange]:
    """The changes that a YAML document of shards asks for, in order of IDs.

    Raises: ValidationError: not YAML (with its line), an unknown key, or a spec that is not valid once
        what is common is pushed down.
    """
    return parse_shard_space(document).changes()


def shards_yaml(shards: Iterable[tuple[ShardSpec, int]]) -> str:
    """The YAML of shards and their revisions, with what they share hoisted.

    `parse_shard_changes` gives the same specs and revisions back.
    """
    return render_shard_space(shard_space_of(shards).hoist())


def parse_shard_space(document: str | bytes) -> ShardSpace:
    """Read a YAML document; neither pushed down nor validated.

    Raises: ValidationError: not YAML, an unknown key, or a value of a wrong type.
    """
    mapping = read_yaml(document)
    common = mapping.mapping("common")
    common_spec = ShardSpec("")
    if common is not None:
        common_spec = _read_spec(common)
        common.finish()
    space = ShardSpace(common_spec, tuple(_read_entry(each) for each in mapping.mappings("shards")))
    mapping.finish()
    return space


def _read_entry(mapping: StrictMapping) -> ShardEntry:
    entry = ShardEntry(
        comment=mapping.text("comment"),
        delete=mapping.boolean("delete"),
        spec=_read_spec(mapping),
        revision=mapping.integer("revision"),
    )
    mapping.finish()
    return entry


def _read_spec(mapping: StrictMapping) -> ShardSpec:
    return ShardSpec(
        id=mapping.text("id"),
        sources=tuple(_read_source(each) for each in mapping.mappings("sources")),
        recovery_log_prefix=mapping.text("recovery_log_prefix"),
        hint_prefix=mapping.text("hint_prefix"),
        hint_backups=mapping.integer("hint_backups"),
        max_txn_duration_ns=mapping.duration("max_txn_duration"),
        min_txn_duration_ns=mapping.duration("min_txn_duration"),
        disable=mapping.boolean("disable") or False,
        hot_standbys=mapping.integer("hot_standbys"),
        labels=_read_labels(mapping),
        disable_wait_for_ack=mapping.boolean("disable_wait_for_ack") or False,
        ring_buffer_size=mapping.integer("ring_buffer_size"),
        read_channel_size=mapping.integer("read_channel_size"),
    )


def _read_source(mapping: StrictMapping) -> ShardSource:
    source = ShardSource(mapping.text("journal"), mapping.integer("min_offset"))
    mapping.finish()
    return source


def _read_labels(mapping: StrictMapping) -> LabelSet:
    pairs: list[tuple[str, str]] = []
    for each in mapping.mappings("labels"):
        pair = (each.text("name"), each.text("value"))
        each.finish()
        if pairs and pair <= pairs[-1]:
            raise each.error(
                f"Labels not in unique, sorted order ({'='.join(pair)} after {'='.join(pairs[-1])})"
            )
        pairs.append(pair)
    return LabelSet.of(*pairs) if pairs else EMPTY_LABELS


def render_shard_space(space: ShardSpace) -> str:
    """Return the YAML of a document as it is.

    Zero fields of a shard are left out, except the values of labels; `common` and `shards` never are.
    """
    return dump_yaml(
        {
            "common": _spec_fields(space.common),
            "shards": [_entry_fields(entry) for entry in space.shards],
        }
    )


def _entry_fields(entry: ShardEntry) -> dict[str, object]:
    before: dict[str, object] = {"comment": entry.comment, "delete": entry.delete}
    kept = {key: value for key, value in before.items() if value}
    kept |= _spec_fields(entry.spec)
    return kept | ({"revision": entry.revision} if entry.revision else {})


def _spec_fields(spec: ShardSpec) -> dict[str, object]:
    sources: list[dict[str, object]] = [
        {"journal": source.journal}
        | ({"min_offset": source.min_offset} if source.min_offset else {})
        for source in spec.sources
    ]
    fields: dict[str, object] = {
        "id": spec.id,
        "sources": sources,
        "recovery_log_prefix": spec.recovery_log_prefix,
        "hint_prefix": spec.hint_prefix,
        "hint_backups": spec.hint_backups,
        "max_txn_duration": _duration_or_none(spec.max_txn_duration_ns),
        "min_txn_duration": _duration_or_none(spec.min_txn_duration_ns),
        "disable": spec.disable,
        "hot_standbys": spec.hot_standbys,
        "labels": [{"name": label.name, "value": label.value} for label in spec.labels],
        "disable_wait_for_ack": spec.disable_wait_for_ack,
        "ring_buffer_size": spec.ring_buffer_size,
        "read_channel_size": spec.read_channel_size,
    }
    return {key: value for key, value in fields.items() if value}


def _duration_or_none(nanoseconds: int) -> str:
    return format_duration(nanoseconds) if nanoseconds else ""
