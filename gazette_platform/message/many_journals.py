"""Read messages of many journals: one reader for each, or one that merges them by their times.

`select_spans` decides where each read begins and ends, once, before any message is read.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar, final

from gazette_platform.errors import ValidationError
from gazette_platform.message.content_types import framing_of_labels
from gazette_platform.message.reading import (
    CommittedReader,
    UncommittedReader,
    read_committed,
    read_uncommitted,
)
from gazette_platform.ops.tasks import Aclosing
from gazette_platform.protocol import learned, require_same, split_created

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import AsyncClient
    from gazette_platform.message.framing import Framing
    from gazette_platform.message.sequencer import Envelope
    from gazette_platform.protocol import LabelSelector, LabelSet

Until = Literal["head", "never"]
"""Where reads of many journals end: at the heads that they have when it begins, or nowhere."""


@dataclass(frozen=True, slots=True)
class JournalSpan:
    """What is to be read of a journal."""

    journal: str
    labels: LabelSet
    begin: int
    """Byte offset of the first message."""
    end: int | None
    """Byte offset to end at; None: wait for more."""
    created: int = 0
    """Which journal it is (`protocol.offsets`); 0: not known."""
    is_long: bool = False
    """Whether the read waits for more, or begins at an offset that was kept with its journal."""

    @property
    def required(self) -> int:
        """`created`, where each stream of the read is to be looked at; else 0, for it is over soon."""
        return self.created if self.is_long else 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be read."""
        return self.end is not None and self.end <= self.begin


