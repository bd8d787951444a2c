"""Read journals of records as Arrow record batches. Needs `pyarrow`, of the extra ``arrow``.

Blocks of whole records go to a parser of `arrow_parsers`. With `committed` the sequencer chooses which
frames of a block are parsed; it looks at UUIDs alone, so no message is decoded for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Self, final

from gazette_platform.errors import DataError, Desynchronized, ValidationError
from gazette_platform.message.arrow_parsers import arrow_parser
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.message.many_journals import JournalSpan, Nothing, Until, select_spans
from gazette_platform.message.reading import read_committed
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.message.uuid import Flags, UuidParts
from gazette_platform.ops.extras import required
from gazette_platform.ops.tasks import Aclosing, Closing, next_or_none
from gazette_platform.protocol import join_created

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa  # type: ignore[import-untyped]

    from gazette_platform.client import AsyncClient, Client
    from gazette_platform.client.read.records import PieceReader
    from gazette_platform.message.arrow_parsers import ArrowParser
    from gazette_platform.message.framing import Decoder, Framing
    from gazette_platform.message.reading import CommittedReader
    from gazette_platform.protocol import LabelSelector

_ACK = int(Flags.ACK_TXN)


class Framed(NamedTuple):
    """A message as it lies in its journal."""

    frame: bytes
    uuid: UuidParts


@final
class _FrameDecoder:
    """Looks into messages for their UUIDs, and keeps their bytes, for Arrow to parse."""

    def __init__(self, framing: Framing[Any], unreadable: UuidParts | None) -> None:
        self._uuid_of = framing.uuid_of
        self._unreadable = unreadable
        self._decoder: Decoder[Any] = framing.decoder()
        self.feed = self._decoder.feed
        self.end = self._decoder.end

    @property
    def held_bytes(self) -> int:
        """See `Decoder`."""
        return self._decoder.held_bytes

    def decode(self, frame: bytes) -> Framed:
        """See `Decoder`."""
        try:
            return Framed(frame, self._uuid_of(self._decoder.decode(frame)))
        except (DataError, IndexError):
            if self._unreadable is None:
                raise
            return Framed(frame, self._unreadable)


@final
class Frames:
    """The `Unframing` of messages whose bytes are kept.

    Args:
        unreadable: the UUID of messages that cannot be read, with which they are given; None: they are errors.
    """

    def __init__(self, framing: Framing[Any], *, unreadable: UuidParts | None = None) -> None:
        self._framing = framing
        self._unreadable = unreadable

    @property
    def content_type(self) -> str:
        """See `Unframing`."""
        return self._framing.content_type

    def decoder(self) -> _FrameDecoder:
        """See `Unframing`."""
        return _FrameDecoder(self._framing, self._unreadable)

    def uuid_of(self, message: Framed) -> UuidParts:
        """See `Unframing`."""
        return message.uuid


@final
class CommittedBlocks:
    """Frames of the committed messages of a journal, each once, in large blocks. ACKs are left out.

    Args:
        span: what to read.
        parser: for whom.
        block_bytes: how large blocks are, about; in a read that waits for more, each is what has come.

    Attributes:
        end: after the last message of the block that was given.
        checkpoint: where to continue after that block.
    """

    def __init__(
        self,
        client: AsyncClient,
        span: JournalSpan,
        parser: ArrowParser,
        *,
        checkpoint: SequencerCheckpoint | None,
        block_bytes: int,
        direct: bool,
    ) -> None:
        self.span = span
        self.parser = parser
        self.end = span.begin
        self.checkpoint = checkpoint or SequencerCheckpoint(offsets={span.journal: span.begin})
        self._client = client
        self._enough_bytes = block_bytes if span.end is not None else 1
        self._direct = direct
        self._reader: CommittedReader[Framed] | None = None
        self._begin = span.begin
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._error: DataError | None = None

    async def next(self) -> tuple[int, bytes]:
        """The next block, and where its first message begins; an empty one at the end.

        Raises: as `CommittedReader`. What was committed before a message that cannot be read comes first.
        Cancellation: safe.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self.span.is_empty:
            return self.end, b""
        reader = self._reader
        if reader is None:
            reader = self._reader = await self._open()
        while self._frames_bytes < self._enough_bytes:
            try:
                batch = await anext(reader, None)
            except DataError as err:
                if not self._frames:
                    raise
                self._error = err
                break
            if batch is None:
                break
            for envelope in batch:
                self.end = envelope.end
                if envelope.uuid.flags == _ACK and envelope.uuid.clock:
                    continue
                if not self._frames:
                    self._begin = envelope.begin
                self._frames.append(envelope.message.frame)
                self._frames_bytes += len(envelope.message.frame)
        self.checkpoint = reader.checkpoint()
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        return self._begin, b"".join(frames)

    async def _open(self) -> CommittedReader[Framed]:
        span = self.span
        return await read_committed(
            self._client,
            span.journal,
            span.begin,
            checkpoint=self.checkpoint,
            framing=Frames(framing_of_labels(span.labels)),
            block=span.end is None,
            end_offset=span.end or 0,
            direct=self._direct,
            created=span.required,
        )

    async def aclose(self) -> None:
        """End the read."""
        if self._reader is not None:
            await self._reader.aclose()


