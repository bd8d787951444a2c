"""A typed table with all that is behind it, as a data frame: rows that runs have published, and the tail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gazette_platform.client import Client, ClientConfig
from gazette_platform.errors import ValidationError
from gazette_platform.lake.meant import or_meant
from gazette_platform.lake.settings import LakeSettings
from gazette_platform.lake.spec_folder import load_table_specs
from gazette_platform.ops import platforms
from gazette_platform.ops.extras import required

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from gazette_platform.lake.table_spec import TableSpec

__all__ = ["typed_view"]


def typed_view(
    spark: SparkSession,
    table: str,
    *,
    tables: str | Path | Iterable[TableSpec] | None = None,
    client: Client | None = None,
    settings: LakeSettings | None = None,
) -> DataFrame:
    """A typed table as of now: its rows, and those that the next run would publish, each message once.

    The table and write heads are pinned at once, and however often the frame is used, it has the same rows; the tail is read
    again each time. Of a table with a `key` it has the last message of each. Records of the tail that cannot be rows are
    made are left out. A table that no run has made yet is all tail.

    To find out which messages are rows, Spark reads the tail once. The frame works as long as the session does, maintenance has
    not expired the snapshot, and brokers hold the content.

    Args:
        spark: a session with the catalog of typed tables, classic or of Spark Connect, as typed runs have.
        table: the typed table, or its raw one, as ``schema.table``.
        tables: the folder of table specs, or specs; default: the settings'.
        client: stays its caller's to close; default: one for the settings' brokers, with what else gazctl's variables say.
        settings: where brokers, specs and the catalog are; default: of the environment, or of the platform that runs if it
            names none.

    Raises: ValidationError: there is no such spec. SetupError: a setting is missing. LakeError: the catalog or Spark cannot be
        reached, or there is more behind the table than is read at once: let a run publish it. DataError, TransportError: journals
        cannot be read.
    """
    required("pyiceberg", extra="lake", by="typed tables")
    from gazette_platform.spark.typed_frames import typed_frame  # noqa: PLC0415  sources go without it

    environment = platforms.complete(os.environ) if settings is None else dict(os.environ)
    broker = settings.broker if settings else ""
    settings = settings or LakeSettings.from_environment(environment)
    raw = _spec_of(table, settings.required("tables") if tables is None else tables)
    if client is not None:
        return typed_frame(spark, raw, client, settings)
    address = broker or environment.get("BROKER_ADDRESS") or settings.required("broker")
    config = ClientConfig.from_environment(
        environment, address=address, file_root=settings.file_root
    )
    with Client(config) as own:
        return typed_frame(spark, raw, own, settings)


def _spec_of(table: str, tables: str | Path | Iterable[TableSpec]) -> TableSpec:
    """The raw table's spec. Raises: ValidationError: there is none, or it has no typed table."""
    if isinstance(tables, str | Path):
        specs, errors = load_table_specs(Path(tables))
        refused = f"; refused: {next(iter(errors.values()))}" if errors else ""
    else:
        specs, refused = {spec.name: spec for spec in tables}, ""
    typed = {spec.typed.name: spec for spec in specs.values() if spec.typed is not None}
    found = typed.get(table) or specs.get(table)
    if found is None:
        known = {*typed, *(spec.name for spec in typed.values())}
        raise ValidationError(
            f"no spec is of a typed table {table}{refused}{or_meant([table], known)}", path="table"
        )
    if found.typed is None:
        raise ValidationError(f"the spec of {table} has no section `typed:`", path="table")
    return found
