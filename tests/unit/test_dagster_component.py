"""A lake in a user's own project: by a defs.yaml, and by one function call."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from dagster import (
    AssetKey,
    DagsterInvalidDefinitionError,
    Definitions,
    build_defs_for_component,
    load_from_defs_folder,
)
from dagster.components.testing import create_defs_folder_sandbox

from gazette_platform.assets.rollups import engine_of
from gazette_platform.components import GazetteLake
from gazette_platform.definitions import build_definitions, lake_definitions
from gazette_platform.errors import ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.rollups import RollupSpec, rollup
from gazette_platform.resources import TrinoResource

# Dagster copies what components give in a way that it calls beta.
pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

REPOSITORY = Path(__file__).parents[2]
TABLE = REPOSITORY / "gazette_platform" / "platform" / "demo" / "flights.table.yaml"
ROLLUPS = REPOSITORY / "sql" / "demo"
PROJECT = """
[tool.dg]
directory_type = "project"
[tool.dg.project]
root_module = "{name}"
"""
FUNCTION = '''
from gazette_platform.lake.rollups import rollup


@rollup(name="mine.carriers", sources=["flights.flights"], slices=["origin"])
def carriers(flights):
    """Flights of each carrier."""
    return flights.groupBy("origin", "carrier").count()
'''
SERVERS = {
    "broker": "http://broker:1",
    "metastore": "thrift://metastore:2",
    "trino": "http://trino:3",
    "warehouse": "file:///warehouse",
}


@rollup(name="mine.carriers", sources=["flights.flights"], slices=["origin"])
def carriers(flights):
    """Flights of each carrier."""
    return flights.groupBy("origin", "carrier").count()


@rollup(name="flights.flights", sources=["flights.others"])
def flights(others):
    """Has the name of the raw table."""
    return others


@pytest.fixture(autouse=True)
def no_platform(monkeypatch):
    for name in ("ENDPOINTS", "BROKER_ADDRESS", "METASTORE_URI", "TRINO_URI", "TABLES", "ROLLUPS"):
        monkeypatch.delenv(f"GAZETTE_{name}", raising=False)


@pytest.fixture
def project(tmp_path, monkeypatch, request):
    """Loads a project that has a defs.yaml with these attributes."""
    # Dagster imports it as a package, and each test has another one.
    name = f"project_{abs(hash(request.node.nodeid))}"
    folder = tmp_path / name / "defs" / "lake"
    (folder / "tables").mkdir(parents=True)
    shutil.copy(TABLE, folder / "tables" / "flights.yaml")
    shutil.copytree(ROLLUPS, folder / "rollups")
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(name=name))
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "made.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(*, post_processing=None, **attributes):
        text = json.dumps(attributes).replace("PROJECT", name)
        spec = {"type": "gazette_platform.components.GazetteLake", "attributes": json.loads(text)}
        if post_processing:
            spec["post_processing"] = post_processing
        (folder / "defs.yaml").write_text(yaml.safe_dump(spec))
        return load_from_defs_folder(path_within_project=tmp_path)

    load.folder = folder
    return load


def shown(definitions):
    """The parts of a lake, as Dagster shows them."""
    repository = definitions.get_repository_def()
    graph = repository.asset_graph
    return (
        {
            (k.to_user_string(), graph.get(k).code_version, tuple(sorted(graph.get(k).parent_keys)))
            for k in graph.get_all_asset_keys()
        },
        set(graph.asset_check_keys),
        {s.name for s in (*repository.sensor_defs, *repository.schedule_defs)},
    )


def test_a_defs_yaml_gives_what_one_call_does(project, tmp_path):
    jar = tmp_path / "iceberg.jar"
    jar.touch()
    given = SERVERS | {"iceberg_jar": str(jar)}
    loaded = project(
        tables="tables", rollups="rollups", functions=["PROJECT.made.carriers"], **given
    )
    folder = project.folder
    settings = LakeSettings(tables=str(folder / "tables"), rollups=str(folder / "rollups"), **given)
    called = lake_definitions(settings, functions=[carriers])
    assets, checks, ticking = shown(loaded)
    assert (checks, ticking) == shown(called)[1:]
    assert {name for name, *_ in assets} == {
        "table_specs",
        "rollup_specs",
        "journals/flights/flights",
        "flights/flights",
        "rollups/route_by_month",
        "rollups/delays_by_arrival",
        "rollups/delays_by_month",
        "mine/carriers",
        "typed/flights",
        "typed/flights_quarantine",
        "backfills/typed/flights",
        "maintenance/typed/flights",
    }
    assert {a for a in assets if a[0] != "mine/carriers"} == {
        a for a in shown(called)[0] if a[0] != "mine/carriers"
    }
    assert {"fragments", "catalog", "rollup_automation"} < ticking
    resources = loaded.resources
    assert resources.keys() == {"broker", "metastore", "lake", "trino", "spark"}
    assert resources["broker"].address == "http://broker:1"
    assert resources["metastore"].uri == "thrift://metastore:2"
    assert resources["lake"].tables == str(folder / "tables")
    Definitions.validate_loadable(loaded)


def test_attributes_are_read_from_the_environment(project, monkeypatch):
    monkeypatch.setenv("MY_METASTORE", "thrift://mine:9")
    monkeypatch.setenv("GAZETTE_TRINO_URI", "http://theirs:8")
    resources = project(
        tables="tables",
        metastore="{{ env.MY_METASTORE }}",
        broker="{{ env('MY_BROKER', 'http://default:7') }}",
        warehouse="{{ env.NOT_SET }}",
    ).resources
    assert resources["metastore"].uri == "thrift://mine:9"
    assert resources["broker"].address == "http://default:7"
    # What no attribute says, as of a `gazette up`.
    assert resources["trino"].uri == "http://theirs:8"
    assert resources["lake"].warehouse == ""


def test_the_endpoints_of_a_platform_are_enough(project):
    (project.folder / "endpoints.json").write_text(
        json.dumps({"brokers": ["http://a:1", "http://b:1"], "trino": "http://t:2"})
    )
    loaded = project(endpoints="endpoints.json", store_roots={"s3://b/": "s3a://b/"})
    assert loaded.resources["broker"].address == "http://a:1,http://b:1"
    lake = loaded.resources["lake"]
    assert lake.tables == str(project.folder / "tables")
    assert lake.store_roots == {"s3://b/": "s3a://b/"}
    graph = loaded.resolve_asset_graph()
    assert graph.has(AssetKey(["rollups", "route_by_month"]))


def test_what_dagster_does_to_assets_of_components_works_on_rollups(project):
    on_cron = "{{ dg.AutomationCondition.on_cron('0 1 * * *') }}"
    attributes = {"group_name": "sums", "owners": ["team:data"], "automation_condition": on_cron}
    graph = project(
        tables="tables",
        rollups="rollups",
        post_processing={"assets": [{"target": "group:rollups", "attributes": attributes}]},
        **SERVERS,
    ).resolve_asset_graph()
    node = graph.get(AssetKey(["rollups", "route_by_month"]))
    assert (node.group_name, node.owners) == ("sums", ["team:data"])
    assert node.automation_condition.get_label() == "on_cron(0 1 * * *, UTC)"
    assert node.code_version
    assert graph.get(AssetKey(["flights", "flights"])).group_name == "raw"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"folder": "tables"}, "folder"),
        ({"functions": ["carriers"]}, "functions.carriers: is not a module.name"),
        ({"functions": ["not_there.carriers"]}, "No module named 'not_there'"),
        ({"functions": ["PROJECT.made.airports"]}, "has no rollup airports"),
        ({"resources": {"broker": "mine"}}, "'broker' is not an engine"),
        ({"table_url": "http://x"}, "GAZETTE_TABLE_URL"),
    ],
)
def test_what_is_wrong_with_attributes_is_reported(project, attributes, message):
    with pytest.raises(Exception, match="Error") as told:  # Dagster's, of several kinds
        project(tables="tables", **attributes)
    texts, error = [], told.value
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    assert message in "\n".join(texts)


def test_engines_may_be_resources_that_the_project_has(tmp_path):
    settings = LakeSettings(tables=str(TABLE.parent), rollups=str(ROLLUPS))
    lake = lake_definitions(settings, engines={"trino": "lake_trino"})
    with pytest.raises(DagsterInvalidDefinitionError, match="lake_trino"):
        Definitions.validate_loadable(lake)
    project = Definitions.merge(
        lake, Definitions(resources={"lake_trino": TrinoResource(uri="http://mine:1")})
    )
    Definitions.validate_loadable(project)
    assert "trino" not in lake.resources
    made = {key.path[1]: a for a in lake.assets for key in getattr(a, "keys", ())}
    needed = made["route_by_month"].required_resource_keys
    assert needed - {"io_manager"} == {"lake", "metastore", "lake_trino"}
    assert "delays_by_arrival" not in made  # of Spark, which is not configured


def test_a_run_asks_the_engine_that_it_is_reported():
    spec = RollupSpec(name="r.a", engine="trino", sql="x", sources={"x": "s.x"})
    mine = TrinoResource(uri="http://mine:1", iceberg_catalog="lakehouse")
    engine = engine_of(SimpleNamespace(mine=mine), "mine", spec)
    assert engine.catalogs.iceberg == "lakehouse"


def test_names_that_are_taken_are_refused(tmp_path):
    shutil.copy(TABLE, tmp_path / "flights.yaml")
    settings = LakeSettings(tables=str(tmp_path))
    with pytest.raises(ValidationError, match=r"flights\.flights already"):
        lake_definitions(settings, functions=[flights])
    with pytest.raises(ValidationError, match=r"mine\.carriers already"):
        lake_definitions(settings, functions=[carriers, carriers])


def test_without_components_a_project_calls_the_same(tmp_path):
    shutil.copy(TABLE, tmp_path / "flights.yaml")
    settings = replace(LakeSettings(**SERVERS), tables=str(tmp_path))
    component = GazetteLake(tables=str(tmp_path), **SERVERS)
    assert shown(build_defs_for_component(component)) == shown(lake_definitions(settings))
    assert shown(build_definitions(settings)) == shown(lake_definitions(settings))
    # Merged with what the project has, its executor stays its own.
    assert lake_definitions(settings).executor is None


@pytest.mark.filterwarnings("ignore:.parse_obj_as:pydantic.PydanticDeprecatedSince20")  # Dagster's
def test_what_is_scaffolded_loads_and_has_folders_to_fill():
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component_cls=GazetteLake)
        assert (path / "rollups" / "spark").is_dir()
        shutil.copy(TABLE, path / "tables" / "flights.yaml")
        with sandbox.load_component_and_build_defs(defs_path=path) as (component, made):
            assert isinstance(component, GazetteLake)
            assert made.resolve_asset_graph().has(AssetKey(["flights", "flights"]))
