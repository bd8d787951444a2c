"""Content of fragments as typed columns of committed records, by Arrow, with bad records set aside.

A block of lines is parsed at once. Arrow refuses all of it for one bad record, which then has to be found:
`bisect` halves the block until the record is alone; `hint` takes the row from the refusal, where it
does; `lines` has msgspec look at each line, and Arrow parse those that it lets pass. What they find is the same.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from benchmarks.typed_table import COLUMNS, UUID_FIELD, Column, parsed_schema, typed_schema
from gazette_platform.codecs import decompress_steps, decompressor
from gazette_platform.errors import ChecksumMismatch, DataError
from gazette_platform.message.sequencer import Envelope, Sequencer
from gazette_platform.message.uuid import Flags, UuidParts, parse_uuid_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gazette_platform.protocol import Fragment

__all__ = [
    "BLOCK_BYTES",
    "Block",
    "Committed",
    "Parsed",
    "Repair",
    "Stages",
    "TypedParser",
    "blocks",
    "typed_tables",
]

BLOCK_BYTES: Final = 1 << 20
_READ_BYTES: Final = 512 << 10
_STEP_BYTES: Final = 256 << 10
_ROW: Final = re.compile(r" in row (\d+)\Z")
_YEAR_1_US: Final = -62_135_596_800_000_000
_OUTSIDE, _CONTINUE, _ACK = map(int, (Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN))

Repair = Literal["bisect", "hint", "lines"]


class Stages:
    """CPU seconds of this thread by what they were for."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Count what is done within."""
        begun = time.thread_time()
        try:
            yield
        finally:
            self.seconds[name] += time.thread_time() - begun


class Block(NamedTuple):
    """Whole lines of a journal."""

    begin: int
    """Byte offset of the first one."""
    content: bytes


class Parsed(NamedTuple):
    """What became of a block."""

    table: pa.Table
    """Of records' keys, with a struct `_uuid` of producer, clock and flags."""
    bad: list[Block]
    """Lines that are not records of the table."""


