"""Which platform and broker a command uses."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from gazette_platform.ops import platforms
from gazette_platform.ops.platforms import Chosen, choose

A, B, C = Path("/a"), Path("/b"), Path("/c")
LOCAL = Path("/project/.gazette")


@pytest.mark.parametrize(
    ("known", "root", "is_running", "others"),
    [
        ({}, None, False, ()),
        # A flag or a variable wins, whether that platform runs or not.
        (
            {"named": A, "local": LOCAL, "remembered": [B], "running": {LOCAL, B}},
            A,
            False,
            (LOCAL, B),
        ),
        ({"named": A, "remembered": [B, A], "running": {A}}, A, True, ()),
        # Then the folder of the project, likewise.
        ({"local": LOCAL, "remembered": [B], "running": {LOCAL, B}}, LOCAL, True, (B,)),
        ({"local": LOCAL, "remembered": [B, LOCAL], "running": {B}}, LOCAL, False, (B,)),
        # Then the one that was started last, of those that run.
        ({"remembered": [A, B], "running": {A, B}}, A, True, (B,)),
        ({"remembered": [A, B, C], "running": {B, C}}, B, True, (C,)),
        ({"remembered": [A, B], "running": set()}, A, False, ()),
    ],
)
def test_choice_of_a_platform(known, root, is_running, others):
    assert choose(**known) == Chosen(root, is_running, others)


ENDPOINTS = {"broker": "http://e:1", "brokers": ["http://e:1", "http://e:2"]}


@pytest.mark.parametrize(
    ("environment", "broker", "is_adopted"),
    [
        ({}, "http://running:1", True),
        ({"BROKER_ADDRESS": ""}, "http://running:1", True),
        ({"GAZETTE_TABLES": "/specs"}, "http://running:1", True),
        ({"CONSUMER_ADDRESS": "http://c:1"}, "http://running:1", True),
        ({"BROKER_ADDRESS": "http://b:1"}, "http://b:1", False),
        ({"GAZETTE_BROKER_ADDRESS": "http://g:1"}, "http://g:1", False),
        ({"GAZETTE_ENDPOINTS": "endpoints.json"}, "http://e:1,http://e:2", False),
        ({"GAZETTE_ENDPOINTS": "missing.json"}, "", False),
        ({"GAZETTE_METASTORE_URI": "thrift://m:1"}, "", False),
        ({"GAZETTE_TRINO_URI": "http://t:1"}, "", False),
        (
            {"BROKER_ADDRESS": "http://b:1", "GAZETTE_BROKER_ADDRESS": "http://g:1"},
            "http://b:1",
            False,
        ),
        (
            {"GAZETTE_BROKER_ADDRESS": "http://g:1", "GAZETTE_ENDPOINTS": "endpoints.json"},
            "http://g:1",
            False,
        ),
    ],
)
def test_order_of_what_names_a_broker(user, monkeypatch, environment, broker, is_adopted):
    monkeypatch.chdir(user.home)
    Path("endpoints.json").write_text(json.dumps(ENDPOINTS))
    root = user.start("p", BROKER_ADDRESS="http://running:1", GAZETTE_TABLES="/running/tables")
    said = []
    found = platforms.complete(user.environment | environment, say=said.append)
    assert found.get("BROKER_ADDRESS", "") == broker
    assert said == ([f"using the platform in {platforms.short(root)}"] if is_adopted else [])
    if is_adopted:
        assert found["GAZETTE_TABLES"] == environment.get("GAZETTE_TABLES", "/running/tables")


class User:
    """A user's folders, in which this process plays the supervisor of each platform."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {"HOME": str(home)}

    def start(self, name: str, **variables: str) -> Path:
        root = self.home / name
        root.mkdir(exist_ok=True)
        platforms.remember(root, self.environment)
        platforms.publish(root, variables)
        return root

    def find(self, **options: Path) -> Chosen:
        return platforms.find(self.environment, here=self.home, **options)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path.resolve())


def test_platform_started_last_is_found_until_it_stops(user: User):
    assert user.find() == Chosen()
    first, second = user.start("first"), user.start("second")
    assert user.find() == Chosen(second, True, (first,))
    platforms.withdraw(second)
    assert user.find() == Chosen(first, True, ())
    platforms.withdraw(first)
    assert user.find() == Chosen(second, False, ())
    user.start("first")
    assert user.find() == Chosen(first, True, ())


