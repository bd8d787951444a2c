"""The sensor that keeps Dagster's catalog up to date with the folders of table specs and of rollups.

Dagster reads definitions when it loads a code location. A table spec written later is served by the
sensor `fragments` at once, but its description, lineage, checks and freshness policy are shown only
after a reload, and a rollup runs only then. This sensor asks the web server for one when specs have
changed. The daemon sees it at once where both have one code server, as under `gazette up`; else it loads
definitions again each minute. It also reports what is wrong with files of rollups, in the check of their folder,
and with their queries, in the check `query_fits` of each.
"""

import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import final
from urllib.parse import urlsplit

from dagster import (
    AssetCheckEvaluation,
    AssetMaterialization,
    DefaultSensorStatus,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from gazette_platform.assets.checks import new_evaluations
from gazette_platform.assets.rollups import rollups_evaluation, rollups_materialization
from gazette_platform.errors import GazetteError, SetupError
from gazette_platform.lake import SpecFolder, TableSpec
from gazette_platform.lake.rollups import RollupFolder
from gazette_platform.lake.rollups.query_check import check_queries, made_by, source_columns
from gazette_platform.protocol import JournalSpec
from gazette_platform.resources import (
    BrokerResource,
    LakeResource,
    MetastoreResource,
    catalog_digest,
)

_INTERVAL_S = 5
_RELOAD_TIMEOUT_S = 120


@sensor(
    name="catalog",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=DefaultSensorStatus.RUNNING,
    description="Has the web server load the definitions again when specs of tables or rollups have "
    "changed, and checks the files and the queries of rollups.",
)
def catalog_sensor(
    context: SensorEvaluationContext,
    lake: LakeResource,
    metastore: MetastoreResource,
    broker: BrokerResource,
) -> SensorResult:
    """Ask for a reload if the specs differ from those that were loaded last.

    Raises: SetupError: the web server did not reload them; the next tick tries again.
    """
    tables = lake.folder()
    rollups = lake.rollup_folder(tables)
    current = catalog_digest(tables, rollups)
    loaded, _, checked = (context.cursor or "").partition(" ")
    is_told = loaded == current or not lake.rollups
    events: list[AssetMaterialization | AssetCheckEvaluation] = []
    if not is_told:
        events += [rollups_materialization(rollups), rollups_evaluation(rollups)]
    queries = _checked_queries(context, lake, metastore, broker, tables, rollups, checked)
    events += queries.events
    origin = context.code_location_origin if lake.dagster_ui else None
    # A web server that others reload says what it has loaded once it has.
    if current == ((loaded if origin else None) or lake.loaded):
        reason = "The catalog is up to date."
    elif origin is None:
        reason = (
            "Specs of tables or rollups have changed: reload the code location in the Dagster UI (set "
            "GAZETTE_DAGSTER_URI to have this done)."
        )
    else:
        # What fails makes a red tick, and the next one tries again.
        reload_location(lake.dagster_ui, origin.location_name)
        context.log.info("Specs of tables or rollups have changed: definitions were loaded again.")
        reason = ""
    return SensorResult(
        asset_events=events,
        skip_reason=reason if reason and not events else None,
        cursor=f"{current} {queries.digest}".strip(),
    )


@final
@dataclass(frozen=True, slots=True)
class _Queries:
    """What was found out about the queries of rollups."""

    digest: str
    """Changes with all that it follows from."""
    events: list[AssetCheckEvaluation] = field(default_factory=list)


def _checked_queries(  # noqa: PLR0917
    context: SensorEvaluationContext,
    lake: LakeResource,
    metastore: MetastoreResource,
    broker: BrokerResource,
    tables: SpecFolder,
    rollups: RollupFolder,
    checked: str,
) -> _Queries:
    """Check the queries of rollups if they, or the columns of their sources, have changed."""
    if not rollups.specs or not metastore.uri:
        return _Queries(checked)

    def journals(spec: TableSpec) -> list[JournalSpec]:
        with broker.source() as source:
            return source.journals(spec.label_selector)

    try:
        client = metastore.client()
        with client.connect() as session:
            columns = source_columns(rollups.specs.values(), tables, session, journals)
        asked = [rollups.digest, sorted(columns.items())]
        digest = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
        if digest == checked:
            return _Queries(checked)
        found = check_queries(
            rollups.specs, columns, partial(made_by, lambda: lake.iceberg_tables(client))
        )
    except GazetteError as err:
        context.log.warning("Queries of rollups were not checked: %s", err)
        return _Queries(checked)
    return _Queries(digest, new_evaluations(context.instance, found.values()))


def reload_location(dagster: str, location: str) -> None:
    """Let the web server at `dagster` reload a code location; returns when it has.

    Raises: SetupError: it cannot be reached, or the location does not load.
    """
    from dagster_graphql import (  # noqa: PLC0415  slow to import, and every run loads this module
        DagsterGraphQLClient,
        DagsterGraphQLClientError,
        ReloadRepositoryLocationStatus,
    )

    address = urlsplit(dagster)
    try:
        client = DagsterGraphQLClient(
            address.netloc,
            use_https=address.scheme == "https",
            path_prefix=address.path.rstrip("/"),
            timeout=_RELOAD_TIMEOUT_S,
        )
        result = client.reload_repository_location(location)
    except (DagsterGraphQLClientError, KeyError, TypeError) as err:
        # The client's own text is mostly its query; what it does not foresee in an answer is a KeyError.
        raise SetupError(
            f"the Dagster web server at {dagster} did not reload {location}: "
            f"{err.__cause__ or repr(err)}; it is tried again, and the UI can do it under Deployment"
        ) from err
    if result.status is not ReloadRepositoryLocationStatus.SUCCESS:
        detail = (result.message or result.failure_type or "it does not say why").strip()
        raise SetupError(
            f"Dagster cannot reload {location}: {detail}; it is tried again, and the UI can do it "
            "under Deployment"
        )
