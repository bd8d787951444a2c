"""Fragments of an hour in which their journal changed its store: brought to where the rest of it lies.

A Hive partition has one location. When a journal goes over to another store in the middle of an hour,
the fragments after that point lie in the same directory of the other store, where engines do not
look. They are copied beside the others, under their own names: brokers that still list the first store
see the same fragment twice and use one. Nothing is moved or deleted, and hours to come are registered
where they lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from gazette_platform.errors import GazetteError, StoreError
from gazette_platform.lake.layout import is_same_location, require_location
from gazette_platform.lake.planning import directory_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.layout import StoreRoots
    from gazette_platform.lake.storage import Storage, StoreFiles
    from gazette_platform.protocol import Fragment

__all__ = ["Cutover"]


@final
class Cutover:
    """Copies fragments between the stores of their journals.

    Args:
        storage: reaches the files.
        roots: where stores lie for engines.
        stores: URLs of the stores in each journal's spec.
    """

    def __init__(
        self, storage: Storage, roots: StoreRoots, stores: Mapping[str, Sequence[str]]
    ) -> None:
        self._storage = storage
        self._roots = roots
        self._stores = stores

    def bring(self, table: str, key: str, fragment: Fragment, location: str) -> None:
        """Have the file of `fragment` at `location`, that of its Hive partition. Idempotent.

        Args:
            table: its name, for messages.
            key: of the Hive partition, for messages.

        Raises: PartitionConflict: no store of the journal has its directory there. StoreError: the
            file cannot be copied; it is tried again.
        """
        directory = directory_of(fragment)
        found = self._roots.location(fragment.backing_store, directory)
        if is_same_location(found, location):
            return
        target = self._store_at(fragment, directory, location)
        if target is None:
            require_location(table, key, location, found)
            return
        path = fragment.content_path
        source = self._storage.files(fragment.backing_store)
        size = source.size(path)
        if target.exists(path) and target.size(path) == size:
            return
        target.take(source, path)
        if target.size(path) != size:
            raise StoreError(
                f"the copy of {path} at {location} has another size; it is tried again"
            )

    def _store_at(self, fragment: Fragment, directory: str, location: str) -> StoreFiles | None:
        for store in self._stores.get(fragment.journal, ()):
            try:
                place = self._roots.location(store, directory)
            except GazetteError:
                continue  # a folder that only brokers know
            if is_same_location(place, location):
                return self._storage.files(store)
        return None
