"""The append with which an author takes a log over.

It puts the author into the registers of the journal; appends of the former one are refused from then on.
A late process must not do so, or it fences the present owner: a process that was
stopped for longer than its lease, or an append that was sent and not answered for long. So it is done
in this order:

    1. ask for the registers
    2. have it confirmed that the log is ours to take
    3. append, if the author in the registers is still that of 1; else begin again

Who is confirmed after us has, when we are late, changed the registers since 1, and 3 is refused; who was
confirmed before us is late by himself. It holds as long as brokers keep registers.

Source: Gazette consumer/recoverylog/player.go. Departs: there the append is made whatever the registers are.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gazette_platform.consumer.recoverylog.recording import author_registers, still_of
from gazette_platform.errors import OutcomeUnknown, RegisterMismatch
from gazette_platform.ops.retry import backoff_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.client import AsyncClient

__all__ = ["take_over"]

_log = logging.getLogger(__name__)


async def take_over(
    client: AsyncClient,
    log: str,
    content: bytes,
    author: int,
    *,
    confirm: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Append the first operation of `author`, who owns the log from there on.

    Args:
        content: the operation. It may be in the log several times.
        confirm: returns once it is certain that the log may be taken over, or raises; called again for
            each attempt. None: it always may.

    Returns: the offset after it.
    Raises: GazetteError: the log cannot be appended to. Whatever `confirm` raises.
    Cancellation: leaves open whether it was appended.
    """
    attempt = 0
    while True:
        found = (await client.append(log, b"")).registers
        if confirm is not None:
            await confirm()
        try:
            result = await client.append(
                log,
                content,
                check_registers=still_of(found),
                union_registers=author_registers(author),
            )
        except (RegisterMismatch, OutcomeUnknown) as err:
            # If it was us, by an attempt that was not answered, the next one is behind that, which counts.
            _log.info("%s: another process has taken the log over meanwhile: %s", log, err)
        else:
            return result.end
        await asyncio.sleep(backoff_s(attempt))
        attempt += 1
