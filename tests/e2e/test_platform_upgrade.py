"""A whole platform goes from the former version to the present one and back: tables, sensors, runs and rollups go on exactly.

`tests/extended/test_rolling_upgrade.py` does the same with brokers and consumers under load. Which version is the
former one: `tests/upgrade_from`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.request
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from former_version import PRESENT, ROOT, install_former

from gazette_platform import Client, ClientConfig, Flags, build_uuid
from gazette_platform.errors import LakeError
from gazette_platform.lake.engines.trino import TrinoSession
from gazette_platform.testing.waiting import wait_until
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

JOURNALS = """
name: shop/orders/
replication: 1
labels: [{name: content-type, value: application/x-ndjson}]
fragment:
  length: 67108864
  compression_codec: GZIP
  stores: ["file:///"]
  refresh_interval: 1s
  flush_interval: 1m
  path_postfix_template: 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}'
children:
- {name: shop/orders/region=eu}
- {name: shop/orders/region=us}
"""
TABLE = """
name: shop.orders
selector: name:prefix=shop/orders/
format: json
partitions: [{name: date, type: date}]
columns:
- {name: _meta, type: 'struct<uuid:string>'}
- {name: id, type: bigint}
unfit: {block: 1000}
typed:
  uuid: _meta.uuid
  cron: "0 0 29 2 *"
  columns: [{name: id, type: int}, {name: region, type: string, segment: region}]
