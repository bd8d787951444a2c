"""``python -m examples.flights_live serve``."""

from examples.flights_live.application import FlightsLive
from gazette_platform.app import run

run(FlightsLive())
