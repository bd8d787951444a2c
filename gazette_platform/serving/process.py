"""The process of one server: from its start until it leaves or fails.

`run_server` runs a server until SIGTERM or SIGINT, which threads of their own hear: the event loop may hang.
The first signal asks the server to leave, the next to do so at once. A server leaves in the steps of a
`Departure`, each within a time. If the process does not end although it was asked to, the `Watchdog` ends it:
a thread that hangs in a disk or a store would otherwise keep the interpreter from ending, for ever.

A process may be a *member*, one of several that look like one server from outside: `SupervisorLine` is its connection
to the supervisor (`serving.supervisor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

import uvloop

from gazette_platform.errors import SetupError
from gazette_platform.ops.process import describe_tasks, describe_threads, raise_file_limit
from gazette_platform.ops.tasks import TaskGroup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_platform.ops.faults import Faults


_log = logging.getLogger(__name__)

_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

HURRIED_S: Final = 10.0
"""Seconds that are left to a process after a second signal, or with nothing left to do."""


class Leaver(Protocol):
    """What signals ask of a server."""

    faults: Faults

    @property
    def leaves_within_s(self) -> float | None:
        """Seconds that it takes at most to leave; None: as long as others, and stores, take."""
        ...

    def hurry(self) -> None:
        """Wait for nothing any more on the way out."""
        ...


@final
class Signals:
    """What SIGTERM and SIGINT do: the first asks the server to leave, the next to do so at once.

    A thread of its own hears them, and arms the watchdog before anything else: the event loop may
    hang, and a thread that hangs in a disk takes no signal at all. Make it in the main thread before
    others begin: those, and what the process starts, inherit that they do not take these signals.

    Attributes:
        stop: set by the first.
        starting: limits the start of the server while it is under way; the first ends it.

    Args:
        flag: sets the time for leaving, if one does.
    """

    def __init__(self, server: Leaver, watchdog: Watchdog, *, flag: str = "") -> None:
        self._server = server
        self._overdue = f"--{flag} is long over" if flag else "it takes too long to leave"
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        self.starting: asyncio.Timeout | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        hearing = threading.Thread(target=self._hear, name="signals", daemon=True)
        hearing.start()
        assert hearing.ident is not None
        for number in _NUMBERS:  # that an earlier thread took
            pass_on = partial(signal.pthread_kill, hearing.ident, number)
            self._loop.add_signal_handler(number, pass_on)

    def ask(self) -> None:
        """Ask the server to leave; nothing if it was asked before. May be called by any thread."""
        self.leave()
        self._tell(self._stop)
        aside(_log.info, "asked to leave")

    def hurry(self) -> None:
        """Ask the server, which was asked before, to leave at once. May be called by any thread."""
        self._watchdog.arm(HURRIED_S, "it got a second signal")
        self._tell(self._server.hurry)
        aside(_log.warning, "asked to leave again: no more waiting")

    def leave(self) -> None:
        """The server begins to leave, by a signal or by a failure. May be called by any thread."""
        limit_s = self._server.leaves_within_s
        if limit_s is not None:
            self._watchdog.arm(limit_s, self._overdue)

    def _hear(self) -> None:
        signal.sigwait(_NUMBERS)
        self.ask()
        while True:
            signal.sigwait(_NUMBERS)
            self.hurry()

    def _tell(self, callback: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: only the watchdog is left
            self._loop.call_soon_threadsafe(callback)

    def _stop(self) -> None:
        self.stop.set()
        if self.starting is not None and not self.starting.expired():
            self.starting.reschedule(self._loop.time())


def on_loop_error(server: Leaver, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback, or a task that is not awaited, has failed. Its owner has lost that one call."""
    error, what = context.get("exception"), str(context.get("message"))
    if error is None or "PollerCompletionQueue" in what:  # the latter is grpc.aio's, and harmless
        loop.default_exception_handler(context)
    else:
        server.faults.report("callback", what, error)


S = TypeVar("S", bound="Server")


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
    flag: str = "",
    on_start: Callable[[S], None] | None = None,
    overseer: Overseer | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    A second signal ends it at once, and the time of `flag` within some time, whatever hangs.

    Args:
        make: the server, on the event loop that it is to run on.
        flag: sets the time for leaving, as ``broker.drain-timeout``; empty: it is fixed.
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


_FAILED = 1

# To log what it hangs in.
_SAY_S = 2.0


