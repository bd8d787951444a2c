"""Dagster sensors: register fragments as tables, report typed tables, keep the catalog up to date.

A tick of `fragments` lists new fragments, registers them, and then reports what differs from Dagster's last events; the
cursor is stored last, so a tick that fails is repeated and changes nothing twice. Several sensors can share the tables
(`shares`). What to report, and which journals wait too long, is decided without I/O (`tick`, `cursor`).

Cost: a tick runs every few seconds and is bounded in listings and events, whatever the backlog.
"""

from gazette_platform.sensors.catalog import catalog_sensor
from gazette_platform.sensors.fragments import fragments_sensor, fragments_sensors
from gazette_platform.sensors.typed import typed_sensor

__all__ = ["catalog_sensor", "fragments_sensor", "fragments_sensors", "typed_sensor"]
