"""Find what keeps your own engines from seeing raw tables as they are, and what to set.

Each question goes to a real server, and its answer is a finding. Nothing is changed, except for what a
query leaves in an engine's history.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from gazette_platform.errors import GazetteError, LakeError
from gazette_platform.lake.catalog_settings import TrinoCatalogs
from gazette_platform.lake.raw.tables import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gazette_platform.hive import HiveTable, MetastoreSession
    from gazette_platform.lake.engines.trino import TrinoSession
    from gazette_platform.lake.spec.layout import StoreRoots
    from gazette_platform.lake.spec.table_spec import TableSpec
    from gazette_platform.protocol import JournalSpec

# A query of a table reads a directory or two; more tables say nothing new.
_TABLES_TRIED_MAX = 5
_FILE_SYSTEMS = {
    "file": "fs.hadoop.enabled=true, and the folder at the same path on all its machines",
    "s3": "fs.native-s3.enabled=true, and s3.endpoint, s3.region and keys of the store",
    "s3a": "fs.native-s3.enabled=true, and s3.endpoint, s3.region and keys of the store",
    "gs": "fs.native-gcs.enabled=true, and gcs.json-key-file-path",
    "abfs": "fs.native-azure.enabled=true, and azure.auth-type",
    "abfss": "fs.native-azure.enabled=true, and azure.auth-type",
    "hdfs": "fs.hadoop.enabled=true, and hive.config.resources",
}


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """An answer: what was looked at, how it is, and what to do if it is not well."""

    subject: str
    state: Literal["ok", "warning", "error"]
    text: str
    advice: str = ""


def made_tables(
    session: MetastoreSession, specs: Iterable[TableSpec]
) -> tuple[list[HiveTable], list[Diagnosis]]:
    """Tables of `specs` that the metastore has, and what is to be said of it.

    Raises: GazetteError: it broke off.
    """
    databases = session.databases()
    tables: list[HiveTable] = []
    told = [Diagnosis("metastore", "ok", f"answers, and has {len(databases)} database(s)")]
    for spec in specs:
        table = session.table(spec.schema, spec.stored_table)
        if table is None:
            told.append(Diagnosis("metastore", "warning", f"{spec.name} is not made yet"))
        elif LAYOUT not in table.parameters:
            told.append(
                Diagnosis(
                    "metastore",
                    "error",
                    f"{spec.name} exists, and was not made of a table spec",
                    "rename the table or the spec",
                )
            )
        else:
            tables.append(table)
    return tables, told


def look_at_stores(journals: Iterable[JournalSpec], roots: StoreRoots) -> Iterator[Diagnosis]:
    """Check whether engines can find each store, and whether it exists, if on this machine."""
    stores = dict.fromkeys(store for journal in journals for store in journal.fragment.stores)
    for store in stores:
        try:
            location = roots.location(store, "")
        except LakeError as err:
            yield Diagnosis("stores", "error", str(err), "set GAZETTE_LAKE_STORE_ROOTS")
            continue
        if not location.startswith("file://"):
            yield Diagnosis("stores", "ok", f"{store} is {location}")
        elif Path(location.removeprefix("file://")).is_dir():
            yield Diagnosis("stores", "ok", f"{store} is {location}, a folder of this machine")
        else:
            yield Diagnosis(
                "stores",
                "error",
                f"{store} is {location}, which is not a folder of this machine",
                "map it to where this machine and the engines have it, by GAZETTE_LAKE_STORE_ROOTS",
            )


def look_at_trino(
    trino: TrinoSession,
    session: MetastoreSession,
    tables: Sequence[HiveTable],
    *,
    catalogs: TrinoCatalogs | None = None,
) -> Iterator[Diagnosis]:
    """Whether a Trino sees the tables as the metastore has them. Ends early if it cannot be asked.

    Args:
        catalogs: what it calls its catalogs; None: as ours does.
    """
    catalogs = catalogs or TrinoCatalogs()
    subject = f"Trino {trino.uri}"
    try:
        found = dict(
            trino.query("SELECT catalog_name, connector_name FROM system.metadata.catalogs")
        )
    except GazetteError as err:
        yield Diagnosis(subject, "error", str(err), "set GAZETTE_TRINO_URI to your coordinator's")
        return
    wanted = {
        catalogs.hive: ("hive", "GAZETTE_TRINO_CATALOG"),
        catalogs.typed: ("iceberg", "GAZETTE_TRINO_TYPED_CATALOG"),
        catalogs.iceberg: ("iceberg", "GAZETTE_TRINO_ICEBERG_CATALOG"),
    }
    for name, (connector, variable) in wanted.items():
        yield _catalog(subject, found, connector, name, variable)
    if found.get(catalogs.hive) != "hive":
        return
    yield from _absent_partitions(trino, subject, catalogs.hive)
    for table in tables[:_TABLES_TRIED_MAX]:
        yield _partitions(trino, session, table, subject, catalogs.hive)
        name = _trino_name(catalogs.hive, table)
        yield _read(subject, table, trino.query, name, _file_system(table))


def _catalog(
    subject: str, found: Mapping[str, str], connector: str, name: str, variable: str
) -> Diagnosis:
    """Whether a Trino has the catalog `name` of a connector; only rollups and typed tables need one of Iceberg."""
    if found.get(name) == connector:
        return Diagnosis(subject, "ok", f"answers, and has a catalog `{name}` of {connector}")
    others = ", ".join(each for each, kind in found.items() if kind == connector)
    return Diagnosis(
        subject,
        "error" if connector == "hive" else "warning",
        f"shows no catalog `{name}` of the {connector} connector"
        + (f"; that is called {others} here" if others else ""),
        f"set {variable} to its name"
        if others
        else f"add etc/catalog/{name}.properties with connector.name={connector}, or let the user see it",
    )


def _absent_partitions(trino: TrinoSession, subject: str, catalog: str) -> Iterator[Diagnosis]:
    name = f"{catalog}.ignore_absent_partitions"
    rows = {row[0]: row[1] for row in trino.query(f"SHOW SESSION LIKE '{name}'")}
    if str(rows.get(name, "true")).lower() != "true":
        yield Diagnosis(
            subject,
            "warning",
            "fails at Hive partitions whose last file was pruned a moment ago",
            "set hive.ignore-absent-partitions=true in the catalog's properties",
        )


def _trino_name(catalog: str, table: HiveTable) -> str:
    return f'"{catalog}"."{table.database}"."{table.name}"'


def _partitions(
    trino: TrinoSession, session: MetastoreSession, table: HiveTable, subject: str, catalog: str
) -> Diagnosis:
    """Whether Trino sees a table's Hive partitions, or an old answer that it keeps."""
    if not table.partition_columns:
        return Diagnosis(subject, "ok", f"{table.full_name} has no Hive partitions to compare")
    known = f'"{catalog}"."{table.database}"."{table.name}$partitions"'
    try:
        # The metastore is asked before and after: it may get more meanwhile.
        before = len(session.partitions(table))
        seen = int(trino.query(f"SELECT count(*) FROM {known}")[0][0])  # noqa: S608 (valid names)
        after = len(session.partitions(table))
    except GazetteError as err:
        return Diagnosis(
            subject,
            "error",
            f"{table.full_name}: {err}",
            "point hive.metastore.uri of its catalog at the metastore of GAZETTE_METASTORE_URI",
        )
    if min(before, after) <= seen <= max(before, after):
        return Diagnosis(subject, "ok", f"{table.full_name}: sees all {seen} Hive partition(s)")
    return Diagnosis(
        subject,
        "error",
        f"{table.full_name}: sees {seen} Hive partition(s), and the metastore has {after}",
        "set hive.metastore-cache-ttl=0s, and hive.metastore.uri to the same metastore",
    )


def _file_system(table: HiveTable) -> str:
    scheme = table.location.partition(":")[0]
    return _FILE_SYSTEMS.get(scheme, f"a file system for {scheme}:// in the catalog's properties")


def read_by_spark(query: Callable[[str], object], tables: Sequence[HiveTable]) -> list[Diagnosis]:
    """Whether a Spark reads the tables; `query` runs one statement, and raises LakeError."""
    advice = (
        "spark.sql.catalogImplementation=hive, spark.hadoop.hive.metastore.uris, and for object "
        "stores hadoop-aws with spark.hadoop.fs.s3a.*"
    )
    return [
        _read("Spark", table, query, f"`{table.database}`.`{table.name}`", advice)
        for table in tables[:_TABLES_TRIED_MAX]
    ]


def _read(
    subject: str, table: HiveTable, query: Callable[[str], object], name: str, setting: str
) -> Diagnosis:
    try:
        query(f"SELECT * FROM {name} LIMIT 1")  # noqa: S608 (valid names)
    except LakeError as err:
        return Diagnosis(
            subject, "error", f"{table.full_name} cannot be read: {err}", f"see to {setting}"
        )
    return Diagnosis(subject, "ok", f"{table.full_name} can be read at {table.location}")
