"""`gazctl lake infer`."""

from collections.abc import Sequence
from typing import Literal, cast

import typer

from gazette_platform.cli.gazctl_lake_context import brokers, settings_of
from gazette_platform.cli.output import note, print_text
from gazette_platform.cli.selection import Selection
from gazette_platform.client import Client
from gazette_platform.lake.infer import Inference, infer_spec
from gazette_platform.lake.sampling import (
    BrokerContent,
    Sample,
    SampleLimits,
    require_whole_lines,
    sample_lines,
)
from gazette_platform.ops.counted import counted

__all__ = ["infer", "inferred", "report"]

_LINES_SHOWN = 3
_LINE_BYTES_SHOWN = 60


def infer(
    ctx: typer.Context,
    selection: Selection,
    name: str,
    *,
    data_format: str,
    is_typed: bool,
    journals_max: int,
    sample_bytes: int,
) -> None:
    """Print a spec, and report what it was inferred from."""
    limits = SampleLimits(journals_max=journals_max, sample_bytes=sample_bytes)
    with brokers(ctx, settings_of()) as client:
        found = inferred(
            client, selection, name, data_format=data_format, is_typed=is_typed, limits=limits
        )
    print_text(found.text, end="")


def inferred(
    client: Client,
    selection: Selection,
    name: str,
    *,
    data_format: str,
    is_typed: bool,
    limits: SampleLimits,
) -> Inference:
    """Infer the spec of a table from samples of its journals, and print on stderr what it was inferred from.

    Args:
        client: of the brokers.
        selection: of the journals.
        name: of the table.
        data_format: json or csv; empty: found out.
        is_typed: whether the spec gets a section `typed:`.
        limits: how much to read.

    Raises: ValidationError: no journal matches. SchemaMismatch: no columns can be inferred. LakeError: the journals
        cannot be one table. TransportError: no broker answers.
    """
    journals = [listing.spec for listing in client.list(selection.selector)]
    selection.check(journal.name for journal in journals)
    lines, samples = sample_lines(BrokerContent(client), journals, limits)
    require_whole_lines(lines, samples)
    found = infer_spec(
        name,
        str(selection.selector),
        lines,
        journals,
        data_format=cast('Literal["json", "csv", ""]', data_format),
        is_typed=is_typed,
    )
    report(found, samples, len(journals))
    return found


def report(found: Inference, samples: Sequence[Sample], journals: int, *, called: str = "") -> None:
    """Print on stderr what a spec was inferred of.

    Args:
        found: the spec.
        samples: what was read.
        journals: how many there are.
        called: what to call the table; empty: its name.
    """
    read = sum(sample.end - sample.begin for sample in samples)
    looked_into = {sample.journal: sample.journal_bytes for sample in samples}
    total = sum(looked_into.values())
    note(
        f"{called or found.spec.name}: {counted(found.records, 'record')}, {read} of {total} bytes, of "
        f"{len(looked_into)} of {counted(journals, 'journal')}"
    )
    rows = [["column", "key", "type", "seen", "null", "missing", "values"]]
    for column in found.columns:
        values = ", ".join(f"{count} {kind}" for kind, count in column.kinds.items())
        counts = (str(count) for count in (column.seen, column.nulls, column.missing))
        key = column.key if column.key != column.name else ""
        rows.append([column.name, key, column.type, *counts, values])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        note("  " + "  ".join(map(str.ljust, row, widths)).rstrip())
    for column in found.columns:
        for remark in column.remarks:
            note(f"  {column.name}: {remark}")
    for remark in found.remarks:
        note(f"  note: {remark}")
    if read < total or len(looked_into) < journals:
        note(
            "  note: what was not read may hold other keys, and values of other types: --bytes and --journals "
            "read more; the check `fits_spec` will count what does not fit"
        )
    for line in found.unread[:_LINES_SHOWN]:
        note(f"  not read: {line[:_LINE_BYTES_SHOWN].decode('utf-8', 'backslashreplace')!r}")
