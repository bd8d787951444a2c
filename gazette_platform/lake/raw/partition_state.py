"""What a Hive partition holds so far, kept in its own parameters in the metastore.

This makes registration idempotent by content. If the ranges cover the bytes of a fragment, it was
counted before, whatever a cursor says, so that a crash between any two steps repeats no row.

A fragment whose rows could not be counted, because it is damaged or too large for a tick, is registered
all the same, and noted: the rows of the Hive partition are unknown until it is counted.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.spec.rules import UnfitFragment
from gazette_platform.protocol import is_another, learned
from gazette_platform.protocol.offsets import merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_STATE = "gazette.state"
_VERSION = 1
# Of a state that is kept in numbered parts.
_VERSION_IN_PARTS = 2
# Names that Hive, Trino and Spark read as statistics.
_FIGURES = frozenset({"numFiles", "numRows", "totalSize"})
# A parameter has 4,000 characters in the oldest metastores.
_CHARACTERS_MAX = 3500
# Single files; where more are wrong, the spec is.
_ASIDE_MAX = 24
# Of journals that were created again one after the other, which is as seldom as etcd loses its data.
_FORMERLY_MAX = 8

# Fragments with unfit records that are noted one by one, some 70 KB of parameters; of others only the sum is kept.
_UNFIT_MAX: Final = 500
# Of these, how many say what does not fit, and in how many characters.
_EXAMPLES_MAX: Final = 3
_WHAT_CHARACTERS_MAX: Final = 300

RANGES_MAX: Final = 10_000
"""Of one Hive partition: what would make more is refused. Its parameters come to some 300 KB by then."""

TRIES_MAX: Final = 3
"""Times that a fragment's rows are counted in vain, as long as its file is the same."""


