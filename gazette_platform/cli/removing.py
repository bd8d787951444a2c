"""Removes fragments from the stores that they name."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import ObjectNotFound, StoreUnavailable
from gazette_platform.ops.retry import insist
from gazette_platform.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import Fragment
    from gazette_platform.stores import FragmentStore

__all__ = ["FragmentRemover"]

_REMOVE_TIMEOUT_S: Final = 60.0
# Seconds for which one removal is tried again.
_INSIST_S: Final = 10.0


@final
class FragmentRemover:
    """Removes fragments, each by itself.

    Args:
        file_root: directory that ``file`` stores are rooted at; None refuses these.
        dry_run: whether to remove nothing.
    """

    def __init__(self, clock: Clock, *, file_root: Path | None, dry_run: bool) -> None:
        self._clock = clock
        self._file_root = file_root
        self._dry_run = dry_run
        self._stores: dict[str, FragmentStore] = {}

    def store(self, url: str) -> FragmentStore:
        """The store of a URL, opened once. Raises: GazetteError: it cannot be."""
        store = self._stores.get(url)
        if store is None:
            store = self._stores[url] = open_store(url, file_root=self._file_root)
        return store

    async def remove(self, fragment: Fragment) -> None:
        """Remove one object; one that is gone is removed.

        Raises: GazetteError: it is still there, as far as is known. Cancellation: it may be gone.
        """
        if self._dry_run:
            return
        store = self.store(fragment.backing_store)
        give_up_at = self._clock.monotonic() + _INSIST_S

        async def call() -> None:
            try:
                async with asyncio.timeout(_REMOVE_TIMEOUT_S):
                    await store.remove(fragment.content_path)
            except TimeoutError as err:
                raise StoreUnavailable(
                    f"{store.url}: removing it took over {_REMOVE_TIMEOUT_S:g} s"
                ) from err

        with suppress(ObjectNotFound):  # another process pruned it
            await insist(call, is_over=lambda: self._clock.monotonic() > give_up_at)
