"""Reads messages of journals through a client: `AsyncClient`, or `Client` for programs without asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, final

from gazette_platform.client.loop_thread import next_or_none
from gazette_platform.message.readers import CommittedReader, UncommittedReader
from gazette_platform.message.registry import framing_of_labels
from gazette_platform.message.sequencer import RING_SIZE, ReplayRange
from gazette_platform.ops.closing import Closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_platform.client import AsyncClient, Client
    from gazette_platform.message.envelope import Envelope
    from gazette_platform.message.framing import Unframing
    from gazette_platform.message.sequencer import SequencerCheckpoint
    from gazette_platform.message.sequencer_counts import SequencerCounts

__all__ = ["MessageIterator", "read_committed", "read_uncommitted"]

M = TypeVar("M")


async def read_uncommitted(
    client: AsyncClient,
    journal: str,
    offset: int = 0,
    *,
    framing: Unframing[M] | None = None,
    block: bool = False,
    end_offset: int = 0,
    direct: bool = False,
    from_savepoint: str = "",
    created: int = 0,
) -> UncommittedReader[M]:
    """Messages as they lie in `journal`, from `offset` on, where one must begin.

    Content that was pruned is read over, and logged.

    Args:
        framing: default: what the journal's label `content-type` names.
        block, end_offset, direct, from_savepoint, created: as of `AsyncClient.read`.

    Raises: JournalNotFound. ValidationError: the journal has no framing.
    Cancellation: safe.
    """
    used = framing or framing_of_labels((await client.get(journal)).spec.labels)
    reader = client.read(
        journal,
        offset,
        block=block,
        end_offset=end_offset,
        direct=direct,
        on_jump="continue",
        from_savepoint=from_savepoint,
        created=created,
    )
    return UncommittedReader(reader, used)


async def read_committed(
    client: AsyncClient,
    journal: str,
    offset: int = 0,
    *,
    checkpoint: SequencerCheckpoint | None = None,
    ring_size: int = RING_SIZE,
    framing: Unframing[M] | None = None,
    block: bool = False,
    end_offset: int = 0,
    direct: bool = False,
    from_savepoint: str = "",
    created: int = 0,
    counts: SequencerCounts | None = None,
) -> CommittedReader[M]:
    """Messages of `journal` that are committed, each once.

    Args:
        offset: used if `checkpoint` says nothing of the journal.
        from_savepoint: name of a savepoint; used instead of `offset`, likewise.
        checkpoint: of a reader before; see `CommittedReader.checkpoint`.
        created: of the journal that `checkpoint` or `offset` is of, as of `AsyncClient.read`.
        ring_size: messages of open transactions to keep in memory.
        counts: is to count what becomes of messages, for metrics.
        framing, block, end_offset, direct: as of `read_uncommitted`.

    Raises: as `read_uncommitted`.
    Cancellation: safe.
    """
    used = framing or framing_of_labels((await client.get(journal)).spec.labels)
    known = None if checkpoint is None else checkpoint.offsets.get(journal)
    uncommitted = await read_uncommitted(
        client,
        journal,
        offset if known is None else known,
        framing=used,
        block=block,
        end_offset=end_offset,
        direct=direct,
        from_savepoint=from_savepoint if known is None else "",
        created=created,
    )

    def replay(wanted: ReplayRange) -> UncommittedReader[M]:
        # A transaction with a missing part cannot be delivered: so a jump is an error.
        again = client.read(
            wanted.journal,
            wanted.begin,
            block=True,
            end_offset=wanted.end,
            direct=direct,
            created=created,
        )
        return UncommittedReader(again, used)

    return CommittedReader(
        uncommitted, replay, ring_size=ring_size, checkpoint=checkpoint, counts=counts
    )


class _Batches(Protocol[M]):
    """An `UncommittedReader`, `CommittedReader` or `MergedReader`."""

    def __aiter__(self) -> AsyncIterator[list[Envelope[M]]]: ...

    async def __anext__(self) -> list[Envelope[M]]: ...

    async def aclose(self) -> None: ...


@final
class MessageIterator(Closing, Generic[M]):
    """A reader of messages for programs without asyncio: an iterator of batches, to be closed.

    Args:
        client: on whose event loop `reader` is driven; give `Client.run` the coroutine that makes it.
        reader: of messages of one journal, or merged ones of many; see it for its offset or checkpoint.
    """

    def __init__(self, client: Client, reader: _Batches[M]) -> None:
        self._client = client
        self._reader = reader

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Envelope[M]]:
        """The next batch; raises as the reader does."""
        batch = self._client.run(next_or_none(self._reader))
        if batch is None:
            raise StopIteration
        return batch

    def close(self) -> None:
        """End the read."""
        self._client.run(self._reader.aclose())
