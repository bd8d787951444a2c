"""What Dagster's web server says of tables: their last runs, and checks that are red. Asked by GraphQL.

Dagster is not imported: commands ask about a platform that may be elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

import requests

from gazette_platform.errors import LakeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_TIMEOUT_S: Final = 10.0
# Newest executions of a check that are looked at for one with an answer.
_HISTORY: Final = 20
_EVENTS_MAX: Final = 1000
_FAILURE: Final = "FAILURE"

_NODES: Final = """query($keys: [AssetKeyInput!]!) {
  assetNodes(assetKeys: $keys) {
    assetKey { path }
    assetChecksOrError { ... on AssetChecks { checks { name blocking } } }
  }
}"""
_CHECK: Final = """{
  timestamp evaluation { success severity description timestamp }
}"""
_RUNS: Final = """query($keys: [AssetKeyInput!]!) {
  assetsLatestInfo(assetKeys: $keys) { assetKey { path } latestRun { runId status endTime } }
}"""
_WHY: Final = """query($run: ID!, $limit: Int!) {
  runOrError(runId: $run) { ... on Run { eventConnection(limit: $limit) { events {
    __typename
    ... on ExecutionStepFailureEvent { error { message causes { message } } }
    ... on RunFailureEvent { message }
  } } } }
}"""


@final
@dataclass(frozen=True, slots=True)
class RedCheck:
    """A check that failed by its newest answer."""

    table: str
    check: str
    text: str
    since: datetime


@final
@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a table."""

    run_id: str
    has_failed: bool
    ended_at: datetime | None


@final
class DagsterWeb:
    """Asks one web server.

    Args:
        uri: ``http(s)://host:port``, perhaps with a path.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")

    def red_checks(self, tables: Iterable[str], others: Collection[str] = ()) -> list[RedCheck]:
        """Return the blocking checks of tables that are red, by their newest answers.

        Args:
            tables: their names.
            others: names of checks to return also if they do not block.

        Raises: LakeError: Dagster cannot be reached, or answers something else.
        """
        nodes = self._ask(_NODES, {"keys": _keys(tables)})["assetNodes"]
        asked = {
            f"c{index}": (_name(node), check["name"])
            for index, (node, check) in enumerate(
                (node, check)
                for node in nodes
                for check in node["assetChecksOrError"].get("checks", ())
                if check["blocking"] or check["name"] in others
            )
        }
        if not asked:
            return []
        fields = "\n".join(
            f"{alias}: assetCheckExecutions(assetKey: {{path: {json.dumps(table.split('.'))}}}, "
            f"checkName: {json.dumps(check)}, limit: {_HISTORY}) {_CHECK}"
            for alias, (table, check) in asked.items()
        )
        found = self._ask(f"{{ {fields} }}", {})
        answers = (
            (*asked[alias], _answered(executions))
            for alias, executions in found.items()
            if alias in asked
        )
        return [
            RedCheck(table, check, _first_line(answer["description"]), _at(answer["timestamp"]))
            for table, check, answer in answers
            if answer and not answer["success"] and answer["severity"] == "ERROR"
        ]

    def last_runs(self, tables: Iterable[str]) -> dict[str, LastRun]:
        """Return the newest run of each table that has one.

        Raises: LakeError: as `red_checks`.
        """
        found = self._ask(_RUNS, {"keys": _keys(tables)})["assetsLatestInfo"]
        return {
            _name(each): LastRun(
                run["runId"],
                run["status"] == _FAILURE,
                _at(run["endTime"]) if run["endTime"] else None,
            )
            for each in found
            if (run := each["latestRun"])
        }

    def why_failed(self, run_id: str) -> str:
        """Return the cause of a run's failure, in one line; empty if Dagster does not know.

        Raises: LakeError: as `red_checks`.
        """
        run = self._ask(_WHY, {"run": run_id, "limit": _EVENTS_MAX})["runOrError"]
        events = run.get("eventConnection", {}).get("events", [])
        for event in events:
            if error := event.get("error"):
                causes = [error, *error["causes"]]
                return _first_line(causes[-1]["message"])
        return next((_first_line(each["message"]) for each in events if each.get("message")), "")

    def _ask(self, query: str, variables: Mapping[str, Any]) -> Any:
        """Return the data of an answer. Raises: LakeError: there is none."""
        try:
            response = requests.post(
                f"{self._uri}/graphql",
                json={"query": query, "variables": variables},
                timeout=_TIMEOUT_S,
            )
            answer = response.json()
        except (OSError, ValueError) as err:
            raise LakeError(f"Dagster at {self._uri} does not answer: {_first_line(err)}") from err
        if answer.get("errors"):
            message = answer["errors"][0].get("message", "")
            raise LakeError(f"Dagster at {self._uri} refused a query: {_first_line(message)}")
        return answer["data"]


def _keys(tables: Iterable[str]) -> list[dict[str, list[str]]]:
    return [{"path": table.split(".")} for table in tables]


def _name(node: Mapping[str, Any]) -> str:
    return ".".join(node["assetKey"]["path"])


def _answered(executions: Iterable[Mapping[str, Any]]) -> Any:
    """The newest evaluation: an execution that is under way has none yet."""
    return next((each["evaluation"] for each in executions if each["evaluation"]), None)


def _at(timestamp: float) -> datetime:
    return datetime.fromtimestamp(timestamp, UTC)


def _first_line(text: object) -> str:
    return next((line.strip() for line in str(text or "").splitlines() if line.strip()), "")
