"""Which Hive partitions new fragments belong to: decided here, purely; done in `registration`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.layout import Layout, PartitionColumn, StoreRoots, partition_key
from gazette_platform.protocol import CompressionCodec, Fragment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Limits", "Plan", "PlannedPartition", "directory_of", "make_plan", "require_codec"]

_READABLE = (CompressionCodec.NONE, CompressionCodec.GZIP, CompressionCodec.ZSTANDARD)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the work on one table in one tick; the rest is left for the next."""

    fragments_max: int = 2000
    partitions_max: int = 500
    content_bytes_max: int = 1 << 30
    """Decompressed bytes to read for row counts; one larger fragment alone is allowed."""
    page_limit: int = 1000
    """Fragments asked of the broker at once, per journal."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """Fragments to be accounted to one Hive partition."""

    values: tuple[str, ...]
    key: str
    """Dagster's partition key."""
    location: str
    journal: str
    fragments: tuple[Fragment, ...]


@final
@dataclass(slots=True, kw_only=True)
class Plan:
    """What to do in this tick, and the offsets to start the next one from."""

    partitions: list[PlannedPartition] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    errors: dict[str, GazetteError] = field(default_factory=dict)
    """By journal: why its fragments from some offset on are left out; they are tried again."""
    is_complete: bool = True
    """False if a limit ended the plan before all that is persisted was in it."""


def require_codec(journal: str, codec: CompressionCodec) -> None:
    """Refuse codecs that engines read as garbage without an error.

    Raises: LakeError: SNAPPY or GZIP_OFFLOAD_DECOMPRESSION.
    """
    if codec not in _READABLE:
        raise LakeError(
            f"{journal}: fragments with codec {codec.name} cannot be mounted as a table, because "
            "Trino and Spark read them as garbage without an error; set `compression_codec` of the "
            "journal to GZIP (or NONE), and select only fragments written since"
        )


def make_plan(
    listed: Mapping[str, Sequence[Fragment]],
    *,
    offsets: Mapping[str, int],
    layout: Layout,
    columns: Sequence[PartitionColumn],
    roots: StoreRoots,
    limits: Limits,
) -> Plan:
    """Place the persisted fragments of `listed`.

    A journal's fragments are taken in offset order up to the first that is not persisted yet, so an
    offset says that all before it is done. An error in one journal does not hold up the others.

    Args:
        listed: per journal, fragments in offset order.
        offsets: per journal, where to go on; 0 if absent.
        layout: the table's layout.
        columns: the table's partition columns, in the order of the layout's keys.
        roots: where stores lie for engines.
        limits: bounds of the plan.
    """
    plan = Plan(offsets=dict(offsets))
    placed: dict[tuple[str, ...], list[Fragment]] = {}
    locations: dict[tuple[str, ...], tuple[str, str]] = {}
    count = length = 0
    for journal, fragments in listed.items():
        for fragment in fragments:
            if fragment.end <= plan.offsets.get(journal, 0) or not fragment.content_length:
                continue
            if not fragment.backing_store:
                break
            try:
                values, location = _place(fragment, layout, columns, roots)
                _require_one_place(locations.get(values), location, journal)
            except GazetteError as err:
                plan.errors[journal] = err
                break
            is_over = count > 0 and (
                count >= limits.fragments_max
                or length + fragment.content_length > limits.content_bytes_max
                or (values not in placed and len(placed) >= limits.partitions_max)
            )
            if is_over:
                plan.is_complete = False
                break
            placed.setdefault(values, []).append(fragment)
            locations[values] = (location, journal)
            plan.offsets[journal] = fragment.end
            count += 1
            length += fragment.content_length
    plan.partitions = [
        PlannedPartition(
            values=values,
            key=partition_key(columns, values),
            location=locations[values][0],
            journal=locations[values][1],
            fragments=tuple(fragments),
        )
        for values, fragments in placed.items()
    ]
    return plan


def _place(
    fragment: Fragment, layout: Layout, columns: Sequence[PartitionColumn], roots: StoreRoots
) -> tuple[tuple[str, ...], str]:
    require_codec(fragment.journal, fragment.codec)
    directory = directory_of(fragment)
    texts = layout.match(directory)
    values = tuple(c.value(t) for c, t in zip(columns, texts, strict=True))
    return values, roots.location(fragment.backing_store, directory)


def directory_of(fragment: Fragment) -> str:
    """The fragment's directory below the prefix of its store."""
    return fragment.content_path.rpartition("/")[0]


def _require_one_place(known: tuple[str, str] | None, location: str, journal: str) -> None:
    if known is not None and known != (location, journal):
        raise LakeError(
            f"{journal}: fragments in {location} belong to the same Hive partition as those in "
            f"{known[0]} ({known[1]}); two directories may not have one value: rename a key, or "
            "type it as string"
        )
