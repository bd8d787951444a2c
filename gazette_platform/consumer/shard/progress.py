"""Progress of a shard, and whether waiting calls have what they wait for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.consumer.protocol import ShardSpec
    from gazette_platform.consumer.shard.transaction import CompletedTransaction

__all__ = ["Progress"]


@final
class Progress:
    """Offsets that a shard has read through and published at, as of its last completed transaction.

    Attributes:
        read_through: by source.
        publish_at: by journal, end of the last ACK, of those written since the shard was assigned.

    Args:
        read_through: of the checkpoint that was restored.
    """

    def __init__(self, read_through: Mapping[str, int] | None = None) -> None:
        self.read_through: dict[str, int] = dict(read_through or {})
        self.publish_at: dict[str, int] = {}

    def advance(self, completed: CompletedTransaction) -> None:
        """Take note of a transaction that is done. Offsets never go back."""
        for known, new in (
            (self.read_through, completed.read_through),
            (self.publish_at, completed.publish_at),
        ):
            for journal, offset in new.items():
                known[journal] = max(offset, known.get(journal, 0))

    def has_reached(self, wanted: Mapping[str, int], spec: ShardSpec) -> bool:
        """Whether all that lies before these offsets is in completed transactions.

        Journals that the shard does not read are not waited for. What lies before the least offset of a
        source is never read, so that it is reached from the start.
        """
        for journal, offset in wanted.items():
            source = spec.source_of(journal)
            if source is None or offset <= source.min_offset:
                continue
            if self.read_through.get(journal, 0) < offset:
                return False
        return True
