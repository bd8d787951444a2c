"""Read messages of one journal: as they lie there, or those that are committed, each once.

`read_uncommitted` and `read_committed` make readers that yield batches of envelopes. A committed reader
sequences messages (`sequencer`) and reads parts of large transactions a second time, so memory stays
bounded. `MessageIterator` is for programs without asyncio.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, final

from gazette_platform.errors import DataError, Desynchronized, OffsetJump
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.framing import FRAME_BYTES_MAX
from gazette_platform.message.sequencer import RING_SIZE, Envelope, ReplayRange, Sequencer
from gazette_platform.message.uuid import clock_of
from gazette_platform.ops.tasks import Aclosing, Closing, next_or_none

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gazette_platform.client import AsyncClient, Client
    from gazette_platform.client.read.records import PieceReader
    from gazette_platform.message.framing import Decoder, Unframing
    from gazette_platform.message.sequencer import SequencerCheckpoint, SequencerCounts

M = TypeVar("M")
_log = logging.getLogger(__name__)


@final
class MessageDecoder(Generic[M]):
    """Messages of a journal out of its content, without I/O: `feed`, then `take` until it has none.

    Attributes:
        offset: after the last message that was taken, or not readable; -1 before any content.
    """

    def __init__(self, journal: str, framing: Unframing[M]) -> None:
        self.offset = -1
        self._journal = journal
        self._framing = framing
        self._decoder: Decoder[M] = framing.decoder()
        self._frames: deque[bytes] = deque()
        self._fed = -1
        self._error: DataError | None = None

    def feed(self, offset: int, content: bytes | memoryview) -> None:
        """Take in the next content; what was fed before has to be taken.

        Where it does not follow what was fed, a message that had begun is gone, and it is logged.
        """
        if offset != self._fed:
            if self._fed >= 0:
                _log.warning(
                    "%s: messages from offset %d to %d are gone", self._journal, self.offset, offset
                )
            self._decoder = self._framing.decoder()
            self.offset = offset
        self._fed = offset + len(content)
        self._frames.extend(self._decoder.feed(bytes(content)))
        if not self._frames and self._decoder.held_bytes > FRAME_BYTES_MAX + 8:
            raise Desynchronized(
                f"{self._journal}: no message ends within {self._decoder.held_bytes} bytes behind "
                f"offset {self.offset} (is its content-type {self._framing.content_type}?)"
            )

    def end(self) -> None:
        """See that content may end here. Raises: DataError: it ends within a message."""
        try:
            self._decoder.end()
        except DataError as err:
            raise DataError(f"{self._journal}: {err} at offset {self.offset}") from err

    def take(self) -> list[Envelope[M]]:
        """Messages that were fed and not taken, up to one that cannot be read, which comes next.

        Raises: DataError, Desynchronized: the first of them cannot be read. It counts as taken.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        taken: list[Envelope[M]] = []
        decode, uuid_of = self._decoder.decode, self._framing.uuid_of
        while self._frames:
            frame = self._frames.popleft()
            begin = self.offset
            self.offset = end = begin + len(frame)
            try:
                message = decode(frame)
                uuid = uuid_of(message)
            except DataError as err:
                error = type(err)(
                    f"{self._journal}: the message at offset {begin}: {err}; the next one begins at {end}"
                )
                error.__cause__ = err
                if not taken:
                    raise error  # noqa: B904  it has its cause
                self._error = error
                break
            taken.append(Envelope(self._journal, begin, end, uuid, message))
        return taken


@final
class UncommittedReader(Aclosing, Generic[M]):
    """Messages as they lie in a journal: an async iterator of batches.

    Args:
        reader: of the journal's content, such as a `Reader` or `StoreReader`; closed with this one.
        framing: of the messages.
    """

    def __init__(self, reader: PieceReader, framing: Unframing[M]) -> None:
        self._reader = reader
        self._decoder = MessageDecoder(reader.journal, framing)

    @property
    def offset(self) -> int:
        """After the last message that was returned: a place to resume at; -1 before any content."""
        return self._decoder.offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Envelope[M]]:
        """The next batch.

        Raises: DataError: a message cannot be read, or the content ends within one. Desynchronized:
            garbage lies between messages. Besides what the reader of the content raises.
        Cancellation: safe, as far as that of this reader is.
        """
        while True:
            batch = self._decoder.take()
            if batch:
                return batch
            try:
                piece = await anext(self._reader)
            except StopAsyncIteration:
                self._decoder.end()
                raise
            self._decoder.feed(self._reader.offset - len(piece), piece)

    async def aclose(self) -> None:
        """End the read, and close the reader of the content."""
        await self._reader.aclose()


