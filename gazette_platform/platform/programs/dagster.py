"""Dagster's servers as the platform runs them: ``python -m … programs.dagster code|web`` with Dagster's own options.

The *code server* only passes calls on to a process of its own, which has loaded our code. A reload starts another one. If
that process dies, killed for memory say, Dagster's server stays and answers every call with an error until a user asks for a
reload. Ours ends with it, and the supervisor starts one again that has ended.

The *web server* takes mutations from anybody who can reach its port, and so from every page that a browser shows. The
guard is part of its process: one in front of it would leave the server's own address in their reach.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from gazette_platform.ops.process import ProcessId

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

    from gazette_platform.platform.programs.guard import WebGuard  # noqa: PLC0415  the other needs none

    serve = uvicorn.run

    def serve_guarded(application: Any, **options: Any) -> None:
        serve(WebGuard(application), **options)

    uvicorn.run = serve_guarded  # type: ignore[assignment]
    cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    {"code": serve_code, "web": serve_web}[sys.argv.pop(1)]()
