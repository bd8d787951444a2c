"""What a command of `gazctl` costs, from its start to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import medians
from gazette_platform.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.bench import Bench
    from benchmarks.figures import Figures

__all__ = ["measure_cli"]

_RUNS = 5


async def measure_cli(bench: Bench) -> AsyncGenerator[tuple[str, Figures], None]:
    """Yields the CPU seconds of `gazctl journals list`; most of them go to imports."""
    address = bench.broker.address
    runs = [await asyncio.to_thread(_list_cpu_s, address) for _ in range(_RUNS + 1)]
    figures = medians([{"gazctl_list_cpu_s": cpu_s} for cpu_s in runs[1:]])  # the first warms up
    yield "gazctl journals list", figures


def _list_cpu_s(address: str) -> float:
    """Raises: SetupError: the command failed."""
    command = [str(Path(sys.executable).with_name("gazctl")), "journals", "list"]
    # Else modules are compiled each time, which is not what its users see.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [*command, "--broker.address", address],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SetupError(f"{' '.join(command)} ended with {process.returncode}: {said}")
    return usage.ru_utime + usage.ru_stime
