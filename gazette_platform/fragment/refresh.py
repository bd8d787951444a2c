"""Listing the stores of a journal into its index."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import GazetteError, StoreError, StoreUnavailable, ValidationError
from gazette_platform.fragment.cover_set import CoverSet
from gazette_platform.protocol import Fragment, parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.fragment.index import Index
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import JournalSpec
    from gazette_platform.stores import StoredObject, StoreRegistry


_log = logging.getLogger(__name__)


# The log names each file that is not a fragment once, and at most so many. A store with more of them is
# plainly used for something else, too, and naming the rest does not help.
_WARNINGS_MAX: Final = 1000

_LIST_TIMEOUT_S: Final = 300.0

# Of asking for all fragments that a listing lacks, one by one. That is rare, and mostly about a few.
_HEADS_TIMEOUT_S: Final = 20.0

# Seconds for which the first listing may fail. Checks of a store's health may fail about as long.
_FAILING_S: Final = 12.0


def fragment_of(journal: str, url: str, item: StoredObject) -> Fragment:
    """The fragment that an object in the folder of a journal is.

    Raises: ValidationError: it is none.
    """
    fragment = parse_fragment_path(journal, item.path)
    if fragment.content_path != f"{journal}/{item.path}":
        # The name can be read, but is not the one that such a fragment gets (its numbers have
        # another width, say), so nothing could fetch it.
        raise ValidationError(f"expected {fragment.content_path}")
    return replace(fragment, backing_store=url, mod_time=item.mod_time)


@final
class FragmentLister:
    """Lists the fragments of journals in all of their stores."""

    def __init__(
        self, registry: StoreRegistry, *, check: Callable[[JournalSpec], None] | None = None
    ) -> None:
        """Keep what is needed to list.

        Args:
            registry: opens stores by their URLs.
            check: raises a `StoreError` if the stores of a journal must not be used.
        """
        self._registry = registry
        self._check = check
        self._warned: set[str] = set()

    def check(self, spec: JournalSpec) -> None:
        """Refuse stores that a journal must not use. Raises: StoreError."""
        if self._check is not None:
            self._check(spec)

    async def list(self, spec: JournalSpec) -> CoverSet[Fragment]:
        """The fragments of a journal in all of its stores; of equal ones, that of the last store.

        Objects that are not fragments are skipped. The log names each of them once.

        Raises: GazetteError: a store could not be opened or listed.
        Cancellation: safe.
        """
        self.check(spec)
        found: CoverSet[Fragment] = CoverSet()
        for url in spec.fragment.stores:
            try:
                async with asyncio.timeout(_LIST_TIMEOUT_S):
                    async for item in self._registry.get(url).list(f"{spec.name}/"):
                        fragment = self._parse(spec.name, url, item)
                        if fragment is not None:
                            found.add(fragment)
            except TimeoutError as err:
                what = f"LIST took over {_LIST_TIMEOUT_S:g} s"
                raise StoreUnavailable(f"fragment store {url} cannot be listed: {what}") from err
            except GazetteError as err:
                kind = type(err) if isinstance(err, StoreError) else StoreError
                raise kind(f"fragment store {url} cannot be listed: {err}") from err
        return found

    async def still_stored(self, fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        """Those of some fragments that stores hold, or for which they do not say so in time.

        Cancellation: safe.
        """
        kept = [*fragments]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEADS_TIMEOUT_S):
                for fragment in fragments:
                    # A failure here says nothing about the fragment.
                    with contextlib.suppress(GazetteError):
                        store = self._registry.get(fragment.backing_store)
                        if not await store.exists(fragment.content_path):
                            kept.remove(fragment)
        return kept

    def _parse(self, journal: str, url: str, item: StoredObject) -> Fragment | None:
        if item.path.endswith("/"):
            return None  # a "folder", as consoles of object stores make it
        try:
            return fragment_of(journal, url, item)
        except ValidationError as err:
            self._warn(f"{url} {journal}/{item.path}", str(err))
            return None

    def _warn(self, name: str, reason: str) -> None:
        if name in self._warned or len(self._warned) >= _WARNINGS_MAX:
            return
        self._warned.add(name)
        _log.warning("object %s is not a fragment, skipped: %s", name, reason)


@final
class Refresher:
    """Keeps the index of one journal up to date with its stores."""

    def __init__(self, index: Index, lister: FragmentLister, clock: Clock) -> None:
        self._index = index
        self._lister = lister
        self._clock = clock
        self._failures = 0
        self._failing_since = 0.0
        self._problem = ""

    async def refresh(self, spec: JournalSpec) -> bool:
        """List all stores once. If that fails, the index keeps what it knows.

        A listing may be older than what was stored a moment ago. Fragments that it lacks are asked for,
        and kept if they exist, or if the store does not answer; see `Index.lately_stored`.

        Returns: whether it succeeded.
        Cancellation: safe.
        """
        listing = self._index.listing_began()
        try:
            remote = await self._lister.list(spec)
            lacking = self._index.lately_stored(remote, spec.fragment.stores, listing=listing)
            kept = await self._lister.still_stored(lacking) if lacking else []
        except GazetteError as err:
            self._on_failure(str(err))
            if self._failures.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: thousands fail at once
                _log.warning(
                    "listing the fragments of %s failed %d times: %s",
                    spec.name,
                    self._failures,
                    err,
                )
            return False
        except Exception as err:
            self._on_failure(f"fragment stores cannot be listed: {err!r}")
            raise
        if self._failures:
            _log.info("fragments of %s are listed again", spec.name)
        self._failures = 0
        if kept:
            _log.info(
                "a listing of %s is older than %d fragments that its stores hold, such as %s",
                spec.name,
                len(kept),
                kept[0].content_path,
            )
        self._index.replace_remote(remote, listing=listing, kept=kept)
        return True

    def _on_failure(self, problem: str) -> None:
        if not self._failures:
            self._failing_since = self._clock.monotonic()
        self._failures += 1
        self._problem = problem
        if not self._index.first_refresh.is_set():
            self._index.wake()  # `wait_first` looks how long it has been failing

    async def wait_first(self) -> str:
        """Wait until the stores were listed. A slow listing is waited for, but not one that fails.

        Returns: "", or what has been failing for too long, and what to do about it.
        Cancellation: safe.
        """
        index = self._index
        while not index.first_refresh.is_set():
            if self._failures and self._clock.monotonic() - self._failing_since > _FAILING_S:
                return f"{self._problem} (mend it, or take it out of the journal's stores)"
            if not await index.wait_change():
                break
        return ""
