"""Blocks of lines, some of them bad: finds the good ones, and reads them at once. Pure.

A block is read at once first, which takes all of it or nothing. One that is refused is read without the lines that can be seen to
be odd, and if that is not it, in parts, unless many were bad in the one before. Of what is refused then, and of odd lines, msgspec
looks at each, as fast as the lines are many and however many are bad. It is a guess: what it lets pass is read at once again, in
halves if that is refused too, and what it does not is read alone. So the reader has the last word on each line.

    content ── read ── all good
                │
             refused: the others, parts ── read ── all good
                                     │
                                  refused ── each line, trimmed: msgspec ── good ── read, at once ── refused: in halves
                                                                    └─ no ── read, alone ── refused: bad
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple, TypeVar, final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from gazette_platform.lake.reading.arrow_types import RefusedError
from gazette_platform.lake.reading.json_columns import as_text, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.lake.reading.json_columns import Field
    from gazette_platform.lake.spec.types import ColumnType

T = TypeVar("T")

BLANKS: Final = b" \t\r"
"""What may stand around a record on its line."""

# Of a refused block, so many parts are read at once before lines are looked at; smaller ones cost as much as their lines.
_PARTS: Final = 8
_PART_LINES: Final = 128
# Each costs a look at all that follows it.
_ODD_TEXTS_MAX: Final = 8


def line_ends(content: bytes) -> pa.Int64Array:
    """Return where each line of `content` ends, after its newline. What follows the last newline is not a line."""
    lines = pc.split_pattern(as_text(content, pa.large_binary()), "\n").flatten()
    lengths = pc.add(pc.binary_length(lines.slice(0, len(lines) - 1)), 1)
    return pc.cumulative_sum(pc.cast(lengths, pa.int64()))


class Sifted(NamedTuple, Generic[T]):
    """What is good and what is bad of some lines."""

    lines: list[bytes]
    """All of them, without newlines; those that were looked at by themselves are trimmed."""
    pieces: list[tuple[list[int], T]]
    """Which lines were read at once, and what was made of them."""
    bad: list[int]
    """The others, in order."""

    @property
    def good(self) -> list[int]:
        """Places of the good lines, in the order of `pieces`."""
        return [index for indices, _ in self.pieces for index in indices]


@final
class Sifter(Generic[T]):
    """Reads the good ones of some lines.

    Args:
        read: reads lines at once, each with its newline, and raises RefusedError if one is bad.
        is_likely: guesses whether a line is good: quick, and wrong at times, either way.
    """

    def __init__(self, read: Callable[[bytes], T], is_likely: Callable[[bytes], bool]) -> None:
        self._read = read
        self._is_likely = is_likely
        # A hint from the block before: it decides what is tried first, and nothing else.
        self._is_seldom_bad = True

    def sift(self, content: bytes, is_odd: Callable[[bytes], bool] | None = None) -> Sifted[T]:
        """Find the good lines of `content`, which was refused. What follows the last newline is left out.

        Args:
            is_odd: whether a line is to be read by itself at first.
        """
        lines = content.split(b"\n")[:-1]
        odd = _odd_lines(content, lines)
        if is_odd is not None:
            odd |= {index for index, line in enumerate(lines) if is_odd(line)}
        others = [index for index in range(len(lines)) if index not in odd]
        # With an end that has no newline they were not read yet.
        is_refused = not odd and content.endswith(b"\n")
        pieces = [
            *self._parts(lines, others, is_refused=is_refused),
            *self._by_line(lines, sorted(odd)),
        ]
        good = {index for indices, _ in pieces for index in indices}
        bad = [index for index in range(len(lines)) if index not in good]
        self._is_seldom_bad = len(bad) < _PARTS
        return Sifted(lines, pieces, bad)

    def _parts(
        self, lines: list[bytes], indices: list[int], *, is_refused: bool
    ) -> Iterator[tuple[list[int], T]]:
        """Good ones of some lines, in their order: read at once, in parts, or line by line.

        Args:
            is_refused: whether they were read at once, and refused.
        """
        if not is_refused and (found := self._at_once(lines, indices)) is not None:
            yield indices, found
            return
        # Most often it is one line, and what is far from it is good.
        step = max(len(indices) // _PARTS, _PART_LINES) if self._is_seldom_bad else len(indices)
        for first in range(0, len(indices), step or 1):
            part = indices[first : first + step]
            found = self._at_once(lines, part) if len(part) < len(indices) else None
            if found is None:
                yield from self._by_line(lines, part)
            else:
                yield part, found

    def _at_once(self, lines: Sequence[bytes], indices: Sequence[int]) -> T | None:
        if not indices:
            return None
        try:
            return self._read(b"\n".join([*(lines[index] for index in indices), b""]))
        except RefusedError:
            return None

    def _by_line(self, lines: list[bytes], indices: Sequence[int]) -> Iterator[tuple[list[int], T]]:
        """Good ones of some lines, which are trimmed, in their order."""
        for index in indices:
            lines[index] = lines[index].strip(BLANKS)
        likely = [
            index for index in indices if self._is_likely(lines[index]) or self._fits(lines[index])
        ]
        return self._pieces(lines, likely)

    def _fits(self, line: bytes) -> bool:
        # The answer for what is not an object is known, and asking takes a hundred times as long.
        is_object = line.startswith(b"{") and line.endswith(b"}")
        return is_object and self._at_once([line], [0]) is not None

    def _pieces(self, lines: Sequence[bytes], likely: list[int]) -> Iterator[tuple[list[int], T]]:
        """Good ones among `likely`, in their order, as few pieces as may be."""
        waiting = [likely]
        while waiting:
            indices = waiting.pop()
            found = self._at_once(lines, indices)
            if found is not None:
                yield indices, found
            elif middle := len(indices) // 2:
                waiting += [indices[middle:], indices[:middle]]


def _odd_lines(content: bytes, lines: Sequence[bytes]) -> set[int]:
    """Which lines are not records as they stand, as can be seen without reading them.

    It is for speed, and need not find all: of those that are not UTF-8 it finds a few.
    """
    odd = {
        index
        for index, line in enumerate(lines)
        if not (line.startswith(b"{") and line.endswith((b"}", b"}\r")))
    }
    view, at = memoryview(content), 0
    for _ in range(_ODD_TEXTS_MAX):
        try:
            str(view[at:], "utf-8")
        except UnicodeDecodeError as err:
            index = content.count(b"\n", 0, at + err.start)
            if index == len(lines):  # after the last newline
                break
            odd.add(index)
            at = content.index(b"\n", at + err.start) + 1
        else:
            break
    return odd


# ------------------------------------------------------------------ guesses by msgspec


_GUESSES: Final[dict[str, Any]] = {
    "boolean": bool,
    **{
        name: Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
        for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
    },
    "float": float,
    "double": float,
    "decimal": float | str,
    "date": Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")],
    "uuid": Annotated[str, msgspec.Meta(min_length=36, max_length=36)],
}


def guess(
    fields: Mapping[str, Field],
    *,
    required: Iterable[str] = (),
    forbids_unknown: bool = False,
) -> Callable[[bytes], bool]:
    """Return what guesses whether a line is a record with these fields.

    Args:
        fields: by key.
        required: keys whose values may not be null.
        forbids_unknown: whether a record with another key is bad.
    """
    shapes = [
        (key, _guessed(field.kind, field.form, forbids_unknown=forbids_unknown))
        for key, field in fields.items()
    ]
    decode = msgspec.json.Decoder(record_of(shapes, forbids_unknown=forbids_unknown)).decode
    needed = set(required)
    attributes = [f"f{index}" for index, key in enumerate(fields) if key in needed]

    def is_likely(line: bytes) -> bool:
        try:
            record = decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return not any(getattr(record, attribute) is None for attribute in attributes)

    return is_likely


def _guessed(kind: ColumnType, form: str, *, forbids_unknown: bool) -> Any:
    match kind.name:
        case "json" | "map":
            return msgspec.Raw
        case "array":
            item: Any = _guessed(kind.arguments[0], form, forbids_unknown=forbids_unknown)
            return list[item] | None
        case "struct":
            parts = [_guessed(p, form, forbids_unknown=forbids_unknown) for p in kind.arguments]
            shapes = list(zip(kind.field_names, parts, strict=True))
            return record_of(shapes, forbids_unknown=forbids_unknown) | None
        case "timestamptz" | "timestamp" | "date" if form.startswith("epoch"):
            return _GUESSES["bigint"] | None
        case name:
            return _GUESSES.get(name, str) | None
