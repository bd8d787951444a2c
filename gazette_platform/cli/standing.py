"""How a journal stands: where it ends, what of it is stored, and how far its store is behind."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from gazette_platform.client import AsyncClient
from gazette_platform.errors import GazetteError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.protocol import format_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from gazette_platform.client import FragmentListing, JournalListing
    from gazette_platform.ops.clock import Clock

__all__ = ["Standing", "Standings", "Stored", "add_up", "asker", "lag_text"]

# Journals asked about at once.
_CONCURRENT_MAX = 32

# A journal whose brokers cannot tell of it now, as while its store cannot be listed, must not keep those
# of all others from the screen for as long as a reader of it would wait.
_PATIENCE_S = 1.0
_CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What a list of fragments comes to. Bytes that several fragments hold count once."""

    begin: int = 0
    """First byte that there is."""
    end: int = 0
    """Behind the last byte that there is."""
    stored_bytes: int = 0
    unpersisted_bytes: int = 0
    """Those that no store has: they are in the spools of brokers."""
    frontier: int = 0
    """Every byte below is stored, or is not there."""
    fragments: int = 0
    """In stores."""
    stored_at: int = 0
    """Unix second at which the newest of them was stored; 0: none was."""


def add_up(listings: Sequence[FragmentListing]) -> Stored:
    """Add up fragments, given in the order of their offsets."""
    if not listings:
        return Stored()
    end = stored_end = stored_bytes = all_bytes = count = stored_at = 0
    for listing in listings:
        fragment = listing.fragment
        all_bytes += max(0, fragment.end - max(fragment.begin, end))
        end = max(end, fragment.end)
        if listing.is_persisted:
            count += 1
            stored_at = max(stored_at, fragment.mod_time)
            stored_bytes += max(0, fragment.end - max(fragment.begin, stored_end))
            stored_end = max(stored_end, fragment.end)
    open_begins = (each.fragment.begin for each in listings if not each.is_persisted)
    return Stored(
        begin=listings[0].fragment.begin,
        end=end,
        stored_bytes=stored_bytes,
        unpersisted_bytes=all_bytes - stored_bytes,
        frontier=next(open_begins, end),
        fragments=count,
        stored_at=stored_at,
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """A journal at an instant."""

    listing: JournalListing
    head: int = 0
    """Byte offset that the next append will begin at."""
    stored: Stored = Stored()
    lag_s: float | None = 0.0
    """Seconds since anything was stored, while some of the content is not; None: nothing ever was."""
    bytes_per_s: float = 0.0
    """Appended since the last time that it was asked about."""
    error: GazetteError | None = None
    """Why the rest is not known."""

    @property
    def primary(self) -> str:
        """Its primary, as ``zone#id``; empty: it has none."""
        route = self.listing.route
        return route.members[route.primary].name if route.primary >= 0 else ""

    @property
    def replicas(self) -> tuple[str, ...]:
        """The other brokers that serve it."""
        route = self.listing.route
        return tuple(m.name for index, m in enumerate(route.members) if index != route.primary)

    def json(self) -> dict[str, Any]:
        """As an object for programs: bytes and seconds, null for what is not known."""
        spec, is_known = self.listing.spec, self.error is None
        return {
            "name": spec.name,
            "head": self.head if is_known else None,
            "begin": self.stored.begin if is_known else None,
            "stored_bytes": self.stored.stored_bytes if is_known else None,
            "stored_fragments": self.stored.fragments if is_known else None,
            "unpersisted_bytes": self.stored.unpersisted_bytes if is_known else None,
            "lag_s": None if self.lag_s is None or not is_known else round(self.lag_s, 3),
            "replication": spec.replication,
            "primary": self.primary or None,
            "replicas": list(self.replicas),
            "suspended": spec.suspend_level.name,
            "mod_revision": self.listing.mod_revision,
            "error": None if is_known else str(self.error),
        }


def lag_text(standing: Standing) -> str:
    """The lag of a journal, for people."""
    if standing.lag_s is None:
        return "nothing stored yet"
    return format_duration(int(standing.lag_s) * 1_000_000_000)


@final
class Standings:
    """Asks about journals, again and again.

    Of a journal that it knows, it asks only for fragments from the first one on that was not stored:
    so the first time is slow for a long history, and those that follow are not.
    """

    def __init__(self, client: AsyncClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._last: dict[str, tuple[float, Standing]] = {}

    async def ask(self, journals: Iterable[JournalListing]) -> list[Standing]:
        """How each of them stands. Errors of a journal are in its own. Cancellation: safe."""
        found = await side_by_side(self._ask, journals, at_a_time=_CONCURRENT_MAX)
        names = {each.listing.name for each in found}
        self._last = {name: last for name, last in self._last.items() if name in names}
        return found

    async def _ask(self, listing: JournalListing) -> Standing:
        suspend = listing.spec.suspend
        if suspend is not None and listing.spec.is_fully_suspended:
            return Standing(listing, head=suspend.offset)  # no broker serves it
        before_s, before = self._last.get(listing.name, (0.0, None))
        frontier = before.stored.frontier if before else 0
        try:
            # In this order, so that what is appended meanwhile is not taken for missing.
            head = await self._client.write_head(listing.name)
            stored = add_up(await self._client.fragments(listing.name, next_page_token=frontier))
        except GazetteError as err:
            return Standing(listing, error=err)
        now_s = self._clock.monotonic()
        head = max(head, stored.end)
        if before is not None:
            stored = replace(
                stored,
                frontier=max(stored.frontier, frontier),
                stored_at=max(stored.stored_at, before.stored.stored_at),
            )
        rate = (head - before.head) / (now_s - before_s) if before and now_s > before_s else 0.0
        lag_s: float | None = 0.0
        if stored.unpersisted_bytes:
            lag_s = max(0.0, self._clock.unix_s() - stored.stored_at) if stored.stored_at else None
        found = Standing(listing, head, stored, lag_s, max(0.0, rate))
        self._last[listing.name] = (now_s, found)
        return found


@asynccontextmanager
async def asker(client: AsyncClient) -> AsyncIterator[Standings]:
    """What asks how journals stand, by a client that has less patience for each of them."""
    config = replace(client.config, retry_timeout_s=_PATIENCE_S, call_timeout_s=_CALL_TIMEOUT_S)
    async with AsyncClient(config) as asking:
        yield Standings(asking, SystemClock())
