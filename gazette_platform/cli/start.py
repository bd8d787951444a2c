"""Where the programs start: their modules are imported under a watch for Ctrl-C, which may come early."""

import sys
from importlib import import_module

_EXIT_INTERRUPTED = 130  # as `cli.program` has it, which takes longer to import


def gazctl() -> int:
    """Run `gazctl`. Returns: its exit code."""
    return _run("gazctl")


def gazette() -> int:
    """Run `gazette`. Returns: its exit code."""
    return _run("gazette")


def _run(program: str) -> int:
    try:
        code: int = import_module(f"gazette_platform.cli.{program}").main()
    except KeyboardInterrupt:
        print(f"{program}: error: interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED
    return code
