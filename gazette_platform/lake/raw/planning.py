"""Which Hive partitions new fragments belong to, and how far each journal is registered: decided purely.

A journal's cursor says where to go on, and which bytes before that are missing: *holes*. Registration waits for a hole,
because another broker may still be uploading its fragment, but registers what follows all the same. It gives a hole up when
the fragment after it is as old as brokers let readers wait, or when all before that fragment was pruned. It does so no
sooner, so neither a slow store nor one bad file delays anything else.

Times are those of fragments, never a clock's, so the cursor's text is the same for the same progress.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import GazetteError, LakeError, ValidationError
from gazette_platform.lake.spec.layout import (
    Layout,
    PartitionColumn,
    StoreRoots,
    expected_layout,
    home_directory,
    partition_columns,
    partition_key,
)
from gazette_platform.protocol import CompressionCodec, Fragment
from gazette_platform.protocol.offsets import subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import JournalSpec

_JOURNALS_SHOWN_MAX = 5
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
    # Old fragments come last: looking again must never delay what is new.
    rounds = zip_longest(*wanted.values())
    for fragment in chain((f for turn in rounds for f in turn if f is not None), old):
        # Stay awaited: the cursor passes over a fragment only when it is registered.
        if not fragment.backing_store or not fragment.content_length:
            continue
        try:
            values, home = _place(fragment, layout, columns, roots)
            _require_one_place(homes.get(values), home)
        except GazetteError as err:
            # One fragment in an odd directory must not stop the table. Its bytes stay a hole, and
            # the error is reported each tick.
            plan.errors.setdefault(fragment.journal, err)
            continue
        # One fragment at least, or a limit below the size of a single one would stop the table for
        # good.
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
    # Engines choose the codec by the suffix alone. They read `.sz` and GZIP_OFFLOAD files as
    # garbage rows, without an error.
    require_codec(fragment.journal, fragment.codec)
    # What is aside belongs to the Hive partition that it was in, whose accounts know of it.
    directory = home_directory(fragment)
    texts = layout.match(directory)
    values = tuple(c.value(t) for c, t in zip(columns, texts, strict=True))
    location = roots.location(fragment.backing_store, directory)
    return values, _Home(fragment.journal, directory, location)


def _require_one_place(known: _Home | None, home: _Home) -> None:
    # Typing a key can make two directories one value, such as `hour=5` and `hour=05`. A Hive
    # partition has one location, so engines would skip one of them.
    if known is not None and (known.journal, known.directory) != (home.journal, home.directory):
        raise LakeError(
            f"{home.journal}: fragments in {home.location} belong to the same Hive partition as those "
            f"in {known.location} ({known.journal}); two directories may not have one value: rename a "
            "key, or type it as string"
        )


def problems_with_journals(
    spec: TableSpec, journals: Sequence[JournalSpec], at: datetime
) -> list[ValidationError]:
    """What speaks against a spec over `journals`, which its selector matches.

    Args:
        spec: the spec.
        journals: specs of the journals.
        at: a time that postfixes are tried with.
    """
    if not journals:
        return [
            ValidationError(
                f"{spec.selector!r} matches no journal: correct it (`gazctl journals list -l …` "
                "tries one), or make the journals first",
                path="selector",
            )
        ]
    found: list[ValidationError] = []
    for journal in journals:
        if len(found) < _JOURNALS_SHOWN_MAX:
            found += problems_of("selector", partial(_require_readable, journal))
    try:
        layout = expected_layout(journals, at)
    except GazetteError as err:
        return [*found, ValidationError(str(err), path="selector")]
    return found + problems_of("partitions", lambda: partition_columns(spec, layout))


def _require_readable(journal: JournalSpec) -> None:
    require_codec(journal.name, journal.fragment.codec)
    if not journal.fragment.stores:
        raise LakeError(
            f"{journal.name} has no fragment store, so no engine can read it: give it one under "
            "`fragment.stores` of the journal's spec"
        )


def problems_of(path: str, work: Callable[[], object]) -> list[ValidationError]:
    """Return why `work` refuses something, at a key of the spec unless the error names one; nothing if it does not."""
    try:
        work()
    except GazetteError as err:
        is_placed = isinstance(err, ValidationError) and err.path
        return [ValidationError(str(err), path="" if is_placed else path)]
    return []


HOLES_MAX: Final = 32
"""Per journal. Beyond it, the two nearest are taken as one: what lies between is looked at again."""

JUMP_AGE_S: Final = 6 * 3600
"""Seconds, as in `fragment.index`: brokers let readers jump a hole when what follows is this old."""

_VERSION = 3
_Range = tuple[int, int]


@final
@dataclass(frozen=True, slots=True)
class JournalCursor:
    """Where to go on in a journal."""

    offset: int = 0
    """End of the furthest fragment that is registered."""
    last: int | None = None
    """Begin of that fragment; `offset` if brokers list it no more, None if it is not known."""
    holes: tuple[_Range, ...] = ()
    """Bytes before `offset` that are awaited: disjoint, ascending."""
    stored_at: int | None = None
    """Unix seconds at which that fragment had been stored when it was registered; None: not known. Another
    time shows that it was stored again."""
    created: int = 0
    """Which journal the offsets belong to (`protocol.offsets`); 0: not known."""

    @property
    def complete_to(self) -> int:
        """All bytes before this are registered, or given up."""
        return self.holes[0][0] if self.holes else self.offset

    @property
    def hole_bytes(self) -> int:
        """Bytes awaited before `offset`."""
        return sum(end - begin for begin, end in self.holes)

    def wants(self, fragment: Fragment) -> bool:
        """Whether `fragment` holds bytes that are not registered as far as the cursor knows."""
        # Holes count as wanted: a late fragment of another broker arrives below the offset.
        return fragment.end > self.offset or any(
            begin < fragment.end and fragment.begin < end for begin, end in self.holes
        )

    def to_json(self) -> list[Any]:
        """As JSON values."""
        return [self.offset, self.last, self.stored_at, self.created, *map(list, self.holes)]

    @classmethod
    def from_json(cls, raw: Any) -> JournalCursor:
        """The cursor whose `to_json` was `raw`.

        Raises: ValueError, TypeError: it is none.
        """
        offset, last, stored_at, created, *holes = raw
        return cls(
            int(offset),
            None if last is None else int(last),
            tuple((int(begin), int(end)) for begin, end in holes),
            None if stored_at is None else int(stored_at),
            int(created),
        )


@final
@dataclass(frozen=True, slots=True)
class RegistrationCursor:
    """Per table and journal, how far all is registered."""

    tables: Mapping[str, Mapping[str, JournalCursor]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, raw: Any) -> RegistrationCursor:
        """The cursor whose `to_json` was `raw`.

        Raises: ValidationError: not a cursor of the version known here; says how to reset it.
        """
        try:
            if raw["version"] != _VERSION:
                raise ValidationError(f"cursor has version {raw['version']}", path="cursor")
            return cls(
                {
                    str(table): {str(j): JournalCursor.from_json(c) for j, c in journals.items()}
                    for table, journals in raw["tables"].items()
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise no_cursor(json.dumps(raw)) from err

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "version": _VERSION,
            "tables": {
                table: {journal: cursor.to_json() for journal, cursor in journals.items()}
                for table, journals in self.tables.items()
            },
        }


def no_cursor(text: str) -> ValidationError:
    """Return the error that `text` is not a cursor, and how to continue without one."""
    return ValidationError(
        f"{text[:60]!r} is not a cursor of this sensor: clear it in the Dagster UI; "
        "everything is then registered again, which repeats no row and no event",
        path="cursor",
    )


@final
@dataclass(frozen=True, slots=True)
class Page:
    """All fragments of a journal that begin at `begin` or later, up to the last of `fragments`."""

    begin: int
    fragments: Sequence[Fragment]
    is_first: bool = False
    """Whether brokers list nothing before them."""

    def is_behind(self, hole: _Range) -> bool:
        """Whether the journal begins behind `hole` by now, and what followed it."""
        return self.is_first and bool(self.fragments) and hole[1] < self.fragments[0].begin


def advance(
    cursor: JournalCursor, pages: Iterable[Page], done: Collection[_Range], *, now_s: float
) -> JournalCursor:
    """The cursor after a tick that was shown `pages` and registered `done`.

    What a page shows and is not done (not persisted yet, refused, or out of time) stays awaited, as
    long as brokers list it. A gap between what they list is given up at the age of `JUMP_AGE_S`.

    Args:
        cursor: before.
        pages: what was listed.
        done: begin and end of fragments that are registered, now or before.
        now_s: unix seconds.
    """
    # The result depends on listings and results only. A tick that dies after registering and before
    # the cursor is stored repeats with the same outcome.
    pages = list(pages)
    offset = max((end for _, end in done), default=0)
    offset = max(offset, cursor.offset)
    awaited = [*cursor.holes, *([(cursor.offset, offset)] if offset > cursor.offset else [])]
    # Everything between the former and the new offset is awaited until something registers it or
    # gives it up.
    left = subtract_ranges(awaited, done)
    listed = [(f.begin, f.end) for page in pages for f in page.fragments]
    gaps = [gap for page in pages for gap in _given_up(page, now_s - JUMP_AGE_S)]
    # Give up only what no listing shows: a fragment that is listed and refused stays awaited,
    # however old it is.
    left = subtract_ranges(left, subtract_ranges(gaps, listed))
    # Where content is kept for a shorter time, what follows a hole is pruned before it is that old.
    left = [hole for hole in left if not any(page.is_behind(hole) for page in pages)]
    last = _last(cursor, offset, pages, done)
    stored_at = _stored_at(cursor, offset, last, pages)
    return JournalCursor(offset, last, bounded(left), stored_at, cursor.created)


def _given_up(page: Page, before_s: float) -> list[_Range]:
    """Gaps of a page that lie before a fragment older than `before_s`."""
    found: list[_Range] = []
    reach = page.begin
    for fragment in page.fragments:
        # Age counts from when the following fragment was stored: a broker that uploads late has six
        # hours, as brokers give their readers.
        if fragment.begin > reach and fragment.backing_store and fragment.mod_time < before_s:
            found.append((reach, fragment.begin))
        reach = max(reach, fragment.end)
    return found


def _last(
    cursor: JournalCursor, offset: int, pages: Sequence[Page], done: Collection[_Range]
) -> int | None:
    listed = [f for page in pages for f in page.fragments]
    # One that took the place of what was registered, and is not done, must be listed again.
    # After a fail-over, a longer fragment may cover the registered one and more. Listing from its
    # begin shows its rest.
    spanning = [f.begin for f in listed if f.begin < offset < f.end]
    if spanning:
        return min(spanning)
    ending = [begin for begin, end in done if end == offset]
    ending += [f.begin for f in listed if f.end == offset]
    if ending:
        return max(ending)
    begin = cursor.last if cursor.last is not None else cursor.offset or None
    # Only a listing that reached back to the registered fragment can show that brokers no longer
    # list it.
    was_looked_for = begin is not None and any(p.begin <= begin for p in pages)
    return offset if offset > cursor.offset or was_looked_for else cursor.last


def _stored_at(
    cursor: JournalCursor, offset: int, last: int | None, pages: Sequence[Page]
) -> int | None:
    """When the fragment of [last, offset) was stored; the time at which it was registered stays."""
    # Keep the first time: brokers store a fragment again if its store is empty, and this is how
    # `retention` finds out.
    if cursor.stored_at is not None and (cursor.offset, cursor.last) == (offset, last):
        return cursor.stored_at
    times = [
        f.mod_time
        for page in pages
        for f in page.fragments
        if (f.begin, f.end) == (last, offset) and f.backing_store and f.mod_time
    ]
    return min(times, default=None)


def bounded(holes: Sequence[_Range], count_max: int = HOLES_MAX) -> tuple[_Range, ...]:
    """At most `count_max` ranges that hold all of `holes`, the nearest ones taken together.

    >>> bounded([(0, 1), (5, 6), (7, 8)], 2)
    ((0, 1), (5, 8))
    """
    # Dagster keeps the cursor as one text per tick. Joining holes repeats work and loses nothing,
    # since accounts know what is registered.
    if len(holes) <= count_max:
        return tuple(holes)
    # The widest distances stay; holes on both sides of any other become one.
    apart = sorted(range(1, len(holes)), key=lambda i: (holes[i - 1][1] - holes[i][0], i))
    cuts = sorted(apart[: count_max - 1])
    bounds = [0, *cuts, len(holes)]
    return tuple((holes[low][0], holes[high - 1][1]) for low, high in pairwise(bounds))