@final
@dataclass(frozen=True, slots=True)
class Uncounted:
    """A fragment that is registered, and whose rows are not known."""

    begin: int
    end: int
    stamp: str = ""
    """Of its file, as it was tried last; see `FragmentContent.stamp`."""
    tries: int = 0
    """In vain, of this file."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Totals of a Hive partition. ``journal`` is empty while the partition holds nothing."""

    journal: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    """Covered bytes [begin, end) of the journal, merged, ascending."""
    fragments: int = 0
    rows: int | None = 0
    """Lines; None if those of some fragment are not known."""
    content_bytes: int = 0
    """Decompressed bytes of all fragments. If fragments overlap, the ranges cover fewer."""
    stored_bytes: int | None = 0
    """Size of the files; None if they are not on this machine."""
    rows_known: int | None = 0
    """While `rows` is None: lines of all fragments except those in `uncounted`; None: not known either, since
    there are too many to be counted."""
    uncounted: tuple[Uncounted, ...] = ()
    """Fragments whose rows are not known."""
    moving: tuple[str, ...] = ()
    """Names of files that are being moved aside, and are in these figures no more. What was not moved when
    a repair was killed is found by them."""
    aside: tuple[tuple[int, int], ...] = ()
    """Begin and end of each fragment that was set aside, ascending: in no range and no total."""
    unfit: tuple[UnfitFragment, ...] = ()
    """Fragments with records that do not fit the spec, ascending."""
    unfit_more: int = 0
    """Such records in fragments beyond those that are noted."""
    created: int = 0
    """Which journal the offsets belong to (`protocol.offsets`); 0: not known."""
    formerly: tuple[int, ...] = ()
    """What `created` was before a person said that it holds what it held, ascending: others keep these."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> PartitionState:
        """The state kept in `parameters`; empty if there is none.

        Raises: LakeError: there is one, but it cannot be read.
        """
        # A partition that a person or `MSCK REPAIR` added has no state: it holds nothing, so its
        # fragments are all counted.
        text = parameters.get(_STATE)
        if text is None:
            return cls()
        try:
            raw = json.loads(text)
            if raw["version"] == _VERSION_IN_PARTS:
                parts = range(1, raw["parts"] + 1)
                raw = json.loads("".join(parameters[f"{_STATE}.{number}"] for number in parts))
            # An older release must stop here: writing the state back would drop fields that it does
            # not know.
            if raw["version"] != _VERSION:
                raise LakeError(
                    f"parameter {_STATE} has version {raw['version']}, this release knows "
                    f"{_VERSION_IN_PARTS} at most: update the platform"
                )
            return cls(
                journal=_text(raw["journal"]),
                ranges=_spans(raw["ranges"]),
                fragments=_number(raw["fragments"]),
                rows=_known(raw["rows"]),
                content_bytes=_number(raw["content_bytes"]),
                stored_bytes=_known(raw["stored_bytes"]),
                # Fields that are nearly always empty are left out then.
                rows_known=_known(raw.get("rows_known")) if raw["rows"] is None else 0,
                uncounted=tuple(_uncounted(*each) for each in raw.get("uncounted", ())),
                moving=tuple(map(_text, raw.get("moving", ()))),
                aside=_spans(raw.get("aside", ())),
                unfit=tuple(_unfit(*each) for each in raw.get("unfit", ())),
                unfit_more=_number(raw.get("unfit_more", 0)),
                created=_number(raw.get("created", 0)),
                formerly=tuple(map(_number, raw.get("formerly", ()))),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as err:
            raise LakeError(
                f"parameter {_STATE} of a Hive partition was changed by others: {text[:80]!r}; drop "
                "that Hive partition (no file is deleted), and reset the sensor's cursor"
            ) from err

    def to_parameters(self) -> dict[str, str]:
        """Parameters that keep the state, and the engines' statistics."""
        state: dict[str, Any] = {
            "version": _VERSION,
            "journal": self.journal,
            "ranges": self.ranges,
            "fragments": self.fragments,
            "rows": self.rows,
            "content_bytes": self.content_bytes,
            "stored_bytes": self.stored_bytes,
            **({"aside": self.aside} if self.aside else {}),
            **({"created": self.created} if self.created else {}),
            **({"formerly": self.formerly} if self.formerly else {}),
        }
        if self.rows is None and self.rows_known is not None:
            state["rows_known"] = self.rows_known
        if self.uncounted:
            state["uncounted"] = [(u.begin, u.end, u.stamp, u.tries) for u in self.uncounted]
        if self.moving:
            state["moving"] = self.moving
        if self.unfit:
            state["unfit"] = [
                (f.begin, f.end, f.records, f.since, f.what, f.mark) for f in self.unfit
            ]
        if self.unfit_more:
            state["unfit_more"] = self.unfit_more
        # Without these the metastore would list the directory at every change, to count its files.
        parameters = {
            **_in_parts(json.dumps(state, separators=(",", ":"))),
            "DO_NOT_UPDATE_STATS": "true",
            "numFiles": str(self.fragments),
        }
        # Engines may answer `count(*)`, or choose a join, by `numRows`. A missing figure is safe, a
        # wrong one is not.
        if self.rows is not None:
            parameters["numRows"] = str(self.rows)
        if self.stored_bytes is not None:
            parameters["totalSize"] = str(self.stored_bytes)
        return parameters

    def within(self, parameters: Mapping[str, str]) -> dict[str, str]:
        """`parameters` with this state in place of the one that they keep; others' stay.

        A figure that is not known any more must not stay behind: engines would believe it.
        """
        # Parts of a longer state would otherwise remain beside a shorter one.
        kept = {
            k: v
            for k, v in parameters.items()
            if k not in _FIGURES and not k.startswith(f"{_STATE}.")
        }
        return {**kept, **self.to_parameters()}

    def covers(self, begin: int, end: int) -> bool:
        """Whether bytes [begin, end) are in one range."""
        # Ranges are merged, so a fragment that two others cover together is covered, too.
        index = bisect_right(self.ranges, begin, key=itemgetter(0)) - 1
        return index >= 0 and end <= self.ranges[index][1]

    def settles(self, begin: int, end: int) -> bool:
        """Whether nothing is to be done about a fragment: it is covered, or was set aside."""
        return self.covers(begin, end) or any(b <= begin and end <= e for b, e in self.aside)

    def with_aside(self, begin: int, end: int) -> PartitionState:
        """The state that knows of one more fragment aside; it is to be `without` it.

        Raises: LakeError: too many are aside.
        """
        aside = tuple(sorted({*self.aside, (begin, end)}))
        if len(aside) > _ASIDE_MAX:
            raise LakeError(
                f"{_ASIDE_MAX} files of this Hive partition are aside, and there may be no more: correct "
                "the table spec, or have a table of its own for what is wrong with them"
            )
        return replace(self, aside=aside)

    def without_aside(self, begin: int, end: int) -> PartitionState:
        """The state that awaits a fragment again."""
        return replace(self, aside=tuple(span for span in self.aside if span != (begin, end)))

    def adding(
        self,
        journal: str,
        begin: int,
        end: int,
        *,
        rows: int | None,
        stored_bytes: int | None,
        stamp: str = "",
        created: int = 0,
        unfit: UnfitFragment | None = None,
    ) -> PartitionState:
        """The state with one more fragment.

        Args:
            journal: of the fragment.
            begin: of the fragment; journal offset.
            end: of the fragment; journal offset.
            rows: in it; None: they could not be counted.
            stored_bytes: size of its file; None: not known.
            stamp: of its file, if the rows could not be counted.
            created: which journal it is (`protocol.offsets`).
            unfit: what of it does not fit, if its rows were counted and some do not.
        """
        # One uncounted file makes the total unknown. What is known stays, so that counting that
        # file completes the total again.
        known = self.rows if self.rows is not None else self.rows_known
        uncounted = self.uncounted
        if rows is None:
            uncounted = (*uncounted, Uncounted(begin, end, stamp, 1))
        added = replace(
            self,
            journal=journal,
            ranges=tuple(merge_ranges((*self.ranges, (begin, end)))),
            # Fragments and bytes are sums and not unions: the difference to the ranges is what
            # `overlap_bytes` reports.
            fragments=self.fragments + 1,
            content_bytes=self.content_bytes + end - begin,
            stored_bytes=(
                None
                if self.stored_bytes is None or stored_bytes is None
                else self.stored_bytes + stored_bytes
            ),
            uncounted=uncounted,
            created=learned(self.created, created),
            # After a new journal has taken over, identities of the former one must not vouch for
            # its bytes.
            formerly=() if is_another(self.created, created) else self.formerly,
        )
        added = added.with_known(None if known is None else known + (rows or 0))
        return added.with_unfit(begin, end, unfit) if unfit is not None else added

    def created_again(self, created: int) -> PartitionState:
        """The state of a journal that holds what it held, and was created again."""
        # Rollups recorded the former identity in their covers; without it they would make all
        # slices again.
        known = {*self.formerly, self.created} - {0, created}
        return replace(self, created=created, formerly=tuple(sorted(known))[-_FORMERLY_MAX:])

    def with_known(self, rows: int | None) -> PartitionState:
        """The state with `rows` in all fragments but the uncounted ones; None: not known."""
        if rows is None or self.uncounted:
            return replace(self, rows=None, rows_known=rows)
        return replace(self, rows=rows, rows_known=0)

    def uncounted_at(self, begin: int, end: int) -> Uncounted | None:
        """What is noted of a fragment whose rows are not known; None: of this one nothing is."""
        return next((u for u in self.uncounted if (u.begin, u.end) == (begin, end)), None)

    def counted(self, begin: int, end: int, rows: int) -> PartitionState:
        """The state when the rows of an uncounted fragment are known."""
        left = tuple(u for u in self.uncounted if (u.begin, u.end) != (begin, end))
        if len(left) == len(self.uncounted):
            return self
        known = None if self.rows_known is None else self.rows_known + rows
        return replace(self, uncounted=left).with_known(known)

    def unfit_at(self, begin: int, end: int) -> UnfitFragment | None:
        """What is noted of the records of a fragment that do not fit; None: of this one nothing is."""
        return next((f for f in self.unfit if (f.begin, f.end) == (begin, end)), None)

    def with_unfit(self, begin: int, end: int, unfit: UnfitFragment | None) -> PartitionState:
        """The state when a fragment was looked at: which of its records do not fit; None: all do."""
        kept = [f for f in self.unfit if (f.begin, f.end) != (begin, end)]
        if unfit is None:
            return replace(self, unfit=tuple(kept))
        # A topic with one bad record per fragment must not fill the metastore's parameters.
        if len(kept) >= _UNFIT_MAX:
            return replace(self, unfit=tuple(kept), unfit_more=self.unfit_more + unfit.records)
        is_shown = sum(bool(f.what) for f in kept) < _EXAMPLES_MAX
        what = unfit.what[:_WHAT_CHARACTERS_MAX] if is_shown else ""
        kept.append(replace(unfit, what=what))
        return replace(self, unfit=tuple(sorted(kept, key=lambda f: (f.begin, f.end))))

    @property
    def unfit_records(self) -> int:
        """Records of all fragments that do not fit."""
        return sum(f.records for f in self.unfit) + self.unfit_more

    def tried(self, begin: int, end: int, stamp: str) -> PartitionState:
        """The state when an uncounted fragment was tried in vain once more."""
        return replace(
            self,
            uncounted=tuple(
                # Another stamp is another file: it gets all tries again.
                Uncounted(begin, end, stamp, u.tries + 1 if u.stamp == stamp else 1)
                if (u.begin, u.end) == (begin, end)
                else u
                for u in self.uncounted
            ),
        )

    def without(
        self,
        begin: int,
        end: int,
        *,
        rows: int | None,
        stored_bytes: int | None,
        left: Iterable[tuple[int, int]],
        unfit: int = 0,
    ) -> PartitionState:
        """The state without one fragment that was counted.

        Args:
            begin: of the fragment; journal offset.
            end: of the fragment; journal offset.
            rows: in it; None: not known.
            stored_bytes: size of its file; None: not known.
            left: spans of the fragments that stay.
            unfit: records of it that do not fit, if that is known; used only if they are not noted.
        """
        # Bytes that other files still hold stay covered. Otherwise the next look would register
        # these files a second time.
        kept = [
            (max(b, low), min(e, high))
            for b, e in self.ranges
            for low, high in left
            if max(b, low) < min(e, high)
        ]
        uncounted = tuple(u for u in self.uncounted if (u.begin, u.end) != (begin, end))
        known = self.rows if self.rows is not None else self.rows_known
        if known is not None and uncounted == self.uncounted:
            known = None if rows is None else max(0, known - rows)
        reduced = replace(
            self,
            ranges=tuple(merge_ranges(kept)),
            # Never negative: accounts that are wrong must not make a repair fail.
            fragments=max(0, self.fragments - 1),
            content_bytes=max(0, self.content_bytes - (end - begin)),
            stored_bytes=(
                None
                if self.stored_bytes is None or stored_bytes is None
                else max(0, self.stored_bytes - stored_bytes)
            ),
            uncounted=uncounted,
            unfit=tuple(f for f in self.unfit if (f.begin, f.end) != (begin, end)),
            unfit_more=max(0, self.unfit_more - unfit)
            if self.unfit_at(begin, end) is None
            else self.unfit_more,
        )
        return reduced.with_known(known)

    @property
    def covered_bytes(self) -> int:
        """Distinct bytes of the journal."""
        return sum(end - begin for begin, end in self.ranges)

    @property
    def overlap_bytes(self) -> int:
        """Bytes that more than one fragment holds: rows that raw queries see twice."""
        return max(0, self.content_bytes - self.covered_bytes)

    @property
    def data_version(self) -> str:
        """Text that changes with the covered bytes, the duplicated ones, or what is uncounted or unfit."""
        # From content alone, without times or names of files: a repeated tick reports the same
        # version, and Dagster starts nothing.
        text = " ".join(f"{begin}-{end}" for begin, end in self.ranges)
        if self.overlap_bytes:
            text += f" twice-{self.overlap_bytes}"
        if self.uncounted:
            text += f" uncounted-{len(self.uncounted)}"
        return f"{text} unfit-{self.unfit_records}" if self.unfit_records else text


