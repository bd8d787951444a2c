"""The sensor that keeps Dagster's catalog up to date with the folder of table specs.

Dagster reads definitions when it loads a code location. A spec written later is served by the
sensor `fragments` at once, but its description, lineage, checks and freshness policy are shown only
after a reload. This sensor asks the web server for one when the specs have changed; the daemon loads
definitions anew each minute by itself.
"""

import json
import urllib.error
import urllib.request

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
_RELOAD_TIMEOUT_S = 120.0
_RELOAD = """mutation($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) {
  __typename ... on PythonError { message } } }"""


@sensor(
    name="catalog",
    minimum_interval_seconds=_INTERVAL_S,
    default_status=DefaultSensorStatus.RUNNING,
    description="Has the web server load the definitions again when table specs have changed.",
)
def catalog_sensor(context: SensorEvaluationContext, lake: LakeResource) -> SensorResult:
    """Ask for a reload if the specs are others than those last loaded."""
    current = lake.catalog_digest()
    if current == (context.cursor or lake.loaded):
        return SensorResult(skip_reason="The catalog is up to date.", cursor=current)
    origin = context.code_location_origin
    if not lake.dagster_ui or origin is None:
        return SensorResult(
            skip_reason="Table specs have changed: reload the code location in the Dagster UI (set "
            "GAZETTE_DAGSTER_URI to have this done)."
        )
    try:
        reload_location(lake.dagster_ui, origin.location_name)
    except SetupError as err:
        return SensorResult(skip_reason=str(err))
    return SensorResult(skip_reason="Table specs have changed: reloaded.", cursor=current)


def reload_location(dagster: str, location: str) -> None:
    """Have the web server at `dagster` load a code location anew; returns when it has.

    Raises: SetupError: it cannot be reached, or the location does not load.
    """
    body = json.dumps({"query": _RELOAD, "variables": {"name": location}}).encode()
    request = urllib.request.Request(  # noqa: S310  the configured address
        f"{dagster.rstrip('/')}/graphql", data=body, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=_RELOAD_TIMEOUT_S
        ) as response:
            answer = json.load(response)
        result = answer["data"]["reloadRepositoryLocation"]
        outcome = str(result["__typename"])
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError) as err:
        raise SetupError(
            f"the Dagster web server at {dagster} did not reload {location}: {err}; it is tried "
            "again, and the UI can do it under Deployment"
        ) from err
    if outcome != "WorkspaceLocationEntry":
        detail = result.get("message") or outcome
        raise SetupError(f"Dagster cannot reload {location}: {detail}")
