"""`gazctl lake check` and `doctor`: what is wrong with raw tables, typed tables and rollups, and with the servers that they need."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import typer

from gazette_platform.cli.gazctl.lake.commands import OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    TypedTable,
    apart,
    brokers,
    hole_text,
    print_values,
    refused_rollups,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.gazctl.lake.list import rollups_apart
from gazette_platform.cli.output import note, print_text, printable
from gazette_platform.cli.program import EXIT_FAILED, one_line
from gazette_platform.client import Client
from gazette_platform.errors import GazetteError, LakeError, TransportError
from gazette_platform.hive import HiveTable, MetastoreClient, MetastoreSession
from gazette_platform.lake import (
    BrokerSource,
    LakeSettings,
    StoreRoots,
    TableSpec,
    read_spec_folder,
)
from gazette_platform.lake.engines.doctor import (
    Diagnosis,
    look_at_stores,
    look_at_trino,
    made_tables,
    read_by_spark,
)
from gazette_platform.lake.engines.trino import TrinoLogin, TrinoSession
from gazette_platform.lake.iceberg.catalog import TypedCatalog, typed_catalog
from gazette_platform.lake.raw.audits.consistency import audit_index
from gazette_platform.lake.raw.audits.fit import audit_content
from gazette_platform.lake.raw.audits.registration_status import overdue, table_standing
from gazette_platform.lake.raw.planning import problems_with_journals
from gazette_platform.lake.rollups import read_rollup_folder
from gazette_platform.lake.rollups.query_check import check_queries, made_by, source_columns
from gazette_platform.lake.typed.recount import Recounter, recount_keys
from gazette_platform.lake.typed.runs.working import local_workers
from gazette_platform.lake.typed.status import (
    Completeness,
    behind_now,
    completeness_of,
    unable,
)
from gazette_platform.ops.clock import SystemClock

if TYPE_CHECKING:
    from gazette_platform.lake.iceberg.metastore import IcebergTables


@final
class Told(NamedTuple):
    """Something wrong with a table or, before there is one, with its spec."""

    table: str
    kind: str
    is_error: bool
    text: str


def failure(table: str, err: GazetteError, journal: str = "") -> Told:
    """What could not be looked at. An error, else a script would take it for green."""
    what = f"{journal} cannot be looked at: " if journal else "cannot be looked at: "
    return Told(table, "not checked", is_error=True, text=f"{what}{err}")


def typed_checked(
    settings: LakeSettings, client: Client, tables: Sequence[TypedTable], *, reads_content: bool
) -> list[Told]:
    """What is wrong with typed tables, and what of them could not be looked at.

    Args:
        settings: of the catalog.
        client: of the brokers.
        tables: to be looked at.
        reads_content: whether journals are read again.

    Raises: TransportError: no broker answers.
    """
    if not tables:
        return []
    try:
        catalog = typed_catalog(settings)
    except GazetteError as err:
        return [failure(table.typed.name, err) for table in tables]
    told: list[Told] = []
    for table in tables:
        try:
            for each in _check_typed(catalog, client, table, reads_content=reads_content):
                told.append(each)  # noqa: PERF402  those before an error are kept
        except TransportError:
            raise
        except GazetteError as err:
            told.append(failure(table.typed.name, err))
    return told


def _check_typed(
    catalog: TypedCatalog, client: Client, table: TypedTable, *, reads_content: bool
) -> Iterator[Told]:
    spec = table.typed
    loaded = catalog.handle(spec.name).load()
    if loaded is None:
        yield Told(
            spec.name, "complete", is_error=False, text="is not made yet: its first run makes it"
        )
        return
    for text in unable(loaded, spec, spec.name):
        yield Told(spec.name, "spec", is_error=True, text=text)
    yield from _told(completeness_of(catalog, spec), "complete")
    found = behind_now(client, catalog, table.raw, spec)
    for hole in found.holes:
        yield Told(spec.name, "holes", is_error=True, text=hole_text(spec.name, hole))
    for journal, why in sorted(found.unreadable.items()):
        yield Told(
            spec.name, "not checked", is_error=True, text=f"{journal} cannot be looked at: {why}"
        )
    if reads_content:
        recounter = Recounter(catalog, local_workers(), client)
        yield from _told(recounter.recount(spec, table.raw), "offsets")
        if spec.key:
            yield from _told(recount_keys(catalog, spec, table.raw, client), "keys")


def _told(found: Completeness, kind: str) -> Iterator[Told]:
    for finding in found.findings:
        yield Told(found.table, kind, is_error=True, text=finding.text)
    for text in found.notes:
        yield Told(found.table, kind, is_error=False, text=text)


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
    raw, typed = apart(folder, names)
    raw, rollups = rollups_apart(settings, raw) if raw or not names else ([], [])
    specs: dict[str, TableSpec] = {}
    told: list[Told] = []
    if raw or not names:
        specs, refused = specs_named(folder, raw, refused_too=True)
        told += [
            Told(bad.table or file, "spec", True, str(error))
            for file, bad in refused.items()
            for error in bad.errors
        ]
        told += [
            Told(file, "rollup", True, error)
            for file, error in refused_rollups(settings, folder, names).items()
        ]
    roots = StoreRoots(settings.store_roots)
    with brokers(ctx, settings, reads_files=True) as client:
        if specs or rollups or not typed:
            metastore = MetastoreClient(settings.required("metastore"))
            with metastore.connect() as session:
                for spec in specs.values():
                    told += _checked(client, session, spec, roots, reads_content=not quick)
                asked = {rollup.name for rollup in rollups}
                told += _queries(client, session, settings, folder, asked)
        told += typed_checked(settings, client, typed, reads_content=not quick)
    red = sum(each.is_error for each in told)
    if output_format == "table":
        for each in told:
            colour = "red" if each.is_error else "yellow"
            print_text(printable(f"{each.table}: {colour}: {each.kind}: {each.text}"))
        count = len(specs) + len(rollups) + len(typed)
        note(f"{count} table(s): {red} error(s), {len(told) - red} warning(s)")
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


def _queries(
    client: Client, session: MetastoreSession, settings: LakeSettings, folder: Path, names: set[str]
) -> list[Told]:
    """Check the queries of rollups against the columns of their sources."""
    if not names:
        return []
    tables = read_spec_folder(folder)
    # All of them: some give the columns that others read.
    rollups = read_rollup_folder(settings.rollups, tables.tables).specs
    source = BrokerSource(client)
    columns = source_columns(
        rollups.values(), tables, session, lambda spec: source.journals(spec.label_selector)
    )

    def tables_made() -> IcebergTables:
        # Slow to import, and of use only if a query cannot be parsed.
        from gazette_platform.lake.iceberg.catalog import io_properties_of  # noqa: PLC0415
        from gazette_platform.lake.iceberg.metastore import IcebergTables  # noqa: PLC0415

        return IcebergTables(
            MetastoreClient(settings.required("metastore")),
            settings.required("warehouse"),
            io_properties_of(settings, os.environ),
        )

    found = check_queries(rollups, columns, partial(made_by, tables_made))
    return [
        Told(check.rollup, "query", bool(check.faults), check.text)
        for check in found.values()
        if check.rollup in names and (check.faults or not check.is_checked)
    ]


def _checked(
    client: Client,
    session: MetastoreSession,
    spec: TableSpec,
    roots: StoreRoots,
    *,
    reads_content: bool,
) -> list[Told]:
    """What is wrong with a raw table, and what of it could not be looked at."""
    told: list[Told] = []
    failures: list[Told] = []
    try:
        for each in _check(client, session, spec, roots, failures, reads_content=reads_content):
            told.append(each)  # noqa: PERF402  those before an error are kept
    except TransportError:
        raise  # no broker answers, so there is nothing to report on any table
    except GazetteError as err:
        failures.append(failure(spec.name, err))
    return told + failures


def _check(
    client: Client,
    session: MetastoreSession,
    spec: TableSpec,
    roots: StoreRoots,
    failures: list[Told],
    *,
    reads_content: bool,
) -> Iterator[Told]:
    def failed(journal: str, err: GazetteError) -> None:
        failures.append(failure(spec.name, err, journal))

    source = BrokerSource(client)
    journals = source.journals(spec.label_selector)
    now = SystemClock().now()
    for problem in problems_with_journals(spec, journals, now):
        yield Told(spec.name, "spec", True, str(problem))
    standing = table_standing(spec, journals, {}, session, now)
    for text in overdue(source, standing, now.timestamp(), from_begin=True, on_error=failed):
        yield Told(spec.name, "lag", True, text)
    unfit = standing.findings
    if unfit is not None and not reads_content:
        yield Told(spec.name, unfit.kind, unfit.is_error, unfit.text)
    table = session.table(spec.schema, spec.stored_table)
    if table is None:
        if journals:
            text = "is not made yet: none of its journals has a fragment that is persisted and fits"
            yield Told(spec.name, "count", False, text)
        return
    found = audit_index(session, spec, table, source, roots, on_error=failed)
    if reads_content:
        found = chain(found, audit_content(spec, source, roots, on_error=failed))
    for finding in found:
        is_red = finding.is_error and finding.is_checked
        kind = finding.kind if finding.is_checked else f"{finding.kind}, not checked"
        yield Told(spec.name, kind, is_red, finding.text)


def doctor(
    ctx: typer.Context, tables: Path | None, output_format: OutputFormat, *, spark: bool
) -> None:
    """Look at all servers that tables need, and exit with 1 if anything is wrong."""
    wrong = False
    values = []
    for each in _diagnoses(ctx, tables, spark=spark):
        wrong = wrong or each.state == "error"
        if output_format == "table":
            print_text(printable(f"{each.state:<8}{each.subject}: {one_line(each.text)}"))
            if each.advice:
                print_text(f"{'':<8}-> {each.advice}")
        values.append(asdict(each))
    if output_format != "table":
        print_values(values, output_format)
    if wrong:
        raise typer.Exit(EXIT_FAILED)


def _diagnoses(ctx: typer.Context, tables: Path | None, *, spark: bool) -> Iterator[Diagnosis]:
    settings = settings_of()
    folder = tables_folder(settings, tables)
    specs, refused = specs_named(folder, [])
    yield Diagnosis("specs", "ok", f"{folder} has {len(specs)} that are good")
    for error in (error for bad in refused.values() for error in bad.errors):
        yield Diagnosis("specs", "error", str(error), "correct the file, or take it out")
    yield from _of_brokers(ctx, settings, specs)
    if settings.iceberg_catalog.kind != "hive":
        yield _of_catalog(settings)
    if not settings.metastore:
        yield Diagnosis(
            "metastore",
            "error",
            "none is configured",
            "add one to the platform with `gazette up`, or set GAZETTE_METASTORE_URI",
        )
        return
    try:
        with MetastoreClient(settings.metastore).connect() as session:
            found, told = made_tables(session, specs.values())
            yield from told
            if settings.trino:
                yield from _of_trino(settings, session, found)
            else:
                yield Diagnosis("Trino", "warning", "none is configured", "set GAZETTE_TRINO_URI")
    except LakeError as err:
        yield Diagnosis("metastore", "error", str(err), "correct GAZETTE_METASTORE_URI")
        return
    if spark:
        yield from _of_spark(settings, found)


def _of_brokers(
    ctx: typer.Context, settings: LakeSettings, specs: dict[str, TableSpec]
) -> Iterator[Diagnosis]:
    roots = StoreRoots(settings.store_roots)
    try:
        with brokers(ctx, settings) as client:
            address = client.config.address
            journals = [j.spec for spec in specs.values() for j in client.list(spec.label_selector)]
    except GazetteError as err:
        yield Diagnosis("brokers", "error", str(err), "set BROKER_ADDRESS")
        return
    yield Diagnosis("brokers", "ok", f"{address} answers; tables have {len(journals)} journal(s)")
    yield from look_at_stores(journals, roots)


def _of_catalog(settings: LakeSettings) -> Diagnosis:
    try:
        name = typed_catalog(settings).name
    except GazetteError as err:
        return Diagnosis("catalog", "error", str(err), "correct GAZETTE_ICEBERG_CATALOG")
    where = settings.iceberg_catalog.uri
    return Diagnosis("catalog", "ok", f"{where} answers; Spark calls it {name}")


def _of_trino(
    settings: LakeSettings, session: MetastoreSession, tables: list[HiveTable]
) -> Iterator[Diagnosis]:
    try:
        trino = TrinoSession(settings.trino, login=TrinoLogin.from_environment(os.environ))
    except GazetteError as err:
        yield Diagnosis("Trino", "error", str(err), "correct what the environment says of Trino")
        return
    yield from look_at_trino(trino, session, tables, catalogs=settings.trino_catalogs)


def _of_spark(settings: LakeSettings, tables: list[HiveTable]) -> Iterator[Diagnosis]:
    from py4j.protocol import (  # type: ignore[import-untyped]  # noqa: PLC0415  an extra, and slow
        Py4JError,
    )
    from pyspark.errors import PySparkException  # noqa: PLC0415  as well

    from gazette_platform.lake.engines.spark import running_session  # noqa: PLC0415  as well

    with ExitStack() as stack:
        try:
            session = stack.enter_context(running_session(settings))
        except GazetteError as err:
            yield Diagnosis("Spark", "error", str(err), "see to JAVA_HOME and GAZETTE_SPARK_MASTER")
            return

        def query(sql: str) -> object:
            try:
                return session.sql(sql).collect()
            except (PySparkException, Py4JError) as err:
                raise LakeError(str(err)) from err

        yield from read_by_spark(query, tables)
