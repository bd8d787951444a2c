"""What a sequencer did, as the metrics of Gazette's consumers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, final

from gazette_platform.message.uuid import Flags

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SequencerCounts"]

_NAMES = {int(flag): flag.name for flag in Flags}


@final
class SequencerCounts:
    """Counts of messages: a collector, which ``prometheus_client.REGISTRY.register`` takes.

    Several sequencers of one thread may share it; it is read by any thread.

    Attributes:
        queued: messages that were sequenced, by journal, flags and `Outcome`.
        replayed: messages that were read again, since the ring had dropped them, by journal.
    """

    def __init__(self) -> None:
        self.queued: defaultdict[tuple[str, int, str], int] = defaultdict(int)
        self.replayed: defaultdict[str, int] = defaultdict(int)

    def collect(self) -> Iterator[Any]:
        """The metrics. Their names lack the end that the library gives to counters, so they are untyped."""
        from prometheus_client import Metric  # noqa: PLC0415  slow to import

        queued = Metric("gazette_sequencer_queued", "Messages that were sequenced.", "unknown")
        for (journal, flags, outcome), count in list(self.queued.items()):
            labels = {"journal": journal, "flag": _NAMES.get(flags, str(flags))}
            queued.add_sample(queued.name, {**labels, "outcome": str(outcome)}, count)
        yield queued
        replayed = Metric(
            "gazette_sequencer_replay", "Messages that were read a second time.", "unknown"
        )
        for journal, count in list(self.replayed.items()):
            replayed.add_sample(replayed.name, {"journal": journal}, count)
        yield replayed
