"""What a batch reads: ranges of journals, cut into extents by the driver, and read by tasks as blocks of whole records.

The driver asks brokers for journals, write heads and fragments, heads first. Fragments end between appends, so no extent begins
within a message.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition

from gazette_platform.client import Client
from gazette_platform.client.read.extents import Extent, snapshot_of
from gazette_platform.errors import DataError, Desynchronized, OffsetJump, ValidationError
from gazette_platform.lake.reading.extent_content import BLOCK_BYTES, LineBlocks, pieces_of
from gazette_platform.message.arrow import Framed, Frames
from gazette_platform.message.content_types import framing_of, framing_of_labels
from gazette_platform.message.framing import FIXED_HEADER, FIXED_MAGIC, FRAME_BYTES_MAX
from gazette_platform.message.reading import read_committed
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.message.uuid import NO_UUID, Flags, UuidParts, build_uuid
from gazette_platform.ops.tasks import next_or_none, side_by_side
from gazette_platform.protocol import require_same
from gazette_platform.spark.frames import JsonFrames
from gazette_platform.spark.records import FIXED, JSON, TEXTS, Block, Records

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

    from gazette_platform.client import AsyncClient, FragmentListing, JournalListing
    from gazette_platform.lake.reading.extent_content import Piece
    from gazette_platform.message.framing import Unframing
    from gazette_platform.message.sequencer import ProducerState
    from gazette_platform.spark.options import Columns, Place, SourceOptions


@final
@dataclass(frozen=True, slots=True, repr=False)
class Range(Extent):
    """Bytes of a journal that are to be read: all that a batch reads of it, or an extent of that."""

    content_type: str = field(kw_only=True)
    producers: tuple[ProducerState, ...] = field(default=(), kw_only=True)
    """Of committed messages, what is known of those before it."""
    created: int = field(default=0, kw_only=True)
    """Which journal it is (`protocol.offsets`); 0: not known."""


@final
class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a query's filters leave to be read. Spark applies them once more, row by row."""

    journals: frozenset[str] | None = None
    """Names; None: all."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names."""
    begin_min: int = 0
    """Rows of smaller `_begin` are not asked for."""
    begin_max: int | None = None
    """Rows of larger `_begin` are not asked for."""

    def takes_journal(self, name: str) -> bool:
        """Whether rows of a journal may be asked for."""
        is_named = self.journals is None or name in self.journals
        return is_named and all(map(name.startswith, self.prefixes))

    def takes(self, one: Range) -> bool:
        """Whether a row of a range may be asked for."""
        is_behind = self.begin_max is not None and one.begin > self.begin_max
        return one.end > self.begin_min and not is_behind


def plan_range(
    wanted: Range, listed: Iterable[FragmentListing]
) -> tuple[list[Range], list[tuple[int, int]]]:
    """Cut a range into its extents.

    Args:
        wanted: begins and ends between messages.
        listed: fragments of its journal, in any order; those without a backing store are in spools.

    Returns: the extents, in order; and missing bytes. What is missing at the beginning of the range was pruned.
    """
    snapshot = snapshot_of(wanted.journal, listed, wanted.end)
    found = [
        replace(wanted, begin=each.begin, end=each.end, listing=each.listing, producers=())
        for each in snapshot.between(wanted.begin, wanted.end)
    ]
    return found, snapshot.missing(wanted.begin, wanted.end)


def pack(ranges: Iterable[Range], bytes_max: int) -> list[tuple[Range, ...]]:
    """Splits of up to `bytes_max`, in order; a range that is larger is one by itself."""
    splits: list[tuple[Range, ...]] = []
    held: list[Range] = []
    size = 0
    for one in ranges:
        length = one.end - one.begin
        if held and size + length > bytes_max:
            splits.append(tuple(held))
            held, size = [], 0
        held.append(one)
        size += length
    return [*splits, tuple(held)] if held else splits


_ACK: Final = int(Flags.ACK_TXN)


def read_ranges(
    ranges: Sequence[Range], options: SourceOptions, columns: Columns
) -> Iterator[pa.RecordBatch]:
    """The records of ranges, in order, as batches of `columns.schema`.

    Memory: some blocks of 1 MiB, or the longest record, and what is fetched ahead of them.

    Raises: OffsetJump: content is gone. DataError: it is damaged, or in mode `failFast` a record is not of
        the schema. ValidationError: columns are asked for that records of such a content type do not have.
    """
    makers: dict[str, Records] = {}
    with Client(options.config) as client:
        for one in ranges:
            records = makers.get(one.content_type)
            if records is None:
                records = makers[one.content_type] = Records(
                    one.content_type, columns, uuid_path=options.uuid, mode=options.mode
                )
            for block in _blocks(client, one, options, needs_uuid=columns.asks_for("_uuid")):
                yield from records.batches(block)


