"""The data source that Spark finds under the name ``gazette``, and its batches: splits that the driver plans, each read by a task.

A stream is micro-batches between offsets, which end between messages. What is known of producers behind a range of a journal
goes with it, so that the next one can be read by itself.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from typing_extensions import override

from gazette_platform.client import Client
from gazette_platform.errors import ValidationError
from gazette_platform.lake.typed.planning.state import pruned
from gazette_platform.message.reading import MessageIterator, read_uncommitted
from gazette_platform.message.sequencer import (
    Envelope,
    ProducerState,
    Sequencer,
    SequencerCheckpoint,
)
from gazette_platform.message.uuid import Flags, UuidParts
from gazette_platform.ops import platforms
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.spark.frames import JsonFrames
from gazette_platform.spark.options import (
    DEFAULT_SCHEMA,
    SinkOptions,
    SourceOptions,
    columns_of,
    parse_options,
    parse_sink_options,
)
from gazette_platform.spark.progress import (
    INITIAL,
    begins_of,
    created_of,
    offset_of,
    positions_of,
    producers_of,
    reach,
    require_created,
)
from gazette_platform.spark.reading import (
    Bounds,
    Range,
    RangesPartition,
    find_journals,
    frames_of,
    line_blocks,
    no_match,
    place_of,
    ranges_of_batch,
    read_ranges,
    splits_of,
)
from gazette_platform.spark.records import JSON, TEXTS
from gazette_platform.spark.sink import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from gazette_platform.client import AsyncClient
    from gazette_platform.spark.options import Columns
    from gazette_platform.spark.progress import Producers
    from gazette_platform.spark.reading import Journals
    from gazette_platform.spark.records import Block


_IN_ORDER: Final = (int(Flags.CONTINUE_TXN), int(Flags.ACK_TXN))


def producers_behind(
    client: Client, one: Range, options: SourceOptions
) -> tuple[ProducerState, ...]:
    """What is known of producers behind a range.

    All of it is read, and looked at for UUIDs. What transactions hold does not matter: they are not read again. Content
    that is gone is skipped: the reader of the range reports it.

    Args:
        one: begins and ends between messages; with what is known before it.

    Raises: DataError: it is damaged. TransportError.
    """
    found = ProducerStates(one)
    frames = frames_of(one.content_type, options)
    if isinstance(frames, JsonFrames):
        for block in line_blocks(client, one.journal, one.begin, one.end):
            found.take_lines(block, frames)
    else:
        reading = read_uncommitted(
            client.asynchronous,
            one.journal,
            one.begin,
            framing=frames,
            end_offset=one.end,
            direct=True,
        )
        with MessageIterator(client, client.run(reading)) as batches:
            for batch in batches:
                found.take(batch)
    return found.states()


@final
class ProducerStates:
    """What is known of producers, from message to message.

    Args:
        one: the range whose messages come, with what is known before it.
    """

    def __init__(self, one: Range) -> None:
        self._journal = one.journal
        self._begin = one.begin
        self._states = {state.producer: state for state in one.producers}

    def take_lines(self, block: Block, frames: JsonFrames) -> None:
        """Take in the next messages: by columns, if all are outside of transactions."""
        parts = frames.parts(block.content)
        if parts is not None and _is_plain(parts):
            self._take_plain(parts)
        else:
            self.take(_envelopes(block, parts, frames))

    def _take_plain(self, parts: pa.StructArray) -> None:
        # Of these the order does not matter.
        table = pa.table({"producer": parts.field("producer"), "clock": parts.field("clock")})
        highest = table.group_by("producer").aggregate([("clock", "max")])
        for producer, clock in zip(*(highest.column(at).to_pylist() for at in (0, 1)), strict=True):
            known = self._states.get(producer)
            # Those of zeros have no producer.
            if clock and (known is None or clock > known.last_ack):
                self._states[producer] = ProducerState(self._journal, producer, clock, -1)

    def take(self, messages: Iterable[Envelope[Any]]) -> None:
        """Take in the next messages, in their order."""
        sequencer = self._sequencer()
        for envelope in messages:
            sequencer.queue(envelope)
            if sequencer.replay is not None:
                sequencer.end_replay()
            while sequencer.dequeued is not None:
                sequencer.step()
        listed = sequencer.checkpoint(horizon=None).producers
        self._states = {state.producer: state for state in listed}

    def states(self) -> tuple[ProducerState, ...]:
        """Of producers that have published within a day, or have a transaction open."""
        return tuple(pruned(self._states).values())

    def _sequencer(self) -> Sequencer[Any]:
        # A message that it holds is never asked for.
        return Sequencer(
            ring_size=1,
            checkpoint=SequencerCheckpoint(
                offsets={self._journal: self._begin}, producers=tuple(self._states.values())
            ),
        )


def _is_plain(parts: pa.StructArray) -> bool:
    flags, clock = parts.field("flags"), parts.field("clock")
    in_order = pc.is_in(flags, pa.array(_IN_ORDER, pa.uint16()))
    tracked = pc.not_equal(clock, pa.scalar(0, pa.uint64()))
    return not pc.any(pc.and_(in_order, tracked)).as_py()


def _envelopes(
    block: Block, parts: pa.StructArray | None, frames: JsonFrames
) -> Iterator[Envelope[None]]:
    places = zip(block.begins.to_pylist(), block.ends.to_pylist(), strict=True)
    if parts is None:
        decode = frames.decoder().decode
        uuids = [decode(line).uuid for line in block.lines()]
    else:
        columns = (parts.field(name).to_pylist() for name in ("producer", "clock", "flags"))
        uuids = [UuidParts(*row) for row in zip(*columns, strict=True)]
    for (begin, end), uuid in zip(places, uuids, strict=True):
        yield Envelope(block.journal, begin, end, uuid, None)


_log = logging.getLogger(__name__)

_AT_A_TIME: Final = 16
# How much is read at first to find where a message ends.
_LOOK_BYTES: Final = 64 << 10


@final
class StreamReader(DataSourceStreamReader):
    """Offsets on the driver, in one process for as long as the query runs; batches in tasks.

    A batch is read between two offsets of the checkpoint, wherever fragments lie by then, so that one which is done
    again has the same rows. For committed messages the driver reads it first, for the state of producers.
    `maxBytesPerTrigger` is counted from the end of the last batch that was planned: Spark
    passes it to a restarted source before it asks for the next.

    Raises: ValidationError: options that only batches have.
    """

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        _check(options)
        self._options = options
        self._columns = columns
        self._client: Client | None = None
        # The offset after the last batch that was planned; None: a new query has none.
        self._last: dict[str, Any] | None = None
        self._begins: dict[str, int] | None = None
        # Whether it was said that no journal matches: Spark asks several times a second.
        self._is_told = False

    # Spark pickles the reader for its tasks, which need no more than this.
    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    @override
    def initialOffset(self) -> dict[str, Any]:
        return INITIAL

    @override
    def latestOffset(self) -> dict[str, Any]:
        client = self._open()
        journals = client.run(find_journals(client.asynchronous, self._options))
        if not journals and not self._is_told:
            self._is_told = True
            _log.warning("%s", no_match(self._options, when=" yet"))
        heads = {name: one.head for name, one in journals.items()}
        created = {name: one.created for name, one in journals.items()}
        if self._last is not None:
            positions = positions_of(self._last)
            created = require_created(self._last, created)
        else:
            if self._begins is None:
                self._begins = client.run(
                    place_of(client.asynchronous, self._options.starting, journals, "starting")
                )
            positions = self._begins
        wanted = reach(positions, heads, self._options.trigger_bytes_max)
        # A record of CSV is a line, but messages of CSV may have line breaks within quotes.
        lines = (JSON,) if self._options.committed else TEXTS
        ends = client.run(
            _between_messages(client.asynchronous, positions, wanted, journals, lines)
        )
        if self._last is not None and ends == positions and created == created_of(self._last):
            return self._last  # the very same: Spark compares texts, and makes no batch
        begins = self._begins if self._last is None else None
        if not self._options.committed:
            return offset_of(ends, begins, created=created)
        producers = self._producers(positions, ends, journals)
        return offset_of(ends, begins, producers, created=created)

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._last = end
        known = producers_of(start, is_committed=self._options.committed)
        if start == end:  # so Spark passes the progress of a restarted query
            return []
        begins = begins_of(start, end)
        ranges = [
            (name, begins[name], reached)
            for name, reached in positions_of(end).items()
            if begins[name] < reached
        ]
        client = self._open()
        journals = client.run(_journals_of(client.asynchronous, self._options, ranges, end))
        splits = client.run(
            splits_of(
                client.asynchronous,
                self._options,
                [
                    Range(
                        journal=name,
                        content_type=journals[name].content_type,
                        begin=begin,
                        end=reached,
                        producers=known.get(name, ()),
                        created=journals[name].created,
                    )
                    for name, begin, reached in ranges
                ],
            )
        )
        return [RangesPartition(split) for split in splits]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options, self._columns)

    @override
    def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _producers(
        self, positions: dict[str, int], ends: dict[str, int], journals: Journals
    ) -> Producers:
        """Producers as of `ends`: those as of `positions`, and what lies between."""
        client = self._open()
        known = producers_of(INITIAL if self._last is None else self._last, is_committed=True)
        for name, end in ends.items():
            begin = positions.get(name, 0)
            if begin < end:
                between = Range(
                    journal=name,
                    content_type=journals[name].content_type,
                    begin=begin,
                    end=end,
                    producers=known.get(name, ()),
                )
                known[name] = producers_behind(client, between, self._options)
        return known

    def _open(self) -> Client:
        if self._client is None:
            self._client = Client(self._options.config)
        return self._client


def _check(options: SourceOptions) -> None:
    if options.ending.word != "latest":
        raise ValidationError("are of batches only: a stream has no end", path="endingOffsets")


async def _journals_of(
    client: AsyncClient,
    options: SourceOptions,
    ranges: list[tuple[str, int, int]],
    end: dict[str, Any],
) -> Journals:
    journals = await find_journals(client, options)
    require_created(end, {name: one.created for name, one in journals.items()})
    gone = sorted({name for name, _, _ in ranges} - journals.keys())
    if gone:
        raise ValidationError(
            f"{', '.join(gone)}: the batch reads of it, and it is gone, or {options.selector} does not "
            "match it any more (make it match again, or begin with a new checkpoint)"
        )
    return journals


async def _between_messages(
    client: AsyncClient,
    positions: dict[str, int],
    wanted: dict[str, int],
    journals: Journals,
    lines: tuple[str, ...],
) -> dict[str, int]:
    """`wanted`, each moved to where a message ends: before it, unless none ends there.

    Args:
        lines: content types whose messages end with each line.
    """

    async def one(name: str) -> int:
        begin, want = positions.get(name, 0), wanted[name]
        found = journals.get(name)
        if found is None or want >= found.head:
            return max(want, begin)
        if found.content_type in lines:
            return await _line_end(client, name, begin, want, found.head)
        return await _fragment_end(client, name, begin, want, found.head)

    names = sorted(wanted)
    ends = await side_by_side(one, names, at_a_time=_AT_A_TIME)
    return dict(zip(names, ends, strict=True))


async def _line_end(client: AsyncClient, name: str, begin: int, want: int, head: int) -> int:
    """Where the last line ends that lies within [begin, want); if there is none, the first one behind."""
    look = _LOOK_BYTES
    low = want
    while low > begin:
        low = max(begin, want - look)
        found = await _newline(client, name, low, want, is_last=True)
        if found is not None:
            return found
        look *= 16
    found = await _newline(client, name, want, head, is_last=False)
    return head if found is None else found


async def _newline(
    client: AsyncClient, name: str, low: int, high: int, *, is_last: bool
) -> int | None:
    """After the first newline of [low, high), or the last one; None: there is none."""
    found: int | None = None
    if low >= high:
        return None
    reader = client.read(name, low, end_offset=high, direct=True, on_jump="continue")
    try:
        async for piece in reader:
            content = bytes(piece)
            at = content.rfind(b"\n") if is_last else content.find(b"\n")
            if at >= 0:
                found = reader.offset - len(content) + at + 1
                if not is_last:
                    break
    finally:
        await reader.aclose()
    return found


async def _fragment_end(client: AsyncClient, name: str, begin: int, want: int, head: int) -> int:
    """Where the last fragment ends that does so within (begin, want]; else the first one behind."""
    ends = sorted(each.fragment.end for each in await client.fragments(name))
    within = [end for end in ends if begin < end <= want]
    behind = [end for end in ends if want < end <= head]
    return within[-1] if within else behind[0] if behind else head


class BatchReader(DataSourceReader):
    """Plans splits on the driver, and reads each in a task."""

    def __init__(self, options: SourceOptions, columns: Columns) -> None:
        if options.trigger_bytes_max:
            raise ValidationError("is of readStream only", path="maxBytesPerTrigger")
        self._options = options
        self._columns = columns
        self._bounds = Bounds()

    @override
    def partitions(self) -> list[InputPartition]:
        with Client(self._options.config) as client:
            asking = client.asynchronous
            ranges = client.run(ranges_of_batch(asking, self._options))
            splits = client.run(splits_of(asking, self._options, ranges, self._bounds))
        # Spark takes none for one that it makes itself.
        return [RangesPartition(split) for split in splits or [()]]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesPartition)
        return read_ranges(partition.ranges, self._options, self._columns)


@final
class FilteringReader(BatchReader):
    """The same, which reads only what filters leave."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters, is_committed=self._options.committed)
        return filters  # ranges hold more rows than those that are wanted


