"""The `gazette` program: sources of options and their precedence, help, and bad input."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import pytest
import typer
from typer.core import TyperGroup

from gazette_platform.cli import gazctl, gazette
from gazette_platform.cli.gazette.platform import next_commands
from gazette_platform.cli.gazette.serve import SERVE_OPTIONS, broker_config
from gazette_platform.platform.layout import Endpoints

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No INI file, no variables of options; those that the program sets are undone."""
    for option in SERVE_OPTIONS:
        monkeypatch.setenv(option.variable, "")
        monkeypatch.delenv(option.variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("GAZETTE_ENDPOINTS", "BROKER_ADDRESS", "GAZETTE_BROKER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)


def configuration(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, str]:
    assert gazette.main(["print-config", *flags]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " = " in line]
    return dict(line.split(" = ", 1) for line in lines)


def test_version_and_help_are_asked_for_as_with_gazctl(capsys: pytest.CaptureFixture[str]):
    assert gazette.main(["--version"]) == 0
    mine = capsys.readouterr().out
    assert gazctl.main(["--version"]) == 0
    assert capsys.readouterr().out == mine != ""
    assert gazette.main(["up", "-h"]) == 0
    assert "gazette up --light" in capsys.readouterr().out


def test_flag_beats_ini_beats_environment_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert configuration(capsys)["zone"] == "local"
    monkeypatch.setenv("BROKER_ZONE", "from-env")
    assert configuration(capsys)["zone"] == "from-env"
    (tmp_path / "gazette.ini").write_text("[Broker]\nZone = from-ini\n[Other]\nx = y\n")
    assert configuration(capsys)["zone"] == "from-ini"
    assert configuration(capsys, "--broker.zone", "from-flag")["zone"] == "from-flag"


def test_printed_configuration_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ("--broker.port=9090", "--etcd.lease=30s", "--broker.file-only", "--log.level=info")
    root = (f"--broker.file-root={tmp_path}",)
    assert gazette.main(["print-config", *flags, *root]) == 0
    text = capsys.readouterr().out
    assert "[Broker]" in text
    (tmp_path / "gazette.ini").write_text(text)
    assert gazette.main(["print-config"]) == 0
    assert capsys.readouterr().out == text


def test_options_become_the_settings_of_a_broker(tmp_path: Path):
    values = {option.name: option.default() for option in SERVE_OPTIONS}
    values |= {
        "broker.id": "some-broker",
        "broker.file-root": str(tmp_path),
        "broker.append-wait": "1m30s",
        "broker.drain-timeout": "500ms",
        "etcd.address": "http://a:1,http://b:2",
    }
    config = broker_config(values)
    assert config.id == "some-broker"
    assert config.file_root == tmp_path
    assert config.append_wait_s == 90
    assert config.drain_timeout_s == 0.5
    assert config.etcd_endpoints == ("http://a:1", "http://b:2")
    assert config.etcd_lease_s == 20


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["serve", "--broker.id=abc"], 1, "broker.id: invalid length (3; expected 4"),
        (["serve", "--broker.file-root=/nonexistent"], 1, "/nonexistent is not a directory"),
        (["serve", "--etcd.lease=20"], 1, "etcd.lease"),
        (["serve", "--etcd.address=localhost:2379"], 1, "etcd.address: expected http://host:port"),
        (["serve", "--log.level=loud"], 1, "log.level: expected one of trace"),
        (["serve", "--log.format=xml"], 1, "log.format: expected one of text"),
        (["serve", "--broker.port=many"], 1, "broker.port: expected a port, 0 to 65535, or unix"),
        (["serve", "--broker.prot=1"], 1, "No such option"),
        (["serve-kafka", "--broker.address=nowhere"], 1, "broker.address: "),
        (["serve-kafka", "--kafka.server-ca-file=x"], 1, "needs --kafka.server-cert-file"),
        (["serve-kafka", "--kafka.port=70000"], 1, "kafka.port: expected 0 to 65535"),
        (["up", "--root=x", "--without=trio"], 1, "--without: unknown component 'trio'"),
        (["up", "--root=x", "--port=trino"], 1, "--port: expected NAME=PORT with a port"),
        (["up", "--root=x", "--brokers=0"], 1, "--brokers: expected 1 to 64"),
        (
            ["up", "--root=x", "--port=etcd=2000", "--port=trino=2000"],
            1,
            "--port: 2000 is given to both etcd and trino",
        ),
        (["up", "--root="], 1, "is empty: name a folder"),
        (["serve", "--broker.spool-dir=/proc"], 1, "cannot write to /proc"),
        (["up", "--light", "--definitions=x.py"], 1, "without dagster nothing would load it"),
        (["up", "--light", "--metastore=thrift://h:1"], 1, "metastore is in --without, too"),
        (["down"], 1, "no platform was started yet (start one with `gazette up --light`"),
        (["status"], 1, "no platform was started yet"),
        (["logs"], 1, "no platform was started yet"),
        (["env"], 1, "no platform was started yet"),
        (["logs", "--root=.", "etcd"], 1, "has no log of 'etcd'; there are none yet"),
        (["down", "--root=missing"], 1, "there is no folder"),
        (["status", "--root=.", "-o", "xml"], 1, "--format: expected table or json"),
        (["status", "--root=."], 1, "no platform was ever started"),
        (["env", "--root=."], 1, "no platform is up in"),
    ],
)
def test_bad_input_is_one_clear_message(
    argv: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    assert gazette.main(argv) == code
    said = capsys.readouterr()
    assert message in " ".join((said.out + said.err).split())
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


BEGIN = [
    "gazctl journals create events/clicks",
    "gazctl journals append events/clicks FILE",
    "gazctl sql \"FROM journal('events/clicks')\"",
]
TABLES = ["gazctl lake create shop.clicks events/clicks", "gazctl lake list"]


@pytest.mark.parametrize(
    ("addresses", "commands"),
    [
        ({"broker": "http://b:1"}, [*BEGIN, "gazette up", "gazette down"]),
        (
            {"broker": "http://b:1", "metastore": "thrift://m:1"},
            [*BEGIN, *TABLES, "gazette down"],
        ),
        ({"metastore": "thrift://m:1"}, ["gazette down"]),
    ],
)
def test_next_commands_fit_the_platform_and_exist(addresses, commands):
    lines = next_commands(Endpoints(**addresses)).splitlines()
    assert [line.partition("#")[0].strip() for line in lines[1:]] == commands
    for program, *words in (shlex.split(command) for command in commands):
        found = typer.main.get_command({"gazctl": gazctl, "gazette": gazette}[program].app)
        while isinstance(found, TyperGroup):
            found = found.commands[words.pop(0)]
        with found.make_context(found.name, words) as parsed:
            assert not parsed.args


def test_broken_ini_file_is_one_clear_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "gazette.ini").write_text("zone = nowhere\n")
    assert gazette.main(["print-config"]) == 1
    assert "gazette.ini is not an INI file" in capsys.readouterr().err


def test_ini_file_that_cannot_be_read_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "gazette.ini").write_text("[Broker]\n")

    def refuse(*_args: object, **_kwargs: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    assert gazette.main(["print-config"]) == 1
    assert capsys.readouterr().err == "gazette: error: cannot read gazette.ini: Permission denied\n"


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]):
    assert gazette.main([]) == 1
    shown = capsys.readouterr().out
    for command in (
        "serve",
        "serve-kafka",
        "print-config",
        "up",
        "down",
        "status",
        "logs",
        "env",
        "install",
        "demo",
    ):
        assert command in shown


@pytest.mark.parametrize(
    "command",
    ["serve", "serve-kafka", "print-config", "up", "down", "status", "logs", "env", "demo"],
)
def test_each_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]):
    assert gazette.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"gazette {command}" in shown
    assert "Example" in shown


def test_every_option_of_serve_shows_its_variable(capsys: pytest.CaptureFixture[str]):
    os.environ["COLUMNS"] = "200"
    assert gazette.main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in SERVE_OPTIONS:
        assert f"--{option.name}" in shown
        assert option.variable in shown
