"""How the driver appends what tasks made, so that each epoch of a writer is in each journal once.

With a staging journal an epoch takes three steps, and each can be repeated:

    tasks     lay down blocks                     by anyone, any number of times
    plan      one append to the staging journal   says which blocks are the epoch's; the first one counts
    appends   for each journal, in order          each moves the writer's mark (`marks`) from the one before it

A driver that repeats an epoch, whatever its tasks made this time, finds the plan, and continues after the last append that is
there. So rows may be made and mapped as differently as they like each time: what counts is what was planned first.
Without a staging journal the plan is missing: then an epoch is one append to one journal, whole or absent.

Writes of Spark to journals: what tasks do, and what the driver does when they are done.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext
from typing_extensions import override

from gazette_platform.client import Client
from gazette_platform.errors import (
    DataError,
    OutcomeUnknown,
    RegisterMismatch,
    SetupError,
    ValidationError,
    WriterFenced,
)
from gazette_platform.message.uuid import MessageClock
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.tasks import side_by_side
from gazette_platform.spark.frames import encoder, layout_of, stamped
from gazette_platform.spark.progress import Mark, Writer, advance, mark_of, reached
from gazette_platform.spark.routing import (
    CARRIED_BYTES_MAX,
    Block,
    Blocks,
    Router,
    Targets,
    content_of,
    find_targets,
    lay_down,
    too_much,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

    from gazette_platform.client import AsyncClient
    from gazette_platform.ops.clock import Clock
    from gazette_platform.protocol import LabelSet
    from gazette_platform.spark.options import SinkOptions

_log = logging.getLogger(__name__)

# Of an append: memory goes by it, and by how many journals are appended to at a time.
_APPEND_BYTES: Final = 16 << 20
_JOURNALS_AT_A_TIME: Final = 4
_READS_AT_A_TIME: Final = 8
# How often another driver may move the mark while we look.
_TRIES: Final = 5


class _PlannedBlock(NamedTuple):
    """A block in the staging journal."""

    begin: int
    length: int
    sha1: bytes
    uuid_at: int


class _Plan(msgspec.Struct):
    """What an epoch is, as JSON in the staging journal."""

    writer: str
    epoch: int
    journals: dict[str, list[list[_PlannedBlock]]]
    """Of each journal its appends, and of each of these the blocks, in order."""


class _Appends(NamedTuple):
    """What is appended for an epoch."""

    plan: int
    """Which plan says so, as `_plan_id`; 0: none."""
    journals: dict[str, list[list[Block]]]
    """Of each journal its appends, and of each of these the blocks, in order."""


@final
class Delivery:
    """Appends epochs of one writer.

    Args:
        clock: gives the time.
        staging: name of the staging journal; empty: there is none.
    """

    def __init__(
        self, client: AsyncClient, writer: Writer, clock: Clock, *, staging: str = ""
    ) -> None:
        self._client = client
        self._writer = writer
        self._clock = clock
        self._staging = staging

    async def deliver(self, epoch: int, blocks: Sequence[Block]) -> None:
        """Append an epoch. Its existing part is left as it is.

        Args:
            blocks: its content, in the order of tasks.

        Raises: WriterFenced: the writer has gone on to a later epoch. ValidationError: it is too much to be carried.
            DataError: what was laid down is gone or damaged. GazetteError: a journal takes nothing. In all of these
            some journals may have their part of the epoch: do it again.
        Cancellation: as if it had failed.
        """
        if self._staging and self._writer.is_lasting:
            appends = await self._planned(epoch, blocks)
        else:
            appends = self._unplanned(blocks)

        journals = sorted(appends.journals)
        listed = await side_by_side(self._registers_of, journals, at_a_time=_JOURNALS_AT_A_TIME)
        registers = dict(zip(journals, listed, strict=True))
        # Of an epoch that may not go on nothing is appended.
        for journal in journals:
            self._done(journal, epoch, appends.plan, registers[journal])

        async def one(journal: str) -> None:
            await self._append_all(journal, epoch, appends, registers[journal])

        await side_by_side(one, journals, at_a_time=_JOURNALS_AT_A_TIME)

    def _unplanned(self, blocks: Sequence[Block]) -> _Appends:
        length = sum(block.length for block in blocks)
        if not self._staging and length > CARRIED_BYTES_MAX:
            raise too_much(length)
        # One that may be done again is one append, for its parts may be others next time.
        bytes_max = CARRIED_BYTES_MAX if self._writer.is_lasting else _APPEND_BYTES
        return _Appends(0, _packed(blocks, bytes_max))

    # ------------------------------------------------------------------ the plan

    async def _planned(self, epoch: int, blocks: Sequence[Block]) -> _Appends:
        """What of an epoch is appended to which journal, as it was planned first: that may be now."""
        for _ in range(_TRIES):
            registers = await self._registers_of(self._staging)
            seen = mark_of(registers, self._writer)
            mark = reached(seen, epoch, self._staging, self._writer)
            if mark is not None:
                return await self._read_plan(mark)
            if not blocks:
                return _Appends(0, {})
            blocks = await self._laid_down(blocks)
            journals = _packed(blocks, _APPEND_BYTES)
            plan = await self._plan(epoch, journals, registers)
            if plan is not None:
                return _Appends(self._plan_id(plan), journals)
        raise self._is_busy(self._staging)

    async def _laid_down(self, blocks: Sequence[Block]) -> list[Block]:
        carried = [block for block in blocks if block.begin < 0]
        placed = iter(await lay_down(self._client, self._staging, carried) if carried else ())
        return [next(placed) if block.begin < 0 else block for block in blocks]

    async def _plan(
        self, epoch: int, journals: dict[str, list[list[Block]]], registers: LabelSet
    ) -> Mark | None:
        """Make these appends the epoch's. Returns: None: another plan may exist."""
        plan = _Plan(
            self._writer.name,
            epoch,
            {
                journal: [
                    [_PlannedBlock(b.begin, b.length, b.sha1, b.uuid_at) for b in blocks]
                    for blocks in listed
                ]
                for journal, listed in journals.items()
            },
        )
        placed = await self._client.append(self._staging, msgspec.json.encode(plan) + b"\n")
        mark = Mark(epoch=epoch, place=(placed.begin, placed.end), at=self._now())
        line = {"writer": self._writer.name, "epoch": epoch, "plan": [placed.begin, placed.end]}
        content = msgspec.json.encode(line) + b"\n"
        moved = await self._append_marked(self._staging, content, registers, mark)
        return None if moved is None else mark

    def _plan_id(self, mark: Mark) -> int:
        """A number that no other plan has."""
        place = f"{self._staging} {mark.place[0]}".encode()
        return int.from_bytes(hashlib.sha256(place).digest()[:6]) | 1

    async def _read_plan(self, mark: Mark) -> _Appends:
        begin, end = mark.place
        place = Block(journal="", begin=begin, length=end - begin)
        content = await content_of(self._client, self._staging, place)
        try:
            plan = msgspec.json.decode(content, type=_Plan)
        except msgspec.DecodeError as err:
            raise DataError(
                f"{self._staging}: what lies at offset {begin} is not a plan of an epoch: {err} (was the journal "
                "deleted and recreated?)"
            ) from err
        if (plan.writer, plan.epoch) != (self._writer.name, mark.epoch):
            raise DataError(
                f"{self._staging}: at offset {begin} lies the plan of epoch {plan.epoch} of writer {plan.writer[:80]!r}, and "
                f"not of epoch {mark.epoch} of {self._writer.name}: nothing was appended (who else sets registers there?)"
            )
        journals = {
            journal: [
                [Block(journal=journal, **block._asdict()) for block in blocks] for blocks in listed
            ]
            for journal, listed in plan.journals.items()
        }
        return _Appends(self._plan_id(mark), journals)

    # ------------------------------------------------------------------ journals

    def _done(self, journal: str, epoch: int, plan: int, registers: LabelSet) -> int:
        """How many appends of an epoch are in a journal. Raises: ValidationError: they are of another plan."""
        seen = mark_of(registers, self._writer)
        mark = reached(seen, epoch, journal, self._writer)
        if mark is None:
            return 0
        if mark.place[1] != plan:
            raise ValidationError(
                f"{journal} has a part of epoch {epoch}, which was begun with another staging journal, or without one (set "
                "it back until the epoch is done)",
                path="stagingJournal",
            )
        return mark.place[0]

    async def _append_all(
        self, journal: str, epoch: int, appends: _Appends, registers: LabelSet
    ) -> None:
        """Append what of an epoch is not in a journal yet."""
        listed = appends.journals[journal]
        tries = 0
        while tries < _TRIES:
            done = self._done(journal, epoch, appends.plan, registers)
            if done >= len(listed):
                return
            seen = mark_of(registers, self._writer)
            clock = MessageClock(0 if seen is None else seen.clock)
            content = await self._content_of(listed[done], clock)
            place = (done + 1, appends.plan)
            mark = Mark(epoch=epoch, place=place, clock=clock.value, at=self._now())
            found = await self._append_marked(journal, content, registers, mark)
            if found is None:
                found = await self._registers_of(journal)
                tries += 1
            registers = found
        raise self._is_busy(journal)

    async def _content_of(self, blocks: Sequence[Block], clock: MessageClock) -> bytes:
        """Records of blocks, with their UUIDs, for which the clock ticks."""

        async def one(block: Block) -> bytes:
            return await content_of(self._client, self._staging, block)

        contents = await side_by_side(one, blocks, at_a_time=_READS_AT_A_TIME)
        if any(block.uuid_at >= 0 for block in blocks):
            clock.update(int(self._clock.unix_s() * 1e9))
        return b"".join(
            content
            if block.uuid_at < 0
            else stamped(content, block.uuid_at, self._writer.producer, clock)
            for block, content in zip(blocks, contents, strict=True)
        )

    async def _append_marked(
        self, journal: str, content: bytes, registers: LabelSet, mark: Mark
    ) -> LabelSet | None:
        """Append, and set the mark. Returns: the registers; None: look at them, it may have been appended or not."""
        change = advance(registers, self._writer, mark)
        try:
            result = await self._client.append(
                journal,
                content,
                check_registers=change.check,
                union_registers=change.union,
                subtract_registers=change.subtract or None,
            )
        except (RegisterMismatch, OutcomeUnknown) as err:
            # The mark shows it: an attempt without answer has moved it, or another driver has.
            _log.info("%s: looking how far writer %s is: %s", journal, self._writer.name, err)
            return None
        return result.registers

    async def _registers_of(self, journal: str) -> LabelSet:
        # An append of nothing adds nothing, and waits for those before it.
        return (await self._client.append(journal, b"")).registers

    def _now(self) -> int:
        return int(self._clock.unix_s())

    def _is_busy(self, journal: str) -> WriterFenced:
        return WriterFenced(
            f"{journal}: another driver moves the mark of writer {self._writer.name} all the time (does another driver run "
            "the same query?)"
        )