def bounds_of(filters: Sequence[Filter], *, is_committed: bool) -> Bounds:
    """What is left to read with all filters applied.

    Args:
        is_committed: whether messages before and behind decide which are committed, so that all are read.
    """
    journals: frozenset[str] | None = None
    prefixes: list[str] = []
    lowest, highest = 0, None
    for one in filters:
        match one:
            case EqualTo(("_journal",), str(name)):
                journals = _common(journals, [name])
            case In(("_journal",), names):
                journals = _common(journals, names)
            case StringStartsWith(("_journal",), str(prefix)):
                prefixes.append(prefix)
            case GreaterThan(("_begin",), int(at)) | GreaterThanOrEqual(("_begin",), int(at)):
                lowest = max(lowest, at)
            case LessThan(("_begin",), int(at)) | LessThanOrEqual(("_begin",), int(at)):
                highest = at if highest is None else min(highest, at)
            case EqualTo(("_begin",), int(at)):
                lowest = max(lowest, at)
                highest = at if highest is None else min(highest, at)
            case _:
                pass
    if is_committed:
        lowest, highest = 0, None
    return Bounds(
        journals=journals,
        prefixes=tuple(prefixes),
        begin_min=lowest,
        begin_max=highest,
    )


def _common(known: frozenset[str] | None, names: Iterable[Any]) -> frozenset[str]:
    found = frozenset(name for name in names if isinstance(name, str))
    return found if known is None else known & found


