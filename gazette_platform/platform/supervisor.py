"""One process that starts the components of a platform, watches them, and stops them.

It owns a folder: a lock keeps a second one away, ``supervisor.json`` shows others which processes
belong to it, and a folder that was left by a killed supervisor is cleaned up before it is used.

    waiting ──requirements ready──▶ starting ──ready()──▶ ready ──stop──▶ stopped
                                       └────── exits or takes too long ──▶ failed: all are stopped

That holds until all have been ready. From then on a component that ends, or does not become ready, is
started again after a growing pause, without end, and all others run on: whoever appends needs no metastore,
and a broker whose etcd is out of space comes back once it was repaired.

A later ``gazette up`` may ask for more components: it writes ``request.json`` and sends SIGUSR1. The new ones are started beside
those that run; if one of them fails, the new ones are stopped, and the platform is as it was.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, final

from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.ops import platforms
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.faults import RESTART_STEPS_S, Restarts
from gazette_platform.ops.process import ProcessId
from gazette_platform.platform.component import (
    HOST,
    Child,
    choose_ports,
    is_free,
    private_files,
    stop_process,
)
from gazette_platform.platform.layout import ComponentState, PlatformState
from gazette_platform.platform.platform import (
    PlatformOptions,
    components_of,
    endpoints_of,
    shell_environment,
    upgraded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from gazette_platform.platform.component import Component
    from gazette_platform.platform.layout import Endpoints, PlatformDir

_log = logging.getLogger(__name__)

_POLL_S = 0.1
_PROBES_MAX = 8
_LEFTOVER_TIMEOUT_S = 20.0

_THEN = "; then it "


class ComponentFailed(SetupError):
    """A component died, or was not ready in time.

    Attributes:
        component: its name.
        log: path of its log.
    """

    def __init__(self, component: str, what: str, log: Path) -> None:
        self.component = component
        self.log = log
        super().__init__(f"{component} {what} (its log is {log})")


class Observer(Protocol):
    """Receives how the platform comes up."""

    def changed(self, state: PlatformState) -> None:
        """The phase, or the state of a component, changed."""
        ...

    def ready(self, endpoints: Endpoints) -> None:
        """All components are ready."""
        ...


@final
class Supervisor:
    """Runs one platform in the calling process; see the module.

    Args:
        layout: its folder.
        options: what is part of it.
        observer: called with every change.
        build: makes the components from layout, options and ports.
    """

    def __init__(
        self,
        layout: PlatformDir,
        options: PlatformOptions,
        observer: Observer,
        *,
        build: Callable[
            [PlatformDir, PlatformOptions, dict[str, int]], Sequence[Component]
        ] = components_of,
    ) -> None:
        self._layout = layout
        self._options = options
        self._observer = observer
        self._build = build
        self._state = PlatformState()
        self._components: list[Component] = []
        self._children: dict[str, Child] = {}
        self._started_at: dict[str, float] = {}
        self._probes: dict[str, Future[bool]] = {}
        self._restarts: dict[str, Restarts] = {}
        self._restart_at: dict[str, float] = {}
        self._stop_asked = False
        self._more_asked = False
        self._adding: frozenset[str] = frozenset()
        self._outdated: dict[str, Component] = {}
        self._restarted: frozenset[str] = frozenset()
        self._then = options
        self._request = ""

    def run(self) -> None:
        """Start everything, and come back when it was stopped by SIGTERM, SIGINT or `stop`.

        Must be called from the main thread, which children are tied to.

        Raises: SetupError: the folder is in use or not writable, a tool is missing, a component
            did not start or died. Everything that was started is stopped by then.
        """
        with private_files(), self._locked(), self._signals():
            try:
                self._prepare()
                self._start_all()
                if not self._stop_asked:
                    self._watch()
            except SetupError as error:
                self._state.failure = str(error)
                if isinstance(error, ComponentFailed):
                    self._state.failed_component = error.component
                raise
            finally:
                self._stop_all()

    def stop(self) -> None:
        """Ask `run` to stop everything and return. Safe from a signal handler or another thread."""
        self._stop_asked = True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._layout.make()
        with self._layout.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                pid = PlatformState.load(self._layout.state).pid
                raise SetupError(
                    f"a platform already runs in {self._layout.root} (supervisor pid {pid}): see "
                    f"`gazette status --root {self._layout.root}`, or stop it with `gazette down`"
                ) from error
            yield

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def ask(_signum: int, _frame: FrameType | None) -> None:
            self.stop()

        def ask_for_more(_signum: int, _frame: FrameType | None) -> None:
            self._more_asked = True

        former = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        former[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, ask_for_more)
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _prepare(self) -> None:
        former = PlatformState.load(self._layout.state)
        remove_leftovers(former)
        self._layout.endpoints.unlink(missing_ok=True)
        me = ProcessId.of(os.getpid())
        self._state = PlatformState(
            phase="installing", pid=me.pid, started=me.started, ports=dict(former.ports)
        )
        chosen = choose_ports(
            self._options.port_names(),
            fixed=self._options.ports,
            former=former.ports,
            kept=self._options.kept_ports,
            preferred=self._options.known_ports,
        )
        # Ports of components left out this time are kept for the next.
        self._state.ports.update(chosen)
        platforms.publish(self._layout.root, {})
        self._changed()
        self._components = list(self._build(self._layout, self._options, dict(self._state.ports)))
        self._state.components = {c.name: ComponentState() for c in self._components}
        self._state.phase = "starting"
        self._changed()

    def _changed(self) -> None:
        with self._tolerated():
            self._state.save(self._layout.state)
        self._observer.changed(self._state)

    @contextmanager
    def _tolerated(self) -> Iterator[None]:
        """Let nothing end that has been ready because a file cannot be written: the disk may be full for a while."""
        try:
            yield
        except OSError as error:
            if self._state.phase in ("installing", "starting"):
                raise
            _log.warning("cannot write the state of the platform: %s", error)

    def _start_all(self) -> None:
        with ThreadPoolExecutor(_PROBES_MAX, thread_name_prefix="probe") as pool:
            while not self._stop_asked:
                for component in self._components:
                    self._advance(component, pool)
                if all(s.state == "ready" for s in self._state.components.values()):
                    return
                time.sleep(_POLL_S)

    def _advance(self, component: Component, pool: ThreadPoolExecutor) -> None:
        state = self._state.components[component.name]
        if state.state == "waiting":
            if all(self._state.components[name].state == "ready" for name in component.requires):
                self._start(component, state)
            return
        how = self._how_it_failed(component, pool)
        if how:
            state.state = "failed"
            raise ComponentFailed(component.name, how, self._log_of(component))

    def _how_it_failed(self, component: Component, pool: ThreadPoolExecutor) -> str:
        """Say how a component that was started has ended, or that it takes too long; "": neither.

        Its process is looked at once: one that ends a moment later is found at the next turn.
        """
        child = self._children[component.name]
        if child.exit_code() is not None:
            return child.how_it_ended()
        if not self._look_whether_ready(component, pool):
            return (
                f"was not ready within {component.start_timeout_s:.0f} s; if the machine was busy, run `gazette up` "
                "again"
            )
        return ""

    def _look_whether_ready(self, component: Component, pool: ThreadPoolExecutor) -> bool:
        """Ask a component that is starting whether it is ready. Returns: False: it took too long."""
        state = self._state.components[component.name]
        if state.state != "starting":
            return True
        probe = self._probes.get(component.name)
        waited_s = time.monotonic() - self._started_at[component.name]
        if probe is not None and probe.done():
            self._probes.pop(component.name)
            if probe.result():
                state.state = "ready"
                state.ready_after_s = round(waited_s, 1)
                state.away_since, state.why = 0.0, ""
                self._changed()
                return True
            probe = None
        if probe is None:
            self._probes[component.name] = pool.submit(component.ready)
        return waited_s <= component.start_timeout_s

    def _start(self, component: Component, state: ComponentState) -> None:
        for port in component.ports:
            if not is_free(port):
                raise SetupError(
                    f"port {port} of {HOST}, chosen for {component.name}, was taken meanwhile: "
                    "start again, and another will be chosen"
                )
        child = Child(
            component.name,
            component.command,
            log=self._log_of(component),
            environment={**os.environ, **component.environment},
            folder=component.folder,
        )
        self._children[component.name] = child
        self._started_at[component.name] = time.monotonic()
        state.state = "starting"
        state.pid, state.started = child.id.pid, child.id.started
        self._changed()

    def _log_of(self, component: Component) -> Path:
        return self._layout.logs / f"{component.name}.log"

    def _watch(self) -> None:
        self._state.phase = "ready"
        endpoints = self._save_endpoints()
        self._changed()
        self._observer.ready(endpoints)
        with ThreadPoolExecutor(_PROBES_MAX, thread_name_prefix="probe") as pool:
            while not self._stop_asked:
                if self._more_asked and not self._request:
                    self._more_asked = False
                    self._add_what_is_asked()
                for component in self._components:
                    if component.name not in self._adding:
                        self._keep_up(component, pool)
                self._go_on_adding(pool)
                time.sleep(_POLL_S)

    def _add_what_is_asked(self) -> None:
        """Read the request of a later `gazette up`, and begin to add what it asks for, or refuse it."""
        try:
            raw = json.loads(self._layout.request.read_text("utf-8"))
            self._request = str(raw["id"])
            self._then = upgraded(self._options, PlatformOptions.from_json(raw["options"]))
            built = self._build_more()
        except (GazetteError, OSError, ValueError, KeyError) as error:
            self._answer(f"{error}" or repr(error))
            return
        known = self._state.components
        self._adding = frozenset(c.name for c in built) - known.keys()
        # They serve with their former options until what is added is ready: it may fail.
        self._outdated = {c.name: c for c in outdated(self._components, built)}
        running = {c.name: c for c in self._components}
        self._components = [running[c.name] if c.name in self._outdated else c for c in built]
        self._state.components = {c.name: known.get(c.name, ComponentState()) for c in built}
        self._changed()

    def _build_more(self) -> list[Component]:
        """Build the components of a platform that is to have more. Raises: SetupError: some that run would have to change."""
        had, state = self._options.port_names(), self._state
        wrong = [n for n in had if self._then.ports.get(n, state.ports[n]) != state.ports[n]]
        if wrong:
            raise _needs_restart([f"the port of {name}" for name in wrong])
        names = [name for name in self._then.port_names() if name not in had]
        fixed = {name: port for name, port in self._then.ports.items() if name in names}
        state.ports.update(choose_ports(names, fixed=fixed, former=state.ports))
        built = list(self._build(self._layout, self._then, dict(state.ports)))
        if fixed_ones := [c.name for c in outdated(self._components, built) if not c.restartable]:
            raise _needs_restart(fixed_ones)
        return built

    def _go_on_adding(self, pool: ThreadPoolExecutor) -> None:
        new = [component for component in self._components if component.name in self._adding]
        try:
            for component in new:
                self._advance(component, pool)
        except SetupError as error:
            if isinstance(error, ComponentFailed):
                self._state.failed_component = error.component
            self._stop(self._adding)
            self._components = [c for c in self._components if c.name not in self._adding]
            for name in self._adding:
                del self._state.components[name]
            self._adding, self._outdated = frozenset(), {}
            self._answer(str(error))
            return
        failed = [
            f"{name} {why}" for name in self._restarted if (why := self._state.components[name].why)
        ]
        if failed:
            self._restarted = frozenset()
            self._answer(
                f"{'; '.join(sorted(failed))}: the platform keeps starting it, see `gazette status`"
            )
        if not self._request or not self._are_ready(self._adding | self._restarted):
            return
        self._adding, self._options = frozenset(), self._then
        self._save_endpoints()
        if self._outdated:
            self._restart_outdated()
        else:
            self._restarted = frozenset()
            self._answer("")

    def _are_ready(self, names: Iterable[str]) -> bool:
        return all(self._state.components[name].state == "ready" for name in names)

    def _restart_outdated(self) -> None:
        """Stop what runs with former options, in order; `_keep_up` starts it with those of now."""
        self._components = [self._outdated.get(c.name, c) for c in self._components]
        self._restarted, self._outdated = frozenset(self._outdated), {}
        self._stop(self._restarted)
        for name in self._restarted:
            self._state.components[name].state = "waiting"
            self._restart_at[name] = 0.0
            self._probes.pop(name, None)
        self._changed()

    def _answer(self, refusal: str) -> None:
        self._state.answered, self._state.refusal = self._request, refusal
        self._request = ""
        self._changed()

    def _save_endpoints(self) -> Endpoints:
        pids = {name: child.id.pid for name, child in self._children.items()}
        found = endpoints_of(self._options, self._state.ports)
        endpoints = replace(found, pids={"supervisor": os.getpid(), **pids})
        with self._tolerated():
            endpoints.save(self._layout.endpoints)
            platforms.publish(self._layout.root, shell_environment(self._layout, endpoints))
        return endpoints

    def _keep_up(self, component: Component, pool: ThreadPoolExecutor) -> None:
        """Start a component again that has ended, or does not become ready, when it is time."""
        name = component.name
        if name not in self._restart_at:
            try:
                how = self._how_it_failed(component, pool)
            except Exception as error:  # noqa: BLE001  whatever its probe raises, all others run on
                how = f"cannot be asked whether it is ready: {error}"
            if how:
                self._plan_restart(component, how)
        elif time.monotonic() >= self._restart_at[name] and (
            # Its child is gone only if it was stopped to get other options, as others before it were.
            name in self._children or self._are_ready(component.requires)
        ):
            del self._restart_at[name]
            if name in self._children:
                self._children[name].end_group()
            self._probes.pop(name, None)
            try:
                self._start(component, self._state.components[name])
            except SetupError as error:  # its port is taken, or its program is gone: that may pass
                self._plan_restart(component, f"did not start: {error}")
            else:
                self._save_endpoints()

    def _plan_restart(self, component: Component, how: str) -> None:
        name, now = component.name, time.monotonic()
        restarts = self._restarts.setdefault(name, Restarts(RESTART_STEPS_S))
        delay_s = restarts.next_delay_s(now - self._started_at[name])
        self._restart_at[name] = now + delay_s
        state = self._state.components[name]
        first = state.why.partition(_THEN)[0]
        state.state, state.why = "starting", f"{first}{_THEN}{how}" if first else how
        state.away_since = state.away_since or SystemClock.unix_s()
        self._changed()
        _log.warning(
            "%s %s: starting it again in %g s, for the %d. time (its log is %s)",
            name,
            how,
            delay_s,
            restarts.count,
            self._log_of(component),
        )

    def _stop_all(self) -> None:
        failure = self._state.failure
        self._state.phase = "stopping"
        if self._state.pid:
            self._changed()
        with self._tolerated():
            self._layout.endpoints.unlink(missing_ok=True)
        self._stop(self._state.components)
        self._state.phase = "failed" if failure else "stopped"
        if self._state.pid:
            self._state.pid = self._state.started = 0
            self._changed()
            platforms.withdraw(self._layout.root)

    def _stop(self, names: Collection[str]) -> None:
        """Stop components in order, and wait until they are gone."""
        stopping: dict[str, float] = {}
        while any(name in self._children for name in names):
            self._ask_unneeded(names, stopping)
            for component in self._components:
                self._reap(component, stopping)
            time.sleep(_POLL_S)

    def _ask_unneeded(self, names: Collection[str], stopping: dict[str, float]) -> None:
        # A component goes when no other that needs it is left: the reverse of how they came.
        needed = {
            name
            for c in self._components
            if c.name in self._children
            for name in (*c.requires, *c.uses)
        }
        for component in self._components:
            name = component.name
            is_due = name in names and name in self._children and name not in stopping
            if is_due and name not in needed:
                stopping[name] = time.monotonic() + component.stop_timeout_s
                self._children[name].ask_to_stop()

    def _reap(self, component: Component, stopping: dict[str, float]) -> None:
        name = component.name
        child = self._children.get(name)
        if child is None or name not in stopping:
            return
        late = time.monotonic() > stopping[name]
        if child.exit_code() is None and not late:
            return
        if late:
            _log.warning("%s did not stop within %s s: killed", name, component.stop_timeout_s)
        child.end_group()
        del self._children[name]
        state = self._state.components[name]
        state.pid = state.started = 0
        if state.state != "failed":
            state.state = "stopped"
        self._changed()


def outdated(running: Iterable[Component], built: Iterable[Component]) -> list[Component]:
    """Return the components of `running` that other options change, as they would be; one without a successor as it is."""
    after = {component.name: component for component in built}
    pairs = [(component, after.get(component.name)) for component in running]
    return [
        then or replace(now, restartable=False)
        for now, then in pairs
        if then is None
        or (now.command, dict(now.environment), now.folder)
        != (then.command, dict(then.environment), then.folder)
    ]


def _needs_restart(what: Sequence[str]) -> SetupError:
    return SetupError(
        f"these options would change {', '.join(what)}, which cannot be changed while the platform "
        "runs: stop it with `gazette down`, then start it with them"
    )


def remove_leftovers(former: PlatformState) -> list[str]:
    """Stop the processes of a platform whose supervisor is gone, last started first.

    Returns: the names of those that still ran.
    """
    found = []
    for name, state in reversed(former.components.items()):
        if state.pid and state.process.is_alive():
            found.append(name)
        if state.pid:
            stop_process(state.process, timeout_s=_LEFTOVER_TIMEOUT_S)
    return found
