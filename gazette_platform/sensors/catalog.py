"""The sensor that keeps Dagster's catalog up to date with the folder of table specs.

Dagster reads definitions when it loads a code location. A spec written later is served by the
sensor `fragments` at once, but its description, lineage, checks and freshness policy are shown only
after a reload. This sensor asks the web server for one when the specs have changed. The daemon sees it at
once where both have one code server, as under `gazette up`; else it loads definitions anew each minute.
"""

from urllib.parse import urlsplit

from dagster import (
    DefaultSensorStatus,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from gazette_platform.errors import SetupError
from gazette_platform.resources import LakeResource

__all__ = ["catalog_sensor", "reload_location"]

_INTERVAL_S = 5
_RELOAD_TIMEOUT_S = 120


@sensor(
    name="catalog",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=DefaultSensorStatus.RUNNING,
    description="Has the web server load the definitions again when table specs have changed.",
)
def catalog_sensor(context: SensorEvaluationContext, lake: LakeResource) -> SensorResult:
    """Ask for a reload if the specs differ from those that were loaded last.

    Raises: SetupError: the web server did not reload them; the next tick tries again.
    """
    current = lake.catalog_digest()
    if current == (context.cursor or lake.loaded):
        refused = "; ".join(str(error) for error in lake.rollup_errors().values())
        return SensorResult(
            skip_reason=f"Rollups are refused: {refused}"
            if refused
            else "The catalog is up to date.",
            cursor=current,
        )
    origin = context.code_location_origin
    if not lake.dagster_ui or origin is None:
        return SensorResult(
            skip_reason="Table specs have changed: reload the code location in the Dagster UI (set "
            "GAZETTE_DAGSTER_URI to have this done)."
        )
    # What fails makes a red tick, and the next one tries again.
    reload_location(lake.dagster_ui, origin.location_name)
    context.log.info("Table specs have changed: the definitions were loaded again.")
    return SensorResult(cursor=current)


def reload_location(dagster: str, location: str) -> None:
    """Have the web server at `dagster` load a code location anew; returns when it has.

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
