"""Which journals a read of many is of, and from where to where it reads each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gazette_platform.errors import ValidationError
from gazette_platform.protocol import SuspendLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_platform.client import AsyncClient, JournalListing
    from gazette_platform.protocol import LabelSelector, LabelSet

__all__ = ["JournalSpan", "Until", "select_spans"]

Until = Literal["head", "never"]
"""Where reads of many journals end: at the heads that they have when it begins, or nowhere."""

# Journals that are asked for their heads at a time.
_AT_A_TIME = 32


@dataclass(frozen=True, slots=True)
class JournalSpan:
    """What is to be read of a journal."""

    journal: str
    labels: LabelSet
    begin: int
    """Byte offset of the first message."""
    end: int | None
    """Byte offset to end at; None: wait for more."""


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
        offsets: where to begin in each, for example of a savepoint; others are read from 0.

    Raises: ValidationError: the selector does not parse, or nothing matches. TransportError.
    Cancellation: safe.
    """
    if until not in ("head", "never"):
        raise ValidationError(f"must be head or never ({until})", path="until")
    journals = await client.list(selector)
    if not journals:
        raise ValidationError(f"no journal matches {selector or 'the selector'}", path="selector")
    begins = offsets or {}
    ends: list[int | None] = [None] * len(journals)
    if until == "head":
        slots = asyncio.Semaphore(_AT_A_TIME)

        async def head_of(journal: JournalListing) -> int:
            suspend = journal.spec.suspend
            if suspend is not None and suspend.level is SuspendLevel.FULL:
                return 0  # nothing of it is stored, and no broker serves it
            async with slots:
                return await client.write_head(journal.name)

        try:
            async with asyncio.TaskGroup() as group:  # ends all others when one fails
                asked = [group.create_task(head_of(journal)) for journal in journals]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        ends = [task.result() for task in asked]
    return [
        JournalSpan(journal.name, journal.spec.labels, begins.get(journal.name, 0), end)
        for journal, end in zip(journals, ends, strict=True)
    ]