"""
ROLLUP = """-- name: rollups.by_region
-- sources: [shop.orders]
-- slices: [region]
SELECT region, count(*) AS orders, sum(id) AS ids
FROM orders
WHERE id IS NOT NULL
GROUP BY region
"""
EVENTS = """{ assetOrError(assetKey: {path: ["shop", "orders"]}) {
  ... on Asset { assetMaterializations(limit: 1000) { metadataEntries { label
    ... on IntMetadataEntry { intValue } } } } } }"""
TICKS = """{ sensorsOrError(repositorySelector: {repositoryName: "__repository__",
    repositoryLocationName: "gazette_platform.definitions"}) {
  ... on Sensors { results { name sensorState { ticks(limit: 50) { status error { message } } } } } } }"""
NOT_LOADED = "DagsterCodeLocationNotFoundError"
ORDERS = 200
# A rollup is made at most once a minute, by a process that has to be started.
TABLES_S, ROLLUP_S = 120.0, 200.0


@pytest.fixture(scope="module")
def former(tmp_path_factory):
    return install_former(tmp_path_factory.mktemp("former"), "all")


def run(version, folder, program, *argv, code=0, **variables):
    """Run a command of a version to its end, in a folder. Returns: what it printed."""
    # What leads to the present version is for it alone: the working folder is another such thing.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    if version is PRESENT:
        env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [*program, *map(str, argv)],
        cwd=folder,
        env=env | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == code, (
        f"{version.name} {argv}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


@dataclass
class Shop:
    """What was appended, and what tables must hold of it."""

    lines: Counter[str] = field(default_factory=Counter)
    """Rows of the raw table that fit, by region."""
    ids: Counter[str] = field(default_factory=Counter)
    """Their sum."""
    messages: set[tuple[str, int]] = field(default_factory=set)
    """Rows of the typed table: committed messages, each once."""
    unfit: int = 0
    clock: int = 0
    waiting: list[tuple[str, int]] = field(default_factory=list)
    """Messages of a transaction that has not ended."""

    def record(self, region, producer, flags):
        self.clock += 1
        self.lines[region] += 1
        self.ids[region] += self.clock
        uuid = str(build_uuid(producer, 1_000_000 + self.clock, flags))
        return json.dumps({"_meta": {"uuid": uuid}, "id": self.clock}).encode() + b"\n"

    def orders(self, region, count):
        """Messages outside of transactions; the last one comes twice."""
        made = []
        for _ in range(count):
            made.append(self.record(region, region.encode() * 3, Flags.OUTSIDE_TXN))
            self.messages.add((region, self.clock))
        self.lines[region] += 1
        self.ids[region] += self.clock
        return b"".join([*made, made[-1]])

    def open_transaction(self, region):
        """A message, and a record that is none."""
        content = self.record(region, b"\3" * 6, Flags.CONTINUE_TXN)
        self.waiting.append((region, self.clock))
        self.unfit += 1
        return content + b"no record\n"

    def end_transaction(self, region):
        """What commits it is a row of the raw table alone."""
        self.messages.update(self.waiting)
        self.waiting.clear()
        return self.record(region, b"\3" * 6, Flags.ACK_TXN)

    def by_region(self):
        return sorted((region, self.lines[region], self.ids[region]) for region in self.lines)


class Running:
    """The platform, run by a version."""

    def __init__(self, root, version):
        self.version = version
        self.root = root
        printed = run(version, root, version.gazette, "env", "--root", root)
        words = (word.split("=", 1) for word in shlex.split(printed) if word != "export")
        self.env = dict(words)
        self.trino = TrinoSession(self.env["GAZETTE_TRINO_URI"])

    def client(self):
        return Client(ClientConfig(address=self.env["GAZETTE_BROKER_ADDRESS"]))

    def gazctl(self, *argv, code=0):
        return run(self.version, self.root, self.version.gazctl, *argv, code=code, **self.env)

    def ask(self, query):
        """Ask Dagster."""
        request = urllib.request.Request(
            f"{self.env['GAZETTE_DAGSTER_URI']}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def rows(self, sql):
        try:
            return self.trino.query(sql)
        except LakeError:  # the table does not exist yet
            return []

    def raw(self):
        return self.rows(
            "SELECT region, count(*), sum(id) FROM hive.shop.orders WHERE _meta.uuid IS NOT NULL GROUP BY 1 ORDER BY 1"
        )

    def typed(self):
        return self.rows("SELECT region, id FROM iceberg.typed.orders ORDER BY 2")

    def rollup(self):
        return self.rows("SELECT region, orders, ids FROM iceberg.rollups.by_region ORDER BY 1")

    def reported(self):
        """Rows that the sensor has reported to Dagster, in all events."""
        events = self.ask(EVENTS)["assetOrError"].get("assetMaterializations", [])
        return sum(
            entry["intValue"]
            for event in events
            for entry in event["metadataEntries"]
            if entry["label"] == "rows_added"
        )

    def check_holds(self, shop):
        """Wait until all tables hold what the shop has, and nothing else."""
        total = sum(shop.lines.values()) + shop.unfit
        wait_until(
            lambda: (self.raw(), self.reported()) == (shop.by_region(), total),
            timeout_s=TABLES_S,
            poll_s=1.0,
        )
        # No clock and no sensor runs the typed table.
        self.gazctl("lake", "run", "typed.orders", "--engine", "local")
        assert self.typed() == sorted(shop.messages, key=lambda each: each[1])
        (listed,) = json.loads(self.gazctl("lake", "list", "shop.orders", "-o", "json"))
        assert (listed["rows"], listed["unfit_records"]) == (total, shop.unfit), listed

    def check_rolls_up(self, expected):
        wait_until(lambda: self.rollup() == expected, timeout_s=ROLLUP_S, poll_s=2.0)

    def check_is_sound(self):
        """No check is red, and no tick of a sensor has failed."""
        self.gazctl("lake", "check")
        for sensor in self.ask(TICKS)["sensorsOrError"]["results"]:
            errors = [tick["error"] for tick in sensor["sensorState"]["ticks"] if tick["error"]]
            # Dagster's daemon may begin before it has loaded the definitions.
            assert all(NOT_LOADED in error["message"] for error in errors), (sensor["name"], errors)


@contextmanager
def platform(root, version):
    try:
        run(version, root, version.gazette, "up", "--root", root, "--detach", "--without", "typed")
        yield Running(root, version)
    finally:
        run(version, root, version.gazette, "down", "--root", root)


def test_platform_is_upgraded_and_taken_back(former, tmp_path):
    root, shop = tmp_path / "platform", Shop()
    (root / "rollups" / "trino").mkdir(parents=True)
    (root / "tables").mkdir()
    (root / "tables" / "shop.orders.yaml").write_text(TABLE)
    (root / "rollups" / "trino" / "by_region.sql").write_text(ROLLUP)
    rolled_up = None
    for turn, version in enumerate((former, PRESENT, former)):
        with platform(root, version) as running, running.client() as client:
            if turn == 0:
                client.apply(parse_journal_tree(JOURNALS))
            else:
                # The version before has stored, and no sensor has seen, what was appended last.
                assert running.rollup() == rolled_up
                running.check_holds(shop)
                client.append("shop/orders/region=us", shop.end_transaction("us"))
            for region in ("eu", "us"):
                client.append(f"shop/orders/region={region}", shop.orders(region, ORDERS))
            client.flush("name:prefix=shop/orders/")
            running.check_holds(shop)
            rolled_up = shop.by_region()
            running.check_rolls_up(rolled_up)
            running.check_is_sound()
            # Too late for this version's sensors: the flush interval is a minute.
            client.append("shop/orders/region=us", shop.open_transaction("us"))
            client.append("shop/orders/region=eu", shop.orders("eu", 10))
        print(
            f"upgrade: ok version={version.name} rows={sum(shop.lines.values())} typed={len(shop.messages)}"
        )
