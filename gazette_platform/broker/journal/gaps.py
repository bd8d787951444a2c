"""Gaps: content that is missing before other content of a journal, who waits for it, and how long."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from itertools import accumulate
from typing import TYPE_CHECKING, Final, final

from gazette_platform.fragment.index import JUMP_AGE_S
from gazette_platform.ops.lru import Lru
from gazette_platform.serving.interface import NotNow, RpcFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.fragment.index import Index
    from gazette_platform.ops.clock import Clock
    from gazette_platform.ops.tasks import TaskGroup

KNOWN_WAIT_S: Final = 5.0
"""Seconds that readers wait for content which other brokers are about to store."""

# Seconds after which missing content counts as lost, unless another broker says that it has it.
_LOST_S = 140.0
# Offsets of gaps that are remembered.
_OFFSETS_MAX = 1000
_REFRESH_S = 0.5


@final
class Gaps:
    """The gaps that reads have met at one replica.

    Brokers that had a journal store their content of it in any order. So later content may be in the
    store while another broker still holds what precedes it. A read must not end at such a gap as if
    the journal ended there.

    Nor may a read continue after the gap, as if the content had been pruned, before the other brokers
    were asked. Asking once is enough: what is appended from then on is here until it is stored. What
    they have held for hours counts as lost, as any other gap of that age does.

    Args:
        wait_s: seconds that a read waits.
        refresh: has the stores listed soon.
        may_come: whether content at an offset is still expected from anybody.
        ask: has other brokers store what they hold, and then the stores listed. Returns whether
            that is done.

    Attributes:
        others_end: other brokers may hold content below this offset that is in no store.
    """

    def __init__(
        self,
        journal: str,
        index: Index,
        *,
        wait_s: float,
        clock: Clock,
        tasks: TaskGroup,
        refresh: Callable[[], None],
        may_come: Callable[[int], bool],
        ask: Callable[[], Awaitable[bool]],
    ) -> None:
        self._journal = journal
        self._index = index
        self.wait_s = wait_s
        self._clock = clock
        self._tasks = tasks
        self._refresh = refresh
        self._may_come = may_come
        self._ask = ask
        self._is_asking = False
        self.others_end = sys.maxsize
        self._others_at = clock.monotonic()
        # Content of these offsets is gone for good, as our primary reported.
        self._gone_begin = self._gone_end = 0
        self._refresh_at = 0.0
        self._met_at: Lru[int, float] = Lru(_OFFSETS_MAX)

    def on_leap(self, begin: int) -> None:
        """Note that our spool goes on at `begin`: others hold what precedes, or stores do."""
        self.others_end = begin
        self._others_at = self._clock.monotonic()

    def on_commit(self, begin: int) -> None:
        """Note that our spool holds what is appended from `begin` on."""
        self.others_end = min(self.others_end, begin)

    def on_gone(self, begin: int, end: int) -> None:
        """Note that our primary reads on at `end` when asked for `begin`: all between is gone."""
        if begin <= self._gone_end and end >= self._gone_begin:
            begin, end = min(begin, self._gone_begin), max(end, self._gone_end)
        self._gone_begin, self._gone_end = begin, end

    def may_skip(self, offset: int) -> bool:
        """Whether content that is missing at `offset`, before stored content, is gone for good."""
        if self._gone_begin <= offset < self._gone_end >= self._index.summary.begin:
            return True
        return self._is_asked(offset) and not self._may_come(offset)

    def _is_asked(self, offset: int) -> bool:
        """Whether there is no need to ask other brokers about `offset` (any more)."""
        is_old = self._clock.monotonic() - self._others_at > JUMP_AGE_S
        return is_old or offset >= self.others_end

    async def wait_skip(self, offset: int) -> None:
        """Wait until content at `offset` has come, or may be skipped, or the replica closes.

        Reads that block do not wait longer than others: their clients would not learn why nothing
        comes.

        Raises: RpcFailed: UNAVAILABLE: it is still open; the caller is to ask again.
        Cancellation: safe.
        """
        index = self._index
        try:
            async with asyncio.timeout(self.wait_s):
                while not (self.may_skip(offset) or index.covers(offset, offset + 1)):
                    if not self._is_asked(offset):
                        self._ask_soon()
                    if not await index.wait_change():
                        return
        except TimeoutError as err:
            raise self.still_open(offset) from err

    def still_open(self, offset: int) -> RpcFailed:
        """The error while it is unknown whether content at `offset` is gone: ask again."""
        what = f"another broker may have content at {offset} that is not stored yet"
        return NotNow(f"{self._journal}: {what}")

    def _ask_soon(self) -> None:
        """Ask other brokers, unless that is under way: one question serves all readers."""
        if not self._is_asking:
            self._is_asking = True
            self._tasks.spawn(self._ask_others(), name=f"ask for {self._journal}")

    async def _ask_others(self) -> None:
        asked_end = self.others_end
        try:
            if not await self._ask():
                await asyncio.sleep(_REFRESH_S)
            elif asked_end == self.others_end:
                self.others_end = 0
        except Exception:
            await asyncio.sleep(_REFRESH_S)  # the reads that wait will ask again
            raise
        finally:
            self._is_asking = False
            self._index.wake()

    async def wait(self, offset: int, *, noted_head: int = 0) -> bool:
        """Wait for content at `offset`, which lies before content that is known.

        Args:
            noted_head: where the journal's spec says that it goes on. One that was suspended may have
                been pruned up to there: then nothing comes once the other brokers were asked.

        Returns: whether it has come; False: it is lost, or the replica closes.
        Raises: RpcFailed: UNAVAILABLE: it did not come in time; the caller is to ask again.
        Cancellation: safe.
        """
        if self._index.summary.end <= offset < noted_head:
            await self.wait_skip(offset)
            return self._index.covers(offset, offset + 1)
        met_at = self._met_at.get(offset)
        if met_at is None:
            met_at = self._clock.monotonic()
            self._met_at.put(offset, met_at)
        return await self.wait_listed(offset, lost_at=met_at + _LOST_S)

    async def wait_listed(self, offset: int, *, lost_at: float = math.inf) -> bool:
        """Wait until a listing shows content at `offset`; have the stores listed often meanwhile.

        Args:
            lost_at: monotonic seconds. From then on the content counts as lost, unless another broker
                says that it has it: its store may have been full for hours.

        Returns, Raises, Cancellation: as `wait`.
        """
        index, now = self._index, self._clock.monotonic
        try:
            async with asyncio.timeout(self.wait_s):
                while not index.covers(offset, offset + 1):
                    if now() > lost_at:
                        if offset >= self.others_end:
                            return False
                        self._ask_soon()
                    if now() >= self._refresh_at:
                        self._refresh_at = now() + _REFRESH_S
                        self._refresh()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_REFRESH_S):
                            if not await index.wait_change():
                                return False
        except TimeoutError as err:
            what = f"another broker has content at {offset} that is not stored yet"
            raise NotNow(f"{self._journal}: {what}") from err
        return True


# A replica looks for that content in the stores so many seconds after its spool began.
_REFRESHES_S = tuple(accumulate((0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 30, 60)))


@final
class Hole:
    """The hole before the spool of one replica. It opens once, with each spool that begins elsewhere.

    Once its content was seen in a store it is closed for good. What is missing there from then on was
    pruned, and no broker is about to store it: to wait for that would hold up reads for minutes.

    Attributes:
        end: where the spool began, while the hole is open; else 0.
    """

    def __init__(self, index: Index, clock: Clock) -> None:
        self.end = 0
        self._began_at = -math.inf
        self._index = index
        self._clock = clock

    def begin(self, end: int) -> None:
        """Note that a spool begins at offset `end`, after all that is known."""
        self.end = end
        self._began_at = self._clock.monotonic()

    def look(self) -> None:
        """See whether it has closed. To be called whenever more is known to be stored."""
        if self.end > 0 and not self.is_open:
            self.end = 0

    @property
    def is_open(self) -> bool:
        """Whether its content is neither here nor known to be in a store."""
        # Its last byte is enough to know: content before that may have been pruned.
        return self.end > 0 and not self._index.covers(self.end - 1, self.end)

    @property
    def is_filling(self) -> bool:
        """Whether it is open, and its content is expected still.

        If that takes minutes, reads stop waiting for content that no replica says it has.
        """
        return self.refresh_s() < math.inf and self.is_open

    def refresh_s(self) -> float:
        """Seconds until stores are listed for its content; infinity: never again."""
        age_s = self._clock.monotonic() - self._began_at
        return next((at_s - age_s for at_s in _REFRESHES_S if at_s > age_s), math.inf)
