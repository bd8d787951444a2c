"""Jars of programs in Java that use Kafka: `tests/interop/kafka/jars.toml` pins them."""

from __future__ import annotations

import os
import tomllib
from functools import cache, partial
from pathlib import Path

from gazette_platform.platform import tools
from gazette_platform.platform.download import MavenArtifact, fetch_maven_jars, show_step

_PINS = Path(__file__).parents[1] / "interop" / "kafka" / "jars.toml"


@cache
def _pins():
    return tomllib.loads(_PINS.read_text("utf-8"))


def version_of(name):
    """The version of one set of jars."""
    return _pins()[name]["version"]


def jars_of(name):
    """The folder of one set of jars, installed if need be."""
    title = f"kafka-{name}-jars-{version_of(name)}"
    return tools._install(title, title, partial(_fetch, name))


def _fetch(name, into):
    artifacts = [MavenArtifact(**file) for file in _pins()[name]["files"]]
    total_bytes = sum(artifact.size_bytes for artifact in artifacts)
    with show_step(f"downloading {len(artifacts)} jars of {name} for Kafka", total_bytes) as step:
        repository = os.environ.get("GAZETTE_MAVEN_REPOSITORY", "")
        java_home = tools.java(21)
        fetch_maven_jars(artifacts, into, java_home=java_home, step=step, repository=repository)
