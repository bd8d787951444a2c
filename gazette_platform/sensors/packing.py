"""A cursor's JSON as short text: what is alike side by side, compressed, in characters that JSON leaves alone.

Dagster keeps the whole text with each state of a sensor, and hands it over at each tick. Written out, a journal
takes 60 to 90 bytes, most of them its name and punctuation. Packed it takes its numbers, half a byte a digit, and some bytes for
what its name has more than the one before.

The bound: where names of a table are alike, and offsets are below a TiB, ten thousand journals in a hundred tables take less than
200,000 characters. Holes and findings come on top; those are bounded where they are kept.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final

__all__ = ["is_packed", "pack", "unpack"]

# Of this form; the characters after it are those of base85, which has no colon.
_MARK: Final = "z1:"
_TABLES: Final = "tables"
# Of the JSON. Ten thousand journals take about one; what is more was not made by `pack`.
_BYTES_MAX: Final = 64 << 20


def pack(raw: dict[str, Any]) -> str:
    """One line of text, the same for the same JSON.

    Args:
        raw: with ``tables``: by table and journal, what `lake.JournalCursor.to_json` gives.
    """
    names: dict[str, list[str]] = {}
    ends: list[int] = []
    lengths: list[int | None] = []
    holes: dict[str, Any] = {}
    created: list[int] = []
    for table, journals in sorted(raw[_TABLES].items()):
        names[table] = sorted(journals)
        for journal in names[table]:
            found = journals[journal]
            noted = found if isinstance(found, dict) else {"at": found, "created": 0}
            found = noted["at"]
            # An end alone, else with the begin of the last fragment, and holes.
            end, last, *more = found if isinstance(found, list) else (found, None)
            if more:
                holes[str(len(ends))] = more
            ends.append(end)
            lengths.append(None if last is None else end - last)
            created.append(noted["created"])
    columns = [names, ends, lengths, holes, created]
    text = json.dumps({**raw, _TABLES: columns}, sort_keys=True, separators=(",", ":"))
    return _MARK + base64.b85encode(zlib.compress(text.encode())).decode()


def is_packed(text: Any) -> bool:
    """Whether it is text that `pack` may have made."""
    return isinstance(text, str) and text.startswith(_MARK)


def unpack(text: str) -> dict[str, Any]:
    """The JSON whose `pack` was `text`.

    Raises: ValueError: it is none.
    """
    try:
        raw = json.loads(_inflated(base64.b85decode(text.removeprefix(_MARK))))
        # Former releases did not keep which journals they were.
        names, ends, lengths, holes, *more = raw[_TABLES]
        created = more[0] if more else [0] * len(ends)
        numbers = zip(ends, lengths, created, strict=True)
        at = 0
        tables: dict[str, dict[str, Any]] = {}
        for table, journals in names.items():
            found = tables[table] = {}
            for journal in journals:
                end, length, revision = next(numbers)
                last = None if length is None else end - length
                more = holes.get(str(at), [])
                place = [end, last, *more] if more or last is not None else end
                found[journal] = {"at": place, "created": revision} if revision else place
                at += 1
    except (
        zlib.error, KeyError, TypeError, AttributeError, StopIteration, RecursionError,
    ) as err:  # fmt: skip
        raise ValueError("it is damaged") from err
    return {**raw, _TABLES: tables}


def _inflated(content: bytes) -> bytes:
    """The content of a zlib stream.

    Raises: zlib.error: it is none, or longer than any cursor: a megabyte may stand for a gigabyte.
    """
    stream = zlib.decompressobj()
    found = stream.decompress(content, _BYTES_MAX)
    if not stream.eof:
        raise zlib.error("it is cut, or too long")
    return found