def check_targets(targets: Targets, *, staging: str, is_lasting: bool) -> None:
    """Check that a write can happen once, even if it is repeated.

    Raises: ValidationError: it may go to several journals, and nothing says what was planned for each.
    """
    if is_lasting and not staging and len(targets.names) > 1:
        raise ValidationError(
            f"{len(targets.names)} journals may be written to: name a journal in which the sink notes what goes to which, so "
            "that an epoch that is done again is in each of them once (of a single journal none is needed)",
            path="stagingJournal",
        )


def _packed(blocks: Sequence[Block], bytes_max: int) -> dict[str, list[list[Block]]]:
    """Blocks of each journal, in order, packed into appends of up to `bytes_max`, and at least one."""
    found: dict[str, list[list[Block]]] = {}
    for block in blocks:
        appends = found.setdefault(block.journal, [[]])
        if appends[-1] and sum(one.length for one in appends[-1]) + block.length > bytes_max:
            appends.append([])
        appends[-1].append(block)
    return found


# Spark sets it while a query's batch runs; no other call names the query.
_QUERY_ID: Final = "sql.streaming.queryId"


@final
@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task made."""

    blocks: tuple[Block, ...]
    query: str = ""
    """Id of the streaming query; empty: it is none."""


@final
class _Sink:
    """What batches and streams have in common. Can be pickled: tasks get it, too."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ValidationError(
                'journals are appended to only: mode("append"), outputMode("append") or outputMode("update")'
            )
        self.options = options
        self._layout = layout_of(schema, key=options.key, uuid=options.uuid)
        with Client(options.config) as client:
            self.targets: Targets = client.run(find_targets(client.asynchronous, options))
        # What cannot be written is reported before tasks begin.
        self._router()
        self._encoders()

    def _router(self) -> Router:
        return Router(self.targets, self._layout, self.options.mapping)

    def _encoders(self) -> list[Any]:
        made = {
            kind: encoder(kind, self._layout, self.options.uuid)
            for kind in sorted(set(self.targets.content_types))
        }
        return [made[kind] for kind in self.targets.content_types]

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[Block, ...]:
        """What a task does."""
        router, encoders = self._router(), self._encoders()
        with Client(self.options.config) as client:
            blocks = Blocks(client.asynchronous, self.options.staging)
            for rows in batches:
                for place, part in router.share_out(rows):
                    made = encoders[place]
                    adding = blocks.add(
                        self.targets.names[place], made.encode(part), uuid_at=made.uuid_at
                    )
                    client.run(adding)
            return client.run(blocks.finish())

    def deliver(
        self, writer: Writer, epoch: int, messages: Sequence[WriterCommitMessage | None]
    ) -> None:
        """What the driver does."""
        blocks = [block for one in messages if isinstance(one, Written) for block in one.blocks]
        with Client(self.options.config) as client:
            delivery = Delivery(
                client.asynchronous, writer, SystemClock(), staging=self.options.staging
            )
            client.run(delivery.deliver(epoch, blocks))


