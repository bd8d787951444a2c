"""The files of a platform, and its ports."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.platform import component
from gazette_platform.platform.component import choose_ports, is_free
from gazette_platform.platform.layout import ComponentState, Endpoints, PlatformDir, PlatformState
from gazette_platform.platform.platform import PlatformOptions, endpoints_of, environment_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_endpoints_file_has_the_agreed_keys(tmp_path: Path):
    options = PlatformOptions(brokers=2)
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    endpoints = endpoints_of(options, ports)
    endpoints.save(tmp_path / "endpoints.json")
    raw = json.loads((tmp_path / "endpoints.json").read_text())
    assert raw == {
        "etcd": "http://127.0.0.1:20000",
        "broker": "http://127.0.0.1:20002",
        "brokers": ["http://127.0.0.1:20002", "http://127.0.0.1:20004"],
        "http": "http://127.0.0.1:20003",
        "metastore": "thrift://127.0.0.1:20006",
        "trino": "http://127.0.0.1:20007",
        "dagster": "http://127.0.0.1:20008",
    }
    assert Endpoints.load(tmp_path / "endpoints.json") == endpoints
    # All brokers, by the file and by variables: any of them may end.
    environment = {"GAZETTE_ENDPOINTS": str(tmp_path / "endpoints.json")}
    by_file = LakeSettings.from_environment(environment).broker
    assert by_file == "http://127.0.0.1:20002,http://127.0.0.1:20004"
    bare = replace(endpoints, metastore="")  # whose variables need tools
    environment = environment_of(PlatformDir.at(tmp_path), bare)
    assert LakeSettings.from_environment(environment).broker == by_file


def test_clients_of_kafka_find_brokers_and_their_schemas_at_ports_that_they_know():
    options = PlatformOptions(
        brokers=2, without=frozenset({"trino", "dagster", "metastore"}), kafka=True
    )
    assert options.known_ports == {"broker-1-kafka": 9092, "broker-2-kafka": 9093, "registry": 8081}
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    endpoints = endpoints_of(options, ports | options.known_ports)
    assert endpoints.kafka == "127.0.0.1:9092,127.0.0.1:9093"
    assert endpoints.registry == "http://127.0.0.1:8081"


def test_components_left_out_have_no_address(tmp_path: Path):
    options = PlatformOptions(without=frozenset({"trino", "dagster", "broker", "metastore"}))
    assert options.port_names() == ["etcd", "etcd-peer"]
    endpoints = endpoints_of(options, {"etcd": 1, "etcd-peer": 2})
    assert endpoints.addresses() == {"etcd": "http://127.0.0.1:1"}
    http = "http://127.0.0.1:2"
    assert Endpoints(http=http).addresses() == {"http": http, "console": f"{http}/console/"}
    environment = environment_of(PlatformDir.at(tmp_path), endpoints)
    assert "GAZETTE_TRINO_URI" not in environment
    assert environment["GAZETTE_TABLES"] == str(tmp_path / "tables")
    assert environment["GAZETTE_ROLLUPS"] == str(tmp_path / "rollups")
    roots = json.loads(environment["GAZETTE_LAKE_STORE_ROOTS"])
    assert roots == {"file:///": f"file://{tmp_path}/fragments/"}


def test_missing_or_broken_files_say_what_to_do(tmp_path: Path):
    with pytest.raises(SetupError, match="no platform is up"):
        Endpoints.load(tmp_path / "endpoints.json")
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(SetupError, match=r"cannot read .*s\.json"):
        PlatformState.load(tmp_path / "s.json")
    (tmp_path / "s.json").write_text('{"phase": "ready"}')
    with pytest.raises(SetupError, match="is not what `gazette up` writes"):
        PlatformState.load(tmp_path / "s.json")


def test_state_survives_the_file(tmp_path: Path):
    state = PlatformState(
        phase="ready", pid=7, started=8, ports={"etcd": 1}, components={"etcd": ComponentState()}
    )
    state.save(tmp_path / "s.json")
    assert PlatformState.load(tmp_path / "s.json") == state
    assert PlatformState.load(tmp_path / "none.json") == PlatformState()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"without": frozenset({"hive"})}, "--without: unknown component 'hive'"),
        ({"brokers": 0}, "--brokers: expected 1 to 64"),
        ({"ports": {"etcd": 7, "dagster": 7}}, "--port: 7 is given to both etcd and dagster"),
        ({"ports": {"oracle": 1}}, "--port: unknown name 'oracle'"),
    ],
)
def test_unknown_options_are_refused(arguments: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        PlatformOptions(**arguments)


def test_ports_are_kept_while_they_are_free(taken_port: int):
    first = choose_ports(["a", "b", "c"])
    assert len(set(first.values())) == 3
    assert choose_ports(["a", "b", "c"], former=first) == first
    former = {**first, "b": taken_port}
    second = choose_ports(["a", "b", "c"], former=former)
    assert second["a"] == first["a"]
    assert second["c"] == first["c"]
    assert second["b"] not in {taken_port, first["a"], first["c"]}


_CHOOSER = """
from gazette_platform.platform import component
component.secrets.randbelow = lambda _: 100  # all begin to look at the same one
print(*component.choose_ports(["a", "b"]).values())
"""


def chosen_by_processes(folder: Path, count: int) -> list[str]:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CHOOSER],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    return [port for process in processes for port in process.communicate(timeout=60)[0].split()]


def test_processes_that_choose_together_get_ports_of_their_own(tmp_path: Path):
    """Their servers bind them later: a platform's web server found a broker of another at its port."""
    first = chosen_by_processes(tmp_path, 3)
    assert len(set(first)) == 6
    for claim in (tmp_path / f"gazette-ports-{os.getuid()}").iterdir():
        made_at = claim.stat().st_mtime
        os.utime(claim, (made_at - 700, made_at - 700))
    later = chosen_by_processes(tmp_path, 1)
    assert set(later) <= set(first)  # no other process has bound them meanwhile


