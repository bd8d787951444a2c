"""The catalog sensor: one reload per change of the specs, and again when it failed."""

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from dagster import build_sensor_context
from dagster_instances import new_instance

from gazette_platform.assets.rollups import ROLLUPS_KEY
from gazette_platform.errors import SetupError
from gazette_platform.lake import SpecFolder, read_spec_folder
from gazette_platform.lake.rollups import RollupFolder
from gazette_platform.resources import (
    BrokerResource,
    LakeResource,
    MetastoreResource,
    catalog_digest,
)
from gazette_platform.sensors import catalog, catalog_sensor

# Dagster's client calls `gql` in a way that gql's version 4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Using variable_values:DeprecationWarning")

SPEC = "{name: s.a, selector: name=a, format: json, columns: [{name: id, type: int}]}"


@dataclass
class Origin:
    location_name: str = "there"


@pytest.fixture
def instance():
    with new_instance() as made:
        yield made


@pytest.fixture
def tick(tmp_path, monkeypatch, instance):
    asked = []
    monkeypatch.setattr(
        catalog, "reload_location", lambda url, name: asked.append((url, name)), raising=True
    )
    begun = catalog_digest(SpecFolder(), RollupFolder())

    def run(cursor, *, ui="http://ui", loaded=begun, told=None, metastore=None):
        context = build_sensor_context(
            instance=instance,
            cursor=cursor,
            resources={
                "lake": LakeResource(
                    tables=str(tmp_path), rollups=str(tmp_path), dagster_ui=ui, loaded=loaded
                ),
                "metastore": metastore or MetastoreResource(uri=""),
                "broker": BrokerResource(address=""),
            },
        )
        context._code_location_origin = Origin()
        result = catalog_sensor(context)
        if told is not None:
            told += result.asset_events
        skipped = result.skip_reason
        return result.cursor, skipped.skip_message if skipped is not None else "", asked

    return run


ROLLUP = "-- name: r.sums\n-- sources: [s.a]\nselect sum(id) as n from a\n"


def test_rollups_are_part_of_the_catalog(tick, tmp_path):
    cursor, _, asked = tick(None)
    (tmp_path / "trino").mkdir()
    (tmp_path / "trino" / "sums.sql").write_text(ROLLUP)
    cursor, message, asked = tick(cursor)
    assert (message, len(asked)) == ("", 1)
    assert tick(cursor)[1:] == ("The catalog is up to date.", asked)


def test_refused_rollups_turn_the_check_of_their_folder_red(tick, tmp_path):
    told = []
    cursor, message, _ = tick(None, told=told)
    assert [event.asset_key for event in told] == [ROLLUPS_KEY] * 2
    assert told[1].passed
    assert not message
    (tmp_path / "trino").mkdir()
    (tmp_path / "trino" / "sums.sql").write_text(ROLLUP)
    (tmp_path / "trino" / "bad.sql").write_text("select 1")
    (tmp_path / "s.yaml").write_text(SPEC.replace("s.a", "r.sums"))
    told.clear()
    cursor, message, asked = tick(cursor, told=told)
    (made, check) = told
    assert made.description == "0 rollups, 2 refused"
    assert (check.check_name, check.passed, check.blocking) == ("specs_are_good", False, False)
    assert "trino/bad.sql: has no header" in check.description
    assert "r.sums: there is a raw or typed table r.sums" in check.description
    told.clear()
    assert tick(cursor, told=told)[2] == asked
    assert told == []
    (tmp_path / "s.yaml").unlink()
    (tmp_path / "trino" / "bad.sql").unlink()
    tick(cursor, told=told)
    assert told[1].passed


def test_reload_once_a_change(tick, tmp_path):
    cursor, message, asked = tick(tick(None)[0])
    assert (message, asked) == ("The catalog is up to date.", [])
    (tmp_path / "a.yaml").write_text(SPEC)
    cursor, message, asked = tick(cursor)
    assert asked == [("http://ui", "there")]
    assert not message  # else Dagster logs it as skipped
    assert tick(cursor)[2] == asked[:1]
    cursor = tick(cursor)[0]
    (tmp_path / "broken.yaml").write_text("name: [")  # whose assets are reported as well
    assert len(tick(cursor)[2]) == 2


def test_a_reload_that_fails_is_a_red_tick(tick, tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(SPEC)

    def fail(url, name):
        raise SetupError("down")

    monkeypatch.setattr(catalog, "reload_location", fail)
    with pytest.raises(SetupError, match="down"):
        tick("old")


def test_without_an_address_it_says_what_to_do_until_it_is_done(tick, tmp_path):
    (tmp_path / "a.yaml").write_text(SPEC)
    cursor, _, asked = tick("old", ui="")
    cursor, message, asked = tick(cursor, ui="")
    assert asked == []
    assert "GAZETTE_DAGSTER_URI" in message
    reloaded = catalog_digest(read_spec_folder(tmp_path), RollupFolder())
    assert tick(cursor, ui="", loaded=reloaded)[1] == "The catalog is up to date."


def entry(**outcome):
    return {"__typename": "WorkspaceLocationEntry", "name": "there", "locationOrLoadError": outcome}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (entry(__typename="RepositoryLocation"), ""),
        (entry(__typename="PythonError", message="no such module"), "no such module"),
        ({"__typename": "RepositoryLocationNotFound", "message": "nowhere"}, "nowhere"),
        ({"__typename": "PythonError"}, "did not reload there"),
        ({"__typename": "UnauthorizedError"}, "did not reload there"),
        (None, "did not reload there"),
    ],
)
@pytest.mark.parametrize("path", ["", "/", "/below/"])
def test_answers_of_the_web_server(answer, message, path):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, *body["variables"].values()))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"data": {"reloadRepositoryLocation": answer}}).encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}{path}"
        if message:
            with pytest.raises(SetupError, match=message):
                catalog.reload_location(url, "there")
        else:
            catalog.reload_location(url, "there")
        thread.join(5)
    assert asked == [(f"{path.rstrip('/')}/graphql", "there")]


def test_unreachable_web_server():
    with pytest.raises(SetupError, match=r"http://127.0.0.1:1 did not reload there: .*tried again"):
        catalog.reload_location("http://127.0.0.1:1", "there")
