"""Which parts of recovery logs no hints need any more, so that their fragments may be deleted.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_platform.consumer.recoverylog.hints import FsmHints
    from gazette_platform.consumer.recoverylog.segments import Segment

__all__ = ["LogNeeds", "ShardHints", "judge_fragment", "needs_of"]


@final
@dataclass(frozen=True, slots=True)
class ShardHints:
    """A shard's log, and the value of each of its slots of hints."""

    log: str
    slots: tuple[FsmHints | None, ...]
    """Primary and all backups; None where there is no value."""

    @property
    def is_complete(self) -> bool:
        """Whether each slot has hints with files, so that nothing is known to be unknown."""
        return bool(self.slots) and all(
            hints is not None and hints.live_nodes for hints in self.slots
        )


@final
@dataclass(frozen=True, slots=True)
class LogNeeds:
    """What is known of the logs of many shards."""

    segments: Mapping[str, tuple[Segment, ...]]
    """By log that may be pruned: what some hints need. They overlap each other."""
    skipped: tuple[str, ...]
    """Logs not to touch, as hints of their shards are missing or have no files; ascending."""


def needs_of(shards: Iterable[ShardHints]) -> LogNeeds:
    """What the hints of all `shards` need. They have to be all that share history in their logs.

    The last segment of each hints has no end, as playback continues after it.

    Raises: ValidationError: hints contradict themselves.
    """
    segments: dict[str, list[Segment]] = {}
    skipped: set[str] = set()
    for shard in shards:
        if not shard.is_complete:
            skipped.add(shard.log)
        # The present part of incomplete hints still counts, for the other logs that they name.
        for hints in shard.slots:
            if hints is None:
                continue
            ordered: Sequence[Segment] = tuple(hints.segments())
            if ordered:
                ordered = (*ordered[:-1], replace(ordered[-1], last_offset=0))
            for segment in ordered:
                segments.setdefault(segment.log, []).append(segment)
    return LogNeeds(
        {log: tuple(found) for log, found in segments.items() if log not in skipped},
        tuple(sorted(skipped)),
    )


def judge_fragment(
    segments: Sequence[Segment], *, begin: int, end: int, is_persisted: bool
) -> Literal["keep", "delete", "abort"]:
    """What to do about a fragment of a log.

    Args:
        segments: that are needed of the log; without any, all is kept.
        begin: offset of its first byte.
        end: after its last byte; 0: it still grows.
        is_persisted: whether it is in a store.

    Returns: ``abort`` if nothing needs it although it is not stored yet: then it is so new that a
        shard which writes it is missing from the selection, and nothing more may be deleted.
    """
    if not segments or any(segment.overlaps(begin, end) for segment in segments):
        return "keep"
    return "delete" if is_persisted else "abort"
