"""Committed messages of a journal, as the blocks of frames that Arrow's parsers take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from gazette_platform.errors import DataError
from gazette_platform.message.reading import read_committed
from gazette_platform.message.registry import framing_of_labels
from gazette_platform.message.sequencer import SequencerCheckpoint
from gazette_platform.message.uuid import Flags, UuidParts

if TYPE_CHECKING:
    from typing import Any

    from gazette_platform.client import AsyncClient
    from gazette_platform.message.arrow_parsers import ArrowParser
    from gazette_platform.message.framing import Decoder, Framing
    from gazette_platform.message.readers import CommittedReader
    from gazette_platform.message.selection import JournalSpan

__all__ = ["CommittedBlocks", "Framed", "Frames"]

_ACK = int(Flags.ACK_TXN)


class Framed(NamedTuple):
    """A message as it lies in its journal."""

    frame: bytes
    uuid: UuidParts


@final
class _FrameDecoder:
    """Looks into messages for their UUIDs, and keeps their bytes, for Arrow to parse."""

    def __init__(self, framing: Framing[Any], unreadable: UuidParts | None) -> None:
        self._uuid_of = framing.uuid_of
        self._unreadable = unreadable
        self._decoder: Decoder[Any] = framing.decoder()
        self.feed = self._decoder.feed
        self.end = self._decoder.end

    @property
    def held_bytes(self) -> int:
        """See `Decoder`."""
        return self._decoder.held_bytes

    def decode(self, frame: bytes) -> Framed:
        """See `Decoder`."""
        try:
            return Framed(frame, self._uuid_of(self._decoder.decode(frame)))
        except (DataError, IndexError):
            if self._unreadable is None:
                raise
            return Framed(frame, self._unreadable)


@final
class Frames:
    """The `Unframing` of messages whose bytes are kept.

    Args:
        unreadable: the UUID of messages that cannot be read, with which they are given; None: they are errors.
    """

    def __init__(self, framing: Framing[Any], *, unreadable: UuidParts | None = None) -> None:
        self._framing = framing
        self._unreadable = unreadable

    @property
    def content_type(self) -> str:
        """See `Unframing`."""
        return self._framing.content_type

    def decoder(self) -> _FrameDecoder:
        """See `Unframing`."""
        return _FrameDecoder(self._framing, self._unreadable)

    def uuid_of(self, message: Framed) -> UuidParts:
        """See `Unframing`."""
        return message.uuid


@final
class CommittedBlocks:
    """Frames of the committed messages of a journal, each once, in large blocks. ACKs are left out.

    Args:
        span: what to read.
        parser: for whom.
        block_bytes: how large blocks are, about; in a read that waits for more, each is what has come.

    Attributes:
        end: after the last message of the block that was given.
        checkpoint: where to continue after that block.
    """

    def __init__(
        self,
        client: AsyncClient,
        span: JournalSpan,
        parser: ArrowParser,
        *,
        checkpoint: SequencerCheckpoint | None,
        block_bytes: int,
        direct: bool,
    ) -> None:
        self.span = span
        self.parser = parser
        self.end = span.begin
        self.checkpoint = checkpoint or SequencerCheckpoint(offsets={span.journal: span.begin})
        self._client = client
        self._enough_bytes = block_bytes if span.end is not None else 1
        self._direct = direct
        self._reader: CommittedReader[Framed] | None = None
        self._begin = span.begin
        self._frames: list[bytes] = []
        self._frames_bytes = 0
        self._error: DataError | None = None

    async def next(self) -> tuple[int, bytes]:
        """The next block, and where its first message begins; an empty one at the end.

        Raises: as `CommittedReader`. What was committed before a message that cannot be read comes first.
        Cancellation: safe.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self.span.is_empty:
            return self.end, b""
        reader = self._reader
        if reader is None:
            reader = self._reader = await self._open()
        while self._frames_bytes < self._enough_bytes:
            try:
                batch = await anext(reader, None)
            except DataError as err:
                if not self._frames:
                    raise
                self._error = err
                break
            if batch is None:
                break
            for envelope in batch:
                self.end = envelope.end
                if envelope.uuid.flags == _ACK and envelope.uuid.clock:
                    continue
                if not self._frames:
                    self._begin = envelope.begin
                self._frames.append(envelope.message.frame)
                self._frames_bytes += len(envelope.message.frame)
        self.checkpoint = reader.checkpoint()
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        return self._begin, b"".join(frames)

    async def _open(self) -> CommittedReader[Framed]:
        span = self.span
        return await read_committed(
            self._client,
            span.journal,
            span.begin,
            checkpoint=self.checkpoint,
            framing=Frames(framing_of_labels(span.labels)),
            block=span.end is None,
            end_offset=span.end or 0,
            direct=self._direct,
            created=span.required,
        )

    async def aclose(self) -> None:
        """End the read."""
        if self._reader is not None:
            await self._reader.aclose()