def _blocks(
    client: Client, one: Range, options: SourceOptions, *, needs_uuid: bool
) -> Iterator[Block]:
    if options.committed:
        source = _committed(client.asynchronous, one, options, needs_uuid=needs_uuid)
        try:
            while (block := client.run(next_or_none(source))) is not None:
                yield block
        finally:
            client.run(source.aclose())
        return
    pieces = pieces_of(client, one, on_jump=options.on_jump, created=one.created)
    if one.content_type in TEXTS:
        yield from _lines(one.journal, pieces)
    else:
        yield from _frames(one, pieces, needs_uuid=needs_uuid)


def line_blocks(client: Client, journal: str, begin: int, end: int) -> Iterator[Block]:
    """Lines of bytes [begin, end) of a journal, in order, in blocks of some MiB. What is gone is passed over.

    Raises: DataError: it is damaged. TransportError.
    """
    return _lines(journal, _fetched(client, journal, begin, end))


def _fetched(client: Client, journal: str, begin: int, end: int) -> Iterator[Piece]:
    reading = client.asynchronous.read
    reader = reading(journal, begin, end_offset=end, direct=True, on_jump="continue")
    try:
        while (piece := client.run(next_or_none(reader))) is not None:
            yield reader.offset - len(piece), bytes(piece)
    finally:
        client.run(reader.aclose())


def _lines(journal: str, pieces: Iterator[Piece]) -> Iterator[Block]:
    """Blocks of whole lines. What follows the last newline is a record, too."""
    lines = LineBlocks(journal)
    for piece in pieces:
        # Unless it is the first one, what lies between is gone.
        if piece[0] != lines.end and (rest := lines.rest()) is not None:
            yield _line_block(journal, *rest)
        if (block := lines.feed(piece)) is not None:
            yield _line_block(journal, *block)
    if (rest := lines.rest()) is not None:
        yield _line_block(journal, *rest)


def _line_block(journal: str, begin: int, content: bytes) -> Block:
    end = begin + len(content)
    if not content.endswith(b"\n"):
        content += b"\n"
    lines = pc.split_pattern(pa.array([content], pa.large_binary()), "\n").flatten()
    lengths = pc.add(pc.binary_length(lines.slice(0, len(lines) - 1)), 1)
    ends = pc.add(pc.cumulative_sum(lengths.cast(pa.int64())), begin)
    begins = pc.subtract(ends, lengths.cast(pa.int64()))
    return Block(journal, content, begins, pc.min_element_wise(ends, pa.scalar(end, pa.int64())))


def _frames(one: Range, pieces: Iterator[Piece], *, needs_uuid: bool) -> Iterator[Block]:
    """Blocks of frames of a content type whose records are not lines."""
    framing = Frames(framing_of(one.content_type), unreadable=NO_UUID)
    decoder = framing.decoder()
    begin = fed = one.begin
    for at, piece in pieces:
        if at != fed:
            decoder, begin = framing.decoder(), at
        fed = at + len(piece)
        frames = decoder.feed(piece)
        if not frames:
            if decoder.held_bytes > FRAME_BYTES_MAX + BLOCK_BYTES:
                raise Desynchronized(
                    f"{one.journal}: no message ends within {decoder.held_bytes} bytes after offset "
                    f"{begin} (is its content-type {one.content_type}?)"
                )
            continue
        ends: list[int] = []
        end = begin
        for frame in frames:
            end += len(frame)
            ends.append(end)
        uuids: list[str | None] | None = None
        if needs_uuid:
            uuids = [_text_of(decoder.decode(frame).uuid) for frame in frames]
        yield _frame_block(one, [begin, *ends[:-1]], ends, frames, uuids)
        begin = end
    try:
        decoder.end()
    except DataError as err:
        raise DataError(f"{one.journal}: after offset {begin}: {err}") from err


def _frame_block(
    one: Range,
    begins: list[int],
    ends: list[int],
    frames: list[bytes],
    uuids: list[str | None] | None,
) -> Block:
    is_text = one.content_type in TEXTS
    return Block(
        one.journal,
        b"".join(frames) if is_text else b"",
        pa.array(begins, pa.int64()),
        pa.array(ends, pa.int64()),
        None if is_text else frames,
        uuids,
    )


