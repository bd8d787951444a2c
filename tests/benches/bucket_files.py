"""Fragments in a bucket, without a broker."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

from lake_bench import FragmentFiles

from gazette_platform.lake.reading.storage import _wait, object_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from gazette_platform.protocol import Fragment

__all__ = ["BucketFiles", "put"]


class BucketFiles(FragmentFiles):
    """What brokers list, of fragments in a bucket; each read of content through brokers is counted.

    Args:
        root: a folder for what is on its way.
        store: URL of the store.
    """

    def __init__(self, root: Path, store: str) -> None:
        super().__init__(root)
        self.store = store
        self.read_through_brokers = 0

    def persist(self, fragment: Fragment, *, postfix: str = "", **options: Any) -> Fragment:
        """Store the object of a fragment that was only local."""
        local = super().persist(fragment, postfix=postfix, **options)
        stored = replace(local, backing_store=self.store)
        fragments = self._fragments[fragment.journal]
        fragments[fragments.index(local)] = stored
        path = self.root / stored.content_path
        put(self.store, stored.content_path, path.read_bytes())
        path.unlink()
        return stored

    def content(self, fragment: Fragment) -> Iterator[bytes]:
        """The fragment's content."""
        self.read_through_brokers += 1
        return super().content(fragment)


def put(store: str, path: str, content: bytes) -> None:
    """Store an object."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        _wait(object_files(store)._driver.put(path, file.fileno(), len(content)))
