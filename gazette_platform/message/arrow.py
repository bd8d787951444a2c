"""Journals of records as Arrow record batches. Needs `pyarrow`, of the extra ``arrow``.

JSON lines and CSV are parsed by Arrow, many megabytes at a time, with no step of Python for each
message. Messages of other framings, if they are dictionaries, are decoded one by one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, final

import orjson

from gazette_platform.errors import DataError, Desynchronized, SetupError, ValidationError
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.message.readers import MessageDecoder
from gazette_platform.message.registry import framing_of_labels
from gazette_platform.message.selection import JournalSpan, Until, select_spans

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.client import AsyncClient, Client, Reader
    from gazette_platform.protocol import LabelSelector

__all__ = ["ArrowBatch", "ArrowReader", "SyncArrowReader", "cut_csv", "read_arrow"]

_BLOCK_BYTES = 8 << 20
# Of values of JSON within each other. Arrow's work grows with the square: 10,000 take it minutes.
_DEPTH_MAX = 500
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]\n"))


class ArrowBatch(NamedTuple):
    """Messages that follow each other in a journal, as columns."""

    journal: str
    begin: int
    """Byte offset of the first one."""
    end: int
    """Byte offset behind the last one: a place to go on at."""
    batch: pa.RecordBatch


def read_arrow(
    client: Client,
    selector: LabelSelector | str,
    *,
    until: Until = "head",
    offsets: Mapping[str, int] | None = None,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    direct: bool = True,
) -> SyncArrowReader:
    """Every journal that matches, one behind the other by name, as Arrow record batches.

    Args:
        selector: as of `Client.list`; ``name:prefix=orders/`` is every journal of a prefix.
        until: ``head``: each is read to where it ends when the read begins; ``never``: only for one
            journal, which is waited at.
        offsets: where to begin in each journal, where a message must begin; others from 0.
        schema: of the batches; default: each batch has what Arrow finds in it. Each key that one message
            has is then a column of all that lie near it: give a schema if keys are data, or anybody's.
        columns: names of the columns of CSV, which has no header; default: ``f0``, ``f1`` and so on.
        direct: whether to fetch persisted fragments from their store, if it can be reached.

    Raises: SetupError: there is no pyarrow. ValidationError: nothing matches, or has no such form.
    """
    return SyncArrowReader(
        client,
        ArrowReader(
            client.asynchronous,
            selector,
            until=until,
            offsets=offsets,
            schema=schema,
            columns=columns,
            direct=direct,
        ),
    )


class _Parser(Protocol):
    """Makes batches of content that begins with a message. Not safe for concurrent use."""

    def cut(self, content: bytes) -> int:
        """How many bytes of `content` are whole messages. May take long: for a thread."""
        ...

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """Batches of whole messages. Raises: DataError."""
        ...


@final
class ArrowReader:
    """For asyncio programs, what `read_arrow` is for others: an async iterator of `ArrowBatch`.

    Args:
        client, selector, until, offsets, schema, columns, direct: as of `read_arrow`.

    Attributes:
        offsets: of each journal that was read of, where to go on.
    """

    def __init__(
        self,
        client: AsyncClient,
        selector: LabelSelector | str,
        *,
        until: Until = "head",
        offsets: Mapping[str, int] | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        direct: bool = True,
    ) -> None:
        _require_pyarrow()
        self.offsets: dict[str, int] = {}
        self._client = client
        self._selector = selector
        self._until: Until = until
        self._begins = offsets
        self._schema = schema
        self._columns = columns
        self._direct = direct
        self._spans: list[JournalSpan] | None = None
        self._blocks: _Blocks | None = None
        self._ready: list[ArrowBatch] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ArrowBatch:
        """The next batch.

        Raises: DataError: content is not what its framing says, or ends within a message; and what
            `select_spans` and `Reader` raise.
        Cancellation: content that is being parsed is lost: go on with a new reader, at `offsets`.
        """
        if self._spans is None:
            spans = await select_spans(
                self._client, self._selector, until=self._until, offsets=self._begins
            )
            if len(spans) > 1 and self._until == "never":
                raise ValidationError(
                    f"{len(spans)} journals match {self._selector}, and the first would be waited "
                    "at for ever: read until=head, or one journal",
                    path="until",
                )
            self._spans = spans[::-1]
        while not self._ready:
            if self._blocks is None:
                if not self._spans:
                    raise StopAsyncIteration
                self._blocks = self._open(self._spans.pop())
            blocks = self._blocks
            begin, content = await blocks.next()
            if not content:
                self._blocks = None
                await blocks.aclose()
                continue
            try:
                parsed = await asyncio.to_thread(blocks.parser.parse, content)
            except DataError as err:
                raise DataError(
                    f"{blocks.span.journal}: messages from offset {begin} on: {err}"
                ) from err
            end = begin + len(content)
            self._ready = [
                ArrowBatch(blocks.span.journal, begin, end, batch) for batch in reversed(parsed)
            ]
            if not parsed:
                self.offsets[blocks.span.journal] = end
        batch = self._ready.pop()
        if not self._ready:
            self.offsets[batch.journal] = batch.end
        return batch

    def _open(self, span: JournalSpan) -> _Blocks:
        parser = _parser_of(span, self._schema, self._columns)
        if span.end is not None and span.end <= span.begin:
            return _Blocks(span, None, parser)
        reader = self._client.read(
            span.journal,
            span.begin,
            block=span.end is None,
            end_offset=span.end or 0,
            direct=self._direct,
            on_jump="continue",
        )
        return _Blocks(span, reader, parser)

    async def read_all(self) -> pa.Table:
        """All that is left, as one table. Columns that only some batches have are null in others.

        Raises: DataError: a column is of types that have none in common: give a `schema`. Besides
            what iterating raises.
        """
        batches = [each.batch async for each in self]
        return _table_of(batches, self._schema)

    async def aclose(self) -> None:
        """End the read."""
        blocks, self._blocks, self._spans, self._ready = self._blocks, None, [], []
        if blocks is not None:
            await blocks.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


@final
class SyncArrowReader:
    """An iterator of record batches; `read_all` makes a table of them, for pandas, polars or DuckDB."""

    def __init__(self, client: Client, reader: ArrowReader) -> None:
        self._client = client
        self._reader = reader

    @property
    def offsets(self) -> dict[str, int]:
        """Of each journal that was read of, where to go on."""
        return self._reader.offsets

    def batches(self) -> Iterator[ArrowBatch]:
        """Batches with their journals and offsets."""
        while (found := self._client.run(_next_or_none(self._reader))) is not None:
            yield found

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches; raises as `ArrowReader` does."""
        return (found.batch for found in self.batches())

    def read_all(self) -> pa.Table:
        """As `ArrowReader.read_all`."""
        return self._client.run(self._reader.read_all())

    def close(self) -> None:
        """End the read."""
        self._client.run(self._reader.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _next_or_none(reader: ArrowReader) -> ArrowBatch | None:
    return await anext(reader, None)


@final
class _Blocks:
    """Content of a journal in large blocks of whole messages."""

    def __init__(self, span: JournalSpan, reader: Reader | None, parser: _Parser) -> None:
        self.span = span
        self.parser = parser
        self._reader = reader
        self._held: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._enough = _BLOCK_BYTES if span.end is not None else 1
        self._offset = span.begin

    async def next(self) -> tuple[int, bytes]:
        """The next block and its offset; an empty one at the end. Raises: DataError, OffsetJump."""
        while self._reader is not None:
            piece = await anext(self._reader, None)
            if piece is None:
                break
            begin = self._reader.offset - len(piece)
            before, behind = None, piece
            if begin != self._offset + self._held_bytes:  # what lies between was pruned
                before = b"".join(self._held)
                self._hold(behind, begin, fresh=True)
                if before:
                    raise DataError(
                        f"{self.span.journal}: the message at offset {begin - len(before)} is cut "
                        "off, because what follows was pruned"
                    )
                continue
            self._hold(behind, begin, fresh=False)
            if self._held_bytes < self._enough:
                continue
            content = b"".join(self._held)
            cut = await asyncio.to_thread(self.parser.cut, content)
            if cut:
                return self._given(content, cut)
            if self._held_bytes > FRAME_BYTES_MAX + _BLOCK_BYTES:
                raise Desynchronized(
                    f"{self.span.journal}: no message ends within {self._held_bytes} bytes behind "
                    f"offset {self._offset}"
                )
            self._held = [content]
        content = b"".join(self._held)
        cut = await asyncio.to_thread(self.parser.cut, content)
        if content and not cut:
            raise DataError(
                f"{self.span.journal}: unexpected EOF: the content ends within a message, "
                f"{len(content)} bytes behind offset {self._offset}"
            )
        return self._given(content, cut)

    def _hold(self, piece: bytes | memoryview, begin: int, *, fresh: bool) -> None:
        if fresh:
            self._held, self._held_bytes, self._offset = [], 0, begin
        self._held.append(piece)
        self._held_bytes += len(piece)

    def _given(self, content: bytes, cut: int) -> tuple[int, bytes]:
        begin, self._offset = self._offset, self._offset + cut
        rest = content[cut:]
        self._held, self._held_bytes = [rest] if rest else [], len(rest)
        return begin, content[:cut]

    async def aclose(self) -> None:
        if self._reader is not None:
            await self._reader.aclose()


def cut_csv(content: bytes) -> int:
    r"""How many bytes of CSV are whole records: to the last newline that is not within quotes.

    >>> cut_csv(b'a,b\n"c\nd'), cut_csv(b'a,"b\n"\nc')
    (4, 7)
    """
    cut = content.rfind(b"\n") + 1
    is_open = content.count(b'"', 0, cut) % 2 == 1
    while cut and is_open:
        # All newlines behind the last quote are within it.
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
        """See `_Parser`."""
        return content.rfind(b"\n") + 1

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """See `_Parser`."""
        import pyarrow as pa  # noqa: PLC0415

        if not content.strip():
            return []
        _check_depth(content)
        try:
            table = self._json.read_json(
                pa.BufferReader(content),
                # A block as large as all: a line may not lie in two.
                read_options=self._json.ReadOptions(block_size=len(content) + 1),
                parse_options=self._options,
            )
        except pa.ArrowException as err:
            raise DataError(str(err)) from err
        return [batch for batch in table.to_batches() if batch.num_rows]


def _check_depth(content: bytes) -> None:
    """Raises: DataError: a line of JSON may hold values deeper within each other than `_DEPTH_MAX`."""
    brackets = content.translate(None, _NO_BRACKETS)
    # Each pass takes the innermost away, and leaves those that stand in texts.
    for _ in range(_DEPTH_MAX):
        before, brackets = len(brackets), brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(brackets) == before:
            break
    if max(map(len, brackets.split(b"\n"))) <= _DEPTH_MAX:
        return
    left = zip(content.split(b"\n"), brackets.split(b"\n"), strict=True)
    for line, kept in left:
        if len(kept) > _DEPTH_MAX:
            try:
                orjson.loads(line)  # which goes to 1,024
            except ValueError as err:
                raise DataError(f"a line is no JSON, or goes too deep: {err}") from err


@final
class _CsvParser:
    def __init__(self, schema: pa.Schema | None, columns: Sequence[str] | None) -> None:
        from pyarrow import csv  # noqa: PLC0415  the core goes without it

        self._csv = csv
        self._columns = list(columns or (schema.names if schema is not None else ()))
        self._types = dict(zip(schema.names, schema.types, strict=True)) if schema else None

    def cut(self, content: bytes) -> int:
        """See `_Parser`."""
        return cut_csv(content)

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """See `_Parser`."""
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
                parse_options=self._csv.ParseOptions(newlines_in_values=True),
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
        """See `_Parser`."""
        decoder = self._framing.decoder()
        decoder.feed(content)
        return len(content) - decoder.held_bytes

    def parse(self, content: bytes) -> list[pa.RecordBatch]:
        """See `_Parser`."""
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


def _parser_of(
    span: JournalSpan, schema: pa.Schema | None, columns: Sequence[str] | None
) -> _Parser:
    match framing_of_labels(span.labels).content_type:
        case "application/x-ndjson":
            return _JsonParser(schema)
        case "text/csv":
            return _CsvParser(schema, columns)
        case _:
            return _DecodingParser(span, schema)


def _table_of(batches: list[pa.RecordBatch], schema: pa.Schema | None) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    if not batches:
        return (schema or pa.schema([])).empty_table()
    try:
        return pa.concat_tables(
            [pa.Table.from_batches([batch]) for batch in batches], promote_options="permissive"
        )
    except pa.ArrowException as err:
        raise DataError(
            f"batches have columns of types that do not go together: {err} (give a schema)"
        ) from err


def _require_pyarrow() -> None:
    try:
        import pyarrow as pa  # noqa: F401, PLC0415  the core goes without it
    except ImportError as err:
        raise SetupError(
            "Arrow batches need pyarrow: pip install 'gazette-platform[arrow]'"
        ) from err
