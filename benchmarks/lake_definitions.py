"""How long a new process takes to load Dagster's definitions of a hundred tables, imports included."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from benchmarks.figures import Figures
    from gazette_platform.ops.clock import Clock

__all__ = ["measure_definitions"]

_TABLES = 100
_COLUMNS = 30
_ROUNDS = 5
_LOAD = (
    "from gazette_platform.definitions import defs; "
    "print(len(defs.load_fn().get_repository_def().asset_graph.get_all_asset_keys()))"
)


def measure_definitions(clock: Clock) -> Figures:
    """The best of some processes that load definitions of a hundred tables of thirty columns.

    Raises: LakeError: assets are missing.
    """
    columns = "".join(f"  - {{name: c{n}, type: bigint, comment: c}}\n" for n in range(_COLUMNS))
    with tempfile.TemporaryDirectory(prefix="bench-lake-definitions-") as folder:
        for n in range(_TABLES):
            (Path(folder) / f"t{n}.yaml").write_text(
                f"name: s.t{n}\nselector: name:prefix=t{n}/\nformat: json\ncolumns:\n{columns}"
            )
        best_s = min(_load(folder, clock) for _ in range(_ROUNDS))
    return {f"lake_definitions_{_TABLES}_tables_s": best_s}


def _load(tables: str, clock: Clock) -> float:
    begun = clock.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _LOAD],
        env={**os.environ, "GAZETTE_TABLES": tables},
        check=True,
        capture_output=True,
        text=True,
    )
    if int(done.stdout) < 2 * _TABLES:
        raise LakeError(f"only {done.stdout.strip()} assets were loaded")
    return clock.monotonic() - begun
