"""Column lineage in a process of its own, which is ended if it takes too long, or too much memory.

A parser that tries alternatives takes twice as long for each level of some functions within each other, so
no limit of the text's size that lets through what people write would bound it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_platform.lake.rollups.statements import Dialect

__all__ = ["column_lineage_apart"]

# It takes one or two, most of which is imports, and more where much else runs.
_TIMEOUT_S: Final = 30.0
# Of addresses. Libraries that are only mapped count, too.
_MEMORY_BYTES_MAX: Final = 4 << 30
_REFUSED: Final = 3


def column_lineage_apart(
    sql: str,
    dialect: Dialect,
    sources: Mapping[str, Sequence[str]],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, list[tuple[str, str]]]:
    """The origins of a query's columns; see `lineage.column_lineage`.

    Raises: LakeError: as there, or it took longer than `timeout_s`, or the process failed.
    """
    asked = json.dumps([sql, dialect, {alias: list(names) for alias, names in sources.items()}])
    # Without the working directory among the places that modules are looked for in.
    command = [sys.executable, "-P", "-m", __name__]
    try:
        ended = subprocess.run(  # noqa: S603  ourselves
            command,
            input=asked,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise LakeError(f"the query was not followed within {timeout_s:g} s") from err
    if ended.returncode:
        told = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        why = told[0] if ended.returncode == _REFUSED else f"the process failed: {told[0]}"
        raise LakeError(why)
    found: dict[str, list[list[str]]] = json.loads(ended.stdout)
    return {name: [(alias, column) for alias, column in of] for name, of in found.items()}


def _main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    # Slow to import, and the process that asks has no need of it.
    from gazette_platform.lake.rollups.lineage import column_lineage  # noqa: PLC0415

    sql, dialect, sources = json.loads(sys.stdin.read())
    try:
        found = column_lineage(sql, dialect, sources)
    except LakeError as err:
        sys.stderr.write(f"{err}\n")
        return _REFUSED
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