class Nothing:
    """The content of an empty span, as a reader gives it."""

    def __init__(self, span: JournalSpan) -> None:
        self.journal = span.journal
        self.offset = span.begin

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Do nothing."""


async def select_spans(
    client: AsyncClient,
    selector: LabelSelector | str,
    *,
    until: Until = "head",
    offsets: Mapping[str, int] | None = None,
) -> list[JournalSpan]:
    """The journals that match, by name, from an offset to their heads as of now.

    Args:
        selector: as of `AsyncClient.list`; ``name:prefix=orders/`` is every journal of a prefix.
        until: ``head``, or ``never``.
        offsets: where to begin in each, such as `Savepoint.places` or a file of offsets; others are read from 0.
            Entries ``<journal>#created`` say which journal the offset belongs to (`protocol.offsets`).

    Raises: ValidationError: the selector does not parse, or nothing matches. JournalReplaced: an offset belongs to a
        journal that was deleted. TransportError.
    Cancellation: safe.
    """
    if until not in ("head", "never"):
        raise ValidationError(f"must be head or never ({until})", path="until")
    journals = await client.list(selector)
    if not journals:
        raise ValidationError(
            f"no journal matches {selector or 'it'} (write it as name=a/journal, or name:prefix=a/ for "
            "all below; `gazctl journals list` shows which there are)",
            path="selector",
        )
    served = [journal for journal in journals if not journal.spec.is_fully_suspended]
    heads = await client.write_heads(served) if until == "head" else {}
    begins, created = split_created(offsets or {})
    spans = []
    for journal in journals:
        begin, kept = begins.get(journal.name, 0), created.get(journal.name, 0)
        require_same(
            journal.name,
            kept,
            journal.created,
            offset=begin,
            advice="leave it out of `offsets`, and it is read from its beginning",
        )
        # Of one that is fully suspended nothing is stored: it ends where it begins.
        end = heads.get(journal.name, begin) if until == "head" else None
        is_long = end is None or journal.name in created
        spans.append(
            JournalSpan(
                journal.name,
                journal.spec.labels,
                begin,
                end,
                learned(kept, journal.created),
                is_long,
            )
        )
    return spans


M = TypeVar("M")


async def read_journals(
    client: AsyncClient,
    selector: LabelSelector | str,
    *,
    until: Until = "head",
    committed: bool = False,
    offsets: Mapping[str, int] | None = None,
    framing: Framing[M] | None = None,
    direct: bool = False,
) -> dict[str, UncommittedReader[M] | CommittedReader[M]]:
    """A reader for each journal that matches, by its name; each is ordered, and read when it is iterated.

    Args:
        selector: as of `AsyncClient.list`; ``name:prefix=orders/`` is every journal of a prefix.
        until: ``head``: each ends where its journal ends now; ``never``: they wait for more.
        committed: whether to read only messages that are committed, each once.
        offsets: where to begin in each journal, where a message must begin; others from 0.
        framing: default: what each journal's label `content-type` names.
        direct: as of `AsyncClient.read`.

    Raises: ValidationError: nothing matches, or a journal has no framing. TransportError.
    Cancellation: safe.
    """
    spans = await select_spans(client, selector, until=until, offsets=offsets)
    readers: dict[str, UncommittedReader[M] | CommittedReader[M]] = {}
    read = read_committed if committed else read_uncommitted
    for span in spans:
        used = framing or framing_of_labels(span.labels)
        if span.is_empty:
            readers[span.journal] = UncommittedReader(Nothing(span), used)
            continue
        readers[span.journal] = await read(
            client,
            span.journal,
            span.begin,
            framing=used,
            block=span.end is None,
            end_offset=span.end or 0,
            direct=direct,
            created=span.required,
        )
    return readers


async def read_merged(
    client: AsyncClient,
    selector: LabelSelector | str,
    *,
    committed: bool = False,
    offsets: Mapping[str, int] | None = None,
    framing: Framing[M] | None = None,
    direct: bool = False,
) -> MergedReader[M]:
    """Messages of all journals that match, up to their heads, in the order of the times in their UUIDs.

    Args:
        selector, committed, offsets, framing, direct: as of `read_journals`.

    Raises: as `read_journals`.
    Cancellation: safe.
    """
    readers = await read_journals(
        client, selector, committed=committed, offsets=offsets, framing=framing, direct=direct
    )
    return MergedReader([*readers.values()])


@final
class MergedReader(Aclosing, Generic[M]):
    """Messages of several readers by the clocks of their UUIDs: an async iterator of batches.

    Messages of one journal stay in its order, also where clocks of its producers run back. One without
    a UUID comes right behind the one before it. Every reader has to end, or to go on giving messages:
    the next message is known only once each has shown its own.
    """

    def __init__(self, readers: Sequence[UncommittedReader[M] | CommittedReader[M]]) -> None:
        self._readers = readers
        # Of each reader that has not ended: the clock that it is at, itself, and what it gave.
        self._heap: list[tuple[int, int]] = []
        self._batches: list[list[Envelope[M]]] = [[] for _ in readers]
        self._positions = [0] * len(readers)
        self._wanted = list(range(len(readers)))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Envelope[M]]:
        """The next batch, of one journal.

        Raises: as the readers do; each may be used on.
        Cancellation: safe; no message is lost.
        """
        while self._wanted:
            index = self._wanted[-1]
            batch = await anext(self._readers[index], None)
            self._wanted.pop()
            if batch is not None:
                self._batches[index], self._positions[index] = batch, 0
                heapq.heappush(self._heap, (batch[0].uuid.clock, index))
        if not self._heap:
            raise StopAsyncIteration
        _, index = heapq.heappop(self._heap)
        batch, begin = self._batches[index], self._positions[index]
        limit = self._heap[0] if self._heap else None
        end = begin + 1
        while end < len(batch):
            clock = batch[end].uuid.clock
            if clock and limit is not None and (clock, index) > limit:
                break
            end += 1
        self._positions[index] = end
        if end == len(batch):
            self._wanted.append(index)
            self._batches[index] = []
        else:
            heapq.heappush(self._heap, (batch[end].uuid.clock, index))
        return batch[begin:end]

    async def aclose(self) -> None:
        """Close all readers."""
        for reader in self._readers:
            await reader.aclose()
