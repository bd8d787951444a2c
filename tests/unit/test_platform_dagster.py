"""Dagster's processes: when they may start beside each other."""

from __future__ import annotations

import pytest
import yaml
from dagster import DagsterInstance

from gazette_platform.errors import ValidationError
from gazette_platform.platform.dagster import (
    CODE_SERVER,
    DAEMON,
    WEBSERVER,
    code_servers,
    dagster_components,
)
from gazette_platform.platform.platform import PlatformOptions

DATABASES = ["history/runs.db", "history/runs/index.db", "schedules/schedules.db"]


def components(home, **options):
    code_ports = {
        name: 2 + n for n, name in enumerate(code_servers(options.get("definitions", ())))
    }
    return dagster_components(
        home,
        port=1,
        code_ports=code_ports,
        environment={},
        requires=("broker-1",),
        uses=("trino",),
        **options,
    )


def requires_of_the_daemon(home):
    found = components(home)
    return next(component.requires for component in found if component.name == DAEMON)


@pytest.mark.parametrize("missing", DATABASES)
def test_tables_of_a_new_home_are_made_by_one_process(tmp_path, missing):
    assert requires_of_the_daemon(tmp_path) == ("broker-1", CODE_SERVER, WEBSERVER)
    for database in set(DATABASES) - {missing}:
        (tmp_path / database).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / database).touch()
    assert requires_of_the_daemon(tmp_path) == ("broker-1", CODE_SERVER, WEBSERVER)
    (tmp_path / missing).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / missing).touch()
    assert requires_of_the_daemon(tmp_path) == ("broker-1", CODE_SERVER)


def test_every_pool_has_a_limit_and_settings_of_ones_own_stay(tmp_path):
    components(tmp_path)
    settings = tmp_path / "dagster.yaml"
    written = settings.read_text()
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        config = instance.get_concurrency_config()
    assert config.pool_config.default_pool_limit == 1
    assert config.pool_config.pool_granularity.value == "run"
    assert config.run_queue_config.max_concurrent_runs == 2
    raw = yaml.safe_load(written)
    del raw["concurrency"]["pools"]
    former = written.replace("  pools:\n    default_limit: 1\n    granularity: run\n", "")
    assert yaml.safe_load(former) == raw
    settings.write_text(former)
    components(tmp_path)
    assert settings.read_text() == written
    for own in ("telemetry:\n  enabled: true\n", former + "# mine\n"):
        settings.write_text(own)
        components(tmp_path)
        assert settings.read_text() == own


def test_code_of_users_waits_for_ours_to_make_the_tables_of_a_new_home(tmp_path):
    found = {one.name: one.requires for one in components(tmp_path, definitions=("/a/mine.py",))}
    assert found[CODE_SERVER] == ()
    assert found["dagster-code-mine"] == (CODE_SERVER,)
    for database in DATABASES:
        (tmp_path / database).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / database).touch()
    found = {one.name: one.requires for one in components(tmp_path, definitions=("/a/mine.py",))}
    assert found["dagster-code-mine"] == ()


def test_each_file_of_a_user_has_a_process_and_a_location_of_its_own(tmp_path):
    found = {one.name: one for one in components(tmp_path, definitions=("/a/mine.py", "/b/c.py"))}
    assert [*found] == [CODE_SERVER, "dagster-code-mine", "dagster-code-c", WEBSERVER, DAEMON]
    mine = found["dagster-code-mine"]
    assert {"--python-file=/a/mine.py", "--working-directory=/a", "--port=3"} < set(mine.command)
    assert mine.ports == (3,)
    for name in (WEBSERVER, DAEMON):
        assert {CODE_SERVER, "dagster-code-mine", "dagster-code-c"} < set(found[name].requires)
    # Runs are processes of the code servers: what these use is stopped after them.
    assert mine.uses == ("broker-1", "trino")
    workspace = yaml.safe_load((tmp_path / "workspace.yaml").read_text())
    assert [entry["grpc_server"]["location_name"] for entry in workspace["load_from"]] == [
        "gazette_platform.definitions",
        "mine.py",
        "c.py",
    ]
    assert [entry["grpc_server"]["port"] for entry in workspace["load_from"]] == [2, 3, 4]


@pytest.mark.parametrize(
    ("names", "without", "error"),
    [
        (["mine.py"], {"dagster"}, "without dagster nothing would load it"),
        (["mine.txt"], set(), "mine.txt is not a Python file"),
        (["missing.py"], set(), "there is no file .*missing.py"),
        (["mine.py", "more/mine.py"], set(), "mine.py is repeated"),
    ],
)
def test_files_that_cannot_be_loaded_are_refused_before_anything_starts(
    tmp_path, names, without, error
):
    (tmp_path / "more").mkdir()
    for name in ("mine.py", "mine.txt", "more/mine.py"):
        (tmp_path / name).touch()
    files = tuple(str(tmp_path / name) for name in names)
    with pytest.raises(ValidationError, match=error):
        PlatformOptions(definitions=files, without=frozenset(without))


def test_ports_of_code_servers_have_names(tmp_path):
    (tmp_path / "mine.py").touch()
    options = PlatformOptions(definitions=(str(tmp_path / "mine.py"),))
    assert options.port_names()[-3:] == ["dagster", "dagster-code", "dagster-code-mine"]
    assert "dagster-code" not in PlatformOptions(without=frozenset({"dagster"})).port_names()
