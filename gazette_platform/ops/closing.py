"""Context managers that close themselves when they are left, however that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType


class _HasClose(Protocol):
    def close(self) -> None: ...


class _HasAsyncClose(Protocol):
    async def close(self) -> None: ...


class _HasAclose(Protocol):
    async def aclose(self) -> None: ...


class Closing:
    """Of a class that has `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _HasClose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing:
    """Of a class whose `close` is a coroutine."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: _HasAsyncClose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Aclosing:
    """Of a class that has `aclose`, as iterators are closed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: _HasAclose,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