def _text_of(uuid: UuidParts) -> str | None:
    return None if uuid == NO_UUID else str(build_uuid(*uuid))


def frames_of(content_type: str, options: SourceOptions) -> Unframing[Framed]:
    """How messages are cut, and where their UUIDs are. What cannot be read has none, and counts as committed."""
    if content_type == JSON:
        return JsonFrames(options.uuid)
    return Frames(framing_of(content_type), unreadable=NO_UUID)


async def _committed(
    client: AsyncClient, one: Range, options: SourceOptions, *, needs_uuid: bool
) -> AsyncGenerator[Block, None]:
    """Committed messages of a one, each once, without ACKs, in blocks."""
    checkpoint = SequencerCheckpoint(offsets={one.journal: one.begin}, producers=one.producers)
    reader = await read_committed(
        client,
        one.journal,
        checkpoint=checkpoint,
        framing=frames_of(one.content_type, options),
        end_offset=one.end,
        direct=True,
        created=one.created,
    )
    begins: list[int] = []
    ends: list[int] = []
    frames: list[bytes] = []
    uuids: list[str | None] | None = [] if needs_uuid else None
    size = 0
    try:
        async for batch in reader:
            for envelope in batch:
                if envelope.uuid.flags == _ACK and envelope.uuid.clock:
                    continue
                begins.append(envelope.begin)
                ends.append(envelope.end)
                frames.append(envelope.message.frame)
                size += len(envelope.message.frame)
                if uuids is not None:
                    uuids.append(_text_of(envelope.uuid))
            if size >= BLOCK_BYTES:
                yield _frame_block(one, begins, ends, frames, uuids)
                begins, ends, frames, size = [], [], [], 0
                uuids = [] if needs_uuid else None
        if frames:
            yield _frame_block(one, begins, ends, frames, uuids)
    finally:
        await reader.aclose()


_log = logging.getLogger(__name__)

_AT_A_TIME: Final = 16
# Of signed URLs: a task that begins later reads through brokers.
_URL_TTL_S: Final = 3600.0


class Found(NamedTuple):
    """What brokers say of a journal."""

    content_type: str
    head: int
    created: int
    """Which journal it is; see `protocol.offsets`."""


Journals = dict[str, Found]
"""By name."""


async def find_journals(client: AsyncClient, options: SourceOptions) -> Journals:
    """The journals that match now.

    Raises: ValidationError: one has no content type of messages. TransportError. Cancellation: safe.
    """
    found = await client.list(options.selector)
    # Of one that is fully suspended nothing is stored.
    served: list[JournalListing] = [j for j in found if not j.spec.is_fully_suspended]
    heads = await client.write_heads(served)
    journals: Journals = {}
    for journal in served:
        try:
            content_type = framing_of_labels(journal.spec.labels).content_type
        except ValidationError as err:
            raise err.within(journal.name) from err
        journals[journal.name] = Found(content_type, heads[journal.name], journal.created)
    return journals


async def place_of(
    client: AsyncClient, place: Place, journals: Journals, side: str
) -> dict[str, int]:
    """Where reading begins or ends in each journal. One that offsets do not name is read whole.

    Args:
        side: for errors, ``starting`` or ``ending``.

    Raises: ValidationError: an offset is of no such journal, lies after its head, or within a message.
        SavepointNotFound. JournalReplaced: a savepoint's offset is of a journal that was deleted.
        TransportError.
    """
    heads = {name: one.head for name, one in journals.items()}
    if place.word:
        return heads if place.word == "latest" else dict.fromkeys(heads, 0)
    given, created = place.offsets, place.created
    if place.savepoint:
        named = await client.get_savepoint(place.savepoint)
        given = {name: offset for name, offset in named.offsets.items() if name in heads}
        created = named.created
    wrong = sorted(given.keys() - heads.keys())
    if wrong:
        raise ValidationError(
            f"names {', '.join(wrong)}, which the selector does not match", path=f"{side}Offsets"
        )
    path = f"{side}Savepoint" if place.savepoint else f"{side}Offsets"
    for name, offset in given.items():
        require_same(
            name,
            created.get(name, 0),
            journals[name].created,
            offset=offset,
            advice=f"name an offset of this one in {side}Offsets",
        )
        if offset > heads[name]:
            raise ValidationError(
                f"{name}: {offset} is behind the write head, {heads[name]}", path=path
            )
        if 0 < offset < heads[name] and await _is_within_message(
            client, name, offset, journals[name]
        ):
            raise ValidationError(
                f"{name}: {offset} is within a message (`_begin` and `_end` of rows are between messages)",
                path=path,
            )
    others = heads if side == "ending" else dict.fromkeys(heads, 0)
    return {**others, **given}


