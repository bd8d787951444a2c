"""`gazctl lake check`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED
from gazette_platform.cli.gazctl_lake import OutputFormat
from gazette_platform.cli.gazctl_lake_context import (
    brokers,
    print_values,
    refused_rollups,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import note, print_text, printable
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, TransportError
from gazette_platform.hive import MetastoreClient, MetastoreSession
from gazette_platform.lake import BrokerSource, StoreRoots, TableSpec
from gazette_platform.lake.applying import problems_with_journals
from gazette_platform.lake.full_audit import audit_table
from gazette_platform.lake.overdue import overdue
from gazette_platform.lake.standing import table_standing
from gazette_platform.ops.clock import SystemClock

__all__ = ["check"]


@dataclass(frozen=True, slots=True)
class _Told:
    """Something wrong with a table or, before there is one, with its spec."""

    table: str
    kind: str
    is_error: bool
    text: str


def check(
    ctx: typer.Context,
    names: list[str],
    tables: Path | None,
    output_format: OutputFormat,
    *,
    quick: bool,
) -> None:
    """Run the audits of tables, and exit with 1 if anything is red."""
    settings = settings_of()
    folder = tables_folder(settings, tables)
    specs, refused = specs_named(folder, names, refused_too=True)
    told = [
        _Told(bad.table or file, "spec", True, str(error))
        for file, bad in refused.items()
        for error in bad.errors
    ]
    told += [
        _Told(file, "rollup", True, error)
        for file, error in refused_rollups(settings, folder, names).items()
    ]
    roots = StoreRoots(settings.store_roots)
    metastore = MetastoreClient(settings.required("metastore"))
    with brokers(ctx, settings) as client, metastore.connect() as session:
        for spec in specs.values():
            failures: list[_Told] = []
            try:
                for each in _check(client, session, spec, roots, failures, reads_content=not quick):
                    told.append(each)
            except TransportError:
                raise  # no broker answers, so nothing is to be told of any table
            except GazetteError as err:
                failures.append(_failure(spec.name, err))
            told += failures
    red = sum(each.is_error for each in told)
    if output_format is OutputFormat.TABLE:
        for each in told:
            colour = "red" if each.is_error else "yellow"
            print_text(printable(f"{each.table}: {colour}: {each.kind}: {each.text}"))
        note(f"{len(specs)} table(s): {red} error(s), {len(told) - red} warning(s)")
    else:
        values = [
            {
                "table": each.table,
                "check": each.kind,
                "severity": "error" if each.is_error else "warning",
                "text": each.text,
            }
            for each in told
        ]
        print_values(values, output_format)
    if red:
        raise typer.Exit(EXIT_FAILED)


def _failure(table: str, err: GazetteError, journal: str = "") -> _Told:
    """What could not be looked at. An error, else a script would take it for green."""
    what = f"{journal} cannot be looked at: " if journal else "cannot be looked at: "
    return _Told(table, "not checked", True, f"{what}{err}")


def _check(
    client: Client,
    session: MetastoreSession,
    spec: TableSpec,
    roots: StoreRoots,
    failures: list[_Told],
    *,
    reads_content: bool,
) -> Iterator[_Told]:
    def failed(journal: str, err: GazetteError) -> None:
        failures.append(_failure(spec.name, err, journal))

    source = BrokerSource(client)
    journals = source.journals(spec.label_selector)
    now = SystemClock().now()
    for problem in problems_with_journals(spec, journals, now):
        yield _Told(spec.name, "spec", True, str(problem))
    standing = table_standing(spec, journals, {}, session, now)
    for text in overdue(source, standing, now.timestamp(), from_begin=True, on_error=failed):
        yield _Told(spec.name, "lag", True, text)
    table = session.table(spec.schema, spec.table)
    if table is None:
        if journals:
            text = "is not made yet: none of its journals has a fragment that is persisted and fits"
            yield _Told(spec.name, "count", False, text)
        return
    for finding in audit_table(
        session, spec, table, source, roots, reads_content=reads_content, on_error=failed
    ):
        is_red = finding.is_error and finding.is_checked
        kind = finding.kind if finding.is_checked else f"{finding.kind}, not checked"
        yield _Told(spec.name, kind, is_red, finding.text)
