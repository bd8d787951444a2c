"""Which fragments a tick looks at: what is new, what is awaited, and a slice of what is old.

ListFragments answers with fragments that *begin* at an offset or later. So each journal is asked from
the begin of the last fragment that is registered: if brokers still list it, what follows is new; if
not, a larger fragment may have taken its place, which begins before, and is looked for.

Files in the directories of a journal's Hive partitions: what engines will read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import GazetteError, StoreError, ValidationError
from gazette_platform.lake.raw.planning import JournalCursor, Page
from gazette_platform.lake.raw.reconcile import lowered
from gazette_platform.lake.spec.layout import directory_of, plain_location
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.reading.fragment_source import FragmentSource
    from gazette_platform.lake.reading.storage import Storage
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.protocol import Fragment

HOLES_LOOKED_MAX: Final = 4
"""Of a journal, in one tick."""
_HOLE_PAGE: Final = 100
_SEARCH_PAGE: Final = 16
_LISTED_PAGE: Final = 1000
# A search widens 16-fold and then halves: far more steps than 2**63 offsets need.
_SEARCH_STEPS_MAX: Final = 128
_SEARCH_FIRST_BYTES: Final = 1 << 20
# A slice small enough that a tick hardly notices it, metastore included.
_SWEEP_PAGE: Final = 200
_GOLDEN: Final = (5**0.5 - 1) / 2


@final
@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Where the round of looking again at what was registered stands within a table."""

    journal: str = ""
    offset: int = 0


@final
@dataclass(slots=True)
class JournalListing:
    """What a tick was shown of one journal."""

    cursor: JournalCursor
    pages: list[Page] = field(default_factory=list)
    has_more: bool = False
    error: GazetteError | None = None
    """Why brokers could not list all that was asked for; the next tick asks again."""
    ends_at: int | None = None
    """Where the last fragment listed ends, if that is before what was registered: the journal may have been
    deleted and made again."""
    is_refused: bool = False
    """Whether accounts hold a former journal of that name, so that nothing of this one is registered."""

    @property
    def write_head(self) -> int:
        """End of the furthest fragment shown, or registered before."""
        ends = [f.end for page in self.pages for f in page.fragments]
        return max(ends, default=self.cursor.offset)

    def wanted(self) -> list[Fragment]:
        """Fragments to register, in offset order, each once."""
        found: dict[tuple[int, int], Fragment] = {}
        for page in self.pages:
            found |= {(f.begin, f.end): f for f in page.fragments if self.cursor.wants(f)}
        return [found[key] for key in sorted(found) if found[key].content_length]


def rotated(journals: Sequence[str], now_s: float) -> list[str]:
    """`journals`, beginning with any of them, so that a limit that ends each tick starves none.

    The golden ratio spreads the beginnings evenly, whatever the time between ticks is.
    """
    first = int(now_s * _GOLDEN % 1.0 * len(journals))
    return [*journals[first:], *journals[:first]]


