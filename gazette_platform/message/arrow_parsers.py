"""From content to Arrow record batches: a parser for each framing. Needs `pyarrow`, of the extra ``arrow``.

JSON lines and CSV are parsed by Arrow, many megabytes at a time, with no step of Python for each
message. Messages of other framings, if they are dictionaries, are decoded one by one.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, final

import orjson

from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.reading import MessageDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.message.many_journals import JournalSpan

# Of values of JSON within each other. Arrow's work grows with the square: 10,000 take it minutes.
DEPTH_MAX = 1000
# With such a first value Arrow ends the process by a signal.
_NULL_FIRST = re.compile(rb"(\xef\xbb\xbf)?\s*null")
_TEXT = re.compile(rb'"[^"]*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
# What a bracket adds to the depth.
_STEPS = {ord(b): 1 if b in "{[" else -1 for b in "{}[]"}


class ArrowParser(Protocol):
    """Makes batches of content that begins with a message. Not safe for concurrent use."""

    def cut(self, content: bytes) -> int:
        """How many bytes of `content` are whole messages. May take long: for a thread."""
        ...

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """Batches of whole messages. Raises: DataError."""
        ...


def cut_csv(content: bytes) -> int:
    r"""How many bytes of CSV are whole records: to the last newline that is not within quotes.

    >>> cut_csv(b'a,b\n"c\nd'), cut_csv(b'a,"b\n"\nc')
    (4, 7)
    """
    cut = content.rfind(b"\n") + 1
    is_open = content.count(b'"', 0, cut) % 2 == 1
    while cut and is_open:
        # All newlines after the last quote are within it.
        before = content.rfind(b"\n", 0, content.rfind(b'"', 0, cut)) + 1
        is_open ^= content.count(b'"', before, cut) % 2 == 1
        cut = before
    return cut


@final
class _JsonParser:
    def __init__(self, schema: pa.Schema | None) -> None:
        from pyarrow import json  # noqa: PLC0415  the core goes without it

        self._json = json
        self._options = json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        )

    def cut(self, content: bytes) -> int:
        """See `ArrowParser`."""
        return content.rfind(b"\n") + 1

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """See `ArrowParser`."""
        import pyarrow as pa  # noqa: PLC0415

        if not content.strip():
            return []
        if _NULL_FIRST.match(content):
            raise DataError(_why_no_table(content, ValueError("null is not a JSON object")))
        check_depth(content)
        try:
            table = self._json.read_json(
                pa.BufferReader(content),
                # A block as large as all: a line may not lie in two.
                read_options=self._json.ReadOptions(block_size=len(content) + 1),
                parse_options=self._options,
            )
        except pa.ArrowException as err:
            raise DataError(_why_no_table(content, err)) from err
        return [batch for batch in table.to_batches() if batch.num_rows]


def _why_no_table(content: bytes, error: Exception) -> str:
    """What is wrong with lines that Arrow does not take: one of them, or that they do not go together."""
    at = 0
    for line in content.split(b"\n"):
        try:
            is_object = not line.strip() or isinstance(orjson.loads(line), dict)
        except ValueError as err:
            return f"the line {at} bytes after that is not JSON: {err}"
        if not is_object:
            return f"the line {at} bytes after that is not a JSON object, and has no columns"
        at += len(line) + 1
    return (
        f"{error} (a field whose values are of several types is not a column: leave it out, by a `schema` "
        "that names the others, or read messages)"
    )


def check_depth(content: bytes) -> None:
    """Raises: DataError: a line of JSON holds values deeper within each other than `DEPTH_MAX`."""
    at = 0
    # A line of as many bytes cannot go deeper, so only longer ones are looked at: most content is passed in leaps.
    while len(content) - at > DEPTH_MAX:
        end = content.rfind(b"\n", at, at + DEPTH_MAX + 1) + 1
        if not end:
            end = content.find(b"\n", at) + 1 or len(content)
            if depth_of(content[at:end], DEPTH_MAX) > DEPTH_MAX:
                raise DataError("a line is not JSON, or goes too deep")
        at = end


def depth_of(line: bytes, enough: int) -> int:
    """How many values of JSON lie within each other at most.

    For what is not JSON it is some number, and no less than a reader comes to before it finds out.

    Args:
        enough: of a line that has no more brackets, these are counted, in texts as well.
    """
    brackets = line.count(b"{") + line.count(b"[")
    if brackets <= enough:
        return brackets
    # In this order: of a run of backslashes, the first one escapes the next.
    plain = _TEXT.sub(b"", line.replace(b"\\\\", b"").replace(b'\\"', b""))
    steps = map(_STEPS.__getitem__, plain.translate(None, _NO_BRACKETS))
    return max(accumulate(steps), default=0)


@final
class _CsvParser:
    def __init__(
        self, schema: pa.Schema | None, columns: Sequence[str] | None, delimiter: str
    ) -> None:
        from pyarrow import csv  # noqa: PLC0415  the core goes without it

        self._csv = csv
        self._delimiter = delimiter
        self._columns = list(columns or (schema.names if schema is not None else ()))
        self._types = dict(zip(schema.names, schema.types, strict=True)) if schema else None

    def cut(self, content: bytes) -> int:
        """See `ArrowParser`."""
        return cut_csv(content)

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """See `ArrowParser`."""
        import pyarrow as pa  # noqa: PLC0415

        if not content.strip():
            return []
        try:
            table = self._csv.read_csv(
                pa.BufferReader(content),
                read_options=self._csv.ReadOptions(
                    block_size=len(content) + 1,
                    column_names=self._columns or None,
                    autogenerate_column_names=not self._columns,
                ),
                parse_options=self._csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=True
                ),
                convert_options=self._csv.ConvertOptions(column_types=self._types),
            )
        except pa.ArrowException as err:
            raise DataError(str(err)) from err
        return [batch for batch in table.to_batches() if batch.num_rows]


@final
class _DecodingParser:
    """Of messages that are dictionaries, of any framing."""

    def __init__(self, span: JournalSpan, schema: pa.Schema | None) -> None:
        self._journal = span.journal
        self._framing = framing_of_labels(span.labels)
        self._schema = schema

    def cut(self, content: bytes) -> int:
        """See `ArrowParser`."""
        decoder = self._framing.decoder()
        decoder.feed(content)
        return len(content) - decoder.held_bytes

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """See `ArrowParser`."""
        import pyarrow as pa  # noqa: PLC0415

        decoder: MessageDecoder[Any] = MessageDecoder(self._journal, self._framing)
        decoder.feed(0, content)
        rows: list[Any] = []
        while envelopes := decoder.take():  # until it raises for one that cannot be read
            rows += [envelope.message for envelope in envelopes]
        names: dict[Any, None] = {}  # not those of the first alone, as pyarrow takes
        for row in rows:
            if not isinstance(row, dict):
                raise ValidationError(
                    f"messages of {self._framing.content_type} are {type(row).__name__}, of which "
                    "Arrow makes no columns (read them as messages)"
                )
            names.update(dict.fromkeys(row))
        try:
            if self._schema is not None:
                batch = pa.RecordBatch.from_pylist(rows, schema=self._schema)
            else:
                columns = {name: [row.get(name) for row in rows] for name in names}
                batch = pa.RecordBatch.from_pydict(columns)
        except (pa.ArrowException, ArithmeticError, RecursionError, TypeError, ValueError) as err:
            raise DataError(str(err)) from err
        return [batch] if batch.num_rows else []


def arrow_parser(
    span: JournalSpan,
    schema: pa.Schema | None,
    columns: Sequence[str] | None,
    *,
    delimiter: str = ",",
) -> ArrowParser:
    """The parser of a journal's framing.

    Args:
        span: whose labels name the framing.
        schema, columns: as of `read_arrow`.
        delimiter: of CSV.

    Raises: ValidationError: they name none.
    """
    match framing_of_labels(span.labels).content_type:
        case "application/x-ndjson":
            return _JsonParser(schema)
        case "text/csv":
            return _CsvParser(schema, columns, delimiter)
        case _:
            return _DecodingParser(span, schema)
