"""Operations on the platform of a folder from outside: start detached, stop, look; and the board that shows them.

A detached supervisor is a process of its own: ``python -m gazette_platform.platform.control FOLDER OPTIONS``.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO, final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops.process import ProcessId
from gazette_platform.platform.component import private_files, stop_process
from gazette_platform.platform.layout import Endpoints, PlatformDir, PlatformState, write_json
from gazette_platform.platform.platform import PlatformOptions
from gazette_platform.platform.supervisor import ComponentFailed, Supervisor, remove_leftovers

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType

    from gazette_platform.platform.supervisor import Observer

_POLL_S = 0.1
# Longer than all components need one after the other.
_STOP_TIMEOUT_S = 180.0
_BIRTH_TIMEOUT_S = 30.0


def start_detached(layout: PlatformDir, options: PlatformOptions, observer: Observer) -> Endpoints:
    """Start a supervisor in a session of its own, and wait until it is ready. Blocks.

    An interrupt of the caller while it waits stops the platform again.

    Raises: SetupError: it failed; says why.
    """
    log = layout.logs / "supervisor.log"
    with private_files():
        layout.make()
        output = log.open("ab")
        begun = output.tell()
    with output:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gazette_platform.platform.control",
                str(layout.root),
                json.dumps(options.to_json()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    supervisor = ProcessId.of(child.pid)
    try:
        return _follow(layout, child, observer, log_from=begun)
    except KeyboardInterrupt:
        stop_process(supervisor, timeout_s=_STOP_TIMEOUT_S)
        raise


def _follow(
    layout: PlatformDir, child: subprocess.Popen[bytes], observer: Observer, *, log_from: int
) -> Endpoints:
    born_by = time.monotonic() + _BIRTH_TIMEOUT_S
    while child.poll() is None:
        state = PlatformState.load(layout.state)
        if state.pid == child.pid:
            observer.changed(state)
            if state.phase == "ready":
                endpoints = Endpoints.load(layout.endpoints)
                observer.ready(endpoints)
                return endpoints
        elif time.monotonic() > born_by:
            child.terminate()
            break
        time.sleep(_POLL_S)
    # If the supervisor was refused because another one has the folder, only its log says so.
    log = layout.logs / "supervisor.log"
    words = reason_in(log.read_bytes()[log_from:].decode("utf-8", "replace"))
    state = PlatformState.load(layout.state)
    is_told = state.phase == "failed" and state.failure == words
    raise _failure(
        layout,
        words or f"the supervisor ended without a word: see {log}",
        state.failed_component if is_told else "",
    )


def reason_in(text: str) -> str:
    r"""Return why a supervisor ended, out of its log: the error that it named last, else its last line.

    >>> reason_in("etcd: ready\nerror: cannot read x: error: y")
    'cannot read x: error: y'
    >>> reason_in("etcd: ready\nTraceback …\nKeyError: 'z'")
    "KeyError: 'z'"
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return next(reversed(named or lines), "")


def _failure(layout: PlatformDir, words: str, component: str) -> SetupError:
    """The error of a component that failed, or of another failure if none did."""
    if not component or not words.startswith(component):
        return SetupError(words)
    what = words.removeprefix(component).partition(" (its log is ")[0].strip()
    return ComponentFailed(component, what, layout.logs / f"{component}.log")


def is_running(layout: PlatformDir) -> bool:
    """Whether a supervisor runs the platform of a folder."""
    return PlatformState.load(layout.state).process.is_alive()


def extend(layout: PlatformDir, options: PlatformOptions, observer: Observer) -> Endpoints:
    """Add to a platform that runs what `options` have beside it, and wait until that is ready. Blocks.

    What runs goes on, whatever becomes of this. An interrupt of the caller ends the waiting alone.

    Raises: SetupError: it was refused, or failed; says why.
    """
    request = secrets.token_hex(8)
    state = PlatformState.load(layout.state)
    supervisor = state.process
    observer.changed(state)  # what runs is not news from here on
    write_json(layout.request, {"id": request, "options": options.to_json()})
    os.kill(supervisor.pid, signal.SIGUSR1)
    while supervisor.is_alive():
        state = PlatformState.load(layout.state)
        if state.answered == request and state.refusal:
            raise _failure(layout, state.refusal, state.failed_component)
        observer.changed(replace(state, phase="starting"))
        if state.answered == request:
            endpoints = Endpoints.load(layout.endpoints)
            observer.ready(endpoints)
            return endpoints
        if json.loads(layout.request.read_text("utf-8"))["id"] != request:
            raise SetupError(
                f"another `gazette up` changes the platform in {layout.root} meanwhile"
            )
        time.sleep(_POLL_S)
    raise SetupError(f"the platform in {layout.root} was stopped meanwhile")


