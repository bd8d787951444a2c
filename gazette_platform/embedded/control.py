"""Operations on the platform of a folder from outside: start detached, stop, look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from gazette_platform.embedded.endpoints import Endpoints, PlatformState
from gazette_platform.embedded.process import ProcessId, log_tail, private_files, stop_process
from gazette_platform.embedded.supervisor import ComponentFailed, remove_leftovers
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from gazette_platform.embedded.layout import PlatformDir
    from gazette_platform.embedded.platform import PlatformOptions
    from gazette_platform.embedded.supervisor import Observer

__all__ = ["platform_state", "start_detached", "stop_platform"]

_POLL_S = 0.1
# Longer than all components need one after the other.
_STOP_TIMEOUT_S = 180.0
_BIRTH_TIMEOUT_S = 30.0


def start_detached(layout: PlatformDir, options: PlatformOptions, observer: Observer) -> Endpoints:
    """Start a supervisor in a session of its own, and wait until it is ready. Blocks.

    An interrupt of the caller while it waits stops the platform again.

    Raises: SetupError: it failed; says why.
    """
    request = asdict(options) | {"without": sorted(options.without), "ports": dict(options.ports)}
    log = layout.logs / "supervisor.log"
    with private_files():
        layout.make()
        output = log.open("ab")
    with output:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gazette_platform.embedded.supervisor_main",
                str(layout.root),
                json.dumps(request),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    supervisor = ProcessId.of(child.pid)
    try:
        return _follow(layout, child, observer)
    except KeyboardInterrupt:
        stop_process(supervisor, timeout_s=_STOP_TIMEOUT_S)
        raise


def _follow(layout: PlatformDir, child: subprocess.Popen[bytes], observer: Observer) -> Endpoints:
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
    words = log_tail(log, lines=40).rpartition("error: ")[2].strip()
    state = PlatformState.load(layout.state)
    if state.phase == "failed" and state.failure == words:
        observer.changed(state)
        if state.failed_component:
            name = state.failed_component
            what = words.removeprefix(name).partition(" (its log is ")[0].strip()
            raise ComponentFailed(name, what, layout.logs / f"{name}.log")
    raise SetupError(words or f"the supervisor ended without a word: see {log}")


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