@final
class CommittedReader(Aclosing, Generic[M]):
    """Messages of a journal that are committed, each once, and ACKs after what they commit.

    An async iterator of batches. Transactions that are larger than the ring are read again, and
    come in several batches.

    Args:
        uncommitted: the journal's messages, from the offset of `checkpoint` on, if there is one.
        replay: reads a range of the journal again.
        ring_size: see `Sequencer`.
        checkpoint: where to go on.
        counts: is to count what becomes of messages.
    """

    def __init__(
        self,
        uncommitted: UncommittedReader[M],
        replay: Callable[[ReplayRange], UncommittedReader[M]],
        *,
        ring_size: int = RING_SIZE,
        checkpoint: SequencerCheckpoint | None = None,
        counts: SequencerCounts | None = None,
    ) -> None:
        self._uncommitted = uncommitted
        self._replay = replay
        self._sequencer: Sequencer[M] = Sequencer(
            ring_size=ring_size, checkpoint=checkpoint, counts=counts
        )
        self._steps: Iterator[list[Envelope[M]] | ReplayRange] = iter(())
        self._replayed: tuple[ReplayRange, UncommittedReader[M]] | None = None
        self._lost: DataError | OffsetJump | None = None

    def checkpoint(self) -> SequencerCheckpoint:
        """Where to continue after all that was returned. Keep it together with what became of that."""
        return self._sequencer.checkpoint(now=clock_of(time.time_ns()))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Envelope[M]]:
        """The next batch.

        Raises: as `UncommittedReader`; and DataError: a replay ended before its range did. Once a part
            of a transaction is gone (OffsetJump) or damaged (DataError) as it is read again, each call
            raises that, for its rest may not be returned. `checkpoint` is of what was returned before.
        Cancellation: safe, as far as that of what is read from is.
        """
        while True:
            if self._lost is not None:
                raise self._lost
            if self._replayed is not None:
                batch = await self._next_replayed(*self._replayed)
            else:
                step = next(self._steps, None)
                if isinstance(step, ReplayRange):
                    self._replayed = step, self._replay(step)
                    continue
                if step is None:
                    # Nothing is lost when this is cancelled: all before was returned.
                    self._steps = _committed(self._sequencer, await anext(self._uncommitted))
                    continue
                batch = step
            if batch:
                return batch

    async def _next_replayed(
        self, wanted: ReplayRange, reader: UncommittedReader[M]
    ) -> list[Envelope[M]]:
        """What is committed of the next batch of a replay; empty at its end, too."""
        try:
            batch = await anext(reader)
        except StopAsyncIteration:
            if reader.offset != wanted.end:
                raise DataError(
                    f"{wanted.journal}: reading a transaction again, from offset {wanted.begin} to "
                    f"{wanted.end}, ended at {reader.offset}"
                ) from None
            self._replayed = None
            await reader.aclose()
            return []
        except (DataError, OffsetJump) as err:
            self._lost = err
            raise
        used: list[Envelope[M]] = []
        for envelope in batch:
            if self._sequencer.offer(envelope):
                used.append(envelope)
                self._sequencer.step()
        return used

    async def aclose(self) -> None:
        """As `UncommittedReader.aclose`."""
        replayed, self._replayed = self._replayed, None
        if replayed is not None:
            await replayed[1].aclose()
        await self._uncommitted.aclose()


def _committed(
    sequencer: Sequencer[M], batch: list[Envelope[M]]
) -> Iterator[list[Envelope[M]] | ReplayRange]:
    """What `batch` commits, in lists, and ranges: all messages of these are to be offered first."""
    used: list[Envelope[M]] = []
    for envelope in batch:
        sequencer.queue(envelope)
        if sequencer.replay is not None:
            # What was returned counts as used, so that a checkpoint holds in the middle, too.
            yield used
            used = []
            yield sequencer.replay
            sequencer.end_replay()
        while sequencer.dequeued is not None:
            used.append(sequencer.dequeued)
            sequencer.step()
    yield used


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
