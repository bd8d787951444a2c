"""Are lines CSV as RFC 4180 has it, with as many fields as the table has columns?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, final

from typing_extensions import override

from gazette_platform.hive import CSV_ESCAPE
from gazette_platform.lake.csv_header import header_pattern
from gazette_platform.lake.csv_rows import csv_rows
from gazette_platform.lake.values import LineScanner, is_utf8

if TYPE_CHECKING:
    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["CsvScanner"]

# A field, where the separator is to be put in.
_FIELD = rb'(?>"(?>[^"\r\n\x01]|"")*+"|[^"%b\r\n\x01]*+)'


@final
class CsvScanner(LineScanner):
    """Lines that are records of RFC 4180, without line breaks in them."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__()
        self._separator = spec.separator
        self._header = header_pattern(spec)
        self._names = [c.key.lower() for c in spec.columns]
        marks = (self._separator, f'"{self._separator}"')
        self._headers = [mark.join(self._names).encode() for mark in marks]
        mark = re.escape(self._separator).encode()
        field = _FIELD % mark
        record = field + rb"(?>%b%b){%d}" % (mark, field, len(spec.columns) - 1)
        self._record = re.compile(record)
        self._records = re.compile(rb"(?>(?=[^\r\n])%b\r?\n)*+" % record)

    @override
    def _scan(self, piece: bytes) -> None:
        at = 0
        for header in self._header.finditer(piece) if self._header is not None else ():
            if header.start() > at:
                super()._scan(piece[at : header.start()])
            at = header.end()
            self.headers += 1
            self._line_at += len(header[0])
        if at < len(piece):
            super()._scan(piece[at:])

    @override
    def is_fit(self, piece: bytes) -> bool:
        # A header looks like a record.
        lower = piece.lower()
        return (
            not any(header in lower for header in self._headers)
            and self._records.fullmatch(piece) is not None
            and is_utf8(piece)
        )

    @override
    def scan_line(self, line: bytes) -> None:
        if self._is_header(line):
            as_is = " that is not as the spec says" if self._header is not None else ""
            self.found_line(f"a header{as_is}, which the engines show as a row", line)
        elif self._record.fullmatch(line) is not None:
            return
        elif CSV_ESCAPE.encode() in line:
            self.found_line("the control character U+0001, which engines take for an escape", line)
        elif line.count(b'"') % 2:
            self.found_line(
                "a quoted field that is not closed on its line: records of several lines are not "
                "supported",
                line,
            )
        else:
            width = len(next(csv_rows([line.decode()], self._separator)))
            if width != len(self._names):
                self.found_line(f"{width} fields, not {len(self._names)}", line)
            else:
                self.found_line("a quote within a field without quotes", line)

    def _is_header(self, line: bytes) -> bool:
        cells = next(csv_rows([line.decode()], self._separator), [])
        return [cell.strip().lower() for cell in cells] == self._names
