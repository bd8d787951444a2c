"""Several server processes under one supervisor, which looks like one server from outside.

Nouns: supervisor (starts members, and starts them again), member (a server process), line (the socket between both, see
`serving.process`). Guarantee: a member that ends is started again; when the supervisor leaves, or is gone, all members
leave. Cost: nothing per call, because clients reach members directly.

    starting ──all serve──▶ serving ──SIGTERM──▶ leaving ──all ended──▶ ended
        └── one ends ──▶ the others leave, and so does the supervisor, as a failure

While it serves, a member that ends is started again after a growing pause, without end. All members leave at
the same time: if they left one after the other, each would hand its items to members that leave next.
`MemberProcess` is one run of a member: its process, its end of the line, its output.

Metrics of members are shown as those of one process: counters, histograms and summaries add up. Gauges do not in
general, as a write head that two processes know of, so each keeps its value and gets the label ``process``.
A process that is started again counts from zero. What its former run had counted stays in the sums, as of the
last page that was read: else a sum would fall, and Prometheus would take that for a restart of all processes
and count everything twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, final

from aiohttp import web
from prometheus_client.utils import floatToGoString

from gazette_platform.errors import SetupError
from gazette_platform.ops.faults import Faults, Restarts
from gazette_platform.ops.tasks import TaskGroup
from gazette_platform.serving.http_server import METRICS_TYPE, HttpServer
from gazette_platform.serving.process import (
    HURRIED_S,
    HURRY,
    LEAVE,
    LEAVES,
    METRICS,
    SERVES,
    task_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


LINE_BYTES_MAX: Final = 64 << 10
"""Longer lines are cut into several."""


def named_line(line: bytes, name: str, *, is_json: bool) -> str:
    r"""Return a line of a member's output with the name of the member in it.

    Args:
        line: as read, with or without its line break.
        is_json: whether each line of the log is a JSON object. Lines that are none become one.

    >>> named_line(b"2026-11-28 INFO ready\n", "b-1", is_json=False)
    'b-1: 2026-11-28 INFO ready\n'
    >>> named_line(b'{"level": "info", "msg": "ready"}\n', "b-1", is_json=True)
    '{"process": "b-1", "level": "info", "msg": "ready"}\n'
    >>> named_line(b"Traceback:", "b-1", is_json=True)
    '{"process": "b-1", "msg": "Traceback:"}\n'
    """
    text = line.decode(errors="replace").rstrip("\r\n")
    if not is_json:
        return f"{name}: {text}\n"
    begin = f'{{"process": {json.dumps(name)}'
    if text.startswith('{"') and text.endswith("}"):
        return f"{begin}, {text[1:]}\n"
    return f'{begin}, "msg": {json.dumps(text)}}}\n'


_SUMMED: Final = frozenset(("counter", "histogram", "summary"))


@final
class _Family:
    """One metric of all processes."""

    def __init__(self, head: list[str], kind: str) -> None:
        self.head = head
        self.kind = kind
        self.samples: dict[str, float] = {}


@final
class Totals:
    """Adds up pages in the text form of Prometheus, as `prometheus_client` writes it."""

    def __init__(self) -> None:
        self._last: dict[str, bytes] = {}
        # Sums of runs that have ended; their gauges are gone.
        self._ended: dict[str, _Family] = {}

    def ended(self, name: str) -> None:
        """Keep what a run of a process had counted. Its next page begins from zero."""
        page = self._last.pop(name, None)
        if page is not None:
            _add(self._ended, page, "")

    def page(self, pages: Mapping[str, bytes]) -> bytes:
        """Return the page of all.

        Args:
            pages: by name of the process. The counts of processes that do not answer now stay as they were.
        """
        self._last.update(pages)
        families = {name: _copied(family) for name, family in self._ended.items()}
        for name, last in self._last.items():
            _add(families, last, name if name in pages else "")
        return "".join(_lines(families.values())).encode()


def _copied(family: _Family) -> _Family:
    copied = _Family(family.head, family.kind)
    copied.samples = dict(family.samples)
    return copied


def _add(families: dict[str, _Family], page: bytes, process: str) -> None:
    """Add a page.

    Args:
        process: whose gauges these are; empty: leave them out.
    """
    family, head = _Family([], ""), list[str]()
    for line in page.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            family = families.setdefault(name, _Family([*head, line], kind))
            head = []
        elif line.startswith("#"):
            head.append(line)
        elif line:
            sample, _, value = line.rpartition(" ")
            if family.kind in _SUMMED:
                family.samples[sample] = family.samples.get(sample, 0.0) + float(value)
            elif process:
                family.samples[_labelled(sample, process)] = float(value)


def _labelled(sample: str, process: str) -> str:
    """Add the label of a process, whose name has no characters that need quoting."""
    name, bracket, labels = sample.partition("{")
    label = f'process="{process}"'
    return f"{name}{{{label},{labels}" if bracket else f"{name}{{{label}}}"


def _lines(families: Iterable[_Family]) -> Iterable[str]:
    for family in families:
        if not family.samples and family.kind not in _SUMMED:
            continue
        yield from (f"{line}\n" for line in family.head)
        for sample, value in family.samples.items():
            yield f"{sample} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


_log = logging.getLogger(__name__)

# Seconds for a page of metrics. A member that is busy for longer is left out of this page.
_PAGE_S: Final = 5.0


@final
class MemberProcess:
    """A member's process, from `start` until `run` ends.

    Args:
        name: of the member.
        command: program and arguments.
        task: sent to it first.
        is_json: whether each line of its log is a JSON object.
        changed: called when `serves` changes.

    Attributes:
        serves: whether it does.
        exit_code: once it has ended; negative: the signal that killed it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        task: bytes,
        *,
        is_json: bool,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.serves = False
        self.exit_code: int | None = None
        self._command = command
        self._is_json = is_json
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._has_page = False
        self._page: asyncio.Future[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._orders = task_of(task)  # until there is a writer
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def how_it_ended(self) -> str:
        """In words."""
        code = self.exit_code
        if code is None:
            return "still runs"
        return (
            f"was killed by {signal.Signals(-code).name}"
            if code < 0
            else f"exited with code {code}"
        )

    async def run(self) -> None:
        """Start the process, and listen to it until it has ended and all its output is passed on.

        Raises: SetupError: it cannot be started.
        Cancellation: kills it.
        """
        ours, theirs = socket.socketpair()
        with contextlib.closing(theirs):
            try:
                self._popen = self._started(theirs)
            except OSError as err:
                ours.close()
                raise SetupError(
                    f"cannot start {self.name}: {self._command[0]}: {err.strerror}"
                ) from err
        # The log does not wait for the event loop, and has all lines before the end is known.
        threading.Thread(
            target=self._pass_output, args=(self._popen,), name=f"log {self.name}", daemon=True
        ).start()
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._writer.write(self._orders)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._listen(reader)
            self.exit_code = await self._ended
        finally:
            self.kill()
            self._set_serves(False)
            if self._page is not None:
                self._page.cancel()
            if self._writer is not None:
                self._writer.close()

    def leave(self) -> None:
        """Ask it to drain."""
        self._say(LEAVE)

    def hurry(self) -> None:
        """Ask it to leave without waiting for anything."""
        self._say(HURRY)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        if self._popen is not None and not self._ended.done():
            self._popen.kill()

    async def page(self) -> bytes | None:
        """Return its page of metrics; None: it does not serve yet, or does not answer in time."""
        if not self._has_page:
            return None
        if self._page is None or self._page.done():
            self._page = self._loop.create_future()
            self._say(METRICS)
        try:
            return await asyncio.wait_for(asyncio.shield(self._page), _PAGE_S)
        except TimeoutError:
            _log.warning("%s does not answer with its metrics", self.name)
        except asyncio.CancelledError:
            if not self._page.cancelled():
                raise
        return None

    def _started(self, stdin: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  its own program
            [*self._command, self.name],
            stdin=stdin.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            if line in (SERVES, LEAVES):
                self._has_page = True
                self._set_serves(line == SERVES)
            elif line.startswith(b"metrics "):
                content = await reader.readexactly(int(line.split()[1]))
                if self._page is not None and not self._page.done():
                    self._page.set_result(content)

    def _set_serves(self, serves: bool) -> None:  # noqa: FBT001
        if self.serves is not serves:
            self.serves = serves
            self._changed()

    def _say(self, line: bytes) -> None:
        if self._writer is None:
            self._orders += line
        elif not self._writer.is_closing():
            self._writer.write(line)

    def _pass_output(self, popen: subprocess.Popen[bytes]) -> None:
        """Copy its lines to our standard error, each in one write, and wait for its end. For a thread."""
        assert popen.stdout is not None
        with popen.stdout as output:
            while line := output.readline(LINE_BYTES_MAX):
                with contextlib.suppress(OSError, ValueError):  # our log has no reader any more
                    sys.stderr.write(named_line(line, self.name, is_json=self._is_json))
                    sys.stderr.flush()
        code = popen.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_ended, code)

    def _set_ended(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


@dataclass(frozen=True, slots=True)
class Member:
    """One process that is to run."""

    name: str
    """For logs and metrics; unique."""
    task: bytes
    """Sent to it when it starts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """How members are run."""

    members: Sequence[Member]
    command: Sequence[str]
    """Program and arguments of each; the member's name is added."""
    is_json: bool
    """Whether each line of their logs is a JSON object."""
    host: str
    """Address that the port of diagnostics binds to."""
    port: int
    """TCP port of diagnostics; 0: any free one."""


@final
class Supervisor:
    """Runs members as one server: `start`, then `drain`.

    Attributes:
        failed: set when it can no longer run, with the reason in `failure`.
        faults: unforeseen errors that it survived.
        port: of diagnostics, once it has started.
    """

    def __init__(self, plan: Supervision) -> None:
        self._plan = plan
        self.faults = Faults()
        self._tasks = TaskGroup("members")
        self._pages = TaskGroup("pages", faults=self.faults)
        self._running: dict[str, MemberProcess] = {}
        self._totals = Totals()
        self._has_started = False
        self._leaving = asyncio.Event()
        self._changed = asyncio.Event()
        self._codes: dict[str, str] = {}
        self._http: HttpServer | None = None
        self.port = 0

    @property
    def failed(self) -> asyncio.Event:
        """Set when a task that it needs has ended by an error."""
        return self._tasks.failed

    @property
    def failure(self) -> BaseException | None:
        """Why `failed` is set."""
        return self._tasks.failure

    @property
    def leaves_within_s(self) -> float | None:
        """None: as long as members take, which keep their own limits."""
        return None

    async def start(self) -> None:
        """Start all members, and wait until all serve.

        Raises: SetupError: the port is in use, or a member ended before all served.
        Cancellation: leaves what was begun; `abandon` it.
        """
        plan = self._plan
        self._http = HttpServer(
            host=plan.host,
            port=plan.port,
            metrics=None,
            unready=self._unready,
            tasks=self._pages,
            faults=self.faults,
            flag="debug.port",
            add_routes=self._add_routes,
        )
        await self._http.start()
        self.port = self._http.port
        for member in plan.members:
            self._tasks.spawn(self._keep(member), name=member.name)
        serving = self._pages.spawn(self._all_serve(), name="start")
        failed = self._pages.spawn(self.failed.wait(), name="failure")
        await asyncio.wait((serving, failed), return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if self.failure is not None:
            raise self.failure
        self._has_started = True
        _log.info(
            "%d processes serve; readiness and metrics of all: http://%s:%d/debug/",
            len(plan.members),
            plan.host,
            self.port,
        )

    async def _all_serve(self) -> None:
        while self._unready():
            self._changed.clear()
            await self._changed.wait()

    async def drain(self) -> None:
        """Have all members leave, and wait until they have.

        Raises: SetupError: one did not leave as it should.
        Cancellation: leaves them to end by themselves.
        """
        await self._leave()
        if self._codes:
            how = "; ".join(f"{name} {how}" for name, how in sorted(self._codes.items()))
            raise SetupError(f"not all processes left as they should: {how} (the log has more)")

    async def fail(self) -> None:
        """Have all members leave after a failure of the supervisor itself."""
        await self._leave()

    async def abandon(self) -> None:
        """Have all members leave that were started."""
        await self._leave()

    def hurry(self) -> None:
        """Have members leave without waiting for anything, and kill those that do not."""
        for process in self._running.values():
            process.hurry()
        asyncio.get_running_loop().call_later(0.8 * HURRIED_S, self._kill)

    # ------------------------------------------------------------------------------- members
    async def _keep(self, member: Member) -> None:
        """Run a member, and run it again when it ends, until all leave.

        Raises: SetupError: it ended before all had served.
        """
        clock, restarts = asyncio.get_running_loop().time, Restarts()
        while not self._leaving.is_set():
            began = clock()
            how = await self._run(member)
            if self._leaving.is_set():
                return
            if not self._has_started:
                raise SetupError(
                    f"process {member.name} {how} before all served (the log above says why)"
                )
            delay_s = restarts.next_delay_s(clock() - began)
            _log.warning(
                "%s %s: starting it again in %g s, for the %d. time",
                *(member.name, how, delay_s, restarts.count),
            )
            if await self._is_leaving_within(delay_s):
                _log.warning(
                    "%s does not run: what its spools hold waits until it is started again",
                    member.name,
                )

    async def _run(self, member: Member) -> str:
        """Run a member once. Returns: how it ended."""
        plan = self._plan
        process = self._running[member.name] = MemberProcess(
            member.name,
            plan.command,
            member.task,
            is_json=plan.is_json,
            changed=self._changed.set,
        )
        try:
            await process.run()
        except SetupError as err:
            if not self._has_started:
                raise
            return f"did not start: {err}"
        finally:
            del self._running[member.name]
            self._totals.ended(member.name)
        if process.exit_code and self._leaving.is_set():
            self._codes[member.name] = process.how_it_ended
        return process.how_it_ended

    async def _is_leaving_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._leaving.wait(), delay_s)
        except TimeoutError:
            return False
        return True

    async def _leave(self) -> None:
        self._leaving.set()
        for process in self._running.values():
            process.leave()
        await self._tasks.join()
        if self._http is not None:
            await self._http.stop()
        await self._pages.close()

    def _kill(self) -> None:
        for process in self._running.values():
            _log.error("%s does not leave, and is killed", process.name)
            process.kill()

    # --------------------------------------------------------------------------------- pages
    def _add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/debug/metrics", self._metrics)

    def _unready(self) -> str:
        """Why not all serve; empty: they do."""
        if self._leaving.is_set():
            return "draining"
        names = [member.name for member in self._plan.members]
        away = [n for n in names if n not in self._running or not self._running[n].serves]
        return f"starting or draining: {', '.join(away)}" if away else ""

    async def _metrics(self, _: web.Request) -> web.Response:
        running = dict(self._running)
        found = await asyncio.gather(*(process.page() for process in running.values()))
        pages = {
            name: page
            for (name, process), page in zip(running.items(), found, strict=True)
            if page is not None and self._running.get(name) is process
        }
        if not pages:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text="no process serves\n")
        body = self._totals.page(pages)
        return web.Response(body=body, headers={"Content-Type": METRICS_TYPE})
