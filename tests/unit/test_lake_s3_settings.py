"""The settings of an S3 store that Spark, the metastore and Trino get, and what `--store` makes of a platform."""

import json
import stat

import pytest

from gazette_platform.errors import SetupError, ValidationError
from gazette_platform.lake import LakeSettings
from gazette_platform.lake.engines.spark import spark_configuration
from gazette_platform.lake.settings import S3Access
from gazette_platform.platform import servers, tools
from gazette_platform.platform.layout import Endpoints, PlatformDir
from gazette_platform.platform.platform import (
    PlatformOptions,
    components_of,
    endpoints_of,
    environment_of,
)
from gazette_platform.platform.servers import write_configuration

OWN = "s3://b/p/?endpoint=http://127.0.0.1:9&region=r"


def test_a_server_of_ones_own():
    access = S3Access.of(OWN, {"AWS_REGION": "other", "AWS_ENDPOINT_URL": "http://other"})
    assert access.warehouse == "s3://b/p/.gazette/warehouse"
    assert access.hadoop() == {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
        ),
        "fs.s3a.endpoint.region": "r",
        "fs.s3a.endpoint": "http://127.0.0.1:9",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    assert access.trino() == {
        "fs.native-s3.enabled": "true",
        "s3.region": "r",
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.path-style-access": "true",
    }


def test_aws_itself_by_the_environment():
    access = S3Access.of("s3://b/", {"AWS_DEFAULT_REGION": "eu-central-1"})
    assert (access.endpoint, access.prefix) == ("", "")
    assert access.warehouse == "s3://b/.gazette/warehouse"
    assert access.trino() == {"fs.native-s3.enabled": "true", "s3.region": "eu-central-1"}
    assert "fs.s3a.endpoint" not in access.hadoop()
    access = S3Access.of("s3://b/", {"AWS_ENDPOINT_URL_S3": "https://minio"})
    assert (access.endpoint, access.region) == ("https://minio", "us-east-1")
    assert access.hadoop()["fs.s3a.connection.ssl.enabled"] == "true"
    assert S3Access.of("s3://b/?Endpoint=host:1", {}).endpoint == "https://host:1"


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("s3://b/", "has no region .*AWS_REGION"),
        ("gs://b/", "is not an s3:// store"),
        ("s3://b/?region=r&find=a/&replace=b/", "have no setting for `find`"),
        ("s3://b/?region=r&profile=p", "`profile`.*AWS_PROFILE"),
        ("s3", "s3"),
    ],
)
def test_stores_that_engines_cannot_follow(store, says):
    with pytest.raises(ValidationError, match=says):
        S3Access.of(store, {})


def test_refusals_name_the_option():
    with pytest.raises(ValidationError, match="--store: gs://b/ is not an s3://"):
        PlatformOptions(store="gs://b/")


def test_catalogs_of_trino(tmp_path):
    access = S3Access.of(OWN, {})
    for store in (access, None):
        write_configuration(
            tmp_path, host="h", port=1, data_dir=tmp_path, metastore="m:1", s3=store
        )
        for catalog in ("hive", "iceberg"):
            text = (tmp_path / "catalog" / f"{catalog}.properties").read_text()
            assert "fs.hadoop.enabled=true\n" in text
            assert ("s3.endpoint=http://127.0.0.1:9\n" in text) is (store is not None)
            assert "key" not in text
        # As `gazctl lake doctor` asks of any other Trino.
        hive = (tmp_path / "catalog" / "hive.properties").read_text()
        assert "hive.ignore-absent-partitions=true\n" in hive


def test_options_of_trinos_jvm_come_behind_ours(tmp_path):
    options = ["-Xmx4g", "-XX:TieredStopAtLevel=1"]
    write_configuration(
        tmp_path, host="h", port=1, data_dir=tmp_path, metastore="", jvm_options=options
    )
    lines = (tmp_path / "jvm.config").read_text().splitlines()
    assert lines.index("-Xmx1g") < lines.index("-Xmx4g")
    assert lines[-2:] == options


def test_spark_reaches_the_store_of_the_endpoints_file(tmp_path, monkeypatch):
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps({"metastore": "thrift://m:1", "store": OWN}))
    jar = tmp_path / "iceberg.jar"
    jar.touch()
    environment = {
        "GAZETTE_ENDPOINTS": str(path),
        "GAZETTE_ICEBERG_JAR": str(jar),
        "GAZETTE_S3_JARS": "/jars",
    }
    settings = LakeSettings.from_environment(environment)
    assert settings.warehouse == "s3://b/p/.gazette/warehouse"
    spark = spark_configuration(settings)
    assert spark["spark.driver.extraClassPath"] == f"/jars/*:{jar}"
    assert spark["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9"
    assert spark["spark.sql.catalog.iceberg.warehouse"] == "s3://b/p/.gazette/warehouse"
    folders = LakeSettings.from_environment({**environment, "GAZETTE_WAREHOUSE": "file:///w/"})
    assert folders.warehouse == "file:///w"
    path.write_text(json.dumps({"metastore": "thrift://m:1"}))
    spark = spark_configuration(LakeSettings.from_environment(environment))
    assert not [name for name in spark if "s3" in name]
    assert spark["spark.driver.extraClassPath"] == str(jar)


def test_an_s3_server_of_the_platforms_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "s3_server", lambda: tmp_path / "versitygw")
    monkeypatch.setattr(tools, "s3_jars", lambda: tmp_path / "jars")
    monkeypatch.setattr(tools, "etcd", lambda: tmp_path / "etcd")
    options = PlatformOptions(store="s3", without=frozenset({"trino", "dagster", "metastore"}))
    layout = PlatformDir.at(tmp_path / "root")
    ports = {name: 20_000 + n for n, name in enumerate(options.port_names())}
    found = {each.name: each for each in components_of(layout, options, ports)}
    assert found["broker-1"].requires == ("etcd", "s3")
    assert (layout.s3 / "objects" / "gazette").is_dir()
    keys = layout.s3 / "keys.json"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    endpoints = endpoints_of(options, ports)
    assert endpoints.s3 == f"http://127.0.0.1:{ports['s3']}"
    assert endpoints.store == f"s3://gazette/?endpoint={endpoints.s3}&region=us-east-1"
    environment = environment_of(layout, endpoints)
    # The same at every start.
    assert found["s3"].environment["ROOT_ACCESS_KEY"] == environment["AWS_ACCESS_KEY_ID"]
    at = {"GAZETTE_ENDPOINTS": str(layout.endpoints)}
    assert found["broker-1"].environment == at | servers.read_keys(layout.s3)
    assert environment["GAZETTE_LAKE_STORE"] == endpoints.store
    assert environment["GAZETTE_WAREHOUSE"] == "s3://gazette/.gazette/warehouse"
    assert environment["AWS_SECRET_ACCESS_KEY"] not in " ".join(found["s3"].command)
    keys.write_text("{}")
    with pytest.raises(SetupError, match=r"keys\.json does not hold the keys.*remove it"):
        servers.read_keys(layout.s3)


def test_a_store_of_others_needs_no_keys_of_ours(tmp_path):
    options = PlatformOptions(store=OWN, without=frozenset({"metastore", "trino", "dagster"}))
    assert "s3" not in options.port_names()
    endpoints = Endpoints(store=OWN)
    environment = environment_of(PlatformDir.at(tmp_path), endpoints)
    assert environment["GAZETTE_WAREHOUSE"] == "s3://b/p/.gazette/warehouse"
    assert not [name for name in environment if name.startswith("AWS_")]
