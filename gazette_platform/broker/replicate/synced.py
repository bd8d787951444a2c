"""The outcome of bringing all replicas to one fragment, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gazette_platform.protocol import LabelSet

__all__ = ["Invalidated", "SyncMismatch", "SyncResult", "Synced", "WrongRoute"]


@dataclass(frozen=True, slots=True)
class Synced:
    """Every replica is at the spool's end."""


@dataclass(frozen=True, slots=True)
class SyncMismatch:
    """A peer is ahead of us, or has begun a new fragment at our end: all have to roll there."""

    roll_to: int
    registers: LabelSet | None


@dataclass(frozen=True, slots=True)
class WrongRoute:
    """A peer knows a newer route."""

    revision: int


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The resolution that the sync relied on no longer holds."""


SyncResult = Synced | SyncMismatch | WrongRoute | Invalidated
