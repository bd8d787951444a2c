"""Files of offsets, which `gazctl journals read` and `gazctl savepoints get` write, and the former begins at.

    {"a/journal": 3690, "a/journal#created": 43}

The second entry says which journal the offset belongs to; see `protocol.identity`.
"""

from pathlib import Path
from typing import NamedTuple

import orjson

from gazette_platform.cli.connection import opened
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.protocol import join_created, split_created

__all__ = ["Places", "read_offsets", "write_offsets"]


class Places(NamedTuple):
    """Where to begin in journals."""

    offsets: dict[str, int]
    created: dict[str, int]
    """Which journals the offsets belong to, as far as it is known."""


def read_offsets(path: Path | None) -> Places:
    """Return what a file says; nothing, if there is none.

    Raises: DataError: it is no such file. ValidationError: an offset cannot be.
    """
    if path is None:
        return Places({}, {})
    with opened(path, "--offsets") as file:
        text = file.read()
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as err:
        raise DataError(
            f"{path}: not JSON: {err} (--offsets takes a file that --offsets-out wrote)"
        ) from err
    if not isinstance(found, dict) or not all(type(v) is int for v in found.values()):
        raise DataError(f"{path}: not a JSON object of journals and offsets")
    places = Places(*split_created(found))
    for name, offset in places.offsets.items():
        if not -1 <= offset < 1 << 63:
            raise ValidationError(
                f'the offset of "{name}" must be from 0 on, or -1 for the write head ({offset})',
                path=str(path),
            )
    return places


def write_offsets(path: Path, places: Places, *, keeps: Path | None) -> None:
    """Replace the file whole.

    Args:
        keeps: what this run began with. If it is the same file, it is kept beside it.
    """
    temporary = path.with_name(path.name + ".temp")
    temporary.write_bytes(orjson.dumps(join_created(*places), option=orjson.OPT_INDENT_2))
    if keeps is not None and keeps.resolve() == path.resolve():
        keeps.rename(path.with_name(path.name + ".previous"))
    temporary.rename(path)