async def _is_within_message(client: AsyncClient, name: str, offset: int, journal: Found) -> bool:
    """Whether an offset is not between messages; of content types that are not ours it is not known.

    Content that is gone ended with a message, as fragments do.
    """
    content_type, head = journal.content_type, journal.head
    if content_type in TEXTS:
        before = await _bytes_at(client, name, offset - 1, offset)
        return before not in {b"", b"\n"}
    if content_type != FIXED:
        return False
    # What looks like the begin of a message may be within one, but not also lead to the begin of the next.
    for _ in range(2):
        header = await _bytes_at(client, name, offset, min(offset + FIXED_HEADER.size, head))
        if len(header) < FIXED_HEADER.size:
            return header != b""
        magic, length = FIXED_HEADER.unpack(header)
        if magic != FIXED_MAGIC:
            return True
        offset += FIXED_HEADER.size + length
        if offset >= head:
            break
    return offset > head


async def _bytes_at(client: AsyncClient, name: str, begin: int, end: int) -> bytes:
    """Return bytes [begin, end) of a journal; none, if the first of them is gone."""
    reader = client.read(name, begin, end_offset=end, direct=True, on_jump="continue")
    found = bytearray()
    try:
        async for piece in reader:
            if not found and reader.offset - len(piece) != begin:
                return b""
            found += piece
    finally:
        await reader.aclose()
    return bytes(found)


def no_match(options: SourceOptions, *, when: str = "") -> str:
    """Return what to say of a selector that matches no journal."""
    return (
        f"no journal with content matches {options.selector}{when} (write it as name=a/journal, or "
        "name:prefix=a/ for all below; `gazctl journals list` shows which there are)"
    )


async def ranges_of_batch(client: AsyncClient, options: SourceOptions) -> list[Range]:
    """What a batch reads of each journal.

    Raises: ValidationError: no journal matches, or one ends before it begins; and as `find_journals` and
        `place_of`. Cancellation: safe.
    """
    journals = await find_journals(client, options)
    if not journals:
        raise ValidationError(no_match(options))
    begins = await place_of(client, options.starting, journals, "starting")
    ends = await place_of(client, options.ending, journals, "ending")
    for name, end in ends.items():
        if end < begins[name]:
            raise ValidationError(
                f"{name}: {end} is before {begins[name]}, where reading begins",
                path="endingSavepoint" if options.ending.savepoint else "endingOffsets",
            )
    return [
        Range(
            journal=name,
            content_type=one.content_type,
            begin=begins[name],
            end=ends[name],
            created=one.created,
        )
        for name, one in sorted(journals.items())
    ]


async def splits_of(
    client: AsyncClient,
    options: SourceOptions,
    ranges: Iterable[Range],
    bounds: Bounds | None = None,
) -> list[tuple[Range, ...]]:
    """Splits of ranges, each existing byte in one of them.

    What was pruned before a journal's first byte is passed over where its range begins at 0.

    Raises: OffsetJump: a part of it is missing, and `onJump` is ``raise``. TransportError.
        Cancellation: safe.
    """
    bounds = bounds or Bounds()
    wanted = [one for one in ranges if one.begin < one.end and bounds.takes_journal(one.journal)]

    async def extents_of(one: Range) -> Sequence[Range]:
        listed = await client.fragments(one.journal, ttl_s=_URL_TTL_S)
        found, missing = plan_range(one, listed)
        for begin, end in missing:
            if begin > 0 and options.on_jump == "raise":
                raise OffsetJump(one.journal, begin, end)
            _log.info("%s: content from offset %d to %d is gone", one.journal, begin, end)
        if not options.committed or not found:
            return found
        # What is committed depends on all that came before: one task reads it in order.
        return [replace(one, begin=found[0].begin)]

    found = await side_by_side(extents_of, wanted, at_a_time=_AT_A_TIME)
    if options.committed:
        return [(one,) for of_journal in found for one in of_journal]
    kept = [one for of_journal in found for one in of_journal if bounds.takes(one)]
    return pack(kept, options.partition_bytes_max)
