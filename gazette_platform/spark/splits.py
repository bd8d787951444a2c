"""What of journals which task reads: decided purely.

Brokers list fragments that may overlap, as after a fail-over. They are cut where they meet, by the plan that
`gazctl sql` has, and begin where the read does. Fragments end between appends, so no span begins within a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.lake.segments import plan_segments

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_platform.client import FragmentListing
    from gazette_platform.message.sequencer import ProducerState

__all__ = ["Bounds", "Range", "RangePlan", "Span", "pack", "plan_range"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bytes [begin, end) of a journal that are to be read."""

    journal: str
    content_type: str
    begin: int
    end: int
    producers: tuple[ProducerState, ...] = ()
    """Of committed messages, what is known of those before it."""
    created: int = 0
    """Which journal it is (`protocol.identity`); 0: not known."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Bytes [begin, end) of a journal, and who holds them."""

    journal: str
    content_type: str
    begin: int
    end: int
    listing: FragmentListing | None = None
    """The persisted fragment that is read; None: brokers are asked."""
    producers: tuple[ProducerState, ...] = ()
    """As of `Range`."""
    created: int = 0
    """As of `Range`."""

    @override
    def __repr__(self) -> str:
        # A signed URL lets anyone fetch what is behind it, and Spark logs partitions.
        return f"Span({self.journal!r}, {self.begin}, {self.end})"


@final
@dataclass(frozen=True, slots=True)
class RangePlan:
    """A range, cut into spans; in order, without overlaps."""

    spans: tuple[Span, ...]
    holes: tuple[tuple[int, int], ...]
    """Missing bytes. One that begins with the range is what was pruned."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a query's filters leave to be read. Spark applies them once more, row by row."""

    journals: frozenset[str] | None = None
    """Names; None: all."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names."""
    begin_min: int = 0
    """Rows of smaller `_begin` are not asked for."""
    begin_max: int | None = None
    """Rows of larger `_begin` are not asked for."""

    def takes_journal(self, name: str) -> bool:
        """Whether rows of a journal may be asked for."""
        is_named = self.journals is None or name in self.journals
        return is_named and all(map(name.startswith, self.prefixes))

    def takes_span(self, span: Span) -> bool:
        """Whether a row of a span may be asked for."""
        is_behind = self.begin_max is not None and span.begin > self.begin_max
        return span.end > self.begin_min and not is_behind


def plan_range(wanted: Range, listed: Iterable[FragmentListing]) -> RangePlan:
    """Cut a range into spans.

    Args:
        wanted: begins and ends between messages.
        listed: fragments of its journal, in any order; those without a backing store are in spools.
    """
    if wanted.begin >= wanted.end:
        return RangePlan((), ())
    near = [each for each in listed if each.fragment.end > wanted.begin]
    plan = plan_segments(wanted.journal, near, wanted.end, values_of=lambda _: (), live_values=())
    spans = tuple(
        Span(
            journal=wanted.journal,
            content_type=wanted.content_type,
            begin=max(each.begin, wanted.begin),
            end=each.end,
            listing=each.listing,
            created=wanted.created,
        )
        for each in plan.segments
        if each.end > wanted.begin
    )
    first = min(max(plan.begin, wanted.begin), wanted.end)
    gaps = [(max(begin, wanted.begin), end) for begin, end in plan.gaps if end > wanted.begin]
    holes = [(wanted.begin, first)] if first > wanted.begin else []
    return RangePlan(spans, (*holes, *gaps))


def pack(spans: Sequence[Span], bytes_max: int) -> list[tuple[Span, ...]]:
    """Splits of up to `bytes_max`, in order; a span that is larger is one by itself."""
    splits: list[tuple[Span, ...]] = []
    held: list[Span] = []
    size = 0
    for span in spans:
        length = span.end - span.begin
        if held and size + length > bytes_max:
            splits.append(tuple(held))
            held, size = [], 0
        held.append(span)
        size += length
    return [*splits, tuple(held)] if held else splits
