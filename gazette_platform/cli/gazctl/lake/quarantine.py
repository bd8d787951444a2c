"""`gazctl lake quarantine`: rejected records of typed tables."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gazette_platform.cli.gazctl.lake.commands import OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    print_values,
    settings_of,
    tables_folder,
    typed_named,
)
from gazette_platform.cli.output import NONE, note, print_table
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.tables.quarantine import quarantined_rows

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
) -> None:
    """List quarantined records of a typed table.

    Raises: ValidationError: there is no typed table of that name.
    """
    settings = settings_of()
    (found,), _ = typed_named(tables_folder(settings, tables), [table])
    handle = typed_catalog(settings).handle(found.typed.quarantine)
    # One more shows whether there are others.
    rows = quarantined_rows(
        handle, journal=journal, begin=begin, reason=reason, limit=limit + 1
    ).to_pylist()
    if output_format == "table":
        print_table(
            ["Journal", "Begin", "End", "Reason", "Record"], [_cells(row) for row in rows[:limit]]
        )
    else:
        print_values([_record_values(row) for row in rows[:limit]], output_format)
    if not rows:
        note(f"note: {found.typed.name} has no such record in quarantine")
    if len(rows) > limit:
        note(
            f"note: there are more than these {limit}: --limit shows them, --journal and --begin continue after them"
        )


def _cells(row: Mapping[str, Any]) -> list[str]:
    text = _on_one_line(row["raw"].decode("utf-8", "backslashreplace")).rstrip()
    if len(text) > _CHARACTERS_SHOWN:
        text = f"{text[:_CHARACTERS_SHOWN]}…"
    reason = _on_one_line(row["reason"] or NONE)
    return [row["_journal"], str(row["_begin"]), str(row["_end"]), reason, text]


def _on_one_line(text: str) -> str:
    r"""A text on one line of a terminal, whatever it would do to that.

    >>> _on_one_line("a\x1b[2J\n")
    'a\\x1b[2J\\n'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _record_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """As plain values. Bytes that are not text are in base64, under another key."""
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
