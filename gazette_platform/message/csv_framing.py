"""CSV: a message is a record (RFC 4180) with as many columns as the others, its UUID the first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.framing import LineSplitter, unexpected_eof
from gazette_platform.message.uuid import UuidParts, parse_uuid

if TYPE_CHECKING:
    from uuid import UUID

__all__ = ["CsvFraming", "csv_record"]

# Python's own reader refuses fields beyond a limit of the whole process, and its writer quotes
# by other rules. Repetitions are possessive, so that no text takes longer than its length.
_WITHIN = r'(?:[^"]++|"")*+'
_FIELD = rf'(?:"{_WITHIN}"|[^",]*+)'
_FIELDS = re.compile(rf"({_FIELD}),")
_RECORD = re.compile(rf"(?:{_FIELD},)++")
# Of a line that ends within a field in quotes: one that begins a record, and one that goes on so.
_OPENS = re.compile(rf'(?:{_FIELD},)*+"{_WITHIN}'.encode())
_STAYS_OPEN = re.compile(rf'{_WITHIN}(?:",(?:{_FIELD},)*+"{_WITHIN})?'.encode())
_BLANK = frozenset((b"\n", b"\r\n"))
_ASKS_FOR_QUOTES = re.compile(r'[",\r\n]')


def csv_record(fields: list[str]) -> bytes:
    r"""The record of `fields` with its newline, quoted as Gazette does.

    >>> csv_record(["u", "a b", " lead", 'q"x', "c,d", "", "\\."])
    b'u,a b," lead","q""x","c,d",,"\\."\n'
    """
    return (",".join(map(_written, fields)) + "\n").encode()


def _written(field: str) -> str:
    # Python takes four control characters for spaces that Go does not.
    begins_with_space = field[:1].isspace() and not "\x1c" <= field[0] <= "\x1f"
    if begins_with_space or field == r"\." or _ASKS_FOR_QUOTES.search(field):
        return '"' + field.replace('"', '""') + '"'
    return field


@final
class CsvFraming:
    """Messages of CSV: lists of text; the first is the UUID."""

    content_type = "text/csv"

    def decoder(self) -> _CsvDecoder:
        """See `Framing`."""
        return _CsvDecoder()

    def encode(self, message: list[str]) -> bytes:
        """See `Framing`."""
        try:
            return csv_record(message)
        except (TypeError, AttributeError, UnicodeEncodeError) as err:
            raise ValidationError(f"a CSV record is a list of text: {err}") from err

    def uuid_of(self, message: list[str]) -> UuidParts:
        """See `Framing`."""
        return parse_uuid(message[0])

    def stamp(self, message: list[str], uuid: UUID) -> list[str]:
        """See `Framing`."""
        if not message:
            raise ValidationError("a CSV record needs a first column, for its UUID")
        message[0] = str(uuid)
        return message

    def acknowledgement(self, message: list[str]) -> list[str]:
        """See `Framing`: as many columns, and nothing in them."""
        return [""] * len(message)


@final
class _CsvDecoder(LineSplitter):
    def __init__(self) -> None:
        super().__init__()
        self._columns = 0
        # Lines of a record that goes on, or blank ones that go before the next.
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._is_open = False

    @property
    @override
    def held_bytes(self) -> int:
        return self._held_bytes + self._begun_bytes

    @override
    def feed(self, content: bytes) -> list[bytes]:
        records: list[bytes] = []
        for line in super().feed(content):
            if self._goes_on(line):
                self._begun.append(line)
                self._begun_bytes += len(line)
            elif self._begun:
                records.append(b"".join((*self._begun, line)))
                self._begun, self._begun_bytes = [], 0
            else:
                records.append(line)
        return records

    @override
    def end(self) -> None:
        if self._is_open or self._held_bytes:
            raise unexpected_eof("a record", self.held_bytes)

    def _goes_on(self, line: bytes) -> bool:
        """Whether the record does not end with `line`."""
        if self._is_open:
            self._is_open = _STAYS_OPEN.fullmatch(line) is not None
            return self._is_open
        self._is_open = b'"' in line and _OPENS.fullmatch(line) is not None
        return self._is_open or line in _BLANK

    def decode(self, frame: bytes) -> list[str]:
        """See `Decoder`."""
        try:
            record = frame.lstrip(b"\r\n").removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as err:
            raise DataError(f"the record is not UTF-8: {err} ({frame[:80]!r})") from err
        if '"' in record:
            if not _RECORD.fullmatch(record + ","):
                raise DataError(
                    f'the record has a " that neither begins nor ends a field ({frame[:80]!r})'
                )
            fields = [_read(field) for field in _FIELDS.findall(record + ",")]
        else:
            fields = record.split(",")
        self._columns = self._columns or len(fields)
        if len(fields) != self._columns:
            raise DataError(
                f"the record has {len(fields)} columns, and those before have {self._columns} "
                f"({frame[:80]!r})"
            )
        return fields


def _read(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field
