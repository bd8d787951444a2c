"""Dagster sensors: the one that registers fragments as tables."""

from gazette_platform.sensors.fragments import fragments_sensor

__all__ = ["fragments_sensor"]
