"""What a rollup covers, and what a run of it has to do: which slices to make, to drop, or to leave. Pure.

A *part* is a piece of a source that changes as one: a Hive partition of a raw table, or a slice of another rollup. `Seen` is
the state in which a part was read. A slice's *cover* holds the `Seen` of all parts that it was made of. Comparing two of them
says, without any clock, what has to be read again, and what can no longer be read.

`make_plan` compares covers with the state of the sources:

| the slice | covered as it is | content came | content is gone (pruned) |
|---|---|---|---|
| ``retention: keep`` | nothing | make | leave: made again it would shrink; reported if content came as well |
| ``retention: follow`` | nothing | make | make, or drop if nothing is left |

Only the slices whose parts have changed are made, so only their parts are read. If the code has
changed all are, in one commit, and those that would shrink keep the rows of the old code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import LakeError
from gazette_platform.protocol import is_another
from gazette_platform.protocol.offsets import merge_ranges, subtract_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.lake.rollups.spec import RollupSpec

_VERSION = 1


@final
@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a part."""

    journal: str = ""
    """Whose bytes it holds; empty: it is not a part of a raw table."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Offsets [begin, end) of the journal, ascending."""
    note: str = ""
    """What else tells two states apart."""
    created: int = 0
    """Which journal the offsets belong to (`protocol.offsets`); 0: not known."""
    formerly: tuple[int, ...] = field(default=(), compare=False)
    """As of `PartitionState`, whose it is alone: covers keep none."""

    def is_of_journal(self, other: Seen) -> bool:
        """Whether offsets of both are of one journal."""
        pairs = [
            (self.created, other.created),
            *((self.created, former) for former in other.formerly),
            *((other.created, former) for former in self.formerly),
        ]
        is_same = not all(is_another(one, two) for one, two in pairs)
        return self.journal == other.journal and is_same

    def holds(self, former: Seen) -> bool:
        """Whether all content of `former` is still there."""
        if not former.journal:
            return True
        return self.is_of_journal(former) and all(
            any(b <= begin and end <= e for b, e in self.ranges) for begin, end in former.ranges
        )


@final
@dataclass(frozen=True, slots=True)
class SliceCover:
    """Of what a slice was made."""

    code: str
    """`RollupSpec.code_version` of the query."""
    parts: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)
    """By alias of the source, then by name of the part."""

    @property
    def digest(self) -> str:
        """16 hex digits that change exactly when the cover does."""
        raw = [self.code, _parts_to_json(self.parts)]
        return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()[:16]


