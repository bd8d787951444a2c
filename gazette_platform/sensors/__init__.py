"""Dagster sensors: some register fragments as tables, one reports typed tables, one keeps the catalog up to date."""

from gazette_platform.sensors.catalog import catalog_sensor
from gazette_platform.sensors.fragments import fragments_sensor, fragments_sensors
from gazette_platform.sensors.typed import typed_sensor

__all__ = ["catalog_sensor", "fragments_sensor", "fragments_sensors", "typed_sensor"]