@final
class BatchWriter(DataSourceArrowWriter):
    """A batch: what tasks made is appended when all of them are done, or nothing is.

    Raises: ValidationError: options, columns and journals do not go together.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._sink = _Sink(options, schema, overwrite=overwrite)
        self._writer = Writer(options.writer or secrets.token_hex(16), bool(options.writer))
        check_targets(
            self._sink.targets, staging=options.staging, is_lasting=self._writer.is_lasting
        )

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return Written(self._sink.write(iterator))

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.deliver(self._writer, max(0, self._sink.options.epoch), messages)


@final
class StreamWriter(DataSourceStreamArrowWriter):
    """A stream: each of its batches is appended once, whatever was killed and repeated.

    Raises: ValidationError: as `BatchWriter`, and options that only batches have.
    """

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.writer:
            raise ValidationError(
                "is of batches only: a stream writes in the name of its query", path="writer"
            )
        self._sink = _Sink(options, schema, overwrite=overwrite)
        check_targets(self._sink.targets, staging=options.staging, is_lasting=True)

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not query:
            raise SetupError(
                f"Spark does not pass the query to tasks ({_QUERY_ID}): without that an epoch that is done "
                "again would be duplicated"
            )
        return Written(self._sink.write(iterator), query)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        queries = {one.query for one in messages if isinstance(one, Written)}
        if queries:
            [query] = queries
            self._sink.deliver(Writer(query), batchId, messages)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass  # nothing is in the journals yet
