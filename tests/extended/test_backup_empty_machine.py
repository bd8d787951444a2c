"""A platform is restored on an empty machine: from the backup of etcd, the fragment store and the warehouse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from live_platform import LivePlatform, gazette
from pyiceberg.catalog.hive import HiveCatalog

from gazette_platform.message.uuid import Flags, build_uuid, clock_of
from gazette_platform.platform.layout import PlatformDir

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

JOURNALS = """
name: shop/
replication: 1
fragment:
  length: 1048576
  compression_codec: GZIP
  stores: [file:///]
  refresh_interval: 1s
  path_postfix_template: date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}
children:
- name: shop/part=one
- name: shop/part=two
"""
SPEC = """name: shop.events
selector: name:prefix=shop/
format: json
columns:
  - {name: n, type: bigint}
typed:
  uuid: _meta.uuid
  columns: [{name: n, type: bigint}]
"""
PRODUCER = bytes.fromhex("070203040506")
CLOCK = clock_of(1_760_000_000_000_000_000)
WITHOUT = "trino,dagster,typed"


class Machine:
    """Commands on the platform in one folder."""

    def __init__(self, root):
        self.layout = PlatformDir.at(root)

    def up(self, without=WITHOUT):
        done = gazette("up", "--root", self.layout.root, "--without", without, timeout_s=400)
        assert done.returncode == 0, done.stderr
        self.platform = LivePlatform.of(self.layout.root)

    def down(self):
        assert gazette("down", "--root", self.layout.root).returncode == 0

    def run(self, *args, program="gazctl", text=""):
        done = subprocess.run(
            [sys.executable, "-m", f"gazette_platform.cli.{program}", *map(str, args)],
            input=text,
            env=os.environ | self.platform.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def append(self, journal, numbers):
        lines = (f'{{"_meta": {{"uuid": "{uuid_of(n)}"}}, "n": {n}}}\n' for n in numbers)
        self.run("journals", "append", journal, text="".join(lines))

    def typed_rows(self):
        catalog = HiveCatalog("hive", uri=self.platform.endpoints.metastore)
        (name,) = (n for n in catalog.list_tables("typed") if n[1] == "events")
        return sorted(catalog.load_table(name).scan().to_arrow()["n"].to_pylist())

    def typed_run(self):
        self.run("lake", "run", "typed.events")


def uuid_of(n):
    return build_uuid(PRODUCER, CLOCK + n * 160, Flags.OUTSIDE_TXN)


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path / "platform")
    yield machine
    gazette("down", "--root", machine.layout.root)


def test_everything_persisted_comes_back(machine, tmp_path):
    file = tmp_path / "etcd.backup"
    machine.up()
    (tmp_path / "journals.yaml").write_text(JOURNALS)
    (tmp_path / "events.yaml").write_text(SPEC)
    machine.run("journals", "apply", tmp_path / "journals.yaml")
    machine.append("shop/part=one", range(10))
    machine.append("shop/part=two", range(100, 110))
    machine.run("lake", "apply", tmp_path / "events.yaml")
    machine.typed_run()
    machine.run("savepoints", "create", "monday", "-l", "name:prefix=shop/")
    machine.run("backup", file, program="gazette")
    machine.append("shop/part=one", range(10, 20))
    machine.run("journals", "flush", "shop/")
    machine.typed_run()
    machine.run("lake", "flush", "shop.events")
    assert machine.typed_rows() == [*range(20), *range(100, 110)]
    content = machine.run("journals", "read", "shop/part=one")
    machine.down()

    layout = machine.layout
    kept = {layout.fragments, layout.warehouse, layout.tables}
    for path in layout.root.iterdir():
        if path not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    newest = {}
    for metadata in sorted(layout.warehouse.glob("typed.db/*/metadata/*.metadata.json")):
        newest[metadata.parents[1].name.partition("-")[0]] = metadata
    assert {"events"} <= newest.keys(), newest

    machine.up("broker,metastore,trino,dagster,typed")
    assert "savepoints: 1" in machine.run("restore", file, program="gazette")
    machine.up()
    machine.run("journals", "reset-head", "-l", "name:prefix=shop/", "--yes")
    assert machine.run("journals", "read", "shop/part=one") == content
    assert "monday" in machine.run("savepoints", "list")
    # First: whatever looks for the table would else make another one, from all content.
    catalog = HiveCatalog("hive", uri=machine.platform.endpoints.metastore)
    catalog.create_namespace_if_not_exists("typed")
    for name, metadata in newest.items():
        catalog.register_table(f"typed.{name}", metadata.as_uri())
    flushed = machine.run("lake", "flush", "shop.events")
    assert "30 row(s) more" in flushed + machine.run("lake", "list")
    machine.typed_run()
    assert machine.typed_rows() == [*range(20), *range(100, 110)]
    machine.append("shop/part=one", range(20, 25))
    machine.append("shop/part=two", range(110, 115))
    machine.typed_run()
    assert machine.typed_rows() == [*range(25), *range(100, 115)]
