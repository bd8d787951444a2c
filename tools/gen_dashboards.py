"""Write deploy/grafana/*.json, the dashboards of Grafana, from the panels below; and the chart's copies of them.

A chart holds no file from outside its folder, so deploy/helm/gazette/files has copies of dashboards and alert rules.

    python tools/gen_dashboards.py          write them
    python tools/gen_dashboards.py --check  fail if a file differs from what it would write

Grafana's own form is long and full of defaults; here a panel is a title, a unit, and its queries.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DEPLOY: Final = Path(__file__).resolve().parent.parent / "deploy"
FOLDER: Final = DEPLOY / "grafana"
_PANELS_A_ROW: Final = 2
_GRID_WIDTH: Final = 24
_PANEL_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """A plot over time: by legend, the query of each line."""

    title: str
    unit: str
    """As Grafana names it: `Bps`, `bytes`, `s`, `ops`, `short`, `percentunit`."""
    queries: dict[str, str]
    about: str = ""


@dataclass(frozen=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    variable: str
    """A query of labels, which the page's selector offers."""
    panels: tuple[Panel, ...]


_INSTANCES = 'instance=~"$instance"'

BROKERS = Dashboard(
    "gazette-brokers",
    "Gazette: brokers",
    "label_values(gazette_allocator_members, instance)",
    (
        Panel(
            "Bytes appended",
            "Bps",
            {
                "{{instance}}": f"rate(gazette_spool_commit_bytes_total{{{_INSTANCES}}}[$__rate_interval])"
            },
        ),
        Panel(
            "Appends",
            "ops",
            {
                "{{status}}": "sum by (status) (rate(gazette_journal_server_completed_totals"
                f'{{operation="append", {_INSTANCES}}}[$__rate_interval]))'
            },
            "By the status that each was answered with.",
        ),
        Panel(
            "How long calls take, 99th percentile",
            "s",
            {
                "{{grpc_method}}": "histogram_quantile(0.99, sum by (le, grpc_method) (rate("
                'grpc_server_handling_seconds_bucket{grpc_type!="server_stream", '
                f"{_INSTANCES}}}[$__rate_interval])))"
            },
            "Reads that block at the write head are left out.",
        ),
        Panel(
            "Calls that failed",
            "ops",
            {
                "{{grpc_method}} {{grpc_code}}": "sum by (grpc_method, grpc_code) (rate("
                f'grpc_server_handled_total{{grpc_code!="OK", {_INSTANCES}}}[$__rate_interval]))'
            },
        ),
        Panel(
            "Fragments that wait for a store",
            "short",
            {
                "{{instance}}": f"gazette_spool_completed_total{{{_INSTANCES}}}"
                f" - gazette_spool_persisted_total{{{_INSTANCES}}}"
            },
            "Closed, and not stored yet. If it grows, a store fails.",
        ),
        Panel(
            "Bytes that no store has taken",
            "bytes",
            {"{{instance}}": f"gazette_platform_unpersisted_bytes{{{_INSTANCES}}}"},
        ),
        Panel(
            "Operations of stores that failed",
            "ops",
            {
                "{{operation}} {{store}}": "sum by (store, operation) (rate("
                f'gazette_store_operation_total{{status="error", {_INSTANCES}}}[$__rate_interval]))'
            },
        ),
        Panel(
            "How long stores take, 99th percentile",
            "s",
            {
                "{{operation}} {{store}}": "histogram_quantile(0.99, sum by (le, store, operation) (rate("
                f"gazette_store_operation_duration_seconds_bucket{{{_INSTANCES}}}[$__rate_interval])))"
            },
        ),
        Panel(
            "Journals, replicas and brokers",
            "short",
            {
                "journals": "max(gazette_allocator_items)",
                "replicas wanted": "max(gazette_allocator_desired_replication_slots)",
                "brokers": "max(gazette_allocator_members)",
            },
            "As the leader of the allocator sees them.",
        ),
        Panel(
            "Assignments that moved",
            "ops",
            {
                "added": "sum(rate(gazette_allocator_assignment_added_total[$__rate_interval]))",
                "removed": "sum(rate(gazette_allocator_assignment_removed_total[$__rate_interval]))",
            },
        ),
        Panel(
            "Memory",
            "bytes",
            {"{{instance}}": f"process_resident_memory_bytes{{{_INSTANCES}}}"},
        ),
        Panel(
            "Unforeseen errors",
            "short",
            {
                "{{instance}} {{kind}}": f"gazette_platform_unforeseen_errors_total{{{_INSTANCES}}}",
            },
        ),
    ),
)

