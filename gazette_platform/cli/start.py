"""Where the programs start and end: their modules are imported under a watch for Ctrl-C, which may come early."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

_EXIT_INTERRUPTED = 130  # as `cli.program` has it, which takes longer to import


def gazctl() -> NoReturn:
    """Run `gazctl`, and end with its exit code."""
    _run("gazctl")


def gazette() -> NoReturn:
    """Run `gazette`, and end with its exit code."""
    _run("gazette")


def leave(code: int) -> NoReturn:
    """End this process with `code`, as `sys.exit` does, but without taking the interpreter down.

    Threads are joined, what was registered with `atexit` runs, and output is written. But a thread of a native
    library, such as obstore's pool, that asks for an interpreter which is being taken down ends the process with
    SIGABRT. So one command in a hundred that had done its work in an object store seemed to have failed.
    """
    # What the interpreter does first, and second.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its reader went away, or it is closed
            stream.flush()
    os._exit(code)


def _run(program: str) -> NoReturn:
    try:
        code: int = import_module(f"gazette_platform.cli.{program}").main()
    except KeyboardInterrupt:
        print(f"{program}: error: interrupted", file=sys.stderr)
        code = _EXIT_INTERRUPTED
    leave(code)
