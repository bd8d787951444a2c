"""Accounts of a journal's Hive partitions: which of its directories engines read, and what is in them.

They say, without any listing of files, which bytes were registered in two Hive partitions, or twice
in one. Cost: a call for the names of the Hive partitions of the journal, and one for those of the
offsets that are looked at, with a few of their neighbours.

Directories of object stores that were listed, and held just what brokers list, are remembered. Accounts may differ from
what brokers list for long: where a prune looks the same as a store that is away, say. Each listing costs money, so such a
directory is listed again only when something has changed, or after a while. Known to this process alone: another one lists
once more.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import LakeError
from gazette_platform.lake.raw.overlaps import overlapping, walk_outward
from gazette_platform.lake.spec.layout import directory_of, plain_location
from gazette_platform.ops.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from gazette_platform.lake.raw.accounts import AccountBook, Entry
    from gazette_platform.lake.raw.partition_state import PartitionState
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.protocol import Fragment

_STEP = 24
_NAMES_MAX = 3000


@final
@dataclass(frozen=True, slots=True)
class Place:
    """A directory that engines read, since it is the location of a Hive partition."""

    store: str
    """URL of the store, or of one of those that are the same place."""
    directory: str
    location: str
    """As it compares with others."""
    values: tuple[str, ...]
    state: PartitionState


@final
@dataclass(slots=True)
class Accounts:
    """What the metastore knows of a journal around some offsets."""

    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of the Hive partition of each directory asked for that is of the table's layout."""
    states: dict[tuple[str, ...], PartitionState] = field(default_factory=dict)
    """By values, of the Hive partitions that exist, wherever they are."""
    places: dict[str, Place] = field(default_factory=dict)
    """By directory: of the Hive partitions that lie in one of the journal's stores."""
    is_complete: bool = True
    """False: there are more Hive partitions than could be looked at."""

    def state_of(self, directory: str) -> PartitionState | None:
        """The accounts of the Hive partition of a directory asked for; None if it is not registered."""
        values = self.values.get(directory)
        return self.states.get(values) if values is not None else None

    def reads(self, location: str, directory: str) -> bool:
        """Whether engines read the files of a directory which is at `location`."""
        place = self.places.get(directory)
        return place is not None and place.location == plain_location(location)

    def overlaps(self, begin: int, end: int | None) -> dict[str, tuple[int, int]]:
        """Directories that hold bytes of [begin, end) twice, or that others hold, too; and the bytes.

        Bytes that one directory holds twice are not known more closely than by what it holds.
        """
        found = overlapping({p.directory: p.state.ranges for p in self.places.values()}, begin, end)
        for place in self.places.values():
            if place.state.overlap_bytes > 0 and _meets(place.state, begin, end):
                low, high = found.get(place.directory, place.state.ranges[0])
                # Totals do not say which bytes are doubled, so report all; the audit then lists the
                # files.
                ranges = place.state.ranges
                found[place.directory] = (min(low, ranges[0][0]), max(high, ranges[-1][1]))
        return found


def read_accounts(  # noqa: PLR0917
    book: AccountBook,
    roots: StoreRoots,
    journal: str,
    anchors: Iterable[Fragment],
    begin: int,
    end: int | None,
) -> Accounts:
    """Accounts of the Hive partitions of `anchors`, and of all others that hold bytes of [begin, end).

    Those that brokers list nothing in, since what is in them is covered by now, are looked for in the
    neighbourhood of the others, in the order of names.

    Args:
        anchors: fragments that brokers list, at least one if there are any.
    """
    reader = _Reader(roots, journal)
    for f in anchors:
        if f.backing_store:
            reader.note(f.backing_store, directory_of(f))
    # Brokers list no covered fragment, so its directory may appear in no listing. Only accounts
    # still know of it.
    accounts = reader.accounts
    for _, directory in sorted(reader.known.values()):
        # One odd directory must not hide the overlaps of all others; registration reports it.
        with suppress(LakeError):
            accounts.values[directory] = book.place(directory)

    def meets(names: Sequence[str]) -> bool:
        is_met = False
        for entry in book.named(names):
            reader.take(entry)
            # The prefix of names also matches `a/b/c` for journal `a/b`, and its offsets say
            # nothing about this journal.
            is_met = is_met or (entry.state.journal == journal and _meets(entry.state, begin, end))
        return is_met

    names = book.names(journal)
    touched = {book.name(values) for values in accounts.values.values()} or {""}
    accounts.is_complete = walk_outward(names, touched, meets, step=_STEP, names_max=_NAMES_MAX)
    return accounts


@final
@dataclass(slots=True)
class _Reader:
    """Finds out which directory a Hive partition is, by its location."""

    roots: StoreRoots
    journal: str
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By location: a store, and a directory that brokers list fragments in."""
    bases: dict[str, str] = field(default_factory=dict)
    """By location of the journal: a store."""
    accounts: Accounts = field(default_factory=Accounts)

    def note(self, store: str, directory: str) -> None:
        """Take notice of a directory of a store."""
        location = plain_location(self.roots.location(store, directory))
        self.known.setdefault(location, (store, directory))
        self.bases.setdefault(plain_location(self.roots.location(store, self.journal)), store)

    def take(self, entry: Entry) -> None:
        """Take the accounts of a Hive partition."""
        state = entry.state
        self.accounts.states[entry.values] = state
        if state.journal not in ("", self.journal):
            return  # of a journal whose name continues this journal's name
        # Compare plain locations: one place has several spellings, such as `s3://` and `s3a://`, or
        # with and without a slash.
        plain = plain_location(entry.location)
        found = self.known.get(plain)
        for base, store in self.bases.items():
            # Brokers may list nothing in the directory any more; then its path below the journal's
            # folder says where it is.
            if found is None and (plain == base or plain.startswith(f"{base}/")):
                found = (store, f"{self.journal}{plain[len(base) :]}")
        if found is not None:
            store, directory = found
            self.accounts.places[directory] = Place(store, directory, plain, entry.values, state)


def _meets(state: PartitionState, begin: int, end: int | None) -> bool:
    return any(high > begin and (end is None or low < end) for low, high in state.ranges)


_KEPT_S: Final = 600.0
_COUNT_MAX: Final = 10_000


@final
class Looked:
    """What was looked at lately. Any thread may ask.

    Args:
        monotonic_s: gives the time.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._found: Lru[str, tuple[Hashable, float]] = Lru(_COUNT_MAX)

    def is_known(self, location: str, state: Hashable) -> bool:
        """Whether `location` was well a while ago, when all that is known of it was `state`."""
        with self._lock:
            known = self._found.get(location)
        return known is not None and known[0] == state and self._monotonic_s() < known[1] + _KEPT_S

    def note(self, location: str, state: Hashable) -> None:
        """Note that `location` is well, and what is known of it."""
        with self._lock:
            self._found.put(location, (state, self._monotonic_s()))


LOOKED: Final = Looked()
"""That of this process: sensors make new auditors at each tick."""
