"""Shards as people write and read them: YAML documents, trees of common settings, and JSON.

The forms are those of Gazette's `gazctl shards`: a `ShardSpace` hoists what all its shards share, and
`ShardChange` is one entry of `apply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gazette_platform.consumer.protocol.specs import ShardSource, ShardSpec, validate_shard_id
from gazette_platform.errors import ValidationError
from gazette_platform.ops.text import format_duration
from gazette_platform.protocol import LabelSet
from gazette_platform.protocol.labels import EMPTY_LABELS
from gazette_platform.yaml_specs.documents import StrictMapping, check_change, dump_yaml, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

# ------------------------------------------------------------------ json form

# JSON of shards as Go's ``encoding/json`` prints it: durations are nanoseconds, most zero fields are left out.
#
# Protobuf's own dialect is in `protocol.json_form`.


def shard_spec_json(spec: ShardSpec) -> dict[str, Any]:
    """A spec as plain JSON."""
    labels = [_kept({"name": label.name, "value": label.value}) for label in spec.labels]
    fields: dict[str, Any] = {
        "id": spec.id,
        "sources": [
            {"journal": source.journal, **_kept({"min_offset": source.min_offset})}
            for source in spec.sources
        ],
        "recovery_log_prefix": spec.recovery_log_prefix,
        "hint_prefix": spec.hint_prefix,
        "hint_backups": spec.hint_backups,
        "max_txn_duration": spec.max_txn_duration_ns,
        "min_txn_duration": spec.min_txn_duration_ns,
        "disable": spec.disable,
        "hot_standbys": spec.hot_standbys,
        "labels": {"labels": labels or None},
        "disable_wait_for_ack": spec.disable_wait_for_ack,
        "ring_buffer_size": spec.ring_buffer_size,
        "read_channel_size": spec.read_channel_size,
    }
    # These have no notion of zero in Go: it writes them always.
    always = ("max_txn_duration", "min_txn_duration", "labels")
    return {key: value for key, value in fields.items() if value or key in always}


def _kept(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


# ------------------------------------------------------------------ shard space

# Documents of shards, which name once what their shards share.
#
# *Push-down* fills the zero fields of each shard from `common`; *hoisting* is the way back. A shard
# cannot set a field back to zero under a `common` that has it.

_NO_SPEC = ShardSpec("")
# Of a spec, besides its ID, which is never shared.
_FIELDS = tuple(each.name for each in fields(ShardSpec) if each.name != "id")


@dataclass(frozen=True, slots=True)
class ShardChange:
    """What to do with one shard: set it to `spec`, or delete it."""

    spec: ShardSpec | None
    delete: str = ""
    """ID of the shard to delete, if `spec` is None."""
    revision: int = 0
    """Revision that the shard must be at: 0 is not to exist, -1 is any."""


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard of a document."""

    spec: ShardSpec
    """Zero fields are to be taken from `common`."""
    comment: str = ""
    delete: bool | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True)
class ShardSpace:
    """A document."""

    common: ShardSpec = _NO_SPEC
    shards: tuple[ShardEntry, ...] = field(default=())

    def push_down(self) -> ShardSpace:
        """The document with whole specs, and nothing in common."""
        shards = (replace(entry, spec=_overlay(self.common, entry.spec)) for entry in self.shards)
        return ShardSpace(shards=tuple(shards))

    def hoist(self) -> ShardSpace:
        """The document with all in `common` that its shards share. Of one shard that is all but its ID."""
        whole = self.push_down()
        if not whole.shards:
            return whole
        common = replace(whole.shards[0].spec, id="")
        for entry in whole.shards[1:]:
            common = _pick(common, entry.spec, equal=True)
        shards = (
            replace(entry, spec=_pick(entry.spec, common, equal=False)) for entry in whole.shards
        )
        return ShardSpace(common, tuple(shards))

    def validate(self) -> None:
        """Check IDs, their order and revisions, not whether specs are whole.

        Raises: ValidationError.
        """
        if self.common.id:
            raise ValidationError("must not have an id: it is of all shards", path="common")
        previous: str | None = None
        for index, entry in enumerate(self.shards):
            shard = entry.spec.id
            try:
                validate_shard_id(shard)
            except ValidationError as err:
                raise err.within(f"Shards[{index}].Id") from None
            if previous is not None and shard <= previous:
                step = "name each once" if shard == previous else "sort them by id"
                raise ValidationError(
                    f"expected Shards to be ordered (index {index}; {previous} vs {shard}; {step})"
                )
            if entry.revision < -1:
                raise ValidationError(
                    f"invalid Revision ({entry.revision}; expected >= -1)", path=f"Shards[{index}]"
                )
            previous = shard

    def changes(self) -> list[ShardChange]:
        """The change that each shard asks for, in order of IDs.

        Raises: ValidationError: the document or a spec is not valid, or a deletion lacks its revision.
        """
        self.validate()
        return [_change_of(entry) for entry in self.push_down().shards]


def shard_space_of(shards: Iterable[tuple[ShardSpec, int]]) -> ShardSpace:
    """The document of shards and their revisions, in any order, not hoisted."""
    entries = (ShardEntry(spec, revision=revision) for spec, revision in shards)
    return ShardSpace(shards=tuple(sorted(entries, key=lambda entry: entry.spec.id)))


def _change_of(entry: ShardEntry) -> ShardChange:
    shard = entry.spec.id
    check_change(f"shard {shard}", entry.spec, delete=entry.delete, revision=entry.revision)
    if entry.delete:
        return ShardChange(None, shard, entry.revision)
    return ShardChange(entry.spec, "", entry.revision)


def _overlay(below: ShardSpec, above: ShardSpec) -> ShardSpec:
    """`above`, with zero fields from `below`. Labels of both; of a shared name, those of `above`."""
    changed: dict[str, Any] = {
        name: getattr(below, name) for name in _FIELDS if not getattr(above, name)
    }
    changed["labels"] = below.labels.union(above.labels)
    return replace(above, **changed)


def _pick(own: ShardSpec, other: ShardSpec, *, equal: bool) -> ShardSpec:
    """The fields of `own` that are equal to `other`'s, or that are not; the ID only of the latter."""
    changed: dict[str, Any] = {
        name: getattr(_NO_SPEC, name)
        for name in _FIELDS
        if (getattr(own, name) == getattr(other, name)) is not equal
    }
    labels = own.labels.intersect(other.labels) if equal else own.labels.subtract(other.labels)
    return replace(own, **changed | {"labels": labels, "id": "" if equal else own.id})


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
