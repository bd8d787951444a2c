"""Charts have the version of the package, and defaults that their own schemas know."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHARTS = sorted(path.parent for path in (ROOT / "deploy" / "helm").glob("*/Chart.yaml"))


def keys(values, schema, path=""):
    """Each key of values that the schema describes, and each that it does not, with `?`."""
    for key, value in values.items():
        known = schema["properties"].get(key)
        yield f"{path}{key}" if known else f"{path}{key}?"
        if known and "properties" in known:
            yield from keys(value, known, f"{path}{key}.")


def described(schema, path=""):
    for key, part in schema["properties"].items():
        yield f"{path}{key}"
        if "properties" in part:
            yield from described(part, f"{path}{key}.")


def test_both_charts_are_looked_at():
    assert [path.name for path in CHARTS] == ["gazette", "gazette-consumer"]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda path: path.name)
def test_versions_are_that_of_the_package(chart):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (version, version)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda path: path.name)
def test_schema_and_values_name_the_same(chart):
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    # Helm gives each chart a mapping `global`.
    assert sorted(keys(values, schema)) == sorted(set(described(schema)) - {"global"})
