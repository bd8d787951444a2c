"""Queries kept in files: ``sql/trino`` and ``sql/spark``, one statement a file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gazette_platform
from gazette_platform.errors import SetupError

__all__ = ["load_sql", "sql_folder"]


def sql_folder() -> Path:
    """The folder with the SQL files: inside an installed package, else of the repository.

    Raises: SetupError: neither exists.
    """
    package = Path(gazette_platform.__file__).parent
    for folder in (package / "_sql", package.parent / "sql"):
        if folder.is_dir():
            return folder
    raise SetupError(f"the SQL files are missing beside {package}: install the package again")


@cache
def load_sql(name: str) -> str:
    """The statement in file `name`, such as ``trino/busiest_routes.sql``.

    Raises: SetupError: there is no such file.
    """
    path = sql_folder() / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as err:
        raise SetupError(f"cannot read {path}: {err.strerror}; install the package again") from err
