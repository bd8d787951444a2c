"""Messages of many journals: a reader for each, or all of them in one, ordered by their times."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, Self, TypeVar, final

from gazette_platform.message.readers import CommittedReader, UncommittedReader
from gazette_platform.message.reading import read_committed, read_uncommitted
from gazette_platform.message.registry import framing_of_labels
from gazette_platform.message.selection import Nothing, Until, select_spans
from gazette_platform.ops.closing import Aclosing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import AsyncClient
    from gazette_platform.message.envelope import Envelope
    from gazette_platform.message.framing import Framing
    from gazette_platform.protocol import LabelSelector

__all__ = ["MergedReader", "read_journals", "read_merged"]

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