def list_new(
    source: FragmentSource,
    cursors: Mapping[str, JournalCursor],
    *,
    fragments_max: int,
    page_limit: int,
    is_over: Callable[[], bool],
) -> dict[str, JournalListing]:
    """Fragments since each journal's cursor.

    The budget is shared out: first each journal gets an equal part of it, then those that have more
    share the rest in turn, so one with a huge backlog holds up no other. Nor does one that brokers cannot
    list: it has no primary, say, or its store does not answer.

    Args:
        source: lists fragments.
        cursors: of all journals.
        fragments_max: to list at once, over all journals; at least one new one each.
        page_limit: to list of a journal at once.
        is_over: whether the tick's time is over; journals not asked by then are not in the result.
    """
    listings: dict[str, JournalListing] = {}
    budget = fragments_max
    share = max(1, min(page_limit, budget // max(1, len(cursors))))
    for journal, cursor in cursors.items():
        if is_over():
            break
        try:
            listing = _list_journal(source, journal, cursor, share)
        except GazetteError as err:
            listing = JournalListing(cursor, error=err)
        listings[journal] = listing
        budget -= len(listing.wanted())
    while budget > 0 and not is_over():
        hungry = [(j, listing) for j, listing in listings.items() if listing.has_more]
        if not hungry:
            break
        limit = max(1, min(page_limit, budget // len(hungry)))
        for journal, listing in hungry[:budget]:
            page = listing.pages[0]
            try:
                more = source.fragments(journal, page.fragments[-1].begin + 1, limit)
            except GazetteError as err:
                listing.error, listing.has_more = err, False
                continue
            listing.pages[0] = Page(page.begin, [*page.fragments, *more])
            listing.has_more = len(more) >= limit
            budget -= len(more)
    return listings


def _list_journal(
    source: FragmentSource, journal: str, cursor: JournalCursor, limit: int
) -> JournalListing:
    # Ask from the begin of the last registered fragment, not from its end. From the end, brokers that lost their store, or
    # have another journal of that name, would list nothing, as if nothing had been appended. If they list the known
    # fragment first, what follows it is new.
    begin = cursor.offset if cursor.last is None else min(cursor.last, cursor.offset)
    # One more than wanted, since the first is known.
    limit += begin < cursor.offset
    found = source.fragments(journal, begin, limit)
    listing = JournalListing(cursor, [Page(begin, found)], has_more=len(found) >= limit)
    is_known = bool(found) and found[0].begin == begin
    near: Fragment | None = None
    if (begin < cursor.offset or cursor.last is None) and not is_known:
        # A larger fragment may have taken its place.
        near = nearest_before(source, journal, begin)
        if near is not None and near.end > cursor.offset:
            listing.pages.append(Page(near.begin, [near]))
    end = max((f.end for f in (*found, near) if f is not None), default=None)
    if end is not None and end < cursor.offset and not listing.has_more:
        listing.ends_at = end
    return listing


def list_holes(
    source: FragmentSource, journal: str, cursor: JournalCursor, *, now_s: float
) -> list[Page]:
    """What is listed now of bytes that are awaited; a few holes at a time, in turn."""
    holes = cursor.holes
    # As `rotated`: whatever the time between ticks is, none is left out for ever.
    first = int(now_s * _GOLDEN % 1.0 * len(holes)) if len(holes) > HOLES_LOOKED_MAX else 0
    pages: list[Page] = []
    for begin, _ in (*holes[first:], *holes[:first])[:HOLES_LOOKED_MAX]:
        found = source.fragments(journal, begin, _HOLE_PAGE)
        # If nothing begins at the hole, a larger fragment may hold it. If there is none either, the journal begins later by
        # now: it was pruned, and the hole is given up.
        is_there = any(f.begin == begin for f in found)
        near = None if is_there else nearest_before(source, journal, begin)
        pages.append(Page(begin, found, is_first=not is_there and near is None))
        if near is not None and near.end > begin:
            pages.append(Page(near.begin, [near]))
    return pages


def list_sweep(
    source: FragmentSource, journals: Sequence[str], point: SweepPoint
) -> tuple[str, Page, SweepPoint | None]:
    """The slice of old fragments that is in turn, and where to go on; None: the table is through."""
    journal, following = _in_turn(journals, point)
    begin = point.offset if journal == point.journal else 0
    found = source.fragments(journal, begin, _SWEEP_PAGE)
    if len(found) >= _SWEEP_PAGE:
        following = SweepPoint(journal, found[-1].begin + 1)
    return journal, Page(begin, found), following


def sweep_without(journals: Sequence[str], point: SweepPoint) -> SweepPoint | None:
    """Where to go on if the journal that is in turn cannot be listed; None: the table is through."""
    return _in_turn(journals, point)[1]


def _in_turn(journals: Sequence[str], point: SweepPoint) -> tuple[str, SweepPoint | None]:
    """The journal to look at, and the begin of the one after it."""
    # By name: journals come and go between ticks, and a number would pass over one of them, or repeat one.
    at = next((i for i, j in enumerate(journals) if j >= point.journal), len(journals) - 1)
    following = SweepPoint(journals[at + 1], 0) if at + 1 < len(journals) else None
    return journals[at], following


def nearest_before(source: FragmentSource, journal: str, offset: int) -> Fragment | None:
    """The last fragment that begins before `offset`, found without listing all before it."""
    if offset <= 0:
        return None
    # ListFragments goes forward only, and listing from the begin would take a call for each thousand fragments of years.
    search = _search(offset)
    token = next(search)
    while True:
        page = source.fragments(journal, token, _SEARCH_PAGE)
        try:
            token = search.send(page)
        except StopIteration as end:
            found: Fragment | None = end.value
            return found


def listed_in(
    source: FragmentSource, journal: str, directory: str, state: PartitionState, pages_max: int = 0
) -> list[Fragment] | None:
    """Return the stored fragments that brokers list in a directory, among the bytes of its account.

    Args:
        source: lists fragments.
        journal: its name.
        directory: below the prefix of its store.
        state: the account of the directory's Hive partition.
        pages_max: pages to ask for; 0: all.

    Returns: in the order of offsets; None: there are more pages.
    Raises: GazetteError: brokers cannot list it.
    """
    found: list[Fragment] = []
    begin = state.ranges[0][0] if state.ranges else 0
    end = state.ranges[-1][1] if state.ranges else 0
    for number in count():
        if number == pages_max > 0:
            return None
        page = source.fragments(journal, begin, _LISTED_PAGE)
        found += [f for f in page if f.backing_store and directory_of(f) == directory]
        # Brokers list in the order of begins, so what begins at the end of the account, or later, holds none of its bytes.
        if len(page) < _LISTED_PAGE or page[-1].begin >= end:
            break
        begin = page[-1].begin + 1
    return found


def _search(offset: int) -> Generator[int, Sequence[Fragment], Fragment | None]:
    """Steps of `nearest_before`: yields where to list from, and is sent what was listed there."""
    high, low = offset, -1  # nothing begins in [high, offset); if low >= 0, `best` begins there
    best: Fragment | None = None
    distance = _SEARCH_FIRST_BYTES
    for _ in range(_SEARCH_STEPS_MAX):
        if low < 0 < high:
            token = max(0, high - distance)
        elif low >= 0 and low + 1 < high:
            token = (low + 1 + high) // 2
        else:
            break
        page = yield token
        before = [f for f in page if f.begin < high]
        if not before:
            high = token
            distance *= 16
            continue
        best, low = before[-1], before[-1].begin
        if len(before) < len(page) or len(page) < _SEARCH_PAGE:
            break  # the page reaches beyond: none is nearer
    return best


@final
@dataclass(slots=True)
class JournalFiles:
    """Visible files of a journal: fragments by directory and name, and others by path."""

    fragments: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    stores: dict[tuple[str, str], str] = field(default_factory=dict)
    """URL of the store of each fragment."""
    sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Stored bytes of each fragment."""
    others: list[str] = field(default_factory=list)
    listed: set[str] = field(default_factory=set)
    """Directories that were listed; of others nothing is known."""
    unlisted: dict[str, str] = field(default_factory=dict)
    """Directories that could not be listed, and why."""

    def lowered(self, begin: int) -> int:
        """The greatest offset ≤ `begin` that no file spans."""
        return lowered(begin, self.fragments.values())

    def keep(self, wanted: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        """Forget all fragments but `wanted`."""
        self.fragments = dict(wanted)


def journal_files(
    storage: Storage, journal: str, places: Iterable[tuple[str, str]]
) -> JournalFiles:
    """Files there are right now in `places`: directories of `journal`, each of a store.

    Args:
        places: URL of the store, and directory below it.

    Raises: LakeError: a file store that no root maps.
    """
    files = JournalFiles()
    failures: dict[str, str] = {}
    for store, directory in dict.fromkeys(places):
        # A store that does not answer once is not asked for each of its folders.
        reason = failures.get(store)
        if reason is None:
            try:
                _list(files, storage, journal, store, directory)
            except StoreError as err:
                reason = failures[store] = str(err)
        if reason is not None:
            files.unlisted[directory] = reason
    return files


def _list(files: JournalFiles, storage: Storage, journal: str, store: str, directory: str) -> None:
    for item in storage.files(store).list(directory):
        try:
            found = parse_fragment_path(journal, item.path)
        except ValidationError:
            files.others.append(f"{directory}/{item.path}")
            continue
        place = (directory, item.path)
        files.fragments[place] = (found.begin, found.end)
        files.stores[place] = store
        files.sizes[place] = item.size
    # Last of all: a store that fails in the middle of a listing leaves the directory unlisted. What is not listed counts
    # as unknown; taken for gone, rows would be forgotten that queries still read.
    files.listed.add(directory)


def place_of(
    location: str, journal: str, stores: Iterable[str], roots: StoreRoots
) -> tuple[str, str]:
    """Return store and directory of a Hive partition of a journal; empty: it is in none of `stores`.

    Args:
        location: as the metastore has it.
    """
    plain = plain_location(location)
    for store in dict.fromkeys(stores):
        base = journal_base(journal, store, roots)
        if base and (plain == base or plain.startswith(f"{base}/")):
            return store, f"{journal}{plain[len(base) :]}"
    return "", ""


def journal_base(journal: str, store: str, roots: StoreRoots) -> str:
    """Return the journal's folder in a store; where two stores are one place, the same for both."""
    try:
        return plain_location(roots.location(store, journal))
    except GazetteError:
        return ""  # a folder that only brokers know


def left_at(
    storage: Storage, journal: str, place: tuple[str, str], names: Sequence[str]
) -> tuple[str, ...]:
    """Return those of the files `names` that are still at a place (`place_of`), or may be: it cannot be listed."""
    store, directory = place
    if not names or not store:
        return tuple(names)
    found = journal_files(storage, journal, [place])
    # To forget a file that is still there would show its rows twice for ever. To remember one that is gone costs a listing.
    if directory not in found.listed:
        return tuple(names)
    return tuple(name for name in names if (directory, name) in found.fragments)