def blocks(
    path: Path, fragment: Fragment, stages: Stages, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """Content of a stored fragment in blocks of whole lines.

    Raises: DataError, ChecksumMismatch: the file is not what its name says.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    at, held, size = fragment.begin, [], 0
    for step in _content(path, fragment, stages):
        with stages.of("digest"):
            digest.update(step)
        held.append(step)
        size += len(step)
        if size < block_bytes:
            continue
        with stages.of("split"):
            whole = b"".join(held)
            cut = whole.rfind(b"\n") + 1
            block, rest = whole[:cut], whole[cut:]
        held, size = [rest], len(rest)
        if block:
            yield Block(at, block)
        at += len(block)
    if rest := b"".join(held):
        yield Block(at, rest)
    if digest.digest() != fragment.sum:
        raise ChecksumMismatch(f"{path}: its content does not match its name")


def _content(path: Path, fragment: Fragment, stages: Stages) -> Iterator[bytes]:
    unpack = decompressor(fragment.codec)
    with path.open("rb") as file:
        while True:
            with stages.of("read"):
                data = file.read(_READ_BYTES)
            if not data:
                break
            steps = decompress_steps(unpack, data, step_bytes_max=_STEP_BYTES)
            while True:
                with stages.of("decompress"):
                    step = next(steps, None)
                if step is None:
                    break
                yield step
    unpack.finish()


class _RefusedError(Exception):
    """A block is not good as a whole."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at
        """Byte within the bad record, if that is known."""


class TypedParser:
    """Parses blocks. Not for several threads.

    Args:
        repair: how bad records are found.
        columns: of the table.
    """

    def __init__(
        self, stages: Stages, *, repair: Repair = "bisect", columns: tuple[Column, ...] = COLUMNS
    ) -> None:
        self._stages = stages
        self._columns = columns
        self._options = arrow_json.ParseOptions(
            explicit_schema=parsed_schema(columns), unexpected_field_behavior="ignore"
        )
        self._decimals = [each.key for each in columns if "decimal" in each.spark]
        self._floats = [each.key for each in columns if pa.types.is_floating(each.arrow)]
        self._repair: Callable[[Block, _RefusedError, Parsed], list[pa.Table]] = {
            "bisect": self._bisect,
            "hint": self._hint,
            "lines": self._lines,
        }[repair]
        self._is_good = _line_check(columns) if repair == "lines" else None
        self._empty = self._fit(b'{"_meta":null}\n').slice(0, 0)

    def parse(self, block: Block) -> Parsed:
        """The good records of a block as columns, and its bad lines."""
        try:
            return Parsed(self._fit(block.content), [])
        except _RefusedError as err:
            found = Parsed(self._empty, [])
            tables = self._repair(block, err, found)
            with self._stages.of("join"):
                return Parsed(pa.concat_tables([self._empty, *tables]), found.bad)

    def _fit(self, content: bytes) -> pa.Table:
        """All of a block, or nothing. Raises: _RefusedError."""
        with self._stages.of("look"):
            _check_plain(content)
        try:
            with self._stages.of("parse"):
                table = arrow_json.read_json(
                    pa.BufferReader(content),
                    read_options=arrow_json.ReadOptions(
                        use_threads=False, block_size=len(content) + 1
                    ),
                    parse_options=self._options,
                )
            if table.num_rows != content.count(b"\n"):
                raise _RefusedError
            with self._stages.of("types"):
                table = self._typed(table)
            with self._stages.of("uuid"):
                uuids = pc.struct_field(table.column(UUID_FIELD).combine_chunks(), "uuid")
                parts = parse_uuid_column(uuids)
        except pa.ArrowException as err:
            row = _ROW.search(str(err))
            raise _RefusedError(_begin_of_row(content, int(row[1])) if row else None) from err
        except DataError as err:
            raise _RefusedError from err
        return table.drop_columns([UUID_FIELD]).append_column("_uuid", parts)

    def _typed(self, table: pa.Table) -> pa.Table:
        # It compares digits before it scales a number: 1234 becomes 1234.00 of a decimal(5,2).
        for key in self._decimals:
            table.column(key).validate(full=True)
        # `NaN` and `Infinity` are not JSON.
        for key in self._floats:
            if pc.all(pc.is_finite(table.column(key))).as_py() is False:
                raise _RefusedError
        for index, each in enumerate(self._columns, 1):
            # A year 0, which engines do not have.
            if pa.types.is_temporal(each.arrow) and _is_before(table.column(each.key)):
                raise _RefusedError
            if each.parsed is not None:
                column = pc.cast(table.column(each.key), each.arrow)
                table = table.set_column(index, each.key, column)
        return table

    def _bisect(self, block: Block, _: _RefusedError, found: Parsed) -> list[pa.Table]:
        tables: list[pa.Table] = []
        waiting = _halves(block)
        if not waiting:
            found.bad.append(block)
        while waiting:
            half = waiting.pop()
            try:
                tables.append(self._fit(half.content))
            except _RefusedError:
                halves = _halves(half)
                waiting += halves
                if not halves:
                    found.bad.append(half)
        return tables

    def _hint(self, block: Block, refusal: _RefusedError, found: Parsed) -> list[pa.Table]:
        tables: list[pa.Table] = []
        begin, content = block
        while True:
            if refusal.at is None:
                return tables + self._bisect(Block(begin, content), refusal, found)
            at = content.rfind(b"\n", 0, refusal.at) + 1
            end = content.find(b"\n", refusal.at) + 1 or len(content)
            head, bad = content[:at], content[at:end]
            if head:
                try:
                    tables.append(self._fit(head))
                except _RefusedError as err:
                    tables += self._hint(Block(begin, head), err, found)
            try:
                tables.append(self._fit(bad))
            except _RefusedError:
                found.bad.append(Block(begin + at, bad))
            begin, content = begin + end, content[end:]
            if not content:
                return tables
            try:
                return [*tables, self._fit(content)]
            except _RefusedError as err:
                refusal = err

    def _lines(self, block: Block, refusal: _RefusedError, found: Parsed) -> list[pa.Table]:
        assert self._is_good is not None
        at, good, begins = block.begin, [], []
        with self._stages.of("lines"):
            for line in block.content.splitlines(keepends=True):
                # What msgspec refuses Arrow may take: it has the last word, on each line as on blocks.
                if self._is_good(line) or self._fits(line):
                    good.append(line)
                    begins.append(at)
                else:
                    found.bad.append(Block(at, line))
                at += len(line)
        if not good:
            return []
        content = b"".join(good)
        try:
            return [self._fit(content)]
        except _RefusedError:
            places = dict(zip(accumulate(map(len, good), initial=0), begins, strict=False))
            inner = Parsed(self._empty, [])
            tables = self._bisect(Block(0, content), refusal, inner)
            found.bad.extend(Block(places[bad.begin], bad.content) for bad in inner.bad)
            found.bad.sort()
            return tables

    def _fits(self, line: bytes) -> bool:
        try:
            self._fit(line)
        except _RefusedError:
            return False
        return True


def _is_before(column: pa.ChunkedArray) -> bool:
    """Whether a text of a date, or an instant, is of a year before the first."""
    if pa.types.is_string(column.type):
        return pc.any(pc.starts_with(column, "0000")).as_py() is True
    return pc.any(pc.less(pc.cast(column, pa.int64()), _YEAR_1_US)).as_py() is True


def _halves(block: Block) -> list[Block]:
    """The second half of a block's lines and the first one; nothing: it is one line."""
    begin, content = block
    middle = content.find(b"\n", len(content) // 2) + 1
    if middle in (0, len(content)):
        middle = content.rfind(b"\n", 0, len(content) - 1) + 1
    if middle == 0:
        return []
    return [Block(begin + middle, content[middle:]), Block(begin, content[:middle])]


def _check_plain(content: bytes) -> None:
    """Raises: _RefusedError: Arrow might take for records what are none, or other ones.

    It takes values from wherever they stand: an object over two lines, two in one, or none (`null` ends the
    process). Between such ends a row never spans lines. It takes texts that are not UTF-8, too, which its own
    check finds ten times as fast as decoding.
    """
    ends = pa.array([0, len(content)], pa.int64()).buffers()[1]
    text = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(content)])
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        raise _RefusedError(_where_no_utf8(content)) from None
    if not (content.startswith(b"{") and content.endswith(b"}\n")):
        raise _RefusedError
    if content.count(b"}\n{") != content.count(b"\n") - 1:
        raise _RefusedError


