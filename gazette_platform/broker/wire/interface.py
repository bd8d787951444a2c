"""What a transport and the broker know of each other."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from gazette_platform.errors import GazetteError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

__all__ = ["READ_AHEAD_BYTES", "Code", "ContentSource", "MessageStream", "RpcFailed", "Service"]

READ_AHEAD_BYTES = 4 << 20
"""What a transport may hold of a stream that is not read. It is one message of the largest size, and
what clients need to keep on sending while Python is busy: with a quarter of it, streamed appends
are a third slower."""


class Code(Enum):
    """Failures of an RPC that are no business outcome, by gRPC's names."""

    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    UNAVAILABLE = "UNAVAILABLE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


_TEXT_LENGTH_MAX: Final = 3000


class RpcFailed(GazetteError):
    """The RPC ends with `code` and `text` in place of a response."""

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        # It travels in the trailer, of which clients take 8 KiB: of more they learn nothing. What
        # is not ASCII is three times as long there.
        limit = _TEXT_LENGTH_MAX if text.isascii() else _TEXT_LENGTH_MAX // 6
        self.text = text if len(text) <= limit else f"{text[:limit]}..."
        super().__init__(self.text)


class ContentSource(Protocol):
    """The messages of an append that follow its first."""

    async def next(self) -> bytes | None:
        """The next message as it came from the wire; None at the end of the stream.

        Raises: RpcFailed: the stream broke.
        Cancellation: ends the RPC.
        """
        ...


class MessageStream(Protocol):
    """Both directions of a stream that is neither requests nor responses only."""

    async def next(self) -> bytes | None:
        """The next message of the caller; None once it ended its side.

        Raises: RpcFailed: the stream broke.
        Cancellation: ends the RPC.
        """
        ...

    async def send(self, raw: bytes) -> None:
        """Send a message to the caller. Raises: RpcFailed: the stream broke."""
        ...


class Service(Protocol):
    """The broker, as a transport sees it. Messages are protobuf's bytes.

    All coroutines may raise RpcFailed. Cancelling one means that its caller has gone.
    """

    async def append(
        self, first: bytes, content: ContentSource, metadata: Mapping[str, str]
    ) -> bytes:
        """Serve one Append."""
        ...

    async def replicate(self, stream: MessageStream, metadata: Mapping[str, str]) -> None:
        """Serve one Replicate: another broker writes to our replica of a journal."""
        ...

    def read(self, request: bytes, metadata: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Serve one Read: a stream of responses."""
        ...

    def list(self, request: bytes, metadata: Mapping[str, str]) -> AsyncGenerator[bytes]:
        """Serve one List: a stream of responses."""
        ...

    async def apply(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Apply."""
        ...

    async def list_fragments(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one ListFragments."""
        ...

    async def fragment_store_health(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one FragmentStoreHealth."""
        ...

    async def flush(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/Flush."""
        ...

    async def put_savepoint(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/PutSavepoint."""
        ...

    async def get_savepoint(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/GetSavepoint."""
        ...

    async def list_savepoints(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/ListSavepoints."""
        ...

    async def delete_savepoint(self, request: bytes, metadata: Mapping[str, str]) -> bytes:
        """Serve one Admin/DeleteSavepoint."""
        ...
