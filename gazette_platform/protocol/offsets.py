"""Offsets: which journal one belongs to, and ranges [begin, end) of them, merged, subtracted and clipped. Pure.

A journal that is deleted and made again keeps its name, and its offsets begin again: an offset of the former
journal stands for other bytes in the new one. Whoever keeps an offset therefore keeps beside it which journal it
belongs to, as one number, called `created`. Its lower 40 bits are the *create revision* of the journal: the revision of
etcd that created the key of its spec. It never returns to a former value while etcd keeps its data, but an etcd that is
set up again counts from 1. So the bits above stand for the history of etcd, an id that brokers keep there. Every listing
carries both, so a check costs one call that most readers make anyway.

Brokers of Gazette do not send the history: those bits are 0 then, and only
revisions are compared. There are 13 of them, so that `created` is exact where JSON is read as floating point, such as
by jq. Two histories have the same bits once in 8,191.

Rejected: a digest of the content before the offset. It needs a read for each check, the content may be pruned by
then, and regular records give the same digest in both journals.

If etcd is set up again from a listing, `created` changes, although stored content may be the same. Only a person can
know that, so readers refuse, and a person decides.

Ranges that functions return are disjoint, ascending and as few as possible: no two of them touch, and none is empty.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import JournalReplaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


DOUBTED: Final = -1
"""Kept instead of `created`: no journal is the one that was read, until a person decides."""

HISTORY: Final = "gazette-platform-history"
"""In the metadata that brokers send ahead of a listing: the id of the history of their etcd."""

_REVISION_BITS: Final = 40
_REVISION: Final = (1 << _REVISION_BITS) - 1
_HISTORIES: Final = (1 << 13) - 1

# In a JSON object of offsets by journal. It is an entry of its own, because Gazette's gazctl takes such objects, too, and
# passes over names of journals that it does not read. No name has a `#`.
_CREATED: Final = "#created"


def history_bits(history: str) -> int:
    """Return what `created` has of the id of a history; 0: there is no id.

    >>> history_bits("")
    0
    """
    return zlib.crc32(history.encode()) % _HISTORIES + 1 if history else 0


def created_by(revision: int, bits: int) -> int:
    """Return `created` of a journal.

    Args:
        revision: of etcd, that created the key of the journal's spec; 0: unknown, as old brokers do not send it.
        bits: of the history of that etcd, as of `history_bits`; 0: unknown.

    >>> created_by(7, 0), created_by(0, 3), hex(created_by(7, 3))
    (7, 0, '0x30000000007')
    """
    return bits << _REVISION_BITS | revision & _REVISION if revision else 0


def is_another(kept: int, now: int) -> bool:
    """Return whether a kept offset belongs to another journal than the one that has its name now.

    Args:
        kept: `created` that was kept with the offset; 0: unknown.
        now: `created` of the journal; 0: unknown, as brokers of old releases do not send it.

    >>> is_another(7, 9), is_another(7, 7), is_another(0, 9), is_another(DOUBTED, 0)
    (True, False, False, True)
    >>> one, two = created_by(7, 1), created_by(7, 2)
    >>> is_another(one, two), is_another(one, one), is_another(7, one), is_another(one, 7)
    (True, False, False, False)
    """
    if kept == DOUBTED:
        return True
    if not (kept and now):
        return False
    is_known = kept > _REVISION and now > _REVISION
    return kept != now if is_known else kept & _REVISION != now & _REVISION


def learned(kept: int, now: int) -> int:
    """Return `created` to keep from now on: of the journal that has the name now, all that is known.

    What was known is not forgotten when a broker answers that does not send it.

    >>> learned(9, 7), learned(0, 7), learned(7, 0), learned(DOUBTED, 7)
    (7, 7, 7, 7)
    >>> one = created_by(7, 1)
    >>> learned(7, one) == learned(one, 7) == one
    True
    """
    return now if is_another(kept, now) else max(kept, now)


def require_same(journal: str, kept: int, now: int, *, offset: int, advice: str) -> None:
    """Refuse an offset of another journal.

    Args:
        journal: its name.
        kept: `created` that was kept with the offset.
        now: that of the journal.
        offset: what was kept.
        advice: what a person can do, in the imperative.

    Raises: JournalReplaced.
    """
    if is_another(kept, now):
        former, revision = kept & _REVISION if kept > 0 else kept, now & _REVISION
        other = " of another etcd: etcd was set up again since" if former == revision else ""
        evidence = f"the journal that was created at revision {former} of etcd, and this one was created at revision {revision}"
        raise JournalReplaced(journal, offset, f"{evidence}{other}", advice)


def join_created(offsets: Mapping[str, int], created: Mapping[str, int]) -> dict[str, int]:
    """Return one object of offsets and of `created` of their journals.

    >>> join_created({"b": 2, "a": 1}, {"a": 43, "c": 44})
    {'a': 1, 'a#created': 43, 'b': 2}
    """
    noted = {f"{name}{_CREATED}": created[name] for name in offsets if created.get(name)}
    return dict(sorted({**offsets, **noted}.items()))


def created_list(offsets: Mapping[str, int], created: Mapping[str, int]) -> list[int]:
    """Return `created` in the order of the names of `offsets`, as a message has them beside these.

    >>> created_list({"b": 2, "a": 1}, {"a": 43, "c": 44})
    [43, 0]
    """
    return [created.get(name, 0) for name in sorted(offsets)]


def created_map(offsets: Mapping[str, int], listed: Sequence[int]) -> dict[str, int]:
    """Return each `created` that is known, by name. A list of another length says nothing.

    >>> created_map({"b": 2, "a": 1}, [43, 0]), created_map({"b": 2, "a": 1}, [])
    ({'a': 43}, {})
    """
    if len(listed) != len(offsets):
        return {}
    return {name: one for name, one in zip(sorted(offsets), listed, strict=True) if one}


def split_created(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return offsets and `created` of an object that may have both; values are not looked at.

    >>> split_created({"a": 1, "a#created": 43, "b": 2})
    ({'a': 1, 'b': 2}, {'a': 43})
    """
    offsets = {name: value for name, value in found.items() if not name.endswith(_CREATED)}
    created = {name.removesuffix(_CREATED): found[name] for name in found.keys() - offsets.keys()}
    return offsets, created