# What another hand wrote into the metastore is refused when it is read: of one Hive partition, rather than amid
# the work on a table. Each raises a TypeError.


def _number(raw: Any) -> int:
    # JSON has floats and texts, too, and arithmetic on them would fail far from here.
    if not isinstance(raw, int):
        raise TypeError(raw)
    return raw


def _known(raw: Any) -> int | None:
    return None if raw is None else _number(raw)


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(raw)
    return raw


def _spans(raw: Any) -> tuple[tuple[int, int], ...]:
    return tuple((_number(begin), _number(end)) for begin, end in raw)


def _uncounted(begin: Any, end: Any, stamp: Any = "", tries: Any = 0) -> Uncounted:
    return Uncounted(_number(begin), _number(end), _text(stamp), _number(tries))


def _unfit(  # noqa: PLR0917
    begin: Any, end: Any, records: Any, since: Any, what: Any, mark: Any
) -> UnfitFragment:
    span = _number(begin), _number(end), _number(records), _number(since)
    return UnfitFragment(*span, _text(what), _text(mark))


def _in_parts(text: str) -> dict[str, str]:
    if len(text) <= _CHARACTERS_MAX:
        return {_STATE: text}
    parts = [text[at : at + _CHARACTERS_MAX] for at in range(0, len(text), _CHARACTERS_MAX)]
    # The head is in the usual parameter: a reader that does not know parts sees another version, and stops.
    return {
        _STATE: json.dumps({"version": _VERSION_IN_PARTS, "parts": len(parts)}),
        **{f"{_STATE}.{number}": part for number, part in enumerate(parts, 1)},
    }
