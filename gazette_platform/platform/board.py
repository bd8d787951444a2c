"""Shows how a platform comes up: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self, TextIO, final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from gazette_platform.platform.layout import PlatformState

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import RenderableType

    from gazette_platform.platform.layout import Endpoints

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
        component = {"http": "broker-1"}.get(name, name.replace("broker ", "broker-"))
        table.add_row(name, address, str(pids.get(component, "")))
    return table
