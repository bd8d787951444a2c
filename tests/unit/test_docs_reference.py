"""The reference pages name everything that there is to set, and nothing that is not there."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import count
from pathlib import Path

import msgspec

from benchmarks.targets import (
    CLUSTER_TARGETS,
    FAILOVER_TARGETS,
    LAKE_TARGETS,
    TARGETS,
    WIRE_TARGETS,
    judge,
)
from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.cli.gazctl.lake.list import prometheus_text
from gazette_platform.client import ClientConfig, ClientCounts
from gazette_platform.consumer.runtime.replicas import ShardMetrics
from gazette_platform.kafka.gateway import KafkaMetrics
from gazette_platform.lake.spec.table_spec import Column, Partition, TableSpec, parse_table_spec
from gazette_platform.lake.spec.typed import read_typed_spec
from gazette_platform.lake.spec.typed.columns import ColumnEntry
from gazette_platform.lake.spec.types import (
    RAW,
    SCALARS,
    parse_typed,
    spark_ddl,
    text_of,
    trino_name,
)
from gazette_platform.lake.typed.iceberg_types import iceberg_type
from gazette_platform.platform.layout import Endpoints, PlatformDir
from gazette_platform.protocol.pb import admin_pb2, protocol_pb2
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree, to_journal_tree
from tests.checker.report import ANOMALIES

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def words_of(page: str) -> set[str]:
    """What a page sets in code type within its tables."""
    rows = [r for r in (REFERENCE / page).read_text().splitlines() if r.startswith("|")]
    return set(re.findall(r"`([^`]+)`", "\n".join(rows)))


def test_every_metric_is_documented():
    exposed = BrokerMetrics().exposition().decode()
    names = set(re.findall(r"^# HELP (\w+)", exposed, re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    assert names
    names |= {f"{metric.name}_total" for metric in ClientCounts().collect()}
    names |= {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in (*ShardMetrics({}).collect(), *KafkaMetrics().collect())
    }
    names |= {line.split()[2] for line in prometheus_text([]).splitlines() if "HELP" in line}
    documented = {
        n for n in words_of("metrics.md") if n.startswith(("gazette_", "grpc_server_", "process_"))
    }
    assert documented == names


def test_every_kind_of_unforeseen_error_is_documented():
    package = ROOT / "gazette_platform"
    code = "\n".join(path.read_text() for path in package.rglob("*.py"))
    kinds = set(re.findall(r'faults\.(?:report|contained)\(\s*"(\w+)"', code))
    assert {"call", "loop", "key", "leaving"} <= kinds
    assert kinds <= words_of("metrics.md")


def test_every_anomaly_is_documented():
    text = (ROOT / "tests" / "README.md").read_text()
    assert [name for name in ANOMALIES if f"`{name}`" not in text] == [
        name for name in ANOMALIES if name.startswith("int-")
    ]


def test_every_field_of_the_client_is_documented():
    fields = {field.name for field in dataclasses.fields(ClientConfig)}
    assert fields <= words_of("configuration.md")


def test_every_variable_is_documented():
    used: set[str] = set()
    for path in [*(ROOT / "gazette_platform").rglob("*.py"), ROOT / "tools/check_needs.py"]:
        used |= set(re.findall(r"\bGAZETTE_[A-Z][A-Z_]+", path.read_text()))
    used.add("GAZETTE_REQUIRE_SERVERS")
    documented = set(
        re.findall(
            r"\bGAZETTE_[A-Z][A-Z_]+",
            (REFERENCE / "configuration.md").read_text() + (REFERENCE / "cli.md").read_text(),
        )
    )
    assert documented == used


def test_tree_of_journal_specs_is_one_and_is_deleted_as_documented():
    text = (REFERENCE / "journal-specs.md").read_text()
    (tree,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    changes = parse_journal_tree(tree.encode())
    found = {each.spec.name: (each.revision, each.spec.replication) for each in changes}
    assert found == {"events/part=000": (0, 2), "events/part=001": (1234, 3)}
    listed = to_journal_tree([(each.spec, 7) for each in changes])
    deleted = parse_journal_tree(f"delete: true\n{listed}".encode())
    assert [(each.delete, each.revision) for each in deleted] == [(name, 7) for name in found]
    assert "`part=10` before `part=9`" in text
    names = ["part=10", "part=9", "a-b/", "a/", "A/"]
    assert sorted(names) == ["A/", "a-b/", "a/", "part=10", "part=9"]


def test_every_key_of_endpoints_is_documented():
    assert {field.name for field in dataclasses.fields(Endpoints)} <= words_of("endpoints.md")


def test_every_folder_of_a_platform_is_documented():
    names = {
        name
        for name, value in vars(PlatformDir).items()
        if isinstance(value, property) and name not in {"endpoints", "state", "request", "lock"}
    }
    assert {f"{name}/" for name in names} <= words_of("endpoints.md")


def test_every_key_of_table_specs_is_documented():
    words = words_of("table-spec.md")
    assert {f.encode_name for f in msgspec.structs.fields(TableSpec)} <= words
    text = (REFERENCE / "table-spec.md").read_text()
    for field in (*msgspec.structs.fields(Column), *msgspec.structs.fields(Partition)):
        assert f"`{field.encode_name}`" in text


def test_every_column_type_is_documented():
    documented = re.findall(r"`([a-z]+)", (REFERENCE / "table-spec.md").read_text())
    assert set(re.findall(r"[a-z]+", re.sub(r"[<(][^,]*(,[^,]*)?[>)]", "", RAW.names))) <= set(
        documented
    )


def typed_tables() -> str:
    """What the page on table specs says of typed tables."""
    text = (REFERENCE / "table-spec.md").read_text()
    return text.split("## Typed tables", 1)[1].split("\n## ", 1)[0]


def test_every_key_of_typed_tables_is_documented():
    raw = parse_table_spec("""
        name: flights.flights
        selector: name:prefix=flights/
        format: json
        columns: [{name: departure, type: string}, {name: fare, type: double}, {name: origin, type: string}]
    """)
    section = msgspec.yaml.decode(typed_tables().split("```yaml", 1)[1].split("```", 1)[0])["typed"]
    spec, errors = read_typed_spec(raw, section)
    assert spec is not None, errors
    # The error of an unknown key lists those that there are.
    _, (error,) = read_typed_spec(raw, {"uuid": "none", "nope": 1})
    keys = re.findall(r"\w+", error.message.partition("use one of ")[2])
    assert len(keys) > 10
    rows = re.findall(r"^\| (`.*?) \|", typed_tables(), re.MULTILINE)
    documented = set(re.findall(r"`(\w+)", " ".join(rows)))
    assert {*keys, *(f.encode_name for f in msgspec.structs.fields(ColumnEntry))} <= documented


def test_types_of_typed_tables_are_documented_as_engines_have_them():
    table = (
        typed_tables().split("<!-- typed: as the code has them -->", 1)[1].split("<!-- end", 1)[0]
    )
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[3:]]
    found = set()
    for types, _, iceberg, trino, spark in rows:
        names = re.findall(r"(?<!\()`(\w+)`", types)
        for index, name in enumerate(names):
            kind = parse_typed(name)
            told = [cell.rstrip(" |").split(", ")[index] for cell in (iceberg, trino, spark)]
            assert told == [str(iceberg_type(kind, count(1))), trino_name(kind), spark_ddl(kind)]
            found.add(name)
        for alias in re.findall(r"\(`(\w+)`\)", types):
            assert text_of(parse_typed(alias)) in found
    assert found == set(SCALARS)


def test_the_kept_run_is_reported_with_the_targets_that_it_missed():
    kept = json.loads((ROOT / "benchmarks" / "results" / "latest.json").read_text())["figures"]
    text = (ROOT / "docs" / "internals" / "performance.md").read_text()
    told = text.split("## What the kept run shows", 1)[1].split("\n## ", 1)[0]
    assert f"{kept['machine_speed_ratio']:.2f} times as fast" in told
    targets = (*TARGETS, *CLUSTER_TARGETS, *FAILOVER_TARGETS, *LAKE_TARGETS, *WIRE_TARGETS)
    missed = {
        one.target.name for one in judge(kept, targets) if one.value is not None and not one.is_met
    }
    named = set(re.findall(r"`(\w+)`", told)) & {one.name for one in targets}
    assert named == missed, (
        "docs/internals/performance.md names the targets that the kept run missed"
    )


def test_modules_named_in_architecture_exist():
    """Who moves a module corrects the page; `tools/gen_modules.py` generates the map of all."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    package = ROOT / "gazette_platform"
    short_way = page.split("its response:", 1)[1].split(".", 1)[0]
    in_broker = {f"broker/{name}" for name in re.findall(r"`([a-z_/]+)`", short_way)}
    named = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+)`", page.replace(short_way, "")))
    assert len(in_broker) > 5
    assert len(named) > 20
    missing = {
        n
        for n in named | in_broker
        if not ((package / n / "__init__.py").is_file() or (package / f"{n}.py").is_file())
    }
    assert not missing, f"ARCHITECTURE.md names modules that do not exist: {sorted(missing)}"


def test_the_table_of_capabilities_names_every_call():
    guide = (ROOT / "docs" / "guides" / "security.md").read_text()
    rows = [line.split("|")[1] for line in guide.splitlines() if re.match(r"\| [A-Z]", line)]
    named = {word for row in rows for word in re.findall(r"[A-Z]\w+", row)}
    services = (
        protocol_pb2.DESCRIPTOR.services_by_name["Journal"],
        admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    )
    assert {method.name for service in services for method in service.methods} <= named
