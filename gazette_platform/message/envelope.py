"""A message, and where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from gazette_platform.message.uuid import UuidParts

__all__ = ["Envelope"]

M = TypeVar("M")


class Envelope(NamedTuple, Generic[M]):
    """A message as it was read."""

    journal: str
    """As it was asked for: `a/journal;one` and `a/journal;two` are different sources."""
    begin: int
    """Offset of the first byte of its frame."""
    end: int
    """Offset after the last one."""
    uuid: UuidParts
    message: M
