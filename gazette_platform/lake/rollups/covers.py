"""What a rollup covers: the content of its sources that each of its slices was made from.

A *part* is a piece of a source that changes as one: a Hive partition of a raw table, or a slice of
another rollup. `Seen` is the state in which a part was read. A slice's cover holds the `Seen` of all
parts that it was made of, so that comparing two of them says, without any clock, what has to be read
again, and what is no longer there to be read.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from gazette_platform.errors import LakeError
from gazette_platform.protocol import is_another
from gazette_platform.protocol.ranges import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    """Which journal the offsets belong to (`protocol.identity`); 0: not known."""
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
