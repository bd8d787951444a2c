"""`gazctl lake reprocess`."""

import sys
from pathlib import Path

from gazette_platform.cli.gazctl_lake import OutputFormat
from gazette_platform.cli.gazctl_lake_context import print_values, settings_of, tables_folder
from gazette_platform.cli.output import print_text
from gazette_platform.cli.step_line import StepLine
from gazette_platform.cli.typed_tables import insisting, typed_named
from gazette_platform.lake.iceberg.catalog import typed_catalog
from gazette_platform.lake.typed.runs.reprocessing import Quarantined, Reprocessor

__all__ = ["reprocess"]


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
    """Make rows of quarantined records that fit by now, and tell how many these are."""
    settings = settings_of()
    (found,), _ = typed_named(tables_folder(settings, tables), [table])
    meant = Quarantined(journal=journal, begin=begin, end=end, reason=reason)
    is_shown = output_format is OutputFormat.TABLE and sys.stderr.isatty()
    with StepLine(is_shown=is_shown) as line:
        work = Reprocessor(typed_catalog(settings), log=line.step)
        reports = [insisting(lambda: work.run(found.typed, meant))]
        # Each time a million of them change, so there is an end.
        while not reports[-1].is_whole:
            reports.append(insisting(lambda: work.run(found.typed, meant)))
    report = reports[-1]
    records = report.records + sum(each.typed for each in reports[:-1])
    typed = sum(each.typed for each in reports)
    told_anew = sum(each.told_anew for each in reports)
    if output_format is not OutputFormat.TABLE:
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
