"""What workers do: an order carried out, from a task's bytes to Parquet files and what the driver has to know."""

from __future__ import annotations

import os
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from gazette_platform.client import Client
from gazette_platform.client.read.extents import Extent
from gazette_platform.errors import DataError, StatusError, StoreError, TransportError
from gazette_platform.lake.reading.extent_content import LineBlocks, pieces_of
from gazette_platform.lake.typed.iceberg_types import arrow_schema
from gazette_platform.lake.typed.planning.rounds import Done, Kind
from gazette_platform.lake.typed.planning.screening import TaskScreen
from gazette_platform.lake.typed.rows.debezium import parser_of
from gazette_platform.lake.typed.rows.parsing import BadRecord, CutLines
from gazette_platform.lake.typed.rows.placing import bad_rows, in_schema, placed_rows
from gazette_platform.lake.typed.runs.jobs import Output
from gazette_platform.lake.typed.tables.writing import (
    ChangeWriter,
    CountedRows,
    RowWriter,
    remove_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from pyiceberg.io import FileIO

    from gazette_platform.lake.reading.extent_content import Piece
    from gazette_platform.lake.typed.planning.ranges import Task
    from gazette_platform.lake.typed.planning.rounds import Order
    from gazette_platform.lake.typed.rows.debezium import ChangeParser
    from gazette_platform.lake.typed.rows.parsing import (
        BlockParser,
        LineBlock,
        LookedBlock,
        ParsedBlock,
    )
    from gazette_platform.lake.typed.runs.jobs import Job

# Each holds what a task holds.
_THREADS_MAX: Final = 4
_MESSAGES: Final = pa.schema(
    [
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("producer", pa.binary(6)),
        ("clock", pa.uint64()),
        ("flags", pa.uint16()),
    ]
)


class Sink(Protocol):
    """Where an order's rows of one table go."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""

    @property
    def rows(self) -> int:
        """That were taken."""

    def add(self, rows: pa.Table) -> None:
        """Take rows. Raises: LakeError: they cannot be written."""

    def close(self) -> tuple[Any, ...]:
        """Take no more. Returns: what was made of them; nothing, if there were none."""

    def abort(self) -> None:
        """Forget all that was taken."""


def carry_out(
    job: Job, order: Order, sinks: Callable[[Job], tuple[Sink, Sink]] | None = None
) -> Done:
    """Do what an order says, with a client of its own.

    Memory: blocks of 1 MiB, or the longest record; rows that are held until they are written; and 34 bytes for each
    message of the task.

    Args:
        sinks: for rows of the typed table and of its quarantine; None: files below the tables' locations.

    Returns: for `JournalRounds`; its output is an `Output`, or None if nothing was written.
    Raises: DataError: content is damaged or gone. LakeError: a file cannot be written, or the journal's name has
        no value for a column. StoreError, StatusError, TransportError: content cannot be had. What was written is
        removed then.
    """
    with Client(job.client) as client:
        # A client of its own: workers are other processes or threads, and Spark may repeat a task
        # while the first attempt lives.
        content = _TaskContent(client, order.journal, order.task)
        with closing(content.blocks):
            if order.kind is Kind.LOOK:
                return _looked(job, content)
            with _Rows(job, order.journal, *(sinks or _files)(job)) as files:
                if order.kind is Kind.KEEP:
                    return _kept(job, order, content, files)
                return _screened(job, order, content, files)


def attempt(
    job: Job, order: Order, sinks: Callable[[Job], tuple[Sink, Sink]] | None = None
) -> Done:
    """As `carry_out`; but content that cannot be read is reported, so that other journals go on.

    Raises: LakeError: a file cannot be written, or the journal's name has no value for a column.
    """
    try:
        return carry_out(job, order, sinks)
    except (DataError, StoreError, StatusError, TransportError) as err:
        return Done(failure=str(err) or type(err).__name__)


def _screened(job: Job, order: Order, content: _TaskContent, files: _Rows) -> Done:
    """Of kind `PLAIN`. Once there is a transaction, it goes on as `LOOK` does."""
    parser = parser_of(job.spec)
    screen = TaskScreen(order.task.begin, order.known)
    messages: list[pa.Table] = []
    is_plain = True
    for block in content.blocks:
        # Rows of this task are decided by the driver now. Reading on for offsets and UUIDs saves it
        # a second read.
        if not is_plain:
            messages.append(_looked_at(parser, block))
            continue
        parsed = _parsed(parser, block)
        messages.append(_messages(parsed))
        keep = screen.take(parsed.parts)
        is_plain = screen.is_plain
        if not is_plain:
            # Rows that were written assumed that all is plain; the driver will order them again by
            # offset.
            files.abort()
        elif order.writes:
            files.add(parsed, block, keep)
    summary = screen.summary(content.end)
    if is_plain:
        return files.close(Done(summary=summary))
    return Done(summary=summary, messages=_table_of(messages), end=content.end)


def _looked(job: Job, content: _TaskContent) -> Done:
    parser = parser_of(job.spec)
    messages = [_looked_at(parser, block) for block in content.blocks]
    return Done(messages=_table_of(messages), end=content.end)


def _kept(job: Job, order: Order, content: _TaskContent, files: _Rows) -> Done:
    parser = parser_of(job.spec)
    wanted = order.keep if order.keep is not None else pa.array([], pa.int64())
    # Offsets are compared as a buffer: a Python integer per row would take gigabytes for large
    # tasks.
    begins = memoryview(wanted.buffers()[1] or b"").cast("q")[wanted.offset :][: len(wanted)]
    first = 0
    for block in content.blocks:
        last = bisect_left(begins, block.end, lo=first)
        if last > first:
            parsed = _parsed(parser, block)
            keep = pc.is_in(parsed.begins, value_set=wanted.slice(first, last - first))
            files.add(parsed, block, keep)
        first = last
    return files.close(Done())


def _parsed(parser: BlockParser | ChangeParser, block: LineBlock) -> ParsedBlock:
    parsed = parser.parse(block.begin, block.content)
    if not block.is_cut:
        return parsed
    told = (
        f"is a line of {block.end - block.begin} bytes, which is more than a record may have: the first "
        f"{len(block.content)} are kept"
    )
    # Also for a message that continues with blanks: what follows is unknown.
    return parsed._replace(
        ends=pa.array([block.end], pa.int64()), bad=tuple(BadRecord(0, told) for _ in parsed.bad)
    )


def _looked_at(parser: BlockParser | ChangeParser, block: LineBlock) -> pa.Table:
    if block.is_cut:
        return _messages(_parsed(parser, block))
    return _messages(parser.look(block.begin, block.content))


def _messages(parsed: ParsedBlock | LookedBlock) -> pa.Table:
    parts = (parsed.parts.field(name) for name in ("producer", "clock", "flags"))
    return pa.Table.from_arrays([parsed.begins, parsed.ends, *parts], schema=_MESSAGES)


def _table_of(messages: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([_MESSAGES.empty_table(), *messages]).combine_chunks()


@final
class _TaskContent:
    """Blocks of whole lines of a task, in order.

    What stands at the end of an extent without a newline is a message, too, and ends its block: so it is to all
    who read that fragment. Only at the end of a task that is soft, it is left.

    Attributes:
        blocks: to be iterated once, and closed before the client is.
        end: offset after the last message that was given.
    """

    def __init__(self, client: Client, journal: str, task: Task) -> None:
        self._client = client
        self._journal = journal
        self._task = task
        self._lines = CutLines(LineBlocks(journal))
        self.end = task.begin
        self.blocks = self._noted()

    def _noted(self) -> Generator[LineBlock, None, None]:
        with closing(self._blocks()) as blocks:
            for block in blocks:
                self.end = block.end
                yield block

    def _blocks(self) -> Generator[LineBlock, None, None]:
        task, lines = self._task, self._lines
        for extent in task.extents:
            with closing(self._pieces(extent)) as pieces:
                for piece in pieces:
                    yield from lines.feed(piece)
            # A fragment that ends within a line ends so for ever: engines see a bad record there,
            # and so does this table.
            is_left = task.is_soft and extent is task.extents[-1]
            if lines.is_within_line and not is_left:
                yield from lines.rest()
        yield from lines.whole_lines()
        # A line longer than the task: without this the run would read it, publish nothing, and do
        # so again for ever.
        if self.end == task.begin:
            yield from self._first_line()

    def _pieces(self, extent: Extent) -> Generator[Piece, None, None]:
        at = extent.begin
        with closing(pieces_of(self._client, extent)) as pieces:
            for piece in pieces:
                at = piece[0] + len(piece[1])
                yield piece
        # A read that ends early looks like success. Without this check the missing messages would
        # count as read.
        if at != extent.end:
            raise DataError(
                f"{self._journal}: content ends at offset {at}, and brokers listed it up to {extent.end}: was the "
                "journal recreated? Run again, which looks again"
            )

    def _first_line(self) -> Generator[LineBlock, None, None]:
        """The line that has begun, with its end, which lies behind the task. Nothing: it has not ended yet."""
        lines, end = self._lines, self._task.end
        if not lines.is_within_line:
            return
        head = self._client.write_head(self._journal)
        # The rest of the line is not appended yet; the next run reads it.
        if head <= end:
            return
        behind = Extent(self._journal, end, head)
        with closing(pieces_of(self._client, behind)) as pieces:
            for at, content in pieces:
                cut = content.find(b"\n") + 1
                yield from lines.feed((at, content[:cut] if cut else content))
                if cut:
                    yield from lines.whole_lines()
                    return


def _files(job: Job) -> tuple[Sink, Sink]:
    """Parquet files of the typed table, and of its quarantine; nothing, for a job without a location."""
    if not job.location:
        kinds = (Schema.model_validate_json(one) for one in (job.schema, job.quarantine_schema))
        rows, bad = (CountedRows(arrow_schema(kind)) for kind in kinds)
        return rows, bad

    def rows_writer() -> RowWriter:
        return RowWriter(
            _io(job, job.location),
            job.location,
            Schema.model_validate_json(job.schema),
            PartitionSpec.model_validate_json(job.partitions),
        )

    changes = job.spec.changes
    written: Sink = (
        rows_writer() if changes is None else ChangeWriter(rows_writer(), rows_writer(), changes)
    )
    set_aside = RowWriter(
        _io(job, job.quarantine_location),
        job.quarantine_location,
        Schema.model_validate_json(job.quarantine_schema),
        UNPARTITIONED_PARTITION_SPEC,
    )
    return written, set_aside


@final
class _Rows:
    """What an order makes: rows, and records that were set aside. Both are forgotten, should it fail."""

    def __init__(self, job: Job, journal: str, rows: Sink, bad: Sink) -> None:
        self._spec = job.spec
        self._journal = journal
        self._rows = rows
        self._bad = bad
        # Messages beyond rows: those about no row, without those that are two.
        self._beyond = 0

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.abort()

    def add(self, parsed: ParsedBlock, block: LineBlock, keep: pa.BooleanArray | None) -> None:
        """Take what is kept of a block."""
        rows = placed_rows(self._spec, self._rows.schema, self._journal, parsed, keep)
        self._rows.add(rows)
        self._beyond += _kept_of(parsed.rowless, keep) - _kept_of(parsed.doubled, keep)
        if parsed.bad:
            bad = bad_rows(self._journal, parsed, block.content, block.begin, keep)
            self._bad.add(in_schema(bad, self._bad.schema))

    def close(self, done: Done) -> Done:
        """End all files. Returns: `done`, with what was written."""
        output = Output(files=self._rows.close(), quarantined=self._bad.close())
        has_files = output.files or output.quarantined
        return replace(
            done,
            typed=self._rows.rows + self._beyond,
            quarantined=self._bad.rows,
            output=output if has_files else None,
        )

    def abort(self) -> None:
        """Remove all that was written."""
        with ExitStack() as stack:
            stack.callback(self._bad.abort)
            stack.callback(self._rows.abort)


def _kept_of(messages: pa.Int64Array | None, keep: pa.BooleanArray | None) -> int:
    if messages is None or keep is None:
        return len(messages or ())
    return pc.sum(keep.take(messages)).as_py() or 0


@final
class LocalWorkers:
    """Workers in this process, for small tables.

    Args:
        threads: orders that are carried out at a time. Most of it is done without the GIL.
    """

    merger = None
    """See `Workers`."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def carry_out(self, job: Job, orders: Sequence[Order]) -> list[Done]:
        """See `Workers`. Once one fails, those that have not begun do not begin."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="typed") as pool:
            futures = [pool.submit(attempt, job, order) for order in orders]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                for future in futures:
                    # Those that had finished wrote files that no driver will name.
                    if not future.cancelled() and future.exception() is None:
                        discard(job, future.result().output)
                raise


def local_workers() -> LocalWorkers:
    """Workers in this process, of as many threads as the machine has cores, up to four."""
    return LocalWorkers(min(_THREADS_MAX, os.cpu_count() or 1))


def discard(job: Job, output: Output | None) -> None:
    """Remove what was written in vain, such as `JournalRounds.discarded`. What cannot be is left to maintenance."""
    if output is None:
        return
    for location, files in (
        (job.location, output.files),
        (job.quarantine_location, output.quarantined),
    ):
        # Best effort: after a crash here maintenance removes them as orphans.
        remove_files(_io(job, location), [file.path for file in files])


def _io(job: Job, location: str) -> FileIO:
    return load_file_io(dict(job.io_properties), location)
