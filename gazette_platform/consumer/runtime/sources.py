"""Reads the sources of a shard into its inlet, and parts of them again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from gazette_platform.consumer.runtime.steps import step
from gazette_platform.errors import DataError, ValidationError
from gazette_platform.message import NO_UUID, UncommittedReader

if TYPE_CHECKING:
    from gazette_platform.consumer.application import Application, MessageBatches, Shard
    from gazette_platform.consumer.protocol import Checkpoint
    from gazette_platform.consumer.runtime.inlet import Inlet
    from gazette_platform.message import ReplayRange
    from gazette_platform.message.framing import Unframing
    from gazette_platform.ops.tasks import TaskGroup

__all__ = ["Sources"]

M = TypeVar("M")

_log = logging.getLogger(__name__)


@final
class Sources(Generic[M]):
    """One reader a source, which goes on for ever; or one of the application's own.

    Journals are read uncommitted. Content that is gone is read over, with a warning.
    """

    def __init__(
        self, shard: Shard, application: Application[Any, M], store: Any, inlet: Inlet[M]
    ) -> None:
        self._shard = shard
        self._application = application
        self._store = store
        self._inlet = inlet
        self._framings: dict[str, Unframing[M]] = {}
        self._is_own = False

    def start(self, tasks: TaskGroup, checkpoint: Checkpoint) -> None:
        """Read on at a checkpoint. What fails is told to the inlet."""
        with step("app.StartReadingMessages"):
            own = self._application.read(self._shard, self._store, checkpoint)
        if own is not None:
            self._is_own = True
            tasks.spawn(self._read_own(own), name="read")
            return
        for source in self._shard.spec.sources:
            begin = max(checkpoint.read_through.get(source.journal, 0), source.min_offset)
            tasks.spawn(self._read(source.journal, begin), name=f"read {source.journal}")

    async def _read_own(self, batches: MessageBatches[M]) -> None:
        try:
            async for batch in batches:
                await self._inlet.put(batch)
        except Exception as err:  # noqa: BLE001  the application's: it ends the shard
            self._inlet.fail(err)
        else:
            self._inlet.close()
        finally:
            await batches.aclose()

    async def _read(self, journal: str, begin: int) -> None:
        try:
            framing = await self._framing_of(journal)
            reader = UncommittedReader(
                self._shard.client.read(
                    journal, begin, block=True, direct=True, on_jump="continue"
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
        except Exception as err:  # noqa: BLE001  whatever it is, it ends the shard
            self._inlet.fail(err)
        else:
            self._inlet.fail(ValidationError(f"{journal}: the client was closed during the read"))

    async def _framing_of(self, journal: str) -> Unframing[M]:
        framing = self._framings.get(journal)
        if framing is None:
            with step("fetching journal spec"):
                spec = (await self._shard.client.get(journal)).spec
            with step("app.NewMessage"):
                framing = self._framings[journal] = self._application.framing(spec)
        return framing

    async def replay(self, wanted: ReplayRange) -> MessageBatches[M]:
        """Batches of a range that was read before.

        Raises: JournalNotFound, or what the application raises.
        """
        if self._is_own:
            own = self._application.replay(self._shard, self._store, wanted)
            if own is None:
                raise DataError(
                    f"{wanted.journal}: the application reads messages by itself, and gives none again "
                    f"of offsets {wanted.begin} to {wanted.end} (override `replay` as well as `read`)"
                )
            return own
        # Of a transaction of which a part is gone the rest may not be consumed: so a jump is an error.
        reader = self._shard.client.read(
            wanted.journal, wanted.begin, block=True, end_offset=wanted.end, direct=True
        )
        return UncommittedReader(reader, await self._framing_of(wanted.journal))