def stop_platform(layout: PlatformDir, observer: Observer) -> bool:
    """Stop the platform of a folder, in order, and what a killed supervisor left. Blocks.

    Returns: whether anything ran.
    Raises: SetupError: it did not stop in time even when killed.
    """
    state = PlatformState.load(layout.state)
    supervisor = state.process
    ran = supervisor.is_alive()
    if ran:
        _ask_and_wait(layout, supervisor, observer)
        state = PlatformState.load(layout.state)
    leftovers = remove_leftovers(state)
    if state.pid or leftovers:
        for component in state.components.values():
            component.state, component.pid, component.started = "stopped", 0, 0
        state.phase, state.pid, state.started = "stopped", 0, 0
        state.save(layout.state)
        observer.changed(state)
    layout.endpoints.unlink(missing_ok=True)
    return ran or bool(leftovers)


def _ask_and_wait(layout: PlatformDir, supervisor: ProcessId, observer: Observer) -> None:
    os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while supervisor.is_alive():
        if time.monotonic() > deadline:
            stop_process(supervisor, timeout_s=0)
            break
        observer.changed(PlatformState.load(layout.state))
        time.sleep(_POLL_S)
    observer.changed(PlatformState.load(layout.state))


def platform_state(layout: PlatformDir) -> PlatformState:
    """What runs in a folder now: processes that are gone are shown as such.

    Raises: SetupError: no platform was ever started there.
    """
    if not layout.state.exists():
        raise SetupError(
            f"no platform was ever started in {layout.root} "
            f"(start one with `gazette up --root {layout.root}`)"
        )
    state = PlatformState.load(layout.state)
    if state.pid and not state.process.is_alive():
        state.phase = "dead"
    for component in state.components.values():
        is_gone = component.pid and not component.process.is_alive()
        if is_gone and (state.phase == "dead" or not component.away_since):
            component.state = "dead"
    return state


_MARKS = {"waiting": "·", "ready": "✓", "stopped": "■", "failed": "✗"}


@final
class Board:
    """An `Observer` that shows the state of each component. A context manager.

    Args:
        stream: standard error by default, so that the table of addresses can be piped.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, emoji=False)
        self._live: Live | None = None
        self._shown: dict[str, str] = {}
        self._phase = ""
        self._state = PlatformState()
        self._spinner = Spinner("dots")
        self._since: dict[str, float] = {}
        self.endpoints: Endpoints | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_live()

    def changed(self, state: PlatformState) -> None:
        """Show the news."""
        if state.failure and state.phase != "ready":
            self._end_live()  # the reason comes next, and is all that matters
            return
        if self._stream.isatty() and state.phase in {"starting", "stopping"}:
            self._show_live(state)
            return
        self._end_live()
        self._print_news(state)

    def ready(self, endpoints: Endpoints) -> None:
        """Print the addresses."""
        self._end_live()
        self.endpoints = endpoints
        self._console.print(address_table(endpoints))

    def _show_live(self, state: PlatformState) -> None:
        self._state = state
        if self._live is None:
            self._live = Live(
                console=self._console, refresh_per_second=8, get_renderable=self._live_table
            )
            self._live.start()

    def _live_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, component in self._state.components.items():
            busy = component.state == "starting"
            since = self._since.setdefault(f"{name} {component.state}", time.monotonic())
            mark: RenderableType = self._spinner if busy else _MARKS.get(component.state, "")
            took = f"{component.ready_after_s:.1f} s" if component.ready_after_s else ""
            if busy:
                took = f"{time.monotonic() - since:.0f} s"
            table.add_row(mark, name, component.state, took)
        return table

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print_news(self, state: PlatformState) -> None:
        if state.phase != self._phase and state.phase in {"stopping", "stopped"}:
            print(f"platform: {state.phase}", file=self._stream, flush=True)
        self._phase = state.phase
        for name, component in state.components.items():
            before = self._shown.get(name, "waiting")
            self._shown[name] = component.state
            # What was ready before we began to look, as for a platform to stop, is not news.
            old = component.state == "ready" and before == "waiting" and state.phase != "starting"
            if before == component.state or old:
                continue
            took = f" after {component.ready_after_s:.1f} s" if component.state == "ready" else ""
            print(f"{name}: {component.state}{took}", file=self._stream, flush=True)


def address_table(endpoints: Endpoints) -> Table:
    """The addresses of a platform, one a line."""
    table = Table(title="gazette platform", title_justify="left")
    table.add_column("server")
    table.add_column("address")
    table.add_column("pid", justify="right")
    pids = endpoints.pids
    for name, address in endpoints.addresses().items():
        first = dict.fromkeys(("http", "console", "kafka", "registry"), "broker-1")
        component = first.get(name, name.replace("broker ", "broker-"))
        table.add_row(name, address, str(pids.get(component, "")))
    return table


def main(argv: list[str]) -> int:
    """Run the supervisor that `start_detached` starts: folder ``argv[0]``, options ``argv[1]``, as JSON.

    Returns: the exit code; a failure is the last thing printed, after ``error: ``.
    """
    root, request = argv
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options = PlatformOptions.from_json(json.loads(request))
    try:
        with Board() as board:
            Supervisor(PlatformDir.at(Path(root)), options, board).run()
    except GazetteError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201  its log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