def _where_no_utf8(content: bytes) -> int | None:
    try:
        content.decode()
    except UnicodeDecodeError as err:
        return err.start
    return None


def _begin_of_row(content: bytes, row: int) -> int:
    at = 0
    for _ in range(row):
        at = content.find(b"\n", at) + 1
    return at


def _line_check(columns: tuple[Column, ...]) -> Callable[[bytes], bool]:
    """Whether a line is a record with values of the right kinds, and a UUID."""
    kinds = {
        "bigint": int,
        "int": int,
        "double": float,
        "boolean": bool,
        "array<string>": list[str | None],
        "decimal(10,2)": float,
    }
    address = msgspec.defstruct(
        "Address",
        [(name, str | None, None) for name in ("street", "city")] + [("zip", int | None, None)],
    )
    meta = msgspec.defstruct("Meta", [("uuid", str | None, None)])
    fields = [(UUID_FIELD.strip("_"), meta | None, None)]
    names = {UUID_FIELD.strip("_"): UUID_FIELD}
    for each in columns:
        kind = address if each.spark.startswith("struct") else kinds.get(each.spark, str)
        fields.append((each.name, kind | None, None))
        names[each.name] = each.key
    decode = msgspec.json.Decoder(msgspec.defstruct("Record", fields, rename=names)).decode

    def is_good(line: bytes) -> bool:
        try:
            decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        return True

    return is_good


@dataclass(slots=True)
class _Span:
    first: int
    last: int


