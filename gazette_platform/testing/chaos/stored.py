"""What the store holds, read by itself: files in a folder, and no broker."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol.fragments import parse_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gazette_platform.protocol import Fragment

__all__ = ["stored_content", "stored_fragments"]

_STEP_BYTES = 1 << 20


def stored_fragments(root: Path, journal: str) -> list[tuple[Fragment, Path]]:
    """The fragments of a journal in the store at `root`, by offset. Raises: OSError."""
    folder = root / journal
    if not folder.exists():
        root.stat()  # a store that is cut says so
        return []
    return sorted(_fragments(folder, journal), key=lambda item: (item[0].begin, item[0].end))


def _fragments(folder: Path, journal: str) -> Iterator[tuple[Fragment, Path]]:
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith("."):
            continue
        try:
            yield parse_fragment_path(journal, str(path.relative_to(folder))), path
        except ValidationError:
            continue  # not there yet: written under another name


def stored_content(root: Path, journal: str, *, begin: int = 0) -> bytes:
    """All that is stored from `begin` on, up to the first gap. Blocks.

    Raises: DataError: a file does not hold what its name says. OSError.
    """
    content = b""
    at = begin
    for fragment, path in stored_fragments(root, journal):
        if fragment.end <= at:
            continue
        if fragment.begin > at:
            break
        inflate = decompressor(fragment.codec)
        steps = decompress_steps(inflate, path.read_bytes(), step_bytes_max=_STEP_BYTES)
        held = b"".join(steps)
        digest = hashlib.sha1(held, usedforsecurity=False).digest()
        if len(held) != fragment.content_length or digest != fragment.sum:
            raise DataError(f"{path} does not hold what its name says")
        content += held[at - fragment.begin :]
        at = fragment.end
    return content