def test_ports_are_chosen_where_no_claim_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / f"gazette-ports-{os.getuid()}").touch()
    monkeypatch.setattr(component.tempfile, "gettempdir", lambda: str(tmp_path))
    assert is_free(choose_ports(["a"])["a"])


def test_ports_are_not_the_same_each_time():
    """A web page could look for a platform where it is known to be."""
    assert len({choose_ports(["one"])["one"] for _ in range(20)}) > 10


def test_servers_hide_where_127_0_0_1_is_the_only_address(monkeypatch: pytest.MonkeyPatch):
    def is_free_there(port: int, host: str) -> bool:
        return host == "127.0.0.1" and port % 2 == 0

    monkeypatch.setattr(component, "is_free", is_free_there)
    host, port = component.hidden_address()
    assert (host, port % 2) == ("127.0.0.1", 0)
    monkeypatch.setattr(component, "is_free", lambda _port, _host: False)
    with pytest.raises(SetupError, match="no free port"):
        component.hidden_address()


def test_new_names_do_not_take_the_former_port_of_a_later_one():
    first = choose_ports(["old"])
    second = choose_ports(["new", "old"], former=first)
    assert second["old"] == first["old"] != second["new"]


def test_fixed_port_in_use_is_an_error(taken_port: int):
    assert not is_free(taken_port)
    with pytest.raises(SetupError, match=f"port {taken_port} of 127.0.0.1, asked for trino"):
        choose_ports(["trino"], fixed={"trino": taken_port})


def test_a_port_that_specs_of_journals_name_is_kept_or_the_start_refused():
    former = choose_ports(["s3", "etcd"])
    kept = PlatformOptions(store="s3").kept_ports
    assert choose_ports(["s3", "etcd"], former=former, kept=kept) == former
    with socket.socket() as other:
        other.bind(("127.0.0.1", former["s3"]))
        other.listen(1)
        with pytest.raises(SetupError, match=f"port {former['s3']} .* is in use: stop"):
            choose_ports(["s3", "etcd"], former=former, kept=kept)
        assert choose_ports(["s3"], former={}, kept=kept) != {"s3": former["s3"]}
    with pytest.raises(SetupError, match="leave out `--port s3=7`"):
        choose_ports(["s3"], former=former, fixed={"s3": 7}, kept=kept)
    assert PlatformOptions(store="s3://there/?region=eu-central-1").kept_ports == ()
