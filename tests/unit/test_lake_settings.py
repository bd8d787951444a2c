"""Settings from the environment, SQL files, demo data, and the guard of hive_metastore."""

import json
from pathlib import Path

import pytest
import sqlglot

import gazette_platform
from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.lake import LakeSettings, parse_table_spec
from gazette_platform.lake.engines.spark import spark_configuration
from gazette_platform.lake.engines.trino import TrinoSession, load_sql, sql_folder
from gazette_platform.yaml_specs.journal_tree import parse_journal_tree

DEMO = Path(gazette_platform.__file__).parent / "platform" / "demo"


def test_endpoints_file_gives_addresses_and_places(tmp_path):
    path = tmp_path / "endpoints.json"
    environment = {"GAZETTE_ENDPOINTS": str(path)}
    early = LakeSettings.from_environment(environment)
    assert early.broker == ""
    assert early.tables == str(tmp_path / "tables")
    path.write_text(
        json.dumps(
            {
                "broker": "http://h:1",
                "brokers": ["http://h:1", "http://h:5"],
                "metastore": "thrift://h:2",
                "trino": "http://h:3",
                "pids": {"broker": 7},
            }
        )
    )
    settings = LakeSettings.from_environment(environment)
    assert (settings.broker, settings.metastore, settings.trino) == (
        "http://h:1,http://h:5",
        "thrift://h:2",
        "http://h:3",
    )
    assert settings.warehouse == f"file://{tmp_path}/warehouse"
    assert settings.store_roots == {"file:///": f"file://{tmp_path}/fragments/"}


def test_single_variables_win(tmp_path):
    path = tmp_path / "endpoints.json"
    path.write_text('{"broker": "http://h:1"}')
    settings = LakeSettings.from_environment(
        {
            "GAZETTE_ENDPOINTS": str(path),
            "GAZETTE_BROKER_ADDRESS": "http://other:1",
            "GAZETTE_TABLES": "/t",
            "GAZETTE_ROLLUPS": "/r",
            "GAZETTE_WAREHOUSE": "s3://w/",
            "GAZETTE_LAKE_STORE_ROOTS": '{"s3://a/": "s3a://a/"}',
        }
    )
    assert settings.broker == "http://other:1"
    assert (settings.tables, settings.rollups) == ("/t", "/r")
    assert settings.warehouse == "s3://w"
    assert settings.store_roots == {"s3://a/": "s3a://a/"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "GAZETTE_LAKE_STORE_ROOTS: not valid JSON"),
        ("[]", "GAZETTE_LAKE_STORE_ROOTS: not a JSON object"),
        ('{"file:///": "/x"}', r"lake\.store_roots"),
    ],
)
def test_malformed_roots_are_named(value, message):
    with pytest.raises(ValidationError, match=message):
        LakeSettings.from_environment({"GAZETTE_LAKE_STORE_ROOTS": value})


def test_missing_setting_names_its_variable():
    with pytest.raises(SetupError, match=r"set GAZETTE_METASTORE_URI, or GAZETTE_ENDPOINTS"):
        spark_configuration(LakeSettings())


def test_spark_configuration(tmp_path):
    jar = tmp_path / "i.jar"
    settings = LakeSettings(
        metastore="thrift://h:1",
        warehouse="file:///w",
        iceberg_jar=str(jar),
        spark_master="local[1]",
    )
    with pytest.raises(SetupError, match="no Iceberg runtime"):
        spark_configuration(settings)
    jar.touch()
    configuration = spark_configuration(settings, memory="2g")
    assert configuration["spark.master"] == "local[1,4]"
    assert configuration["spark.driver.memory"] == "2g"
    assert configuration["spark.driver.extraClassPath"] == str(jar)
    assert configuration["spark.sql.catalog.iceberg.uri"] == "thrift://h:1"
    assert configuration["spark.sql.catalog.iceberg.warehouse"] == "file:///w"
    assert configuration["spark.hadoop.hive.metastore.uris"] == "thrift://h:1"
    # Else counts of NULLs would leave out lines that are not JSON.
    assert configuration["spark.sql.json.filterPushdown.enabled"] == "false"
    logging = configuration["spark.driver.extraJavaOptions"].partition("file:")[2]
    assert "rootLogger" in Path(logging).read_text()


@pytest.mark.parametrize("uri", ["", "h:1", "thrift://h:1", "http://"])
def test_malformed_trino_address_is_refused(uri):
    with pytest.raises(ValidationError, match="not a Trino address"):
        TrinoSession(uri)


@pytest.mark.parametrize(
    "name", sorted(f"{p.parent.name}/{p.name}" for p in sql_folder().glob("*/*.sql"))
)
def test_sql_file_holds_one_statement_with_a_header(name):
    text = load_sql(name)
    assert text.startswith("-- ")
    assert len([s for s in sqlglot.parse(text, read=name.partition("/")[0]) if s]) == 1


def test_unknown_sql_file_is_an_error():
    with pytest.raises(SetupError, match="cannot read"):
        load_sql("trino/nothing.sql")


def test_demo_table_and_journals_fit_each_other():
    spec = parse_table_spec((DEMO / "flights.table.yaml").read_text())
    changes = parse_journal_tree((DEMO / "flights.journals.yaml").read_text())
    assert [change.spec.name for change in changes] == [
        f"flights/origin={origin}/part=000" for origin in ("EWR", "JFK", "LGA")
    ]
    for change in changes:
        assert spec.label_selector.matches(change.spec.label_set_with_name())
        template = change.spec.fragment.path_postfix_template
        keys = {segment.partition("=")[0] for segment in template.split("/") if "=" in segment}
        assert keys | {"origin", "part"} == {p.name for p in spec.partitions}
    assert "origin" not in {c.name for c in spec.columns}
    assert len(spec.columns) == 18


def test_repository_folder_does_not_shadow_pyicebergs_thrift_client():
    folder = sql_folder().parent / "hive_metastore"
    assert not list(folder.glob("*.py"))
    import pyiceberg.catalog.hive as hive

    assert hive.HiveCatalog
