"""Read the sources of a shard into one bounded queue, and read parts of them a second time.

Each source has a task. A full queue stops all tasks of its shard; a full budget of the process stops
shards that have something to consume, so that each shard can always go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from gazette_platform.consumer.runtime.status import error_of, step
from gazette_platform.errors import DataError, GazetteError, ValidationError
from gazette_platform.message import NO_UUID, UncommittedReader
from gazette_platform.protocol import learned, require_same, strip_meta

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_platform.consumer.application import Application, MessageBatches, Shard
    from gazette_platform.consumer.protocol import Checkpoint, ShardSource
    from gazette_platform.message import Envelope, ReplayRange
    from gazette_platform.message.framing import Unframing
    from gazette_platform.ops.tasks import TaskGroup

M = TypeVar("M")
# Sources that begin at a time. Of thousands, calls for all in one round of the event loop would hold up all
# else of the process, its lease included.
_BEGINNING_MAX: Final = 16
_log = logging.getLogger(__name__)

# Seconds for a replica of a journal to learn of the last appends, and more.
_LAG_S: Final = 2.0


@final
class Sources(Generic[M]):
    """One reader a source, which goes on for ever; or one of the application's own.

    Journals are read uncommitted. Content that is gone is read over, with a warning. A journal that was deleted and made
    again since the checkpoint ends the shard.

    Attributes:
        created: which journal each source that is read is, once it is known to be the one of the checkpoint.
    """

    def __init__(
        self, shard: Shard, application: Application[Any, M], store: Any, inlet: Inlet[M]
    ) -> None:
        self._shard = shard
        self._application = application
        self._store = store
        self._inlet = inlet
        self._framings: dict[str, tuple[Unframing[M], int]] = {}
        self.created: dict[str, int] = {}
        self._is_own = False

    def start(self, tasks: TaskGroup, checkpoint: Checkpoint) -> None:
        """Read on at a checkpoint. What fails goes to the inlet."""
        with step("app.StartReadingMessages"):
            own = self._application.read(self._shard, self._store, checkpoint)
        if own is not None:
            self._is_own = True
            tasks.spawn(self._read_own(own), name="read")
            return
        waiting = deque(self._shard.spec.sources)
        for _ in range(min(_BEGINNING_MAX, len(waiting))):
            tasks.spawn(self._begin(tasks, waiting, checkpoint), name="begin to read")

    async def _begin(
        self, tasks: TaskGroup, waiting: deque[ShardSource], checkpoint: Checkpoint
    ) -> None:
        """Begin to read sources, one after the other, beside others who do."""
        try:
            while waiting:
                source = waiting.popleft()
                begin = max(checkpoint.read_through.get(source.journal, 0), source.min_offset)
                framing, created = await self._framing_of(source.journal)
                self._require_same(source.journal, created, begin, checkpoint)
                read = self._read(source.journal, begin, framing)
                tasks.spawn(read, name=f"read {source.journal}")
                if begin > source.min_offset:
                    look = self._look_at_end(source.journal, begin)
                    tasks.spawn(look, name=f"end {source.journal}")
        except BaseException as err:  # noqa: BLE001  looked at by `_fail`
            self._fail(err)

    def _require_same(self, journal: str, now: int, begin: int, checkpoint: Checkpoint) -> None:
        """Note which journal a source is, if the checkpoint is of it. Raises: JournalReplaced."""
        kept = checkpoint.created.get(journal, 0)
        with step("reading a source"):
            require_same(
                journal,
                kept,
                now,
                offset=begin,
                advice=f"to read this one, name the source {strip_meta(journal)};{now} in the shard's spec, which is read "
                "from its min_offset; or name another journal",
            )
        # Not before: a transaction that is being committed notes it beside the offset.
        self.created[journal] = learned(kept, now)

    async def _look_at_end(self, journal: str, begin: int) -> None:
        """Warn of a source that ends before what was read of it: the read waits for its head to pass that."""
        head = begin
        for pause_s in (0.0, _LAG_S):
            await asyncio.sleep(pause_s)
            try:
                head = await self._shard.client.write_head(journal)
            except GazetteError:
                return  # the read will report it
            if head >= begin:
                return
        _log.warning(
            "shard %s: %s ends at offset %d, and was read up to %d before: what is appended to it in between is "
            "not consumed (has it lost its end, or was it deleted and made again before this release? Then name the "
            "source %s;again in the shard's spec, and it is read from its min_offset)",
            self._shard.id,
            journal,
            head,
            begin,
            strip_meta(journal),
        )

    async def _read_own(self, batches: MessageBatches[M]) -> None:
        try:
            async for batch in batches:
                await self._inlet.put(batch)
        except BaseException as err:  # noqa: BLE001  looked at by `_fail`
            self._fail(err)
        else:
            self._inlet.close()
        finally:
            await batches.aclose()

    async def _read(self, journal: str, begin: int, framing: Unframing[M]) -> None:
        try:
            reader = UncommittedReader(
                self._shard.client.read(
                    journal,
                    begin,
                    block=True,
                    direct=True,
                    on_jump="continue",
                    created=self.created[journal],
                ),
                framing,
            )
            is_told = False
            async with reader:
                async for batch in reader:
                    if not is_told and batch and batch[0].uuid == NO_UUID:
                        is_told = True
                        _log.warning(
                            "shard %s: messages of %s have no UUID, as the one at offset %d: they count as "
                            "often as they were appended (publish them by a Publisher or `gazctl "
                            "attach-uuids`, or name their field by the application's `uuid_field`)",
                            self._shard.id,
                            journal,
                            batch[0].begin,
                        )
                    await self._inlet.put(batch)
        except BaseException as err:  # noqa: BLE001  looked at by `_fail`
            self._fail(err)
        else:
            self._inlet.fail(ValidationError(f"{journal}: the client was closed during the read"))

    def _fail(self, raised: BaseException) -> None:
        """Whatever it is, it ends the shard, unless it ends this task."""
        error = error_of(raised)
        if error is None:
            raise raised
        self._inlet.fail(error)

    async def _framing_of(self, journal: str) -> tuple[Unframing[M], int]:
        """How messages of a journal are framed, and which journal it is."""
        known = self._framings.get(journal)
        if known is None:
            with step("fetching journal spec"):
                found = await self._shard.client.get(journal)
            with step("app.NewMessage"):
                framing = self._application.framing(found.spec)
            known = self._framings[journal] = framing, found.created
        return known

    async def replay(self, wanted: ReplayRange) -> MessageBatches[M]:
        """Batches of a range that was read before.

        Raises: JournalNotFound, or what the application raises. Its batches raise JournalReplaced.
        """
        if self._is_own:
            own = self._application.replay(self._shard, self._store, wanted)
            if own is None:
                raise DataError(
                    f"{wanted.journal}: the application reads messages by itself, and gives none again "
                    f"of offsets {wanted.begin} to {wanted.end} (override `replay` as well as `read`)"
                )
            return own
        # If a part of a transaction is gone, the rest may not be consumed: so a jump is an error.
        framing, created = await self._framing_of(wanted.journal)
        reader = self._shard.client.read(
            wanted.journal,
            wanted.begin,
            block=True,
            end_offset=wanted.end,
            direct=True,
            created=self.created.get(wanted.journal) or created,
        )
        return UncommittedReader(reader, framing)


SHARD_BYTES_MAX: Final = 64 << 20
"""Bytes of messages that a shard has read and not consumed, and one batch more. Those of open transactions are
bounded by as much, and read again when they are committed.
"""

PROCESS_BYTES_MAX: Final = 256 << 20
"""The same of all shards of a process, and one batch of each more."""


@final
class ReadBudget:
    """Bytes of messages that the shards of a process have read and not consumed.

    Attributes:
        used: as of now.
        waiting: set once there is room.
    """

    def __init__(self, limit: int = PROCESS_BYTES_MAX) -> None:
        self.used = 0
        self.waiting: set[asyncio.Event] = set()
        self._limit = limit

    @property
    def has_room(self) -> bool:
        """Whether more may be read by shards that have something to consume."""
        return self.used < self._limit

    def give_back(self, size: int) -> None:
        """Count bytes as consumed."""
        self.used -= size
        if size and self.has_room:
            for each in self.waiting:
                each.set()
            self.waiting.clear()


@final
class Inlet(Generic[M]):
    """A bounded queue from several readers, in batches, to one who takes messages.

    It holds one batch more than its bounds at most: a batch is taken in whole once there is room. While `budget`
    is used up, a reader waits unless the queue is empty, so that each shard goes on.

    Attributes:
        entries: to be taken from its left; call `made_room` once they are used.

    Args:
        size: messages.
        wake: called when there is something new.
        bytes_max: of messages, as they are in their journals.
        budget: that shards share.
    """

    def __init__(
        self,
        size: int,
        wake: Callable[[], None],
        *,
        bytes_max: int = SHARD_BYTES_MAX,
        budget: ReadBudget | None = None,
    ) -> None:
        self.entries: deque[Envelope[M]] = deque()
        self._size = size
        self._bytes_max = bytes_max
        self._budget = budget or ReadBudget()
        self._wake = wake
        self._error: Exception | None = None
        self._is_closed = False
        self._room = asyncio.Event()
        self._is_full = False
        # Of each batch that is not used up: its bytes, and how many messages were put up to its end.
        self._batches: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._put = 0

    async def put(self, batch: list[Envelope[M]]) -> None:
        """Add messages of one journal. Cancellation: safe; they are added or not."""
        while self._is_full or (self.entries and not self._budget.has_room):
            self._room.clear()
            self._budget.waiting.add(self._room)
            await self._room.wait()
        self.entries.extend(batch)
        size = batch[-1].end - batch[0].begin if batch else 0
        self._put += len(batch)
        self._batches.append((size, self._put))
        self._bytes += size
        self._budget.used += size
        self._is_full = len(self.entries) >= self._size or self._bytes >= self._bytes_max
        self._wake()

    def made_room(self) -> None:
        """Messages were taken, and used: let readers go on once half of them were."""
        used, freed = self._put - len(self.entries), 0
        while self._batches and self._batches[0][1] <= used:
            freed += self._batches.popleft()[0]
        self._bytes -= freed
        if len(self.entries) <= self._size // 2 and self._bytes <= self._bytes_max // 2:
            self._is_full = False
            self._room.set()
        self._budget.give_back(freed)

    def drop(self) -> None:
        """Forget all messages: nothing more is taken, nor put."""
        self.entries.clear()
        self.made_room()

    def fail(self, error: Exception) -> None:
        """No more can be read. What was read before is used first; of several errors the first counts."""
        if self._error is None:
            self._error = error
        self._wake()

    def close(self) -> None:
        """There is no more."""
        self._is_closed = True
        self._wake()

    @property
    def has_entry(self) -> bool:
        """Whether there is a message to take."""
        return bool(self.entries)

    @property
    def is_closed(self) -> bool:
        """Whether nothing comes any more; `check` says whether that is an error's doing.

        So what was read before an error is committed, and a reader that continues after what could not be read
        has all that lies before it.
        """
        return (self._is_closed or self._error is not None) and not self.entries

    def check(self) -> None:
        """Raises: what the reading failed with, once all before was taken."""
        if self._error is not None and not self.entries:
            raise self._error
