"""Which Hive partitions new fragments belong to: decided here, purely; done in `registration`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.raw.set_aside import home_directory
from gazette_platform.lake.spec.layout import Layout, PartitionColumn, StoreRoots, partition_key
from gazette_platform.protocol import CompressionCodec, Fragment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Limits",
    "Plan",
    "PlannedPartition",
    "directory_of",
    "is_readable",
    "make_plan",
    "require_codec",
]

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
    """Fragments asked of the broker in one call."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """Fragments to be accounted to one Hive partition."""

    values: tuple[str, ...]
    key: str
    """As `layout.partition_key` writes it."""
    location: str
    """Where the first of its fragments lies."""
    journal: str
    fragments: tuple[Fragment, ...]


@final
@dataclass(slots=True, kw_only=True)
class Plan:
    """What to do in this tick."""

    partitions: list[PlannedPartition] = field(default_factory=list)
    errors: dict[str, GazetteError] = field(default_factory=dict)
    """By journal: why the first of its fragments that are left out is; they are tried again."""
    is_complete: bool = True
    """False if a limit ended the plan before all that is persisted was in it."""


def is_readable(codec: CompressionCodec) -> bool:
    """Whether engines read fragments of this codec."""
    return codec in _READABLE


def require_codec(journal: str, codec: CompressionCodec) -> None:
    """Refuse codecs that engines read as garbage without an error.

    Raises: LakeError: SNAPPY or GZIP_OFFLOAD_DECOMPRESSION.
    """
    if not is_readable(codec):
        raise LakeError(
            f"{journal}: fragments with codec {codec.name} cannot be mounted as a table, because "
            "Trino and Spark read them as garbage without an error; set `compression_codec` of the "
            "journal to GZIP (or NONE), and select only fragments written since"
        )


def make_plan(
    wanted: Mapping[str, Sequence[Fragment]],
    *,
    layout: Layout,
    columns: Sequence[PartitionColumn],
    roots: StoreRoots,
    limits: Limits,
    old: Sequence[Fragment] = (),
) -> Plan:
    """Place the persisted fragments of `wanted`.

    Journals take turns, so that none uses up the limits. A fragment that cannot be placed is left
    out, with an error, and holds up no other; one that is not persisted yet is left out, too.

    Args:
        wanted: per journal, new fragments in offset order.
        layout: the table's layout.
        columns: the table's partition columns, in the order of the layout's keys.
        roots: where stores lie for engines.
        limits: bounds of the plan.
        old: fragments to look at again, if the limits leave room.
    """
    plan = Plan()
    placed: dict[tuple[str, ...], list[Fragment]] = {}
    homes: dict[tuple[str, ...], _Home] = {}
    count = 0
    rounds = zip_longest(*wanted.values())
    for fragment in chain((f for turn in rounds for f in turn if f is not None), old):
        if not fragment.backing_store or not fragment.content_length:
            continue
        try:
            values, home = _place(fragment, layout, columns, roots)
            _require_one_place(homes.get(values), home)
        except GazetteError as err:
            plan.errors.setdefault(fragment.journal, err)
            continue
        is_over = count > 0 and (
            count >= limits.fragments_max
            or (values not in placed and len(placed) >= limits.partitions_max)
        )
        if is_over:
            plan.is_complete = False
            break
        placed.setdefault(values, []).append(fragment)
        homes.setdefault(values, home)
        count += 1
    plan.partitions = [
        PlannedPartition(
            values=values,
            key=partition_key(columns, values),
            location=homes[values].location,
            journal=homes[values].journal,
            fragments=tuple(fragments),
        )
        for values, fragments in placed.items()
    ]
    return plan


@final
@dataclass(frozen=True, slots=True)
class _Home:
    """Where fragments of a Hive partition lie. Of one directory in two stores, the first counts."""

    journal: str
    directory: str
    location: str


def _place(
    fragment: Fragment, layout: Layout, columns: Sequence[PartitionColumn], roots: StoreRoots
) -> tuple[tuple[str, ...], _Home]:
    require_codec(fragment.journal, fragment.codec)
    # What is aside belongs to the Hive partition that it was in, whose accounts know of it.
    directory = home_directory(fragment)
    texts = layout.match(directory)
    values = tuple(c.value(t) for c, t in zip(columns, texts, strict=True))
    location = roots.location(fragment.backing_store, directory)
    return values, _Home(fragment.journal, directory, location)


def directory_of(fragment: Fragment) -> str:
    """The fragment's directory below the prefix of its store."""
    return fragment.content_path.rpartition("/")[0]


def _require_one_place(known: _Home | None, home: _Home) -> None:
    if known is not None and (known.journal, known.directory) != (home.journal, home.directory):
        raise LakeError(
            f"{home.journal}: fragments in {home.location} belong to the same Hive partition as those "
            f"in {known.location} ({known.journal}); two directories may not have one value: rename a "
            "key, or type it as string"
        )
