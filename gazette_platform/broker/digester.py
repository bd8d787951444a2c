"""Drives a spool's digest and compression in worker threads, behind its commits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, TypeVar, final

from gazette_platform.fragment.spool import COMPRESS_BATCH_BYTES, LAG_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from gazette_platform.fragment.completed import CompletedSpool
    from gazette_platform.fragment.spool import Spool
    from gazette_platform.ops.tasks import TaskGroup
    from gazette_platform.protocol import Fragment

__all__ = ["DISK_RETRY_S", "Digester"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# Less than this is hashed on the event loop: a hop to a thread costs more.
_INLINE_BYTES_MAX = 64 << 10

# A full or broken disk is retried for ever: the content is acknowledged and must not be dropped.
DISK_RETRY_S = 5.0


@final
class Digester:
    """Keeps one spool's digest and compressed form near its end.

    `kick` after each commit; `below` to hold back appends when the disk or the CPU cannot keep up.
    """

    __slots__ = ("_executor", "_kicked", "_lock", "_moved", "_tasks", "spool")

    def __init__(self, spool: Spool, executor: Executor, tasks: TaskGroup) -> None:
        self.spool = spool
        self._executor = executor
        self._tasks = tasks
        self._kicked = False
        self._lock = asyncio.Lock()  # held while a thread works on the digest
        self._moved = asyncio.Event()

    def kick(self) -> None:
        """Start rounds in the background if a whole batch is due and none is under way."""
        if not self._kicked and self._due():
            self._kicked = True
            self._tasks.spawn(self._run(), name=f"digest {self.spool.journal}")

    def _due(self) -> bool:
        spool = self.spool
        return spool.digest_lag >= COMPRESS_BATCH_BYTES or spool.compress_lag > 0

    async def _run(self) -> None:
        try:
            async with self._lock:
                while self._due():
                    await self._round(self.spool.end)
                    self._moved.set()
                    self._moved.clear()
        finally:
            self._kicked = False
            self._moved.set()
            self._moved.clear()

    async def _round(self, to: int) -> None:
        await asyncio.gather(
            self._in_thread(lambda: self.spool.digest_step(to)),
            self._in_thread(lambda: self.spool.compress_step(to)),
        )

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        while True:
            running = loop.run_in_executor(self._executor, work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                # The thread goes on; whoever holds the lock must not give it up before it ends.
                await asyncio.wait([running])
                raise
            except OSError as err:
                _log.error(
                    "%s: spool: %s; retrying in %s s (check the disk of --broker.spool-dir)",
                    self.spool.journal,
                    err,
                    DISK_RETRY_S,
                )
                await asyncio.sleep(DISK_RETRY_S)

    async def below(self, lag_bytes: int = LAG_BYTES_MAX) -> None:
        """Wait until the digest trails by less than `lag_bytes`. Cancellation: safe."""
        while max(self.spool.digest_lag, self.spool.compress_lag) >= lag_bytes:
            self.kick()
            await self._moved.wait()

    async def digested(self) -> Fragment:
        """The spool's content with its sum, as of now or a little later. Cancellation: safe."""
        async with self._lock:
            spool = self.spool
            to = spool.end
            if spool.digest_lag <= _INLINE_BYTES_MAX:
                with contextlib.suppress(OSError):  # the thread meets it again, and retries
                    spool.digest_step(to)
                    return spool.digested_fragment()
            await self._in_thread(lambda: spool.digest_step(to))
            return spool.digested_fragment()

    async def complete(self) -> CompletedSpool | None:
        """Close the fragment once rounds under way are done; the spool is not used after.

        Returns: None if it is empty.
        """
        async with self._lock:
            return await self._in_thread(self.spool.complete)
