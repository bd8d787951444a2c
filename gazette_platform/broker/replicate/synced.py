"""What came of bringing all replicas to one fragment: plain values."""

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
    """A peer is ahead, or asked to start anew at our end."""

    roll_to: int
    registers: LabelSet | None


@dataclass(frozen=True, slots=True)
class WrongRoute:
    """A peer knows a newer route."""

    revision: int


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The resolution no longer holds."""


SyncResult = Synced | SyncMismatch | WrongRoute | Invalidated