class Committed:
    """Leaves of each block what is committed, each once.

    Where all messages are OUTSIDE_TXN and each producer's clocks increase, that is all of it, which a few
    operations over columns decide. Else the sequencer looks at each message.

    Attributes:
        spans: of each producer, the first clock and the last.
        sequenced: messages that the sequencer looked at.
    """

    def __init__(self) -> None:
        self.spans: dict[bytes, _Span] = {}
        self.sequenced = 0
        self._sequencer: Sequencer[int] | None = None
        self._held: pa.Table | None = None
        self._waiting: set[int] = set()
        self._first = 0

    def of(self, table: pa.Table) -> pa.Table:
        """The committed ones of `table`, with those held back before that now are; without `_uuid`."""
        parts = table.column("_uuid").combine_chunks()
        if self._sequencer is None and self._is_simple(parts):
            self._first += table.num_rows
            return table.drop_columns(["_uuid"])
        return self._sequence(table, parts)

    def _is_simple(self, parts: pa.StructArray) -> bool:
        producer, clock, flags = (parts.field(index) for index in range(3))
        if len(parts) == 0:
            return True
        if pc.max(flags).as_py() != _OUTSIDE or pc.min(clock).as_py() == 0:
            return False
        spans = {}
        for one in pc.unique(producer):
            clocks = pc.filter(clock, pc.equal(producer, one))
            known = self.spans.get(one.as_py())
            first, last = clocks[0].as_py(), clocks[-1].as_py()
            rising = pc.all(pc.greater(clocks.slice(1), clocks.slice(0, len(clocks) - 1))).as_py()
            if rising is False or (known is not None and first <= known.last):
                return False
            spans[one.as_py()] = _Span(known.first if known else first, last)
        self.spans |= spans
        return True

    def _sequence(self, table: pa.Table, parts: pa.StructArray) -> pa.Table:
        if self._sequencer is None:
            self._sequencer = Sequencer()
            for producer, span in self.spans.items():
                done = UuidParts(producer, span.last, _OUTSIDE)
                self._sequencer.queue(Envelope("", 0, 0, done, -1))
                self._sequencer.step()
        committed = self._queue_all(parts)
        held = self._held.num_rows if self._held is not None else 0
        both = pa.concat_tables([self._held, table]) if self._held is not None else table
        base = self._first - held
        self._first += table.num_rows
        waiting = sorted(self._waiting)
        # What is held is from here on numbered as if it came last.
        rest = both.take(pa.array([number - base for number in waiting], pa.int64()))
        if waiting and waiting != list(range(self._first - len(waiting), self._first)):
            raise DataError(
                "transactions of several producers cross a block: not of this benchmark"
            )
        self._held = rest if waiting else None
        found = both.take(pa.array([number - base for number in committed], pa.int64()))
        return found.drop_columns(["_uuid"])

    def _queue_all(self, parts: pa.StructArray) -> list[int]:
        """Numbers of the messages that are committed by now, in the order of their delivery."""
        sequencer, waiting = self._sequencer, self._waiting
        assert sequencer is not None
        committed: list[int] = []
        columns = (parts.field(index).to_pylist() for index in range(3))
        number = self._first
        for producer, clock, flags in zip(*columns, strict=True):
            sequencer.queue(
                Envelope("", number, number + 1, UuidParts(producer, clock, flags), number)
            )
            if flags == _CONTINUE:
                waiting.add(number)
            while (envelope := sequencer.dequeued) is not None:
                waiting.discard(envelope.message)
                if envelope.uuid.flags != _ACK:
                    committed.append(envelope.message)
                sequencer.step()
            if sequencer.replay is not None:
                raise DataError("a transaction is larger than the ring: not of this benchmark")
            number += 1
        self.sequenced += len(parts)
        return committed


def typed_tables(
    path: Path,
    fragment: Fragment,
    stages: Stages,
    committed: Committed,
    *,
    repair: Repair = "bisect",
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[tuple[pa.Table, list[Block]]]:
    """Each block of a fragment as rows of the table, with its bad lines."""
    parser, schema = TypedParser(stages, repair=repair), typed_schema()
    for block in blocks(path, fragment, stages, block_bytes):
        parsed = parser.parse(block)
        with stages.of("committed"):
            rows = committed.of(parsed.table)
        yield rows.rename_columns(schema.names).cast(schema), parsed.bad
