"""`gazctl lake doctor`."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import typer

from gazette_platform.cli.errors import EXIT_FAILED, one_line
from gazette_platform.cli.gazctl.lake.commands import OutputFormat
from gazette_platform.cli.gazctl.lake.context import (
    brokers,
    print_values,
    settings_of,
    specs_named,
    tables_folder,
)
from gazette_platform.cli.output import print_text, printable
from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.hive import HiveTable, MetastoreClient, MetastoreSession
from gazette_platform.lake import LakeSettings, StoreRoots, TableSpec
from gazette_platform.lake.engines.doctor import (
    Diagnosis,
    look_at_stores,
    look_at_trino,
    made_tables,
    read_by_spark,
)
from gazette_platform.lake.engines.trino import TrinoLogin, TrinoSession


def doctor(
    ctx: typer.Context, tables: Path | None, output_format: OutputFormat, *, spark: bool
) -> None:
    """Look at all servers that tables need, and exit with 1 if anything is wrong."""
    wrong = False
    values = []
    for each in _diagnoses(ctx, tables, spark=spark):
        wrong = wrong or each.state == "error"
        if output_format is OutputFormat.TABLE:
            print_text(printable(f"{each.state:<8}{each.subject}: {one_line(each.text)}"))
            if each.advice:
                print_text(f"{'':<8}-> {each.advice}")
        values.append(asdict(each))
    if output_format is not OutputFormat.TABLE:
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
    from gazette_platform.lake.iceberg.catalog import typed_catalog  # noqa: PLC0415  an extra, and slow

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
