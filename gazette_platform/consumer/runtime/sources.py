"""Reads the sources of a shard into its inlet, and parts of them again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from gazette_platform.consumer.runtime.steps import error_of, step
from gazette_platform.errors import DataError, GazetteError, ValidationError
from gazette_platform.message import NO_UUID, UncommittedReader
from gazette_platform.protocol import learned, require_same, strip_meta

if TYPE_CHECKING:
    from gazette_platform.consumer.application import Application, MessageBatches, Shard
    from gazette_platform.consumer.protocol import Checkpoint, ShardSource
    from gazette_platform.consumer.runtime.inlet import Inlet
    from gazette_platform.message import ReplayRange
    from gazette_platform.message.framing import Unframing
    from gazette_platform.ops.tasks import TaskGroup

__all__ = ["Sources"]

# Sources that begin at a time. Of thousands, calls for all in one round of the event loop would hold up all
# else of the process, its lease included.
_BEGINNING_MAX: Final = 16

M = TypeVar("M")

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
