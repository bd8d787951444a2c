"""The steps with which a server leaves, each within a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from gazette_platform.ops.faults import Faults

_log = logging.getLogger(__name__)

# Seconds for each step of leaving after a second signal.
_HURRY_S: Final = 1.0


@final
class Departure:
    """Takes one step of leaving after the other. Whatever becomes of one, the next one is taken.

    Args:
        faults: counts errors that ended a step.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._is_hurried = False
        self._limit: asyncio.Timeout | None = None

    def hurry(self) -> None:
        """End the step that is under way, and wait hardly any longer in those that come."""
        self._is_hurried = True
        limit = self._limit
        if limit is not None and not limit.expired():
            limit.reschedule(asyncio.get_running_loop().time())

    async def step(self, limit_s: float | None, what: str, work: Awaitable[object]) -> bool:
        """Take a step.

        Args:
            limit_s: seconds that it may take; None: as long as it takes.
            what: it is, as ``closing journals``.

        Returns: whether it ended well, and in time; else it is logged.
        Cancellation: cancels the step.
        """
        if self._is_hurried:
            limit_s = _HURRY_S if limit_s is None else min(limit_s, _HURRY_S)
        try:
            async with asyncio.timeout(limit_s) as self._limit:
                await work
        except TimeoutError:
            _log.error("leaving: %s takes too long; going on without", what)
            return False
        except Exception as err:  # noqa: BLE001  reported, and the next step counts
            self._faults.report("leaving", f"leaving: {what}", err)
            return False
        finally:
            self._limit = None
        return True