_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


class GazetteDataSource(DataSource):
    """Journals, as ``format("gazette")`` of `read`, `readStream`, `write` and `writeStream`.

    Registered as it is, it leaves all filters to Spark, which refuses a Python source that takes any in sessions
    that did not allow it: see `register`. Options are those of `OPTIONS`, and of writes those of `SINK_OPTIONS`.
    """

    @classmethod
    @override
    def name(cls) -> str:
        return "gazette"

    @override
    def schema(self) -> str:
        return DEFAULT_SCHEMA

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._options(), columns_of(schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self._options(), columns_of(schema))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self._sink_options(), schema, overwrite=overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self._sink_options(), schema, overwrite=overwrite)

    def _options(self) -> SourceOptions:
        return parse_options(dict(self.options), self._environment())

    def _sink_options(self) -> SinkOptions:
        return parse_sink_options(dict(self.options), self._environment())

    def _environment(self) -> Mapping[str, str]:
        """This process's, completed by the platform that runs, unless the option ``broker`` names one."""
        has_broker = any(name.lower() == "broker" for name in dict(self.options))
        return os.environ if has_broker else platforms.complete(os.environ)


@final
class _FilteringSource(GazetteDataSource):
    """The same, which takes filters."""

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader(self._options(), columns_of(schema))


def register(spark: SparkSession, *, push_filters: bool = True) -> None:
    """Make ``format("gazette")`` known to a session.

    Args:
        push_filters: whether comparisons of `_journal` and `_begin` decide what is read at all. For that
            Spark's ``spark.sql.python.filterPushdown.enabled`` is set in the session, where it is off by
            default: any Python source then gets filters, if it wants to.
    """
    if push_filters:
        spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(_FilteringSource if push_filters else GazetteDataSource)