def test_folder_that_was_removed_is_forgotten(user: User):
    kept, gone = user.start("kept"), user.start("gone")
    shutil.rmtree(gone)
    assert user.find() == Chosen(kept, True, ())


def test_copy_of_a_folder_is_not_its_platform(user: User):
    root = user.start("p")
    shutil.copytree(root, user.home / "copy")
    assert user.find(named=user.home / "copy") == Chosen(user.home / "copy", False, (root,))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1', '{"pid": 1, "started": 2}'])
def test_file_of_a_platform_that_cannot_be_read_is_one_that_does_not_run(user: User, text: str):
    root = user.start("p")
    (root / "running.json").write_text(text)
    assert user.find() == Chosen(root, False, ())


def test_supervisor_that_was_killed_no_longer_runs(user: User):
    root = user.start("p", BROKER_ADDRESS="http://b:1")
    raw = json.loads((root / "running.json").read_text())
    (root / "running.json").write_text(json.dumps(raw | {"started": raw["started"] + 1}))
    assert user.find() == Chosen(root, False, ())
    assert platforms.adopted(user.environment, here=user.home) == {}


def test_variables_may_hold_keys_and_are_for_their_owner_alone(user: User):
    root = user.start("p", AWS_SECRET_ACCESS_KEY="s")
    assert stat.S_IMODE((root / "running.json").stat().st_mode) == 0o600


def test_local_folder_is_the_default_root_if_it_exists(user: User):
    shared = user.home / ".local/share/gazette"
    assert platforms.default_root(user.environment, user.home) == shared
    own = user.environment | {"XDG_DATA_HOME": "/data"}
    assert platforms.default_root(own, user.home) == Path("/data/gazette")
    assert platforms.default_root(user.environment | {"XDG_DATA_HOME": "x"}, user.home) == shared
    (user.home / ".gazette").mkdir()
    assert platforms.default_root(own, user.home) == user.home / ".gazette"
    named = own | {"GAZETTE_ENDPOINTS": "/elsewhere/endpoints.json"}
    assert platforms.default_root(named, user.home) == Path("/elsewhere")


def test_variables_of_other_programs_are_those_of_the_platform(user: User, monkeypatch):
    monkeypatch.chdir(user.home)
    user.start("p", JAVA_HOME="/ours", PYSPARK_PYTHON="/python", GAZETTE_ICEBERG_JAR="/jar")
    theirs = {"JAVA_HOME": "/old", "GAZETTE_ICEBERG_JAR": "provided"}
    found = platforms.complete(user.environment | theirs, say=print)
    assert (found["JAVA_HOME"], found["GAZETTE_ICEBERG_JAR"]) == ("/ours", "provided")
    assert found["PYSPARK_PYTHON"] == "/python"
    on_cluster = platforms.complete(
        user.environment | {"GAZETTE_SPARK_MASTER": "spark://m:1"}, say=print
    )
    assert "PYSPARK_PYTHON" not in on_cluster


def test_advice_names_the_next_step(user: User):
    advice = platforms.advice(user.environment, user.home)
    assert advice.startswith("no platform runs: start one with `gazette up --light`")
    root = user.start("p")
    assert "p is still starting: see `gazette status`" in platforms.advice(
        user.environment, user.home
    )
    platforms.withdraw(root)
    advice = platforms.advice(user.environment, user.home)
    assert f"is not running: start it with `gazette up --root {platforms.short(root)}`" in advice
    local = user.start(".gazette")
    platforms.withdraw(local)
    advice = platforms.advice(user.environment, user.home)
    assert ".gazette is not running: start it with `gazette up`" in advice


def test_few_platforms_are_remembered(user: User):
    for number in range(30):
        user.start(f"p{number}")
    assert len(list((user.home / ".local/state/gazette/platforms").iterdir())) <= 21
    assert user.find().root == user.home / "p29"


def test_note_names_other_platforms_that_run():
    assert Chosen(A, True).note() == "using the platform in /a"
    assert Chosen(A, True, (B,)).note() == "using the platform in /a (another one runs in /b)"
    assert Chosen(A, True, (B, C)).note() == "using the platform in /a (others run in /b; /c)"
