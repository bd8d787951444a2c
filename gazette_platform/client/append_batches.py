"""Which writes become one append: the batches of a journal, in order. Decides only; waits for nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from gazette_platform.errors import ValidationError
from gazette_platform.protocol.content import (
    CONTENT_CHUNK_BYTES,
    encode_append_content,
    encode_append_pieces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_platform.client.appender import AppendOptions, Content
    from gazette_platform.errors import GazetteError

__all__ = [
    "BATCH_BYTES_MAX",
    "BUFFER_BYTES_MAX",
    "NO_NEEDS",
    "Batch",
    "BatchChain",
    "Needs",
    "as_content",
]

BATCH_BYTES_MAX: Final = 16 << 20
"""Bytes that become one append by default: all of them are sent again if it fails."""

BUFFER_BYTES_MAX: Final = 64 << 20
"""Bytes that may wait by default: the batch under way, and some after it."""


def as_content(journal: str, data: object) -> bytes:
    """Immutable bytes, as a memoryview whose items are single bytes.

    A batch belongs to many callers: what cannot be joined to it must not get there.

    Raises: ValidationError: it is not bytes.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ValidationError(f"{journal}: {type(data).__name__} cannot be appended, but bytes")


@final
class Batch:
    """Writes that become one RPC. Content is encoded as it comes, in messages of a good size.

    Attributes:
        options: conditions and effects of its append.
        needs: what has to succeed before it may be appended; never changes.
        size: bytes of content, in all.
        begin: offset that it was committed at.
        error: why it was not.
        is_done: whether one of both is known.
        content: what is under way; None before and after.
        waiters: futures to end with it; one may have been cancelled.
        callbacks: to call when it is done.
    """

    __slots__ = (
        *("_attempts", "_messages", "_parts", "_parts_bytes", "begin", "callbacks", "chain"),
        *("content", "error", "is_done", "needs", "options", "size", "waiters"),
    )

    def __init__(self, chain: BatchChain, options: AppendOptions, needs: Needs) -> None:
        self.chain = chain
        self.options = options
        self.needs = needs
        self.size = 0
        self.begin = -1
        self.error: GazetteError | None = None
        self.is_done = False
        self.content: Content | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self.callbacks: list[Callable[[], None]] = []
        self._messages: list[bytes] = []
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """How often it was sent whole and not refused, so how often it may be in the journal."""
        return self._attempts if self.content is None else self.content.attempts

    def add(self, data: bytes) -> int:
        """Take a write. Returns: where it is in the batch, in bytes from its begin."""
        at = self.size
        self._parts.append(data)
        self.size = at + len(data)
        self._parts_bytes += len(data)
        if self._parts_bytes >= CONTENT_CHUNK_BYTES:
            self._encode()
        return at

    def add_all(self, pieces: Sequence[bytes], size: int) -> int:
        """As `add`, of several writes with `size` bytes together."""
        at = self.size
        self._parts += pieces
        self.size = at + size
        self._parts_bytes += size
        if self._parts_bytes >= CONTENT_CHUNK_BYTES:
            self._encode()
        return at

    def messages(self) -> list[bytes]:
        """All of it, as encoded messages."""
        if self._parts:
            self._encode()
        return self._messages

    def _encode(self) -> None:
        parts, size = self._parts, self._parts_bytes
        self._parts, self._parts_bytes = [], 0
        if size < 2 * CONTENT_CHUNK_BYTES:
            self._messages.append(encode_append_pieces(parts, size))
            return
        view = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        for begin in range(0, size, CONTENT_CHUNK_BYTES):
            self._messages.append(encode_append_content(view[begin : begin + CONTENT_CHUNK_BYTES]))

    def end(self, error: GazetteError | None, begin: int = -1) -> None:
        """Note what became of it, and let go of its content, as tickets may be kept for long."""
        self._attempts, self.content, self._messages, self._parts = self.attempts, None, [], []
        self.error, self.begin, self.is_done = error, begin, True
        self.needs = NO_NEEDS


# What an append waits for: batches of other journals, or futures of the caller's own.
Needs = frozenset[Batch | asyncio.Future[Any]]

NO_NEEDS: Final[Needs] = frozenset()


@final
class BatchChain:
    """The batches of one journal, in the order in which they are appended, one at a time.

    Needs of a batch are made before the batch is, and are never added to, so that batches cannot wait
    for each other in a circle.

    Attributes:
        waiting: those to come; the last takes more writes.
        current: the one under way.
    """

    def __init__(self, batch_bytes_max: int) -> None:
        if batch_bytes_max < 1:
            raise ValidationError("must be positive", path="batch_bytes_max")
        self._batch_bytes_max = batch_bytes_max
        self.waiting: deque[Batch] = deque()
        self.current: Batch | None = None

    @property
    def last(self) -> Batch | None:
        """The batch that ends last; None: all have ended."""
        return self.waiting[-1] if self.waiting else self.current

    def batch_for(self, options: AppendOptions, needs: Needs = NO_NEEDS) -> Batch:
        """Return the batch that takes the next write: the last one, or a new one.

        The last one takes it unless it is full, is appended on other terms, or is ready before all of
        `needs` may be. A write is not split, so the one that fills a batch may exceed the bound.

        Raises: ValidationError: an offset cannot be checked of what is appended together.
        """
        if self.waiting:
            last = self.waiting[-1]
            if (
                last.size < self._batch_bytes_max
                and (options is last.options or options == last.options)
                and (not needs or needs <= last.needs)
            ):
                return last
        if options.offset:
            raise ValidationError(
                "appends that are gathered cannot check offsets (use `append` of the client)",
                path="offset",
            )
        batch = Batch(self, options, needs)
        self.waiting.append(batch)
        return batch

    def start(self) -> Batch:
        """Take the first of those that wait: it is under way, and takes no more writes."""
        self.current = self.waiting.popleft()
        return self.current

    def committed(self, begin: int) -> Batch:
        """End the batch under way, which is in the journal from `begin` on."""
        batch, self.current = self.current, None
        assert batch is not None, "no batch is under way"
        batch.end(None, begin)
        return batch

    def fail(self, error: GazetteError, behind: GazetteError) -> list[Batch]:
        """End all: order would break if later ones were appended.

        Args:
            error: of the batch under way.
            behind: of those that wait.
        """
        failed = [*([self.current] if self.current is not None else []), *self.waiting]
        for batch in failed:
            batch.end(error if batch is self.current else behind)
        self.waiting.clear()
        self.current = None
        return failed
