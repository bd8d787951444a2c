"""Dagster as components: servers that have our code and users' own, the web server, and the daemon.

The web server and the daemon ask the code servers for definitions, and have them run sensors and
launch runs. Left to themselves each would start code servers of its own: two at least, and one more at
each edit of a table spec, since a former one goes on until its last client has gone. Users' files have
servers of their own: what is wrong with one is shown in the UI, and delays nothing else.

``python -m gazette_platform.platform.dagster code|web``, with Dagster's own options, is how the platform runs Dagster's servers. The
*code server* only passes calls on to a process of its own, which has loaded our code. A reload starts another one. If that
process dies, killed for memory say, Dagster's server stays and answers every call with an error until a user asks for a
reload. Ours ends with it, and the supervisor starts one again that has ended.

The *web server* takes mutations from anybody who can reach its port, and so from every page that a browser shows. The
guard is part of its process: one in front of it would leave the server's own address in their reach.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import runpy
import signal
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gazette_platform.errors import SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.ops.process import ProcessId
from gazette_platform.platform.component import HOST, Component, answer_of, answers_tcp

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


_log = logging.getLogger(__name__)

CODE_SERVER = "dagster-code"
WEBSERVER = "dagster"
DAEMON = "dagster-daemon"

_DEFINITIONS = "gazette_platform.definitions"
# Dagster's other formats put terminal colours into log files.
_LOG_FORMAT = "--log-format=json"
_QUERY_TIMEOUT_S = 10.0
# What Dagster keeps in SQLite, below DAGSTER_HOME.
_DATABASES = ("history/runs.db", "history/runs/index.db", "schedules/schedules.db")
_LOCATIONS = """{ workspaceOrError { ... on Workspace { locationEntries {
  name loadStatus locationOrLoadError { ... on PythonError { message } } } } } }"""
_DAEMONS = """{ instance { daemonHealth { allDaemonStatuses {
  required healthy lastHeartbeatTime } } } }"""
# SQLite under DAGSTER_HOME is the default of every storage. A run is a process of 0.3 to 1 GB, so
# two at a time are what a small machine holds; others wait in the queue. So do runs that use a pool, such as that
# of a table that has one writer at a time, or of the checks, which may read whole tables.
_POOLS = """\
  pools:
    default_limit: 1
    granularity: run
"""
_INSTANCE = f"""\
# Written by `gazette up` where there is none; yours to change.
telemetry:
  enabled: false
nux:
  enabled: false
concurrency:
  runs:
    max_concurrent_runs: 2
{_POOLS}\
sensors:
  use_threads: true
  num_workers: 4
schedules:
  use_threads: true
  num_workers: 2
run_monitoring:
  enabled: true
  start_timeout_seconds: 180
retention:
  sensor:
    purge_after_days:
      skipped: 1
      failure: 7
      success: 7
"""
_LOAD_TIMEOUT_S = 180


def code_servers(definitions: Collection[str]) -> dict[str, str]:
    """Names of the components that have code, and the path of each one's file; "": our own.

    Args:
        definitions: paths of users' files; no two have one name.
    """
    return {CODE_SERVER: "", **{f"{CODE_SERVER}-{Path(path).stem}": path for path in definitions}}


def dagster_components(
    home: Path,
    *,
    port: int,
    code_ports: Mapping[str, int],
    definitions: Collection[str] = (),
    environment: Mapping[str, str],
    requires: tuple[str, ...],
    uses: tuple[str, ...],
) -> list[Component]:
    """The code server, the web server and the daemon, over one DAGSTER_HOME.

    Args:
        home: of Dagster.
        port: of the web server.
        code_ports: of the code servers, by the names that `code_servers` gives.
        definitions: paths of users' Python files, each with definitions of Dagster.
        environment: what the definitions need to find the platform.
        requires: what the definitions and sensors call.
        uses: what only runs call.

    Raises: SetupError: Dagster is not installed.
    """
    if importlib.util.find_spec("dagster_webserver") is None:
        raise SetupError(
            "Dagster is not installed: install the extra `gazette-platform[all]`, "
            "or leave it out with --without dagster"
        )
    settings = home / "dagster.yaml"
    # One as former releases wrote it has no owner.
    if not settings.exists() or settings.read_text("utf-8") == _INSTANCE.replace(_POOLS, ""):
        settings.write_text(_INSTANCE, "utf-8")
    all_environment = {
        **environment,
        "DAGSTER_HOME": str(home),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        # Steps talk to brokers, and fork Spark's JVM, which gRPC's handlers of forks can break.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
        # A tick that registers many partitions may outlast the default of 60 s.
        "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS": "180",
    }
    # Two processes cannot make the tables of a new home at the same time, so at the first start the
    # daemon waits for the web server, and that and users' code for ours.
    is_fresh = not all((home / database).exists() for database in _DATABASES)
    asked_at = SystemClock().now().timestamp()
    served = code_servers(definitions)
    workspace = home / "workspace.yaml"
    # JSON is YAML. It is written at each start, since ports may change.
    workspace.write_text(json.dumps(_workspace(served, code_ports), indent=2), "utf-8")
    code = [
        replace(
            _code_server(name, path, port=code_ports[name], home=home, environment=all_environment),
            requires=(CODE_SERVER,) if is_fresh and path else (),
            uses=(*requires, *uses),
        )
        for name, path in served.items()
    ]
    webserver = Component(
        name=WEBSERVER,
        command=_program("web", port, f"--workspace={workspace}"),
        requires=(*requires, *served),
        ports=(port,),
        environment=all_environment,
        folder=home,
        ready=lambda: _definitions_loaded(port),
        stop_timeout_s=20.0,
    )
    daemon = Component(
        name=DAEMON,
        command=(
            sys.executable,
            "-m",
            "dagster._daemon",
            "run",
            f"--workspace={workspace}",
            _LOG_FORMAT,
        ),
        requires=(*requires, *served, *((WEBSERVER,) if is_fresh else ())),
        uses=uses,
        environment=all_environment,
        folder=home,
        ready=lambda: _daemon_beats(port, since=asked_at),
        stop_timeout_s=30.0,
    )
    return [replace(each, restartable=True) for each in (*code, webserver, daemon)]


def _workspace(served: Mapping[str, str], ports: Mapping[str, int]) -> dict[str, Any]:
    """What the web server and the daemon load."""
    return {
        "load_from": [
            {
                "grpc_server": {
                    "host": HOST,
                    "port": ports[name],
                    "location_name": _location_of(path),
                }
            }
            for name, path in served.items()
        ]
    }


def _location_of(path: str) -> str:
    """Dagster's name for what is loaded from a user's file; of our own for ""."""
    return Path(path).name if path else _DEFINITIONS


def _program(name: str, port: int, *options: str) -> tuple[str, ...]:
    """Return the command of one of our programs around Dagster's servers."""
    program = (sys.executable, "-m", "gazette_platform.platform.dagster", name)
    return (*program, f"--host={HOST}", f"--port={port}", *options, _LOG_FORMAT)


