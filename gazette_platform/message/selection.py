"""Which journals a read of many is of, and from where to where it reads each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import learned, require_same, split_created

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.client import AsyncClient
    from gazette_platform.protocol import LabelSelector, LabelSet

__all__ = ["JournalSpan", "Nothing", "Until", "select_spans"]

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
    """Which journal it is (`protocol.identity`); 0: not known."""
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
            Entries ``<journal>#created`` say which journal the offset belongs to (`protocol.identity`).

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
