"""`gazctl lake quarantine` of a typed table: records that are no rows of it."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gazette_platform.cli.gazctl_lake import OutputFormat
from gazette_platform.cli.gazctl_lake_context import (
    print_values,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import NONE, note, print_table
from gazette_platform.cli.typed_tables import apart
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.tables.quarantine import quarantined_rows

__all__ = ["list_records"]

_CHARACTERS_SHOWN: Final = 80


def list_records(
    table: str,
    tables: Path | None,
    output_format: OutputFormat,
    *,
    journal: str,
    begin: int,
    reason: str,
    limit: int,
) -> bool:
    """List quarantined records of a typed table.

    Returns: whether it is one; nothing is done if it is none.
    Raises: ValidationError: there is no table of that name, a raw one neither.
    """
    settings = settings_of()
    folder = tables_folder(settings, tables)
    _, typed = apart(folder, [table])
    if not typed:
        specs_named(folder, [table])
        return False
    (found,) = typed
    handle = typed_catalog(settings).handle(found.typed.quarantine)
    # One more tells whether there are others.
    rows = quarantined_rows(
        handle, journal=journal, begin=begin, reason=reason, limit=limit + 1
    ).to_pylist()
    if output_format is OutputFormat.TABLE:
        print_table(
            ["Journal", "Begin", "End", "Reason", "Record"], [_cells(row) for row in rows[:limit]]
        )
    else:
        print_values([_values(row) for row in rows[:limit]], output_format)
    if not rows:
        note(f"note: {found.typed.name} has no such record in quarantine")
    if len(rows) > limit:
        note(
            f"note: there are more than these {limit}: --limit shows them, --journal and --begin go on behind them"
        )
    return True


def _cells(row: Mapping[str, Any]) -> list[str]:
    text = _plain(row["raw"].decode("utf-8", "backslashreplace")).rstrip()
    if len(text) > _CHARACTERS_SHOWN:
        text = f"{text[:_CHARACTERS_SHOWN]}…"
    reason = _plain(row["reason"] or NONE)
    return [row["_journal"], str(row["_begin"]), str(row["_end"]), reason, text]


def _plain(text: str) -> str:
    r"""A text on one line of a terminal, whatever it would do to that.

    >>> _plain("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    """As plain values. Bytes that are no text are in base64, under another key."""
    raw: bytes = row["raw"]
    try:
        content = {"raw": raw.decode()}
    except UnicodeDecodeError:
        content = {"raw_base64": base64.b64encode(raw).decode()}
    return {
        "journal": row["_journal"],
        "begin": row["_begin"],
        "end": row["_end"],
        "uuid": None if row["_uuid"] is None else str(row["_uuid"]),
        "reason": row["reason"],
        **content,
    }
