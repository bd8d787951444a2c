"""The process of one server: from its start until it has to leave, or fails."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

import uvloop

from gazette_platform.ops.process import describe_tasks, describe_threads, raise_file_limit
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.process.signals import HURRIED_S, Leaver, Signals, on_loop_error
from gazette_platform.serving.process.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S", bound="Server")

_log = logging.getLogger(__name__)


class Overseer(Protocol):
    """Another process that says what this one does."""

    def obey(self, signals: Signals) -> None:
        """Pass on what it says from now on. On the event loop."""
        ...

    def leaves(self) -> None:
        """Report that the server begins to leave."""
        ...


class Server(Leaver, Protocol):
    """A server in this process and event loop: `start`, then `drain` or `fail`."""

    @property
    def failed(self) -> asyncio.Event:
        """Set when a task that it needs has ended by an error."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why `failed` is set."""
        ...

    async def start(self) -> None:
        """Serve, as a member. Cancellation: leaves what was begun; `abandon` it."""
        ...

    async def drain(self) -> object:
        """Hand over, and leave."""
        ...

    async def fail(self) -> object:
        """Leave after a failure."""
        ...

    async def abandon(self) -> None:
        """Stop everything at once."""
        ...


def run_server(
    make: Callable[[], S],
    *,
    flag: str,
    on_start: Callable[[S], None] | None = None,
    overseer: Overseer | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    A second signal ends it at once, and the time of `flag` within some time, whatever hangs.

    Args:
        make: the server, on the event loop that it is to run on.
        flag: sets the time for leaving, as ``broker.drain-timeout``.
        on_start: called once it serves.
        overseer: of this process, beside signals.

    Raises: GazetteError: it could not start, or could not go on; the message says why.
    """
    raise_file_limit()
    watchdog = Watchdog()
    uvloop.run(_run(make, watchdog, flag, on_start, overseer))


async def _run(
    make: Callable[[], S],
    watchdog: Watchdog,
    flag: str,
    on_start: Callable[[S], None] | None,
    overseer: Overseer | None,
) -> None:
    loop = asyncio.get_running_loop()
    server = make()
    loop.set_exception_handler(lambda loop, context: on_loop_error(server, loop, context))
    watchdog.describe = lambda: f"{describe_tasks(loop)}\n{describe_threads()}"
    signals = Signals(server, watchdog, flag=flag)
    if overseer is not None:
        overseer.obey(signals)
    try:
        await _serve(server, signals, on_start, overseer)
    finally:  # threads that hang in a disk, a store or a database would keep the interpreter from ending
        watchdog.arm(HURRIED_S, "a thread of it hangs")


async def _serve(
    server: S,
    signals: Signals,
    on_start: Callable[[S], None] | None,
    overseer: Overseer | None,
) -> None:
    try:
        if not await _starts(server, signals):
            await server.abandon()
            return
    except BaseException:
        await server.abandon()
        raise
    if on_start is not None:
        on_start(server)
    watching = TaskGroup("signals")
    stopped = watching.spawn(signals.stop.wait(), name="stop")
    failed = watching.spawn(server.failed.wait(), name="failure")
    await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
    await watching.close()
    failure = server.failure if server.failed.is_set() else None
    signals.leave()
    if overseer is not None:
        overseer.leaves()
    if failure is None:
        await server.drain()
        return
    await server.fail()
    raise failure


async def _starts(server: Server, signals: Signals) -> bool:
    """Start, however long we have to wait for etcd or an earlier instance.

    Returns: False: a signal came first.
    """
    try:
        async with asyncio.timeout(None) as signals.starting:
            await server.start()
    except TimeoutError:
        if not signals.stop.is_set():
            raise
        _log.info("stopped before it was ready")
        return False
    finally:
        signals.starting = None
    return True
