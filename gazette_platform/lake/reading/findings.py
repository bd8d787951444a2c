"""What audits find: one thing that is wrong with a table, in words and by offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

FindingKind = Literal["gap", "overlap", "count", "fit"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with bytes [begin, end) of a journal."""

    kind: FindingKind
    journal: str
    """Empty if it is about the table as a whole."""
    begin: int
    end: int
    text: str
    is_error: bool = True
    """False: worth a look, but queries give what the journal holds."""
    excluded: str = ""
    """Name of a file that the exact view leaves out; empty if this is not about one."""
    directory: str = ""
    """Where the file that this is about lies, below its store; empty if it is about none."""
    since: int = 0
    """Of an overlap: offset of the first byte of all files that are concerned."""
    is_checked: bool = True
    """False: it says that something could not be looked at, and why; nothing is known to be wrong."""
    unfit: int = 0
    """Records that do not fit the spec, if it is about these: of a fragment, or of the table as a whole."""
    values: tuple[str, ...] = ()
    """The Hive partition of the excluded file; or what a finding ``fit`` depends on."""

    @property
    def path(self) -> str:
        """Path of the excluded file below its store."""
        return f"{self.directory}/{self.excluded}"