_BLOCK_BYTES = 8 << 20


class ArrowBatch(NamedTuple):
    """Messages that follow each other in a journal, as columns."""

    journal: str
    begin: int
    """Byte offset of the first one."""
    end: int
    """Byte offset after the last one: a place to continue, unless only committed ones are read."""
    batch: pa.RecordBatch


def read_arrow(
    client: Client,
    selector: LabelSelector | str,
    *,
    until: Until = "head",
    committed: bool = False,
    offsets: Mapping[str, int] | None = None,
    checkpoints: Mapping[str, SequencerCheckpoint] | None = None,
    schema: pa.Schema | None = None,
    columns: Sequence[str] | None = None,
    direct: bool = True,
) -> SyncArrowReader:
    """Read all matching journals, one after the other by name, as Arrow record batches.

    Args:
        selector: as of `Client.list`; ``name:prefix=orders/`` is every journal of a prefix.
        until: ``head``: each is read to where it ends when the read begins; ``never``: only for one
            journal, which is waited at.
        committed: whether to read only messages that are committed, each once, without ACKs. Their UUIDs
            have to be looked at one by one, which takes several times as long.
        offsets: where to begin in each journal, where a message must begin; others from 0.
        checkpoints: where to go on in journals that were read committed; used instead of `offsets`.
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
            committed=committed,
            offsets=offsets,
            checkpoints=checkpoints,
            schema=schema,
            columns=columns,
            direct=direct,
        ),
    )


@final
class ArrowReader(Aclosing):
    """For asyncio programs, what `read_arrow` is for others: an async iterator of `ArrowBatch`.

    Args:
        client, selector, until, committed, offsets, checkpoints, schema, columns, direct: as of
            `read_arrow`.

    Attributes:
        offsets: of each journal that was read of, where to go on; empty if `committed`.
        checkpoints: likewise, if `committed`.
    """

    def __init__(
        self,
        client: AsyncClient,
        selector: LabelSelector | str,
        *,
        until: Until = "head",
        committed: bool = False,
        offsets: Mapping[str, int] | None = None,
        checkpoints: Mapping[str, SequencerCheckpoint] | None = None,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        direct: bool = True,
    ) -> None:
        if checkpoints and not committed:
            raise ValidationError("are of reads of what is committed", path="checkpoints")
        required("pyarrow", extra="arrow", by="Arrow batches")
        _check_schema(schema)
        self.offsets: dict[str, int] = {}
        self.checkpoints: dict[str, SequencerCheckpoint] = {}
        self._client = client
        self._selector = selector
        self._until: Until = until
        self._committed = committed
        self._known = dict(checkpoints or {})
        reached = {name: known.offsets.get(name, 0) for name, known in self._known.items()}
        self._begins = {**(offsets or {}), **reached}
        self._schema = schema
        self._columns = columns
        self._direct = direct
        self._spans: list[JournalSpan] | None = None
        self._created: dict[str, int] = {}
        self._blocks: _Blocks | CommittedBlocks | None = None
        self._ready: list[ArrowBatch] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ArrowBatch:
        """The next batch.

        Raises: DataError: content is not what its framing says, or ends within a message; and what
            `select_spans` and `Reader` raise.
        Cancellation: content that is being parsed is lost: go on with a new reader, at `offsets`, or
            `checkpoints`.
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
            self._created = {span.journal: span.created for span in spans}
        while not self._ready:
            if self._blocks is None:
                if not self._spans:
                    raise StopAsyncIteration
                self._blocks = self._open(self._spans.pop())
            blocks = self._blocks
            begin, content = await blocks.next()
            if not content:
                if self._committed:  # maybe after messages that were not committed
                    self._reached(blocks)
                self._blocks = None
                await blocks.aclose()
                continue
            try:
                parsed = await asyncio.to_thread(blocks.parser.parse, content)
            except DataError as err:
                raise DataError(
                    f"{blocks.span.journal}: messages from offset {begin} on: {err}"
                ) from err
            self._ready = [
                ArrowBatch(blocks.span.journal, begin, blocks.end, batch)
                for batch in reversed(parsed)
            ]
            if not parsed:
                self._reached(blocks)
        batch = self._ready.pop()
        if not self._ready and self._blocks is not None:
            self._reached(self._blocks)
        return batch

    @property
    def places(self) -> dict[str, int]:
        """Offsets to go on at, with the journals that they belong to: keep them, and give them as `offsets`.

        Give `checkpoints`, too, if only committed messages were read.
        """
        reached = {name: one.offsets.get(name, 0) for name, one in self.checkpoints.items()}
        return join_created({**self.offsets, **reached}, self._created)

    def _reached(self, blocks: _Blocks | CommittedBlocks) -> None:
        """All that `blocks` has given was returned."""
        if isinstance(blocks, CommittedBlocks):
            self.checkpoints[blocks.span.journal] = blocks.checkpoint
        else:
            self.offsets[blocks.span.journal] = blocks.end

    def _open(self, span: JournalSpan) -> _Blocks | CommittedBlocks:
        parser = arrow_parser(span, self._schema, self._columns)
        if self._committed:
            return CommittedBlocks(
                self._client,
                span,
                parser,
                checkpoint=self._known.get(span.journal),
                block_bytes=_BLOCK_BYTES,
                direct=self._direct,
            )
        if span.is_empty:
            return _Blocks(span, Nothing(span), parser)
        reader = self._client.read(
            span.journal,
            span.begin,
            block=span.end is None,
            end_offset=span.end or 0,
            direct=self._direct,
            on_jump="continue",
            created=span.required,
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


@final
class SyncArrowReader(Closing):
    """An iterator of record batches; `read_all` makes a table of them, for pandas, polars or DuckDB."""

    def __init__(self, client: Client, reader: ArrowReader) -> None:
        self._client = client
        self._reader = reader

    @property
    def offsets(self) -> dict[str, int]:
        """Of each journal that was read of, where to go on; empty if only committed messages were."""
        return self._reader.offsets

    @property
    def checkpoints(self) -> dict[str, SequencerCheckpoint]:
        """Likewise, if only committed messages were."""
        return self._reader.checkpoints

    @property
    def places(self) -> dict[str, int]:
        """As of `ArrowReader`."""
        return self._reader.places

    def batches(self) -> Iterator[ArrowBatch]:
        """Batches with their journals and offsets."""
        while (found := self._client.run(next_or_none(self._reader))) is not None:
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


@final
class _Blocks:
    """Content of a journal in large blocks of whole messages."""

    def __init__(self, span: JournalSpan, reader: PieceReader, parser: ArrowParser) -> None:
        self.span = span
        self.parser = parser
        self._reader = reader
        self._held: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._enough_bytes = _BLOCK_BYTES if span.end is not None else 1
        self._offset = span.begin

    @property
    def end(self) -> int:
        """Behind the block that was given."""
        return self._offset

    async def next(self) -> tuple[int, bytes]:
        """The next block and its offset; an empty one at the end. Raises: DataError, OffsetJump."""
        while (piece := await anext(self._reader, None)) is not None:
            self._hold(piece)
            if self._held_bytes < self._enough_bytes:
                continue
            offset, block = await self._cut()
            if block:
                return offset, block
            if self._held_bytes > FRAME_BYTES_MAX + _BLOCK_BYTES:
                raise Desynchronized(
                    f"{self.span.journal}: no message ends within {self._held_bytes} bytes after "
                    f"offset {self._offset}"
                )
        offset, block = await self._cut()
        if self._held_bytes and not block:
            raise DataError(
                f"{self.span.journal}: unexpected EOF: the content ends within a message, "
                f"{self._held_bytes} bytes after offset {self._offset}"
            )
        return offset, block

    def _hold(self, piece: bytes | memoryview) -> None:
        """Raises: DataError: what was held is the beginning of a message whose end was pruned."""
        begin = self._reader.offset - len(piece)
        held_at, held_bytes = self._offset, self._held_bytes
        is_jump = begin != held_at + held_bytes  # what lies between was pruned
        if is_jump:
            self._held, self._held_bytes, self._offset = [], 0, begin
        self._held.append(piece)
        self._held_bytes += len(piece)
        if is_jump and held_bytes:
            raise DataError(
                f"{self.span.journal}: the message at offset {held_at} is cut off, because what "
                "follows was pruned"
            )

    async def _cut(self) -> tuple[int, bytes]:
        """All whole messages that are held, and where they begin."""
        content = b"".join(self._held)
        cut = await asyncio.to_thread(self.parser.cut, content)
        begin, self._offset = self._offset, self._offset + cut
        rest = content[cut:]
        self._held, self._held_bytes = [rest] if rest else [], len(rest)
        return begin, content[:cut]

    async def aclose(self) -> None:
        await self._reader.aclose()


def _check_schema(schema: object) -> None:
    """Raises: ValidationError: Arrow would pass over it."""
    import pyarrow as pa  # noqa: PLC0415

    if schema is not None and not isinstance(schema, pa.Schema):
        raise ValidationError(
            f"must be of pyarrow, as pyarrow.schema({{'a': 'string'}}), and not {type(schema).__name__}",
            path="schema",
        )


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