CONSUMERS = Dashboard(
    "gazette-consumers",
    "Gazette: consumers",
    "label_values(gazette_shard_transactions_total, instance)",
    (
        Panel(
            "Shards by status",
            "short",
            {"{{status}}": f"count by (status) (gazette_shard_up{{{_INSTANCES}}})"},
        ),
        Panel(
            "Bytes behind the heads of journals",
            "bytes",
            {
                "{{shard}} {{journal}}": "max by (journal) (gazette_write_head) - on (journal) group_right "
                f"max by (shard, journal) (gazette_shard_read_head{{{_INSTANCES}}})"
            },
        ),
        Panel(
            "Messages",
            "ops",
            {
                "{{shard}}": f"rate(gazette_shard_read_messages_total{{{_INSTANCES}}}[$__rate_interval])"
            },
        ),
        Panel(
            "Transactions",
            "ops",
            {
                "{{shard}}": f"rate(gazette_shard_transactions_total{{{_INSTANCES}}}[$__rate_interval])"
            },
        ),
        Panel(
            "Where the time of transactions goes",
            "percentunit",
            {
                "{{phase}}": "sum by (phase) (rate("
                f"gazette_shard_phase_seconds_total{{{_INSTANCES}}}[$__rate_interval]))"
            },
            "Seconds of a second, of all shards together.",
        ),
        Panel(
            "Bytes read",
            "Bps",
            {
                "{{shard}}": f"rate(gazette_shard_read_bytes_total{{{_INSTANCES}}}[$__rate_interval])"
            },
        ),
    ),
)

_TABLES = 'table=~"$table"'

TABLES = Dashboard(
    "gazette-tables",
    "Gazette: tables",
    "label_values(gazette_lake_problems, table)",
    (
        Panel("Rows", "short", {"{{table}}": f"gazette_lake_rows{{{_TABLES}}}"}),
        Panel(
            "Bytes behind the journals",
            "bytes",
            {"{{table}}": f"gazette_lake_lag_bytes{{{_TABLES}}}"},
        ),
        Panel(
            "Records that do not fit",
            "short",
            {
                "{{table}}": f"gazette_lake_unfit_records{{{_TABLES}}}",
                "{{table}}, in quarantine": f"gazette_lake_quarantined{{{_TABLES}}}",
            },
        ),
        Panel(
            "Problems",
            "short",
            {
                "{{table}}": f"gazette_lake_problems{{{_TABLES}}}",
                "{{table}}: rollups wait": f"gazette_lake_blocked{{{_TABLES}}}",
            },
        ),
    ),
)

DASHBOARDS: Final = (BROKERS, CONSUMERS, TABLES)


def rendered(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana imports it."""
    name = dashboard.variable.removesuffix(")").rsplit(", ", 1)[1]
    content = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["gazette"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Prometheus",
                },
                {
                    "name": name,
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": dashboard.variable,
                    "refresh": 2,
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(at, panel) for at, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(content, indent=1) + "\n"


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    width = _GRID_WIDTH // _PANELS_A_ROW
    row, column = divmod(at, _PANELS_A_ROW)
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {
            "x": column * width,
            "y": row * _PANEL_HEIGHT,
            "w": width,
            "h": _PANEL_HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for n, (legend, expr) in enumerate(panel.queries.items())
        ],
    }


def main() -> int:
    """Write, or check, all of them."""
    is_check, stale = "--check" in sys.argv[1:], []
    files = {f"{each.uid.removeprefix('gazette-')}.json": rendered(each) for each in DASHBOARDS}
    wanted = {FOLDER / name: text for name, text in files.items()}
    files["alerts.yaml"] = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    wanted |= {DEPLOY / "helm" / "gazette" / "files" / name: text for name, text in files.items()}
    for path, text in wanted.items():
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path.relative_to(DEPLOY.parent)))
    if stale:
        print(f"gen_dashboards: {', '.join(stale)} differ: run `make gen`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
