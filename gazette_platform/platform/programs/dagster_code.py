"""Dagster's code server, which ends when what it serves has ended: ``python -m … programs.dagster_code``.

The server itself only passes calls on to a process of its own, which has loaded our code. A reload
starts another one. If that process dies, killed for memory say, the server stays and answers every call
with an error until a user asks for a reload; the supervisor starts one again that has ended.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

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


def main() -> None:
    """Run ``dagster code-server start`` with the arguments of this process."""
    threading.Thread(target=_end_with_children, name="watch-code", daemon=True).start()
    sys.argv[:1] = ["dagster", "code-server", "start"]
    runpy.run_module("dagster", run_name="__main__")


if __name__ == "__main__":
    main()
