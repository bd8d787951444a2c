"""What is wrong with the fragments of a journal, as far as their names and sizes show it. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gazette_platform.protocol import CompressionCodec
from gazette_platform.protocol.ranges import gaps_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_platform.fragment.retention import StoredFragment
    from gazette_platform.protocol import Fragment


class Kind(enum.StrEnum):
    """What a finding is about."""

    GAP = "gap"
    """No store and no broker has content between two fragments."""
    OVERLAP = "overlap"
    """Two fragments hold the same offsets, as after a fail-over. Reads take the one that ends last."""
    CONFLICT = "conflict"
    """Two fragments of the same offsets have different digests."""
    MISSING = "missing"
    """Brokers list a stored fragment that its store does not have."""
    LENGTH = "length"
    DIGEST = "digest"
    CODEC = "codec"
    """The object cannot be decompressed."""
    STRANGE = "strange"
    """An object whose name is not that of a fragment."""
    UNREAD = "unread"
    """The store did not give the object."""

    @property
    def is_fault(self) -> bool:
        """Whether it needs an action."""
        return self is not Kind.OVERLAP


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    kind: Kind
    begin: int
    end: int
    """Offsets of the journal, 0 and 0 for a strange object."""
    detail: str
    path: str = ""
    """Of the object below its store; empty for a gap."""
    store: str = ""


def audit_names(stored: Sequence[StoredFragment], known: Iterable[Fragment]) -> list[Finding]:
    """Compare the fragments of a journal with each other, in order of offsets.

    A journal may begin anywhere, since its beginning is pruned in time.

    Args:
        stored: in all stores.
        known: to brokers, also what only their spools hold.
    """
    found = [*_lengths(stored), *_overlaps([each.fragment for each in stored])]
    found += _gaps([*(each.fragment for each in stored), *known])
    return sorted(found, key=lambda finding: (finding.begin, finding.end, finding.kind))


def missing_of(stored: Iterable[StoredFragment], known: Iterable[Fragment]) -> list[Fragment]:
    """Return what brokers list as stored, and listings of the stores lack."""
    names = {(each.fragment.backing_store, each.fragment.content_path) for each in stored}
    return [
        fragment
        for fragment in known
        if fragment.backing_store and (fragment.backing_store, fragment.content_path) not in names
    ]


def _lengths(stored: Iterable[StoredFragment]) -> Iterator[Finding]:
    for each in stored:
        fragment = each.fragment
        if fragment.codec is CompressionCodec.NONE and each.size != fragment.content_length:
            detail = f"stored are {each.size} bytes of {fragment.content_length}"
            yield Finding(
                Kind.LENGTH,
                fragment.begin,
                fragment.end,
                detail,
                fragment.content_path,
                fragment.backing_store,
            )


def _overlaps(fragments: Iterable[Fragment]) -> Iterator[Finding]:
    # Copies of a fragment in two stores, or with two codecs, are one.
    distinct = {(each.begin, each.end, each.sum): each for each in fragments}
    ordered = sorted(distinct.values(), key=lambda each: (each.begin, each.end, each.sum))
    last: Fragment | None = None  # the one that ends last so far
    for each in ordered:
        if last is not None and each.begin < last.end:
            is_same = (each.begin, each.end) == (last.begin, last.end)
            yield Finding(
                Kind.CONFLICT if is_same else Kind.OVERLAP,
                each.begin,
                min(each.end, last.end),
                f"so does {last.content_path} of {last.backing_store}",
                each.content_path,
                each.backing_store,
            )
        if last is None or each.end >= last.end:
            last = each


def _gaps(fragments: Iterable[Fragment]) -> Iterator[Finding]:
    for begin, end in gaps_between((each.begin, each.end) for each in fragments):
        yield Finding(Kind.GAP, begin, end, f"{end - begin} bytes are in no store and no broker")
