"""Does every value have its column's type? What reading all lines of a fragment finds.

A value *fits* if the file says just what the spec does, so that both engines must read it alike: a
number without fraction for a bigint, ``true`` or ``false`` for a boolean, ``2020-01-31`` for a date. All
others are counted, with an example. A value *breaks* if Trino's SerDe would fail at it rather than
give NULL: an object or list where a scalar is wanted, a scalar where a struct or map is.

Lines are checked in pieces, by decoders and patterns in C that know the types; only a piece with
something unfit in it is taken apart. Cost: about a million rows of a dozen columns a second a core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final

__all__ = ["LineScanner", "Unfit", "ValueReport", "is_utf8"]

_PIECE_BYTES = 512 << 10
# Trino refuses longer lines by default (`hive.text.max-line-length`).
_LINE_BYTES_MAX = 100 << 20
_EXAMPLE_BYTES = 40
# A table has at most 2,000 columns; lines may have any number of fields.
_KINDS_MAX = 2000


@final
@dataclass(slots=True)
class Unfit:
    """Values of one column, or lines, that do not fit for one reason."""

    count: int
    example: bytes
    """The beginning of the first one."""
    offset: int = 0
    """Of the first one's line in the content."""

    @property
    def shown(self) -> str:
        """The example as text."""
        text = self.example[:_EXAMPLE_BYTES].decode("utf-8", "replace")
        return repr(text) + ("…" if len(self.example) > _EXAMPLE_BYTES else "")


@final
@dataclass(frozen=True, slots=True)
class ValueReport:
    """What reading all values of a fragment showed."""

    columns: dict[str, Unfit] = field(default_factory=dict)
    """Values that do not fit, by name of their column."""
    lines: dict[str, Unfit] = field(default_factory=dict)
    """Lines that do not fit, by what is wrong with them."""
    records: int = 0
    """Lines with one such value or more, or that do not fit themselves."""
    breaking: frozenset[str] = frozenset()
    """Columns at whose values Trino fails, unless it reads them as text."""
    breaking_unpartitioned: frozenset[str] = frozenset()
    """The same where the table has no Hive partitions, whose columns could be read as text."""

    @property
    def count(self) -> int:
        """Values and lines that do not fit."""
        return sum(u.count for u in (*self.columns.values(), *self.lines.values()))


class LineScanner(ABC):
    """Cuts the content of one fragment into pieces of whole lines, and keeps what is found.

    Formats say what fits. `report` is to be asked for once, at the end.

    Attributes:
        headers: how many lines are headers of CSV, and no rows.
    """

    def __init__(self) -> None:
        self.headers = 0
        self.columns: dict[str, Unfit] = {}
        self.lines: dict[str, Unfit] = {}
        self.records = 0
        self.breaking: set[str] = set()
        self.breaking_unpartitioned: set[str] = set()
        self._rest = bytearray()
        self._is_skipping = False
        # Where the line that is looked at begins, and the last one in which something was found.
        self._line_at = 0
        self._found_at = -1

    def feed(self, block: bytes) -> None:
        """Look at the next bytes of content, cut anywhere."""
        cut = block.rfind(b"\n") + 1
        at = 0
        if cut and (self._rest or self._is_skipping):
            at = block.find(b"\n") + 1
            if self._is_skipping:
                self._line_at += at
            else:
                self._scan(bytes(self._rest) + block[:at])
            self._is_skipping = False
            self._rest.clear()
        while at < cut:
            end = block.rfind(b"\n", at, at + _PIECE_BYTES) + 1 or block.find(b"\n", at) + 1
            self._scan(block[at:end])
            at = end
        if self._is_skipping:
            self._line_at += len(block) - cut
        else:
            self._rest += block[cut:]
            if len(self._rest) > _LINE_BYTES_MAX:
                self.found_line("too long a line (over 100 MiB)", self._rest)
                self._line_at += len(self._rest)
                self._rest.clear()
                self._is_skipping = True

    def report(self, *, is_cut: bool = False) -> ValueReport:
        """What was found in all that was fed.

        Args:
            is_cut: whether more follows, so that what follows the last newline is not a line yet.
        """
        if self._rest and not is_cut:
            self._scan(bytes(self._rest) + b"\n")
            self._rest.clear()
        return ValueReport(
            self.columns,
            self.lines,
            self.records,
            frozenset(self.breaking),
            frozenset(self.breaking_unpartitioned),
        )

    def found_value(self, column: str, value: bytes) -> None:
        """Keep a value that does not fit."""
        self._note(self.columns, column, value)

    def found_line(self, what: str, line: bytes | bytearray) -> None:
        """Keep a line that does not fit."""
        self._note(self.lines, what, bytes(line[: _EXAMPLE_BYTES + 1]))

    def _scan(self, piece: bytes) -> None:
        """Check whole lines; each ends with a newline."""
        if self.is_fit(piece):
            self._line_at += len(piece)
        else:
            for line in piece[:-1].split(b"\n"):
                text = line.removesuffix(b"\r")
                if not text.strip():
                    self.found_line("a blank line", text)
                elif b"\r" in text:
                    self.found_line("a carriage return, which ends a line for the engines", text)
                elif not is_utf8(text):
                    self.found_line("not UTF-8", text)
                else:
                    self.scan_line(text)
                self._line_at += len(line) + 1

    def _note(self, found: dict[str, Unfit], what: str, example: bytes) -> None:
        if self._found_at < self._line_at:
            self._found_at = self._line_at
            self.records += 1
        if what not in found and len(found) >= _KINDS_MAX:
            what = "others"
        if what in found:
            found[what].count += 1
        else:
            found[what] = Unfit(1, example[: _EXAMPLE_BYTES + 1], self._line_at)

    @abstractmethod
    def is_fit(self, piece: bytes) -> bool:
        """Whether all lines of the piece fit; False if in doubt."""

    @abstractmethod
    def scan_line(self, line: bytes) -> None:
        """Return what is wrong with one line, if anything is."""


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
