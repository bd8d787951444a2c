"""Sets content aside that is found on disk and does not belong to a journal, or cannot be believed.

Nothing here is ever overwritten or dropped. Copies of a home have files of the same names, so a name
that another file has already gets a number.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from gazette_platform.fragment.spool_home import make_private, write_new

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_platform.fragment.tenure import Tenure
    from gazette_platform.protocol import LabelSet

__all__ = ["SET_ASIDE", "set_aside"]

SET_ASIDE: Final = "set-aside"


class _Found(Protocol):
    """A tenure that a process left."""

    tenure: Tenure
    process: str
    registers: LabelSet


def set_aside(
    spool_dir: Path, found: _Found, path: Path, *, begin: int, end: int, why: str
) -> Path:
    """Give a file of content a second name, where nothing is deleted, with a description beside it.

    Args:
        spool_dir: below which files are set aside.
        found: the tenure that it belongs to.
        path: of the content; it may be gone, and only its record left.
        begin: journal offset of its first byte.
        end: as recorded; 0: not known.
        why: for whoever finds it.

    Returns: where the description is.
    Raises: OSError.
    """
    folder = spool_dir / SET_ASIDE
    folder.mkdir(mode=0o700, exist_ok=True)
    make_private(folder)
    said = {
        "journal": found.tenure.journal,
        "create_revision": found.tenure.create_revision,
        "begin": begin,
        "end": end,
        "registers": found.registers.pairs(),
        "broker": found.process,
        "tenure": found.tenure.id,
        "why": why,
    }
    names = (f"{path.stem}.{number}{path.suffix}" for number in itertools.count(1))
    places = (folder / name for name in itertools.chain([path.name], names))
    target = next(place for place in places if _is_free(place, path, said))
    told = target.with_suffix(".json")
    if path.exists() and not target.exists():
        os.link(path, target)
    if not told.exists():
        write_new(told, f"{json.dumps(said, indent=2)}\n".encode())
    return told


def _is_free(target: Path, path: Path, said: dict[str, Any]) -> bool:
    """Whether a place has nothing yet, or has this very file already. Raises: OSError."""
    told = target.with_suffix(".json")
    if path.exists():
        return target.samefile(path) if target.exists() else not told.exists()
    if not told.exists():
        return not target.exists()
    try:
        former = json.loads(told.read_bytes())
    except ValueError:
        return False
    return isinstance(former, dict) and all(
        former.get(name) == said[name] for name in ("tenure", "begin", "end")
    )
