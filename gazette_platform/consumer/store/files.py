"""Recognizes stores by the names of their files, so that none begins with empty state beside another's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gazette_platform.errors import DataError

__all__ = ["check_files"]

_GAZETTES: Final = "SQLite store of Gazette's Go consumers"

_FILES: Final = {
    "SQLiteStore": re.compile(r"primary\.db.*"),
    "JSONFileStore": re.compile(r"(state|next)\.json"),
    "RocksDBStore": re.compile(
        r"(CURRENT|MANIFEST-\d+)(\.next)?|IDENTITY|LOCK|LOG(\.old\..*)?|OPTIONS-.*|\d+\.(sst|blob|log|dbtmp)"
    ),
    _GAZETTES: re.compile(r"pageDB"),
}

_NAMED_MAX: Final = 4


def check_files(directory: str | Path, store: str) -> None:
    """Check that what a recovery log gave is of a kind of store, before that opens it.

    An application may record files of its own beside those of its store.

    Raises: DataError: another store wrote the files. The shard would consume and publish everything again.
        OSError: the directory cannot be read.
    """
    names = sorted(each.name for each in Path(directory).iterdir() if each.name[0] != ".")
    foreign = [name for name in names if not _FILES[store].fullmatch(name)]
    looks = [kind for kind, files in _FILES.items() if any(map(files.fullmatch, foreign))]
    if not foreign or (not looks and len(foreign) < len(names)):
        return
    named = ", ".join(foreign[:_NAMED_MAX]) + (", …" if len(foreign) > _NAMED_MAX else "")
    told = f"They look like those of a {' and a '.join(looks)}. " if looks else ""
    raise DataError(
        f"{directory} has files that a {store} does not write ({named}). {told}With a {store} the shard would "
        "begin with empty state, and publish everything again. Open the store that wrote them, or give the "
        "shard another recovery_log_prefix and hint_prefix to restart it"
    )
