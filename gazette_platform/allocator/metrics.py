"""What the allocator does, counted by Gazette's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_platform.allocator.converge import Piece

__all__ = ["AllocatorMetrics"]

_PREFIX: Final = "gazette_allocator"


@final
class AllocatorMetrics:
    """What this member did as leader; all stays 0 at the others.

    Args:
        registry: to show them in; None: nowhere.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._added = Counter(
            f"{_PREFIX}_assignment_added", "Assignments that were added.", registry=registry
        )
        self._packed = Counter(
            f"{_PREFIX}_assignment_packed",
            "Assignments that moved to another slot.",
            registry=registry,
        )
        self._removed = Counter(
            f"{_PREFIX}_assignment_removed", "Assignments that were removed.", registry=registry
        )
        self.converge = Counter(
            f"{_PREFIX}_converge", "Rounds of the allocator.", registry=registry
        )
        self.solving = Histogram(
            f"{_PREFIX}_max_flow_runtime_seconds",
            "How long solving took, in seconds, turns of others included.",
            registry=registry,
        )
        self.slots = Gauge(
            f"{_PREFIX}_desired_replication_slots",
            "Replicas that all items together desire.",
            registry=registry,
        )
        self.items = Gauge(f"{_PREFIX}_items", "Items to assign.", registry=registry)
        self.members = Gauge(f"{_PREFIX}_members", "Members to assign to.", registry=registry)

    def count(self, written: Iterable[Piece]) -> None:
        """Count what a transaction wrote."""
        for piece in written:
            self._added.inc(piece.added)
            self._packed.inc(piece.moved)
            self._removed.inc(piece.removed)