@final
@dataclass(frozen=True, slots=True)
class Covers:
    """Covers of all slices of a rollup, by their values, which are texts as in a path."""

    slices: Mapping[tuple[str, ...], SliceCover] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """Of the values: `RollupSpec.slices` as it was."""

    @property
    def digest(self) -> str:
        """16 hex digits that change exactly when any cover does; the rollup's data version."""
        slices = sorted((values, cover.digest) for values, cover in self.slices.items())
        raw = [self.columns, slices]
        return hashlib.sha256(json.dumps(raw).encode()).hexdigest()[:16]

    def with_slices(
        self, made: Mapping[tuple[str, ...], SliceCover], dropped: Iterable[tuple[str, ...]] = ()
    ) -> Covers:
        """These covers after a commit."""
        gone = set(dropped)
        kept = {values: cover for values, cover in self.slices.items() if values not in gone}
        return Covers({**kept, **made}, self.columns)

    def offsets(self) -> dict[str, list[tuple[int, int]]]:
        """By journal, the offsets that all slices together were made of; merged, ascending."""
        found: dict[str, list[tuple[int, int]]] = {}
        for cover in self.slices.values():
            for parts in cover.parts.values():
                for seen in parts.values():
                    if seen.journal:
                        found.setdefault(seen.journal, []).extend(seen.ranges)
        return {journal: merge_ranges(found[journal]) for journal in sorted(found)}

    def dump(self) -> str:
        """The covers as text; equal covers have equal texts."""
        slices = [
            [list(values), cover.code, _parts_to_json(cover.parts)]
            for values, cover in sorted(self.slices.items())
        ]
        raw = {"version": _VERSION, "columns": self.columns, "slices": slices}
        return json.dumps(raw, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | bytes) -> Covers:
        """The covers whose `dump` was `text`.

        Raises: LakeError: it is no such text, or of a newer release.
        """
        try:
            raw = json.loads(text)
            if raw["version"] != _VERSION:
                raise LakeError(
                    f"what the rollup covers has version {raw['version']}, this release knows "
                    f"{_VERSION}: update the platform"
                )
            return cls(
                {
                    tuple(map(str, values)): SliceCover(str(code), _parts_from_json(parts))
                    for values, code, parts in raw["slices"]
                },
                tuple(map(str, raw["columns"])),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise LakeError(f"what the rollup covers cannot be read: {text[:80]!r}") from err


def _parts_to_json(parts: Mapping[str, Mapping[str, Seen]]) -> dict[str, dict[str, list[Any]]]:
    return {
        alias: {
            name: [
                seen.journal,
                [list(r) for r in seen.ranges],
                seen.note,
                *([seen.created] if seen.created else []),
            ]
            for name, seen in sorted(by_name.items())
        }
        for alias, by_name in sorted(parts.items())
    }


def _parts_from_json(raw: Any) -> dict[str, dict[str, Seen]]:
    return {
        str(alias): {
            str(name): Seen(
                str(journal),
                tuple((int(begin), int(end)) for begin, end in ranges),
                str(note),
                int(created[0]) if created else 0,
            )
            for name, (journal, ranges, note, *created) in by_name.items()
        }
        for alias, by_name in raw.items()
    }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """What a source holds now."""

    table: str
    columns: tuple[str, ...]
    """Its partition columns, or those of its slices."""
    parts: Mapping[str, tuple[tuple[str, ...], Seen]] = field(default_factory=dict)
    """By name of the part: its values of the columns, and its state."""
    can_shrink: bool = True
    """Whether retention takes content away: of a raw table."""


@final
@dataclass(frozen=True, slots=True)
class Sealed:
    """A slice that is left as it is, since its content is no longer all there."""

    values: tuple[str, ...]
    is_behind: bool
    """Whether there is content, or code, that it was not made of."""


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one run."""

    make: Mapping[tuple[str, ...], SliceCover] = field(default_factory=dict)
    """By values: of what each slice is to be made."""
    drop: tuple[tuple[str, ...], ...] = ()
    sealed: tuple[Sealed, ...] = ()
    is_rebuild: bool = False
    """Whether the code has changed: then all is committed at once."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.make and not self.drop

    @property
    def behind(self) -> list[Sealed]:
        """Sealed slices that lack something."""
        return [sealed for sealed in self.sealed if sealed.is_behind]


def make_plan(
    spec: RollupSpec,
    sources: Mapping[str, SourceState],
    covers: Covers,
    *,
    is_forced: bool = False,
) -> Plan:
    """What a run has to do.

    Args:
        spec: the rollup.
        sources: by alias, read after `covers` was.
        covers: what the table covers, by the aliases of now; empty if there is no table yet.
        is_forced: make everything again, also what shrinks by it.

    Raises: LakeError: a source is not partitioned by the columns of the slices.
    """
    code = spec.code_version
    wanted = _wanted(spec, sources)
    if covers.slices and covers.columns != spec.slices:
        return _sliced_anew(spec, sources, covers, wanted, is_forced=is_forced)
    is_rebuild = is_forced
    make: dict[tuple[str, ...], SliceCover] = {}
    drop: list[tuple[str, ...]] = []
    sealed: list[Sealed] = []
    for values in sorted({*wanted, *covers.slices}):
        former = covers.slices.get(values)
        parts = wanted.get(values)
        # Rows of pruned content exist only here. Only `retention: follow` or a person's `force` may
        # drop them.
        keeps = former is not None and not is_forced and spec.retention == "keep"
        if former is not None and keeps and _is_less(sources, former, parts):
            sealed.append(Sealed(values, former.code != code or _is_more(former, parts)))
        elif parts is None:
            drop.append(values)
        elif is_forced or former is None or former != SliceCover(code, parts):
            make[values] = SliceCover(code, parts)
            # One commit for all: readers would otherwise see rows of two versions of the code side
            # by side.
            is_rebuild |= former is not None and former.code != code
    return Plan(make, tuple(drop), tuple(sealed), is_rebuild)


def _sliced_anew(
    spec: RollupSpec,
    sources: Mapping[str, SourceState],
    covers: Covers,
    wanted: Mapping[tuple[str, ...], Mapping[str, Mapping[str, Seen]]],
    *,
    is_forced: bool,
) -> Plan:
    """The plan for a table that has slices of other columns: nothing of it can stay."""
    now: dict[str, dict[str, Seen]] = {}
    for parts in wanted.values():
        for alias, by_name in parts.items():
            now.setdefault(alias, {}).update(by_name)
    keeps = spec.retention == "keep" and not is_forced
    if keeps and any(_is_less(sources, former, now) for former in covers.slices.values()):
        raise LakeError(
            f"{spec.name} has slices of {', '.join(covers.columns) or 'no column'} whose content was "
            f"pruned, so it cannot be sliced by {', '.join(spec.slices) or 'none'} without losing rows: "
            "undo that, give the rollup another name, or run it with `force: true`"
        )
    # Old slices cannot be matched with new ones, so any prune would lose rows.
    make = {values: SliceCover(spec.code_version, wanted[values]) for values in sorted(wanted)}
    return Plan(make, tuple(sorted(covers.slices)), is_rebuild=True)


def _wanted(
    spec: RollupSpec, sources: Mapping[str, SourceState]
) -> dict[tuple[str, ...], dict[str, dict[str, Seen]]]:
    """By values of a slice, the parts that it is to be made of."""
    wanted: dict[tuple[str, ...], dict[str, dict[str, Seen]]] = {}
    whole: dict[str, dict[str, Seen]] = {}
    for alias, source in sources.items():
        if spec.slices and set(spec.slices) <= set(source.columns):
            at = [source.columns.index(column) for column in spec.slices]
            for name, (values, seen) in source.parts.items():
                slice_values = tuple(values[i] for i in at)
                wanted.setdefault(slice_values, {}).setdefault(alias, {})[name] = seen
        elif spec.slices and source.can_shrink:
            missing = [c for c in spec.slices if c not in source.columns]
            raise LakeError(
                f"{spec.name} is sliced by {', '.join(missing)}, but {source.table} is partitioned by "
                f"{', '.join(source.columns) or 'nothing'}: slice it by columns that all raw tables "
                "have, or make it of a rollup of that table"
            )
        else:
            # A dimension table: a change in it may change every slice.
            whole[alias] = {name: seen for name, (_, seen) in source.parts.items()}
    if not spec.slices:
        return {(): whole} if any(whole.values()) else {}
    if whole and not any(set(spec.slices) <= set(s.columns) for s in sources.values()):
        raise LakeError(
            f"{spec.name} is sliced by {', '.join(spec.slices)}, but none of its sources is: leave "
            "`slices` out, or slice it by columns of one of them"
        )
    # What is read whole changes all slices; one digest stands for its parts.
    digests = {alias: {"": Seen(note=SliceCover("", {"": p}).digest)} for alias, p in whole.items()}
    return {values: {**parts, **digests} for values, parts in wanted.items()}


def with_new_aliases(sources: Mapping[str, SourceState], covers: Covers) -> Covers:
    """Covers in which sources have the aliases that they have now.

    Another alias does not mean other content: a slice that is left as it is has to be known by it from then on. A source is
    recognized by the journals of its parts, or by their names if it is a rollup.

    Args:
        sources: by alias.
        covers: what the table covers, by the aliases of then.
    """
    known: dict[str, set[str]] = {}
    beside: dict[str, set[str]] = {}
    for cover in covers.slices.values():
        for alias, by_name in cover.parts.items():
            known.setdefault(alias, set()).update(s.journal or n for n, s in by_name.items())
            beside.setdefault(alias, set()).update(cover.parts)
    now = {
        alias: {seen.journal or name for name, (_, seen) in source.parts.items()}
        for alias, source in sources.items()
    }
    renamed: dict[str, str] = {}
    for alias in known.keys() - sources.keys():
        # What was read beside it is another one.
        found = sorted(a for a in now.keys() - beside[alias] if now[a] & known[alias])
        renamed |= {alias: found[0]} if found else {}
    if not renamed:
        return covers
    slices = {
        values: SliceCover(
            cover.code, {renamed.get(alias, alias): parts for alias, parts in cover.parts.items()}
        )
        for values, cover in covers.slices.items()
    }
    return Covers(slices, covers.columns)


def _is_less(
    sources: Mapping[str, SourceState],
    former: SliceCover,
    parts: Mapping[str, Mapping[str, Seen]] | None,
) -> bool:
    """Whether content that the slice was made of is gone.

    A source that the query no longer reads does not count.
    """
    return any(
        not _is_held(name, by_name, (parts or {}).get(alias, {}))
        for alias, by_name in former.parts.items()
        # A source that the query dropped would otherwise seal all slices for good.
        if alias in sources
        for name in by_name
    )


def _is_held(name: str, by_name: Mapping[str, Seen], now: Mapping[str, Seen]) -> bool:
    """Whether all content of a part is still there.

    Of files that overlapped across Hive partitions, the one that others cover is moved aside: then this part
    has less, and nothing is gone if another source of the slice held the same bytes and still does.

    Args:
        name: of the part.
        by_name: parts that the slice was made of, by name.
        now: parts of the same source, by name.
    """
    former, here = by_name[name], now.get(name)
    if here is None or here.holds(former) or not here.is_of_journal(former):
        return here is not None and here.holds(former)
    elsewhere = [
        held
        for other, seen in by_name.items()
        if other != name
        and other in now
        and seen.is_of_journal(now[other])
        and here.is_of_journal(now[other])
        for held in subtract_ranges(seen.ranges, subtract_ranges(seen.ranges, now[other].ranges))
    ]
    return not subtract_ranges(subtract_ranges(former.ranges, here.ranges), elsewhere)


def _is_more(former: SliceCover, parts: Mapping[str, Mapping[str, Seen]] | None) -> bool:
    """Whether there is content that the slice was not made of."""
    for alias, by_name in (parts or {}).items():
        for name, seen in by_name.items():
            before = former.parts.get(alias, {}).get(name)
            # Iceberg parts have no ranges, only a note; any difference may be new content.
            if before is None or not before.holds(seen) or (not seen.journal and before != seen):
                return True
    return False


def covers_after(
    spec: RollupSpec, covers: Covers, plan: Plan, made: Mapping[tuple[str, ...], SliceCover]
) -> Covers:
    """What the table covers when some slices of the plan are committed, with all that it drops."""
    if covers.columns != spec.slices:
        # Covers of other columns mean nothing for the new slices.
        return Covers(dict(made), spec.slices)
    return covers.with_slices(made, plan.drop)


def batches(plan: Plan, slices_max: int) -> Sequence[Mapping[tuple[str, ...], SliceCover]]:
    """The slices to make, in order, some at a time."""
    items = list(plan.make.items())
    return [dict(items[at : at + slices_max]) for at in range(0, len(items), slices_max)]