def _code_server(
    name: str, path: str, *, port: int, home: Path, environment: Mapping[str, str]
) -> Component:
    what = (
        # Files beside it can be imported.
        (f"--python-file={path}", f"--working-directory={Path(path).parent}")
        if path
        else (f"--module-name={_DEFINITIONS}",)
    )
    return Component(
        name=name,
        command=_program(
            "code",
            port,
            *what,
            f"--location-name={_location_of(path)}",
            f"--startup-timeout={_LOAD_TIMEOUT_S}",
        ),
        ports=(port,),
        environment=environment,
        folder=home,
        ready=partial(answers_tcp, HOST, port),
        start_timeout_s=_LOAD_TIMEOUT_S,
        stop_timeout_s=30.0,
    )


def _graphql(port: int, query: str) -> dict[str, Any] | None:
    request = urllib.request.Request(
        f"http://{HOST}:{port}/graphql",
        data=json.dumps({"query": query}).encode(),
        headers={"content-type": "application/json"},
    )
    answer = answer_of(request, timeout_s=_QUERY_TIMEOUT_S)
    try:
        data = None if answer is None else json.loads(answer).get("data")
    except (ValueError, AttributeError):
        return None
    return data if isinstance(data, dict) else None


def _definitions_loaded(port: int) -> bool:
    data = _graphql(port, _LOCATIONS)
    entries = [] if data is None else data["workspaceOrError"].get("locationEntries", [])
    for entry in entries:
        message = (entry["locationOrLoadError"] or {}).get("message")
        if message and entry["name"] != _DEFINITIONS:
            # A user's file: it is to be mended while the platform runs.
            text = " ".join(message.split())
            _log.warning("Dagster cannot load %s (the UI says more): %s", entry["name"], text)
        elif message:
            raise SetupError(f"Dagster cannot load {entry['name']}: {message.strip()}")
    return bool(entries) and all(entry["loadStatus"] == "LOADED" for entry in entries)


def _daemon_beats(port: int, *, since: float) -> bool:
    # Heartbeats of the last run of the daemon are in the same database.
    data = _graphql(port, _DAEMONS)
    if data is None:
        return False
    daemons = [d for d in data["instance"]["daemonHealth"]["allDaemonStatuses"] if d["required"]]
    return bool(daemons) and all(
        d["healthy"] and (d["lastHeartbeatTime"] or 0) >= since for d in daemons
    )


_POLL_S: Final = 1.0
# A process that is being replaced, or has only just been started, is not one that died.
_MISSED_MAX: Final = 5


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that run; empty where the system does not say."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text("ascii").split())
        except OSError:
            continue  # that thread has ended
    return [child for child in found if ProcessId.of(child).is_alive()]


def _end_with_children() -> None:
    had_any, missed = False, 0
    while missed < _MISSED_MAX:
        time.sleep(_POLL_S)
        if children_of(os.getpid()):
            had_any, missed = True, 0
        else:
            missed += had_any
    sys.stderr.write("the process that has the definitions has ended: so does its server\n")
    os.kill(os.getpid(), signal.SIGTERM)


def serve_code() -> None:
    """Run ``dagster code-server start`` with the arguments of this process."""
    threading.Thread(target=_end_with_children, name="watch-code", daemon=True).start()
    sys.argv[:1] = ["dagster", "code-server", "start"]
    runpy.run_module("dagster", run_name="__main__")


def serve_web() -> None:
    """Run Dagster's own command, which serves with uvicorn."""
    import uvicorn  # noqa: PLC0415  an extra
    from dagster_webserver import cli  # noqa: PLC0415  an extra

    from gazette_platform.platform.web_guard import WebGuard  # noqa: PLC0415  the other needs none

    serve = uvicorn.run

    def serve_guarded(application: Any, **options: Any) -> None:
        serve(WebGuard(application), **options)

    uvicorn.run = serve_guarded  # type: ignore[assignment]
    cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    {"code": serve_code, "web": serve_web}[sys.argv.pop(1)]()
