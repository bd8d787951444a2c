"""Loads all that a registrar needs, by using it once: what is forked from here begins at once.

Imported by the server that forks them, which runs nothing else. No channel of gRPC is made, and no
thread is left: both would be of no use to who is forked.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from alembic.script import ScriptDirectory
from dagster import AssetKey, AssetMaterialization, DagsterInstance

from gazette_platform.hive.model import ttypes
from gazette_platform.ops.extras import required
from gazette_platform.sensors.events import InstanceTold
from tests.lake_crash import registrar

__all__ = ["warm_up"]


def _keep_revisions() -> None:
    """Have Dagster read the history of its database once, not at each beginning: that is half of a short life."""
    kept: dict[str | None, ScriptDirectory] = {}
    read: Any = ScriptDirectory.from_config

    def from_config(config: Any) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in kept:
            kept[place] = read(config)
        return kept[place]

    planted: Any = ScriptDirectory
    planted.from_config = from_config


def warm_up() -> None:
    """Use Dagster's store, and name what Thrift loads late."""
    required("hive_metastore.ThriftHiveMetastore", extra="lake", by="registrars")
    assert ttypes.Table is not None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        with DagsterInstance.from_config(folder) as instance:
            event = AssetMaterialization("warm", partition="up", tags={"dagster/data_version": "1"})
            instance.report_runless_asset_event(event)
            instance.add_dynamic_partitions("warm", ["up"])
            instance.daemon_cursor_storage.set_cursor_values({registrar.CURSOR: ""})
            told = InstanceTold(instance)
            told.versions(AssetKey("warm"), ["up"])
            told.totals(AssetKey("warm"), ["up"])


_keep_revisions()
warm_up()
