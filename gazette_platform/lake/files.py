"""Files of a journal's directories, where these are local: what engines will read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gazette_platform.lake.layout import StoreRoots
    from gazette_platform.protocol import Fragment

__all__ = ["JournalFiles", "journal_files", "local_folder"]

_HIDDEN = (".", "_")


@final
@dataclass(slots=True)
class JournalFiles:
    """Visible files of a journal: fragments by directory and name, and others by path."""

    fragments: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    stores: dict[tuple[str, str], str] = field(default_factory=dict)
    """URL of the store of each fragment."""
    others: list[str] = field(default_factory=list)
    is_known: bool = False
    """Whether directories could be listed at all: they are local."""

    def lowered(self, begin: int) -> int:
        """The greatest offset ≤ `begin` that no file spans."""
        return lowered(begin, self.fragments.values())

    def keep(self, wanted: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        """Forget all fragments but `wanted`."""
        self.fragments = dict(wanted)


def lowered(begin: int, spans: Iterable[tuple[int, int]]) -> int:
    """The greatest offset ≤ `begin` that none of `spans` spans."""
    for low, high in sorted(spans, reverse=True):
        if low < begin < high:
            begin = low
    return begin


def local_folder(roots: StoreRoots, store: str, directory: str) -> Path | None:
    """The folder of `directory` on this machine, or None if its store is not a folder.

    Raises: LakeError: a file store that no root maps.
    """
    location = roots.location(store, directory)
    # Locations hold paths as they are: engines and brokers do not percent-encode them.
    return Path(location.removeprefix("file://")) if location.startswith("file://") else None


def journal_files(roots: StoreRoots, journal: str, listed: Iterable[Fragment]) -> JournalFiles:
    """Files there are right now, in the stores that `listed` fragments name.

    Raises: LakeError: a file store that no root maps.
    """
    files = JournalFiles()
    for store in dict.fromkeys(f.backing_store for f in listed if f.backing_store):
        root = local_folder(roots, store, journal)
        if root is None:
            continue
        files.is_known = True
        for folder, _, names in os.walk(root):
            below = Path(folder).relative_to(root).as_posix()
            postfix = "" if below == "." else below
            if any(part.startswith(_HIDDEN) for part in postfix.split("/") if part):
                continue
            directory = f"{journal}/{postfix}" if postfix else journal
            for name in names:
                if name.startswith(_HIDDEN):
                    continue  # engines see no such file
                try:
                    found = parse_fragment_path(journal, name)
                except ValidationError:
                    files.others.append(f"{directory}/{name}")
                    continue
                files.fragments[directory, name] = (found.begin, found.end)
                files.stores[directory, name] = store
    return files
