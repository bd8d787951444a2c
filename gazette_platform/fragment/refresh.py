"""Listing the stores of a journal into its index."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import GazetteError, StoreUnavailable, ValidationError
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.ops.retry import backoff_s
from gazette_platform.protocol import Fragment, parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.fragment.index import Index
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.stores import StoredObject, StoreRegistry

__all__ = ["FragmentLister", "Refresher"]

_log = logging.getLogger(__name__)

_NS_PER_S: Final = 1_000_000_000

# Files that are no fragments are named once in the log. Past this many, a store is plainly used
# for something else, too, and naming more of them helps nobody.
_WARNINGS_MAX: Final = 1000

# Listings of many journals that were assigned together spread out over this part of the interval.
_JITTER: Final = 0.1

_LIST_TIMEOUT_S: Final = 300.0


@final
class FragmentLister:
    """Lists the fragments of journals in all of their stores."""

    def __init__(self, registry: StoreRegistry) -> None:
        self._registry = registry
        self._warned: set[str] = set()

    async def list(self, spec: JournalSpec) -> CoverSet[Fragment]:
        """The fragments of a journal that its stores hold; of equal ones, the last store's.

        Objects that are not fragments are skipped, and named in the log once.

        Raises: GazetteError: a store could not be opened or listed.
        Cancellation: safe.
        """
        found: CoverSet[Fragment] = CoverSet()
        for url in spec.fragment.stores:
            try:
                async with asyncio.timeout(_LIST_TIMEOUT_S):
                    async for item in self._registry.get(url).list(f"{spec.name}/"):
                        fragment = self._parse(spec.name, url, item)
                        if fragment is not None:
                            found.add(fragment)
            except TimeoutError as err:
                raise StoreUnavailable(f"{url}: LIST took over {_LIST_TIMEOUT_S:g} s") from err
        return found

    def _parse(self, journal: str, url: str, item: StoredObject) -> Fragment | None:
        if item.path.endswith("/"):
            return None  # what consoles of object stores make of a "folder"
        try:
            fragment = parse_fragment_path(journal, item.path)
        except ValidationError as err:
            self._warn(f"{url} {journal}/{item.path}", str(err))
            return None
        if fragment.content_path != f"{journal}/{item.path}":
            # Readable names of other widths exist on paper only, and nothing could fetch them.
            self._warn(f"{url} {journal}/{item.path}", f"expected {fragment.content_path}")
            return None
        return replace(fragment, backing_store=url, mod_time=item.mod_time)

    def _warn(self, name: str, reason: str) -> None:
        if name in self._warned or len(self._warned) >= _WARNINGS_MAX:
            return
        self._warned.add(name)
        _log.warning("object %s is not a fragment, skipped: %s", name, reason)


@final
class Refresher:
    """Keeps the index of one journal up to date with its stores."""

    def __init__(
        self,
        index: Index,
        lister: FragmentLister,
        spec_of: Callable[[], JournalSpec | None],
        *,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Prepare; `run` does the work.

        Args: spec_of: the current spec of the journal; None once it is deleted.
              rng: spreads listings of many journals.
              sleep: waits a number of seconds.
        """
        self._index = index
        self._lister = lister
        self._spec_of = spec_of
        self._rng = rng or random.Random()  # noqa: S311  not for secrets
        self._sleep = sleep
        self._failures = 0

    async def run(self) -> None:
        """List now, and each refresh interval of the spec, until the journal is gone.

        Cancellation: safe.
        """
        while (spec := self._spec_of()) is not None and not self._index.is_closed:
            await self.refresh(spec)
            interval_s = spec.fragment.refresh_interval_ns / _NS_PER_S
            interval_s *= 1 + _JITTER * self._rng.uniform(-1, 0)
            if not self._index.first_refresh.is_set():
                # Appends wait for the first listing, so it is tried again soon.
                interval_s = min(interval_s, backoff_s(self._failures))
            await self._sleep(interval_s)

    async def refresh(self, spec: JournalSpec) -> bool:
        """List all stores once. A failure is logged, and keeps what is known.

        Returns: whether it succeeded.
        Cancellation: safe.
        """
        listing = self._index.listing_began()
        try:
            remote = await self._lister.list(spec)
        except GazetteError as err:
            self._failures += 1
            _log.warning("listing the fragments of %s failed: %s", spec.name, err)
            return False
        self._failures = 0
        self._index.replace_remote(remote, listing=listing)
        return True