Range = tuple[int, int]


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets in the fewest ranges.

    >>> merge_ranges([(4, 6), (0, 2), (1, 3), (6, 8), (9, 9)])
    [(0, 3), (4, 8)]
    """
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def gaps_between(ranges: Iterable[Range]) -> list[Range]:
    """Return the offsets between the first and the last range that are in none.

    >>> gaps_between([(0, 10), (5, 12), (20, 30)])
    [(12, 20)]
    """
    return [(end, begin) for (_, end), (begin, _) in pairwise(merge_ranges(ranges))]


def subtract_ranges(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the offsets of `ranges` that are in none of `taken`.

    >>> subtract_ranges([(0, 10), (10, 20)], [(3, 5), (18, 30)])
    [(0, 3), (5, 18)]
    """
    left: list[Range] = []
    removed = merge_ranges(taken)
    for begin, end in merge_ranges(ranges):
        at = begin
        for low, high in clip_ranges(removed, begin, end):
            if low > at:
                left.append((at, low))
            at = high
        if at < end:
            left.append((at, end))
    return left


def clip_ranges(ranges: Sequence[Range], begin: int, end: int) -> list[Range]:
    """Return the parts of `ranges` within [begin, end).

    Args:
        ranges: disjoint and ascending. There may be many: only those that matter are looked at.
        begin: the first offset.
        end: the offset after the last one.

    >>> clip_ranges([(0, 4), (6, 9), (12, 20)], 2, 8)
    [(2, 4), (6, 8)]
    """
    found: list[Range] = []
    for index in range(bisect_right(ranges, begin, key=itemgetter(1)), len(ranges)):
        low, high = ranges[index]
        if low >= end:
            break
        found.append((max(low, begin), min(high, end)))
    return found
