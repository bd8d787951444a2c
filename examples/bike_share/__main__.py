"""``python -m examples.bike_share serve``."""

from examples.bike_share.application import BikeShare
from gazette_platform.app import run

run(BikeShare())
