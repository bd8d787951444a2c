"""Documents of shards, which name once what their shards share.

*Push-down* fills the zero fields of each shard from `common`; *hoisting* is the way back. A shard
cannot set a field back to zero under a `common` that has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from gazette_platform.consumer.protocol.specs import ShardSpec, validate_shard_id
from gazette_platform.errors import ValidationError
from gazette_platform.yaml_specs.documents import check_change

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ShardChange", "ShardEntry", "ShardSpace", "shard_space_of"]

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

    def patch(self, patch: ShardEntry) -> ShardSpace:
        """The document with one shard added in its place, or its fields that are not zero changed."""
        whole = {entry.spec.id: entry for entry in self.push_down().shards}
        known = whole.get(patch.spec.id)
        if known is not None:
            patch = ShardEntry(
                _overlay(known.spec, patch.spec),
                patch.comment or known.comment,
                known.delete if patch.delete is None else patch.delete,
                patch.revision or known.revision,
            )
        whole[patch.spec.id] = patch
        return ShardSpace(shards=tuple(whole[shard] for shard in sorted(whole)))

    def with_others_deleted(self, kept: Iterable[str]) -> ShardSpace:
        """The document with all shards to be deleted whose ID is not among `kept`."""
        ids = set(kept)
        shards = (
            entry if entry.spec.id in ids else replace(entry, delete=True) for entry in self.shards
        )
        return replace(self, shards=tuple(shards))

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
