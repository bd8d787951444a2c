"""Typed tables that are put right: `gazctl lake backfill`, `reprocess`, `quarantine`, and `run --accept-rollback`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import typer
from pyiceberg.exceptions import CommitFailedException
from rich.filesize import decimal

from gazette_platform.cli.bars import StepLine
from gazette_platform.cli.gazctl.lake.commands import Engine, OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    brokers,
    print_values,
    settings_of,
    tables_folder,
    typed_named,
    unless_fenced,
)
from gazette_platform.cli.gazctl.lake.run import workers_of
from gazette_platform.cli.output import NONE, confirmed, note, print_table, print_text, printable
from gazette_platform.cli.program import EXIT_FAILED
from gazette_platform.errors import TableFenced, TypedRolledBack, ValidationError
from gazette_platform.lake.iceberg.catalog import TypedCatalog, typed_catalog
from gazette_platform.lake.typed.runs.amending import Quarantined, Reprocessor, require_no_key
from gazette_platform.lake.typed.runs.backfilling import (
    BackfillReport,
    BackfillRunner,
    Wanted,
    fragments_of,
)
from gazette_platform.lake.typed.runs.journals import journals_now
from gazette_platform.lake.typed.status import progress_of_table
from gazette_platform.lake.typed.tables.progress import (
    Reread,
    accept_rollback,
    look_at_rollback,
    reread,
)
from gazette_platform.lake.typed.tables.quarantine import quarantined_rows
from gazette_platform.ops.clock import SystemClock


def backfill(
    ctx: typer.Context,
    table: str,
    tables: Path | None,
    output_format: OutputFormat,
    *,
    partitions: list[str],
    journal: str,
    begin: int,
    end: int | None,
    engine: Engine | None,
) -> None:
    """Make rows again, and exit with 1 if some of them cannot be made."""
    settings = settings_of()
    (found,), _ = typed_named(tables_folder(settings, tables), [table])
    require_no_key(found.typed)
    is_shown = output_format == "table" and sys.stderr.isatty()
    with (
        StepLine(is_shown=is_shown) as line,
        brokers(ctx, settings, reads_files=True) as client,
    ):
        catalog = typed_catalog(settings)
        wanted: Wanted
        if journal:
            wanted = {journal: [(begin, _end(catalog, found, journal, begin, end))]}
        else:
            wanted = fragments_of(found.raw, _values(partitions))
        with workers_of(settings, engine, line) as hands:
            runner = BackfillRunner(catalog, hands.workers, client, log=line.step)
            report = unless_fenced(lambda: runner.run(found.typed, found.raw, wanted))
    for hole in report.holes:
        note(
            f"{report.table}: no broker or store holds bytes {hole.begin} to {hole.end} of {hole.journal} ({hole.kind}), so rows of "
            "these stay as they are"
        )
    for name, first, last in report.behind:
        note(f"{report.table}: no run has read bytes {first} to {last} of {name} yet")
    if output_format == "table":
        print_text(printable(_line(report, found.raw.name)))
    else:
        print_values([_plain(report)], output_format)
    if report.holes:
        raise typer.Exit(EXIT_FAILED)


def _end(
    catalog: TypedCatalog, table: TypedTable, journal: str, begin: int, end: int | None
) -> int:
    """Where offsets of a journal end: as was said, or else where the table has come to.

    Raises: ValidationError: there are none. It is seen here, because Spark takes its time to start.
    """
    progress = progress_of_table(catalog, table.typed)
    state = progress.state.journals.get(journal) if progress is not None else None
    if state is None:
        raise ValidationError(f"{table.typed.name} has no rows of {journal}", path="--journal")
    found = state.offset if end is None else end
    if begin >= found:
        raise ValidationError(
            f"there is nothing from {begin} to {found}: the table has come to {state.offset} of {journal}",
            path="--from",
        )
    return found


def _values(texts: list[str]) -> dict[str, str]:
    """Values by partition column. Several may be in one text, as paths have them."""
    found: dict[str, str] = {}
    for text in (part for each in texts for part in each.strip("/").split("/")):
        column, equals, value = text.partition("=")
        if not column or not equals or not value:
            raise ValidationError(
                f"{text!r} is not COLUMN=VALUE, such as `date=2026-01-02`", path="--partition"
            )
        if found.setdefault(column.lower(), value) != value:
            raise ValidationError(
                f"{column} has two values: a Hive partition has one of each column",
                path="--partition",
            )
    return found


def _line(report: BackfillReport, raw: str) -> str:
    if not report.ranges:
        return (
            f"{report.table}: no rows are made: no stored fragment is in such a Hive partition (`gazctl lake "
            f"describe {raw}` lists them)"
        )
    count = sum(map(len, report.ranges.values()))
    return (
        f"{report.table}: {report.typed} row(s) and {report.quarantined} quarantined in place of {report.typed_before} "
        f"and {report.quarantined_before}; {decimal(report.read_bytes)}, {count} range(s) of {len(report.ranges)} "
        f"journal(s), in {report.seconds:.1f} s"
    )


def _plain(report: BackfillReport) -> dict[str, Any]:
    return {
        "table": report.table,
        "run": report.run or None,
        "snapshot_id": report.snapshot_id,
        "rows": report.typed,
        "quarantined": report.quarantined,
        "rows_before": report.typed_before,
        "quarantined_before": report.quarantined_before,
        "files": report.files,
        "read_bytes": report.read_bytes,
        "seconds": round(report.seconds, 3),
        "ranges": {name: [list(each) for each in of_it] for name, of_it in report.ranges.items()},
        "holes": [
            {"journal": h.journal, "begin": h.begin, "end": h.end, "kind": str(h.kind)}
            for h in report.holes
        ],
        "behind": [{"journal": j, "begin": b, "end": e} for j, b, e in report.behind],
    }


def reprocess(
    table: str,
    tables: Path | None,
    output_format: OutputFormat,
    *,
    journal: str,
    begin: int,
    end: int | None,
    reason: str,
) -> None:
    """Make rows of quarantined records that fit now, and report how many."""
    settings = settings_of()
    (found,), _ = typed_named(tables_folder(settings, tables), [table])
    meant = Quarantined(journal=journal, begin=begin, end=end, reason=reason)
    is_shown = output_format == "table" and sys.stderr.isatty()
    with StepLine(is_shown=is_shown) as line:
        work = Reprocessor(typed_catalog(settings), log=line.step)
        reports = [unless_fenced(lambda: work.run(found.typed, meant))]
        # Each time a million of them change, so there is an end.
        while not reports[-1].is_whole:
            reports.append(unless_fenced(lambda: work.run(found.typed, meant)))
    report = reports[-1]
    records = report.records + sum(each.typed for each in reports[:-1])
    typed = sum(each.typed for each in reports)
    told_anew = sum(each.told_anew for each in reports)
    if output_format != "table":
        values = {
            "table": report.table,
            "snapshot_id": report.snapshot_id,
            "records": records,
            "rows": typed,
            "stay": records - typed,
            "told_anew": told_anew,
        }
        print_values([values], output_format)
        return
    print_text(
        f"{report.table}: of {records} quarantined record(s) {typed} are rows now; {records - typed} stay, {told_anew} "
        "of them for another reason"
    )


def accept(
    ctx: typer.Context, names: list[str], tables: Path | None, *, is_confirmed: bool
) -> None:
    """Show what accepting the rollback of a table does, and do it, if a person says so.

    Raises: TypedRolledBack: not accepted; nothing was changed.
    """
    settings = settings_of()
    found, _ = typed_named(tables_folder(settings, tables), names)
    if len(names) != 1 or len(found) != 1:
        raise ValidationError("is about one table: name it", path="--accept-rollback")
    table = found[0]
    handle = typed_catalog(settings).handle(table.typed.name)
    rollback = look_at_rollback(handle)
    if rollback is None:
        note(f"{table.typed.name} was not rolled back, so there is nothing to accept")
        return
    with brokers(ctx, settings, reads_files=True) as client:
        asked = client.asynchronous
        selector = table.raw.label_selector
        now = client.run(journals_now(asked, selector, rollback.after, SystemClock()))
    for journal, why in sorted(now.unreadable.items()):
        note(
            f"{table.typed.name}: brokers report nothing about {journal} now, so it counts as lost: {why}"
        )
    changed = reread(rollback, now.journals)
    for one in changed:
        note(f"{table.typed.name}: {_text(one)}")
    if not changed:
        note(f"{table.typed.name}: nothing is read again: the tag is moved to what the table has")
    if not is_confirmed and not confirmed("Accept that?"):
        raise TypedRolledBack(
            f"{table.typed.name}: nothing was changed (repeat with --yes to move the tag to snapshot {rollback.to})"
        )
    try:
        accept_rollback(handle, rollback)
    except CommitFailedException as err:
        raise TableFenced(
            f"{table.typed.name} was changed meanwhile, so nothing was accepted: look at it again"
        ) from err
    note(f"{table.typed.name}: its progress is that of snapshot {rollback.to} now")


def _text(one: Reread) -> str:
    text = f"{one.journal} would be read again from offset {one.begin} to {one.end}"
    if not one.lost_bytes:
        return f"{text}, and nothing of it is lost"
    return f"{text}, and {one.lost_bytes} bytes of it are gone: their rows would be lost"


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
