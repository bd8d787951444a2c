"""What became of an append that was refused after an attempt of it got no answer.

The refusal does not show which: it may even be the effect of that attempt. If the append named the offset to
begin at, the journal itself shows it, because committed content never changes.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from gazette_platform.client.reader import Reader, ReadOptions
from gazette_platform.client.results import AppendResult
from gazette_platform.errors import (
    GazetteError,
    OutcomeUnknown,
    RegisterMismatch,
    StatusError,
    WrongAppendOffset,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_platform.client.transport import Transport
    from gazette_platform.protocol import Header, LabelSet

__all__ = ["settle"]

# Seconds to wait for each piece: a replica may learn of a commit a moment later.
_PIECE_TIMEOUT_S = 10.0


async def settle(
    transport: Transport,
    journal: str,
    content: AsyncIterator[bytes | bytearray | memoryview],
    *,
    offset: int,
    refusal: StatusError,
    doubt: GazetteError,
    header: Header,
    registers: LabelSet,
) -> AppendResult:
    """Find out whether an attempt was committed before one was refused.

    If the journal has other bytes at the offset, it was not; if it has the same bytes, the append
    succeeded. (Two writers that append equal content at one offset both see success:
    content that is to decide a race between writers has to name its writer.)

    Args:
        offset: that the append named; 0: none.
        refusal: of the last attempt.
        doubt: what an earlier one failed with.
        header: that of the refusal.
        registers: those in the refusal.

    Returns: where the content is.
    Raises: StatusError: `refusal`; nothing was appended. OutcomeUnknown: it may have been appended.
    Cancellation: safe.
    """
    why = "it named no offset to look at"
    if offset and isinstance(refusal, WrongAppendOffset | RegisterMismatch):
        try:
            found = await _find(transport, journal, offset, content)
        except GazetteError as err:
            why = f"offset {offset} cannot be read: {err}"
        except TimeoutError:
            why = f"the journal does not reach to the end of it, from offset {offset}"
        else:
            if found is None:
                raise refusal
            end, sha1 = found
            if end == offset:
                raise refusal  # without a byte there is nothing to find, and nothing was appended
            transport.counts.appended_bytes[journal] += end - offset
            return AppendResult(offset, end, sha1, registers, header)
    raise OutcomeUnknown(
        f"append to {journal}: whether it was appended is unknown: an attempt was not answered "
        f"({doubt}), and a later one was refused ({refusal}); {why} (look for the content in the "
        "journal before appending it again)"
    ) from refusal


async def _find(
    transport: Transport,
    journal: str,
    offset: int,
    content: AsyncIterator[bytes | bytearray | memoryview],
) -> tuple[int, bytes] | None:
    """The end and SHA-1 of `content` at `offset`; None: the journal has something else there.

    Raises: TimeoutError: the journal is shorter. GazetteError: it cannot be read.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    at = offset
    stored = memoryview(b"")
    async with Reader(transport, journal, offset, ReadOptions(block=True)) as reader:
        async for piece in content:
            own = memoryview(piece).cast("B")
            digest.update(own)
            at += len(own)
            while own:
                if not stored:
                    async with asyncio.timeout(_PIECE_TIMEOUT_S):
                        stored = memoryview(await anext(reader))
                size = min(len(own), len(stored))
                if own[:size] != stored[:size]:
                    return None
                own, stored = own[size:], stored[size:]
    return at, digest.digest()
