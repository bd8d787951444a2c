"""Alert rules and dashboards ask for metrics that are really exported, and lead to advice that exists."""

import json
import re
from pathlib import Path

import pytest
import yaml

from gazette_platform.broker.context import BrokerMetrics
from gazette_platform.cli.gazctl.lake.list import prometheus_text
from gazette_platform.consumer.runtime.replicas import ConsumerMetrics
from tools import gen_dashboards

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for page in gen_dashboards.DASHBOARDS for panel in page.panels]
# What Prometheus makes itself for each process that it asks.
OF_PROMETHEUS = {"up"}
NAME = re.compile(r"\b(?:gazette|grpc|process)_[a-z_]*[a-z]\b|\bup\b")


@pytest.fixture(scope="module")
def exported():
    """Names of all series of brokers, consumers and `gazctl lake list`."""
    broker, consumer = BrokerMetrics(), ConsumerMetrics()
    consumer.watch({})
    pages = broker.exposition(), consumer.exposition(), prometheus_text([]).encode()
    names = set()
    for line in b"\n".join(pages).decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            names.update(name + suffix for suffix in suffixes)
    return names | OF_PROMETHEUS


def labels_aside(expression):
    """An expression without what stands in braces, `by (…)` and `on (…)`, which are labels."""
    return re.sub(r"\{[^}]*\}|\b(?:by|on|group_right|group_left) *\([^)]*\)", "", expression)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_asks_for_what_is_exported(rule, exported):
    names = set(NAME.findall(labels_aside(rule["expr"])))
    assert names
    assert names <= exported


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_panel_asks_for_what_is_exported(panel, exported):
    for expression in panel.queries.values():
        names = set(NAME.findall(labels_aside(expression)))
        assert names
        assert names <= exported


def test_metric_that_no_server_exports_would_be_noticed(exported):
    assert "gazette_spool_commits_total" in exported
    assert not {"gazette_spool_commited_total", "grpc_server_handled"} & exported


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_leads_to_a_heading_that_says_what_to_do(rule):
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}
    assert rule["labels"]["severity"] in {"page", "ticket"}


def test_each_alert_is_seen_to_fire():
    cases = yaml.safe_load((ALERTS.parent / "alerts_test.yaml").read_text())["tests"]
    fired = {
        check["alertname"]
        for case in cases
        for check in case["alert_rule_test"]
        if check["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in RULES}


def test_dashboards_are_as_generated():
    for page in gen_dashboards.DASHBOARDS:
        path = gen_dashboards.FOLDER / f"{page.uid.removeprefix('gazette-')}.json"
        assert path.read_text() == gen_dashboards.rendered(page)
        assert {panel["title"] for panel in json.loads(path.read_text())["panels"]} == {
            panel.title for panel in page.panels
        }
