"""Files in the directories of a journal's Hive partitions: what engines will read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from gazette_platform.errors import StoreError, ValidationError
from gazette_platform.lake.coverage import lowered
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.lake.storage import Storage

__all__ = ["JournalFiles", "journal_files"]


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
    files.listed.add(directory)
