"""The calls of the broker that its HTTP ports make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gazette_platform.serving.interface import ClientStream, ServerStream

__all__ = ["Service"]


class Service(Protocol):
    """What serves them, as it does over gRPC."""

    @property
    def append(self) -> ClientStream:
        """Serves Append."""
        ...

    @property
    def read(self) -> ServerStream:
        """Serves Read."""
        ...

    @property
    def list_journals(self) -> ServerStream:
        """Serves List."""
        ...