@final
class Watchdog:
    """A deadline for the whole process, kept by a thread of its own.

    Args:
        end: ends the process with an exit status; given by tests.

    Attributes:
        describe: says for the log what the process is doing, and where it hangs.
    """

    def __init__(self, end: Callable[[int], None] = os._exit) -> None:
        self._end = end
        self.describe: Callable[[], str] = str
        self._changed = threading.Condition()
        self._deadline = math.inf
        self._why = ""
        self._thread: threading.Thread | None = None

    def arm(self, limit_s: float, why: str) -> None:
        """End the process in `limit_s` seconds, unless it should end sooner already."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            if self._deadline <= deadline:
                return
            self._deadline, self._why = deadline, why
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while (left_s := self._deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            try:
                aside(self._say, self._why).join(_SAY_S)
            finally:
                self._end(_FAILED)

    def _say(self, why: str) -> None:
        _log.critical("this process does not end by itself and is ended: %s", why)
        _log.critical("what it waits for:\n%s", self.describe())


def aside(call: Callable[..., None], *args: object) -> threading.Thread:
    """Log, in a thread of its own: that may hang, too, in a pipe without a reader or in a disk.

    Returns: the thread; it does not keep the process alive.
    """
    thread = threading.Thread(target=call, args=args, name="log", daemon=True)
    thread.start()
    return thread


# ------------------------------------------------------------------ a member and its supervisor

# What they say to each other, over the socket that is the member's standard input. Each message is a line:
#
#     supervisor → member                         member → supervisor
#     leave      drain, as at SIGTERM             serves            it serves
#     hurry      wait for nothing any more        leaves            it serves no more
#     metrics    send your page                   metrics <bytes>   the page follows
#
# The end of the socket means that the supervisor is gone, and that the member leaves.
#
# The supervisor sends no signals for this. A service manager that stops a unit, and a terminal, signal
# all processes at once, and a member would take the supervisor's signal for the second one: to leave
# at once, whatever is under way.

LEAVE: Final = b"leave\n"
HURRY: Final = b"hurry\n"
METRICS: Final = b"metrics\n"
SERVES: Final = b"serves\n"
LEAVES: Final = b"leaves\n"

_LENGTH_BYTES: Final = 8


def task_of(content: bytes) -> bytes:
    """Return the bytes with a member's task: the first that its supervisor sends."""
    return len(content).to_bytes(_LENGTH_BYTES) + content


@final
class SupervisorLine:
    """The member's end.

    Args:
        sock: leads to the supervisor.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._page: Callable[[], bytes] = bytes
        self._reports: SimpleQueue[bytes] = SimpleQueue()

    @classmethod
    def on_stdin(cls) -> SupervisorLine:
        """Take standard input, and leave an empty one in its place.

        Raises: SetupError: standard input is not a socket.
        """
        try:
            sock = socket.socket(fileno=os.dup(0))
        except OSError as err:
            raise SetupError(
                "standard input does not lead to a supervisor (start members by "
                "`gazette serve --broker.processes`)"
            ) from err
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(sock)

    def read_task(self) -> bytes:
        """Read the task that the supervisor sends first. Blocks.

        Raises: SetupError: the supervisor is gone.
        """
        length = int.from_bytes(self._read(_LENGTH_BYTES))
        return self._read(length)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._sock.recv(size - len(found))
            if not part:
                raise SetupError("the supervisor is gone")
            found += part
        return found

    def obey(self, signals: Signals) -> None:
        """Pass on what the supervisor says from now on. On the event loop.

        Threads of their own hear and speak, as with signals: the event loop may hang.
        """
        self._loop = asyncio.get_running_loop()
        for work, name in ((partial(self._hear, signals), "orders"), (self._speak, "reports")):
            threading.Thread(target=work, name=name, daemon=True).start()

    def serves(self, page: Callable[[], bytes]) -> None:
        """Report that this process serves.

        Args:
            page: returns its metrics; called on the event loop.
        """
        self._page = page
        self._reports.put(SERVES)

    def leaves(self) -> None:
        """Report that this process begins to leave."""
        self._reports.put(LEAVES)

    def _hear(self, signals: Signals) -> None:
        with contextlib.suppress(OSError), self._sock.makefile("rb") as orders:
            for line in orders:
                if line == LEAVE:
                    signals.ask()
                elif line == HURRY:
                    signals.hurry()
                elif line == METRICS:
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        self._loop.call_soon_threadsafe(self._report_page)
        signals.ask()
        _log.warning("the supervisor is gone")

    def _report_page(self) -> None:
        content = self._page()
        self._reports.put(b"metrics %d\n" % len(content) + content)

    def _speak(self) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, as the other thread sees, too
            while True:
                self._sock.sendall(self._reports.get())
