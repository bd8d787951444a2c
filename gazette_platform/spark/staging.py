"""What tasks hand to the driver: records of journals in blocks, carried by it or laid down in the staging journal.

A task may be done twice, or die behind half of its work: so no task appends to the journals that are written to. What
a task without a result has laid down stays in the staging journal, until its retention ends.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, final

from gazette_platform.errors import DataError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.client import AsyncClient

CARRIED_BYTES_MAX: Final = 64 << 20
"""Of all that the driver carries for one write: it passes Spark's JVM, and is an append of one journal."""

# Less than this of a task is carried even if there is a staging journal: an append of its own would cost more.
_SMALL_BYTES: Final = 64 << 10
_STAGED_BYTES: Final = 16 << 20
# Of a block.
_READ_TIMEOUT_S: Final = 120.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Whole records of a journal."""

    journal: str
    length: int
    """Bytes."""
    begin: int = -1
    """Offset in the staging journal; -1: it is not there."""
    sha1: bytes = b""
    """Of the content; empty: it is not checked."""
    uuid_at: int = -1
    """Where in each line its UUID is to be; -1: they get none."""
    content: bytes | None = field(default=None, repr=False)
    """The records; None: they are in the staging journal only."""


@final
class Blocks:
    """Collects a task's records.

    Args:
        staging: name of the staging journal; empty: all is carried.
    """

    def __init__(self, client: AsyncClient, staging: str) -> None:
        self._client = client
        self._staging = staging
        self._held: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._held_bytes = 0
        self._blocks: list[Block] = []

    async def add(self, journal: str, records: bytes, *, uuid_at: int = -1) -> None:
        """Take in the next records of a journal.

        Args:
            uuid_at: as of `Block`.

        Raises: ValidationError: they are more than can be carried. GazetteError: the staging journal takes nothing.
        Cancellation: safe, as far as the task is given up then.
        """
        self._held[journal, uuid_at].append(records)
        self._held_bytes += len(records)
        if self._staging and self._held_bytes >= _STAGED_BYTES:
            await self._lay_down()
        elif self._held_bytes > CARRIED_BYTES_MAX:
            raise too_much(self._held_bytes)

    async def finish(self) -> tuple[Block, ...]:
        """All of the task, in order. Raises, cancellation: as `add`."""
        if self._staging and self._held_bytes >= _SMALL_BYTES:
            await self._lay_down()
        return (*self._blocks, *_carried(self._held))

    async def _lay_down(self) -> None:
        held, self._held, self._held_bytes = self._held, defaultdict(list), 0
        laid = await lay_down(self._client, self._staging, _carried(held))
        self._blocks += [replace(block, content=None) for block in laid]


async def lay_down(client: AsyncClient, staging: str, blocks: Sequence[Block]) -> list[Block]:
    """Append carried blocks to the staging journal, all together.

    Returns: the same blocks, with the places that they have there, too.
    Raises: GazetteError: it takes nothing. Cancellation: they may have been appended; it is unknown.
    """
    contents = [block.content or b"" for block in blocks]
    placed = await client.append(staging, contents)
    at, found = placed.begin, []
    for block, content in zip(blocks, contents, strict=True):
        sha1 = hashlib.sha1(content, usedforsecurity=False).digest()
        found.append(replace(block, begin=at, sha1=sha1))
        at += block.length
    return found


def too_much(length: int) -> ValidationError:
    """The error of a write that the driver cannot carry."""
    return ValidationError(
        f"{length >> 20} MiB of one write are more than the driver carries, {CARRIED_BYTES_MAX >> 20} MiB: name a journal "
        "in which tasks lay down what they write, or have less in a batch (of a stream, by maxBytesPerTrigger of its "
        "source)",
        path="stagingJournal",
    )


def _carried(held: Mapping[tuple[str, int], list[bytes]]) -> list[Block]:
    found: list[Block] = []
    for (journal, uuid_at), parts in held.items():
        content = b"".join(parts)
        if content:
            found.append(
                Block(journal=journal, length=len(content), content=content, uuid_at=uuid_at)
            )
    return found


async def content_of(client: AsyncClient, staging: str, block: Block) -> bytes:
    """The records of a block.

    Raises: DataError: they are not in the staging journal any more, or are others. TransportError.
        Cancellation: safe.
    """
    if block.content is not None:
        return block.content
    end = block.begin + block.length
    # It waits: a replica may learn of a commit a moment later.
    reader = client.read(staging, block.begin, block=True, end_offset=end)
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            content = b"".join([bytes(piece) async for piece in reader])
    except TimeoutError as err:
        raise DataError(
            f"{staging}: nothing up to offset {end} within {_READ_TIMEOUT_S} s, where an epoch is planned (was the journal "
            "deleted and recreated?)"
        ) from err
    finally:
        await reader.aclose()
    if block.sha1 and hashlib.sha1(content, usedforsecurity=False).digest() != block.sha1:
        raise DataError(
            f"{staging}: from offset {block.begin} to {end} is not what a task laid down there (was the journal deleted and "
            "recreated?)"
        )
    return content
